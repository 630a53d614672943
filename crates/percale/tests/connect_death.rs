//! Kills a local peer process while a child that it forked still runs and holds all of its descriptors.

#![expect(unsafe_code, reason = "fork: the child must inherit descriptors that no exec would leave open")]

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use percale::memory::mapping::sealed_memfd;
use percale_transport::connect::{
    EndpointOptions, EndpointRegistration, EstablishedTransport, LocalDoorbell, Mailbox, Service, ServiceNotice,
};
use percale_wire::hello::Incarnation;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

struct TestDoorbell {
    memory: OwnedFd,
    event: OwnedFd,
    next: AtomicU32,
}

impl LocalDoorbell for TestDoorbell {
    fn descriptors(&self) -> Option<[BorrowedFd<'_>; 2]> {
        Some([self.memory.as_fd(), self.event.as_fd()])
    }
    fn allocate(&self) -> Option<u32> {
        Some(self.next.fetch_add(1, Ordering::Relaxed))
    }
    fn release(&self, _: u32) {}
    fn make_pair(&self) -> std::io::Result<OwnedFd> {
        sealed_memfd("percale-test", 8192, 0)
    }
    fn pair_bytes(&self) -> u64 {
        8192
    }
    fn doorbell_bytes(&self) -> u64 {
        4096
    }
}

fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

fn open(service: &Arc<Service>) -> (EndpointRegistration, Arc<Mailbox>, OwnedFd) {
    let mut options = EndpointOptions::new("127.0.0.1:0".parse().unwrap(), Incarnation::random().unwrap());
    let memory = sealed_memfd("percale-test", 4096, 4096).unwrap();
    options.doorbell = Some(Arc::new(TestDoorbell { memory, event: eventfd(), next: AtomicU32::new(0) }));
    let wake = eventfd();
    let waker = wake.try_clone().unwrap();
    let mailbox = Mailbox::new(move || {
        rustix::io::write(&waker, &1u64.to_ne_bytes()).unwrap();
    });
    (service.open(options, &mailbox).unwrap(), mailbox, wake)
}

fn wait(mailbox: &Mailbox, wake: &OwnedFd) -> ServiceNotice {
    loop {
        if let Some(notice) = mailbox.take().pop() {
            return notice;
        }
        let mut fds = [PollFd::new(wake, PollFlags::IN)];
        let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut fds, Some(&timeout)).unwrap(), 1, "no notice arrived");
        rustix::io::read(wake, &mut [0u8; 8]).unwrap();
    }
}

const PEER: &str = "PERCALE_TEST_PEER";

/// Not a separate test: the child process of the test below runs it.
#[test]
fn peer_process() {
    let Ok(address) = std::env::var(PEER) else { return };
    let service = Service::start().unwrap();
    let (registration, mailbox, wake) = open(&service);
    registration.connect(1, address.parse::<SocketAddr>().unwrap());
    let ServiceNotice::Established { link: EstablishedTransport::Shm(_parts), .. } = wait(&mailbox, &wake) else {
        panic!()
    };
    // SAFETY: the child only sleeps and exits, which is allowed after fork in a process with threads.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: sleeping accesses no memory of the parent.
        unsafe { libc::sleep(60) };
        // SAFETY: ends the child immediately, without running code of its parent.
        unsafe { libc::_exit(0) };
    }
    println!("forked {child}");
    std::io::stdout().flush().unwrap();
    // SAFETY: waits for the signal that ends this process.
    unsafe { libc::pause() };
}

#[test]
fn a_forked_child_does_not_hide_its_parents_death() {
    let service = Service::start().unwrap();
    let (registration, mailbox, wake) = open(&service);
    let mut peer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "peer_process", "--nocapture", "--test-threads=1"])
        .env(PEER, registration.address().to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let ServiceNotice::Established { serial, identity, link: EstablishedTransport::Shm(_parts), .. } =
        wait(&mailbox, &wake)
    else {
        panic!()
    };
    assert_eq!(identity.pid, peer.id().cast_signed());
    let orphan: i32 = BufReader::new(peer.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.split_once("forked ").and_then(|(_, pid)| pid.trim().parse().ok()))
        .expect("the peer forks");
    peer.kill().unwrap();
    peer.wait().unwrap();
    let ServiceNotice::Dead { serial: dead, reason, .. } = wait(&mailbox, &wake) else { panic!() };
    assert_eq!((dead, reason), (serial, format!("process {} ended", peer.id())));
    let orphan = rustix::process::Pid::from_raw(orphan).unwrap();
    rustix::process::kill_process(orphan, rustix::process::Signal::KILL).expect("the child outlived its parent");
}

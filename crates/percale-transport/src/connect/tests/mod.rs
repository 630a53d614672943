//! Tests with two or more endpoints of one process over loopback. They cover all ways in which a connection succeeds or
//! fails.

mod both;
mod identity;
mod keys;
mod made;
mod pairs;
mod refused;
mod users;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use zerocopy::IntoBytes;

use super::*;
use crate::local_memory::mapping::{Mapping, sealed_memfd};
use crate::wire::hello::Incarnation;

const PAIR: usize = 8192;
const DOORBELL: usize = 4096;

/// A doorbell that allocates bits, but on which no endpoint sleeps.
struct TestDoorbell {
    memory: OwnedFd,
    event: OwnedFd,
    pair_bytes: usize,
    taken: Mutex<Vec<bool>>,
}

fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

impl TestDoorbell {
    fn new(pair_bytes: usize) -> Arc<Self> {
        let memory = sealed_memfd("percale-test-bell", DOORBELL, DOORBELL).unwrap();
        Arc::new(Self { memory, event: eventfd(), pair_bytes, taken: Mutex::new(vec![false; 1024]) })
    }

    fn in_use(&self) -> usize {
        self.taken.lock().unwrap().iter().filter(|taken| **taken).count()
    }
}

impl LocalDoorbell for TestDoorbell {
    fn descriptors(&self) -> Option<[BorrowedFd<'_>; 2]> {
        Some([self.memory.as_fd(), self.event.as_fd()])
    }
    fn allocate(&self) -> Option<u32> {
        let mut taken = self.taken.lock().unwrap();
        let bit = taken.iter().position(|taken| !taken)?;
        taken[bit] = true;
        Some(bit as u32)
    }
    fn release(&self, bit: u32) {
        self.taken.lock().unwrap()[bit as usize] = false;
    }
    fn make_pair(&self) -> std::io::Result<OwnedFd> {
        sealed_memfd("percale-test-pair", self.pair_bytes, 0)
    }
    fn pair_bytes(&self) -> u64 {
        self.pair_bytes as u64
    }
    fn doorbell_bytes(&self) -> u64 {
        DOORBELL as u64
    }
}

/// An address for ports that must stay free after they are closed: other tests bind to other addresses of this host.
const UNUSED_HOST: &str = "127.0.3.1:0";

/// One endpoint with its mailbox.
struct Peer {
    registration: EndpointRegistration,
    mailbox: Arc<Mailbox>,
    wake: OwnedFd,
    doorbell: Arc<TestDoorbell>,
}

/// The parts of an established connection that the tests check.
struct Up {
    attempt: Option<u64>,
    serial: u64,
    identity: PeerIdentity,
    link: EstablishedTransport,
    reason: String,
}

impl Peer {
    fn with(service: &Arc<Service>, change: impl FnOnce(&mut EndpointOptions)) -> Self {
        let doorbell = TestDoorbell::new(PAIR);
        let mut options = EndpointOptions::new("127.0.0.1:0".parse().unwrap(), Incarnation::random().unwrap());
        options.doorbell = Some(Arc::clone(&doorbell) as Arc<dyn LocalDoorbell>);
        options.naming = Naming::Of(Arc::new(|_| false));
        change(&mut options);
        let wake = eventfd();
        let waker = wake.try_clone().unwrap();
        let mailbox = Mailbox::new(move || {
            rustix::io::write(&waker, &1u64.to_ne_bytes()).unwrap();
        });
        Self { registration: service.open(options, &mailbox).unwrap(), mailbox, wake, doorbell }
    }

    fn tcp(service: &Arc<Service>) -> Self {
        Self::with(service, |options| options.transports = Transports::TCP)
    }

    fn shm(service: &Arc<Service>) -> Self {
        Self::with(service, |_| ())
    }

    fn address(&self) -> SocketAddr {
        self.registration.address()
    }

    /// Returns the next notices. Panics if none arrive for a long time.
    fn wait(&self) -> Vec<ServiceNotice> {
        loop {
            let notices = self.mailbox.take();
            if !notices.is_empty() {
                return notices;
            }
            let mut fds = [PollFd::new(&self.wake, PollFlags::IN)];
            let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
            assert_eq!(rustix::event::poll(&mut fds, Some(&timeout)).unwrap(), 1, "no notice arrived");
            rustix::io::read(&self.wake, &mut [0u8; 8]).unwrap();
        }
    }

    fn one(&self) -> ServiceNotice {
        let mut notices = self.wait();
        assert_eq!(notices.len(), 1, "{notices:?}");
        notices.remove(0)
    }

    fn up(&self) -> Up {
        match self.one() {
            ServiceNotice::Established { attempt, serial, identity, link, reason } => {
                Up { attempt, serial, identity, link, reason }
            }
            other => panic!("{other:?}"),
        }
    }

    fn error(&self) -> ConnectError {
        match self.one() {
            ServiceNotice::Failed { error, .. } | ServiceNotice::CallRejected { error, .. } => error,
            other => panic!("{other:?}"),
        }
    }
}

fn stream(link: EstablishedTransport) -> TcpStream {
    let EstablishedTransport::Tcp(socket) = link else { panic!("{link:?}") };
    let stream = TcpStream::from(socket.as_fd().try_clone_to_owned().unwrap());
    stream.set_nonblocking(false).unwrap();
    stream
}

fn shm(link: EstablishedTransport) -> ShmParts {
    let EstablishedTransport::Shm(parts) = link else { panic!("{link:?}") };
    parts
}

fn services() -> [Arc<Service>; 2] {
    [Service::start().unwrap(), Service::start().unwrap()]
}

fn keyed(service: &Arc<Service>, key: Option<&str>) -> Peer {
    Peer::with(service, |options| options.authorization_key = key.map(Into::into))
}

#[test]
fn a_dropped_registration_frees_its_port_and_a_dropped_service_ends() {
    let [one, two] = services();
    let a = Peer::with(&one, |options| options.bind = UNUSED_HOST.parse().unwrap());
    let b = Peer::shm(&two);
    a.registration.connect(1, b.address());
    a.up();
    b.up();
    let address = a.address();
    drop(a);
    TcpListener::bind(address).unwrap();
    assert!(matches!(b.one(), ServiceNotice::Dead { .. }));
    drop(one);
    drop(b);
    drop(two);
}

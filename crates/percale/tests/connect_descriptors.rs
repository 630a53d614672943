//! Tests connection set-up when a process runs out of descriptors. This is a separate program, because the limit
//! applies to the whole process.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use percale_transport::connect::{
    ConnectError, ConnectTimeouts, EndpointOptions, EndpointRegistration, Mailbox, Service, ServiceNotice, Transports,
};
use percale_wire::hello::Incarnation;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::process::{Resource, Rlimit};

struct Peer {
    registration: EndpointRegistration,
    mailbox: Arc<Mailbox>,
    wake: OwnedFd,
}

fn peer(service: &Arc<Service>) -> Peer {
    let mut options = EndpointOptions::new("127.0.0.1:0".parse().unwrap(), Incarnation::random().unwrap());
    options.transports = Transports::TCP;
    options.timeouts = ConnectTimeouts::of(Duration::from_secs(1));
    let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let waker = wake.try_clone().unwrap();
    let mailbox = Mailbox::new(move || {
        rustix::io::write(&waker, &1u64.to_ne_bytes()).unwrap();
    });
    Peer { registration: service.open(options, &mailbox).unwrap(), mailbox, wake }
}

impl Peer {
    fn wait(&self) -> ServiceNotice {
        loop {
            if let Some(notice) = self.mailbox.take().pop() {
                return notice;
            }
            let mut fds = [PollFd::new(&self.wake, PollFlags::IN)];
            let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
            assert_eq!(rustix::event::poll(&mut fds, Some(&timeout)).unwrap(), 1, "no notice arrived");
            rustix::io::read(&self.wake, &mut [0u8; 8]).unwrap();
        }
    }
}

/// Opens files until no more can be opened.
fn exhaust() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

#[test]
fn descriptor_exhaustion_is_a_recoverable_error() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(128), ..limit }).unwrap();
    let service = Service::start().unwrap();
    let (a, b) = (peer(&service), peer(&service));

    // No descriptor is left, so even the connecting endpoint cannot connect.
    let mut files = exhaust();
    a.registration.connect(1, b.registration.address());
    let ServiceNotice::Failed { attempt: 1, error } = a.wait() else { panic!() };
    assert_eq!(error, ConnectError::Descriptors { peer: false });
    assert!(error.to_string().contains("ulimit"), "{error}");

    // One descriptor is left, for the connecting endpoint. The accepting endpoint has none, and reports this at each
    // further attempt.
    files.pop();
    a.registration.connect(2, b.registration.address());
    let ServiceNotice::Failed { attempt: 2, error } = a.wait() else { panic!() };
    assert_eq!(error, ConnectError::Descriptors { peer: true });

    // Connections that wait in the queue are accepted when descriptors are available again.
    a.registration.connect(3, b.registration.address());
    drop(files);
    let ServiceNotice::Established { attempt: Some(3), .. } = a.wait() else { panic!() };
    assert!(matches!(b.wait(), ServiceNotice::Established { attempt: None, .. }));
}

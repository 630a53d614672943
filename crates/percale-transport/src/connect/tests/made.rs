//! Tests of connections that succeed, and of their transports.

use std::io::{Read, Write};

use super::*;

#[test]
fn tcp_connects_over_both_families() {
    let [one, two] = services();
    for bind in ["127.0.0.1:0", "[::1]:0"] {
        if TcpListener::bind(bind).is_err() {
            continue;
        }
        let with = |service| {
            Peer::with(service, |options| {
                options.bind = bind.parse().unwrap();
                options.transports = Transports::TCP;
            })
        };
        let (a, b) = (with(&one), with(&two));
        a.registration.connect(7, b.address());
        let (at_a, at_b) = (a.up(), b.up());
        assert_eq!((at_a.attempt, at_b.attempt), (Some(7), None));
        assert_eq!(at_a.identity.incarnation, b.registration.incarnation());
        assert_eq!(at_b.identity.incarnation, a.registration.incarnation());
        assert_eq!((at_a.identity.address, at_b.identity.address), (b.address(), a.address()));
        assert!(at_a.identity.host_local && at_b.identity.host_local);
        assert_eq!(at_a.reason, "shared memory is not allowed by one side");
        assert_eq!(at_b.reason, at_a.reason);
        let (mut from, mut to) = (stream(at_b.link), stream(at_a.link));
        from.write_all(b"first bytes").unwrap();
        let mut got = [0; 11];
        to.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"first bytes");
        to.write_all(b"second byte").unwrap();
        from.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"second byte");
    }
}

#[test]
fn local_peers_get_shared_memory() {
    let [one, two] = services();
    let (a, b) = (Peer::shm(&one), Peer::shm(&two));
    a.registration.connect(1, b.address());
    let (at_a, at_b) = (a.up(), b.up());
    assert_eq!(at_a.reason, "same host, network namespace and user");
    assert_eq!(at_a.reason, at_b.reason);
    assert_eq!(at_a.identity.pid, std::process::id().cast_signed());
    let (left, right) = (shm(at_a.link), shm(at_b.link));
    assert_eq!((left.side, right.side), (0, 1));
    assert_eq!((left.my_bit, right.my_bit), (right.peer_bit, left.peer_bit));
    assert!(left.cma && left.peer_nonce == right.peer_nonce && left.peer_nonce.0 != 0);
    let maps = [Mapping::of(left.pair.as_fd(), PAIR).unwrap(), Mapping::of(right.pair.as_fd(), PAIR).unwrap()];
    let mut seen = [0u8; 5];
    rustix::io::pwrite(&left.pair, b"hello", 100).unwrap();
    rustix::io::pread(&right.pair, &mut seen, 100).unwrap();
    assert_eq!(&seen, b"hello");
    assert_ne!(maps[0].as_ptr(), maps[1].as_ptr());
    // Each side has the doorbell of the other side.
    for (mine, theirs) in [(&a.doorbell, &right), (&b.doorbell, &left)] {
        rustix::io::pwrite(&mine.memory, b"bell!", 8).unwrap();
        rustix::io::pread(&theirs.peer_doorbell, &mut seen, 8).unwrap();
        assert_eq!(&seen, b"bell!");
        rustix::io::write(&theirs.peer_event, &1u64.to_ne_bytes()).unwrap();
        assert_eq!(rustix::io::read(&mine.event, &mut [0u8; 8]), Ok(8));
    }
    // The control sockets are a pair, and the end of one is reported.
    rustix::io::write(&left.control, b"x").unwrap();
    assert_eq!(rustix::io::read(&right.control, &mut seen), Ok(1));
    a.registration.closed(at_a.serial);
    let ServiceNotice::Dead { serial, incarnation, reason } = b.one() else { panic!() };
    assert_eq!((serial, incarnation), (at_b.serial, a.registration.incarnation()));
    assert_eq!(reason, "connection closed");
}

#[test]
fn failed_shared_memory_setup_degrades_to_tcp() {
    let [one, two] = services();
    // Each side expects a different size of the pair memory, so the acceptor rejects the memory that it receives.
    let a = Peer::shm(&one);
    let odd = TestDoorbell::new(PAIR * 2);
    let b = Peer::with(&two, |options| options.doorbell = Some(Arc::clone(&odd) as Arc<dyn LocalDoorbell>));
    a.registration.connect(1, b.address());
    let (at_a, at_b) = (a.up(), b.up());
    assert!(at_a.reason.starts_with("the peer passed wrong file descriptors"), "{}", at_a.reason);
    assert_eq!(at_a.reason, at_b.reason);
    stream(at_a.link).write_all(b"y").unwrap();
    stream(at_b.link).read_exact(&mut [0]).unwrap();
    assert_eq!((a.doorbell.in_use(), odd.in_use()), (0, 0), "all bits are free again");

    // If TCP is not allowed, no other transport is left.
    let c = Peer::with(&one, |options| options.transports = Transports::SHM);
    c.registration.connect(2, b.address());
    let error = c.error();
    assert!(matches!(&error, ConnectError::NoTransport(why) if why.contains("wrong file descriptors")), "{error}");
}

/// Requirements: CON-003.
#[test]
fn slow_shared_memory_setup_is_awaited() {
    for transports in [Transports::SHM, Transports::all()] {
        let [one, two] = services();
        let [a, b] = [&one, &two].map(|service| Peer::with(service, |options| options.transports = transports));
        let busy = b.doorbell.taken.lock().unwrap();
        a.registration.connect(1, b.address());
        std::thread::sleep(Duration::from_millis(1500));
        drop(busy);
        assert_eq!(shm(a.up().link).side, 0);
        assert_eq!(shm(b.up().link).side, 1);
    }
}

/// Requirements: CON-003.
#[test]
fn late_answering_process_is_awaited() {
    let [one, two] = services();
    let (b, other) = (Peer::shm(&two), Peer::shm(&one));
    let patient = |options: &mut EndpointOptions| {
        options.transports = Transports::TCP;
        options.timeouts = ConnectTimeouts { host: Duration::from_millis(200), process: Duration::from_secs(60) };
    };
    let a = Peer::with(&one, patient);
    // The thread of the called endpoint waits here, but its host still accepts calls.
    let busy = b.doorbell.taken.lock().unwrap();
    other.registration.connect(1, b.address());
    std::thread::sleep(Duration::from_millis(100));
    a.registration.connect(2, b.address());
    std::thread::sleep(Duration::from_millis(800));
    drop(busy);
    assert_eq!(a.up().attempt, Some(2));
    shm(other.up().link);
}

#[test]
fn a_full_doorbell_degrades_to_tcp() {
    let [one, two] = services();
    let (a, b) = (Peer::shm(&one), Peer::shm(&two));
    while b.doorbell.allocate().is_some() {}
    a.registration.connect(1, b.address());
    let reason = a.up().reason;
    assert_eq!(reason, "the doorbell has no free slots");
    assert_eq!(b.up().reason, reason);
}

#[test]
fn no_common_transport_is_refused() {
    let [one, two] = services();
    let (a, b) = (Peer::tcp(&one), Peer::with(&two, |options| options.transports = Transports::SHM));
    a.registration.connect(1, b.address());
    assert!(matches!(a.error(), ConnectError::NoTransport(_)));
}

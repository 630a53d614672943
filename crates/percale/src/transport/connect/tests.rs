//! Two and more endpoints of one process, over loopback: every way in which a connection comes about, or does not.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use zerocopy::IntoBytes;

use super::*;
use crate::memory::mapping::{Mapping, sealed_memfd};
use crate::wire::hello::Incarnation;

const PAIR: usize = 8192;
const BELL: usize = 4096;

/// A doorbell with nothing behind it.
struct TestBell {
    memory: OwnedFd,
    event: OwnedFd,
    pair_bytes: usize,
    taken: Mutex<Vec<bool>>,
}

fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

impl TestBell {
    fn new(pair_bytes: usize) -> Arc<Self> {
        let memory = sealed_memfd("percale-test-bell", BELL, BELL).unwrap();
        Arc::new(Self { memory, event: eventfd(), pair_bytes, taken: Mutex::new(vec![false; 1024]) })
    }

    fn in_use(&self) -> usize {
        self.taken.lock().unwrap().iter().filter(|taken| **taken).count()
    }
}

impl LocalBell for TestBell {
    fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
    fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
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
    fn bell_bytes(&self) -> u64 {
        BELL as u64
    }
}

/// One endpoint with its mailbox.
struct Peer {
    registration: Registration,
    mailbox: Arc<Mailbox>,
    wake: OwnedFd,
    bell: Arc<TestBell>,
}

/// What of an established connection the tests look at.
struct Up {
    attempt: Option<u64>,
    serial: u64,
    identity: PeerIdentity,
    link: Made,
    reason: String,
}

impl Peer {
    fn with(service: &Arc<Service>, change: impl FnOnce(&mut EndpointOptions)) -> Self {
        let bell = TestBell::new(PAIR);
        let mut options = EndpointOptions::new("127.0.0.1:0".parse().unwrap(), Incarnation::random().unwrap());
        options.bell = Some(Arc::clone(&bell) as Arc<dyn LocalBell>);
        change(&mut options);
        let wake = eventfd();
        let mailbox = Mailbox::new(wake.try_clone().unwrap());
        Self { registration: service.open(options, &mailbox).unwrap(), mailbox, wake, bell }
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

    /// The next notices; panics if none come for a long time.
    fn wait(&self) -> Vec<Notice> {
        loop {
            let notices = self.mailbox.take();
            if !notices.is_empty() {
                return notices;
            }
            let mut fds = [PollFd::new(&self.wake, PollFlags::IN)];
            let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
            assert_eq!(rustix::event::poll(&mut fds, Some(&patience)).unwrap(), 1, "no notice came");
            rustix::io::read(&self.wake, &mut [0u8; 8]).unwrap();
        }
    }

    fn one(&self) -> Notice {
        let mut notices = self.wait();
        assert_eq!(notices.len(), 1, "{notices:?}");
        notices.remove(0)
    }

    fn up(&self) -> Up {
        match self.one() {
            Notice::Established { attempt, serial, identity, link, reason } => {
                Up { attempt, serial, identity, link, reason }
            }
            other => panic!("{other:?}"),
        }
    }

    fn error(&self) -> ConnectError {
        match self.one() {
            Notice::Failed { error, .. } | Notice::TurnedAway { error, .. } => error,
            other => panic!("{other:?}"),
        }
    }
}

fn stream(link: Made) -> TcpStream {
    let Made::Tcp(socket) = link else { panic!("{link:?}") };
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(false).unwrap();
    stream
}

fn shm(link: Made) -> ShmParts {
    let Made::Shm(parts) = link else { panic!("{link:?}") };
    parts
}

fn services() -> [Arc<Service>; 2] {
    [Service::start().unwrap(), Service::start().unwrap()]
}

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
        assert_eq!(at_a.reason, "tcp: shared memory is not allowed by one side");
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
    assert_eq!(at_a.reason, "shared memory: same host, network namespace and user");
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
    // The doorbells are each other's.
    for (mine, theirs) in [(&a.bell, &right), (&b.bell, &left)] {
        rustix::io::pwrite(&mine.memory, b"bell!", 8).unwrap();
        rustix::io::pread(&theirs.peer_bell, &mut seen, 8).unwrap();
        assert_eq!(&seen, b"bell!");
        rustix::io::write(&theirs.peer_event, &1u64.to_ne_bytes()).unwrap();
        assert_eq!(rustix::io::read(&mine.event, &mut [0u8; 8]), Ok(8));
    }
    // The control sockets are a pair, and its end is news.
    rustix::io::write(&left.control, b"x").unwrap();
    assert_eq!(rustix::io::read(&right.control, &mut seen), Ok(1));
    a.registration.closed(at_a.serial);
    let Notice::Dead { serial, incarnation, reason } = b.one() else { panic!() };
    assert_eq!((serial, incarnation), (at_b.serial, a.registration.incarnation()));
    assert_eq!(reason, "connection closed");
}

#[test]
fn what_fails_at_the_meeting_degrades_to_tcp() {
    let [one, two] = services();
    // Each thinks pair memory to have another size, so the acceptor refuses what it is passed.
    let a = Peer::shm(&one);
    let odd = TestBell::new(PAIR * 2);
    let b = Peer::with(&two, |options| options.bell = Some(Arc::clone(&odd) as Arc<dyn LocalBell>));
    a.registration.connect(1, b.address());
    let (at_a, at_b) = (a.up(), b.up());
    assert!(at_a.reason.starts_with("tcp: the peer passed wrong descriptors"), "{}", at_a.reason);
    assert_eq!(at_a.reason, at_b.reason);
    stream(at_a.link).write_all(b"y").unwrap();
    stream(at_b.link).read_exact(&mut [0]).unwrap();
    assert_eq!((a.bell.in_use(), odd.in_use()), (0, 0), "bits are given back");

    // With TCP forbidden there is nothing to degrade to.
    let c = Peer::with(&one, |options| options.transports = Transports::SHM);
    c.registration.connect(2, b.address());
    let error = c.error();
    assert!(matches!(&error, ConnectError::NoTransport(why) if why.contains("wrong descriptors")), "{error}");
}

#[test]
fn a_full_doorbell_degrades_to_tcp() {
    let [one, two] = services();
    let (a, b) = (Peer::shm(&one), Peer::shm(&two));
    while b.bell.allocate().is_some() {}
    a.registration.connect(1, b.address());
    let reason = a.up().reason;
    assert_eq!(reason, "tcp: all places of a doorbell are taken");
    assert_eq!(b.up().reason, reason);
}

#[test]
fn no_common_transport_is_refused() {
    let [one, two] = services();
    let (a, b) = (Peer::tcp(&one), Peer::with(&two, |options| options.transports = Transports::SHM));
    a.registration.connect(1, b.address());
    assert!(matches!(a.error(), ConnectError::NoTransport(_)));
}

fn keyed(service: &Arc<Service>, key: Option<&str>) -> Peer {
    Peer::with(service, |options| options.authorization_key = key.map(Into::into))
}

#[test]
fn a_key_admits_those_who_have_it() {
    let [one, two] = services();
    let (a, b) = (keyed(&one, Some("open sesame")), keyed(&two, Some("open sesame")));
    a.registration.connect(1, b.address());
    assert_eq!(shm(a.up().link).side, 0);
    assert_eq!(shm(b.up().link).side, 1);
}

#[test]
fn a_wrong_or_missing_key_is_an_error_on_both_sides() {
    let [one, two] = services();
    for keys in [[Some("a"), Some("b")], [Some("a"), None], [None, Some("a")]] {
        let (a, b) = (keyed(&one, keys[0]), keyed(&two, keys[1]));
        a.registration.connect(1, b.address());
        assert_eq!(a.error(), ConnectError::Authorization, "{keys:?}");
        assert_eq!(b.error(), ConnectError::Authorization, "{keys:?}");
    }
}

#[test]
fn nobody_there_is_refused_at_once() {
    let [one, _] = services();
    let a = Peer::tcp(&one);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    a.registration.connect(5, free);
    assert_eq!(a.error(), ConnectError::Refused(free));
}

#[test]
fn silence_times_out_on_both_sides() {
    let [one, _] = services();
    let short = |options: &mut EndpointOptions| options.connect_timeout = Duration::from_millis(150);
    let a = Peer::with(&one, short);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    a.registration.connect(5, silent.local_addr().unwrap());
    assert!(matches!(a.error(), ConnectError::Timeout { .. }));
    // A stranger who says nothing is hung up on.
    let mut stranger = TcpStream::connect(a.address()).unwrap();
    assert!(matches!(a.error(), ConnectError::Timeout { .. }));
    assert_eq!(stranger.read(&mut [0]).unwrap_or(0), 0);
}

#[test]
fn strangers_are_told_as_much_as_they_need() {
    let [one, _] = services();
    let a = Peer::tcp(&one);
    let mut web = TcpStream::connect(a.address()).unwrap();
    web.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(matches!(a.error(), ConnectError::Protocol(_)));
    assert_eq!(web.read(&mut [0]).unwrap_or(0), 0, "another protocol is told nothing");

    let mut old = handshake::fuzz::hello(3, false).to_bytes();
    old.as_mut_bytes()[8] = 9;
    let mut peer = TcpStream::connect(a.address()).unwrap();
    peer.write_all(old.as_bytes()).unwrap();
    assert_eq!(a.error(), ConnectError::Version { theirs: 9 });
    let mut told = [0; 10];
    peer.read_exact(&mut told).unwrap();
    assert_eq!(told, *b"percale\0\x01\0", "another version learns ours");

    // And the other way round: whom we call has another version.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    a.registration.connect(1, server.local_addr().unwrap());
    server.accept().unwrap().0.write_all(old.as_bytes()).unwrap();
    assert_eq!(a.error(), ConnectError::Version { theirs: 9 });
}

#[test]
fn a_peer_that_keeps_hanging_up_is_an_error() {
    let [one, _] = services();
    let a = Peer::tcp(&one);
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let hang_up = std::thread::spawn(move || (0..4).for_each(|_| drop(server.accept().unwrap())));
    a.registration.connect(1, address);
    assert_eq!(a.error(), ConnectError::Closed(address));
    hang_up.join().unwrap();
}

#[test]
fn oneself_and_other_names_of_a_peer_are_aliases() {
    let [one, two] = services();
    let any = |service| Peer::with(service, |options| options.bind = "0.0.0.0:0".parse().unwrap());
    let (a, b) = (any(&one), any(&two));
    a.registration.connect(1, SocketAddr::new("127.0.0.1".parse().unwrap(), a.address().port()));
    let Notice::Aliased { attempt: 1, incarnation } = a.one() else { panic!() };
    assert_eq!(incarnation, a.registration.incarnation());
    assert!(!b.address().ip().is_unspecified());

    let names =
        ["127.0.0.1", "127.0.0.2", "127.0.0.3"].map(|ip| SocketAddr::new(ip.parse().unwrap(), b.address().port()));
    a.registration.connect(2, names[0]);
    let up = a.up();
    assert_eq!(up.identity.address, b.address());
    a.registration.connect(3, names[1]);
    let Notice::Aliased { attempt: 3, incarnation } = a.one() else { panic!() };
    assert_eq!(incarnation, b.registration.incarnation());
    // All at once: one is the connection, the others are its aliases.
    let c = any(&one);
    (0..30).for_each(|n| c.registration.connect(n, names[n as usize % 3]));
    let mut notices = Vec::new();
    while notices.len() < 30 {
        notices.extend(c.wait());
    }
    let up = notices.iter().filter(|notice| matches!(notice, Notice::Established { attempt: Some(_), .. })).count();
    let aliased = notices.iter().filter(|notice| matches!(notice, Notice::Aliased { .. })).count();
    assert_eq!((up, aliased), (1, 29), "{notices:?}");
}

#[test]
fn a_connection_that_one_side_lost_is_made_anew() {
    let [one, two] = services();
    let (a, b) = (Peer::tcp(&one), Peer::tcp(&two));
    a.registration.connect(1, b.address());
    let (old_a, old_b) = (a.up(), b.up());
    // Nobody tells b.
    a.registration.closed(old_a.serial);
    a.registration.connect(2, b.address());
    assert_eq!(a.up().attempt, Some(2));
    let mut notices = b.wait();
    while notices.len() < 2 {
        notices.extend(b.wait());
    }
    assert!(matches!(&notices[0], Notice::Dead { serial, .. } if *serial == old_b.serial), "{notices:?}");
    assert!(matches!(&notices[1], Notice::Established { .. }), "{notices:?}");
}

#[test]
fn another_incarnation_at_an_address_replaces_the_first() {
    let [one, two] = services();
    let (a, b) = (Peer::tcp(&one), Peer::tcp(&two));
    a.registration.connect(1, b.address());
    let old = a.up();
    let address = b.address();
    drop(b.registration);
    let again = Peer::with(&two, |options| (options.bind, options.transports) = (address, Transports::TCP));
    a.registration.connect(2, address);
    let mut notices = a.wait();
    while notices.len() < 2 {
        notices.extend(a.wait());
    }
    let Notice::Replaced { serial, new, .. } = &notices[0] else { panic!("{notices:?}") };
    assert_eq!((*serial, *new), (old.serial, again.registration.incarnation()));
    assert!(matches!(&notices[1], Notice::Established { attempt: Some(2), .. }), "{notices:?}");
}

/// Every one of `left` and every one of `right` call each other at once.
fn settle(left: &[Peer], right: &[Peer]) {
    for (i, a) in left.iter().enumerate() {
        for (j, b) in right.iter().enumerate() {
            a.registration.connect(j as u64, b.address());
            b.registration.connect(i as u64, a.address());
        }
    }
    let mut links = HashMap::new();
    for (peers, others) in [(left, right), (right, left)] {
        for peer in peers {
            let mut answered = vec![0; others.len()];
            let mut established = HashMap::new();
            let deadline = Instant::now() + Duration::from_secs(60);
            while answered.iter().sum::<usize>() < others.len() || established.len() < others.len() {
                assert!(Instant::now() < deadline);
                for notice in peer.wait() {
                    match notice {
                        Notice::Established { attempt, identity, link, .. } => {
                            attempt.into_iter().for_each(|attempt| answered[attempt as usize] += 1);
                            assert!(established.insert(identity.incarnation, link).is_none(), "two links");
                        }
                        Notice::Aliased { attempt, incarnation } => {
                            answered[attempt as usize] += 1;
                            assert_eq!(incarnation, others[attempt as usize].registration.incarnation());
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
            assert!(answered.iter().all(|count| *count == 1));
            let own = peer.registration.incarnation();
            links.extend(established.into_iter().map(|(other, link)| ((own, other), link)));
        }
    }
    for a in left {
        for b in right {
            let (a, b) = (a.registration.incarnation(), b.registration.incarnation());
            let [one, two] = [(a, b), (b, a)].map(|pair| links.remove(&pair).expect("a link on both sides"));
            match (one, two) {
                (Made::Shm(one), Made::Shm(two)) => {
                    assert_eq!(one.side + two.side, 1);
                    let inode = |parts: &ShmParts| rustix::fs::fstat(&parts.pair).unwrap().st_ino;
                    assert_eq!(inode(&one), inode(&two), "both agree");
                }
                (Made::Tcp(one), Made::Tcp(two)) => {
                    let name = |socket: &OwnedFd| SocketAddr::try_from(rustix::net::getsockname(socket).unwrap());
                    let peer = rustix::net::getpeername(&one).unwrap().unwrap();
                    assert_eq!(SocketAddr::try_from(peer), name(&two), "both agree");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn simultaneous_connects_settle_on_one_link_a_pair() {
    let [one, two] = services();
    for pairs in [1, 20] {
        for make in [Peer::tcp, Peer::shm] {
            let left: Vec<Peer> = (0..pairs).map(|_| make(&one)).collect();
            let right: Vec<Peer> = (0..10).map(|_| make(&two)).collect();
            settle(&left, &right);
        }
    }
}

#[test]
fn many_calls_to_one_endpoint_settle() {
    let [one, two] = services();
    let left = [Peer::tcp(&one)];
    let right: Vec<Peer> = (0..250).map(|_| Peer::tcp(&two)).collect();
    settle(&left, &right);
}

#[test]
fn with_a_key_simultaneous_connects_settle_too() {
    let [one, two] = services();
    let left: Vec<Peer> = (0..10).map(|_| keyed(&one, Some("k"))).collect();
    let right: Vec<Peer> = (0..10).map(|_| keyed(&two, Some("k"))).collect();
    settle(&left, &right);
}

#[test]
fn a_dropped_registration_frees_its_port_and_a_dropped_service_ends() {
    let [one, two] = services();
    let a = Peer::shm(&one);
    let b = Peer::shm(&two);
    a.registration.connect(1, b.address());
    a.up();
    b.up();
    let address = a.address();
    drop(a);
    TcpListener::bind(address).unwrap();
    assert!(matches!(b.one(), Notice::Dead { .. }));
    drop(one);
    drop(b);
    drop(two);
}

#[test]
fn strangers_at_the_unix_socket_get_nothing() {
    let [one, two] = services();
    let (a, b) = (Peer::shm(&one), Peer::shm(&two));
    let (socket, address) = listen::unix_socket(&b.registration.incarnation()).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    let offer = crate::wire::meeting::Offer::new([1; 16], Default::default());
    passing::send(socket.as_fd(), &offer, &[socket.as_fd()]).unwrap();
    let mut fds = [PollFd::new(&socket, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 20, tv_nsec: 0 })).unwrap();
    assert!(!matches!(rustix::io::read(&socket, &mut [0u8; 8]), Ok(1..)), "an unknown token gets no answer");
    a.registration.connect(1, b.address());
    assert!(matches!(a.up().link, Made::Shm(_)));
}

#[test]
fn a_crowd_of_silent_strangers_keeps_nobody_out() {
    let [one, two] = services();
    let long = |options: &mut EndpointOptions| {
        options.connect_timeout = Duration::from_secs(600);
        options.transports = Transports::TCP;
    };
    let (a, b) = (Peer::with(&one, long), Peer::with(&two, long));
    let strangers: Vec<TcpStream> = (0..1100).map(|_| TcpStream::connect(b.address()).unwrap()).collect();
    a.registration.connect(1, b.address());
    a.up();
    b.up();
    let gone = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        matches!(stream.read(&mut [0]), Ok(0))
    };
    assert!(strangers.iter().filter(|stream| gone(stream)).count() >= 1100 - 1024, "the oldest had to go");
}

#[test]
fn an_unread_mailbox_forgets_old_strangers_only() {
    let mailbox = Mailbox::new(eventfd());
    let from = "127.0.0.1:1".parse().unwrap();
    mailbox.post(Notice::Failed { attempt: 1, error: ConnectError::Authorization });
    (0..1000).for_each(|_| mailbox.post(Notice::TurnedAway { from, error: ConnectError::Authorization }));
    assert!(mailbox.has_notices());
    let notices = mailbox.take();
    assert_eq!(notices.len(), 65);
    assert!(matches!(notices[0], Notice::Failed { .. }));
    assert!(!mailbox.has_notices());
}

//! Tests of connections that are not made, and of unrelated clients.

use std::io::{Read, Write};

use super::*;
use crate::system::process_socket::ProcessSocket;
use crate::wire::hello::VERSION;

#[test]
fn connect_to_closed_port_is_refused_immediately() {
    let [one, _] = services();
    let a = Peer::tcp(&one);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    a.registration.connect(5, free);
    assert_eq!(a.error(), ConnectError::Refused(free));
}

#[test]
fn silence_times_out_on_both_sides() {
    let [one, _] = services();
    let short = |options: &mut EndpointOptions| options.timeouts = ConnectTimeouts::of(Duration::from_millis(150));
    let a = Peer::with(&one, short);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    a.registration.connect(5, silent.local_addr().unwrap());
    assert!(matches!(a.error(), ConnectError::Timeout { .. }));
    // The connection of a client that sends nothing is closed.
    let mut stranger = TcpStream::connect(a.address()).unwrap();
    assert!(matches!(a.error(), ConnectError::Timeout { .. }));
    assert_eq!(stranger.read(&mut [0]).unwrap_or(0), 0);
}

/// A rejected caller may close its connection late. Until then its socket must not cause repeated wake-ups.
#[test]
fn drained_socket_causes_no_wakeups_until_hang_up() {
    use rustix::event::epoll::{self, EventData, EventFlags};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (socket, from) = listener.accept().unwrap();
    let socket = ProcessSocket::open(|| Ok::<_, std::io::Error>(socket.into())).unwrap();
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
    epoll::add(&epoll, &socket, EventData::new_u64(0), flags).unwrap();
    let is_ready = |milliseconds: i64| {
        let timeout = Timespec { tv_sec: 0, tv_nsec: milliseconds * 1_000_000 };
        let mut events = Vec::with_capacity(4);
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)).unwrap() > 0
    };
    let hello = handshake::fuzz::hello(3, false);
    let handshake = handshake::Handshake::new(false, &hello, None);
    let mut setup = setup::Setup::called(1, handshake, hello, (socket, from), Instant::now());
    assert!(is_ready(0), "the socket is writable");
    // The end of the sending direction and its acknowledgement each cause one event.
    let ready = (0..10).filter(|_| {
        assert!(matches!(setup::drain(&mut setup), setup::SetupOutcome::Stay));
        is_ready(20)
    });
    assert!(ready.count() <= 2, "draining makes the socket ready again");
    drop(caller);
    assert!(is_ready(999));
    assert!(matches!(setup::drain(&mut setup), setup::SetupOutcome::Drop));
}

#[test]
fn unknown_protocol_gets_no_reply_and_other_version_gets_ours() {
    let [one, _] = services();
    let a = Peer::tcp(&one);
    let mut web = TcpStream::connect(a.address()).unwrap();
    web.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(matches!(a.error(), ConnectError::Protocol(_)));
    assert_eq!(web.read(&mut [0]).unwrap_or(0), 0, "a client of another protocol gets no answer");

    let mut old = handshake::fuzz::hello(3, false).to_bytes();
    let theirs = VERSION + 1;
    old.as_mut_bytes()[8..10].copy_from_slice(&theirs.to_le_bytes());
    let mut peer = TcpStream::connect(a.address()).unwrap();
    peer.write_all(old.as_bytes()).unwrap();
    assert_eq!(a.error(), ConnectError::Version { theirs });
    let mut received = [0; 10];
    peer.read_exact(&mut received).unwrap();
    assert_eq!(received[..8], *b"percale\0", "a peer of another version gets the magic");
    assert_eq!(received[8..], VERSION.to_le_bytes(), "a peer of another version gets our version");

    // The reverse case: the called endpoint has a different version.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    a.registration.connect(1, server.local_addr().unwrap());
    server.accept().unwrap().0.write_all(old.as_bytes()).unwrap();
    assert_eq!(a.error(), ConnectError::Version { theirs });
}

#[test]
fn peer_that_repeatedly_hangs_up_is_an_error() {
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
fn unknown_token_at_the_unix_socket_gets_no_answer() {
    let [one, two] = services();
    let (a, b) = (Peer::shm(&one), Peer::shm(&two));
    let (socket, address) = listen::unix_socket(&b.registration.incarnation()).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    let offer = crate::wire::meeting::MeetingOffer::new([1; 16], Default::default());
    passing::send(socket.as_fd(), &offer, &[socket.as_fd()]).unwrap();
    let mut fds = [PollFd::new(&socket, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 20, tv_nsec: 0 })).unwrap();
    assert!(!matches!(rustix::io::read(&socket, &mut [0u8; 8]), Ok(1..)), "an unknown token gets no answer");
    a.registration.connect(1, b.address());
    assert!(matches!(a.up().link, EstablishedTransport::Shm(_)));
}

#[test]
fn many_silent_connections_do_not_block_a_peer() {
    let [one, two] = services();
    let long = |options: &mut EndpointOptions| {
        options.timeouts = ConnectTimeouts::of(Duration::from_secs(600));
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
    assert!(
        strangers.iter().filter(|stream| gone(stream)).count() >= 1100 - 1024,
        "the oldest connections were closed"
    );
}

#[test]
fn unread_mailbox_drops_only_old_rejection_notices() {
    let mailbox = Mailbox::new(|| ());
    let from = "127.0.0.1:1".parse().unwrap();
    mailbox.post(ServiceNotice::Failed { attempt: 1, error: ConnectError::Authorization });
    (0..1000).for_each(|_| mailbox.post(ServiceNotice::CallRejected { from, error: ConnectError::Authorization }));
    assert!(mailbox.has_notices());
    let notices = mailbox.take();
    assert_eq!(notices.len(), 65);
    assert!(matches!(notices[0], ServiceNotice::Failed { .. }));
    assert!(!mailbox.has_notices());
}

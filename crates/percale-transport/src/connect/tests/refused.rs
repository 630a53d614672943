//! Tests of connections that are not made, and of unrelated clients.

use std::io::{Read, Write};

use super::*;
use crate::connect::meeting::{DescriptorBudget, Meeting};
use crate::system::process_socket::ProcessSocket;
use crate::wire::hello::VERSION;
use crate::wire::meeting::{Confirm, MeetingAnswer, MeetingHalf, MeetingOffer};
use crate::wire::refusal_reason::RefusalReason;

#[test]
fn connect_to_closed_port_is_refused_immediately() {
    let [one, _] = services();
    let a = Peer::tcp(&one);
    let free = TcpListener::bind(UNUSED_HOST).unwrap().local_addr().unwrap();
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

/// A socket that calls a free port of its host may get this port as its own.
#[test]
fn socket_connected_to_itself_is_a_refused_connection() {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let own = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&own, &address).unwrap();
    let address = SocketAddr::try_from(rustix::net::getsockname(&own).unwrap()).unwrap();
    rustix::net::connect(&own, &address).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, from) = listener.accept().unwrap();
    for (socket, peer, expected) in
        [(own, address, Err(ConnectError::Refused(address))), (accepted.into(), from, Ok(true))]
    {
        let hello = handshake::fuzz::hello(3, false);
        let handshake = handshake::Handshake::new(false, &hello, None);
        let setup = setup::Setup::called(1, handshake, hello, (ProcessSocket::from(socket), peer), Instant::now());
        assert_eq!(setup.connected(), expected);
    }
    drop(caller);
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

/// A process that returns the challenge was alive after its descriptors were opened. The caller accepts no other.
#[test]
fn meeting_is_completed_only_with_the_challenge() {
    for wrong in [0, 1, 1 << 63] {
        let doorbell = TestDoorbell::new(PAIR);
        let local = Arc::clone(&doorbell) as Arc<dyn LocalDoorbell>;
        let incarnation = Incarnation::random().unwrap();
        let listener = listen::unix_listener(&incarnation).unwrap();
        let mut meeting = Meeting::call(&local, &incarnation, [1; 16], DescriptorBudget::All).unwrap();
        let called = rustix::net::accept(&listener).unwrap();
        let (offer, passed) = passing::receive::<MeetingOffer>(called.as_fd()).unwrap().unwrap();
        assert_eq!(passed.len(), 3);
        let echo = offer.half.challenge.get() ^ wrong;
        let answer = MeetingAnswer::new(RefusalReason::SameHost, 0, echo.into(), MeetingHalf::default());
        passing::send(called.as_fd(), &answer, &local.descriptors().unwrap()).unwrap();
        let expected = if wrong == 0 { Ok(true) } else { Err(RefusalReason::PeerUnknown) };
        assert_eq!(meeting.read_answer().map_err(|degraded| degraded.why), expected, "{wrong:#x}");
        let confirmed = passing::receive::<Confirm>(called.as_fd()).unwrap();
        assert_eq!(confirmed.is_some(), wrong == 0);
    }
}

/// The same for the side that was called.
#[test]
fn offer_is_confirmed_only_with_the_challenge() {
    use rustix::net::{AddressFamily, SocketType};
    for wrong in [0, 1, 1 << 63] {
        let doorbell = TestDoorbell::new(PAIR);
        let local = Arc::clone(&doorbell) as Arc<dyn LocalDoorbell>;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, listen::FLAGS, None).unwrap();
        let passed = vec![
            doorbell.make_pair().unwrap(),
            doorbell.memory.try_clone().unwrap(),
            doorbell.event.try_clone().unwrap(),
        ];
        let offer = MeetingOffer::new([1; 16], MeetingHalf::default());
        let meeting = Meeting::answer(&local, ours.into(), &offer, passed, DescriptorBudget::All).unwrap();
        let (answer, _) = passing::receive::<MeetingAnswer>(theirs.as_fd()).unwrap().unwrap();
        let echo = answer.half.challenge.get() ^ wrong;
        passing::send(theirs.as_fd(), &Confirm::new(echo.into()), &[]).unwrap();
        let expected = if wrong == 0 { Ok(true) } else { Err(RefusalReason::PeerUnknown) };
        assert_eq!(meeting.read_confirm().map_err(|degraded| degraded.why), expected, "{wrong:#x}");
    }
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

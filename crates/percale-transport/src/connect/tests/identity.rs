//! A peer is identified by its incarnation, and an address belongs to the endpoint that is met there. Tests of callers
//! and listeners that claim the address or the incarnation of another endpoint.

use std::io::{Read, Write};

use super::*;
use crate::connect::handshake::{AuthorizationKey, Handshake, HandshakeEvent};
use crate::wire::hello::{Hello, HelloFlags, Ruling, Verdict};
use crate::wire::refusal_reason::RefusalReason;

/// A side of a handshake that can send false statements.
struct Liar {
    socket: TcpStream,
    handshake: Handshake,
}

impl Liar {
    fn over(socket: TcpStream, handshake: Handshake) -> Self {
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { socket, handshake }
    }

    /// Calls `to` with this hello.
    fn call(to: SocketAddr, hello: &Hello) -> Self {
        let hello = Hello { called: to, ..hello.clone() };
        Self::over(TcpStream::connect(to).unwrap(), Handshake::new(true, &hello, None))
    }

    fn flush(&mut self) {
        let output = std::mem::take(self.handshake.output());
        self.socket.write_all(&output).unwrap();
    }

    fn next_event(&mut self) -> HandshakeEvent {
        loop {
            self.flush();
            let mut bytes = vec![0; self.handshake.wants()];
            self.socket.read_exact(&mut bytes).unwrap();
            if let Some(event) = self.handshake.feed(&bytes).unwrap() {
                return event;
            }
        }
    }

    fn verdict(&mut self) -> Verdict {
        match self.next_event() {
            HandshakeEvent::Verdict(_, verdict) => verdict,
            other => panic!("{other:?}"),
        }
    }

    fn rule(mut self, ruling: Ruling, token: [u8; 16]) -> Self {
        self.handshake.answer(Verdict { ruling, why: RefusalReason::AnotherHost, token });
        self.flush();
        self
    }

    fn commit(&mut self) {
        let commit = crate::wire::hello::Commit {
            choice: crate::wire::hello::ConnectionChoice::Tcp,
            why: RefusalReason::AnotherHost,
            errno: 0,
        };
        self.socket.write_all(commit.to_bytes().as_bytes()).unwrap();
    }
}

/// Returns the hello of an arbitrary endpoint on this host that allows only TCP.
fn hello(number: u8) -> Hello {
    Hello { flags: HelloFlags::TCP, ..handshake::fuzz::hello(number, false) }
}

/// Returns an address without a listener.
fn nowhere() -> SocketAddr {
    TcpListener::bind(UNUSED_HOST).unwrap().local_addr().unwrap()
}

#[test]
fn caller_with_address_or_incarnation_of_callee_is_rejected() {
    let [one, _] = services();
    let a = Peer::tcp(&one);
    let verdict = Liar::call(a.address(), &Hello { address: a.address(), ..hello(3) }).verdict();
    assert_eq!((verdict.ruling, verdict.why), (Ruling::Refuse, RefusalReason::OwnAddress));
    let incarnation = a.registration.incarnation();
    let verdict = Liar::call(a.address(), &Hello { incarnation, ..hello(4) }).verdict();
    assert_eq!((verdict.ruling, verdict.why), (Ruling::Refuse, RefusalReason::OwnIncarnation));
    assert!(!a.mailbox.has_notices(), "{:?}", a.mailbox.take());
}

#[test]
fn advertised_address_is_proven_only_by_connecting_to_it() {
    let [one, two] = services();
    let (a, b) = (Peer::tcp(&one), Peer::tcp(&two));
    // One of the addresses has no listener. The other one belongs to another endpoint.
    for (number, address) in [(3, nowhere()), (4, b.address())] {
        let mut liar = Liar::call(a.address(), &Hello { address, ..hello(number) });
        assert_eq!(liar.verdict().ruling, Ruling::Tcp);
        liar.commit();
        let up = a.up();
        assert!(!up.identity.proven, "{:?}", up.identity);
    }
    b.registration.connect(1, a.address());
    b.up();
    let up = a.up();
    assert!(up.identity.proven && up.identity.address == b.address(), "{:?}", up.identity);
}

/// The endpoint at the advertised address confirms the call. Only if it is the caller is the address proven.
#[test]
fn address_is_proven_only_by_the_caller_itself() {
    let [one, _] = services();
    let a = Peer::tcp(&one);
    for (number, answering, proven) in [(3, 3, true), (4, 5, false)] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answers = std::thread::spawn(move || {
            let answering = Hello { address, ..hello(answering) };
            let (socket, _) = listener.accept().unwrap();
            let mut liar = Liar::over(socket, Handshake::new(false, &answering, None));
            let mut bytes = [0; crate::wire::hello::HELLO_BYTES];
            liar.socket.read_exact(&mut bytes).unwrap();
            let (prefix, rest) = bytes.split_at(crate::wire::hello::PREFIX_BYTES);
            liar.handshake.feed(prefix).unwrap();
            liar.handshake.feed(rest).unwrap();
            let Some(HandshakeEvent::Hello(probe)) = liar.handshake.answer_with_hello(&answering).unwrap() else {
                panic!("no hello")
            };
            assert!(probe.flags.contains(HelloFlags::PROBE));
            liar.rule(Ruling::Known, probe.reset)
        });
        let mut liar = Liar::call(a.address(), &Hello { address, ..hello(number) });
        assert_eq!(liar.verdict().ruling, Ruling::Tcp);
        liar.commit();
        assert_eq!(a.up().identity.proven, proven, "the caller is {number}, and {answering} answered");
        drop(answers.join().unwrap());
    }
}

#[test]
fn caller_cannot_choose_an_excluded_transport() {
    let [one, _] = services();
    let a = Peer::with(&one, |options| options.transports = Transports::SHM);
    let caller = Hello { flags: HelloFlags::SHM, place: crate::host::place(), address: nowhere(), ..hello(3) };
    let mut liar = Liar::call(a.address(), &caller);
    assert_eq!(liar.verdict().ruling, Ruling::Shm);
    liar.commit();
    let error = a.error();
    assert!(matches!(&error, ConnectError::Protocol(why) if why.contains("not allowed")), "{error}");
}

#[test]
fn impostor_of_connected_peer_gains_and_changes_nothing() {
    let [one, two] = services();
    let (a, b) = (Peer::tcp(&one), Peer::tcp(&two));
    b.registration.connect(1, a.address());
    let (at_b, at_a) = (b.up(), a.up());
    // The caller uses everything that the peer sends to every endpoint.
    let posing = Hello { address: b.address(), incarnation: b.registration.incarnation(), ..hello(3) };
    for flags in [HelloFlags::TCP, HelloFlags::TCP | HelloFlags::RESET] {
        let verdict = Liar::call(a.address(), &Hello { flags, ..posing.clone() }).verdict();
        assert_eq!((verdict.ruling, verdict.token), (Ruling::Busy, [0; 16]), "the verdict reveals no token");
    }
    assert!(!a.mailbox.has_notices(), "{:?}", a.mailbox.take());
    let (mut from, mut to) = (stream(at_a.link), stream(at_b.link));
    from.write_all(b"still").unwrap();
    to.read_exact(&mut [0; 5]).unwrap();
}

#[test]
fn earlier_impostor_does_not_exclude_the_real_peer() {
    let [one, two] = services();
    for calls in ["the peer", "the endpoint"] {
        let (a, b) = (Peer::tcp(&one), Peer::tcp(&two));
        let posing = Hello { address: nowhere(), incarnation: b.registration.incarnation(), ..hello(3) };
        let mut liar = Liar::call(a.address(), &posing);
        assert_eq!(liar.verdict().ruling, Ruling::Tcp);
        liar.commit();
        let first = a.up();
        // A second call with the same false statements is in progress.
        let mut second = Liar::call(a.address(), &posing);
        assert_eq!(second.verdict().ruling, Ruling::Busy);
        if calls == "the peer" {
            b.registration.connect(1, a.address());
        } else {
            a.registration.connect(1, b.address());
        }
        let mut notices = a.wait();
        while notices.len() < 2 {
            notices.extend(a.wait());
        }
        assert!(
            matches!(&notices[0], ServiceNotice::Dead { serial, .. } if *serial == first.serial),
            "{calls}: {notices:?}"
        );
        let ServiceNotice::Established { identity, link, .. } = notices.remove(1) else {
            panic!("{calls}: {notices:?}")
        };
        assert_eq!(identity.address, b.address());
        let (mut from, mut to) = (stream(link), stream(b.up().link));
        from.write_all(b"right").unwrap();
        to.read_exact(&mut [0; 5]).unwrap();
    }
}

/// Tests a listener that claims, in every possible way, to be a peer to which a connection already exists.
#[test]
fn an_address_is_an_alias_of_a_peer_only_if_the_peer_answers_there() {
    let [one, two] = services();
    let short = |options: &mut EndpointOptions| {
        options.transports = Transports::TCP;
        options.timeouts = ConnectTimeouts::of(Duration::from_millis(600));
    };
    for ruling in [Ruling::Duplicate, Ruling::Busy, Ruling::Tcp, Ruling::Known] {
        let (a, b) = (Peer::with(&one, short), Peer::tcp(&two));
        let peer = Hello { address: b.address(), incarnation: b.registration.incarnation(), ..hello(3) };
        a.registration.connect(1, b.address());
        a.up();
        b.up();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let posing = peer;
        let end = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let ended = Arc::clone(&end);
        let liar = std::thread::spawn(move || {
            let mut all = Vec::new();
            while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                listener.set_nonblocking(true).unwrap();
                if let Ok((socket, _)) = listener.accept() {
                    socket.set_nonblocking(false).unwrap();
                    let mut liar = Liar::over(socket, Handshake::new(false, &posing, None));
                    let mut bytes = [0; crate::wire::hello::HELLO_BYTES];
                    liar.socket.read_exact(&mut bytes).unwrap();
                    let (prefix, rest) = bytes.split_at(crate::wire::hello::PREFIX_BYTES);
                    liar.handshake.feed(prefix).unwrap();
                    let received = liar.handshake.feed(rest).unwrap();
                    assert!(matches!(received, Some(HandshakeEvent::Wanted { .. })));
                    liar.handshake.answer_with_hello(&posing).unwrap();
                    all.push(liar.rule(ruling, [0x5a; 16]));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        a.registration.connect(2, address);
        match a.one() {
            ServiceNotice::Failed { attempt: 2, .. } => {}
            other => panic!("{ruling:?}: {other:?}"),
        }
        // The peer's own connection still exists.
        a.registration.connect(3, b.address());
        assert!(matches!(a.one(), ServiceNotice::Aliased { attempt: 3, .. }), "{ruling:?}");
        end.store(true, std::sync::atomic::Ordering::Relaxed);
        liar.join().unwrap();
    }
}

/// Forwards everything between one caller and `to`, in both directions, until one of them closes its connection.
fn pass_on(listener: TcpListener, to: SocketAddr) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let (mut caller, _) = listener.accept().unwrap();
        let mut called = TcpStream::connect(to).unwrap();
        let (mut back, mut forth) = (called.try_clone().unwrap(), caller.try_clone().unwrap());
        let answers = std::thread::spawn(move || {
            drop(std::io::copy(&mut back, &mut forth));
            forth.shutdown(std::net::Shutdown::Both).unwrap_or_default();
        });
        drop(std::io::copy(&mut caller, &mut called));
        called.shutdown(std::net::Shutdown::Both).unwrap_or_default();
        answers.join().unwrap();
    })
}

/// Requirements: CON-006.
#[test]
fn keyed_call_cannot_be_relayed_to_another_member() {
    let [one, two] = services();
    let (a, b) = (keyed(&one, Some("open sesame")), keyed(&two, Some("open sesame")));
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    let called = between.local_addr().unwrap();
    let spy = pass_on(between, b.address());
    a.registration.connect(1, called);
    let error = a.error();
    assert_eq!(error, ConnectError::Relayed(b.address()));
    assert_eq!(error.errno(), libc::EACCES);
    spy.join().unwrap();
    assert!(!b.mailbox.take().iter().any(|notice| matches!(notice, ServiceNotice::Established { .. })));
    // The peer is reached at its own address.
    a.registration.connect(2, b.address());
    a.up();
}

/// Requirements: CON-006.
#[test]
fn call_cannot_be_relayed_back_to_its_caller() {
    let [one, _] = services();
    for key in [None, Some("open sesame")] {
        let a = keyed(&one, key);
        let between = TcpListener::bind("127.0.0.1:0").unwrap();
        let called = between.local_addr().unwrap();
        let spy = pass_on(between, a.address());
        a.registration.connect(1, called);
        match a.one() {
            ServiceNotice::Failed { error: ConnectError::Relayed(_) | ConnectError::Identity(..), .. } => {}
            other => panic!("{key:?}: {other:?}"),
        }
        spy.join().unwrap();
    }
}

/// Requirements: CON-006.
#[test]
fn changed_hello_bytes_are_detected() {
    let key = || Some(AuthorizationKey::new(b"open sesame".to_vec()));
    let bytes = crate::wire::hello::HELLO_BYTES;
    for (whose, at) in (0..bytes).flat_map(|at| [(0, at), (1, at)]) {
        let with_key = |number| Hello { flags: HelloFlags::TCP | HelloFlags::AUTHORIZATION, ..hello(number) };
        let (ours, theirs) = (with_key(1), with_key(2));
        let (mut a, mut b) = (Handshake::new(true, &ours, key()), Handshake::new(false, &theirs, key()));
        let change = |side: usize, from: &mut Vec<u8>| {
            if side == whose {
                from[at] ^= 1;
            }
        };
        let mut passes = || -> Result<HandshakeEvent, ConnectError> {
            let mut bytes = std::mem::take(a.output());
            change(0, &mut bytes);
            let wants = b.wants();
            b.feed(&bytes[..wants])?;
            b.feed(&bytes[wants..])?;
            b.answer_with_hello(&theirs)?;
            let mut bytes = std::mem::take(b.output());
            change(1, &mut bytes);
            let wants = a.wants();
            a.feed(&bytes[..wants])?;
            a.feed(&bytes[wants..])?;
            let proof = std::mem::take(a.output());
            b.feed(&proof)?;
            b.answer(Verdict { ruling: Ruling::Tcp, why: RefusalReason::AnotherHost, token: [9; 16] });
            let verdict = std::mem::take(b.output());
            Ok(a.feed(&verdict)?.expect("a verdict"))
        };
        let result = passes();
        assert!(result.is_err(), "byte {at} of hello {whose}: {result:?}");
    }
}

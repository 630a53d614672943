//! Tests of authorization keys.

use std::io::{Read, Write};

use super::*;
use crate::connect::handshake::{AuthorizationKey, Handshake, HandshakeEvent};
use crate::wire::hello::{Commit, ConnectionChoice, Hello, HelloFlags, Ruling, Verdict};
use crate::wire::refusal_reason::RefusalReason;

/// Requirements: CON-006.
#[test]
fn equal_keys_admit_the_connection() {
    let [one, two] = services();
    let (a, b) = (keyed(&one, Some("open sesame")), keyed(&two, Some("open sesame")));
    a.registration.connect(1, b.address());
    assert_eq!(shm(a.up().link).side, 0);
    assert_eq!(shm(b.up().link).side, 1);
}

/// Requirements: CON-005.
#[test]
fn a_wrong_or_missing_key_is_an_error_on_both_sides() {
    let [one, two] = services();
    for keys in [[Some("a"), Some("b")], [Some("a"), None], [None, Some("a")]] {
        let (a, b) = (keyed(&one, keys[0]), keyed(&two, keys[1]));
        a.registration.connect(1, b.address());
        for error in [a.error(), b.error()] {
            assert_eq!(error, ConnectError::Authorization, "{keys:?}");
            assert_eq!(error.errno(), libc::EACCES);
        }
    }
}

/// Requirements: CON-006.
#[test]
fn replayed_handshake_is_rejected() {
    let [one, two] = services();
    let keyed = |service| {
        Peer::with(service, |options| {
            options.authorization_key = Some("open sesame".into());
            options.transports = Transports::TCP;
        })
    };
    let (a, b) = (keyed(&one), keyed(&two));
    // A third party records everything that an endpoint with the key sends to b.
    let to = b.address();
    let hello =
        Hello { flags: HelloFlags::TCP | HelloFlags::AUTHORIZATION, called: to, ..handshake::fuzz::hello(3, true) };
    let mut handshake = Handshake::new(true, &hello, Some(AuthorizationKey::new(b"open sesame".to_vec())));
    let (mut member, mut bytes) = (TcpStream::connect(to).unwrap(), Vec::new());
    let verdict = loop {
        let words = std::mem::take(handshake.output());
        member.write_all(&words).unwrap();
        bytes.extend_from_slice(&words);
        let mut bytes = vec![0; handshake.wants()];
        member.read_exact(&mut bytes).unwrap();
        if let Some(event) = handshake.feed(&bytes).unwrap() {
            break event;
        }
    };
    assert!(matches!(verdict, HandshakeEvent::Verdict(_, Verdict { ruling: Ruling::Tcp, .. })), "{verdict:?}");
    let commit = Commit { choice: ConnectionChoice::Tcp, why: RefusalReason::ShmNotAllowed, errno: 0 };
    member.write_all(commit.to_bytes().as_bytes()).unwrap();
    bytes.extend_from_slice(commit.to_bytes().as_bytes());
    let at_b = b.up();
    assert_eq!(at_b.identity.incarnation, hello.incarnation);
    // Replays are rejected while the connection exists and after it has ended, although the messages were valid when
    // they were recorded.
    let play_back = || {
        let mut stranger = TcpStream::connect(to).unwrap();
        stranger.write_all(&bytes).unwrap();
        let refused = b.error();
        assert_eq!(refused, ConnectError::Authorization);
        stranger.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The acceptor closes the connection, and sends nothing except its part of the handshake.
        let mut received = Vec::new();
        match stranger.read_to_end(&mut received) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    };
    play_back();
    drop((member, stream(at_b.link)));
    b.registration.closed(at_b.serial);
    play_back();
    // Endpoints that have the key are accepted as before.
    a.registration.connect(2, to);
    assert_eq!(a.up().attempt, Some(2));
    b.up();
}

//! Authorization keys.

use std::io::{Read, Write};

use super::*;

#[test]
fn con_006_a_key_admits_those_who_have_it() {
    let [one, two] = services();
    let (a, b) = (keyed(&one, Some("open sesame")), keyed(&two, Some("open sesame")));
    a.registration.connect(1, b.address());
    assert_eq!(shm(a.up().link).side, 0);
    assert_eq!(shm(b.up().link).side, 1);
}

#[test]
fn con_005_a_wrong_or_missing_key_is_an_error_on_both_sides() {
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

/// Passes everything on between one caller and `to`; returns what the caller said.
fn overhear(listener: &TcpListener, to: SocketAddr) -> Vec<u8> {
    let (mut caller, _) = listener.accept().unwrap();
    let mut called = TcpStream::connect(to).unwrap();
    let (mut back, mut forth) = (called.try_clone().unwrap(), caller.try_clone().unwrap());
    let answers = std::thread::spawn(move || drop(std::io::copy(&mut back, &mut forth)));
    let (mut said, mut bytes) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = caller.read(&mut bytes) {
        said.extend_from_slice(&bytes[..count]);
        called.write_all(&bytes[..count]).unwrap();
    }
    called.shutdown(std::net::Shutdown::Both).unwrap_or_default();
    answers.join().unwrap();
    said
}

#[test]
fn con_006_a_handshake_that_is_played_back_is_refused() {
    let [one, two] = services();
    let keyed = |service| {
        Peer::with(service, |options| {
            options.authorization_key = Some("open sesame".into());
            options.transports = Transports::TCP;
        })
    };
    let (a, b) = (keyed(&one), keyed(&two));
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    let (called, to) = (between.local_addr().unwrap(), b.address());
    let spy = std::thread::spawn(move || overhear(&between, to));
    a.registration.connect(1, called);
    let (at_a, at_b) = (a.up(), b.up());
    assert_eq!(at_b.identity.incarnation, a.registration.incarnation());
    // While the connection stands, and once it is over: the words were good once.
    let play_back = |said: &[u8]| {
        let mut stranger = TcpStream::connect(to).unwrap();
        stranger.write_all(said).unwrap();
        let refused = b.error();
        assert_eq!(refused, ConnectError::Authorization);
        stranger.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // Hung up on, with nothing but the acceptor's part of the handshake.
        let mut told = Vec::new();
        match stranger.read_to_end(&mut told) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    };
    drop((stream(at_a.link), stream(at_b.link)));
    let said = spy.join().unwrap();
    assert!(!said.is_empty());
    play_back(&said);
    a.registration.closed(at_a.serial);
    b.registration.closed(at_b.serial);
    play_back(&said);
    // Those who have the key are let in as before.
    a.registration.connect(2, to);
    assert_eq!(a.up().attempt, Some(2));
    b.up();
}

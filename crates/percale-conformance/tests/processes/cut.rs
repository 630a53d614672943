//! Connections that break in the middle of a message.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use percale::{Event, PostError};
use percale_conformance::memory::content;
use percale_conformance::peers::open;
use percale_conformance::watchdog::Watchdog;

crate::on!(tcp: { partial_messages_of_dead_peers_are_no_longer_counted });

/// The length of a message that is sent eagerly, in many TCP segments.
const LEN: usize = 300_000;
/// The number of a client's bytes that are forwarded to the target: the handshake, and about half of a message.
const PASSED: usize = LEN / 2;

/// Forwards one connection to `to`, and breaks it when the client has sent [`PASSED`] bytes.
fn pass_some(listener: &TcpListener, to: SocketAddr) {
    let (caller, _) = listener.accept().expect("a caller");
    let called = TcpStream::connect(to).expect("the receiver listens");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut from, mut to) = (&called, &caller);
            // This ends when the other direction ends.
            drop(std::io::copy(&mut from, &mut to));
        });
        let (mut from, mut to) = (&caller, &called);
        drop(std::io::copy(&mut Read::take(&mut from, PASSED as u64), &mut to));
        drop(to.flush());
        for stream in [&caller, &called] {
            drop(stream.shutdown(Shutdown::Both));
        }
    });
}

/// Unexpected messages count against the cap as soon as their first byte arrives. The bytes of messages that will never
/// be complete are subtracted again.
///
/// Requirements: MSG-013.
fn partial_messages_of_dead_peers_are_no_longer_counted(transport: &str) {
    let _watchdog = Watchdog::new("partial messages of dead peers are no longer counted");
    let receiver = open(transport, "127.0.0.1:0", |domain| domain.unexpected_cap(LEN));
    let at = receiver.endpoint.address();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let between = listener.local_addr().expect("the listener's address").to_string();
    for _ in 0..4 {
        let sender = open(transport, "127.0.0.1:0", |domain| domain);
        let peer = sender.insert(&between);
        std::thread::scope(|scope| {
            scope.spawn(|| pass_some(&listener, at));
            let sending = sender.endpoint.tagged_send(peer, 1, content(1, LEN)).start().expect("a send");
            let mut down = false;
            receiver.until(|| {
                sender.endpoint.progress();
                down |= matches!(receiver.events.read(), Some(Event::PeerDown { .. }));
                down
            });
            drop(sending);
        });
    }
    // A sender cannot inject if the receiver has requested that it offers its messages.
    let friend = open(transport, "127.0.0.1:0", |domain| domain);
    let peer = friend.insert(&receiver.endpoint.address().to_string());
    friend.inject(peer, 2, b"hello");
    let receiving = receiver.endpoint.tagged_recv(2, 0, vec![0; 5]).start().expect("a receive");
    receiver.until(|| {
        friend.endpoint.progress();
        receiving.is_ready()
    });
    for _ in 0..1000 {
        friend.endpoint.progress();
        receiver.endpoint.progress();
    }
    assert_ne!(
        friend.endpoint.tagged_inject(peer, 2, b"again"),
        Err(PostError::Again),
        "partial messages of dead peers are still counted"
    );
}

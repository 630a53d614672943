//! Tests of the slots of disconnected peers.

use super::*;
use crate::local_memory::buffer::Buffer;
use crate::local_memory::buffer::BufferExt as _;
use crate::{OpFlags, PostError};

/// Returns the number of slots.
fn slots(test_endpoint: &TestEndpoint) -> usize {
    test_endpoint.engine(|engine| engine.core.peers.len())
}

/// Connects the server to a client, runs `then`, and disconnects the client. Returns the client's address in the
/// server's vector.
fn visit(transport: &str, server: &TestEndpoint, then: impl FnOnce(&TestEndpoint, PeerAddress)) -> PeerAddress {
    let client = TestEndpoint::new(transport);
    let name = connect(server, &client);
    then(&client, name);
    drop(client);
    until(&[server], || server.ended());
    name
}

/// Requirements: RES-001.
#[test]
fn server_reuses_slots_of_successive_clients() {
    for transport in ["tcp", "shm"] {
        let server = TestEndpoint::new(transport);
        for _ in 0..40 {
            let name = visit(transport, &server, |_, _| {});
            server.vector.remove(name).unwrap();
        }
        assert!(slots(&server) < 8, "{transport}: {} slots for one client at a time", slots(&server));
        until(&[&server], || (bits_in_use(&server) == 0).then_some(()));
    }
}

/// Requirements: RES-001.
#[test]
fn server_with_pending_receives_reuses_slots() {
    let server = TestEndpoint::new("tcp");
    let receives: Vec<_> =
        (0..400).map(|tag| server.endpoint.tagged_recv(1000 + tag, 0, vec![0; 8]).start().unwrap()).collect();
    // One client stays, and sends messages that are never received.
    let other = TestEndpoint::new("tcp");
    connect(&server, &other);
    let to_server = other.peer(&server);
    (0..400).for_each(|_| other.endpoint.tagged_inject(to_server, 77, &[7; 8]).unwrap());
    for _ in 0..40 {
        let name = visit("tcp", &server, |_, _| {});
        server.vector.remove(name).unwrap();
    }
    assert!(slots(&server) < 10, "{} slots for one client at a time", slots(&server));
    drop(receives);
}

/// Creates a peer with an address in the server's vector that disconnected before the server could reach it.
fn unreachable_peer(server: &TestEndpoint) -> PeerAddress {
    let name = server.peer(&TestEndpoint::new("tcp"));
    let mut send = server.endpoint.tagged_send(name, 1, vec![1; 8]).start().unwrap();
    until(&[server], || send.is_ready().then_some(()));
    assert!(send.wait().is_err(), "no endpoint listens");
    name
}

/// Requirements: RES-001.
#[test]
fn unreachable_peers_keep_no_slots() {
    let server = TestEndpoint::new("tcp");
    for _ in 0..40 {
        let name = unreachable_peer(&server);
        server.vector.remove(name).unwrap();
    }
    assert!(slots(&server) < 8, "{} slots for one peer at a time", slots(&server));
}

/// Requirements: MSG-001.
#[test]
fn receive_from_unreachable_peer_takes_no_other_message() {
    let mut server = TestEndpoint::new("tcp");
    let TestEndpoint { domain, vector, events, .. } = &server;
    server.endpoint = domain.endpoint().vector(vector).event_queue(events).bind("127.0.0.1:0").unwrap();
    let name = unreachable_peer(&server);
    let mut buffer = Buffer::from(vec![0; 8]);
    let segment = buffer.segment_for_receive().unwrap();
    // This receive takes the fast path, which does not record at the peer that a receive is directed at it.
    let is_posted =
        server.engine(|engine| engine.receive_in_place(name, segment, Some((77, 0)), 1, OpFlags::COMPLETION));
    assert!(is_posted);
    server.vector.remove(name).unwrap();
    for _ in 0..12 {
        let other = visit("tcp", &server, |client, _| {
            let to_server = client.peer(&server);
            client.endpoint.tagged_inject(to_server, 77, &[7; 8]).unwrap();
            // A later message has arrived, and therefore this one has too.
            client.endpoint.tagged_inject(to_server, 5, &[5; 8]).unwrap();
            let mut next = server.endpoint.tagged_recv(5, 0, vec![0; 8]).start().unwrap();
            until(&[client, &server], || next.is_ready().then_some(()));
            assert_eq!(next.wait().unwrap().to_vec(), [5; 8]);
        });
        server.vector.remove(other).unwrap();
        let waiting = server.engine(|engine| engine.core.messages.table(true).posted_len());
        assert_eq!(waiting, 1, "the receive took a message of {other:?}");
    }
    drop(server);
    assert_eq!(buffer.into_vec(), [0; 8]);
}

/// Requirements: RES-001.
#[test]
fn peers_in_the_vector_keep_their_slots() {
    let server = TestEndpoint::new("tcp");
    let slot = |name| server.engine(|engine| engine.core.peers.resolve(name).unwrap());
    let mut slots = Vec::new();
    for _ in 0..10 {
        visit("tcp", &server, |_, name| slots.push((name, slot(name))));
    }
    for (name, before) in slots {
        assert_eq!(slot(name), before, "{name:?} has another slot");
    }
}

/// Requirements: MSG-001.
#[test]
fn message_of_departed_peer_is_not_attributed_to_another() {
    for transport in ["tcp", "shm"] {
        let server = TestEndpoint::new(transport);
        let left = visit(transport, &server, |client, _| {
            let to_server = client.peer(&server);
            client.endpoint.tagged_inject(to_server, 77, &[7; 8]).unwrap();
            let arrived = || {
                let arrived = server.engine(|engine| engine.core.messages.table(true).holds_any());
                arrived.then_some(())
            };
            until(&[client, &server], arrived);
        });
        server.vector.remove(left).unwrap();
        // The slot of the client must not be used for these peers.
        let others: Vec<PeerAddress> = (0..12).map(|_| visit(transport, &server, |_, _| {})).collect();
        for other in others {
            let mut receive = server.endpoint.tagged_recv(77, 0, vec![0; 8]).from(other).start().unwrap();
            assert!(receive.wait_for(Duration::ZERO).is_err(), "{transport}: the message was attributed to {other:?}");
        }
        let received = server.endpoint.tagged_recv(77, 0, vec![0; 8]).wait().unwrap();
        assert_eq!(received.to_vec(), [7; 8], "{transport}");
        // Its source is no peer that is connected now, and is not in the vector.
        let source = received.source.unwrap();
        assert_eq!(server.vector.lookup(source), None, "{transport}");
        assert_eq!(server.endpoint.inject(source, b"x"), Err(PostError::ConnectionEnded), "{transport}");
    }
}

/// Requirements: RES-001.
#[test]
fn reused_slots_resolve_to_the_peer_in_the_vector() {
    let server = TestEndpoint::new("tcp");
    for _ in 0..20 {
        let name = visit("tcp", &server, |_, _| {});
        server.vector.remove(name).unwrap();
    }
    // Slots have been reused by now. Each message goes to the right client.
    let clients: Vec<TestEndpoint> = (0..6).map(|_| TestEndpoint::new("tcp")).collect();
    let names: Vec<PeerAddress> = clients.iter().map(|client| connect(&server, client)).collect();
    for (number, (client, name)) in (0..).zip(clients.iter().zip(names)) {
        let mut receive = client.endpoint.tagged_recv(5, 0, vec![0; 8]).start().unwrap();
        let before = client.finished();
        server.endpoint.tagged_inject(name, 5, &[number; 8]).unwrap();
        until(&[&server, client], || (client.finished() > before).then_some(()));
        assert_eq!(receive.wait().unwrap().to_vec(), [number; 8]);
    }
}

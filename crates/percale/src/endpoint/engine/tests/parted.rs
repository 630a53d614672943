//! Slots of peers that have left.

use super::*;

/// How many slots there are.
fn slots(station: &Station) -> usize {
    station.engine(|engine| engine.core.peers.len())
}

/// A client comes, is heard of, and leaves; the server knows it by this name while it is there.
fn visit(transport: &str, server: &Station, then: impl FnOnce(&Station, PeerAddress)) -> PeerAddress {
    let client = Station::new(transport);
    let name = connect(server, &client);
    then(&client, name);
    drop(client);
    until(&[server], || server.ended());
    name
}

#[test]
fn res_001_who_serves_many_one_after_the_other_remembers_few() {
    for transport in ["tcp", "shm"] {
        let server = Station::new(transport);
        for _ in 0..40 {
            let name = visit(transport, &server, |_, _| {});
            server.vector.remove(name).unwrap();
        }
        assert!(slots(&server) < 8, "{transport}: {} slots for one client at a time", slots(&server));
    }
}

#[test]
fn res_001_a_server_with_many_receives_and_messages_remembers_few_too() {
    let server = Station::new("tcp");
    let receives: Vec<_> =
        (0..400).map(|tag| server.endpoint.tagged_recv(1000 + tag, 0, vec![0; 8]).start().unwrap()).collect();
    // One that stays leaves messages that nobody receives.
    let other = Station::new("tcp");
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

#[test]
fn res_001_those_whom_the_vector_names_keep_their_slots() {
    let server = Station::new("tcp");
    let slot = |name| server.engine(|engine| engine.core.peers.resolve(name).unwrap());
    let mut slots = Vec::new();
    for _ in 0..10 {
        visit("tcp", &server, |_, name| slots.push((name, slot(name))));
    }
    for (name, before) in slots {
        assert_eq!(slot(name), before, "{name:?} has another slot");
    }
}

#[test]
fn msg_001_a_message_of_one_who_left_is_never_taken_for_anothers() {
    for transport in ["tcp", "shm"] {
        let server = Station::new(transport);
        let left = visit(transport, &server, |client, _| {
            let to_server = client.peer(&server);
            client.endpoint.tagged_inject(to_server, 77, &[7; 8]).unwrap();
            let arrived = || {
                let arrived = server.engine(|engine| engine.core.table(true).holds_any());
                arrived.then_some(())
            };
            until(&[client, &server], arrived);
        });
        server.vector.remove(left).unwrap();
        // Its slot must not be theirs.
        let others: Vec<PeerAddress> = (0..12).map(|_| visit(transport, &server, |_, _| {})).collect();
        for other in others {
            let receive = server.endpoint.tagged_recv(77, 0, vec![0; 8]).from(other).start().unwrap();
            assert!(receive.wait_for(Duration::ZERO).is_err(), "{transport}: it was taken for one of {other:?}");
        }
        let received = server.endpoint.tagged_recv(77, 0, vec![0; 8]).wait().unwrap();
        assert_eq!((received.source, received.to_vec()), (None, vec![7; 8]), "{transport}");
    }
}

#[test]
fn res_001_slots_that_are_used_again_lead_to_whom_the_vector_names() {
    let server = Station::new("tcp");
    for _ in 0..20 {
        let name = visit("tcp", &server, |_, _| {});
        server.vector.remove(name).unwrap();
    }
    // Slots are used again by now; each message goes to whom it is for.
    let clients: Vec<Station> = (0..6).map(|_| Station::new("tcp")).collect();
    let names: Vec<PeerAddress> = clients.iter().map(|client| connect(&server, client)).collect();
    for (number, (client, name)) in (0..).zip(clients.iter().zip(names)) {
        let receive = client.endpoint.tagged_recv(5, 0, vec![0; 8]).start().unwrap();
        let before = client.finished();
        server.endpoint.tagged_inject(name, 5, &[number; 8]).unwrap();
        until(&[&server, client], || (client.finished() > before).then_some(()));
        assert_eq!(receive.wait().unwrap().to_vec(), [number; 8]);
    }
}

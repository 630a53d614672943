//! Tests that an address leads to the peer that answered there, and to no other peer afterwards.

use super::*;

/// Addresses of this host that other tests do not use, so that the ports of closed endpoints stay free. One test uses
/// 127.0.3.3 in the same way.
const HOSTS: [&str; 2] = ["127.0.3.1", "127.0.3.2"];

/// Opens an endpoint over TCP or shared memory at this address.
fn at(transport: &str, address: &str) -> TestEndpoint {
    let domain = Info::discover().unwrap().domain().transport(transport.parse().unwrap()).open().unwrap();
    let vector = domain.address_vector().build().unwrap();
    let events = EventQueue::default();
    let endpoint = domain.endpoint().vector(&vector).event_queue(&events).bind(address).unwrap();
    TestEndpoint { endpoint, vector, events, domain }
}

/// Sends to an address of the vector. The message has to be received by `there` and by none of the others.
fn reaches(from: &TestEndpoint, name: PeerAddress, value: u8, there: &TestEndpoint, others: &[&TestEndpoint]) {
    let mut receive = there.endpoint.tagged_recv(u64::from(value), 0, vec![0; 8]).start().unwrap();
    let before = there.finished();
    from.endpoint.tagged_inject(name, u64::from(value), &[value; 8]).unwrap();
    let mut all = vec![from, there];
    all.extend(others);
    until(&all, || (there.finished() > before).then_some(()));
    assert_eq!(receive.wait().unwrap().to_vec(), [value; 8]);
}

/// Requirements: CON-004.
#[test]
fn alias_address_is_independent_after_peer_leaves() {
    for transport in ["tcp", "shm"] {
        for used in [&[1, 0][..], &[0, 1], &[0], &[1]] {
            let sender = at(transport, "127.0.0.1:0");
            let peer = at(transport, "0.0.0.0:0");
            let port = peer.endpoint.address().port();
            let addresses = HOSTS.map(|host| format!("{host}:{port}"));
            let names = [0, 1].map(|which: usize| sender.vector.insert(addresses[which].as_str()).unwrap());
            for which in used {
                reaches(&sender, names[*which], 10, &peer, &[]);
            }
            drop(peer);
            until(&[&sender], || sender.ended());
            let [first, second] = [0, 1].map(|which: usize| at(transport, &addresses[which]));
            reaches(&sender, names[0], 20, &first, &[&second]);
            reaches(&sender, names[1], 30, &second, &[&first]);
            reaches(&sender, names[0], 40, &first, &[&second]);
        }
    }
}

/// An endpoint numbers its sends as an earlier endpoint at its address did.
///
/// Requirements: CON-004.
#[test]
fn messages_of_departed_peer_are_not_acknowledged_to_its_successor() {
    for transport in ["tcp", "shm"] {
        let receiver = at(transport, "127.0.0.1:0");
        let sender = at(transport, "127.0.3.3:0");
        let address = sender.endpoint.address().to_string();
        let peer = connect(&sender, &receiver);
        let left = sender.endpoint.tagged_send(peer, 7, vec![7; 8]).delivered().start().unwrap();
        until(&[&sender, &receiver], || {
            receiver.engine(|engine| engine.core.messages.table_ref(true).holds_any()).then_some(())
        });
        drop(left);
        drop(sender);
        until(&[&receiver], || receiver.ended());
        let successor = at(transport, &address);
        let peer = connect(&successor, &receiver);
        let mut sent = successor.endpoint.tagged_send(peer, 8, vec![8; 8]).delivered().start().unwrap();
        let mut old = receiver.endpoint.tagged_recv(7, 0, vec![0; 8]).start().unwrap();
        assert_eq!(old.wait().unwrap().to_vec(), [7; 8]);
        for _ in 0..200 {
            receiver.endpoint.progress();
            successor.endpoint.progress();
        }
        assert!(!sent.is_ready(), "{transport}: the message was not received");
        let mut new = receiver.endpoint.tagged_recv(8, 0, vec![0; 8]).start().unwrap();
        until(&[&successor, &receiver], || (sent.is_ready() && new.is_ready()).then_some(()));
        sent.wait().unwrap();
        assert_eq!(new.wait().unwrap().to_vec(), [8; 8]);
    }
}

/// Requirements: CON-004.
#[test]
fn messages_of_departed_peer_match_either_of_its_addresses() {
    for transport in ["tcp", "shm"] {
        for directed in [[0, 1, 0, 1], [1, 0, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0]] {
            let receiver = at(transport, "127.0.0.1:0");
            let peer = at(transport, "0.0.0.0:0");
            let port = peer.endpoint.address().port();
            let addresses = HOSTS.map(|host| format!("{host}:{port}"));
            let names = [0, 1].map(|which: usize| receiver.vector.insert(addresses[which].as_str()).unwrap());
            names.iter().zip(1..).for_each(|(name, value)| reaches(&receiver, *name, value, &peer, &[]));
            let name = peer.peer(&receiver);
            for value in 0..3 {
                peer.endpoint.tagged_inject(name, 7, &[value; 8]).unwrap();
            }
            drop(peer);
            until(&[&receiver], || receiver.ended());
            // Another peer gets one of its addresses. The messages of that peer come after those of the first peer.
            let second = at(transport, &addresses[1]);
            let name = second.peer(&receiver);
            second.endpoint.tagged_inject(name, 7, &[3; 8]).unwrap();
            for (value, to) in (0..3).zip(directed) {
                let before = receiver.finished();
                let mut receive = receiver.endpoint.tagged_recv(7, 0, vec![0; 8]).from(names[to]).start().unwrap();
                until(&[&receiver, &second], || (receiver.finished() > before).then_some(()));
                assert_eq!(receive.wait().unwrap().to_vec(), [value; 8], "{transport}, {directed:?}");
            }
            let before = receiver.finished();
            let mut receive = receiver.endpoint.tagged_recv(7, 0, vec![0; 8]).from(names[1]).start().unwrap();
            until(&[&receiver, &second], || (receiver.finished() > before).then_some(()));
            assert_eq!(receive.wait().unwrap().to_vec(), [3; 8]);
        }
    }
}

/// Requirements: CON-004.
#[test]
fn directed_receive_takes_no_message_of_previous_address_owner() {
    let receiver = at("tcp", "127.0.0.1:0");
    let peer = at("tcp", "0.0.0.0:0");
    let port = peer.endpoint.address().port();
    let addresses = HOSTS.map(|host| format!("{host}:{port}"));
    let names = [0, 1].map(|which: usize| receiver.vector.insert(addresses[which].as_str()).unwrap());
    reaches(&receiver, names[0], 1, &peer, &[]);
    reaches(&receiver, names[1], 2, &peer, &[]);
    drop(peer);
    until(&[&receiver], || receiver.ended());
    let [first, second] = [0, 1].map(|which: usize| at("tcp", &addresses[which]));
    for test_endpoint in [&first, &second] {
        let name = test_endpoint.peer(&receiver);
        test_endpoint.endpoint.tagged_inject(name, 7, test_endpoint.endpoint.address().to_string().as_bytes()).unwrap();
    }
    for (name, test_endpoint) in names.into_iter().zip([&first, &second]) {
        let before = receiver.finished();
        let mut receive = receiver.endpoint.tagged_recv(7, 0, vec![0; 64]).from(name).start().unwrap();
        until(&[&receiver, &first, &second], || (receiver.finished() > before).then_some(()));
        let received = receive.wait().unwrap();
        assert_eq!(received.source, Some(name));
        assert_eq!(received.to_vec(), test_endpoint.endpoint.address().to_string().as_bytes());
    }
}

//! Connections that one side closes, and endpoints that do not connect automatically.

use std::time::{Duration, Instant};

use percale::endpoint::safe::Cause;
use percale::{Domain, ErrorCode, Event, EventQueue, Info, PeerAddress, Progress, SharedEndpoint, TransportKind};

const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

struct Side {
    _domain: Domain,
    vector: percale::AddressVector,
    events: EventQueue,
    endpoint: SharedEndpoint,
}

impl Side {
    fn new(transport: TransportKind, answers_only: bool) -> Self {
        let domain =
            Info::discover().unwrap().domain().transport(transport).progress(Progress::Automatic).open().unwrap();
        let vector = domain.address_vector().build().unwrap();
        let events = EventQueue::default();
        let builder = domain.endpoint().vector(&vector).event_queue(&events);
        let builder = if answers_only { builder.answer_only() } else { builder };
        let endpoint = builder.bind_shared("127.0.0.1:0").unwrap();
        Self { _domain: domain, vector, events, endpoint }
    }

    fn knows(&self, other: &Self) -> PeerAddress {
        self.vector.insert(other.endpoint.address()).unwrap()
    }

    /// Waits for an event.
    fn event(&self, wanted: impl Fn(&Event) -> bool) {
        let start = Instant::now();
        while start.elapsed() < WAIT_TIMEOUT {
            if self.events.wait(Some(WAIT_TIMEOUT)).is_ok_and(|event| wanted(&event)) {
                return;
            }
        }
        panic!("the event did not occur");
    }
}

fn code<T: std::fmt::Debug>(result: Result<T, percale::endpoint::safe::OperationError>) -> ErrorCode {
    match result.expect_err("the operation succeeded").cause() {
        Cause::Completion(error) => error.error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn disconnect_ends_both_sides_and_allows_reconnect() {
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let (one, other) = (Side::new(transport, false), Side::new(transport, false));
        let (to_other, to_one) = (one.knows(&other), other.knows(&one));
        assert!(
            !one.endpoint.disconnect(to_other) && !one.endpoint.is_connected(to_other),
            "there is no connection yet"
        );
        for round in 0..20 {
            let message = vec![round; 100];
            one.endpoint.tagged_send(to_other, 7, message.clone()).start().unwrap().wait_for(WAIT_TIMEOUT).unwrap();
            // A receive that is posted before this side has detected the connection connects to the peer, and may reach
            // it after the connection has ended.
            other.event(|event| matches!(event, Event::Connected { peer, .. } if *peer == to_one));
            let mut received = other.endpoint.tagged_recv(7, 0, vec![0; 100]).from(to_one).start().unwrap();
            assert_eq!(received.wait_for(WAIT_TIMEOUT).unwrap().to_vec(), message);
            assert!(one.endpoint.is_connected(to_other) && other.endpoint.is_connected(to_one));
            // Both sides wait for each other when the connection ends.
            let mut waiting = one.endpoint.tagged_recv(8, 0, vec![0; 8]).from(to_other).start().unwrap();
            assert!(one.endpoint.disconnect(to_other));
            assert_eq!(code(waiting.wait_for(WAIT_TIMEOUT)), ErrorCode::Closed);
            assert!(!one.endpoint.is_connected(to_other));
            other.event(|event| matches!(event, Event::PeerDown { peer, .. } if *peer == to_one));
        }
        // The connection of an endpoint to itself exists as long as the endpoint.
        let own = one.knows(&one);
        one.endpoint.tagged_send(own, 7, vec![1]).start().unwrap().wait_for(WAIT_TIMEOUT).unwrap();
        assert!(!one.endpoint.disconnect(own));
        let mut received = one.endpoint.tagged_recv(7, 0, vec![0; 8]).from(own).start().unwrap();
        assert_eq!(received.wait_for(WAIT_TIMEOUT).unwrap().to_vec(), [1]);
    }
}

#[test]
fn passive_endpoint_opens_no_connections() {
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let (server, client) = (Side::new(transport, true), Side::new(transport, false));
        let (to_client, to_server) = (server.knows(&client), client.knows(&server));
        let sent = server.endpoint.tagged_send(to_client, 7, vec![1; 8]).start().unwrap().wait_for(WAIT_TIMEOUT);
        assert_eq!(code(sent), ErrorCode::NotConnected);
        // The client has connected, and its connection is used.
        client.endpoint.tagged_send(to_server, 7, vec![2; 8]).start().unwrap().wait_for(WAIT_TIMEOUT).unwrap();
        let mut received = server.endpoint.tagged_recv(7, 0, vec![0; 8]).from(to_client).start().unwrap();
        assert_eq!(received.wait_for(WAIT_TIMEOUT).unwrap().to_vec(), [2; 8]);
        server.endpoint.tagged_send(to_client, 7, vec![3; 8]).start().unwrap().wait_for(WAIT_TIMEOUT).unwrap();
        let mut received = client.endpoint.tagged_recv(7, 0, vec![0; 8]).from(to_server).start().unwrap();
        assert_eq!(received.wait_for(WAIT_TIMEOUT).unwrap().to_vec(), [3; 8]);
        // After that connection has ended, neither a send nor a receive connects to the client.
        let mut waiting = server.endpoint.tagged_recv(8, 0, vec![0; 8]).from(to_client).start().unwrap();
        assert!(client.endpoint.disconnect(to_server));
        assert!(waiting.wait_for(WAIT_TIMEOUT).is_err());
        let sent = server.endpoint.tagged_send(to_client, 7, vec![4; 8]).start().unwrap().wait_for(WAIT_TIMEOUT);
        assert_eq!(code(sent), ErrorCode::NotConnected);
        let mut again = server.endpoint.tagged_recv(8, 0, vec![0; 8]).from(to_client).start().unwrap();
        assert_eq!(code(again.wait_for(WAIT_TIMEOUT)), ErrorCode::NotConnected);
        assert!(!client.endpoint.is_connected(to_server));
    }
}

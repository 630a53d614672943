//! Tests of endpoints of one connection, over sockets.

use super::*;
use crate::endpoint::connection::{ConnectionState, Listener};

/// A listener and its clients.
struct Clients {
    domain: Domain,
    requests: EventQueue,
    listener: Listener,
}

impl Clients {
    fn new() -> Self {
        let domain = Info::discover().unwrap().domain().transport("tcp".parse().unwrap()).open().unwrap();
        let requests = EventQueue::default();
        let listener = domain.listener().events(&requests).bind("127.0.0.1:0").unwrap();
        Self { domain, requests, listener }
    }

    /// Connects a client. Returns the client, and the endpoint that accepted its request.
    fn connect(&self) -> (Endpoint, Endpoint) {
        let client = self.domain.endpoint().connect(self.listener.address().to_string(), b"").unwrap();
        let request = until(&[], || {
            let _any = self.listener.progress() | client.progress();
            match self.requests.read()? {
                Event::ConnectionRequest(request) => Some(request),
                other => panic!("{other:?}"),
            }
        });
        let server = self.domain.endpoint().accept(&request, b"").unwrap();
        until(&[], || {
            let _any = self.listener.progress() | client.progress() | server.progress();
            let states = [client.connection_state(), server.connection_state()];
            (states == [Some(ConnectionState::Connected); 2]).then_some(())
        });
        (client, server)
    }
}

/// A thread that goes to sleep polls each endpoint twice before it reads the queue of all of them. Meanwhile a receive
/// of an ended connection must not fail, because messages of other connections may have arrived before.
///
/// Requirements: CON-019.
#[test]
fn receive_fails_after_other_endpoints_were_polled() {
    let clients = Clients::new();
    let [(ends, ended), (sends, receives)] = [clients.connect(), clients.connect()];
    let mut failing = ended.recv(vec![0; 8]).start().unwrap();
    let mut message = receives.recv(vec![0; 8]).start().unwrap();
    sends.inject(sends.peer(), &[7; 8]).unwrap();
    ends.shutdown().unwrap();
    until(&[], || {
        ended.progress();
        (ended.connection_state() == Some(ConnectionState::Shutdown)).then_some(())
    });
    // This makes progress once.
    assert!(!failing.is_ready(), "the receive failed in the second poll");
    until(&[], || message.is_ready().then_some(()));
    assert_eq!(message.wait().unwrap().to_vec(), [7; 8]);
    until(&[], || failing.is_ready().then_some(()));
    failing.wait().unwrap_err();
}

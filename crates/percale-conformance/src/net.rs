//! A listener, and endpoints of one connection each, which one thread drives together.

use std::cell::RefCell;
use std::future::IntoFuture;
use std::rc::Rc;

use percale::domain::DomainBuilder;
use percale::{
    ConnectionError, ConnectionRequest, ConnectionState, Domain, Endpoint, EndpointBuilder, Event, EventQueue, Listener,
};

use crate::fabric::Fabric;
use crate::polled::polled;
use crate::watchdog::Watchdog;

/// A listener, and endpoints that are driven together.
#[derive(Debug)]
pub struct Net<F: Fabric> {
    /// The transport of the endpoints.
    pub fabric: F,
    /// The domain of the endpoints.
    pub domain: Domain,
    /// The listener, or `None` after it was closed.
    pub listener: Option<Listener>,
    ends: RefCell<Vec<Rc<NetEndpoint>>>,
    _watchdog: Watchdog,
}

/// An endpoint and its events.
#[derive(Debug)]
pub struct NetEndpoint {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The events of the endpoint.
    pub events: EventQueue,
}

impl<F: Fabric> Net<F> {
    /// Makes a listener on this transport. `what` is the name of the test, for the message of the watchdog.
    #[must_use]
    pub fn new(what: &str) -> Self {
        Self::with(what, |domain| domain)
    }

    /// Like [`new`](Self::new), with the domain adjusted.
    ///
    /// # Panics
    /// Panics if the listener cannot be opened.
    #[must_use]
    pub fn with(what: &str, adjust: fn(DomainBuilder) -> DomainBuilder) -> Self {
        let fabric = F::new(crate::random::seed());
        let domain = fabric.domain(adjust);
        let listener = domain.listener().bind(fabric.address()).expect("a listener");
        let _watchdog = Watchdog::new(what);
        Self { fabric, domain, listener: Some(listener), ends: RefCell::default(), _watchdog }
    }

    /// Returns the listener.
    ///
    /// # Panics
    /// Panics if it was closed.
    #[must_use]
    pub fn listener(&self) -> &Listener {
        self.listener.as_ref().expect("the listener is open")
    }

    /// Returns the address of the listener.
    #[must_use]
    pub fn address(&self) -> String {
        self.listener().address().to_string()
    }

    /// Adds an endpoint, which is driven from now on.
    ///
    /// # Errors
    /// Returns the errors of `open`.
    pub fn end(
        &self,
        open: impl FnOnce(EndpointBuilder<'_>) -> Result<Endpoint, ConnectionError>,
    ) -> Result<Rc<NetEndpoint>, ConnectionError> {
        self.end_in(&self.domain, open)
    }

    /// Like [`end`](Self::end), in a separate domain.
    ///
    /// # Errors
    /// Returns the errors of `open`.
    pub fn end_in(
        &self,
        domain: &Domain,
        open: impl FnOnce(EndpointBuilder<'_>) -> Result<Endpoint, ConnectionError>,
    ) -> Result<Rc<NetEndpoint>, ConnectionError> {
        let events = EventQueue::default();
        let end = Rc::new(NetEndpoint { endpoint: open(domain.endpoint().event_queue(&events))?, events });
        self.ends.borrow_mut().push(Rc::clone(&end));
        Ok(end)
    }

    /// Opens an endpoint that requests a connection.
    ///
    /// # Panics
    /// Panics if the endpoint cannot be opened.
    pub fn call(&self, data: &[u8]) -> Rc<NetEndpoint> {
        self.end(|builder| builder.connect(self.address(), data)).expect("an endpoint")
    }

    /// Waits for the next connection request.
    ///
    /// # Panics
    /// Panics if the next event is not a request.
    pub fn request(&self) -> ConnectionRequest {
        match self.until(|| self.listener().events().read()) {
            Event::ConnectionRequest(request) => request,
            other => panic!("no request, but {other:?}"),
        }
    }

    /// Returns two connected endpoints: the client, and the server that accepted its request.
    ///
    /// # Panics
    /// Panics if the connection cannot be established, or if one side does not receive the data that the other side
    /// sent.
    pub fn pair(&self) -> (Rc<NetEndpoint>, Rc<NetEndpoint>) {
        let client = self.call(b"a call");
        let request = self.request();
        let server = self.end(|builder| builder.accept(&request, b"an answer")).expect("an endpoint");
        assert_eq!(self.stands(&client), b"an answer");
        assert_eq!(self.stands(&server), b"a call");
        (client, server)
    }

    /// Waits until a connection is established. Returns the data of the other side.
    ///
    /// # Panics
    /// Panics if the next event is not `Connected`.
    #[track_caller]
    pub fn stands(&self, end: &NetEndpoint) -> Vec<u8> {
        match self.event(end) {
            Event::Connected { endpoint, transport, peer, data, .. } => {
                assert_eq!((endpoint, transport, peer), (end.endpoint.id(), F::NAME, end.endpoint.peer()));
                assert_eq!(end.endpoint.connection_state(), Some(ConnectionState::Connected));
                data
            }
            other => panic!("not connected, but {other:?}"),
        }
    }

    /// Waits for the next event of an endpoint.
    pub fn event(&self, end: &NetEndpoint) -> Event {
        self.until(|| end.events.read())
    }

    /// Drives the listener and all endpoints once.
    pub fn turn(&self) {
        self.fabric.tick();
        if let Some(listener) = &self.listener {
            let _any = listener.progress();
        }
        for end in self.ends.borrow().iter() {
            end.endpoint.progress();
        }
    }

    /// Drives the listener and all endpoints `count` times.
    pub fn turns(&self, count: usize) {
        (0..count).for_each(|_| self.turn());
    }

    /// Drives the listener and all endpoints until `done` returns a value.
    pub fn until<R>(&self, mut done: impl FnMut() -> Option<R>) -> R {
        loop {
            for _ in 0..64 {
                if let Some(result) = done() {
                    return result;
                }
                self.turn();
            }
            std::thread::yield_now();
        }
    }

    /// Drives the listener and all endpoints until an operation of the safe API is over.
    pub fn finish<T>(&self, operation: impl IntoFuture<Output = T>) -> T {
        self.until(polled(operation))
    }

    /// Closes an endpoint. `end` must be the only handle apart from the one in this value.
    ///
    /// # Panics
    /// Panics if there are other handles.
    pub fn close(&self, end: Rc<NetEndpoint>) {
        self.ends.borrow_mut().retain(|other| !Rc::ptr_eq(other, &end));
        drop(Rc::into_inner(end).expect("there is no other handle"));
    }

    /// Returns whether no event occurs for a while.
    pub fn is_quiet(&self) -> bool {
        self.turns(50);
        let ends = self.ends.borrow();
        self.listener.as_ref().is_none_or(|listener| listener.events().read().is_none())
            && ends.iter().all(|end| end.events.is_empty())
    }
}

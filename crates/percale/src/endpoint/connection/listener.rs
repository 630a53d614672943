//! Listeners, which receive connection requests.

use std::net::SocketAddr;

use crate::completion::event::EventQueue;
use crate::domain::Domain;
use crate::endpoint::builder::{BindError, Purpose, resolve};
use crate::endpoint::engine::Engine;
use crate::endpoint::ownership::reach::EngineAccess;
use crate::endpoint::{EndpointBuilder, SharedEndpoint};

/// The default number of requests that may wait for an answer.
const BACKLOG: usize = 128;

/// Builds a listener. [`Domain::listener`] returns one.
#[must_use = "nothing listens before `bind`"]
pub struct ListenerBuilder<'d> {
    domain: &'d Domain,
    events: Option<EventQueue>,
    backlog: usize,
}

crate::short_debug!(Listener, "Listener");

crate::short_debug!(ListenerBuilder<'_>, "ListenerBuilder");

impl Domain {
    /// Builds a listener for endpoints of one connection each.
    pub fn listener(&self) -> ListenerBuilder<'_> {
        ListenerBuilder::new(self)
    }
}

impl<'d> ListenerBuilder<'d> {
    const fn new(domain: &'d Domain) -> Self {
        Self { domain, events: None, backlog: BACKLOG }
    }

    /// Sets the queue that reports requests. Several listeners and endpoints may share a queue. By default the listener
    /// has its own queue.
    pub fn events(mut self, events: &EventQueue) -> Self {
        self.events = Some(events.clone());
        self
    }

    /// Sets how many requests may wait for an answer (FI_BACKLOG). Further requests are rejected. Default: 128.
    pub const fn backlog(mut self, requests: usize) -> Self {
        self.backlog = requests;
        self
    }

    /// Listens at `address` (`HOST:PORT`; port 0 for any free one).
    ///
    /// # Errors
    /// If the address cannot be bound, or the system refuses descriptors or a thread.
    pub fn bind(self, address: impl AsRef<str>) -> Result<Listener, BindError> {
        let events = self.events.unwrap_or_default();
        let builder = EndpointBuilder::new(self.domain).event_queue(&events);
        let endpoint = builder.shared(resolve(address.as_ref())?, Purpose::Listener(self.backlog))?;
        let weak = endpoint.access.downgrade();
        endpoint.access.with(|engine| engine.listen(weak));
        Ok(Listener { endpoint, events })
    }
}

/// A passive endpoint (fi_passive_ep(3), fi_listen(3)), which only receives connection requests. Closing it rejects the
/// waiting requests.
pub struct Listener {
    endpoint: SharedEndpoint,
    events: EventQueue,
}

impl Listener {
    /// Returns the address to which peers connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.endpoint.address()
    }

    /// Returns the queue in which requests are reported. Reading it and waiting for it drive the listener.
    #[must_use]
    pub const fn events(&self) -> &EventQueue {
        &self.events
    }

    /// Sets how many requests may wait for an answer from now on. Requests that wait already are kept.
    pub fn set_backlog(&self, requests: usize) {
        self.endpoint.access.with(|engine| engine.set_backlog(requests));
    }

    /// Returns the number of requests that wait for an answer.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.endpoint.access.with(Engine::pending_requests)
    }

    /// Returns the number of peers for which the listener keeps state.
    #[cfg(test)]
    pub(crate) fn peers(&self) -> usize {
        self.with_engine(|engine| engine.core.peers.len())
    }

    /// Calls `f` with the listener's engine.
    #[cfg(test)]
    pub(crate) fn with_engine<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> R {
        self.endpoint.access.with_here(f)
    }

    /// Makes progress. Returns whether anything happened.
    #[must_use]
    pub fn progress(&self) -> bool {
        self.endpoint.progress()
    }
}

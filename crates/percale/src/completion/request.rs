//! Requests for connections, as events report them.

use std::any::Any;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;

/// A request for a connection, to be accepted ([`EndpointBuilder::accept`](crate::EndpointBuilder::accept)) or
/// [rejected](Self::reject), once. It is valid until then, or until the connecting peer or the listener is gone. A request that is
/// dropped unanswered is rejected. Each clone is a handle to the same request.
#[derive(Clone)]
pub struct ConnectionRequest {
    request: Arc<Request>,
}

crate::short_debug!(ConnectionRequest, "ConnectionRequest");

impl PartialEq for ConnectionRequest {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.request, &other.request)
    }
}

impl Eq for ConnectionRequest {}

/// The listener that received a request. Its owner knows the type.
pub(crate) trait RequestedListener: Any + Debug + Send + Sync {
    /// Records that the last handle of a request was dropped. This is called in any thread and calls nothing.
    fn dropped(&self, number: u64);
}

/// The data of a request.
#[derive(Debug)]
pub(crate) struct Request {
    /// Its number at its listener.
    pub(crate) number: u64,
    pub(crate) listener: Box<dyn RequestedListener>,
    /// The listener's address.
    pub(crate) at: SocketAddr,
    /// Whether the listener listens on every interface.
    pub(crate) anywhere: bool,
    /// The address of the connecting peer; its incarnation follows.
    pub(crate) from: SocketAddr,
    pub(crate) incarnation: u128,
    pub(crate) data: Vec<u8>,
}

impl Drop for Request {
    fn drop(&mut self) {
        self.listener.dropped(self.number);
    }
}

impl ConnectionRequest {
    pub(crate) fn new(request: Request) -> Self {
        Self { request: Arc::new(request) }
    }

    /// The address of the endpoint that requests the connection.
    #[must_use]
    pub fn from(&self) -> SocketAddr {
        self.request.from
    }

    /// The data that it passed with its request.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.request.data
    }

    /// The address of the listener that received the request.
    #[must_use]
    pub fn listener(&self) -> SocketAddr {
        self.request.at
    }

    /// Its data, for the module that answers it.
    pub(crate) fn request(&self) -> &Request {
        &self.request
    }
}

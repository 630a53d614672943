//! Connection requests, which events report.

use std::any::Any;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;

/// A connection request, to be accepted ([`EndpointBuilder::accept`](crate::EndpointBuilder::accept)) or
/// [rejected](Self::reject) once. It is valid until then, or until the connecting peer or the listener no longer
/// exists. A request that is dropped without an answer is rejected. Clones are handles to the same request.
#[derive(Clone)]
pub struct ConnectionRequest {
    request: Arc<RequestData>,
}

crate::short_debug!(ConnectionRequest, "ConnectionRequest");

impl PartialEq for ConnectionRequest {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.request, &other.request)
    }
}

impl Eq for ConnectionRequest {}

/// The listener that received a request. The endpoint module defines the type.
pub(crate) trait RequestedListener: Any + Debug + Send + Sync {
    /// Records that the last handle of a request was dropped. It may be called in any thread, and calls no other code.
    fn dropped(&self, number: u64);
}

/// The data of a request.
#[derive(Debug)]
pub(crate) struct RequestData {
    /// The number of the request at its listener.
    pub(crate) number: u64,
    pub(crate) listener: Box<dyn RequestedListener>,
    /// The listener's address.
    pub(crate) at: SocketAddr,
    /// Whether the listener accepts connections on every interface.
    pub(crate) anywhere: bool,
    /// The address of the connecting peer. The peer's incarnation follows.
    pub(crate) from: SocketAddr,
    pub(crate) incarnation: u128,
    pub(crate) data: Vec<u8>,
}

impl Drop for RequestData {
    fn drop(&mut self) {
        self.listener.dropped(self.number);
    }
}

impl ConnectionRequest {
    pub(crate) fn new(request: RequestData) -> Self {
        Self { request: Arc::new(request) }
    }

    /// Returns the address of the endpoint that requests the connection.
    #[must_use]
    pub fn from(&self) -> SocketAddr {
        self.request.from
    }

    /// Returns the data that the peer passed with its request.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.request.data
    }

    /// Returns the address of the listener that received the request.
    #[must_use]
    pub fn listener(&self) -> SocketAddr {
        self.request.at
    }

    /// Returns the data of the request, for the module that answers it.
    pub(crate) fn request(&self) -> &RequestData {
        &self.request
    }
}

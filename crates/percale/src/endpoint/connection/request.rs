//! Requests for connections, as a listener's owner sees them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use super::ConnectionError;
use crate::endpoint::engine::listening::Thrown;
use crate::endpoint::engine::single::Awaiting;
use crate::endpoint::ownership::WeakShared;
use crate::endpoint::ownership::reach::Reach;
use crate::wire::control::{Control, DATA_LIMIT, Rejection};

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

/// The data of a request.
#[derive(Debug)]
pub(crate) struct Request {
    /// Its number at its listener.
    pub(crate) number: u64,
    pub(crate) listener: WeakShared,
    /// The listener's address.
    pub(crate) at: SocketAddr,
    /// Whether the listener listens on every interface.
    pub(crate) anywhere: bool,
    /// The address of the connecting peer; its incarnation follows.
    pub(crate) from: SocketAddr,
    pub(crate) incarnation: u128,
    pub(crate) data: Vec<u8>,
    pub(crate) thrown: Arc<Thrown>,
}

impl Drop for Request {
    fn drop(&mut self) {
        self.thrown.push(self.number);
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

    /// Rejects the request (fi_reject(3)); `data`, at most [`DATA_LIMIT`] bytes, is sent to the connecting peer.
    ///
    /// # Errors
    /// If the request is gone, or the data is too long.
    pub fn reject(&self, data: &[u8]) -> Result<(), ConnectionError> {
        if data.len() > DATA_LIMIT {
            return Err(ConnectionError::TooMuchData(data.len()));
        }
        self.answer(&Control::Rejected { why: Rejection::Owner, data: data.to_vec() })
    }

    /// Sends the connecting peer the address of the endpoint that it is to connect to.
    pub(super) fn grant(&self, to: Awaiting, data: &[u8]) -> Result<(), ConnectionError> {
        let Awaiting { address, anywhere, incarnation } = to;
        self.answer(&Control::Granted { address, anywhere, incarnation, data: data.to_vec() })
    }

    fn answer(&self, answer: &Control) -> Result<(), ConnectionError> {
        let listener = self.request.listener.upgrade().ok_or(ConnectionError::Gone)?;
        listener.with(|engine| engine.answer_request(self.request.number, answer))
    }

    /// The connecting peer's address and incarnation.
    pub(super) fn caller(&self) -> (SocketAddr, u128) {
        (self.request.from, self.request.incarnation)
    }

    /// The address at which to open an endpoint that accepts.
    pub(super) fn place(&self) -> SocketAddr {
        let ip = match self.request.at.ip() {
            IpAddr::V4(_) if self.request.anywhere => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) if self.request.anywhere => Ipv6Addr::UNSPECIFIED.into(),
            ip => ip,
        };
        SocketAddr::new(ip, 0)
    }
}

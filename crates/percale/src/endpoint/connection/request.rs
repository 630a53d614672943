//! Answers to connection requests.

use std::any::Any;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use super::ConnectionError;
use crate::completion::request::{ConnectionRequest, RequestedListener};
use crate::endpoint::engine::listening::DroppedRequests;
use crate::endpoint::engine::single::Awaiting;
use crate::endpoint::ownership::WeakShared;
use crate::endpoint::ownership::reach::EngineAccess;
use crate::wire::control::{Control, DATA_LIMIT, Rejection};

/// The listener to which a request refers.
#[derive(Debug)]
pub(crate) struct Requested {
    pub(crate) listener: WeakShared,
    /// The list in which the listener finds requests that were dropped without an answer.
    pub(crate) dropped_requests: Arc<DroppedRequests>,
}

impl RequestedListener for Requested {
    fn dropped(&self, number: u64) {
        self.dropped_requests.push(number);
    }
}

impl ConnectionRequest {
    /// Rejects the request (fi_reject(3)). `data`, at most [`DATA_LIMIT`] bytes, is sent to the connecting peer.
    ///
    /// # Errors
    /// If the request is no longer valid, or the data is too long.
    pub fn reject(&self, data: &[u8]) -> Result<(), ConnectionError> {
        if data.len() > DATA_LIMIT {
            return Err(ConnectionError::TooMuchData(data.len()));
        }
        self.answer(&Control::Rejected { why: Rejection::Owner, data: data.to_vec() })
    }

    /// Sends the connecting peer the address of the endpoint to which it connects next.
    pub(super) fn grant(&self, to: Awaiting, data: &[u8]) -> Result<(), ConnectionError> {
        let Awaiting { address, anywhere, incarnation } = to;
        self.answer(&Control::Granted { address, anywhere, incarnation, data: data.to_vec() })
    }

    fn answer(&self, answer: &Control) -> Result<(), ConnectionError> {
        let requested = (&*self.request().listener as &dyn Any).downcast_ref::<Requested>();
        let listener = requested.and_then(|requested| requested.listener.upgrade()).ok_or(ConnectionError::Gone)?;
        listener.with(|engine| engine.answer_request(self.request().number, answer))
    }

    /// Returns the connecting peer's address and incarnation.
    pub(super) fn caller(&self) -> (SocketAddr, u128) {
        (self.request().from, self.request().incarnation)
    }

    /// Returns the address at which to open the accepting endpoint.
    pub(super) fn place(&self) -> SocketAddr {
        let ip = match self.request().at.ip() {
            IpAddr::V4(_) if self.request().anywhere => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) if self.request().anywhere => Ipv6Addr::UNSPECIFIED.into(),
            ip => ip,
        };
        SocketAddr::new(ip, 0)
    }
}

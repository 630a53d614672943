//! Endpoints of one connection each (libfabric's `FI_EP_MSG`; fi_cm(3)).
//!
//! A [`Listener`] has an address. Who [connects](crate::EndpointBuilder::connect) there asks its owner, with up to [`DATA_LIMIT`] bytes; the
//! owner reads an [`Event::ConnectionRequest`](crate::Event::ConnectionRequest) and [accepts](crate::EndpointBuilder::accept) it with an
//! endpoint, or [rejects](ConnectionRequest::reject) it, again with data. Then both sides read
//! [`Event::Connected`](crate::Event::Connected), or the one that asked [`Event::ConnectionRefused`](crate::Event::ConnectionRefused).
//!
//! Such an endpoint exchanges messages with its one peer, [`Endpoint::peer`], and with nobody else; everything else is as for any
//! endpoint. Receives may be posted at any time, sends and accesses while the connection stands. When either side
//! [shuts down](Endpoint::shutdown), closes or dies, the other reads [`Event::Shutdown`](crate::Event::Shutdown), once, after every
//! message that had been handed over; receives that found no message fail. An endpoint is connected once in its lifetime.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let domain = percale::Info::discover()?.best()?.open()?;
//! # use percale::Event;
//! // One process:
//! let listener = domain.listener().bind("0.0.0.0:7471")?;
//! let Event::ConnectionRequest(request) = listener.events().wait(None)? else { panic!("no request") };
//! let server = domain.endpoint().accept(&request, b"welcome")?;
//! server.wait_connected(None)?;
//! // Another:
//! let client = domain.endpoint().connect("node7:7471", b"it is me")?;
//! assert_eq!(client.wait_connected(None)?, b"welcome");
//! client.send(client.peer(), vec![1, 2, 3]).wait()?;
//! # Ok(()) }
//! ```
//!
//! An endpoint makes progress on its connection as on everything else: in its calls, or when an event queue is read that a shared
//! endpoint was bound to. A listener is shared: whoever reads or waits for its events drives it.

mod listener;
mod open;
mod request;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

pub use self::listener::{Listener, ListenerBuilder};
pub use self::request::ConnectionRequest;
pub(crate) use self::request::Request;
use super::Endpoint;
use super::builder::{BindError, resolve};
use super::ownership::Ownership;
use crate::address::PeerAddress;
use crate::completion::entry::ErrorCode;
pub use crate::wire::control::DATA_LIMIT;

/// Why there is no connection.
#[non_exhaustive]
#[derive(thiserror::Error)]
pub enum ConnectionError {
    /// The endpoint is not for one connection.
    #[error("this endpoint is for many peers: open it with connect, accept or bind_single")]
    NotForOne,
    /// It has, or had, a connection, or is about to.
    #[error("this endpoint was connected before; an endpoint has one connection in its lifetime")]
    Used,
    /// Nobody asked for a connection yet.
    #[error("this endpoint was neither connected nor used to accept")]
    Unconnected,
    /// More than fits.
    #[error("{0} bytes are too many to go with a request or an answer; at most {DATA_LIMIT} are taken")]
    TooMuchData(usize),
    /// The request cannot be answered any more.
    #[error("the request is gone: it was answered, or who asked has left, or the listener was closed")]
    Gone,
    /// There will be no connection.
    #[error("no connection: {reason}")]
    Refused {
        /// In short: `Refused` if the other side said no, or nobody listens.
        error: ErrorCode,
        /// Why.
        reason: String,
        /// What the listener's owner gave with its rejection.
        data: Vec<u8>,
    },
    /// The caller's patience has ended; the connection may still come.
    #[error("the connection does not stand yet")]
    NotYet,
    /// The process is a fork of the one that made the endpoint.
    #[error("this process was forked from the one that opened the endpoint; open a domain of its own in it")]
    Forked,
    /// The endpoint was closed, by another handle.
    #[error("the endpoint was closed; open another one")]
    Closed,
    /// The endpoint could not be opened.
    #[error(transparent)]
    Bind(#[from] BindError),
}

impl std::fmt::Debug for ConnectionError {
    /// As it is displayed, without what the other side sent.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ConnectionError({})", crate::debug::cut(&self.to_string()))
    }
}

impl ConnectionError {
    /// The libfabric code.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotForOne => libc::EOPNOTSUPP,
            Self::Used | Self::Unconnected => 258, // FI_EOPBADSTATE
            Self::TooMuchData(_) => libc::EINVAL,  // As fi_connect(3) has it for `paramlen`.
            Self::Gone => libc::ECONNABORTED,
            Self::Refused { error, .. } => error.errno(),
            Self::NotYet => libc::EAGAIN,
            Self::Forked => libc::ECHILD,
            Self::Closed => libc::ESHUTDOWN,
            Self::Bind(error) => error.errno(),
        }
    }
}

/// How far an endpoint's one connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// Nobody asked for it.
    Unconnected,
    /// It is being made.
    Connecting,
    /// It stands.
    Connected,
    /// It did not come about.
    Refused,
    /// It stood, and either side has ended it.
    Shutdown,
}

impl<A: Ownership> Endpoint<A> {
    /// Connects an endpoint of one connection to the listener at `address` (fi_connect(3)); `data`, at most [`DATA_LIMIT`] bytes, is
    /// for its owner. Returns at once; how it ends is told by an event and by [`wait_connected`](Self::wait_connected). Whatever
    /// comes of it, the endpoint cannot be connected again.
    ///
    /// # Errors
    /// If the endpoint is no such endpoint, or was used before; the address means nothing; or the data is too much.
    pub fn connect(&self, address: impl AsRef<str>, data: &[u8]) -> Result<(), ConnectionError> {
        let address = resolve(address.as_ref())?;
        let timeout = self.answer_timeout;
        self.access.with(|engine| engine.call(address, data, timeout))
    }

    /// Accepts a request with an endpoint of one connection (fi_accept(3)); `data`, at most [`DATA_LIMIT`] bytes, is for who asked.
    /// Returns at once; an event tells when the connection stands.
    ///
    /// # Errors
    /// If the endpoint is no such endpoint, or was used before; the request is gone; or the data is too much. If the request is
    /// gone the endpoint cannot be used any more.
    pub fn accept(&self, request: &ConnectionRequest, data: &[u8]) -> Result<(), ConnectionError> {
        let timeout = self.domain.inner.settings.connect_timeouts.longest();
        // One lock after the other, never both.
        let ours = self.access.with(|engine| engine.await_caller(request.caller(), (request.data(), data), timeout))?;
        request.grant(ours, data).inspect_err(|gone| self.access.with(|engine| engine.call_off(&gone.to_string())))
    }

    /// Ends the connection in good order (fi_shutdown(3)): what was handed over is sent, for a second at most if the peer does not
    /// take it; then everything outstanding fails with [`ErrorCode::Canceled`], and the peer reads
    /// [`Event::Shutdown`](crate::Event::Shutdown). Does nothing if the connection is over already.
    ///
    /// # Errors
    /// If the endpoint is not for one connection, or this is a forked child.
    pub fn shutdown(&self) -> Result<(), ConnectionError> {
        self.access.with(super::engine::Engine::shutdown)
    }

    /// Waits, making progress, until the connection stands; returns what the other side gave with its request or acceptance.
    /// At most `timeout` (`None`: as long as it takes).
    ///
    /// # Errors
    /// If there will be no connection; [`ConnectionError::NotYet`] if `timeout` passed first.
    pub fn wait_connected(&self, timeout: Option<Duration>) -> Result<Vec<u8>, ConnectionError> {
        if !self.access.is_here() {
            return Err(ConnectionError::Forked);
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.access.wait_until(deadline, super::engine::Engine::outcome).unwrap_or(Err(ConnectionError::NotYet))
    }

    /// How far the endpoint's one connection is; `None` if it is for many peers.
    #[must_use]
    pub fn connection_state(&self) -> Option<ConnectionState> {
        self.access.with(super::engine::Engine::connection_state)
    }

    /// How operations name the peer of an endpoint of one connection: always the same. [`PeerAddress::UNSPECIFIED`] for others.
    #[must_use]
    pub const fn peer(&self) -> PeerAddress {
        self.peer
    }

    /// The peer of an endpoint of one connection: the listener that it connected to, or the address of who asked (fi_getpeer(3)).
    /// `None` before, and for other endpoints.
    #[must_use]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.access.with(super::engine::Engine::remote)
    }

    /// Unique among the endpoints of this process: how events name it.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.access.with(|engine| engine.id())
    }
}

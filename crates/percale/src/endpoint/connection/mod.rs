//! Endpoints of one connection each (libfabric's `FI_EP_MSG`; fi_cm(3)).
//!
//! A [`Listener`] has an address. A peer that [connects](crate::EndpointBuilder::connect) to this address sends a
//! request with up to [`DATA_LIMIT`] bytes of data. The owner of the listener reads an
//! [`Event::ConnectionRequest`](crate::Event::ConnectionRequest) and either [accepts](crate::EndpointBuilder::accept)
//! the request with an endpoint or [rejects](ConnectionRequest::reject) it. Both answers can carry data. If the request
//! is accepted, both sides read [`Event::Connected`](crate::Event::Connected). If it is rejected, the connecting side
//! reads [`Event::ConnectionRefused`](crate::Event::ConnectionRefused).
//!
//! Such an endpoint exchanges messages only with its one peer, [`Endpoint::peer`]. In all other respects it is like any
//! other endpoint. Receives may be posted at any time, sends and accesses only while the connection is up. When one
//! side [shuts down](Endpoint::shutdown), closes or dies, the other side first receives the messages that have arrived,
//! and then reads [`Event::Shutdown`](crate::Event::Shutdown) once. Receives that have no message then fail. An
//! endpoint is connected at most once in its lifetime.
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
//! The connection makes progress like the rest of the endpoint: in the endpoint's calls, or, for a shared endpoint,
//! when the event queue to which it is bound is read. A listener is shared: every thread that reads or waits for its
//! events drives it.

mod listener;
mod open;
mod request;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

pub use self::listener::{Listener, ListenerBuilder};
pub(crate) use self::request::Requested;
use super::Endpoint;
use super::builder::{BindError, resolve};
use super::ownership::Ownership;
use crate::completion::entry::ErrorCode;
pub use crate::completion::request::ConnectionRequest;
use crate::types::PeerAddress;
pub use crate::wire::control::DATA_LIMIT;

/// The reason why there is no connection.
#[non_exhaustive]
#[derive(thiserror::Error)]
pub enum ConnectionError {
    /// The endpoint was not opened for a single connection.
    #[error("not an endpoint of one connection: open it with connect, accept or bind_single")]
    NotForOne,
    /// The endpoint is connecting, is connected, or was connected before.
    #[error("the endpoint was already connected; an endpoint has only one connection in its lifetime")]
    Used,
    /// The endpoint has neither requested nor accepted a connection.
    #[error("the endpoint has neither requested nor accepted a connection")]
    Unconnected,
    /// The data is longer than [`DATA_LIMIT`].
    #[error("{0} bytes of connection data exceed the limit of {DATA_LIMIT}")]
    TooMuchData(usize),
    /// The request can no longer be answered.
    #[error(
        "the connection request no longer exists: it was answered, its sender disconnected, or the listener was closed"
    )]
    Gone,
    /// The connection could not be established.
    #[error("connection failed: {reason}")]
    Refused {
        /// The error code: `Refused` if the peer rejected the request, or no listener has that address.
        error: ErrorCode,
        /// The reason, as text.
        reason: String,
        /// The data that the listener's owner passed with its rejection.
        data: Vec<u8>,
    },
    /// The caller's timeout has expired. The connection may still be established later.
    #[error("the connection is not established yet")]
    NotYet,
    /// The process is a fork of the process that opened the endpoint.
    #[error("the endpoint belongs to the parent process of this fork; open a domain in this process")]
    Forked,
    /// The endpoint was closed through another handle.
    #[error("the endpoint was closed; open another one")]
    Closed,
    /// The endpoint could not be opened.
    #[error(transparent)]
    Bind(#[from] BindError),
}

impl std::fmt::Debug for ConnectionError {
    /// Formats the error like its `Display` output, without the data that the other side sent.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ConnectionError({self})")
    }
}

impl ConnectionError {
    /// Returns whether the same call may succeed later although neither it nor the program is changed. This is the case
    /// for [`NotYet`](Self::NotYet), and for [`Bind`](Self::Bind) as stated by [`BindError::is_retriable`]. An endpoint has only one connection in its lifetime, so after
    /// [`Refused`](Self::Refused) a new endpoint is needed; the error's code states whether that may help
    /// ([`ErrorCode::is_retriable`]).
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::NotYet => true,
            Self::Bind(error) => error.is_retriable(),
            _ => false,
        }
    }

    /// Returns the error code of the failed connection ([`Refused`](Self::Refused)). `None` for other errors.
    #[must_use]
    pub const fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { error, .. } => Some(*error),
            _ => None,
        }
    }

    /// Returns the libfabric code.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotForOne => libc::EOPNOTSUPP,
            Self::Used | Self::Unconnected => 258, // FI_EOPBADSTATE
            Self::TooMuchData(_) => libc::EINVAL,  // Like fi_connect(3) for `paramlen`.
            Self::Gone => libc::ECONNABORTED,
            Self::Refused { error, .. } => error.errno(),
            Self::NotYet => libc::EAGAIN,
            Self::Forked => libc::ECHILD,
            Self::Closed => libc::ESHUTDOWN,
            Self::Bind(error) => error.errno(),
        }
    }
}

/// The state of an endpoint's one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// No connection was requested or accepted yet.
    Unconnected,
    /// The connection is being established.
    Connecting,
    /// The connection is up.
    Connected,
    /// The connection could not be established.
    Refused,
    /// The connection was up, and either side has ended it.
    Shutdown,
}

impl<A: Ownership> Endpoint<A> {
    /// Connects an endpoint of one connection to the listener at `address` (fi_connect(3)). `data`, at most
    /// [`DATA_LIMIT`] bytes, is sent to the owner of the listener. Returns immediately; the result is reported by an
    /// event and by [`wait_connected`](Self::wait_connected). The endpoint cannot be connected again, whether the
    /// result is success or failure.
    ///
    /// # Errors
    /// If the endpoint is not for a single connection or was used before, if the text is not an address, or if the data
    /// is too long.
    pub fn connect(&self, address: impl AsRef<str>, data: &[u8]) -> Result<(), ConnectionError> {
        let address = resolve(address.as_ref())?;
        let timeout = self.answer_timeout;
        self.access.with(|engine| engine.call(address, data, timeout))
    }

    /// Accepts a request with an endpoint of one connection (fi_accept(3)). `data`, at most [`DATA_LIMIT`] bytes, is
    /// sent to the connecting side. Returns immediately; an event reports when the connection is up.
    ///
    /// # Errors
    /// If the endpoint is not for a single connection or was used before, if the request is no longer valid, or if the
    /// data is too long. If the request is no longer valid, the endpoint cannot be used any more.
    pub fn accept(&self, request: &ConnectionRequest, data: &[u8]) -> Result<(), ConnectionError> {
        let timeout = self.domain.inner.settings.connect_timeouts.longest();
        // The two locks are taken one after the other and never held together.
        let ours = self.access.with(|engine| engine.await_caller(request.caller(), (request.data(), data), timeout))?;
        request.grant(ours, data).inspect_err(|gone| self.access.with(|engine| engine.stop_awaiting(&gone.to_string())))
    }

    /// Shuts down the connection in an orderly way (fi_shutdown(3)). Pending data is sent first, for at most one second
    /// if the peer does not read it. Then all outstanding operations fail with [`ErrorCode::Canceled`], and the peer
    /// reads [`Event::Shutdown`](crate::Event::Shutdown). If the connection is not established yet, the attempt ends,
    /// and the endpoint cannot be connected any more. If the connection has already ended, receives that have no
    /// message fail at once.
    ///
    /// # Errors
    /// If the endpoint is not for a single connection, or this is a forked child.
    pub fn shutdown(&self) -> Result<(), ConnectionError> {
        self.access.with(super::engine::Engine::shutdown)
    }

    /// Makes progress until the connection is up, and returns the data that the other side passed with its request or
    /// acceptance. Waits for at most `timeout` (`None`: no limit).
    ///
    /// # Errors
    /// If the connection cannot be established. [`ConnectionError::NotYet`] if `timeout` expired first.
    pub fn wait_connected(&self, timeout: Option<Duration>) -> Result<Vec<u8>, ConnectionError> {
        if !self.access.is_here() {
            return Err(ConnectionError::Forked);
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.access.wait_until(deadline, super::engine::Engine::outcome).unwrap_or(Err(ConnectionError::NotYet))
    }

    /// Returns the state of the endpoint's one connection, or `None` if the endpoint is for many peers.
    #[must_use]
    pub fn connection_state(&self) -> Option<ConnectionState> {
        self.access.with(super::engine::Engine::connection_state)
    }

    /// Returns the address by which operations refer to the peer of an endpoint of one connection. It never changes.
    /// Returns [`PeerAddress::UNSPECIFIED`] for other endpoints.
    #[must_use]
    pub const fn peer(&self) -> PeerAddress {
        self.peer
    }

    /// Returns the address of the peer of an endpoint of one connection: the listener to which it connected, or the
    /// peer that requested the connection (fi_getpeer(3)). Returns `None` before there is a peer, and for other
    /// endpoints.
    #[must_use]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.access.with(super::engine::Engine::remote)
    }

    /// Returns the number that identifies the endpoint in events. It is unique among the endpoints of this process.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.access.with(|engine| engine.id())
    }
}

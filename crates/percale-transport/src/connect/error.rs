//! The error type of connection attempts.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::io::Errno;

use crate::system::call::{errno, named};
use crate::wire::hello::{Malformed, VERSION};

/// The reason why a connection could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No endpoint listens at this address.
    #[error("no endpoint listens at {0}: start the peer first, or correct its address")]
    Refused(SocketAddr),
    /// There is no route to this address.
    #[error("{0} is unreachable ({1}): check routes, firewalls and whether the interface is up")]
    Unreachable(SocketAddr, String),
    /// No connection was established within the timeout.
    #[error("no connection to {peer} within {timeout:?}: check that the peer makes progress, or increase the timeout")]
    Timeout {
        /// The address of the peer.
        peer: SocketAddr,
        /// The timeout.
        timeout: Duration,
    },
    /// The peer has a different authorization key, or only one side has one.
    #[error("the authorization keys do not match: give both sides the same key, or none")]
    Authorization,
    /// The peer uses a different version of the protocol.
    #[error(
        "protocol version mismatch: the peer has version {theirs}, this process version {VERSION}; use the same release on \
         both sides"
    )]
    Version {
        /// The peer's version.
        theirs: u16,
    },
    /// No file descriptors are left.
    #[error("{} has no file descriptors left: raise its limit (ulimit -n) or use fewer peers",
        if *.peer { "the peer" } else { "this process" })]
    Descriptors {
        /// Whether the peer has no descriptors left. If false, this process has none left.
        peer: bool,
    },
    /// The address has no such context, or the context is not open.
    #[error("receive context {context} of {peer} {}: check the index, and that the context is enabled",
        if *.closed { "is not open" } else { "does not exist" })]
    Context {
        /// The address that was reached.
        peer: SocketAddr,
        /// The context that was called.
        context: u16,
        /// Whether the context exists but is not open.
        closed: bool,
    },
    /// No transport is allowed by both sides, or the only such transport does not work.
    #[error("no common transport with the peer ({0}): allow the same transport on both sides")]
    NoTransport(String),
    /// An authorization key is used, and the call arrived at a different address than the one that was called.
    #[error(
        "the connection arrived at {0}, which is not the called address (a proxy or address translation?); with an \
         authorization key, use each peer's own address"
    )]
    Relayed(SocketAddr),
    /// The endpoint that answers sent contradictory information about its identity.
    #[error("{0} rejected the connection: {1}")]
    Identity(SocketAddr, String),
    /// The peer closed the connection while it was being made.
    #[error("{0} closed the connection during set-up: check the errors of the peer")]
    Closed(SocketAddr),
    /// This endpoint only answers probes and makes no connections.
    #[error("{0} is not connected, and this endpoint does not initiate connections: wait until the peer connects")]
    AnswersOnly(SocketAddr),
    /// The peer sent something that violates the protocol.
    #[error("the peer violated the protocol ({0}): check that the address belongs to a percale endpoint")]
    Protocol(String),
    /// A system call failed with an error that no other variant describes.
    #[error("cannot connect: {0}")]
    System(String, i32),
}

impl ConnectError {
    /// Returns the libfabric error code (positive) of this error.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Refused(_) | Self::Context { .. } | Self::Identity(..) => libc::ECONNREFUSED,
            Self::Unreachable(..) => libc::EHOSTUNREACH,
            Self::Timeout { .. } => libc::ETIMEDOUT,
            Self::Authorization | Self::Relayed(_) => libc::EACCES,
            Self::Version { .. } => libc::ENOPROTOOPT,
            Self::Descriptors { .. } => libc::EMFILE,
            Self::NoTransport(_) => libc::EOPNOTSUPP,
            Self::AnswersOnly(_) => libc::ENOTCONN,
            Self::Closed(_) => libc::ECONNRESET,
            Self::Protocol(_) => libc::EREMOTEIO,
            Self::System(_, errno) => *errno,
        }
    }

    /// Converts the kernel's error for a call on a socket to `peer`.
    pub(super) fn of_socket(call: &'static str, errno: Errno, peer: SocketAddr, timeout: Duration) -> Self {
        match errno {
            // A firewall may cause this error, but only for connect(2). For other calls it means that the call is not
            // permitted.
            Errno::PERM | Errno::ACCESS if call == "connect" => {
                Self::Unreachable(peer, format!("connect: {errno}: a firewall or a sandbox does not allow it"))
            }
            Errno::PERM | Errno::ACCESS | Errno::INVAL if call != "connect" => Self::of_call(call, errno),
            Errno::CONNREFUSED => Self::Refused(peer),
            Errno::TIMEDOUT => Self::Timeout { peer, timeout },
            Errno::MFILE | Errno::NFILE => Self::Descriptors { peer: false },
            Errno::CONNRESET | Errno::PIPE | Errno::CONNABORTED => Self::Closed(peer),
            Errno::NETUNREACH
            | Errno::HOSTUNREACH
            | Errno::NETDOWN
            | Errno::HOSTDOWN
            | Errno::ADDRNOTAVAIL
            | Errno::AFNOSUPPORT
            | Errno::INVAL => Self::Unreachable(peer, errno.to_string()),
            other => Self::of_call(call, other),
        }
    }

    /// Converts the kernel's error for any other call.
    pub(super) fn of_call(call: &'static str, errno: Errno) -> Self {
        Self::System(named(call)(errno).to_string(), errno.raw_os_error())
    }

    /// Converts an I/O error, which may contain the name of the call.
    pub(super) fn of_error(error: &std::io::Error) -> Self {
        Self::System(error.to_string(), errno(error).unwrap_or(libc::EIO))
    }
}

impl From<Malformed> for ConnectError {
    fn from(malformed: Malformed) -> Self {
        match malformed {
            Malformed::Version(theirs) => Self::Version { theirs },
            other => Self::Protocol(other.to_string()),
        }
    }
}

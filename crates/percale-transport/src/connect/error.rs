//! Why a connection could not be made.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::io::Errno;

use crate::system::call::{errno, named};
use crate::wire::hello::{Malformed, VERSION};

/// Why a connection could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No endpoint listens at this address.
    #[error("nobody listens at {0}: start the peer first, or correct its address")]
    Refused(SocketAddr),
    /// The network does not lead there.
    #[error("{0} cannot be reached ({1}): check routes, firewalls and whether the interface is up")]
    Unreachable(SocketAddr, String),
    /// No connection came about in time.
    #[error("{peer} did not complete the connection within {timeout:?}: see whether it makes progress, or wait longer")]
    Timeout {
        /// The address of the peer.
        peer: SocketAddr,
        /// How long it was tried.
        timeout: Duration,
    },
    /// The peer has another authorization key, or only one side has one.
    #[error("the authorization keys do not match: give both sides the same key, or none")]
    Authorization,
    /// The peer has another version of the protocol.
    #[error(
        "the peer speaks version {theirs} of the protocol, this is version {VERSION}: run the same release on both"
    )]
    Version {
        /// The peer's version.
        theirs: u16,
    },
    /// No descriptors are left.
    #[error("{} has no descriptors left: raise its limit (ulimit -n) or use fewer peers",
        if *.peer { "the peer" } else { "this process" })]
    Descriptors {
        /// Whether it is the peer that has none; else it is this process.
        peer: bool,
    },
    /// The address has no such context, or does not open it.
    #[error("{peer} has no receive context {context}{}: name one that it has, and see that it is enabled",
        if *.closed { " open" } else { "" })]
    Context {
        /// The address that was reached.
        peer: SocketAddr,
        /// Which context was wanted.
        context: u16,
        /// There is to be one, but it is not open.
        closed: bool,
    },
    /// The two sides allow no common transport, or the only one does not work.
    #[error("no transport leads to the peer ({0}): allow another one on both sides")]
    NoTransport(String),
    /// The call arrived at another address than the one that was called, though an authorization key is used.
    #[error(
        "the call arrived at {0}, which is not the address that was called: something passes connections on; with an \
         authorization key name each peer by an address of its own"
    )]
    Relayed(SocketAddr),
    /// The peer, or whatever answers in its place, contradicts itself about which endpoint it is.
    #[error("{0} refused the connection: {1}")]
    Identity(SocketAddr, String),
    /// The peer closed the connection while it was being made.
    #[error("{0} closed the connection while it was being made: see what the peer reports")]
    Closed(SocketAddr),
    /// This endpoint makes no connections.
    #[error("{0} is not connected, and this endpoint only answers: wait until the peer connects")]
    AnswersOnly(SocketAddr),
    /// The peer sent what no percale sends.
    #[error("the peer broke the protocol ({0}): is that address really a percale endpoint?")]
    Protocol(String),
    /// The kernel refused something else.
    #[error("the connection could not be made: {0}")]
    System(String, i32),
}

impl ConnectError {
    /// The error number that libfabric has for it.
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

    /// The kernel's error for a call about a socket to `peer`.
    pub(super) fn of_socket(call: &'static str, errno: Errno, peer: SocketAddr, timeout: Duration) -> Self {
        match errno {
            // A firewall may answer so to connect(2) alone; else it is the call that is not allowed.
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

    /// The kernel's error for any other call.
    pub(super) fn of_call(call: &'static str, errno: Errno) -> Self {
        Self::System(named(call)(errno).to_string(), errno.raw_os_error())
    }

    /// Converts an I/O error, which may name its call.
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

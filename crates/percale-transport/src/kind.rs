//! The transports and their names.

use std::fmt;
use std::str::FromStr;

/// A transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum TransportKind {
    /// A connection of an endpoint to itself.
    Loopback,
    /// Shared memory between processes of one user on one machine.
    Shm,
    /// RDMA with queue pairs of libibverbs.
    Verbs,
    /// TCP.
    Tcp,
    /// The simulated network, for tests.
    Sim,
}

impl TransportKind {
    /// Returns the name of the transport, as in `PERCALE_TRANSPORT`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Shm => "shm",
            Self::Verbs => "verbs",
            Self::Tcp => "tcp",
            Self::Sim => "sim",
        }
    }
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error for an unknown transport name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown transport {0:?}; valid names are loopback, shm, verbs and tcp")]
#[non_exhaustive]
pub struct UnknownTransport(pub String);

impl UnknownTransport {
    /// Returns the libfabric error code (positive) of this error.
    #[must_use]
    #[inline]
    pub const fn errno(&self) -> i32 {
        libc::EINVAL
    }
}

impl FromStr for TransportKind {
    type Err = UnknownTransport;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "loopback" => Ok(Self::Loopback),
            "shm" => Ok(Self::Shm),
            "verbs" => Ok(Self::Verbs),
            "tcp" => Ok(Self::Tcp),
            "sim" => Ok(Self::Sim),
            other => Err(UnknownTransport(other.into())),
        }
    }
}

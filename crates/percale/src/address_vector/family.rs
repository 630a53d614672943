//! The families of network addresses.

use std::fmt;
use std::net::SocketAddr;

/// The kind of network address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4 (`FI_SOCKADDR_IN`).
    V4,
    /// IPv6 (`FI_SOCKADDR_IN6`).
    V6,
}

impl Family {
    /// Returns the family of `address`.
    #[must_use]
    pub const fn of(address: &SocketAddr) -> Self {
        match address {
            SocketAddr::V4(_) => Self::V4,
            SocketAddr::V6(_) => Self::V6,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

//! Errors of address vectors.

use std::net::SocketAddr;

use super::family::Family;
use crate::types::PeerAddress;

/// The reason why an address was not inserted or removed, or a vector not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The text is not an address and does not resolve to one.
    #[error("\"{name}\" is not an address ({reason}); use host:port, or [IPv6 address]:port")]
    Name {
        /// The text.
        name: String,
        /// The reason.
        reason: String,
    },
    /// The vector holds addresses of another family.
    #[error("{address} is not an {wanted} address; this address vector accepts only those")]
    Family {
        /// The address.
        address: SocketAddr,
        /// The family of the vector.
        wanted: Family,
    },
    /// The bytes are not the byte form of an address ([`bytes::from_bytes`](crate::address::bytes::from_bytes)).
    #[error("not the byte form of an address: {0}")]
    Bytes(&'static str),
    /// The bytes are not an address in the format of the vector's addresses.
    #[error("the address does not have the format of this address vector")]
    Form,
    /// An endpoint cannot have this address.
    #[error("{0} is not an endpoint address: it needs a port and must be neither a wildcard nor a multicast address")]
    NotAnEndpoint(SocketAddr),
    /// The range of nodes or services exceeds the possible addresses.
    #[error(
        "cannot insert a range of {nodes} nodes with {services} services each from {node:?}, {service:?}: {reason}"
    )]
    Range {
        /// The first node.
        node: String,
        /// The number of nodes.
        nodes: usize,
        /// The first service.
        service: String,
        /// The number of services.
        services: usize,
        /// The reason.
        reason: &'static str,
    },
    /// The peer is not in the vector.
    #[error("{0} is not in the address vector")]
    Unknown(PeerAddress),
    /// The vector has the maximum number of entries.
    #[error("the address vector is full; remove entries, or reserve fewer bits for receive contexts")]
    Full,
    /// Too many bits are reserved for receive contexts.
    #[error("too many bits for receive contexts ({0}); reserve at most 31")]
    ReceiveContextBits(u32),
    /// The vector was opened for reading only.
    #[error("the address vector was opened for reading only")]
    ReadOnly,
    /// A vector without a name cannot be opened for reading only.
    #[error("an address vector without a name cannot be opened read-only: it would stay empty")]
    Unnamed,
    /// Another process holds the lock of the vector and makes no progress.
    #[error("timeout: another process holds the lock of the address vector; check whether it is stopped")]
    Busy,
    /// A named vector could not be opened.
    #[error("address vector {name:?} cannot be opened: {reason}")]
    Open {
        /// The name of the vector.
        name: String,
        /// The error code of the system.
        errno: i32,
        /// The message.
        reason: String,
    },
    /// The base of the vector's numbers leaves no room for receive contexts.
    #[error("a map with base {base:#x} has no space for {bits} bits of receive contexts")]
    Base {
        /// The base.
        base: u64,
        /// The number of bits for receive contexts.
        bits: u32,
    },
    /// The insertion was canceled before it was performed.
    #[error("the insertion was canceled: its inserter was dropped")]
    Canceled,
    /// The process is a fork of the process that created the vector.
    #[error("the address vector belongs to the parent process of this fork; create one in this process")]
    Forked,
}

impl AddressError {
    /// Returns whether the same call may succeed later although neither it nor the program is changed, which is the
    /// case for [`Busy`](Self::Busy).
    #[must_use]
    pub const fn is_retriable(&self) -> bool {
        matches!(self, Self::Busy)
    }

    /// Returns the libfabric code for this error (positive).
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Name { .. } => libc::ENODATA,
            Self::Family { .. } => libc::EAFNOSUPPORT,
            Self::NotAnEndpoint(_) => libc::EADDRNOTAVAIL,
            Self::Bytes(_) | Self::Form | Self::Range { .. } | Self::Unknown(_) | Self::ReceiveContextBits(_) => {
                libc::EINVAL
            }
            Self::Base { .. } | Self::Unnamed => libc::EINVAL,
            Self::ReadOnly => libc::EACCES,
            Self::Busy => libc::EAGAIN,
            Self::Open { errno, .. } => *errno,
            Self::Full => libc::ENOSPC,
            Self::Canceled => libc::ECANCELED,
            Self::Forked => libc::ECHILD,
        }
    }
}

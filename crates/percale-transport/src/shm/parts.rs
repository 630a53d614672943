//! The parts from which a link is built.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::pair::Mappings;
use crate::local_memory::doorbell::{DOORBELL_BITS, Doorbell};
use crate::peer_process::PeerProcess;
use crate::region::{AccessOrigin, Keys};
use crate::system::process_socket::ProcessSocket;

/// The parts from which a link is built, as exchanged during connection set-up.
#[derive(Debug)]
pub struct ShmLinkParts {
    /// 0 for the side that connected and created the pair memory, 1 for the other.
    pub side: u8,
    /// The pair memory ([`pair_memory`](super::pair_memory)).
    pub pair: OwnedFd,
    /// This endpoint's doorbell.
    pub my_doorbell: Arc<Doorbell>,
    /// The bit of `my_doorbell` that belongs to this link.
    pub my_bit: u32,
    /// The page of the peer's doorbell.
    pub peer_doorbell: OwnedFd,
    /// The pair memory and the page of the peer's doorbell, if they are already mapped.
    pub mappings: Option<Mappings>,
    /// The event descriptor of the peer's doorbell.
    pub peer_event: OwnedFd,
    /// The bit of the peer's doorbell that belongs to this link.
    pub peer_bit: u32,
    /// A connected SOCK_SEQPACKET socket, for descriptors. Another thread watches it for hang-up.
    pub control: ProcessSocket,
    /// An address in the peer and the eight bytes stored there, used to test CMA.
    pub peer_nonce: (u64, u64),
    /// Whether CMA may be used.
    pub cma: bool,
    /// The peer's process.
    pub process: Option<Arc<PeerProcess>>,
    /// This domain's key table, if the peer may access its regions directly.
    #[doc(hidden)]
    pub keys: Option<Arc<Keys>>,
    /// The origin of the peer's accesses.
    #[doc(hidden)]
    pub via: AccessOrigin,
}

/// The reason why a link could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetUpError {
    /// The side is neither 0 nor 1.
    #[error("a pair has sides 0 and 1, not {0}")]
    Side(u8),
    /// The doorbell does not have this bit.
    #[error("invalid doorbell bit {0}: a doorbell has {DOORBELL_BITS} bits")]
    Bit(u32),
    /// The pair memory is invalid or cannot be mapped.
    #[error("the memory of the pair cannot be used: {0}")]
    Pair(io::Error),
    /// The page of the peer's doorbell is invalid or cannot be mapped.
    #[error("the peer's doorbell cannot be used: {0}")]
    Doorbell(io::Error),
}

impl SetUpError {
    /// Returns the libfabric error code of this error (positive).
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Side(_) | Self::Bit(_) => libc::EINVAL,
            Self::Pair(error) | Self::Doorbell(error) => crate::system::call::errno(error).unwrap_or(libc::EIO),
        }
    }
}

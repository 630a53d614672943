//! What a link is made of.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::bell::{BELL_BITS, Bell};
use super::pair::Mappings;
use crate::memory::region::{Keys, Via};
use crate::transport::peer_process::PeerProcess;
use crate::transport::process_socket::ProcessSocket;

/// What a link is made of; the set-up exchanged it.
#[derive(Debug)]
pub struct Parts {
    /// 0 for the side that connected and made the pair memory, 1 for the other.
    pub side: u8,
    /// The pair memory ([`pair_memory`](super::pair_memory)).
    pub pair: OwnedFd,
    /// Our endpoint's bell.
    pub my_bell: Arc<Bell>,
    /// The bit of it that stands for this link.
    pub my_bit: u32,
    /// The page of the peer's bell.
    pub peer_bell: OwnedFd,
    /// Both of these mapped, if they are already.
    pub mappings: Option<Mappings>,
    /// The event descriptor of the peer's bell.
    pub peer_event: OwnedFd,
    /// The bit of the peer's bell that stands for this link.
    pub peer_bit: u32,
    /// A connected SOCK_SEQPACKET socket, for descriptors. Someone else watches it for hang-up.
    pub control: ProcessSocket,
    /// An address in the peer and what stands there (eight bytes), to try CMA with.
    pub peer_nonce: (u64, u64),
    /// Whether CMA may be used at all.
    pub cma: bool,
    /// The peer's process.
    pub process: Option<Arc<PeerProcess>>,
    /// Our domain's regions, if the peer may reach them by itself.
    pub(crate) keys: Option<Arc<Keys>>,
    /// Through whom the peer's accesses come.
    pub(crate) via: Via,
}

/// Why a link could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetUpError {
    /// The side is 0 or 1.
    #[error("a pair has sides 0 and 1, not {0}")]
    Side(u8),
    /// A bit beyond the bell's.
    #[error("a bell has {BELL_BITS} bits; {0} is none of them")]
    Bit(u32),
    /// The pair memory is not what it should be, or cannot be mapped.
    #[error("the memory of the pair cannot be used: {0}")]
    Pair(io::Error),
    /// The same of the peer's bell.
    #[error("the peer's doorbell cannot be used: {0}")]
    Bell(io::Error),
}

impl SetUpError {
    /// The code that libfabric has for this error (positive).
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Side(_) | Self::Bit(_) => libc::EINVAL,
            Self::Pair(error) | Self::Bell(error) => crate::memory::call::errno(error).unwrap_or(libc::EIO),
        }
    }
}

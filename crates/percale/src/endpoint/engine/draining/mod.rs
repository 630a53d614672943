//! Operations that wait until other processes release memory: those on dead keys, and those of a broken connection with
//! memory to which the peer may still be writing.
//!
//! Operations of a broken connection have failed, but do not end before the peer has released their memory or the peer
//! process has ended, because the memory must not be reused until then. If the endpoint is closed before that,
//! [`deferred_cleanup`](super::deferred_cleanup) keeps them.
//!
//! * `pending_revocation`: dead keys that still have users
//!
//! Invariants:
//! 1. An operation in this module is in no other table, and has not been reported. An operation that is taken out is
//!    reported once.
//! 2. An operation that waits for a link is taken out only when the link's peer has released the memory, or its process
//!    has ended. An operation that waits for a key is taken out only when the key has no users, or the operation's time
//!    has passed.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod pending_revocation;
#[cfg(all(test, not(loom)))]
mod tests;

pub(super) use self::pending_revocation::{AbandonedReport, PendingRevocation, RevocationOutcome};
use super::remote::Execution;
use super::types::PayloadPull;
use crate::completion::entry::ErrorCode;
use crate::transport::ConnectionId;
use crate::transport::peer_process::PeerProcess;
use crate::transport::shm::DrainingLink;

/// The maximum number of ended connections of one peer process that hold memory until the process releases it. A
/// process can connect again and again, from threads that run while another of its threads is stopped, or with
/// malicious intent.
pub(super) const KEPT: usize = 16;

/// Operations that wait for the same event.
#[derive(Debug)]
pub(super) enum DrainingItem {
    /// The operations wait for the peer of a broken connection.
    Link(Box<BrokenConnection>),
    /// The operations wait for the users of a dead key.
    Window(PendingRevocation),
}

impl DrainingItem {
    fn is_over(&self) -> bool {
        match self {
            Self::Link(broken) => broken.draining.release().is_some(),
            Self::Window(pending_revocation) => pending_revocation.is_over(),
        }
    }
}

/// Operations that wait for the peer of a broken connection.
#[derive(Debug)]
pub(super) struct BrokenConnection {
    pub(super) from: ConnectionId,
    pub(super) draining: DrainingLink,
    pub(super) pulls: Vec<PayloadPull>,
    pub(super) accesses: Vec<Execution>,
    pub(super) error: ErrorCode,
    pub(super) why: String,
}

/// Operations that wait until another process releases memory.
#[derive(Debug, Default)]
pub(crate) struct DrainingOperations {
    items: Vec<DrainingItem>,
}

impl DrainingOperations {
    /// Returns whether no operation waits.
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns whether this peer process keeps memory of so many ended connections that no further connection with it
    /// over shared memory is allowed. Each ended connection may keep receives and accesses, and its part of the memory
    /// of the pair.
    pub(super) fn keeps_too_much(&self, process: &PeerProcess) -> bool {
        let kept = |item: &&DrainingItem| matches!(item, DrainingItem::Link(broken) if broken.draining.is_of(process));
        self.items.len() >= KEPT && self.items.iter().filter(kept).count() >= KEPT
    }

    /// Adds operations that wait.
    pub(super) fn add(&mut self, item: DrainingItem) {
        self.items.push(item);
    }

    /// Takes the operations that no longer wait.
    #[cold]
    pub(super) fn take_over(&mut self) -> Vec<DrainingItem> {
        self.items.extract_if(.., |item| item.is_over()).collect()
    }

    /// Takes all operations, because the endpoint closes.
    pub(super) fn take_all(&mut self) -> Vec<DrainingItem> {
        std::mem::take(&mut self.items)
    }

    /// Returns the number of waiting operations.
    #[cfg(any(test, feature = "sim"))]
    pub(super) const fn len(&self) -> usize {
        self.items.len()
    }
}

//! The remains of an ended link: operations that own memory to which the peer may still be copying.
//!
//! A peer that was stopped in the middle of a chunk continues with it once it is resumed, even if the connection has
//! ended. So the operations that own this memory do not end before the peer has released it, or its process has ended
//! (see [`Release`]). The end of the connection proves neither.
//!
//! One link leaves behind at most the pulls that have a slot (eight) and one long access. They are kept until they are
//! released. If the peer's process is alive and does not respond, they are not released. So an endpoint makes no
//! further connections to a process that holds too many of them.

use std::sync::Arc;

use super::direct::AssistedRequest;
use super::pair::PairMemory;
use super::transfer::has_released;
use crate::peer_process::PeerProcess;

/// The reason why the peer cannot have a copy into local memory in progress any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The peer has written, after its last copy, that it has finished each of these operations or the whole
    /// connection.
    LetGo,
    /// The peer's process has exited or executes another program.
    ProcessEnded,
    /// This process is a forked child of the process that lent the memory, and has its own copy of it.
    Forked,
}

/// The operations of an ended link that own memory to which the peer may still be copying.
#[derive(Debug)]
pub struct DrainingLink {
    pub(super) pair: Arc<PairMemory>,
    pub(super) side: usize,
    /// The token and slot of each pull for which the peer may be copying.
    pub(super) pulls: Vec<(u32, u8)>,
    /// A long access that the peer may be helping with.
    pub(super) assisted: Option<AssistedRequest>,
    pub(super) process: Option<Arc<PeerProcess>>,
}

impl DrainingLink {
    /// Returns whether `process` is the peer. As far as this side knows, neither of them has ended, so comparing
    /// process ids is sufficient.
    #[inline]
    pub fn is_of(&self, process: &PeerProcess) -> bool {
        self.process.as_ref().is_some_and(|kept| kept.pid() == process.pid())
    }

    /// Returns a copy for tests with the same pulls. It is released together with this value.
    #[cfg(any(test, feature = "testing"))]
    pub fn twin(&self) -> Self {
        let (pair, pulls, process) = (Arc::clone(&self.pair), self.pulls.clone(), self.process.clone());
        Self { pair, side: self.side, pulls, assisted: None, process }
    }

    /// Returns whether the peer may be copying for the pull with this token.
    #[inline]
    pub fn holds_pull(&self, token: u32) -> bool {
        self.pulls.iter().any(|(held, _)| *held == token)
    }

    /// Returns the token of the long access for which the peer may be copying.
    #[inline]
    pub fn held_access(&self) -> Option<u32> {
        self.assisted.as_ref().map(AssistedRequest::token)
    }

    /// Returns the reason why the peer can no longer touch this memory, or `None` if it still can. A reason that was
    /// returned is final.
    pub fn release(&self) -> Option<Release> {
        if !self.pair.is_here() {
            return Some(Release::Forked);
        }
        let held = |(_, slot): &(u32, u8)| !has_released(&self.pair, self.side, *slot);
        let assisted = self.assisted.as_ref().is_some_and(|it| !it.has_released(&self.pair, self.side));
        if !assisted && !self.pulls.iter().any(held) {
            return Some(Release::LetGo);
        }
        let ended = self.process.as_ref().and_then(|process| process.ended());
        ended.map(|_| Release::ProcessEnded)
    }
}

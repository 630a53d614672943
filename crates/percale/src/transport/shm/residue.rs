//! What is left of a link whose peer may still be copying to our memory.
//!
//! A peer that was stopped in the middle of a chunk goes on with it once it is continued, whatever became of the connection. So the
//! operations whose memory that is do not end before the peer has let go of it, or its process has ended: see [`Release`]. That the
//! connection ended, for whatever reason, is neither.
//!
//! One link leaves at most the pulls that have a slot (eight) and one long access behind. They stay until their release: as long as the
//! peer's process lives and does not answer. So an endpoint makes no further connections with a process that keeps too many of them.

use std::sync::Arc;

use super::direct::Assisted;
use super::pair::Pair;
use super::transfer::has_let_go;
use crate::transport::peer_process::PeerProcess;

/// The event after which a peer can have no copy into our memory under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// The peer wrote so, after its last copy: of each of these operations, or of the connection as a whole.
    LetGo,
    /// Its process has exited or executes another program.
    ProcessEnded,
    /// This process is a fork of the one that the memory was lent in, and has memory of its own.
    Forked,
}

/// The operations of an ended link whose memory the peer may still be copying to.
#[derive(Debug)]
pub(crate) struct Residue {
    pub(super) pair: Arc<Pair>,
    pub(super) side: usize,
    /// Token and slot of the pulls that the peer may be copying for.
    pub(super) pulls: Vec<(u32, u8)>,
    /// A long access that the peer may be helping with.
    pub(super) assisted: Option<Assisted>,
    pub(super) process: Option<Arc<PeerProcess>>,
}

impl Residue {
    /// Whether the peer is this process. Neither has ended, as far as is known here, so their numbers tell them apart.
    pub(crate) fn is_of(&self, process: &PeerProcess) -> bool {
        self.process.as_ref().is_some_and(|kept| kept.pid() == process.pid())
    }

    /// For tests: what is released when this is.
    #[cfg(test)]
    pub(crate) fn twin(&self) -> Self {
        let (pair, pulls, process) = (Arc::clone(&self.pair), self.pulls.clone(), self.process.clone());
        Self { pair, side: self.side, pulls, assisted: None, process }
    }

    /// Whether the peer may be copying for the pull of this token.
    pub(crate) fn holds_pull(&self, token: u32) -> bool {
        self.pulls.iter().any(|(held, _)| *held == token)
    }

    /// The long access that the peer may be copying for.
    pub(crate) fn held_access(&self) -> Option<u32> {
        self.assisted.as_ref().map(Assisted::token)
    }

    /// The event after which the peer can touch none of it. Once there is one, that is final.
    pub(crate) fn release(&self) -> Option<Release> {
        if !self.pair.is_here() {
            return Some(Release::Forked);
        }
        let held = |(_, slot): &(u32, u8)| !has_let_go(&self.pair, self.side, *slot);
        let assisted = self.assisted.as_ref().is_some_and(|it| !it.has_let_go(&self.pair, self.side));
        if !assisted && !self.pulls.iter().any(held) {
            return Some(Release::LetGo);
        }
        let ended = self.process.as_ref().and_then(|process| process.ended());
        ended.map(|_| Release::ProcessEnded)
    }
}

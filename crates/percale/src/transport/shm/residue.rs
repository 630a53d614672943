//! What is left of a link that broke while its peer was copying into our memory.
//!
//! A peer that was stopped in the middle of a chunk goes on with it once it is continued, whatever became of the link. So the
//! operations whose memory that is do not end before the peer has let go of it, or its process is dead.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::death::{Death, has_ended};
use super::direct::Assisted;
use super::pair::Pair;
use super::transfer::has_let_go;

/// See the module.
#[derive(Debug)]
pub(crate) struct Residue {
    pub(super) pair: Arc<Pair>,
    pub(super) side: usize,
    /// Token and slot of the pulls that the peer may be copying for.
    pub(super) pulls: Vec<(u32, u8)>,
    /// A long access that the peer may be helping with.
    pub(super) assisted: Option<Assisted>,
    pub(super) death: Arc<Death>,
    pub(super) pidfd: Option<Arc<OwnedFd>>,
}

impl Residue {
    /// Whether the peer may be copying for the pull of this token.
    pub(crate) fn holds_pull(&self, token: u32) -> bool {
        self.pulls.iter().any(|(held, _)| *held == token)
    }

    /// The long access that the peer may be copying for.
    pub(crate) fn held_access(&self) -> Option<u32> {
        self.assisted.as_ref().map(Assisted::token)
    }

    /// Whether the peer has let go of everything. One "yes" is final.
    pub(crate) fn is_over(&self) -> bool {
        // In a forked child the pair is not mapped, and the memory is another.
        if !self.pair.is_here() || self.death.is_dead() {
            return true;
        }
        let claims = self.pair.claims(self.side);
        let held =
            |(_, slot): &(u32, u8)| self.pair.slot(self.side, usize::from(*slot)).is_some_and(|s| !has_let_go(s));
        let held = self.pulls.iter().any(held) || self.assisted.as_ref().is_some_and(|it| it.end(claims).is_none());
        !held || has_ended(self.pidfd.as_ref())
    }
}

//! Operations that wait until other processes let go of memory: those on dead keys ([`windows`](super::windows)), and those of a broken
//! connection with memory that the peer may still be writing.
//!
//! Operations of a broken connection have failed, but do not end before the peer has let go of their memory, or its process is dead: until
//! then the memory must not be reused. If the endpoint is closed before that, they are kept [`aside`](super::aside).

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use super::core::Core;
use super::remote::Execution;
use super::types::{Pull, Side};
use super::windows::Dying;
use crate::completion::entry::{ErrorCode, ErrorEntry};
use crate::transport::Connection;
use crate::transport::peer_process::PeerProcess;
use crate::transport::shm::Residue;

/// The maximum number of ended connections of one peer process that hold memory until the process lets go of it. A process can
/// connect again and again, from threads that run while another of its threads is stopped, or with malicious intent.
pub(super) const KEPT: usize = 16;

/// Operations that wait until another process lets go of memory.
#[derive(Debug)]
pub(crate) enum Left {
    /// They wait for the peer of a broken connection.
    Link(Box<Broken>),
    /// They wait for the users of a dead key.
    Window(Dying),
}

impl Left {
    fn is_over(&self) -> bool {
        match self {
            Self::Link(broken) => broken.residue.release().is_some(),
            Self::Window(dying) => dying.is_over(),
        }
    }
}

/// Operations that wait for the peer of a broken connection.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(super) from: Connection,
    pub(super) residue: Residue,
    pub(super) pulls: Vec<Pull>,
    pub(super) accesses: Vec<Execution>,
    pub(super) error: ErrorCode,
    pub(super) why: String,
}

impl Core {
    /// Returns whether this peer process keeps memory of so many ended connections that no further one is made with it over shared memory.
    /// Each ended connection may keep receives and accesses, and its part of the memory of the pair.
    pub(super) fn keeps_too_much(&self, process: &PeerProcess) -> bool {
        let kept = |left: &&Left| matches!(left, Left::Link(broken) if broken.residue.is_of(process));
        self.left.len() >= KEPT && self.left.iter().filter(kept).count() >= KEPT
    }

    /// Takes the operations with memory that the peer of a broken link may still be writing out of those that are about to fail.
    #[cold]
    pub(super) fn leave_behind(&mut self, from: Connection, residue: Residue, error: ErrorCode, why: &str) {
        let mut pulls = Vec::new();
        let mut accesses: Vec<_> = residue.held_access().and_then(|id| self.remote.find(id)).into_iter().collect();
        for pull in self.messages.take_pulls_of(from, |token| residue.holds_pull(token)) {
            match pull {
                Pull::Fetch { part, .. } => accesses.extend(self.remote.access_of_part(part)),
                pull => pulls.push(pull),
            }
        }
        // An access of which several parts are held is found once.
        let accesses = accesses.into_iter().filter_map(|id| self.remote.remove(id)).collect();
        let why = why.to_owned();
        self.left.push(Left::Link(Box::new(Broken { from, residue, pulls, accesses, error, why })));
    }

    /// Ends the operations with memory that no peer can be writing any more. Returns whether anything ended.
    #[cold]
    pub(super) fn settle_left(&mut self) -> bool {
        let over: Vec<Left> = self.left.extract_if(.., |left| left.is_over()).collect();
        let any = !over.is_empty();
        for left in over {
            let Broken { from, pulls, accesses, error, why, .. } = match left {
                Left::Link(broken) => *broken,
                Left::Window(dying) => {
                    self.died(dying);
                    continue;
                }
            };
            for pull in pulls {
                if let Pull::Message { head, receive, .. } = pull {
                    self.receive_failed(from, &head, &receive, error, &why);
                }
            }
            for access in accesses {
                let failure = ErrorEntry::new(access.entry(), error).with_text(why.clone());
                self.fail(Side::Transmit, access.notify(), failure);
            }
        }
        any
    }
}

//! Spinning on the rings for messages that are about to arrive, for callers that poll and do something else between two polls.

use std::time::{Duration, Instant};

use super::Engine;
use crate::transport::any::AnyLink;

/// Polls of the rings between two readings of the clock. A reading costs as much as several polls.
const LOOKS: u32 = 8;

/// In the decision to yield the processor, an unsuccessful wait counts as this number of polls.
const VAIN_LOOKS: u32 = 32;

impl Engine {
    /// Spins on the rings of shared memory for at most this time. Returns whether something arrived, which the next progress handles.
    /// Returns false at once if something else must not wait for that (a socket, bytes that have not left yet, other threads that need the
    /// processor), or if there is no such ring.
    ///
    /// This only polls: it makes no system call and writes nothing.
    #[inline(never)]
    pub(crate) fn linger(&mut self, at_most: Duration) -> bool {
        if !self.process.is_here()
            || !self.core.has_room()
            || self.core.peers.has_actions()
            || !self.poller.may_linger()
        {
            return false;
        }
        // The first polls come before the first reading of the clock, which would delay a message that arrives soon.
        let mut start = None;
        loop {
            for _ in 0..LOOKS {
                match self.something_came() {
                    Some(false) => std::hint::spin_loop(),
                    Some(true) => return true,
                    None => return false,
                }
            }
            if start.get_or_insert_with(Instant::now).elapsed() >= at_most {
                self.found_nothing(VAIN_LOOKS);
                return false;
            }
        }
    }

    /// Returns whether a hot link has something for this endpoint, or `None` if no hot link is a shared-memory link.
    #[inline]
    fn something_came(&mut self) -> Option<bool> {
        let mut any = None;
        for &slot in &self.poller.hot {
            if let Some(Some(AnyLink::Shm(link))) = self.links.get_mut(slot as usize) {
                if !link.is_quiet() {
                    return Some(true);
                }
                any = Some(false);
            }
        }
        any
    }
}

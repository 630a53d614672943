//! Watching for what is about to come, for those who poll and do something else between two polls.

use std::time::{Duration, Instant};

use super::Engine;
use crate::transport::any::AnyLink;

/// Looks between two readings of the clock, which costs as much as several looks.
const LOOKS: u32 = 8;

/// Looks for which a watch in vain counts, when its caller may have to offer the processor.
const VAIN_LOOKS: u32 = 32;

impl Engine {
    /// Watches the rings of shared memory for at most so long: whether something came, which the next progress deals with. False
    /// at once where something else must not wait for that (a socket, what has not left yet, other threads that want the processor), or where
    /// there is no such ring.
    ///
    /// Nothing is done but to look: no system call, nothing is written.
    #[inline(never)]
    pub(crate) fn linger(&mut self, at_most: Duration) -> bool {
        if !self.process.is_here() || !self.core.has_room() || !self.core.outbox.is_empty() || !self.poller.may_linger()
        {
            return false;
        }
        // What comes soon is not kept waiting by a reading of the clock: the first looks go before it.
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

    /// Whether a hot link has something for us; `None` if none is of shared memory.
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

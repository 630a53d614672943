//! Spins on the rings for messages that are about to arrive. This is for applications that poll and do other work
//! between two polls.
//!
//! [`LingerPolicy`](super::linger_policy::LingerPolicy) decides when to do so.

use std::time::{Duration, Instant};

use super::Engine;
use super::linger_policy::AT_MOST;
use crate::completion::entry::Entry;
use crate::completion::ring::ErrorAvailable;
use crate::transport::any::AnyLink;

/// Polls of the rings between two readings of the clock. A reading costs as much as several polls.
const LOOKS: u32 = 8;

/// In the decision to yield the processor, an unsuccessful wait counts as this number of polls.
const UNSUCCESSFUL_LOOKS: u32 = 32;

impl Engine {
    /// Polls for results. If there are none, while a receive is posted and the application seems to wait, this watches
    /// the rings for a short time and polls again.
    #[inline(always)]
    pub(crate) fn poll_lingering(&mut self, entries: &mut [Entry]) -> Result<usize, ErrorAvailable> {
        match self.poll(entries) {
            Ok(0) if self.linger_policy.is_over() || entries.is_empty() => Ok(0),
            Ok(0) => self.linger_and_poll(entries),
            found => {
                self.linger_policy.found();
                found
            }
        }
    }

    /// Continues [`poll_lingering`](Self::poll_lingering) when nothing was found.
    #[inline(never)]
    fn linger_and_poll(&mut self, entries: &mut [Entry]) -> Result<usize, ErrorAvailable> {
        // Open MPI 4 reads until no result is left. That is not a wait, unless a receive is posted.
        if !self.has_posted_receives() || !self.linger_policy.is_worthwhile() {
            return Ok(0);
        }
        let arrived = self.linger(AT_MOST);
        self.linger_policy.ended(arrived);
        if arrived { self.poll(entries) } else { Ok(0) }
    }

    /// Returns whether a receive is posted that has no message yet.
    #[inline]
    pub(crate) fn has_posted_receives(&self) -> bool {
        self.core.messages.has_receives()
    }

    /// Spins on the rings of shared memory for at most this time. Returns whether something arrived, which the next
    /// progress handles. Returns false at once if other work must not wait for that (a socket, bytes that have not left
    /// yet, other threads that need the processor), or if there is no such ring.
    ///
    /// While it spins, this makes no system call and writes no shared memory.
    #[inline(never)]
    pub(super) fn linger(&mut self, at_most: Duration) -> bool {
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
                self.found_nothing(UNSUCCESSFUL_LOOKS);
                return false;
            }
        }
    }

    /// Returns whether a hot link has a frame for this endpoint, or `None` if no hot link is a shared-memory link.
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

//! Reading results, and the progress that is made for that.
//!
//! Whoever reads polls, mostly for a short message over shared memory that is yet to come. What it finds is copied to its
//! receive and reported to the reader at once: it does not pass through the queue. And while nothing comes, a reading is
//! mostly no more than a *glance* at the rings, so that the next one sees sooner what came meanwhile; everything else gets its
//! turn with each [`GLANCES`]th.

use super::Engine;
use crate::completion::entry::Entry;
use crate::completion::ring::ErrorAvailable;
use crate::endpoint::spin::{self, InVain};
use crate::transport::Connection;
use crate::transport::any::AnyLink;
use crate::transport::shm::Glance;

/// Reads of results that wait, after which progress is made.
pub(super) const PATIENCE: u32 = 16;

/// Messages that one reading takes at most, as of links that are polled.
const BATCH: usize = 16;

/// Of so many reads that find nothing, one makes progress.
const GLANCES: u32 = 4;

/// Looks at a ring that take as long as a read of a socket.
const SOCKET_LOOKS: u32 = 16;

/// What a look at the rings found.
enum Found {
    /// Nothing has arrived.
    Nothing,
    /// A message, which was taken. It came alone.
    Message,
    /// A message, which was taken; others may be there.
    Messages,
    /// What only progress deals with.
    More,
}

impl Engine {
    /// Reads results from the endpoint's own queue. Progress is made first where none wait, where it is owed, and in any case
    /// every [`PATIENCE`]th time: so who reads what waits is not kept, and who always finds something makes progress too.
    #[inline(always)]
    pub(crate) fn poll(&mut self, entries: &mut [Entry]) -> Result<usize, ErrorAvailable> {
        self.reads += 1;
        let empty = self.core.queue.is_empty();
        if empty && self.reads < PATIENCE {
            match self.look(entries) {
                Found::Message => return Ok(1),
                Found::Messages if entries.len() > 1 => return Ok(self.take_more(entries)),
                Found::Messages => return Ok(1),
                Found::Nothing if self.reads < self.glances => {
                    // Seen between distant cores: without this a line often takes three transfers instead of two. Probably it is asked
                    // for again before its mark is written, and has to come once more.
                    std::hint::spin_loop();
                    return Ok(0);
                }
                Found::Nothing | Found::More => {}
            }
        }
        if empty || self.reads >= PATIENCE || !self.poller.busy.is_empty() {
            self.progress_for_read();
        }
        self.core.queue.read(entries)
    }

    /// Glances at the rings of hot links for a message that can be reported at once, while no results wait.
    #[inline(always)]
    fn look(&mut self, entries: &mut [Entry]) -> Found {
        let Some(first) = entries.first_mut() else { return Found::More };
        match *self.poller.hot.as_slice() {
            [] => Found::More,
            [only] => self.look_at(only, first),
            _ => self.look_in_turn(first),
        }
    }

    /// As [`look`](Self::look), at one of them.
    #[inline(always)]
    fn look_at(&mut self, slot: Connection, into: &mut Entry) -> Found {
        // A forked child does not come here (`Reach::run`), and a closed endpoint has no links.
        let Self { core, links, poller, .. } = self;
        let Some(Some(AnyLink::Shm(link))) = links.get_mut(slot as usize) else { return Found::More };
        let message = match link.glance() {
            Glance::Message(message) => message,
            Glance::Nothing => return Found::Nothing,
            Glance::More => return Found::More,
        };
        if !core.message_at_once(slot, message.head(), link.payload(&message), into) {
            return Found::More;
        }
        poller.heard(slot);
        if link.take(&message) { Found::Messages } else { Found::Message }
    }

    /// As [`look`](Self::look), at several: next time it begins behind the one that had something.
    #[inline(never)]
    fn look_in_turn(&mut self, into: &mut Entry) -> Found {
        let mut found = Found::More;
        for _ in 0..self.poller.hot.len() {
            let slot = self.poller.next_turn();
            found = self.look_at(slot, into);
            if !matches!(found, Found::Nothing) {
                break;
            }
        }
        found
    }

    /// A message was taken that did not come alone: takes as many more as there are, and as are wanted. How many it is then.
    #[inline(never)]
    fn take_more(&mut self, entries: &mut [Entry]) -> usize {
        let most = entries.len().min(BATCH);
        for (count, entry) in entries[..most].iter_mut().enumerate().skip(1) {
            if !matches!(self.look(std::slice::from_mut(entry)), Found::Message | Found::Messages) {
                return count;
            }
        }
        most
    }

    /// The next reading makes progress whatever waits: something was sent that leaves, or that the peer hears of, only then.
    /// (What is reported as sent arrives without us from the moment that this can be read.)
    #[inline]
    pub(super) const fn owe_progress(&mut self) {
        self.reads = PATIENCE;
    }

    // Out of line, so that reading what waits need not save what this uses.
    #[inline(never)]
    fn progress_for_read(&mut self) {
        (self.reads, self.glances) = (0, 0);
        if self.progress() {
            self.in_vain = InVain::NONE;
        } else {
            self.found_nothing(if self.poller.looks_at_sockets() { SOCKET_LOOKS } else { GLANCES });
        }
    }

    /// A read that cost as much time as `looks` looks at a ring found nothing: others may want the processor.
    #[inline(never)]
    pub(super) fn found_nothing(&mut self, looks: u32) {
        if self.poller.was_heard() {
            self.in_vain = InVain::NONE; // A message was taken from its ring, without progress.
        }
        if self.in_vain.is_offer_due(looks) {
            self.poller.set_crowded(spin::is_crowded());
            self.core.operations.offer_processor();
        }
    }

    /// Everything was looked at: whether the next readings may leave it at a glance.
    #[inline]
    pub(super) fn glance_next(&mut self) {
        if self.poller.is_calm() && self.core.outbox.is_empty() && !self.attentive {
            self.glances = GLANCES;
        }
    }
}

//! Reads results, and makes the progress that this requires.
//!
//! A reader polls, mostly for a short message over shared memory that has not arrived yet. Such a message is copied to
//! its receive and reported to the reader at once, without passing through the queue. While nothing arrives, most reads
//! check only the rings, so that the next read sees a message sooner. Everything else is polled at every
//! [`EMPTY_READS_PER_PROGRESS`]th read.

use super::Engine;
use super::core::Core;
use super::waiting::EMPTY_READS_PER_PROGRESS;
use crate::completion::entry::Entry;
use crate::completion::ring::ErrorAvailable;
use crate::endpoint::operations::{MakeResult, OperationId};
use crate::local_memory::volatile::View;
use crate::system::spin;
use crate::transport::ConnectionId;
use crate::transport::any::AnyLink;
use crate::transport::shm::PeekResult;
use crate::wire::head::Head;

/// The maximum number of messages that one read takes from the rings. One poll of a link has the same maximum.
const BATCH: usize = 16;

/// The number of polls of a ring that take as long as a read of a socket.
const SOCKET_LOOKS: u32 = 16;

/// The result of a poll of the rings.
enum RingPollResult {
    /// Nothing has arrived.
    Nothing,
    /// A message, which was taken. No other message arrived with it.
    Message,
    /// A message, which was taken. There may be others.
    Messages,
    /// A frame that only progress can handle.
    More,
}

/// Delivers a message that was found in a ring. This is a trait instead of a closure, because a closure with several
/// callers is not inlined: about 40 instructions for each message.
trait Deliver {
    /// Returns whether the message was delivered. If not, it stays in its ring.
    fn call(self, core: &mut Core, from: ConnectionId, head: &Head, payload: View<'_>) -> bool;
}

/// Returns the message's completion to the reader of the queue.
struct ReturnEntry<'e>(&'e mut Entry);

impl Deliver for ReturnEntry<'_> {
    #[inline(always)]
    fn call(self, core: &mut Core, from: ConnectionId, head: &Head, payload: View<'_>) -> bool {
        core.message_at_once(from, head, payload, self.0)
    }
}

/// Reports the message to its queue or its operation.
struct Report;

impl Deliver for Report {
    #[inline(always)]
    fn call(self, core: &mut Core, from: ConnectionId, head: &Head, payload: View<'_>) -> bool {
        core.message_in_place(from, head, payload)
    }
}

/// Like [`Report`], but inlined, for a loop over many messages.
struct ReportInLoop;

impl Deliver for ReportInLoop {
    #[inline(always)]
    fn call(self, core: &mut Core, from: ConnectionId, head: &Head, payload: View<'_>) -> bool {
        core.report_in_place(from, head, payload)
    }
}

/// Like [`Report`], but returns the result to the thread that waits for the operation.
struct ReturnResult<'r, M: MakeResult> {
    id: OperationId,
    make: &'r mut M,
    into: &'r mut Option<M::Result>,
}

impl<M: MakeResult> Deliver for ReturnResult<'_, M> {
    #[inline(always)]
    fn call(self, core: &mut Core, from: ConnectionId, head: &Head, payload: View<'_>) -> bool {
        core.message_for(from, head, payload, self.id, (self.make, self.into))
    }
}

impl Engine {
    /// Reads results from the endpoint's own queue. Makes progress first if the queue is empty and a check of the rings
    /// alone is not enough, if progress is due or a link is busy, and in any case at every 16th call. So a read of
    /// waiting results is not delayed, and a reader that always finds results makes progress too.
    #[inline(always)]
    pub(crate) fn poll(&mut self, entries: &mut [Entry]) -> Result<usize, ErrorAvailable> {
        self.pace.count();
        let empty = self.core.reporting.is_empty();
        if empty && !self.pace.is_progress_due() {
            match self.poll_rings(entries) {
                RingPollResult::Message => return Ok(1),
                RingPollResult::Messages if entries.len() > 1 => return Ok(self.take_more(entries)),
                RingPollResult::Messages => return Ok(1),
                RingPollResult::Nothing if self.pace.may_peek_only() => {
                    // Measured between distant cores: without this hint a cache line often takes three transfers
                    // instead of two. The line is probably requested again before its mark is written, and has to be
                    // transferred once more. The hint is given only for a while after a message, because a client that
                    // polls after each step of its own work loses time (HPCC's MPIRandomAccess on two ranks: 1.75
                    // s with the hint at every read, 1.38 s like this).
                    if self.poller.was_recently_active() {
                        std::hint::spin_loop();
                    }
                    return Ok(0);
                }
                RingPollResult::Nothing | RingPollResult::More => {}
            }
        }
        if empty || self.pace.is_progress_due() || !self.poller.busy.is_empty() {
            self.progress_for_read();
        }
        self.core.reporting.read(entries)
    }

    /// Makes progress for a thread that waits for a safe operation, or for anything else that is not a result of the
    /// queue. Returns whether everything was polled. Most calls check only the rings, as those of [`poll`](Self::poll).
    #[inline]
    pub(crate) fn poll_for_wait(&mut self) -> bool {
        self.poll_with(Report)
    }

    /// Like [`poll_for_wait`](Self::poll_for_wait), for a thread that waits for the operation `id`. If that has
    /// succeeded, its result is in `into` afterwards. Returns whether everything was polled.
    #[inline(never)]
    pub(crate) fn poll_for_result<M: MakeResult>(
        &mut self,
        id: OperationId,
        make: &mut M,
        into: &mut Option<M::Result>,
    ) -> bool {
        let polled = self.poll_with(ReturnResult { id, make, into });
        if into.is_none() {
            *into = self.core.operations.take_success(id, make);
        }
        polled
    }

    #[inline(always)]
    fn poll_with(&mut self, deliver: impl Deliver) -> bool {
        self.pace.count();
        if !self.pace.is_progress_due() {
            match self.look_for_others(deliver) {
                RingPollResult::Message => return false,
                RingPollResult::Messages => {
                    self.report_more();
                    return false;
                }
                RingPollResult::Nothing if self.pace.may_peek_only() => {
                    if self.poller.was_recently_active() {
                        std::hint::spin_loop(); // See `poll`.
                    }
                    return false;
                }
                RingPollResult::Nothing | RingPollResult::More => {}
            }
        }
        self.pace.begin_progress();
        if self.progress() {
            self.pace.found();
        }
        true
    }

    /// Reports further messages after the first one. Later waits for them return immediately.
    #[inline(never)]
    fn report_more(&mut self) {
        for _ in 1..BATCH {
            if !matches!(self.look_for_others(ReportInLoop), RingPollResult::Messages) {
                break;
            }
        }
    }

    /// Like [`poll_rings`](Self::poll_rings), but a message is reported to its queue or its operation.
    #[inline(always)]
    fn look_for_others(&mut self, deliver: impl Deliver) -> RingPollResult {
        match *self.poller.hot.as_slice() {
            [only] => self.look_with(only, deliver),
            _ => RingPollResult::More,
        }
    }

    /// Makes progress if it is owed, or if many reads made none.
    #[inline]
    pub(crate) fn progress_if_due(&mut self) {
        if self.pace.is_progress_due() || !self.poller.busy.is_empty() {
            self.pace.begin_progress();
            self.progress();
        }
    }

    /// Like [`progress_if_due`](Self::progress_if_due), for a thread that takes a result that is waiting. It counts a
    /// read, so a thread that always finds results makes progress too.
    #[inline]
    pub(crate) fn progress_beside_result(&mut self) {
        self.pace.count();
        self.progress_if_due();
    }

    /// Checks the rings of hot links for a message that can be reported at once, while no results wait.
    #[inline(always)]
    fn poll_rings(&mut self, entries: &mut [Entry]) -> RingPollResult {
        let Some(first) = entries.first_mut() else { return RingPollResult::More };
        match *self.poller.hot.as_slice() {
            [] => RingPollResult::More,
            [only] => self.poll_ring(only, first),
            _ => self.poll_rings_in_turn(first),
        }
    }

    /// Like [`poll_rings`](Self::poll_rings), but for one link.
    #[inline(always)]
    fn poll_ring(&mut self, slot: ConnectionId, into: &mut Entry) -> RingPollResult {
        self.look_with(slot, ReturnEntry(into))
    }

    /// Checks the ring of a link for a message that `deliver` accepts.
    #[inline(always)]
    fn look_with(&mut self, slot: ConnectionId, deliver: impl Deliver) -> RingPollResult {
        // This code does not run in a forked child (`Reach::run`), and a closed endpoint has no links.
        let Self { core, links, poller, .. } = self;
        let Some(Some(AnyLink::Shm(link))) = links.get_mut(slot as usize) else { return RingPollResult::More };
        let message = match link.peek() {
            PeekResult::Message(message) => message,
            PeekResult::Nothing => return RingPollResult::Nothing,
            PeekResult::More => return RingPollResult::More,
        };
        if !deliver.call(core, slot, message.head(), link.payload(&message)) {
            return RingPollResult::More;
        }
        poller.received(slot);
        if link.take(&message) { RingPollResult::Messages } else { RingPollResult::Message }
    }

    /// Like [`poll_rings`](Self::poll_rings), but for several links. The next call begins after the link that had a
    /// frame.
    #[inline(never)]
    fn poll_rings_in_turn(&mut self, into: &mut Entry) -> RingPollResult {
        let mut found = RingPollResult::More;
        for _ in 0..self.poller.hot.len() {
            let slot = self.poller.next_turn();
            found = self.poll_ring(slot, into);
            if !matches!(found, RingPollResult::Nothing) {
                break;
            }
        }
        found
    }

    /// Takes further messages after the first one, at most as many as `entries` can hold. Returns the total number.
    #[inline(never)]
    fn take_more(&mut self, entries: &mut [Entry]) -> usize {
        let most = entries.len().min(BATCH);
        for (count, entry) in entries[..most].iter_mut().enumerate().skip(1) {
            if !matches!(
                self.poll_rings(std::slice::from_mut(entry)),
                RingPollResult::Message | RingPollResult::Messages
            ) {
                return count;
            }
        }
        most
    }

    /// Makes the next read make progress even if results wait. This is called after a send if its bytes leave only with
    /// that progress, or if the peer is notified only then. (Once the completion of a send can be read, the message
    /// arrives without further progress of this endpoint.)
    #[inline]
    pub(super) const fn require_progress(&mut self) {
        self.pace.require_progress();
    }

    // Not inlined, so that a read of waiting results need not save the registers that this uses.
    #[inline(never)]
    fn progress_for_read(&mut self) {
        self.pace.begin_progress();
        if self.poller.is_crowded() {
            spin::begins();
        }
        if self.progress() {
            self.pace.found();
        } else {
            self.found_nothing(if self.poller.looks_at_sockets() { SOCKET_LOOKS } else { EMPTY_READS_PER_PROGRESS });
        }
    }

    /// Handles a read that found nothing and took as long as `looks` polls of a ring. Yields the processor from time to
    /// time, because other threads may need it. Yields less often if other threads could run between two reads because
    /// the caller yielded or did other work.
    #[inline(never)]
    pub(super) fn found_nothing(&mut self, looks: u32) {
        if self.poller.was_active() {
            self.pace.found(); // A message was taken from its ring, without progress.
        }
        if self.pace.is_offer_due(looks) {
            self.poller.set_crowded(spin::is_crowded());
            self.core.operations.offer_processor();
        }
    }

    /// Decides, after everything was polled, whether the next reads may check only the rings.
    #[inline]
    pub(super) fn allow_peeks_if_calm(&mut self) {
        if self.poller.is_calm() && !self.core.peers.has_actions() && !self.optional_work.any() {
            self.pace.allow_peeks();
        }
    }
}

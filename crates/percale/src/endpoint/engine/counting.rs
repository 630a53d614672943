//! Where results go, and counters by kind of operation (fi_endpoint(3), fi_ep_bind; fi_cntr(3)).
//!
//! Operations that this endpoint begins, and messages that it receives, are counted when they are reported, by the flags of their
//! completions. Accesses of peers to local regions are counted where this endpoint executes them. Peers notify it of accesses that it does
//! not see ([`Kind::Wrote`](crate::wire::head::Kind::Wrote)), because it asked them to when they connected
//! ([`Kind::Counts`](crate::wire::head::Kind::Counts)).

use std::sync::Arc;

use super::Engine;
use super::core::Core;
use crate::completion::counter::Counter;
use crate::completion::entry::CompletionFlags;
use crate::completion::queue::CompletionQueue;
use crate::completion::source::Source;
use crate::endpoint::count::Counted;
use crate::endpoint::submissions::Submissions;
use crate::endpoint::work::PostError;
use crate::local_memory::atomic::{AtomicOp, Kind as AtomicKind};
use crate::region::Registered;
use crate::wire::head::{Counts, Flags, Head, Kind as Frame};

/// Where completions of one direction go besides safe operations.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// The shared queue. Without one, completions go to the endpoint's own queue.
    pub(crate) queue: Option<CompletionQueue>,
    /// Whether some completions do not simply go to the endpoint's own queue. Then the fast paths are not used.
    pub(crate) detour: bool,
    /// Whether some of the operations are counted too, or were begun by counters.
    pub(crate) counted: bool,
}

impl Reports {
    pub(crate) const fn new(queue: Option<CompletionQueue>, counted: bool) -> Self {
        Self { detour: queue.is_some() || counted, queue, counted }
    }

    /// Sets whether the fast paths must not be used for another reason.
    pub(crate) const fn detour(&mut self, other: bool) {
        self.detour = self.queue.is_some() || self.counted || other;
    }
}

impl Core {
    /// Returns the shared queues and the counters to which the endpoint reports.
    pub(crate) fn reports_to(&self) -> Vec<Source> {
        let queues = [&self.transmit, &self.receive].into_iter().filter_map(|reports| reports.queue.as_ref());
        queues.map(Source::from).chain(self.counters.all().map(Source::from)).collect()
    }
}

/// The counters of an endpoint; several may be the same.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    /// Whether regions count the accesses that peers make through the endpoint.
    pub(crate) regions: bool,
    pub(crate) sends: Option<Arc<Counter>>,
    pub(crate) receives: Option<Arc<Counter>>,
    /// Reads, and atomic operations that fetch.
    pub(crate) reads: Option<Arc<Counter>>,
    /// Writes, and atomic operations that fetch nothing.
    pub(crate) writes: Option<Arc<Counter>>,
    /// Reads, and atomic operations that fetch, of local regions by peers.
    pub(crate) remote_reads: Option<Arc<Counter>>,
    /// Writes, and atomic operations that fetch nothing, to local regions by peers.
    pub(crate) remote_writes: Option<Arc<Counter>>,
}

impl Default for Counters {
    fn default() -> Self {
        let [sends, receives, reads, writes, remote_reads, remote_writes] = [const { None }; 6];
        Self { regions: true, sends, receives, reads, writes, remote_reads, remote_writes }
    }
}

impl Counters {
    /// Returns whether any operation that the endpoint begins is counted.
    pub(crate) const fn count_transmits(&self) -> bool {
        self.sends.is_some() || self.reads.is_some() || self.writes.is_some()
    }

    /// Returns every counter. A counter may appear several times.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Counter>> {
        let Self { regions: _, sends, receives, reads, writes, remote_reads, remote_writes } = self;
        [sends, receives, reads, writes, remote_reads, remote_writes].into_iter().flatten()
    }

    /// Returns the counter of completions with these flags. A write of a peer (REMOTE_WRITE) is not counted as the receive of a message.
    pub(super) fn of(&self, flags: CompletionFlags) -> Option<&Arc<Counter>> {
        let kinds = [
            (CompletionFlags::SEND, &self.sends),
            (CompletionFlags::RECEIVE, &self.receives),
            (CompletionFlags::READ, &self.reads),
            (CompletionFlags::WRITE, &self.writes),
        ];
        kinds.into_iter().find(|(kind, _)| flags.contains(*kind))?.1.as_ref()
    }

    #[inline(never)]
    pub(super) fn succeeded(&self, flags: CompletionFlags, inside: &Submissions) {
        if let Some(counter) = self.of(flags) {
            inside.counting(|| counter.add(1));
        }
    }

    #[inline(never)]
    pub(super) fn failed(&self, flags: CompletionFlags, inside: &Submissions) {
        if let Some(counter) = self.of(flags) {
            inside.counting(|| counter.add_error(1));
        }
    }

    /// Returns which accesses of peers are counted, apart from those that regions count.
    pub(super) fn remote(&self) -> Counts {
        let mut counts = Counts::empty();
        counts.set(Counts::WRITES, self.remote_writes.is_some());
        counts.set(Counts::READS, self.remote_reads.is_some());
        counts
    }
}

/// Returns whether a request is all of its access. If an access has several parts, the initiator sends a notice when all have ended.
pub(super) const fn is_whole(head: &Head) -> bool {
    !head.flags.contains(Flags::PART)
}

/// Returns which counters count an atomic operation at its target.
pub(super) fn counts_of_atomic(op: AtomicOp, kind: AtomicKind) -> Counts {
    match (op, kind) {
        (AtomicOp::Read, _) => Counts::READS,
        (_, AtomicKind::Plain) => Counts::REGION | Counts::WRITES,
        (_, AtomicKind::Fetch | AtomicKind::Compare) => Counts::REGION | Counts::READS,
    }
}

impl Core {
    /// Counts an access of a peer to this region. A counter that belongs both to the region and to the endpoint counts it once.
    pub(super) fn count_access(&self, region: Option<&Registered>, counts: Counts) {
        let wanted = self.counters.regions && counts.contains(Counts::REGION);
        let regions = region.filter(|_| wanted).map(Registered::counters);
        if let Some(counters) = regions {
            counters.each(|counter| self.submissions.counting(|| counter.add(1)));
        }
        let Counters { remote_reads, remote_writes, .. } = &self.counters;
        for (kind, counter) in [(Counts::WRITES, remote_writes), (Counts::READS, remote_reads)] {
            if let Some(counter) = counter
                && counts.contains(kind)
                && !regions.is_some_and(|others| others.have(counter))
            {
                self.submissions.counting(|| counter.add(1));
            }
        }
    }
}

impl Engine {
    /// Counts operations of these kinds from now on.
    pub(crate) fn count(&mut self, what: Counted, counter: &Arc<Counter>) -> Result<(), PostError> {
        if !self.process.is_here() || self.is_closed() {
            return Err(self.refusal());
        }
        let counters = &mut self.core.counters;
        let mut places = [
            (Counted::SENDS, &mut counters.sends, "sends"),
            (Counted::RECEIVES, &mut counters.receives, "receives"),
            (Counted::READS, &mut counters.reads, "reads"),
            (Counted::WRITES, &mut counters.writes, "writes"),
            (Counted::REMOTE_READS, &mut counters.remote_reads, "peers' reads"),
            (Counted::REMOTE_WRITES, &mut counters.remote_writes, "peers' writes"),
        ];
        if let Some((.., kind)) = places.iter().find(|(kind, place, _)| what.contains(*kind) && place.is_some()) {
            return Err(PostError::HasCounter(kind));
        }
        for (kind, place, _) in &mut places {
            if what.contains(*kind) {
                **place = Some(Arc::clone(counter));
            }
        }
        self.counts_more();
        Ok(())
    }

    /// Applies counters that were added: operations that they count no longer use the fast paths, and peers send notices of the accesses
    /// that they make by themselves.
    fn counts_more(&mut self) {
        let Core { transmit, receive, counters, .. } = &mut self.core;
        (transmit.counted, receive.counted) =
            (transmit.counted || counters.count_transmits(), receive.counted || counters.receives.is_some());
        (transmit.detour, receive.detour) = (transmit.detour || transmit.counted, receive.detour || receive.counted);
        let counts = counters.remote();
        if !counts.is_empty() {
            for slot in self.core.peers.up().collect::<Vec<_>>() {
                self.core.reply(slot, Frame::Counts, counts.bits(), 0);
            }
            self.act();
        }
    }
}

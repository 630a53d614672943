//! Counts operations and accesses (fi_endpoint(3), fi_ep_bind; fi_cntr(3)).
//!
//! Operations that this endpoint begins, and messages that it receives, are counted when they end, by the flags of
//! their completions, whether or not the completion is reported. Accesses of peers to local regions are counted when
//! this endpoint executes them. Peers send a notice of accesses that this endpoint does not see
//! ([`FrameKind::Wrote`](crate::wire::head::FrameKind::Wrote)), because this endpoint requested such notices when the
//! connection was established or the counter was added ([`FrameKind::Counts`](crate::wire::head::FrameKind::Counts)).

use super::Engine;
use super::core::Core;
use crate::completion::counter::Counter;
use crate::endpoint::counted::Counted;
use crate::endpoint::work::PostError;
use crate::local_memory::atomic::{AtomicKind, AtomicOp};
use crate::region::Registered;
use crate::wire::head::{Counts, Flags, FrameKind as Frame, Head};

/// Returns whether a request is a complete access. If an access has several parts, the initiator sends a notice when
/// all have ended.
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
    /// Counts an access of a peer to this region. A counter that belongs both to the region and to the endpoint counts
    /// it once.
    pub(super) fn count_access(&self, region: Option<&Registered>, counts: Counts) {
        let own = self.reporting.counters();
        let regions = region.filter(|_| own.regions_count(counts)).map(Registered::counters);
        if let Some(counters) = regions {
            counters.each(|counter| self.triggered.submissions().counting(|| counter.add(1)));
        }
        for counter in own.of_accesses(counts) {
            if !regions.is_some_and(|others| others.have(counter)) {
                self.triggered.submissions().counting(|| counter.add(1));
            }
        }
    }
}

impl Engine {
    /// Counts operations of these kinds from now on.
    pub(crate) fn count(&mut self, what: Counted, counter: &Counter) -> Result<(), PostError> {
        if !self.process.is_here() || self.is_closed() {
            return Err(self.refusal());
        }
        let reporting = &mut self.core.reporting;
        if let Some(kind) = reporting.counters().has_any(what) {
            return Err(PostError::HasCounter(kind));
        }
        reporting.change_counters(|counters| counters.set(what, counter));
        self.counts_more();
        Ok(())
    }

    /// Makes peers send notices of the accesses that they make themselves, if counters that count them were added.
    fn counts_more(&mut self) {
        let counts = self.core.reporting.counters().remote();
        if !counts.is_empty() {
            for slot in self.core.peers.up().collect::<Vec<_>>() {
                self.core.peers.reply(slot, Frame::Counts, counts.bits(), 0);
            }
            self.act();
        }
    }
}

//! How much progress the calls of an endpoint make: how often a read of results does more than check the rings, and
//! whether progress includes work that most endpoints do not have.

use crate::system::spin::EmptyReads;

/// The number of reads of waiting results after which progress is made.
const READS_BEFORE_PROGRESS: u32 = 16;

/// One of this many reads that find nothing makes progress.
pub(in super::super) const EMPTY_READS_PER_PROGRESS: u32 = 4;

/// The pace at which reads of results make progress.
#[derive(Debug)]
pub(in super::super) struct ReadPace {
    /// Reads of the completion queue since the last progress.
    reads: u32,
    /// The number of these reads that may check the rings alone while nothing arrives.
    peeks: u32,
    /// The number of consecutive reads that found nothing.
    empty_reads: EmptyReads,
}

impl ReadPace {
    pub(in super::super) const fn new() -> Self {
        Self { reads: 0, peeks: 0, empty_reads: EmptyReads::NONE }
    }

    /// Counts one more read.
    #[inline(always)]
    pub(in super::super) const fn count(&mut self) {
        self.reads += 1;
    }

    /// Returns whether this read makes progress even if results wait.
    #[inline(always)]
    pub(in super::super) const fn is_progress_due(&self) -> bool {
        self.reads >= READS_BEFORE_PROGRESS
    }

    /// Returns whether this read may check the rings alone.
    #[inline(always)]
    pub(in super::super) const fn may_peek_only(&self) -> bool {
        self.reads < self.peeks
    }

    /// Makes the next read make progress even if results wait.
    #[inline(always)]
    pub(in super::super) const fn require_progress(&mut self) {
        self.reads = READS_BEFORE_PROGRESS;
    }

    /// Records that progress is made now. Every read is a full one until [`allow_peeks`](Self::allow_peeks).
    #[inline(always)]
    pub(in super::super) const fn begin_progress(&mut self) {
        (self.reads, self.peeks) = (0, 0);
    }

    /// Lets the next reads check the rings alone.
    #[inline]
    pub(in super::super) const fn allow_peeks(&mut self) {
        self.peeks = EMPTY_READS_PER_PROGRESS;
    }

    /// Records that a read found a result.
    #[inline]
    pub(in super::super) const fn found(&mut self) {
        self.empty_reads = EmptyReads::NONE;
    }

    /// Counts a read that found nothing and took as long as `looks` polls of a ring. Returns whether the thread should
    /// yield the processor to other threads.
    #[inline]
    pub(in super::super) fn is_offer_due(&mut self, looks: u32) -> bool {
        self.empty_reads.is_offer_due(looks)
    }
}

/// Work that only some endpoints have, and that their progress includes: for roles, for shared receive contexts, and
/// for operations that wait for counters.
#[derive(Debug)]
pub(in super::super) struct OptionalWork {
    /// Whether there is any of the following work.
    any: bool,
    role: bool,
    shares: bool,
    triggers: bool,
}

impl OptionalWork {
    /// Creates the state of an endpoint with a role that has work (`role`), or in a shared receive context (`shares`).
    pub(in super::super) const fn new(role: bool, shares: bool) -> Self {
        Self { any: role || shares, role, shares, triggers: false }
    }

    /// Returns whether there is such work.
    #[inline(always)]
    pub(in super::super) const fn any(&self) -> bool {
        self.any
    }

    /// Returns whether operations have ever waited for counters.
    #[inline]
    pub(in super::super) const fn triggers(&self) -> bool {
        self.triggers
    }

    /// Sets whether the endpoint's role has work.
    pub(in super::super) const fn set_role(&mut self, has_work: bool) {
        self.role = has_work;
        self.any = self.role || self.shares || self.triggers;
    }

    /// Records that operations wait for counters.
    pub(in super::super) const fn expect_triggers(&mut self) {
        (self.triggers, self.any) = (true, true);
    }
}

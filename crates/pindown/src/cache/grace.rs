//! The grace period: a removed registration may be unpinned when every use that began before the removal has ended.
//!
//! The scheme is that of sleepable RCU. A *lane* counts the uses that it began and ended, by parity. A use reads the
//! parity of the current epoch, counts itself as begun, and only then looks up its entry. A thread that removes entries
//! first hides them from look-ups, and then executes a fence on every thread of the process (membarrier, so that a hit
//! needs no fence; under loom, which has no such call, hits use a real fence). It then waits until the uses of the
//! other parity have ended, advances the epoch, and waits until those of the first parity have ended. A use may count
//! itself under an old parity at any later time. It either does so before the fence and is waited for, or looks up its
//! entry after the fence and does not find it. Different lanes write to different words, and no other order is needed.
//!
//! A long use would therefore delay the unpinning of all registrations that were removed since it began. Such a use is
//! *held* instead: its entry counts it ([`super::entries::Entries::hold`]) while its lane still counts it, and then the
//! lane no longer counts it. When the wait for a batch is over, the hold counts of its entries can only decrease,
//! because look-ups do not find the entries.
//!
//! Waiting is a state that [`Grace::pass`] checks. Threads never block for it.
//!
//! The kernel may reject the fence because of a seccomp filter that the program installed after the cache was opened.
//! Then the cache waits until each lane has held the table's lock once, which also acts as a fence for that lane, and
//! keeps no new registrations until then ([`Grace::waits_for_fence`]). If a lane is no longer used, removed
//! registrations stay pinned until that lane is dropped.

use std::sync::Arc;

use super::barrier;
use crate::sync::{AtomicU64, Ordering};

/// The parity of an epoch: 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parity(u32);

impl Parity {
    #[inline]
    pub(crate) const fn of(epoch: u64) -> Self {
        Self(epoch as u32 & 1)
    }

    const fn other(self) -> Self {
        Self(self.0 ^ 1)
    }

    #[inline(always)]
    pub(crate) fn index(self) -> usize {
        (self.0 & 1) as usize
    }
}

/// The uses of one lane, by parity. Only the lane writes the counts.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct LaneUses {
    begun: [AtomicU64; 2],
    ended: [AtomicU64; 2],
    /// The number of held uses, which are counted by their entries. The grace period does not wait for them.
    held: AtomicU64,
    /// The last batch that waited when the lane held the table's lock. Written under that lock.
    fenced: AtomicU64,
}

impl LaneUses {
    /// Counts a use as begun. A thread that calls [`barrier::heavy`] sees the count, or the later operations of this
    /// thread are performed after that call.
    #[inline]
    pub(crate) fn begin(&self, parity: Parity) {
        let begun = &self.begun[parity.index()];
        begun.store(begun.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        barrier::light();
    }

    /// Counts a use as ended.
    #[inline]
    pub(crate) fn end(&self, parity: Parity) {
        let ended = &self.ended[parity.index()];
        ended.store(ended.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Marks a use as held. The entry must already count it.
    pub(crate) fn hold(&self, parity: Parity) {
        self.held.store(self.held.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.end(parity);
    }

    /// Ends a held use.
    pub(crate) fn release(&self) {
        self.held.store(self.held.load(Ordering::Relaxed) - 1, Ordering::Release);
    }

    /// Returns the number of uses ever begun.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.iter().map(|begun| begun.load(Ordering::Relaxed)).sum()
    }

    fn quiet(&self, parity: Parity) -> bool {
        let ended = self.ended[parity.index()].load(Ordering::Acquire);
        self.begun[parity.index()].load(Ordering::Relaxed) == ended
    }

    /// Returns whether every use has ended, including held ones.
    pub(crate) fn idle(&self) -> bool {
        self.quiet(Parity(0)) && self.quiet(Parity(1)) && self.held.load(Ordering::Acquire) == 0
    }
}

/// The event that a batch waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    /// No batch is waiting.
    No,
    /// The fence of every thread.
    ForFence,
    /// The end of the uses with the parity that is not the current one.
    ForOthers,
    /// The end of the uses with the parity that was current before the epoch advanced.
    ForFirst,
}

/// The lanes and the batches that wait for them: all state of the grace period except the epoch. Protected by the
/// table's lock.
#[derive(Debug)]
pub(crate) struct Grace {
    lanes: Vec<Arc<LaneUses>>,
    waiting: Waiting,
    /// The number of batches so far.
    batches: u64,
    /// Fences every thread, and returns whether it succeeded.
    fence: fn() -> bool,
    /// The entries and copies of the batch that waits.
    batch: Vec<u32>,
    /// Entries and copies that were removed since that batch was formed. They are the next batch.
    next: Vec<u32>,
}

impl Grace {
    pub(crate) fn new() -> Self {
        Self::with(barrier::heavy)
    }

    /// Creates a grace period with a fence other than the kernel's.
    pub(super) fn with(fence: fn() -> bool) -> Self {
        Self { lanes: Vec::new(), waiting: Waiting::No, batches: 0, fence, batch: Vec::new(), next: Vec::new() }
    }

    /// Adds a lane.
    pub(crate) fn join(&mut self) -> Arc<LaneUses> {
        let counts = Arc::new(LaneUses::default());
        self.fenced(&counts);
        self.lanes.push(Arc::clone(&counts));
        counts
    }

    /// Records that the lane holds the table's lock: it no longer finds entries that were removed before, and all uses
    /// that it has begun are counted.
    #[inline]
    pub(crate) fn fenced(&self, lane: &LaneUses) {
        lane.fenced.store(self.batches, Ordering::Relaxed);
    }

    /// Returns whether entries wait for lanes because the kernel rejects the fence.
    pub(crate) fn waits_for_fence(&self) -> bool {
        self.waiting == Waiting::ForFence
    }

    /// Removes a lane that has no use under way, and adds the number of uses that it began to `begun`. A lane with uses
    /// under way is not removed. If all these uses are held, only their own entries are not freed. Otherwise no entry
    /// is freed that was removed since the uses began, or is removed later.
    pub(crate) fn leave(&mut self, counts: &Arc<LaneUses>, begun: &mut u64) {
        if counts.idle() {
            *begun += counts.begun();
            self.lanes.retain(|lane| !Arc::ptr_eq(lane, counts));
        }
    }

    pub(crate) fn lanes(&self) -> impl Iterator<Item = &LaneUses> {
        self.lanes.iter().map(|lane| &**lane)
    }

    /// Adds an entry that can no longer be found to those that wait.
    pub(crate) fn retire(&mut self, entry: u32) {
        self.next.push(entry);
    }

    /// Checks whether uses have ended, and calls `ended` with each entry that has no more users. Entries that were
    /// removed while others waited are processed at once if possible, because the next check may be much later.
    pub(crate) fn pass(&mut self, epoch: &AtomicU64, mut ended: impl FnMut(u32)) {
        while self.waiting != Waiting::No || !self.next.is_empty() {
            if !self.step(epoch) {
                return;
            }
            self.batch.drain(..).for_each(&mut ended);
        }
    }

    /// Returns whether the batch has no more users.
    fn step(&mut self, epoch: &AtomicU64) -> bool {
        if self.waiting == Waiting::No {
            std::mem::swap(&mut self.batch, &mut self.next);
            self.batches += 1;
            self.waiting = Waiting::ForFence;
        }
        if self.waiting == Waiting::ForFence {
            let have_been_here = || self.lanes.iter().all(|lane| lane.fenced.load(Ordering::Relaxed) == self.batches);
            if !(self.fence)() && !have_been_here() {
                return false; // It is not known yet whether uses have ended.
            }
            self.waiting = Waiting::ForOthers;
        }
        let now = || Parity::of(epoch.load(Ordering::Relaxed));
        if self.waiting == Waiting::ForOthers {
            let others = now().other();
            if !self.lanes.iter().all(|lane| lane.quiet(others)) {
                return false;
            }
            epoch.store(epoch.load(Ordering::Relaxed) + 1, Ordering::Release);
            self.waiting = Waiting::ForFirst;
        }
        let first = now().other();
        let has_ended = self.lanes.iter().all(|lane| lane.quiet(first));
        if has_ended {
            self.waiting = Waiting::No;
        }
        has_ended
    }
}

//! When a registration that was taken out may be unpinned: when every use that began before has ended.
//!
//! The scheme is that of sleepable RCU. A *lane* counts the uses it began and ended, by parity. A use takes the parity of
//! the current epoch, counts itself begun, and only then looks its entry up. A thread that takes entries out makes them
//! unfindable; fences every thread of the process (membarrier, so that a hit needs no fence of its own: loom, which has
//! no such call, gets a real fence); waits until the uses of the other parity have ended; advances the epoch; and waits
//! until those of the first parity have ended. A use that began with an old parity, however late, then either counted
//! itself before the fence and is waited for, or looks up after it and finds nothing. Lanes share no store, and no
//! other order is needed.
//!
//! So a use that lasts would hold up whatever was taken out since. It is *held* instead: counted by its entry
//! ([`super::entry::Entries::hold`]) while it still counts in its lane, and in its lane no more. When a batch has been
//! waited for, its entries' counts are final: the entries cannot be found, so their counts only go down.
//!
//! Waiting is a state that [`Grace::pass`] checks; no thread ever blocks for it.
//!
//! The kernel may refuse the fence: a filter of system calls that the program has installed since the cache was opened denies it.
//! Then each lane is waited for until it has had the table's lock once, which fences it as well, and the cache keeps nothing
//! new meanwhile ([`Grace::lacks_fence`]). A lane that is not used any more has what was taken out stay pinned until it is dropped.

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

/// Uses of one lane, by parity; only the lane writes.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counts {
    begun: [AtomicU64; 2],
    ended: [AtomicU64; 2],
    /// Uses that their entries count: not waited for here.
    held: AtomicU64,
    /// The last batch that waited when the lane had the table's lock. Written under it.
    fenced: AtomicU64,
}

impl Counts {
    /// Counts a use as begun. What follows is not done before other threads can see the count (see [`barrier`]).
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

    /// Moves a use that goes on to the held ones: its entry counts it by now.
    pub(crate) fn hold(&self, parity: Parity) {
        self.held.store(self.held.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.end(parity);
    }

    /// Ends a held use.
    pub(crate) fn release(&self) {
        self.held.store(self.held.load(Ordering::Relaxed) - 1, Ordering::Release);
    }

    /// Uses ever begun.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.iter().map(|begun| begun.load(Ordering::Relaxed)).sum()
    }

    fn quiet(&self, parity: Parity) -> bool {
        let ended = self.ended[parity.index()].load(Ordering::Acquire);
        self.begun[parity.index()].load(Ordering::Relaxed) == ended
    }

    /// Whether every use has ended, held ones too.
    pub(crate) fn idle(&self) -> bool {
        self.quiet(Parity(0)) && self.quiet(Parity(1)) && self.held.load(Ordering::Acquire) == 0
    }
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    /// Nothing.
    No,
    /// A fence of every thread.
    ForFence,
    /// Uses of the parity that is not the current one.
    ForOthers,
    /// Uses of the parity that was current before the epoch turned.
    ForFirst,
}

/// The epoch, the lanes and what waits for them: all but the epoch behind the table's lock.
#[derive(Debug)]
pub(crate) struct Grace {
    lanes: Vec<Arc<Counts>>,
    waiting: Waiting,
    /// Batches so far.
    batches: u64,
    /// Fences every thread, and returns whether it did.
    fence: fn() -> bool,
    /// Taken out before the fence.
    batch: Vec<u32>,
    /// Taken out since.
    next: Vec<u32>,
}

impl Grace {
    pub(crate) fn new() -> Self {
        Self::with(barrier::heavy)
    }

    /// With another fence than the kernel's.
    pub(super) fn with(fence: fn() -> bool) -> Self {
        Self { lanes: Vec::new(), waiting: Waiting::No, batches: 0, fence, batch: Vec::new(), next: Vec::new() }
    }

    /// Adds a lane.
    pub(crate) fn join(&mut self) -> Arc<Counts> {
        let counts = Arc::new(Counts::default());
        self.fenced(&counts);
        self.lanes.push(Arc::clone(&counts));
        counts
    }

    /// The lane has the table's lock: what was taken out before is not found by it any more, and all that it has begun is counted.
    #[inline]
    pub(crate) fn fenced(&self, lane: &Counts) {
        lane.fenced.store(self.batches, Ordering::Relaxed);
    }

    /// Whether what was taken out waits for lanes because the kernel refuses the fence.
    pub(crate) fn lacks_fence(&self) -> bool {
        self.waiting == Waiting::ForFence
    }

    /// Removes a lane, if it has no use under way, and adds the number of uses that it began to `begun`. Otherwise the lane
    /// stays, and holds up for ever whatever is taken out, or, if its uses are held, their registrations.
    pub(crate) fn leave(&mut self, counts: &Arc<Counts>, begun: &mut u64) {
        if counts.idle() {
            *begun += counts.begun();
            self.lanes.retain(|lane| !Arc::ptr_eq(lane, counts));
        }
    }

    pub(crate) fn lanes(&self) -> impl Iterator<Item = &Counts> {
        self.lanes.iter().map(|lane| &**lane)
    }

    /// Adds an entry, which cannot be found any more, to those that wait.
    pub(crate) fn retire(&mut self, entry: u32) {
        self.next.push(entry);
    }

    /// Checks whether uses have ended, and calls `ended` with each entry that has no user left. Entries that were taken out
    /// while others waited follow at once, if nothing holds them up: the next check may come much later.
    pub(crate) fn pass(&mut self, epoch: &AtomicU64, mut ended: impl FnMut(u32)) {
        while self.waiting != Waiting::No || !self.next.is_empty() {
            if !self.step(epoch) {
                return;
            }
            self.batch.drain(..).for_each(&mut ended);
        }
    }

    /// Returns whether the batch has no user left.
    fn step(&mut self, epoch: &AtomicU64) -> bool {
        if self.waiting == Waiting::No {
            std::mem::swap(&mut self.batch, &mut self.next);
            self.batches += 1;
            self.waiting = Waiting::ForFence;
        }
        if self.waiting == Waiting::ForFence {
            let have_been_here = || self.lanes.iter().all(|lane| lane.fenced.load(Ordering::Relaxed) == self.batches);
            if !(self.fence)() && !have_been_here() {
                return false; // Whether uses have ended cannot be known yet.
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

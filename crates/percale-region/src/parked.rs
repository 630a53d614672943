//! Memory of regions, and windows, that were dropped while peers were still accessing them. They are kept until those
//! peers have retired. A window keeps its reference to its region for the same time.
//!
//! Endpoints of the domain check this from time to time as they make progress. Registering and closing a region also
//! check it. Each check is short and does not wait for peers under the lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::hold::Hold;
use super::registered::Registered;
use super::revocation::Revocation;
use crate::local_memory::buffer::{Buffer, BufferExt as _};

/// Memory of regions, and windows, that were dropped while peers were still accessing them.
#[derive(Debug, Default)]
pub(super) struct Parked {
    all: Mutex<Vec<ParkedMemory>>,
    /// Whether there are any entries, for checks without the lock.
    any: AtomicBool,
}

#[derive(Debug)]
struct ParkedMemory {
    revocation: Revocation,
    memory: Option<Buffer>,
    /// The reference of a window to its region.
    hold: Option<Hold>,
}

impl ParkedMemory {
    /// Returns whether no peer and no window uses this entry any more.
    fn is_over(&mut self) -> bool {
        self.revocation.is_over() && self.revocation.windows_are_gone()
    }
}

impl Parked {
    fn all(&self) -> MutexGuard<'_, Vec<ParkedMemory>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps memory or a window until it is no longer in use.
    pub(super) fn keep(&self, revocation: Revocation, memory: Option<Buffer>, hold: Option<Hold>) {
        let mut one = ParkedMemory { revocation, memory, hold };
        if one.is_over() {
            return;
        }
        let mut all = self.all();
        all.push(one);
        self.any.store(true, Ordering::Release);
    }

    /// Frees entries that are no longer in use. Costs one load if there are none.
    #[inline]
    pub(super) fn free(&self) {
        if self.any.load(Ordering::Acquire) {
            self.free_retired();
        }
    }

    #[cold]
    fn free_retired(&self) {
        let mut all = self.all();
        let mut retired = all.extract_if(.., ParkedMemory::is_over).collect::<Vec<_>>();
        // This is done under the lock, so that a window is either parked or no longer refers to its region.
        retired.iter_mut().filter_map(|one| one.hold.as_mut()).for_each(Hold::let_go);
        self.any.store(!all.is_empty(), Ordering::Release);
        drop(all);
        // Dropped without the lock, because unmapping is slow. The caller may hold the lock of an engine.
        retired.iter_mut().filter_map(|one| one.memory.take()).for_each(Buffer::drop_under_lock);
        drop(retired);
    }

    /// Returns how many parked windows refer to this region.
    pub(super) fn windows_on(&self, region: &Arc<Registered>) -> u32 {
        if !self.any.load(Ordering::Acquire) {
            return 0;
        }
        self.all().iter().filter(|one| one.hold.as_ref().is_some_and(|hold| hold.is_on(region))).count() as u32
    }
}

impl Drop for Parked {
    /// Leaks memory that peers may still access.
    fn drop(&mut self) {
        for mut one in std::mem::take(self.all.get_mut().unwrap_or_else(PoisonError::into_inner)) {
            if !one.is_over() {
                crate::later::later!(warn: "a peer still has access to the memory of a region; the memory is leaked");
                std::mem::forget(one.memory.take());
                // The reference of a window is leaked too, so that the memory of its region, which is parked
                // separately, is not freed either.
                std::mem::forget(one.hold.take());
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::local_memory::volatile::Segments;
    use crate::stuck::StuckPeer;

    /// A domain is closed while a peer that was stopped may still access memory of a region that was dropped.
    #[test]
    fn memory_that_a_peer_still_accesses_is_never_freed() {
        for retires in [false, true] {
            let memory = Arc::<[u8]>::from([7; 16]);
            let alive = Arc::downgrade(&memory);
            let (region, peer) = (Registered::for_test(Segments::EMPTY), Arc::<StuckPeer>::default());
            assert!(region.grants().add(Arc::clone(&peer) as _, 0));
            let parked = Parked::default();
            parked.keep(Revocation::start(region), Some(Buffer::from(memory)), None);
            peer.retired.store(retires, Ordering::Release);
            drop(parked);
            assert_eq!(alive.upgrade().is_some(), !retires);
        }
    }
}

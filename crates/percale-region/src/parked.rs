//! Memory of regions, and windows, that were dropped while peers were still accessing them. They are kept until those peers have retired; a
//! window holds its region for as long.
//!
//! Endpoints of the domain check this from time to time as they make progress; registering and closing regions check it too. Each check is
//! short: it does not wait for peers under the lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::hold::Hold;
use super::registered::Registered;
use super::revocation::Revocation;
use crate::local_memory::buffer::Buffer;

/// Memory of regions and windows that were dropped while peers still accessed them.
#[derive(Debug, Default)]
pub(super) struct Parked {
    all: Mutex<Vec<One>>,
    /// Whether there is anything, for checks without the lock.
    any: AtomicBool,
}

#[derive(Debug)]
struct One {
    revocation: Revocation,
    memory: Option<Buffer>,
    /// For a window: its hold on its region.
    hold: Option<Hold>,
}

impl One {
    /// Whether it is no longer in use by any peer or window.
    fn is_over(&mut self) -> bool {
        self.revocation.is_over() && self.revocation.region().windows().are_gone()
    }
}

impl Parked {
    fn all(&self) -> MutexGuard<'_, Vec<One>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps this until it is over.
    pub(super) fn keep(&self, revocation: Revocation, memory: Option<Buffer>, hold: Option<Hold>) {
        let mut one = One { revocation, memory, hold };
        if one.is_over() {
            return;
        }
        let mut all = self.all();
        all.push(one);
        self.any.store(true, Ordering::Release);
    }

    /// Frees what is over. Costs a load if there is nothing.
    #[inline]
    pub(super) fn free(&self) {
        if self.any.load(Ordering::Acquire) {
            self.free_retired();
        }
    }

    #[cold]
    fn free_retired(&self) {
        let mut all = self.all();
        let mut retired = all.extract_if(.., One::is_over).collect::<Vec<_>>();
        // Under the lock, so that a window either is parked or no longer holds its region.
        retired.iter_mut().filter_map(|one| one.hold.as_mut()).for_each(Hold::let_go);
        self.any.store(!all.is_empty(), Ordering::Release);
        drop(all);
        drop(retired); // After the lock: unmapping is slow.
    }

    /// How many windows hold this region.
    pub(super) fn windows_on(&self, region: &Arc<Registered>) -> u32 {
        if !self.any.load(Ordering::Acquire) {
            return 0;
        }
        self.all().iter().filter(|one| one.hold.as_ref().is_some_and(|hold| hold.is_on(region))).count() as u32
    }
}

impl Drop for Parked {
    /// Leaks memory that peers may still write.
    fn drop(&mut self) {
        for mut one in std::mem::take(self.all.get_mut().unwrap_or_else(PoisonError::into_inner)) {
            if !one.is_over() {
                crate::later::later!(warn: "a peer has not retired from a region's memory, which is therefore never freed");
                std::mem::forget(one.memory.take());
                // A window's hold is leaked too, so that the memory of its region, which is parked separately, is not freed either.
                std::mem::forget(one.hold.take());
            }
        }
    }
}

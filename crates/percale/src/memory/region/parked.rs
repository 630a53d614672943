//! What was dropped while peers were still at it: memory of regions, and windows, which hold theirs, until those peers retired.
//!
//! That is looked for now and then, by endpoints of the domain as they make progress, and whenever a region comes or goes. Each look is
//! short: nobody is waited for under the lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::registered::Registered;
use super::revocation::Revocation;
use super::windows::Hold;
use crate::memory::buffer::Buffer;

/// Memory of regions and windows that were dropped while peers still accessed them.
#[derive(Debug, Default)]
pub(super) struct Parked {
    all: Mutex<Vec<One>>,
    /// Whether there is anything, for those who only look.
    any: AtomicBool,
}

#[derive(Debug)]
struct One {
    revocation: Revocation,
    memory: Option<Buffer>,
    /// It is a window, which holds its region.
    hold: Option<Hold>,
}

impl One {
    /// Whether nobody uses it any more: no peer, and no window.
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
        // Here, so that a window is either parked or holds its region no more.
        retired.iter_mut().filter_map(|one| one.hold.as_mut()).for_each(Hold::let_go);
        self.any.store(!all.is_empty(), Ordering::Release);
        drop(all);
        drop(retired); // Unmapping takes its time.
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
    /// What peers may still write is given to nobody: it leaks.
    fn drop(&mut self) {
        for mut one in std::mem::take(self.all.get_mut().unwrap_or_else(PoisonError::into_inner)) {
            if !one.is_over() {
                crate::later::later!(warn: "a peer has not retired from a region's memory, which is therefore never freed");
                std::mem::forget(one.memory.take());
                // Nor is that of a window's region, which is parked by itself.
                std::mem::forget(one.hold.take());
            }
        }
    }
}

//! The state that a region keeps about the windows that are bound to it: how many, and what they may be.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};

use super::access::Access;
use super::registered::{Grants, Registered};
use super::via::Through;
use crate::memory::rundown::Pin;
use crate::memory::volatile::Segments;

/// Set once no further window may be bound.
const CLOSED: u32 = 1 << 31;
/// Set while [`Windows::without`] runs.
const KEPT_OUT: u32 = 1 << 30;

/// The number and the rights of the windows bound to a region.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    /// Windows may be bound (AMB-48).
    pub(super) allowed: bool,
    /// The memory may be changed, so windows may let peers change it (MW-016).
    pub(super) writable: bool,
    bound: AtomicU32,
}

impl Windows {
    pub(super) const fn new(allowed: bool, writable: bool) -> Self {
        Self { allowed, writable, bound: AtomicU32::new(0) }
    }

    /// Whether windows may be bound.
    pub(crate) const fn are_allowed(&self) -> bool {
        self.allowed
    }

    /// Whether windows may let peers change the memory.
    pub(crate) const fn may_change(&self) -> bool {
        self.writable
    }

    /// Counts one more window. False if the region was closed.
    #[must_use]
    fn enter(&self) -> bool {
        let more = |bound: u32| (bound & (CLOSED | KEPT_OUT) == 0).then(|| bound + 1);
        loop {
            match self.bound.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
                Ok(_) => return true,
                Err(bound) if bound & CLOSED != 0 => return false,
                Err(_) => std::thread::yield_now(), // For a moment.
            }
        }
    }

    /// Calls `then`, which must be short, while no window is bound. `None` if one is bound, or another call of this is under way.
    pub(super) fn without<R>(&self, then: impl FnOnce() -> R) -> Option<R> {
        let keep_out = |bound: u32| (bound & !CLOSED == 0).then_some(bound | KEPT_OUT);
        self.bound.fetch_update(Ordering::AcqRel, Ordering::Acquire, keep_out).ok()?;
        let result = then();
        self.bound.fetch_and(!KEPT_OUT, Ordering::AcqRel);
        Some(result)
    }

    fn leave(&self) {
        self.bound.fetch_sub(1, Ordering::AcqRel);
    }

    /// Lets no window be bound from now on. False, and nothing changes, if one is bound.
    #[must_use]
    pub(super) fn close(&self) -> bool {
        let result = self.bound.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire);
        result.is_ok() || result == Err(CLOSED)
    }

    /// Lets no window be bound from now on, whatever is bound now.
    pub(super) fn abandon(&self) {
        self.bound.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// The number of windows that are bound, or that were bound and that peers are still accessing.
    pub(super) fn count(&self) -> u32 {
        self.bound.load(Ordering::Acquire) & !(CLOSED | KEPT_OUT)
    }

    /// Whether [`count`](Self::count) is 0.
    pub(super) fn are_gone(&self) -> bool {
        self.count() == 0
    }
}

/// A window holds its region: until it lets go, or this is dropped, the region's memory is in use.
#[derive(Debug)]
pub(crate) struct Hold {
    region: Arc<Registered>,
    held: bool,
}

impl Hold {
    /// Holds a region. `None` if it was closed.
    pub(crate) fn on(region: &Arc<Registered>) -> Option<Self> {
        region.windows.enter().then(|| Self { region: Arc::clone(region), held: true })
    }

    /// Holds the same region again after [`let_go`](Self::let_go). False if it was closed.
    #[must_use]
    pub(crate) fn again(&mut self) -> bool {
        self.held = self.held || self.region.windows.enter();
        self.held
    }

    /// Whether it is, or was, on this region.
    pub(crate) fn is_on(&self, region: &Arc<Registered>) -> bool {
        Arc::ptr_eq(&self.region, region)
    }

    pub(crate) fn let_go(&mut self) {
        if std::mem::take(&mut self.held) {
            self.region.windows.leave();
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// The part of its region that a window shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    pub(crate) key: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
    pub(crate) through: Through,
}

impl Registered {
    /// Whether it was granted to no peer, so that no peer accesses it directly or can begin to.
    pub(crate) fn was_granted_to_none(&mut self) -> bool {
        self.grants.get_mut().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Returns a part of a region with a key of its own. The caller has checked the range. Its addresses are the region's.
    pub(crate) fn slice(region: &Arc<Self>, slice: &Slice) -> Self {
        let mut made = Self {
            key: 0,
            access: Access::empty(),
            rights: Access::empty(),
            windows: Windows::default(),
            beneath: Some(Arc::downgrade(region)),
            local: OnceLock::new(),
            through: Through::Nobody,
            authority: region.authority,
            base: 0,
            len: 0,
            memory: Segments::EMPTY,
            backed: region.backed,
            device: region.device,
            located: region.located.clone(),
            pin: Pin::default(),
            grants: Grants::default().into(),
            generation: OnceLock::new(),
            counters: region.counters.clone(),
            process: region.process,
        };
        made.slice_anew(region, slice);
        made
    }

    /// Changes this into another part of the same region. No thread has entered it, and it was granted to no peer.
    pub(crate) fn slice_anew(&mut self, region: &Self, slice: &Slice) {
        let Slice { key, offset, len, access, through } = *slice;
        (self.key, self.through) = (key, through);
        self.generation = OnceLock::new();
        (self.access, self.rights) = (access, access.remote_rights());
        (self.base, self.len) = (region.base.wrapping_add(offset), len);
        self.memory = region.memory.slice(offset as usize, len as usize);
        if let (Some(ours), Some(all)) = (&mut self.located, &region.located) {
            ours.offset = all.offset + offset;
        }
        self.counters = region.counters.clone();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn mw_004_a_region_is_closed_to_windows_only_when_none_is_bound() {
        let windows = Windows::new(true, true);
        assert!(windows.are_gone() && windows.enter() && windows.enter());
        windows.leave();
        assert!(!windows.close() && !windows.are_gone() && windows.enter(), "closed under a bound window");
        windows.leave();
        windows.leave();
        assert!(windows.close() && windows.close() && !windows.enter());
        let windows = Windows::new(true, true);
        assert!(windows.enter());
        windows.abandon();
        assert!(!windows.enter() && !windows.are_gone());
        windows.leave();
        assert!(windows.are_gone() && windows.close());
    }

    #[test]
    fn mw_004_windows_are_kept_out_while_something_is_done() {
        let windows = Windows::new(true, true);
        assert!(windows.enter() && windows.without(|| ()).is_none(), "one is bound");
        windows.leave();
        std::thread::scope(|scope| {
            let entered = windows.without(|| {
                assert!(windows.without(|| ()).is_none() && windows.are_gone());
                let entering = scope.spawn(|| windows.enter());
                std::thread::sleep(std::time::Duration::from_millis(20));
                assert!(windows.are_gone(), "a window came in between");
                entering
            });
            assert!(entered.expect("none is bound").join().expect("it enters") && !windows.are_gone());
        });
        windows.leave();
        assert!(windows.close() && windows.without(|| ()).is_some() && !windows.enter(), "it stays closed");
    }
}

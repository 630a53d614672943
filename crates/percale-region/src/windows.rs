//! The state of a region for its windows: the number of windows that are bound, and the rights that they may grant.

use std::sync::atomic::{AtomicU32, Ordering};

/// Set once no further windows may be bound.
const CLOSED: u32 = 1 << 31;
/// Set while [`WindowCounts::without`] runs.
const KEPT_OUT: u32 = 1 << 30;

/// The number and the rights of the windows bound to a region.
#[derive(Debug, Default)]
pub struct WindowCounts {
    /// Whether windows may be bound.
    pub(super) allowed: bool,
    /// Whether the memory may be changed, so that windows may allow peers to change it.
    pub(super) writable: bool,
    bound: AtomicU32,
}

impl WindowCounts {
    #[inline]
    pub(super) const fn new(allowed: bool, writable: bool) -> Self {
        Self { allowed, writable, bound: AtomicU32::new(0) }
    }

    /// Returns whether windows may be bound.
    #[inline]
    pub const fn are_allowed(&self) -> bool {
        self.allowed
    }

    /// Returns whether windows may allow peers to change the memory.
    #[inline]
    pub const fn may_change(&self) -> bool {
        self.writable
    }

    /// Counts one more window. Returns false if the region was closed.
    #[must_use]
    pub(super) fn enter(&self) -> bool {
        let more = |bound: u32| (bound & (CLOSED | KEPT_OUT) == 0).then(|| bound + 1);
        loop {
            match self.bound.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
                Ok(_) => return true,
                Err(bound) if bound & CLOSED != 0 => return false,
                Err(_) => std::thread::yield_now(), // `without` is running, which takes only a short time.
            }
        }
    }

    /// Calls `then` while no window is bound. `then` must be short. Returns `None` if a window is bound, or another
    /// call of this method is in progress.
    pub(super) fn without<R>(&self, then: impl FnOnce() -> R) -> Option<R> {
        let keep_out = |bound: u32| (bound & !CLOSED == 0).then_some(bound | KEPT_OUT);
        self.bound.fetch_update(Ordering::AcqRel, Ordering::Acquire, keep_out).ok()?;
        let result = then();
        self.bound.fetch_and(!KEPT_OUT, Ordering::AcqRel);
        Some(result)
    }

    #[inline]
    pub(super) fn leave(&self) {
        self.bound.fetch_sub(1, Ordering::AcqRel);
    }

    /// Prevents further windows from being bound. If a window is bound, changes nothing and returns false.
    #[must_use]
    #[inline]
    pub(super) fn close(&self) -> bool {
        let result = self.bound.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire);
        result.is_ok() || result == Err(CLOSED)
    }

    /// Prevents further windows from being bound, even if some are bound now.
    #[inline]
    pub(super) fn abandon(&self) {
        self.bound.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Returns the number of windows that are bound, or that were bound and that peers are still accessing.
    #[inline]
    pub(super) fn count(&self) -> u32 {
        self.bound.load(Ordering::Acquire) & !(CLOSED | KEPT_OUT)
    }

    /// Returns whether [`count`](Self::count) is 0.
    #[inline]
    pub(super) fn are_gone(&self) -> bool {
        self.count() == 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Requirements: MW-004.
    #[test]
    fn a_region_is_closed_to_windows_only_when_none_is_bound() {
        let windows = WindowCounts::new(true, true);
        assert!(windows.are_gone() && windows.enter() && windows.enter());
        windows.leave();
        assert!(!windows.close() && !windows.are_gone() && windows.enter(), "closed while a window is bound");
        windows.leave();
        windows.leave();
        assert!(windows.close() && windows.close() && !windows.enter());
        let windows = WindowCounts::new(true, true);
        assert!(windows.enter());
        windows.abandon();
        assert!(!windows.enter() && !windows.are_gone());
        windows.leave();
        assert!(windows.are_gone() && windows.close());
    }

    /// Requirements: MW-004.
    #[test]
    fn windows_cannot_be_bound_during_an_exclusive_section() {
        let windows = WindowCounts::new(true, true);
        assert!(windows.enter() && windows.without(|| ()).is_none(), "a window is bound");
        windows.leave();
        std::thread::scope(|scope| {
            let entered = windows.without(|| {
                assert!(windows.without(|| ()).is_none() && windows.are_gone());
                let entering = scope.spawn(|| windows.enter());
                std::thread::sleep(std::time::Duration::from_millis(20));
                assert!(windows.are_gone(), "a window was bound meanwhile");
                entering
            });
            assert!(entered.expect("no window is bound").join().expect("the thread enters") && !windows.are_gone());
        });
        windows.leave();
        assert!(windows.close() && windows.without(|| ()).is_some() && !windows.enter(), "the region stays closed");
    }
}

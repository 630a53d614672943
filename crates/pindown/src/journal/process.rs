//! Values that exist once in each process. A forked child creates its own value, because its copy of the parent's value
//! may be locked by a thread that does not exist in the child.

#![expect(
    unsafe_code,
    reason = "a value with static lifetime, accessed by its address; the block states its own reason"
)]

#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value of this process, protected by a lock. A child that was forked while a thread held the lock creates its own
/// value and never waits for that thread. The inherited value is never freed.
pub(crate) struct PerProcess<T: 'static>(AtomicPtr<Owned<T>>);

struct Owned<T> {
    process: u64,
    value: Mutex<T>,
    /// The inherited value, which is kept reachable for leak checkers.
    _inherited: *mut Self,
}

impl<T> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Locks the value. Each process creates it with `make`.
    pub(crate) fn lock(&'static self, make: impl FnOnce() -> T) -> MutexGuard<'static, T> {
        let found = self.0.load(Ordering::Acquire);
        // SAFETY: the pointer is null or was made by `Box::into_raw` below, and the value is shared from then on.
        let owned = match unsafe { found.as_ref() } {
            Some(owned) if owned.process == process() => owned,
            _ => self.begin(found, make()),
        };
        owned.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates the value of this process, unless another thread has created it.
    #[cold]
    fn begin(&self, before: *mut Owned<T>, value: T) -> &'static Owned<T> {
        let fresh = Box::into_raw(Box::new(Owned { process: process(), value: Mutex::new(value), _inherited: before }));
        let now = match self.0.compare_exchange(before, fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            Err(other) => {
                // SAFETY: made above, and not shared with any other code.
                drop(unsafe { Box::from_raw(fresh) });
                other
            }
        };
        // SAFETY: made by `Box::into_raw` here or in another thread, and never freed after it was stored.
        unsafe { &*now }
    }
}

/// Returns a number that differs from those of this process's ancestors and of its forked children.
#[cfg(not(loom))]
fn process() -> u64 {
    /// The last number returned in this process or its ancestors.
    static GIVEN: AtomicU64 = AtomicU64::new(0);
    let Some(word) = word() else {
        // The kernel does not wipe memory in a child (before 4.14), or cannot allocate memory. The process ID, which
        // may be reused, takes the place of the number.
        return u64::from(rustix::process::getpid().as_raw_nonzero().get().unsigned_abs()) | 1 << 63;
    };
    match word.load(Ordering::Acquire) {
        0 => {
            let number = GIVEN.fetch_add(1, Ordering::Relaxed) + 1;
            word.compare_exchange(0, number, Ordering::AcqRel, Ordering::Acquire).map_or_else(|other| other, |_| number)
        }
        number => number,
    }
}

/// Returns a word that the kernel wipes in each child.
#[cfg(not(loom))]
fn word() -> Option<&'static AtomicU64> {
    static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
    let mut found = WORD.load(Ordering::Acquire);
    if found.is_null() {
        let fresh = std::ptr::from_ref(super::words::page().ok()?.next()?.word()).cast_mut();
        // If two threads reach this point at once, the page of one of them stays unused.
        found = WORD
            .compare_exchange(found, fresh, Ordering::AcqRel, Ordering::Acquire)
            .map_or_else(|other| other, |_| fresh);
    }
    // SAFETY: the page of the word is never unmapped.
    unsafe { found.as_ref() }
}

/// Models do not fork.
#[cfg(loom)]
fn process() -> u64 {
    1
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_value_exists_per_process() {
        static VALUE: PerProcess<u32> = PerProcess::new();
        *VALUE.lock(|| 5) += 1;
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| *VALUE.lock(|| panic!("the value is initialized only once")) += 1);
            }
        });
        assert_eq!(*VALUE.lock(|| 0), 14);
        assert_eq!(process(), process());
    }
}

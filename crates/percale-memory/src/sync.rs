//! Atomics and locks of the standard library, or of loom in models, for the protocols that loom checks, such as the ring,
//! the doorbell, the rundown, and words that are allocated once.

#[cfg(loom)]
pub use loom::cell::UnsafeCell as Shared;
#[cfg(loom)]
pub use loom::sync::Mutex;
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::Mutex;
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Memory that relies on the surrounding atomics for the order of its accesses. This is loom's cell, or a cell without
/// overhead.
#[cfg(not(loom))]
#[derive(Debug)]
#[repr(transparent)]
pub struct Shared<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> Shared<T> {
    /// Creates a cell.
    #[cfg(any(test, feature = "testing"))]
    pub const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Calls `f` with a pointer for reading the value.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Calls `f` with a pointer for changing the value.
    #[inline]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Publishes `value` and fences, so that no later load is performed before `value` is visible to all threads. This is
/// one exchange, which is a full barrier between sequentially consistent accesses on every processor. Loom supports
/// only fences for that.
#[inline]
pub fn publish_fenced(word: &AtomicU64, value: u64) {
    #[cfg(not(loom))]
    word.swap(value, Ordering::SeqCst);
    #[cfg(loom)]
    {
        word.store(value, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

/// A fence for loom between a sequentially consistent write and a sequentially consistent read. Without loom, all
/// threads see such accesses in one order, so no fence is needed. Loom treats them as weaker accesses and supports only
/// fences.
#[inline]
pub fn loom_fence() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

/// Prevents the compiler from moving accesses across this point. Other code orders the processor's accesses (see
/// `transport::shm`).
#[inline]
pub fn compiler_barrier() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

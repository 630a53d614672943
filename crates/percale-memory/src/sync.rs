//! Atomics and locks of the standard library, or of loom in models, for the protocols that loom checks, such as the ring,
//! the doorbell, the rundown, and words that are allocated once.

#[cfg(loom)]
mod model;

#[cfg(loom)]
pub use self::model::explore;
#[cfg(loom)]
pub use loom::cell::UnsafeCell as Shared;
#[cfg(loom)]
pub use loom::sync::Mutex;
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::Mutex;
#[cfg(not(loom))]
pub use std::sync::atomic::AtomicU64 as OrderedU64;
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

/// Publishes `value` and fences, so that no later sequentially consistent load is performed before `value` is visible to
/// all threads. This is one exchange, which is a full barrier between sequentially consistent accesses on every
/// processor. On AArch64, it does not order a later load with a weaker order, which may be performed before the store.
/// Loom supports only fences for that.
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

/// A number whose sequentially consistent writes precede the thread's later reads in loom's models, too. Loom treats
/// such writes as weaker ones, so a fence follows each of them. No fence follows a write with a weaker order, so a model
/// notices such a write where the order matters.
#[cfg(loom)]
#[derive(Debug)]
pub struct OrderedU64(AtomicU64);

#[cfg(loom)]
impl OrderedU64 {
    /// Creates a number.
    pub fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    /// Returns the value.
    pub fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    /// Sets the value.
    pub fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
        fence_after(order);
    }

    /// Sets the value, and returns the previous one.
    pub fn swap(&self, value: u64, order: Ordering) -> u64 {
        let before = self.0.swap(value, order);
        fence_after(order);
        before
    }

    /// Adds to the value, and returns the previous one.
    pub fn fetch_add(&self, count: u64, order: Ordering) -> u64 {
        let before = self.0.fetch_add(count, order);
        fence_after(order);
        before
    }

    /// Sets the value to the minimum of both, and returns the previous one.
    pub fn fetch_min(&self, value: u64, order: Ordering) -> u64 {
        let before = self.0.fetch_min(value, order);
        fence_after(order);
        before
    }
}

/// Fences if a write with this order precedes the later reads of its thread.
#[cfg(loom)]
fn fence_after(order: Ordering) {
    if order == Ordering::SeqCst {
        loom_fence();
    }
}

/// Prevents the compiler from moving accesses across this point. Other code orders the processor's accesses (see
/// `transport::shm`).
#[inline]
pub fn compiler_barrier() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

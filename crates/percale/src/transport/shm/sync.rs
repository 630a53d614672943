//! The one switch between the standard library's atomics and loom's, for the protocols that loom checks (the ring and
//! the doorbell).

#[cfg(loom)]
pub(super) use loom::cell::UnsafeCell as Shared;
#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Memory whose accesses the atomics around it order: loom's cell, or one that costs nothing.
#[cfg(not(loom))]
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Shared<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> Shared<T> {
    #[cfg(test)]
    pub(super) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub(super) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    #[inline]
    pub(super) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Publishes `value` and fences: no load after this is done before `value` is seen by all. One exchange, which every
/// processor makes a full barrier between sequentially consistent accesses; loom knows only fences.
#[inline]
pub(super) fn publish_fenced(word: &AtomicU64, value: u64) {
    #[cfg(not(loom))]
    word.swap(value, Ordering::SeqCst);
    #[cfg(loom)]
    {
        word.store(value, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

/// Keeps the compiler from moving accesses across; the processor is somebody else's to order (see `barrier`).
#[inline]
pub(super) fn compiler_barrier() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

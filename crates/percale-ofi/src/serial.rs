//! State that only one thread uses at a time.

use std::cell::UnsafeCell;
use std::sync::{Mutex, PoisonError};

/// State that is protected by a lock, unless the client promised to serialize its calls (FI_THREAD_DOMAIN,
/// FI_THREAD_COMPLETION).
pub(crate) struct Serial<T> {
    value: UnsafeCell<T>,
    lock: Option<Mutex<()>>,
}

// SAFETY: only one thread at a time accesses the value, because of the lock or the guarantee of the caller of `new`.
unsafe impl<T: Send> Sync for Serial<T> {}

impl<T> Serial<T> {
    /// Creates the state. `serialized` is set if the client serializes its calls.
    ///
    /// # Safety
    /// If `serialized` is set, calls of [`with`](Self::with) never overlap.
    pub(crate) const unsafe fn new(value: T, serialized: bool) -> Self {
        let lock = if serialized { None } else { Some(Mutex::new(())) };
        Self { value: UnsafeCell::new(value), lock }
    }

    /// Calls `f` with the state. `f` must not call this function again.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let _guard = self.lock.as_ref().map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: no other call uses the value: the lock is held, or the caller of `new` guarantees it.
        f(unsafe { &mut *self.value.get() })
    }
}

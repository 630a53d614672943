//! Calls of application code that the library defers until it holds no lock and has not borrowed an engine.
//!
//! Wakers are application code. A waker, or its destructor, may call the library, drop values that it owns, or panic.
//! So code that finds, under a lock, that a task must be woken up records this here, and the caller runs the records
//! after unlocking. A panic is caught at the call that caused it. The other records are still run, and the caller
//! continues.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Wakers to call and wakers to drop, and other work that waits until the lock is released. Only wakers need memory: a
/// loop of polls that records only other work allocates nothing.
#[derive(Debug, Default)]
#[must_use = "recorded tasks are woken only by `run`"]
pub struct DeferredActions {
    /// Whether anything is recorded, so that [`DeferredActions::is_empty`] takes one load.
    any: bool,
    /// Whether the processor should be yielded to other threads.
    offer: bool,
    wakers: Vec<DeferredAction>,
}

#[derive(Debug)]
enum DeferredAction {
    Wake(Waker),
    Discard(Waker),
}

impl DeferredActions {
    /// Records that a task must be woken up.
    #[inline]
    pub fn wake(&mut self, waker: Option<Waker>) {
        self.any |= waker.is_some();
        self.wakers.extend(waker.map(DeferredAction::Wake));
    }

    /// Records a waker that is no longer needed, to be dropped.
    #[inline]
    pub fn discard(&mut self, waker: Option<Waker>) {
        self.any |= waker.is_some();
        self.wakers.extend(waker.map(DeferredAction::Discard));
    }

    /// Records that log events must be emitted. The caller of [`DeferredActions::run`] emits them (`crate::later`).
    #[cold]
    pub fn log(&mut self) {
        self.any = true;
    }

    /// Records that the processor should be yielded to other threads (`system::spin`).
    #[cold]
    pub fn offer(&mut self) {
        self.any = true;
        self.offer = true;
    }

    /// Adds all records of another list.
    #[inline]
    pub fn append(&mut self, mut other: Self) {
        self.any |= other.any;
        self.offer |= other.offer;
        self.wakers.append(&mut other.wakers);
    }

    /// Returns whether there are no records.
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.any
    }

    /// Runs all records. Called without any lock, and without the borrow of an engine. The processor is yielded last,
    /// so that tasks that were woken up can use it.
    #[inline]
    pub fn run(self) {
        for deferred_action in self.wakers {
            match deferred_action {
                DeferredAction::Wake(waker) => wake(waker),
                DeferredAction::Discard(waker) => discard(waker),
            }
        }
        if self.offer {
            crate::system::spin::offer();
        }
    }
}

/// Wakes up a task. Catches a panic of its waker.
#[inline]
pub fn wake(waker: Waker) {
    contained("a waker panicked", || waker.wake());
}

/// Drops an object of the application. Catches a panic of its destructor.
#[inline]
pub fn discard<T>(value: T) {
    contained("a destructor panicked", || drop(value));
}

/// Runs application code, and returns its result. A panic is caught and logged.
pub fn contained<R>(what: &'static str, call: impl FnOnce() -> R) -> Option<R> {
    let payload = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => return Some(result),
        Err(payload) => payload,
    };
    // The payload's destructor and the log subscriber are application code too.
    for last in [
        catch_unwind(AssertUnwindSafe(|| drop(payload))),
        catch_unwind(|| tracing::error!("{what}; the panic was caught and is ignored")),
    ] {
        if let Err(payload) = last {
            std::mem::forget(payload);
        }
    }
    None
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    static WOKEN: AtomicU32 = AtomicU32::new(0);

    /// A waker that panics when it is woken or dropped. The payload of its panic also panics when it is dropped.
    struct Panics;

    impl Drop for Panics {
        fn drop(&mut self) {
            std::panic::panic_any(Payload);
        }
    }

    struct Payload;

    impl Drop for Payload {
        fn drop(&mut self) {
            panic!("a payload that panics");
        }
    }

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            std::mem::forget(self);
            std::panic::panic_any(Payload);
        }
    }

    struct Count;

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            WOKEN.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn panicking_waker_does_not_keep_other_tasks_asleep() {
        let mut deferred_actions = DeferredActions::default();
        deferred_actions.discard(Some(Waker::from(Arc::new(Panics))));
        for _ in 0..3 {
            deferred_actions.wake(Some(Waker::from(Arc::new(Panics))));
            deferred_actions.wake(Some(Waker::from(Arc::new(Count))));
        }
        deferred_actions.run();
        assert_eq!(WOKEN.load(Ordering::SeqCst), 3);
        assert_eq!(contained("no panic", || 7), Some(7));
    }

    #[test]
    fn appended_records_are_found() {
        let mut more = DeferredActions::default();
        more.wake(Some(Waker::noop().clone()));
        let mut deferred_actions = DeferredActions::default();
        deferred_actions.append(DeferredActions::default());
        assert!(deferred_actions.is_empty());
        deferred_actions.append(more);
        assert!(!deferred_actions.is_empty());
        deferred_actions.append(DeferredActions::default());
        assert!(!deferred_actions.is_empty());
        assert_eq!(deferred_actions.wakers.len(), 1);
    }

    /// Requirements: RES-004.
    #[test]
    fn records_without_wakers_need_no_memory() {
        let mut deferred_actions = DeferredActions::default();
        assert!(deferred_actions.is_empty());
        deferred_actions.log();
        let mut more = DeferredActions::default();
        more.offer();
        deferred_actions.append(more);
        assert!(!deferred_actions.is_empty() && deferred_actions.offer);
        assert_eq!(deferred_actions.wakers.capacity(), 0);
    }
}

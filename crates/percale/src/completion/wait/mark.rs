//! The mark that states whether a thread sleeps, and the lowest value for which it has to be woken.

use crate::sync::{OrderedU64, Ordering, loom_fence};

/// No thread has to be woken.
const NO_SLEEPER: u64 = u64::MAX;

/// The mark that a sleeping thread sets and a waking thread clears. It is one word, so a waking thread that clears it
/// for one sleeping thread cannot lose the request of another. All accesses are sequentially consistent. So a waking
/// thread and a thread that is about to sleep cannot miss each other, if the waking thread publishes before it reads
/// the mark, and the other thread checks again after it has set the mark.
#[derive(Debug)]
pub(super) struct SleepMark(OrderedU64);

impl Default for SleepMark {
    fn default() -> Self {
        Self(OrderedU64::new(NO_SLEEPER))
    }
}

impl SleepMark {
    /// Requests a wake-up when a value is at least `from`; 0 requests every wake-up.
    pub(super) fn set(&self, from: u64) {
        self.0.fetch_min(from.min(NO_SLEEPER - 1), Ordering::SeqCst);
    }

    /// Returns whether any thread has to be woken.
    #[inline]
    pub(super) fn is_set(&self) -> bool {
        loom_fence();
        self.0.load(Ordering::SeqCst) != NO_SLEEPER
    }

    /// Returns whether a thread has to be woken for a value that increased. `value` is called after the mark was read.
    #[inline]
    pub(super) fn is_due(&self, value: impl FnOnce() -> u64) -> bool {
        loom_fence();
        let from = self.0.load(Ordering::SeqCst);
        from != NO_SLEEPER && value() >= from
    }

    /// Clears the mark and returns whether it was set. If so, the caller wakes all sleeping threads, and each that
    /// continues to sleep sets the mark again.
    pub(super) fn take(&self) -> bool {
        self.0.swap(NO_SLEEPER, Ordering::SeqCst) != NO_SLEEPER
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
    use loom::thread;

    use super::*;
    use crate::sync::explore;

    /// Two threads wait for different values, like [`Wait::until_value`](super::super::Wait), while a third one counts.
    struct ValueWaiters {
        mark: SleepMark,
        value: AtomicU64,
        /// The sleepers' events.
        rung: [AtomicBool; 2],
    }

    impl ValueWaiters {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                mark: SleepMark::default(),
                value: AtomicU64::new(0),
                rung: [AtomicBool::new(false), AtomicBool::new(false)],
            })
        }

        fn value(&self) -> u64 {
            self.value.load(Ordering::SeqCst)
        }

        fn count(&self) {
            self.value.fetch_add(1, Ordering::SeqCst);
            if self.mark.is_due(|| self.value()) && self.mark.take() {
                self.rung.iter().for_each(|event| event.store(true, Ordering::SeqCst));
            }
        }

        /// Returns whether the thread would continue to sleep, regardless of its event.
        fn sleeps(&self, number: usize, from: u64) -> bool {
            for _ in 0..2 {
                self.rung[number].store(false, Ordering::SeqCst);
                self.mark.set(from);
                if self.value() >= from {
                    return false;
                }
                if !self.rung[number].load(Ordering::SeqCst) {
                    return true; // The thread sleeps here until its event is set.
                }
            }
            true
        }
    }

    #[test]
    fn loom_sleeper_misses_no_wakeup() {
        explore(Some(3), 900, || {
            let place = ValueWaiters::new();
            let counts = {
                let place = Arc::clone(&place);
                thread::spawn(move || (0..2).for_each(|_| place.count()))
            };
            let other = {
                let place = Arc::clone(&place);
                thread::spawn(move || place.sleeps(1, 1))
            };
            assert!(place.sleeps(0, 9), "the value was not reached");
            let asleep = other.join().unwrap();
            counts.join().unwrap();
            fence(Ordering::SeqCst);
            assert!(
                !asleep || place.rung[1].load(Ordering::SeqCst),
                "the thread sleeps, and no other thread will wake it"
            );
        });
    }

    /// Two threads reach the value of a sleeping thread. The second of them finds that the first one has cleared the
    /// mark, and does not clear the mark that another thread has set since then for a greater value.
    #[test]
    fn loom_waking_thread_clears_no_mark_that_it_has_not_seen() {
        explore(Some(3), 1000, || {
            let place = ValueWaiters::new();
            place.mark.set(1);
            let counts = [(); 2].map(|()| {
                let place = Arc::clone(&place);
                thread::spawn(move || place.count())
            });
            assert!(place.sleeps(1, 3), "the value was not reached");
            counts.into_iter().for_each(|count| count.join().unwrap());
            place.count();
            assert!(place.rung[1].load(Ordering::SeqCst), "the thread sleeps, and no other thread will wake it");
        });
    }
}

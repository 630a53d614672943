//! Counters, which count completed operations instead of describing them.
//!
//! A [`Counter`] has a value, which is the number of operations that succeeded, and an error value, which is the number
//! of those that failed. Counting costs one atomic addition and a few loads: both values and the mark of a sleeping
//! thread share a cache line. Cloning returns another handle to the same counter.
//!
//! Order: additions are sequentially consistent, so a thread that goes to sleep and one that counts cannot miss each
//! other, and writes made before counting are visible to every thread that sees the count.
//!
//! Work may wait for a counter: operations that begin, and other counters that change, when it has reached a threshold
//! ([`trigger`](crate::trigger)). The thread that reaches a threshold by an addition begins the work.
//!
//! * `cell`: a counter's values and the lowest threshold; `heap`, `waiting`: the work that waits, in order
//! * `due`: the kinds of work; `fire`: begins the work that is due

mod cell;
mod due;
mod fire;
mod heap;
mod waiting;

use std::io;
use std::num::NonZeroU32;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use self::cell::CounterCell;
pub(crate) use self::due::{CounterWork, Due};
pub(crate) use self::fire::{Begun, Starter, fire, kick, taken_back};
pub(crate) use self::waiting::{Condition, WaitId, WaitQueue};
use super::wait::{Driven, Wait, WaitError};

/// The reason why a counter did not reach the threshold of a wait.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CounterError {
    /// The timeout expired.
    #[error("timeout: the counter did not reach the threshold")]
    TimedOut,
    /// Operations failed during the wait. Their errors are in the completion queue, if there is one.
    #[error("operations failed: the counter's error value is now {errors}")]
    Failed {
        /// The error value.
        errors: u64,
    },
    /// An endpoint of one owner counts here, and only its owner can drive it, so the wait might never end.
    #[error(transparent)]
    NotDriven(WaitError),
    /// The thread could not sleep.
    #[error(transparent)]
    System(io::Error),
}

impl CounterError {
    /// Returns whether the same call may succeed later although neither it nor the program is changed, which is the
    /// case for [`TimedOut`](Self::TimedOut).
    #[must_use]
    pub const fn is_retriable(&self) -> bool {
        matches!(self, Self::TimedOut)
    }

    /// Returns the libfabric code for this error (positive).
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::TimedOut => libc::ETIMEDOUT,
            Self::Failed { .. } => 259,
            Self::NotDriven(error) => error.errno(),
            Self::System(error) => crate::system::call::errno(error).unwrap_or(libc::EIO),
        }
    }
}

impl From<WaitError> for CounterError {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::TimedOut => Self::TimedOut,
            error @ WaitError::NotDriven => Self::NotDriven(error),
            WaitError::System(error) => Self::System(error),
        }
    }
}

/// A counter of completed operations. Clones are handles to the same counter.
#[derive(Clone, Default)]
pub struct Counter {
    line: Arc<CounterState>,
}

crate::short_debug!(Counter, "Counter", value: |this| this.value(), errors: |this| this.line.cell.errors());

/// The fields that counting accesses are in the first cache line. The alignment is two lines, because processors fetch
/// lines in pairs.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct CounterState {
    cell: CounterCell,
    wait: Wait,
    /// The number of times that a value was set, including to the value that it already had.
    sets: AtomicU64,
    /// The work that waits. It is allocated when the first work is queued.
    waiting: OnceLock<Box<Mutex<WaitQueue>>>,
}

impl Drop for CounterState {
    fn drop(&mut self) {
        // The end of the work is reported through endpoints and their locks, which belong to the parent.
        if !self.wait.is_here() {
            std::mem::forget(self.waiting.take());
        }
    }
}

/// A weak reference to a counter, which does not keep it alive.
#[derive(Clone, Debug)]
pub(crate) struct WeakCounter(Weak<CounterState>);

impl WeakCounter {
    /// Returns whether a handle to the counter exists.
    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Returns the counter if a handle to it exists.
    pub(crate) fn upgrade(&self) -> Option<Counter> {
        self.0.upgrade().map(|line| Counter { line })
    }
}

impl Counter {
    /// Creates a counter at 0.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether both are handles to the same counter.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.line, &other.line)
    }

    /// Returns the [`Wait`] in which its readers sleep.
    pub(in crate::completion) fn place(&self) -> &Wait {
        &self.line.wait
    }

    /// Returns a state that differs from an earlier one if a value was increased or set in between.
    pub(in crate::completion) fn state(&self) -> [u64; 3] {
        [self.line.cell.value(), self.line.cell.errors(), self.line.sets.load(Ordering::SeqCst)]
    }

    /// Drives the attached endpoints. Returns the number of operations that succeeded.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.line.wait.drive();
        self.value()
    }

    /// Drives the attached endpoints. Returns the number of operations that failed.
    #[must_use]
    pub fn read_error(&self) -> u64 {
        self.line.wait.drive();
        self.line.cell.errors()
    }

    /// Returns the number of operations that have succeeded, without driving any endpoint.
    #[must_use]
    #[inline]
    pub fn value(&self) -> u64 {
        self.line.cell.value()
    }

    /// Adds to the value. It wraps at 2^64.
    #[inline]
    pub fn add(&self, count: u64) {
        let due = self.line.cell.add(count);
        self.line.wait.notify_value(|| self.value());
        self.begin(due);
    }

    /// Adds to the error value.
    #[inline]
    pub fn add_error(&self, count: u64) {
        let due = self.line.cell.add_error(count);
        self.changed(due);
    }

    /// Sets the value. A concurrent addition in another thread may take effect before or after it.
    pub fn set(&self, value: u64) {
        let due = self.line.cell.set(value);
        self.line.sets.fetch_add(1, Ordering::SeqCst);
        self.changed(due);
    }

    /// Sets the error value.
    pub fn set_error(&self, value: u64) {
        let due = self.line.cell.set_error(value);
        self.line.sets.fetch_add(1, Ordering::SeqCst);
        self.changed(due);
    }

    /// Wakes the threads that wait for the values, and begins work that may be due.
    #[inline]
    fn changed(&self, due: bool) {
        self.line.wait.notify();
        self.begin(due);
    }

    #[inline]
    fn begin(&self, due: bool) {
        if due && self.is_here() {
            fire(self);
        }
    }

    /// Returns whether this is the process that created the counter, and not a forked child of it. Work waits and
    /// begins only in that process.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.line.wait.is_here()
    }

    /// Locks the work that waits. Returns `None` in a forked child, because a thread of the parent may have held the
    /// lock at the fork.
    #[inline]
    fn waiting(&self) -> Option<MutexGuard<'_, WaitQueue>> {
        if !self.is_here() {
            return None;
        }
        Some(self.line.waiting.get_or_init(Box::default).lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Queues work in the counter's line. `named` is called before any thread can begin the work, with the work's
    /// ticket and with whether the owner already has a record that some of its work waits here. Returns true if the
    /// work may be due. In that case the caller must call [`fire`] without holding a lock that it needs. Returns `None`
    /// in a forked child: nothing was queued, and `named` was not called.
    #[must_use = "work that is due begins only when `fire` is called"]
    pub(crate) fn queue(
        &self,
        condition: Condition,
        owner: Option<NonZeroU32>,
        due: Due,
        named: impl FnOnce(WaitId, bool),
    ) -> Option<bool> {
        let mut waiting = self.waiting()?;
        let (ticket, known) = waiting.push(condition, owner, due);
        named(ticket, known);
        Some(self.line.cell.waits_for(waiting.next()))
    }

    /// Takes all work that is due from the line, in order. No other thread takes work during the call. Does nothing in a
    /// forked child, which may have inherited a thread that was processing jobs, because a waker can fork.
    #[inline]
    pub(crate) fn each_due(&self, mut begin: impl FnMut(Due)) {
        let Some(mut waiting) = self.waiting() else { return };
        let cell = &self.line.cell;
        // The values are read again each time, because work that begins may increase this counter.
        while let Some(due) = waiting.pop(cell.value(), cell.value().saturating_add(cell.errors())) {
            begin(due);
        }
        // A thread that counts after this point reads this threshold or waits for the lock.
        cell.waits_for(waiting.next());
    }

    /// Accesses the waiting work, to cancel some of it.
    pub(crate) fn take_back<R>(&self, take: impl FnOnce(&mut WaitQueue) -> R) -> Option<R> {
        if !self.is_here() {
            return None;
        }
        self.line.waiting.get()?; // Memory is not allocated for a counter for which no work has waited.
        let mut waiting = self.waiting()?;
        let taken = take(&mut waiting);
        self.line.cell.waits_for(waiting.next());
        Some(taken)
    }

    /// Returns whether work waits for the counter.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.is_here() && self.line.waiting.get().is_some() && self.waiting().is_some_and(|waiting| !waiting.is_empty())
    }

    /// Returns an address that distinguishes counters while they exist.
    pub(crate) fn place_in_memory(&self) -> usize {
        Arc::as_ptr(&self.line).addr()
    }

    /// Returns a [`WeakCounter`].
    pub(crate) fn downgrade(&self) -> WeakCounter {
        WeakCounter(Arc::downgrade(&self.line))
    }

    /// Makes the shared endpoints that feed the counter advance without calls by the application.
    pub(crate) fn automate(&self) -> io::Result<()> {
        self.line.wait.automate()
    }

    /// Drives the attached endpoints, and waits until the value is at least `threshold`, for at most `timeout` (`None`:
    /// no limit).
    ///
    /// # Errors
    /// If the error value changes during the wait, the timeout expires, or the thread cannot sleep. If the value is
    /// lower and an endpoint of one owner ([`Endpoint`](crate::Endpoint), not
    /// [`SharedEndpoint`](crate::SharedEndpoint)) counts here, it fails immediately ([`CounterError::NotDriven`]).
    ///
    /// The counter of a region ([`Registration::counter`](crate::memory::region::Registration::counter)) counts accesses
    /// through any endpoint of the domain, and does not refer to one. A wait for it makes progress on the endpoints that
    /// [`drive_for`](crate::SharedEndpoint::drive_for) added, and does not detect that there is none.
    pub fn wait(&self, threshold: u64, timeout: Option<Duration>) -> Result<(), CounterError> {
        self.wait_since(threshold, self.line.cell.errors(), timeout)
    }

    /// Like [`wait`](Self::wait), but for a caller that has already read the error value `errors`. A failure between
    /// that read and this call ends the wait too.
    ///
    /// # Errors
    /// If the error value is or becomes different from `errors`, the timeout expires, or the thread cannot sleep.
    pub fn wait_since(&self, threshold: u64, errors: u64, timeout: Option<Duration>) -> Result<(), CounterError> {
        self.line.wait.until_value(threshold, timeout, || {
            if self.value() >= threshold {
                return Some(Ok(()));
            }
            let now = self.line.cell.errors();
            (now != errors).then_some(Err(CounterError::Failed { errors: now }))
        })?
    }

    /// Makes readers and waiting threads drive `endpoint` from now on, as long as it exists.
    ///
    /// # Errors
    /// If the system cannot watch the endpoint's descriptor or start a thread for its progress, or in a forked child.
    pub fn attach(&self, endpoint: &Arc<dyn Driven>) -> io::Result<()> {
        self.line.wait.attach(endpoint)
    }

    /// Removes `endpoint`.
    pub fn detach(&self, endpoint: &Arc<dyn Driven>) {
        self.line.wait.detach(endpoint);
    }

    /// Returns a descriptor for the caller's own poll or epoll set. It is readable when the counter may have changed.
    /// Before each sleep on it, call [`try_wait`](Self::try_wait) and then check the values once more.
    ///
    /// # Errors
    /// If no descriptor can be created, or in a forked child.
    pub fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        self.line.wait.descriptor()
    }

    /// Arms the descriptor for the next change. Returns false if reading, or the owner of an endpoint that counts here,
    /// can make progress.
    ///
    /// # Errors
    /// If no descriptor can be created, or in a forked child.
    pub fn try_wait(&self) -> io::Result<bool> {
        Ok(self.line.wait.arm()? && !self.line.wait.is_undriven())
    }
}

#[doc(hidden)]
impl crate::region::AccessCounter for Counter {
    #[inline]
    fn add(&self, count: u64) {
        Self::add(self, count);
    }

    fn identity(&self) -> usize {
        self.place_in_memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::forked::in_a_child;

    /// Requirements: CMP-012.
    #[test]
    fn successes_and_errors_are_counted_separately() {
        let counter = Counter::new();
        counter.clone().add(3);
        counter.add_error(1);
        assert_eq!((counter.read(), counter.read_error()), (3, 1));
        counter.set(10);
        counter.set_error(0);
        assert_eq!((counter.read(), counter.read_error()), (10, 0));
        counter.wait(10, None).unwrap();
    }

    /// Requirements: CMP-012.
    #[test]
    fn concurrent_add_and_set_lose_no_count() {
        const EACH: u64 = 20_000;
        const BEYOND: u64 = 1 << 40;
        let counter = Counter::new();
        let start = std::sync::Barrier::new(6);
        std::thread::scope(|scope| {
            for step in 1..=4 {
                let (counter, start) = (counter.clone(), &start);
                scope.spawn(move || {
                    start.wait();
                    for _ in 0..EACH {
                        counter.add(step);
                        counter.add_error(step + 1);
                    }
                });
            }
            // A concurrent reader sees each value increase.
            scope.spawn(|| {
                start.wait();
                let (mut value, mut errors) = (0, 0);
                while value < EACH * 10 || errors < EACH * 14 {
                    let seen = (counter.read(), counter.read_error());
                    assert!(seen.0 >= value && seen.1 >= errors, "{seen:?} after {value} and {errors}");
                    (value, errors) = seen;
                }
            });
            start.wait();
        });
        assert_eq!((counter.read(), counter.read_error()), (EACH * 10, EACH * 14));
        // A value that is set during additions remains, together with the additions that follow.
        std::thread::scope(|scope| {
            let adding = counter.clone();
            let adder = scope.spawn(move || (0..EACH).for_each(|_| (adding.add(1), adding.add_error(1)).1));
            counter.set(BEYOND);
            counter.set_error(2 * BEYOND);
            adder.join().unwrap();
        });
        assert!((BEYOND..=BEYOND + EACH).contains(&counter.read()), "{}", counter.read());
        assert!((2 * BEYOND..=2 * BEYOND + EACH).contains(&counter.read_error()), "{}", counter.read_error());
    }

    /// Work that records its end.
    #[derive(Debug)]
    struct RecordedWork(Arc<std::sync::atomic::AtomicBool>);

    impl CounterWork for RecordedWork {
        fn begin(self: Box<Self>, _: &mut Begun) {}

        fn end(self: Box<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Requirements: FLT-010.
    #[test]
    fn inherited_counter_takes_and_ends_no_work_in_a_child() {
        let (counter, has_ended) = (Counter::new(), Arc::default());
        let work = || Due::Work(Box::new(RecordedWork(Arc::clone(&has_ended))));
        assert_eq!(counter.queue(Condition::Ends(1), None, work(), |_, _| ()), Some(false));
        let held = counter.waiting();
        assert!(in_a_child(|| {
            // A hang here means that the child waits for the lock that the parent holds.
            let refused = counter.queue(Condition::Ends(1), None, work(), |_, _| ()).is_none();
            refused && counter.take_back(|_| ()).is_none() && !counter.has_work()
        }));
        drop(held);
        let inherited = &has_ended;
        let drops = move || {
            drop(counter);
            !inherited.load(Ordering::Relaxed)
        };
        assert!(in_a_child(drops), "the child has ended work of its parent");
        assert!(has_ended.load(Ordering::Relaxed), "the parent's own drop ends the work");
    }

    #[test]
    fn counting_touches_one_cache_line() {
        assert!(std::mem::offset_of!(CounterState, wait) < 64);
        assert_eq!(align_of::<CounterState>(), 128);
    }

    #[test]
    fn wait_fails_only_on_a_new_error() {
        let counter = Counter::new();
        counter.add_error(1);
        let error = counter.wait(1, Some(Duration::from_millis(1))).unwrap_err();
        assert!(matches!(error, CounterError::TimedOut), "a failure before the wait does not end it");
        let error = counter.wait_since(1, 0, None).unwrap_err();
        assert!(matches!(error, CounterError::Failed { errors: 1 }));
        assert_eq!(error.errno(), 259);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| counter.wait(1, None));
            while !waiter.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
                counter.add_error(1);
            }
            assert!(matches!(waiter.join().unwrap(), Err(CounterError::Failed { .. })));
        });
    }

    #[test]
    fn sleepers_wake_at_their_thresholds() {
        let counter = Counter::new();
        std::thread::scope(|scope| {
            for threshold in [50, 100, 200] {
                let counter = counter.clone();
                scope.spawn(move || counter.wait(threshold, None).unwrap());
            }
            for round in 0..200 {
                if round % 50 == 0 {
                    std::thread::sleep(Duration::from_micros(300));
                }
                counter.add(1);
            }
        });
        assert_eq!(counter.value(), 200);
    }
}

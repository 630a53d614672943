//! The completion queue, which several endpoints and threads can share.
//!
//! A [`CompletionQueue`] is a [`Ring`] under a lock and a [`Wait`]. Cloning it returns another handle to the same
//! queue. An endpoint that one thread owns has its own ring instead, without the cost of either.
//!
//! Reading makes progress on the attached endpoints before the lock is taken, because they push to this queue. While
//! the lock is held, the only other code that is called is the function that is passed to [`CompletionQueue::update`].

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::entry::{Entry, ErrorEntry};
use super::ring::{ErrorAvailable, QueueFull, Ring};
use super::wait::{Driven, Wait, WaitError, wait_api};
use crate::system::spin;

/// The reason why reading a completion queue returned no entries.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompletionError {
    /// The next result is an error: take it with `read_error`.
    #[error(transparent)]
    ErrorAvailable(#[from] ErrorAvailable),
    /// [`CompletionQueue::signal`] ended the wait.
    #[error("the wait was interrupted by a signal to the queue")]
    Signalled,
    /// No result came in time, the thread could not sleep, or only its owner can drive an endpoint that reports here.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

impl CompletionError {
    /// Returns whether the same call may succeed later although neither it nor the program is changed. This is the case
    /// if the timeout expired ([`WaitError::TimedOut`]), and for [`Signalled`](Self::Signalled).
    #[must_use]
    pub const fn is_retriable(&self) -> bool {
        matches!(self, Self::Signalled | Self::Wait(WaitError::TimedOut))
    }

    /// Returns the libfabric code for this error (positive).
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::ErrorAvailable(error) => error.errno(),
            Self::Signalled | Self::Wait(WaitError::TimedOut) => libc::EAGAIN,
            Self::Wait(error) => error.errno(),
        }
    }
}

/// A queue of operation results that wait to be read. Clones are handles to the same queue.
#[derive(Clone)]
pub struct CompletionQueue {
    shared: Arc<QueueState>,
}

crate::short_debug!(CompletionQueue, "CompletionQueue");

#[derive(Debug)]
struct QueueState {
    ring: Mutex<Ring>,
    wait: Wait,
    /// The number of signals to the queue, and the number of signals that a wait has handled.
    signals: AtomicU64,
    answered: AtomicU64,
}

impl Default for CompletionQueue {
    fn default() -> Self {
        Self::of(Ring::default())
    }
}

impl CompletionQueue {
    /// Creates a queue with room for `capacity` results, which grows as needed up to `limit`. At the limit, no
    /// operation can be posted until results are read. No result is ever lost.
    #[must_use]
    pub fn new(capacity: usize, limit: usize) -> Self {
        Self::of(Ring::new(capacity, limit))
    }

    fn of(ring: Ring) -> Self {
        let (signals, answered) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { shared: Arc::new(QueueState { ring: Mutex::new(ring), wait: Wait::new(), signals, answered }) }
    }

    /// Calls `f` with the ring under its lock, then wakes waiting threads if the ring is not empty. Endpoints use it to
    /// reserve and push. Several pushes in one call take the lock only once. `f` must not use this queue. In a forked
    /// child, `f` gets a separate ring that is empty and has no room.
    #[doc(hidden)] // For the crates of percale.
    pub fn update<R>(&self, f: impl FnOnce(&mut Ring) -> R) -> R {
        if !self.shared.wait.is_here() {
            return refused(f); // A thread of the parent may have held the lock at the fork.
        }
        let mut ring = self.shared.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut ring);
        let filled = !ring.is_empty();
        drop(ring);
        if filled {
            self.shared.wait.notify();
        }
        result
    }

    /// Reserves room for the result of an operation that is being posted; see [`Ring::reserve`].
    ///
    /// # Errors
    /// If the queue is at its limit.
    #[doc(hidden)] // For the crates of percale.
    pub fn reserve(&self) -> Result<(), QueueFull> {
        self.update(Ring::reserve)
    }

    /// Pushes the result of an operation that reserved room for it.
    #[doc(hidden)] // For the crates of percale.
    pub fn push(&self, entry: Entry) {
        self.update(|ring| ring.push(entry));
    }

    /// Pushes the error of an operation that reserved room for its result.
    #[doc(hidden)] // For the crates of percale.
    pub fn push_error(&self, error: ErrorEntry) {
        self.update(|ring| ring.push_error(error));
    }

    /// Drives the attached endpoints, then reads up to `into.len()` results, oldest first. Returns their number, which
    /// is 0 if there are none now. The entry of a received message contains the sender. Occasionally a read that finds
    /// no results yields the processor to other threads ([`offer_when_idle`](crate::endpoint::offer_when_idle)).
    ///
    /// # Errors
    /// If the next result is an error. It stays until [`read_error`](Self::read_error) takes it. In a forked child,
    /// reading a queue of the parent returns nothing, and waiting for it fails.
    pub fn read(&self, into: &mut [Entry]) -> Result<usize, ErrorAvailable> {
        self.shared.wait.drive();
        let read = self.update(|ring| ring.read(into));
        match read {
            Ok(0) => spin::offer_when_idle(),
            _ => spin::found(),
        }
        read
    }

    /// Takes the next result if it is an error.
    #[must_use]
    pub fn read_error(&self) -> Option<ErrorEntry> {
        self.update(Ring::read_error)
    }

    /// Returns the number of results that wait, including errors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.update(|ring| ring.len())
    }

    /// Returns whether no result waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads like [`read`](Self::read), but waits for the first result for at most `timeout` (`None`: no limit).
    /// Returns at least 1, unless `into` is empty.
    ///
    /// # Errors
    /// If the next result is an error, there was no result in time, the queue was signaled, or the thread could not
    /// sleep. If there is no result and an endpoint of one owner ([`Endpoint`](crate::Endpoint), not
    /// [`SharedEndpoint`](crate::SharedEndpoint)) reports here, it fails immediately ([`WaitError::NotDriven`]).
    pub fn wait(&self, into: &mut [Entry], timeout: Option<Duration>) -> Result<usize, CompletionError> {
        let answered = self.shared.answered.load(Ordering::SeqCst);
        self.shared.wait.until(timeout, || match self.update(|ring| ring.read(into)) {
            Ok(0) if !into.is_empty() => {
                let signals = self.shared.signals.load(Ordering::SeqCst);
                (signals != answered).then(|| {
                    self.shared.answered.fetch_max(signals, Ordering::SeqCst);
                    Err(CompletionError::Signalled)
                })
            }
            result => Some(result.map_err(CompletionError::from)),
        })?
    }

    /// Ends every wait that is under way. If there is none, the next wait that finds no result ends immediately.
    pub fn signal(&self) {
        self.shared.signals.fetch_add(1, Ordering::SeqCst);
        self.shared.wait.notify();
    }
}

wait_api!(CompletionQueue);

/// Calls `f` for an inherited queue in a forked child, with a ring that has no entries and no room.
#[cold]
fn refused<R>(f: impl FnOnce(&mut Ring) -> R) -> R {
    let mut ring = Ring::new(1, 1);
    ring.reserve().ok();
    f(&mut ring)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::completion::entry::ErrorCode;
    use crate::completion::wait::tests::is_readable;

    fn entry(context: u64) -> Entry {
        Entry { context, ..Entry::default() }
    }

    /// A driver that completes one operation each time it is driven, up to a limit.
    struct Feeder {
        queue: CompletionQueue,
        left: AtomicU64,
    }

    impl Driven for Feeder {
        fn progress(&self) {
            if let Ok(left) = self.left.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
                self.queue.update(|ring| ring.push_event(entry(left)));
            }
        }
    }

    #[test]
    fn read_and_wait_progress_attached_endpoints() {
        let queue = CompletionQueue::default();
        let feeder: Arc<dyn Driven> = Arc::new(Feeder { queue: queue.clone(), left: AtomicU64::new(2) });
        queue.attach(&feeder).unwrap();
        let mut out = [Entry::default(); 4];
        assert_eq!(queue.read(&mut out), Ok(1));
        assert_eq!(out[0].context, 2);
        assert_eq!(queue.wait(&mut out, None).unwrap(), 1);
        assert_eq!(queue.read(&mut out), Ok(0));
    }

    #[test]
    fn wait_ends_on_error_signal_or_timeout() {
        let queue = CompletionQueue::new(1, 4);
        let mut out = [Entry::default(); 1];
        let error = queue.wait(&mut out, Some(Duration::ZERO)).unwrap_err();
        assert!(matches!(error, CompletionError::Wait(WaitError::TimedOut)));
        assert_eq!(error.errno(), libc::EAGAIN);
        queue.signal();
        assert!(matches!(queue.wait(&mut out, None), Err(CompletionError::Signalled)));
        let error = queue.wait(&mut out, Some(Duration::ZERO)).unwrap_err();
        assert!(
            matches!(error, CompletionError::Wait(WaitError::TimedOut)),
            "a signal that ended a wait does not end later waits: {error}"
        );
        queue.reserve().unwrap();
        queue.push_error(ErrorEntry::new(entry(3), ErrorCode::TimedOut));
        assert_eq!(queue.wait(&mut out, None).unwrap_err().errno(), 259);
        assert_eq!(queue.read_error().unwrap().entry.context, 3);
        assert!(queue.is_empty());
    }

    #[test]
    fn signal_wakes_sleeping_threads() {
        let queue = CompletionQueue::default();
        let is_woken = || is_readable(queue.descriptor().unwrap());
        assert!(queue.try_wait().unwrap() && !is_woken());
        queue.signal();
        assert!(is_woken());
    }

    #[test]
    fn a_signal_ends_every_wait_under_way() {
        let queue = CompletionQueue::default();
        std::thread::scope(|scope| {
            let waiters: Vec<_> = (0..3)
                .map(|_| scope.spawn(|| queue.wait(&mut [Entry::default(); 1], None).map_err(|error| error.errno())))
                .collect();
            while !waiters.iter().all(|waiter| waiter.is_finished()) {
                queue.signal();
                std::thread::sleep(Duration::from_millis(1));
            }
            for waiter in waiters {
                assert_eq!(waiter.join().unwrap(), Err(libc::EAGAIN));
            }
        });
    }

    #[test]
    fn concurrent_sleeping_readers_lose_no_result() {
        const EACH: u64 = 300;
        let queue = CompletionQueue::new(1, 1 << 12);
        let sum = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut out = [Entry::default(); 1];
                    for _ in 0..EACH {
                        assert_eq!(queue.wait(&mut out, None).unwrap(), 1);
                        sum.fetch_add(out[0].context, Ordering::Relaxed);
                    }
                });
            }
            scope.spawn(|| {
                for round in 0..EACH {
                    if round % 10 == 0 {
                        std::thread::sleep(Duration::from_micros(200));
                    }
                    queue.update(|ring| (0..3).for_each(|at| ring.push_event(entry(round * 3 + at))));
                }
            });
        });
        assert_eq!(sum.into_inner(), (0..EACH * 3).sum::<u64>());
        assert!(queue.is_empty());
    }

    #[test]
    fn try_wait_succeeds_only_while_queue_is_empty() {
        let queue = CompletionQueue::default();
        assert!(queue.try_wait().unwrap());
        queue.update(|ring| ring.push_event(entry(1)));
        assert!(is_readable(queue.descriptor().unwrap()));
        assert!(!queue.try_wait().unwrap());
        assert_eq!(queue.read(&mut [Entry::default(); 1]), Ok(1));
        assert!(queue.try_wait().unwrap());
    }
}

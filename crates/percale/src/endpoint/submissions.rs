//! Operations that are due but have not been begun by their endpoint yet.
//!
//! A counter can be incremented by any thread, or by the endpoint itself in the middle of a call. So an operation that
//! is due is put in the endpoint's list, and the endpoint is *kicked*:
//! * If no thread is in the endpoint, the kicking thread begins the operations immediately.
//! * If the endpoint itself is counting, its next progress begins them.
//! * If another thread is in the endpoint, that thread may have checked the list already, so the doorbell makes a
//!   thread check it again.
//!
//! The operations of an endpoint of one owner begin when the owner makes progress. A sleeping owner is woken.
//!
//! Lock order: the list's lock is taken last, and no other code is called while it is held.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::engine::staged::OperationLocation;
use super::engine::types::{Notify, Side};
use super::operation::RawOperation;
use super::ownership::{Helper, WeakShared};
use super::posted::Posted;
use crate::completion::counter::{Begun, Counter, CounterWork, Due, Starter, kick};
use crate::completion::entry::{ErrorCode, ErrorEntry};
use crate::completion::queue::CompletionQueue;
use crate::local_memory::doorbell::Doorbell;

/// An operation that waits or is due.
#[derive(Debug)]
pub(crate) struct Transfer {
    /// The operation, with its memory.
    pub(crate) operation: Posted<RawOperation>,
    /// Where the completion of the operation is reported, besides `counting`.
    pub(crate) notify: Notify,
    /// The counter that counts the completion, instead of the endpoint's counters.
    pub(crate) counting: Option<Counter>,
    /// Whether the operation is deferred work, which only `counting` counts.
    pub(crate) quiet: bool,
    /// Whether the operation was canceled, so that only its completion is reported.
    pub(crate) canceled: bool,
    /// The location of the operation's memory, if some of that memory is device memory.
    pub(crate) located: Option<Box<OperationLocation>>,
    /// The endpoint in which the operation begins. This handle is removed before the transfer is put into that
    /// endpoint's list, because the list would otherwise keep itself alive.
    pub(crate) endpoint: Option<Arc<Submissions>>,
}

impl Transfer {
    /// Returns the context with which the operation was posted.
    pub(crate) const fn context(&self) -> u64 {
        self.operation.work().context()
    }

    /// Converts the transfer to work that waits for a counter.
    pub(crate) fn into_due(self) -> Due {
        Due::Work(Box::new(self))
    }

    /// Returns whether the operation waits to begin in this endpoint.
    pub(crate) fn is_for(&self, endpoint: &Arc<Submissions>) -> bool {
        self.endpoint.as_ref().is_some_and(|of| Arc::ptr_eq(of, endpoint))
    }
}

impl CounterWork for Transfer {
    fn begin(mut self: Box<Self>, begun: &mut Begun) {
        let Some(endpoint) = self.endpoint.take() else { return };
        match endpoint.try_begin(self, |handle| begun.keep(handle.into_memory())) {
            Ok(false) => {}
            Ok(true) => begun.wake(endpoint),
            Err(transfer) => {
                endpoint.push(transfer);
                begun.listed(endpoint);
            }
        }
    }

    /// Reports the operation as canceled, unless it is deferred work without a handle. Such work reports its end only
    /// to counters, which do not count canceled work.
    fn end(mut self: Box<Self>) {
        if (self.notify == Notify::Operation || !self.quiet)
            && let Some(endpoint) = self.endpoint.take()
        {
            self.canceled = true;
            endpoint.push(self);
            kick(endpoint);
        }
    }
}

/// The operations that are due in one endpoint.
#[derive(Debug)]
pub(crate) struct Submissions {
    any: AtomicBool,
    list: Mutex<List>,
    doorbell: Arc<Doorbell>,
    /// The endpoint, if it is shared.
    endpoint: OnceLock<WeakShared>,
}

#[derive(Debug, Default)]
struct List {
    due: VecDeque<Box<Transfer>>,
    /// Set when the endpoint is closed. Contains the queues for sends and for receives to which the endpoint reported
    /// (`None`: its own queue). Operations that become due later end as canceled ([`Submissions::end_late`]).
    closed: Option<[Option<CompletionQueue>; 2]>,
}

thread_local! {
    /// The address of the submissions of the endpoint for which this thread is the progress thread. A progress thread
    /// checks the list again in any case.
    static PROGRESSING: Cell<usize> = const { Cell::new(0) };
    /// The address of the submissions of the endpoint that is counting in this thread. That endpoint checks its
    /// submissions afterwards.
    static COUNTING: Cell<usize> = const { Cell::new(0) };
}

impl Submissions {
    /// Creates the submissions of an endpoint with this doorbell.
    pub(crate) fn new(doorbell: Arc<Doorbell>) -> Self {
        Self { any: AtomicBool::new(false), list: Mutex::default(), doorbell, endpoint: OnceLock::new() }
    }

    /// Returns whether an endpoint is counting in this thread. That endpoint must not be entered again, for example by
    /// a task that is woken.
    pub(crate) fn is_counting() -> bool {
        COUNTING.get() != 0
    }

    /// Marks this thread as the endpoint's progress thread, until the thread ends.
    pub(crate) fn progressing(&self) {
        PROGRESSING.set(self.place());
    }

    /// Records that the endpoint is shared.
    pub(crate) fn share(&self, endpoint: WeakShared) {
        self.endpoint.get_or_init(|| endpoint);
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Runs `f`, in which the endpoint increments counters.
    #[inline]
    pub(crate) fn counting<R>(&self, f: impl FnOnce() -> R) -> R {
        /// Restores the mark even if `f` panics. A mark that stayed set would suppress kicks.
        struct CountingGuard(usize);
        impl Drop for CountingGuard {
            fn drop(&mut self) {
                COUNTING.set(self.0);
            }
        }
        let _before = CountingGuard(COUNTING.replace(self.place()));
        f()
    }

    /// Adds an operation that is due. If the endpoint is closed, the operation ends immediately.
    fn push(&self, transfer: Box<Transfer>) {
        let mut list = self.lock();
        if list.closed.is_some() {
            return self.end_late(transfer, list);
        }
        list.due.push_back(transfer);
        self.any.store(true, Ordering::SeqCst);
    }

    /// Ends an operation that becomes due after the endpoint was closed. It is either deferred work or an operation
    /// that waited for a counter while the last handle of the counter was being dropped. The second kind was in none of
    /// the endpoint's lists when the endpoint ended its operations. Neither kind has reserved space in a queue.
    #[cold]
    fn end_late(&self, mut transfer: Box<Transfer>, mut list: MutexGuard<'_, List>) {
        if transfer.notify == Notify::Operation {
            drop(list); // The transfer may own the last handle of a counter, and dropping it calls this function again.
            return; // Closing the endpoint reports the end of this operation to its handle.
        }
        let operation = *transfer.operation.work();
        let side = usize::from(operation.side() == Side::Receive);
        if let Some(queue) = list.closed.as_ref().and_then(|queues| queues[side].clone()) {
            drop(list);
            let error = ErrorEntry::new(operation.entry(), ErrorCode::Canceled).with_text("the endpoint was closed");
            queue.update(|ring| ring.push_error_event(error));
        } else if self.endpoint.get().is_some_and(WeakShared::is_alive) {
            // The endpoint's own queue can still be read. The end is reported there by the next thread that enters the
            // endpoint.
            transfer.canceled = true;
            list.due.push_back(transfer);
            self.any.store(true, Ordering::SeqCst);
        } else {
            drop(list);
        }
    }

    /// Begins an operation after those that are due, if the endpoint is shared and no thread is in it. Otherwise
    /// returns the operation. Does not wake tasks, but returns whether some have to be [woken](Self::wake). `keep`
    /// receives the handle that was used.
    fn try_begin(&self, transfer: Box<Transfer>, keep: impl FnOnce(Helper)) -> Result<bool, Box<Transfer>> {
        let Some(endpoint) = self.endpoint.get().and_then(WeakShared::upgrade) else { return Err(transfer) };
        let begun = endpoint.try_begin(transfer);
        keep(endpoint);
        begun
    }

    /// Returns whether an operation is due.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    /// Takes all operations that are due.
    pub(crate) fn take(&self, into: &mut VecDeque<Box<Transfer>>) {
        let mut list = self.lock();
        self.any.store(false, Ordering::SeqCst);
        if into.is_empty() {
            std::mem::swap(into, &mut list.due); // Both lists keep their memory.
        } else {
            into.append(&mut list.due);
        }
    }

    /// Marks the endpoint as closed, with the queues to which it reports. Returns the operations that it will not
    /// begin.
    pub(crate) fn close(&self, queues: [Option<CompletionQueue>; 2]) -> VecDeque<Box<Transfer>> {
        let mut list = self.lock();
        list.closed = Some(queues);
        self.any.store(false, Ordering::SeqCst);
        std::mem::take(&mut list.due)
    }
}

impl Starter for Submissions {
    /// Ensures that a thread begins the operations that are due.
    fn kick(&self) {
        if !self.any() {
            return;
        }
        if COUNTING.get() == self.place() {
            // The endpoint's next progress begins the operation. The thread that makes this progress may be asleep,
            // unless the current thread is this endpoint's progress thread. (The progress thread of another endpoint
            // can be here too, in a waker.)
            if PROGRESSING.get() != self.place() {
                self.doorbell.wake();
            }
            return;
        }
        // A closed endpoint is entered as well, to end late operations.
        let endpoint = self.endpoint.get().and_then(WeakShared::upgrade_closed);
        let begun = endpoint.is_some_and(|endpoint| endpoint.begin_due());
        if !begun {
            self.doorbell.wake();
        }
    }

    /// Wakes the tasks of operations that have ended. If a thread is in the endpoint, that thread wakes them instead.
    fn wake(&self) {
        if let Some(endpoint) = self.endpoint.get().and_then(WeakShared::upgrade) {
            endpoint.begin_due();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::completion::wait::tests::is_readable;
    use crate::local_memory::doorbell::WakeMethod;

    /// A thread that sleeps for the endpoint begins an operation that becomes due while the endpoint is counting.
    #[test]
    fn operation_that_is_due_while_its_endpoint_counts_wakes_a_sleeper() {
        let submissions = || {
            let doorbell = Arc::new(Doorbell::private().unwrap());
            (Submissions::new(Arc::clone(&doorbell)), doorbell)
        };
        let kick_wakes = |(submissions, doorbell): &(Submissions, Arc<Doorbell>)| {
            doorbell.drain();
            doorbell.arm(WakeMethod::Event);
            submissions.counting(|| submissions.kick());
            let is_woken = is_readable(doorbell.event_fd());
            doorbell.disarm();
            is_woken
        };
        // The mark of a progress thread lasts until the thread ends.
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let [own, other] = [(); 2].map(|()| submissions());
                assert!(!kick_wakes(&own), "no operation is due");
                own.0.any.store(true, Ordering::SeqCst);
                assert!(kick_wakes(&own));
                other.0.progressing();
                assert!(kick_wakes(&own), "this thread makes progress on another endpoint");
                own.0.progressing();
                assert!(!kick_wakes(&own), "this thread begins the operation");
            });
            thread.join().unwrap();
        });
    }
}

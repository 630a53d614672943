//! Operations that wait for a counter or a variable, and operations that have begun because of one.
//!
//! This module only keeps records: `triggering` prepares, begins and reports the operations. An operation on device
//! memory is kept here too, from its post to its end (`staged`).
//!
//! Invariants:
//! 1. An operation is in exactly one of these: the queue of its counter, `watched`, `submissions`, `due`, `begun`. The
//!    function that removes it there begins or ends it.
//! 2. The operation under way borrows the memory of the operation in `begun`, which is kept until its end.
//! 3. This module adds no cost to an endpoint on which no operation ever waited: [`any`](TriggeredOperations::any) is
//!    false.

#[cfg(all(test, not(loom)))]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use super::deferred_cleanup::OperationMemory;
use super::staged::Staged;
use super::types::{Notify, Side};
use crate::completion::counter::{Condition, Counter, Due};
use crate::completion::entry::{Entry, ErrorEntry};
use crate::completion::queue::CompletionQueue;
use crate::conditions::lines::CounterLines;
use crate::conditions::variable::Variable;
use crate::conditions::watched::VariableWaiters;
use crate::device::Arriving;
use crate::endpoint::operation::RawOperation;
use crate::endpoint::posted::Posted;
use crate::endpoint::submissions::{Submissions, Transfer};
use crate::table::{Id, Table};
use crate::transport::shm::Doorbell;

/// An operation that has begun.
#[derive(Debug)]
pub(crate) struct Triggered {
    /// The posted operation, with the memory that it uses. The operation under way borrows that memory.
    transfer: Box<Transfer>,
    /// The host memory on which the operation runs, if its own memory is device memory.
    staged: Option<Box<Staged>>,
}

impl Triggered {
    /// Creates the entry for an operation that a counter began.
    pub(super) const fn new(transfer: Box<Transfer>, staged: Option<Box<Staged>>) -> Self {
        Self { transfer, staged }
    }

    /// Creates the entry for an operation that began when it was posted, and that runs on host memory in place of
    /// device memory.
    pub(super) fn staged(notify: Notify, posted: Posted<RawOperation>, staged: Staged) -> Self {
        let transfer = Transfer {
            operation: posted,
            notify,
            counting: None,
            quiet: false,
            canceled: false,
            located: None,
            endpoint: None,
        };
        Self { transfer: Box::new(transfer), staged: Some(Box::new(staged)) }
    }

    /// Copies the data that the operation received to the device, if the operation's memory is device memory. Returns
    /// the result of the operation.
    pub(super) fn land(&self, side: Side, result: Result<Entry, ErrorEntry>) -> Result<Entry, ErrorEntry> {
        match &self.staged {
            Some(staged) => staged.land(side, result),
            None => result,
        }
    }

    /// Returns the posted operation.
    pub(super) fn transfer(&self) -> &Transfer {
        &self.transfer
    }

    /// Returns the posted operation with its memory, and the host memory on which it runs.
    pub(super) fn into_parts(self) -> (Box<Transfer>, OperationMemory) {
        (self.transfer, OperationMemory::Staged(self.staged))
    }
}

/// Operations that wait for counters and variables, and those that have begun.
#[derive(Debug)]
pub(crate) struct TriggeredOperations {
    /// Operations that waited for a counter and are due.
    submissions: Arc<Submissions>,
    /// Operations that were taken from `submissions` and have yet to begin.
    due: VecDeque<Box<Transfer>>,
    /// Operations that have begun.
    begun: Table<Triggered>,
    /// Counters for which operations wait.
    lines: CounterLines,
    /// Operations that wait for a variable.
    watched: VariableWaiters<Transfer>,
    /// Whether operations wait, or have waited.
    any: bool,
}

impl TriggeredOperations {
    /// Creates the state of an endpoint without such operations. The doorbell wakes the endpoint when an operation is
    /// due.
    pub(crate) fn new(doorbell: Arc<Doorbell>) -> Self {
        Self {
            submissions: Arc::new(Submissions::new(doorbell)),
            due: VecDeque::new(),
            begun: Table::new(),
            lines: CounterLines::default(),
            watched: VariableWaiters::default(),
            any: false,
        }
    }

    /// Returns the list to which counters add operations that are due.
    #[inline]
    pub(crate) const fn submissions(&self) -> &Arc<Submissions> {
        &self.submissions
    }

    /// Returns the numbers of records (see `remains`).
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn remains(&self) -> [(&'static str, usize); 2] {
        [("operations that are due", self.due.len()), ("begun operations", self.begun.len())]
    }

    /// Returns whether operations wait, or have waited.
    #[inline]
    pub(super) const fn any(&self) -> bool {
        self.any
    }

    /// Records that an operation is about to wait, or to begin.
    pub(super) const fn expect(&mut self) {
        self.any = true;
    }

    /// Adds an operation to the queue of a counter. Returns whether operations may be due there, or `None` if the counter
    /// was inherited from a parent process.
    pub(super) fn queue(&mut self, transfer: Transfer, counter: &Counter, condition: Condition) -> Option<bool> {
        let due = transfer.into_due();
        let is_due = counter.queue(condition, None, due, |_, _| ())?;
        // The counter is added after the operation waits there, because an empty queue is removed.
        self.lines.add(counter);
        Some(is_due)
    }

    /// Records that an operation of the endpoint waits for a counter.
    pub(crate) fn waits_for(&mut self, counter: &Counter) {
        self.lines.add(counter);
    }

    /// Makes an operation wait for a variable.
    pub(super) fn watch(&mut self, variable: Variable, transfer: Transfer) {
        self.watched.push(variable, Box::new(transfer));
    }

    /// Returns whether an operation waits for a variable, so that a thread has to check it.
    pub(super) fn has_watched(&self) -> bool {
        self.watched.any()
    }

    /// Returns whether a variable has to be checked without a pause.
    pub(super) fn is_eager(&self) -> bool {
        self.watched.is_eager()
    }

    /// Takes the first operation whose variable was written.
    pub(super) fn take_written(&mut self) -> Option<Box<Transfer>> {
        self.watched.pop()
    }

    /// Takes the operations whose counters have reached their thresholds, in order. Returns `None` if there are none.
    /// The caller returns the emptied list ([`return_due`](Self::return_due)).
    #[inline]
    pub(super) fn take_due(&mut self) -> Option<VecDeque<Box<Transfer>>> {
        if !self.submissions.any() {
            return None;
        }
        let mut due = std::mem::take(&mut self.due);
        self.submissions.take(&mut due);
        Some(due)
    }

    /// Returns the list for reuse.
    pub(super) fn return_due(&mut self, list: VecDeque<Box<Transfer>>) {
        self.due = list;
    }

    /// Adds an operation that begins. Returns the number that is its context while it is under way.
    pub(super) fn add_begun(&mut self, begun: Triggered) -> Id<Triggered> {
        self.begun.insert(begun)
    }

    /// Takes an operation that had begun, and has ended or could not be posted.
    pub(super) fn take_begun(&mut self, id: Id<Triggered>) -> Option<Triggered> {
        self.begun.remove(id)
    }

    /// Returns the numbers of the operations with this context that have begun. `operation` states whether the context
    /// is that of a safe handle.
    pub(super) fn begun_with(&self, context: u64, operation: bool) -> Vec<u64> {
        let meant = |begun: &Triggered| is_meant(&begun.transfer, context, operation);
        self.begun.iter().filter(|(_, begun)| meant(begun)).map(|(id, _)| id.to_u64()).collect()
    }

    /// Returns the memory to which the payload of an operation that has begun is still being copied.
    #[inline]
    pub(super) fn arriving(&self, id: u64) -> Option<&Arc<Arriving>> {
        self.begun.get(Id::from_u64(id))?.staged.as_ref()?.arriving()
    }

    /// Takes the first operation with this context that waits for a variable or a counter.
    #[cold]
    pub(super) fn cancel(&mut self, context: u64, operation: bool) -> Option<Box<Transfer>> {
        if let Some(transfer) = self.watched.cancel(|transfer| is_meant(transfer, context, operation)) {
            return Some(transfer);
        }
        let ours = &self.submissions;
        let meant = |due: &Due| {
            let transfer = due.work::<Transfer>();
            transfer.is_some_and(|transfer| transfer.is_for(ours) && is_meant(transfer, context, operation))
        };
        let mut counters = self.lines.all().into_iter();
        counters.find_map(|counter| {
            let taken = counter.take_back(|waiting| waiting.cancel_first(meant)).flatten();
            taken.and_then(Due::into_work::<Transfer>)
        })
    }

    /// Takes all waiting operations, because the endpoint closes. From now on no such operation begins. Operations that
    /// counters begin later are reported to these queues.
    pub(super) fn close(&mut self, queues: [Option<CompletionQueue>; 2]) -> VecDeque<Box<Transfer>> {
        let mut ended = VecDeque::new();
        for counter in self.lines.all() {
            let ours = |_, due: &Due| due.work::<Transfer>().is_some_and(|it| it.is_for(&self.submissions));
            let taken = counter.take_back(|waiting| waiting.cancel_all(ours)).unwrap_or_default();
            ended.extend(taken.into_iter().filter_map(Due::into_work::<Transfer>));
        }
        ended.extend(self.watched.take());
        // The submissions are taken after the queues of the counters: an operation that has left such a queue is in
        // this list by now, because the thread that moves it holds the queue's lock.
        ended.extend(self.submissions.close(queues));
        ended
    }
}

/// Returns whether `context` identifies this operation. `operation` states whether the context is that of a safe
/// handle.
fn is_meant(transfer: &Transfer, context: u64, operation: bool) -> bool {
    transfer.context() == context && (transfer.notify == Notify::Operation) == operation
}

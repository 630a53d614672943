//! Firing: begins the work that a counter's increment makes due.
//!
//! An addition to one counter may fire work that adds to another, in a chain of any length. So firing is not recursive:
//! the first call in a thread processes a list of [`Job`]s, and nested calls only append to the list.
//!
//! No work is missed. A thread that queues work publishes its threshold and then reads the values. A thread that counts
//! publishes the value and then reads the thresholds. Both use sequentially consistent order, so one of them sees the
//! other (the loom model of [`CounterCell`](super::cell::CounterCell) checks every order).

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::Counter;
use super::due::Due;

/// An object that begins work. It has a list of work that is due.
pub(crate) trait Starter: Send + Sync {
    /// Ensures that a thread begins the work that is due.
    fn kick(&self);

    /// Wakes the tasks that wait for work that has ended.
    fn wake(&self);
}

enum Job<'a> {
    /// A counter may have reached a threshold.
    Counter(Cow<'a, Counter>),
    /// An object may have work to begin.
    Kick(Arc<dyn Starter>),
    /// An object has tasks to wake.
    Wake(Arc<dyn Starter>),
}

/// The jobs of a thread. They have no destructor, because a counter may be incremented in a destructor of another
/// thread-local variable, and nested calls must be detected there too. [`ThreadListCleanup`] frees the memory instead.
struct Jobs {
    /// Set while a call further up in this thread's stack processes the list.
    busy: bool,
    list: ManuallyDrop<VecDeque<Job<'static>>>,
    /// The thread is ending, and the call that has processed the list frees it.
    ending: bool,
}

impl Jobs {
    /// Takes the next job. If there is none, the processing of the list has ended.
    fn next(&mut self) -> Option<Job<'static>> {
        let job = self.list.pop_front();
        self.busy = job.is_some();
        job
    }
}

/// Frees the memory of a thread's list when the thread ends.
struct ThreadListCleanup;

impl Drop for ThreadListCleanup {
    fn drop(&mut self) {
        JOBS.with(|jobs| jobs.borrow_mut().ending = true);
        free_list();
    }
}

thread_local! {
    static JOBS: RefCell<Jobs> =
        const { RefCell::new(Jobs { busy: false, list: ManuallyDrop::new(VecDeque::new()), ending: false }) };
    static ENDING: ThreadListCleanup = const { ThreadListCleanup };
    /// The work that a call further up in this thread's stack still has to drop. It has no destructor either, because
    /// it is empty between calls.
    static DROPPING: RefCell<ManuallyDrop<Option<Vec<Due>>>> = const { RefCell::new(ManuallyDrop::new(None)) };
}

/// Frees the list's memory if the list is empty.
fn free_list() {
    JOBS.with(|jobs| {
        let jobs = &mut *jobs.borrow_mut();
        if jobs.list.is_empty() {
            *jobs.list = VecDeque::new();
        }
    });
}

/// Cancels the work that waited for a counter that no longer exists. The work may hold the last handle of another
/// counter, for which more work waits, in a chain of any length. So this is not recursive either.
pub(super) fn drop_all(mut dues: Vec<Due>) {
    let ours = DROPPING.with(|list| match &mut **list.borrow_mut() {
        Some(list) => {
            list.append(&mut dues);
            false
        }
        list => {
            *list = Some(std::mem::take(&mut dues));
            true
        }
    });
    if !ours {
        return;
    }
    let _dropping = Dropping;
    while let Some(due) = DROPPING.with(|list| list.borrow_mut().as_mut().and_then(Vec::pop)) {
        taken_back(due);
    }
}

/// Held by the call that drops the work. If a panic ends that call, the remaining work is dropped with its counters,
/// and the next call starts with an empty list.
struct Dropping;

impl Drop for Dropping {
    fn drop(&mut self) {
        // Dropped outside of the borrow, because that may drop more work.
        drop(DROPPING.with(|list| list.borrow_mut().take()));
    }
}

/// Ends work that will not begin, for the callers that wait for its end.
pub(crate) fn taken_back(due: Due) {
    if let Due::Work(work) = due {
        work.end();
    }
}

/// Held by the call that processes the list. If a panic ends that call, the next call processes the remaining jobs.
struct Working;

impl Drop for Working {
    fn drop(&mut self) {
        JOBS.with(|jobs| jobs.borrow_mut().busy = false);
    }
}

/// Fires the work that became due because this counter changed, and all work that becomes due as a result.
#[cold]
pub(crate) fn fire(counter: &Counter) {
    run(Job::Counter(Cow::Borrowed(counter)));
}

/// Makes an object begin the work in its list.
pub(crate) fn kick(starter: Arc<dyn Starter>) {
    run(Job::Kick(starter));
}

impl Job<'_> {
    fn owned(self) -> Job<'static> {
        match self {
            Self::Counter(counter) => Job::Counter(Cow::Owned(counter.into_owned())),
            Self::Kick(starter) => Job::Kick(starter),
            Self::Wake(starter) => Job::Wake(starter),
        }
    }

    fn work(self) {
        match self {
            Self::Counter(counter) => begin_due(&counter),
            Self::Kick(starter) => starter.kick(),
            Self::Wake(starter) => starter.wake(),
        }
    }
}

fn run(job: Job<'_>) {
    let mut job = Some(job);
    let ending = JOBS.with(|jobs| {
        let jobs = &mut *jobs.borrow_mut();
        if std::mem::replace(&mut jobs.busy, true) {
            jobs.list.extend(job.take().map(Job::owned));
        }
        jobs.ending
    });
    let Some(first) = job else {
        ENDING.try_with(|_| ()).ok(); // From now on the list has memory, which `ENDING` frees.
        return;
    };
    let working = Working;
    first.work();
    while let Some(job) = JOBS.with(|jobs| jobs.borrow_mut().next()) {
        job.work();
    }
    std::mem::forget(working); // `next` has already ended the processing.
    if ending {
        free_list();
    }
}

/// The consequences of work that began while a counter's line was locked.
#[derive(Default)]
pub(crate) struct Begun {
    /// The object that work was added to last.
    last: Option<Arc<dyn Starter>>,
    /// The objects in which work began. If an object is closed in the meantime, the last of these handles frees its
    /// memory and everything that its work owns, which may include counters and their lines. So the handles are dropped
    /// when no line is locked.
    first: Option<Arc<dyn Send + Sync>>,
    others: Vec<Arc<dyn Send + Sync>>,
}

impl Begun {
    /// Keeps the memory of an object in which work began.
    pub(crate) fn keep(&mut self, handle: Arc<dyn Send + Sync>) {
        let known = |other: &Arc<dyn Send + Sync>| is_same(other, &handle);
        match &self.first {
            None => self.first = Some(handle),
            Some(first) if known(first) || self.others.last().is_some_and(known) => {}
            Some(_) => self.others.push(handle),
        }
    }

    /// Records an object that has tasks to wake.
    pub(crate) fn wake(&mut self, starter: Arc<dyn Starter>) {
        run(Job::Wake(starter));
    }

    /// Records that work was added to the list of this object, so that it is kicked later.
    pub(crate) fn listed(&mut self, starter: Arc<dyn Starter>) {
        if self.last.as_ref().is_none_or(|last| !is_same(last, &starter))
            && let Some(last) = self.last.replace(starter)
        {
            kick(last);
        }
    }
}

/// Returns whether both are handles to the same object.
fn is_same<T: ?Sized>(one: &Arc<T>, other: &Arc<T>) -> bool {
    Arc::as_ptr(one).addr() == Arc::as_ptr(other).addr()
}

/// Takes all work that is due from a counter's line, in order. The line is locked during the call. Work begins
/// immediately only if that does not wait for another thread, and no task is woken here.
fn begin_due(counter: &Counter) {
    let mut begun = Begun::default();
    counter.each_due(|due| match due {
        // The thresholds of the other counters are checked when this counter's line has been processed.
        Due::Add(other, count) => other.add(count),
        Due::Set(other, value) => other.set(value),
        Due::Work(work) => work.begin(&mut begun),
    });
    if let Some(last) = begun.last.take() {
        last.kick();
    }
}

//! Firing: begins the work that a counter's increment makes due.
//!
//! Counting in one counter may fire work that counts in another, and so on along a chain of any length. So firing is not recursive:
//! the first call in a thread processes a list of [`Job`]s, and nested calls only add to the list.
//!
//! No work is missed: a thread that queues work publishes its threshold and then looks at the values; a thread that counts
//! publishes the value and then looks at the thresholds. Both use sequentially consistent order, so one of them sees the other (the
//! loom model of [`Gate`](super::gate::Gate) checks every order).

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::due::Due;
use super::submissions::Submissions;
use crate::completion::counter::Counter;
use crate::endpoint::Helper;
use crate::endpoint::engine::types::Notify;

enum Job<'a> {
    /// A counter may have reached a threshold.
    Counter(Cow<'a, Counter>),
    /// An endpoint may have something to begin.
    Kick(Arc<Submissions>),
    /// Tasks wait to be woken for an endpoint's operations.
    Wake(Arc<Submissions>),
}

/// The jobs of a thread. They have no destructor, because a thread may also count in what it drops last: then it must not fire
/// inside of a line that it processes. [`Ending`] frees the memory instead.
struct Jobs {
    /// A call further up in this thread's stack processes the list.
    busy: bool,
    list: ManuallyDrop<VecDeque<Job<'static>>>,
    /// The thread is ending: the call that has processed the list frees it.
    ending: bool,
}

/// Frees the memory of a thread's list when the thread ends.
struct Ending;

impl Drop for Ending {
    fn drop(&mut self) {
        JOBS.with(|jobs| jobs.borrow_mut().ending = true);
        free_list();
    }
}

thread_local! {
    static JOBS: RefCell<Jobs> =
        const { RefCell::new(Jobs { busy: false, list: ManuallyDrop::new(VecDeque::new()), ending: false }) };
    static ENDING: Ending = const { Ending };
    /// The work that a call further up in this thread's stack still has to drop. No destructor here either: it is empty in between.
    static DROPPING: RefCell<ManuallyDrop<Option<Vec<Due>>>> = const { RefCell::new(ManuallyDrop::new(None)) };
}

/// Frees the list's memory, if nothing is in it.
fn free_list() {
    JOBS.with(|jobs| {
        let jobs = &mut *jobs.borrow_mut();
        if jobs.list.is_empty() {
            *jobs.list = VecDeque::new();
        }
    });
}

/// Cancels the work that waited for a counter that is gone. The work may hold the last handle of another counter, for which more
/// work waits, and so on along a chain of any length: so this is not recursive either.
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

/// Held by the call that drops the work. If a panic ends that call, the rest is dropped with its counters, and the next call starts
/// over.
struct Dropping;

impl Drop for Dropping {
    fn drop(&mut self) {
        // Dropped outside of the borrow, since that may drop more.
        drop(DROPPING.with(|list| list.borrow_mut().take()));
    }
}

/// Ends work that will not begin, for those that wait for its end: the owner of a buffer, and the caller that posted it to complete
/// like any other operation. Only counters report the end of deferred work, and they do not count canceled work.
pub(crate) fn taken_back(due: Due) {
    if let Due::Transfer(endpoint, mut transfer) = due
        && (transfer.notify == Notify::Operation || !transfer.quiet)
    {
        transfer.canceled = true;
        endpoint.push(transfer);
        kick(&endpoint);
    }
}

/// Held by the call that processes the list. If a panic ends that call, the next call starts over.
struct Working;

impl Drop for Working {
    fn drop(&mut self) {
        JOBS.with(|jobs| jobs.borrow_mut().busy = false);
    }
}

/// Does what became due by a change of this counter, and all that follows from it.
#[cold]
pub(crate) fn fire(counter: &Counter) {
    run(Job::Counter(Cow::Borrowed(counter)));
}

/// Makes an endpoint begin the operations in its list.
fn kick(submissions: &Arc<Submissions>) {
    run(Job::Kick(Arc::clone(submissions)));
}

impl Job<'_> {
    fn owned(self) -> Job<'static> {
        match self {
            Self::Counter(counter) => Job::Counter(Cow::Owned(counter.into_owned())),
            Self::Kick(submissions) => Job::Kick(submissions),
            Self::Wake(submissions) => Job::Wake(submissions),
        }
    }

    fn work(self) {
        match self {
            Self::Counter(counter) => begin_due(&counter),
            Self::Kick(submissions) => submissions.kick(),
            Self::Wake(submissions) => submissions.wake(),
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
        ENDING.try_with(|_| ()).ok(); // The list has memory from now on, which `ENDING` frees.
        return;
    };
    let _working = Working;
    first.work();
    while let Some(job) = JOBS.with(|jobs| jobs.borrow_mut().list.pop_front()) {
        job.work();
    }
    if ending {
        free_list();
    }
}

/// Endpoints in which operations began while a counter's line was locked. If an endpoint is closed meanwhile, the last of these
/// handles frees its memory, and with it what its operations own, perhaps counters and their lines; so the handles are dropped when
/// no line is locked.
#[derive(Default)]
struct Entered {
    first: Option<Helper>,
    others: Vec<Helper>,
}

impl Entered {
    fn keep(&mut self, endpoint: Helper) {
        let known = |other: &Helper| other.is_same(&endpoint);
        match &self.first {
            None => self.first = Some(endpoint),
            Some(first) if known(first) || self.others.last().is_some_and(known) => {}
            Some(_) => self.others.push(endpoint),
        }
    }
}

/// Takes everything from a counter's line that is due, in order. Meanwhile the line is locked: an operation begins at once only if
/// that does not wait for another thread, and no task is woken here.
fn begin_due(counter: &Counter) {
    let mut entered = Entered::default();
    let mut last: Option<Arc<Submissions>> = None;
    counter.each_due(|due| match due {
        // The thresholds of the other counters are checked when this counter's line has been processed.
        Due::Add(other, count) => other.add(count),
        Due::Set(other, value) => other.set(value),
        Due::Transfer(endpoint, transfer) => match endpoint.try_begin(transfer, |handle| entered.keep(handle)) {
            Ok(false) => {}
            Ok(true) => run(Job::Wake(endpoint)),
            Err(transfer) => {
                endpoint.push(transfer);
                if last.as_ref().is_none_or(|last| !Arc::ptr_eq(last, &endpoint))
                    && let Some(last) = last.replace(endpoint)
                {
                    kick(&last);
                }
            }
        },
    });
    if let Some(last) = last {
        last.kick();
    }
}

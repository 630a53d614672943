//! Firing: what a counter's increment sets off.
//!
//! Counting in one counter may fire work that counts in another, and so on along a chain of any length. So firing is no recursion: the
//! first call in a thread works off a list of [`Job`]s, and those inside it only add to the list.
//!
//! Nothing is slept over: whoever puts work in line publishes its threshold and then looks at the values; whoever counts
//! publishes the value and then looks at the thresholds. Both in sequentially consistent order, so one of them sees the
//! other (the loom model of [`Gate`](super::gate::Gate) runs it through every order).

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::submissions::Submissions;
use super::waiting::Due;
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

/// What a thread is doing. It has no destructor, for a thread counts in what it drops last, too: then it must not fire inside of a line
/// that it works off. [`Ending`] frees the memory instead.
struct Jobs {
    /// Somebody further up in this thread works the list off.
    busy: bool,
    list: ManuallyDrop<VecDeque<Job<'static>>>,
    /// The thread ends: who has worked the list off frees it.
    ending: bool,
}

/// Frees the memory of a thread's list when that ends.
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
    /// What is being dropped further up in this thread, and what is to be dropped next. No destructor either: it holds nothing in between.
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

/// Takes back what waited for a counter that is gone. It may hold the last handle of another counter, for which more waits, and so on
/// along a chain of any length: no recursion either.
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

/// Whoever drops; if a panic ends that, what is left is dropped with its counters, and the next call begins anew.
struct Dropping;

impl Drop for Dropping {
    fn drop(&mut self) {
        // Dropped outside of the borrow, since that may drop more.
        drop(DROPPING.with(|list| list.borrow_mut().take()));
    }
}

/// What will not begin ends so, for whoever waits for its end: the owner of a buffer, and who posted it to complete as any other. Of
/// deferred work only the counters tell, and they do not.
pub(super) fn taken_back(due: Due) {
    if let Due::Transfer(endpoint, mut transfer) = due
        && (transfer.notify == Notify::Operation || !transfer.quiet)
    {
        transfer.canceled = true;
        Submissions::begin(&endpoint, transfer);
    }
}

/// Whoever works the list off; if a panic ends that, the next call begins anew.
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

/// Lets an endpoint begin what was put in its list.
pub(crate) fn kick(submissions: &Arc<Submissions>) {
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
        ENDING.try_with(|_| ()).ok(); // From now on there is something to free.
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

/// Endpoints that operations began in while a counter's line was locked. If one is closed meanwhile, its memory goes with the last of these,
/// and with it what its operations own, counters and their lines perhaps; so they are let go of when no line is locked.
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
/// nobody need be waited for, and no task is woken here.
fn begin_due(counter: &Counter) {
    let mut entered = Entered::default();
    let mut last: Option<Arc<Submissions>> = None;
    counter.each_due(|due| match due {
        // Their own thresholds are looked at when this counter's line is done with.
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

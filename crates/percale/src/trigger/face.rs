//! Queueing work, and taking it back.

#![expect(
    unsafe_code,
    reason = "operations on memory that the caller vouches for: the contract is the caller's to keep"
)]

use std::collections::HashMap;
use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::fire::{fire, taken_back};
use super::submissions::Operation;
use super::variable::{Variable, Variables};
use super::waiting::{Condition, Due, Ticket};
use crate::completion::counter::{Counter, WeakCounter};
use crate::device::{Device, DeviceError};
use crate::domain::Domain;
use crate::endpoint::SharedEndpoint;
use crate::endpoint::work::PostError;
use crate::memory::forked::ProcessMutex;

/// Why work was not queued.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// The operation cannot be posted so.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The endpoint is of another domain.
    #[error("the work's endpoint belongs to another domain; queue the work there")]
    OtherDomain,
    /// A counter operation was to be counted by a completion counter (DWQ-008).
    #[error("work that changes a counter has no completion counter of its own")]
    CountedTwice,
    /// The system refused what makes progress: a thread, or a descriptor to be watched.
    #[error("nothing would make progress on the work: {0}")]
    System(io::Error),
}

impl From<io::Error> for WorkError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl WorkError {
    /// The libfabric code.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Post(error) => error.errno(),
            Self::OtherDomain | Self::CountedTwice => libc::EINVAL,
            Self::System(error) => crate::memory::call::errno(error).unwrap_or(libc::EIO),
        }
    }
}

/// What deferred work does.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "it is read at once; a box would be made for each")]
pub enum Work {
    /// An operation of an endpoint.
    Transfer(SharedEndpoint, Operation),
    /// Adds to a counter.
    Add(Counter, u64),
    /// Sets a counter's value.
    Set(Counter, u64),
}

/// A request of fi_control(3) with FI_QUEUE_WORK.
#[derive(Clone, Debug)]
pub struct DeferredWork {
    /// What is done.
    pub work: Work,
    /// The triggering counter.
    pub counter: Counter,
    /// It begins when the counter has counted so many successes and errors.
    pub threshold: u64,
    /// Counts its end, as a success or an error. Not of counter operations.
    pub counting: Option<Counter>,
}

/// Names queued work, to [cancel](Domain::cancel_work) it. Once that has begun, it names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkId {
    /// Where the counter is.
    counter: usize,
    ticket: Ticket,
}

impl WorkId {
    /// As three words, for who has no better place to keep it.
    #[must_use]
    pub const fn to_words(self) -> [u64; 3] {
        let [line, entry] = self.ticket.to_words();
        [self.counter as u64, line, entry]
    }

    /// Of what [`to_words`](Self::to_words) gave. Of any other words it names nothing, most likely, or other queued work.
    #[must_use]
    pub const fn from_words([counter, line, entry]: [u64; 3]) -> Self {
        Self { counter: counter as usize, ticket: Ticket::from_words([line, entry]) }
    }
}

/// The counters that some owner's work may wait for.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// By their places: each weak handle keeps its place from being another counter's.
    counters: HashMap<usize, WeakCounter>,
    /// The place of the one that was added last, if it is among them still; else 0.
    last: usize,
    /// How many may be there before those that are gone are looked for.
    limit: usize,
}

impl Lines {
    /// Work waits for this one from now on.
    pub(crate) fn add(&mut self, counter: &Counter) {
        let place = counter.place_in_memory();
        if self.last == place {
            return;
        }
        if self.counters.len() >= self.limit {
            // No handle is taken: it might be the last one when it is dropped, and here a lock is held.
            self.counters.retain(|_, counter| counter.is_alive());
            self.limit = 2 * self.counters.len() + 16;
        }
        self.counters.entry(place).or_insert_with(|| counter.downgrade());
        self.last = place;
    }

    /// The counter at this place, if it is still there.
    fn at(&self, place: usize) -> Option<Counter> {
        self.counters.get(&place)?.upgrade()
    }

    /// Those that are still there.
    pub(crate) fn all(&self) -> Vec<Counter> {
        self.counters.values().filter_map(WeakCounter::upgrade).collect()
    }
}

/// The deferred work of a domain.
#[derive(Debug)]
pub(crate) struct Deferred {
    lines: ProcessMutex<Lines>,
    /// Unlike that of any other domain that there ever was. A line remembers whose work came last
    /// ([`Waiting`](super::Waiting)), so the number of a domain that has ended must not become another's.
    /// `None` once all numbers are used up; such a domain defers nothing.
    number: Option<NonZeroU32>,
}

impl Default for Deferred {
    fn default() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.try_update(Ordering::Relaxed, Ordering::Relaxed, |next| next.checked_add(1));
        Self { lines: ProcessMutex::default(), number: number.ok().and_then(NonZeroU32::new) }
    }
}

/// A domain that ends takes its work back: a counter whose line holds its own handle would stay for ever.
impl Drop for Deferred {
    fn drop(&mut self) {
        if !self.lines.is_here() {
            return; // The work is the parent's.
        }
        let lines = std::mem::take(self.lines.get_mut());
        if let Some(number) = self.number {
            take_all_back(lines.all(), number);
        }
    }
}

/// Takes back what waits for these counters on behalf of this owner; returns how much.
fn take_all_back(counters: Vec<Counter>, owner: NonZeroU32) -> usize {
    let mut count = 0;
    for counter in counters {
        let taken = counter.take_back(|waiting| waiting.cancel_all(|of, _| of == Some(owner))).unwrap_or_default();
        count += taken.len();
        taken.into_iter().for_each(taken_back);
    }
    count
}

impl Domain {
    /// Queues deferred work (FI_QUEUE_WORK). It begins by itself; its endpoint, and those that the counter counts for, make
    /// progress by themselves from now on. Reading and waiting for the counter that counts its end drives its endpoint, too. Nothing is told of its success but to its counter, unless the operation's flags ask for
    /// a completion; its failure is also told to the endpoint's completion queue. What waits still when the domain ends (with its last
    /// handle and endpoint) is taken back.
    ///
    /// # Errors
    /// As [`WorkError`] says; then nothing was queued.
    ///
    /// # Safety
    /// As for posting the operation, from now until it has ended or was taken back.
    pub unsafe fn queue_work(&self, work: DeferredWork) -> Result<WorkId, WorkError> {
        let mut id = None;
        // SAFETY: promised by the caller.
        unsafe { self.queue_named_work(work, |name| id = Some(name)) }?;
        Ok(id.expect("the work was named"))
    }

    /// As [`queue_work`](Self::queue_work), but `named` is called with the number before the work can begin: whoever learns of the work's
    /// end may free the memory in which the number is kept (DWQ-019). It must not use the triggering counter, nor whatever looks at all counters
    /// ([`flush_work`](Self::flush_work) without one): the counter's line is locked meanwhile.
    ///
    /// # Errors
    /// As of [`queue_work`](Self::queue_work).
    ///
    /// # Safety
    /// As of [`queue_work`](Self::queue_work).
    pub unsafe fn queue_named_work(&self, work: DeferredWork, named: impl FnOnce(WorkId)) -> Result<(), WorkError> {
        self.check_process()?;
        let DeferredWork { work, counter, threshold, counting } = work;
        // What is refused leaves everything as it was: nobody makes progress by himself because of it.
        let mut user = None;
        let due = match work {
            Work::Add(..) | Work::Set(..) if counting.is_some() => return Err(WorkError::CountedTwice),
            Work::Add(other, count) => Due::Add(other, count),
            Work::Set(other, value) => Due::Set(other, value),
            Work::Transfer(endpoint, operation) => {
                if !Arc::ptr_eq(&endpoint.domain().inner, &self.inner) {
                    return Err(WorkError::OtherDomain);
                }
                let due = endpoint.deferred(&operation, &counter, counting.clone())?;
                endpoint.automate()?;
                if let Some(counting) = &counting {
                    endpoint.drive_for(counting)?;
                }
                user = Some(endpoint);
                due
            }
        };
        counter.automate()?;
        let mut id = None;
        self.defer(due, &counter, threshold, |name| {
            id = Some(name);
            named(name);
        })?;
        // An endpoint that was closed meanwhile may have looked before the work was in line.
        if let (Some(endpoint), Some(id)) = (user, id)
            && endpoint.is_closed()
        {
            self.cancel_work(&id);
        }
        Ok(())
    }

    /// A variable that nobody has written, for one operation ([`post_when_written`](SharedEndpoint::post_when_written)).
    #[must_use]
    pub fn variable(&self) -> Variable {
        Variables::take(&self.inner.variables)
    }

    /// As [`variable`](Self::variable), for programs and streams of this device, which find it at [`Variable::device_address`].
    ///
    /// # Errors
    /// What the device's driver says.
    pub fn device_variable(&self, device: Device) -> Result<Variable, DeviceError> {
        if !self.inner.is_here() {
            let what = "the domain belongs to the process that this one is a fork of".to_owned();
            return Err(DeviceError::Missing { interface: device.interface(), what });
        }
        Variables::take_mapped(&self.inner.variables, device.driver())
    }

    /// Adds `count` to a counter once another has counted so many successes and errors. The other counter's endpoints make progress by
    /// themselves from now on.
    ///
    /// # Errors
    /// If there is no thread for that.
    pub fn defer_add(&self, to: &Counter, count: u64, when: (&Counter, u64)) -> Result<WorkId, WorkError> {
        self.defer_change(Due::Add(to.clone(), count), when)
    }

    /// As [`defer_add`](Self::defer_add), but sets the counter's value.
    ///
    /// # Errors
    /// As of [`defer_add`](Self::defer_add).
    pub fn defer_set(&self, to: &Counter, value: u64, when: (&Counter, u64)) -> Result<WorkId, WorkError> {
        self.defer_change(Due::Set(to.clone(), value), when)
    }

    fn defer_change(&self, due: Due, (counter, threshold): (&Counter, u64)) -> Result<WorkId, WorkError> {
        self.check_process()?;
        counter.automate()?;
        let mut id = None;
        self.defer(due, counter, threshold, |name| id = Some(name))?;
        Ok(id.expect("the work was named"))
    }

    fn defer(&self, due: Due, counter: &Counter, threshold: u64, named: impl FnOnce(WorkId)) -> Result<(), WorkError> {
        let owner = self.owner().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSPC))?;
        // Under the lock: who flushes finds all that was queued before, and the counter that it waits for.
        let mut lines = self.inner.deferred.lines.lock().ok_or(PostError::Forked)?;
        let is_due = counter.queue(Condition::Ends(threshold), Some(owner), due, |ticket, known| {
            if !known {
                lines.add(counter);
            }
            // Whoever is told may queue other work.
            drop(lines);
            named(WorkId { counter: counter.place_in_memory(), ticket });
        });
        if is_due {
            fire(counter);
        }
        Ok(())
    }

    /// Refuses a forked child: the work would be its parent's.
    fn check_process(&self) -> Result<(), PostError> {
        if self.inner.is_here() { Ok(()) } else { Err(PostError::Forked) }
    }

    /// What this domain's work is marked with.
    fn owner(&self) -> Option<NonZeroU32> {
        self.inner.deferred.number
    }

    /// Takes queued work back (FI_CANCEL_WORK): it never begins. False if it has begun, or was taken back already.
    pub fn cancel_work(&self, work: &WorkId) -> bool {
        let counter = self.inner.deferred.lines.lock().and_then(|lines| lines.at(work.counter));
        let Some(counter) = counter else { return false };
        let taken = counter.take_back(|waiting| waiting.cancel(work.ticket, self.owner())).flatten();
        taken.is_some_and(|due| {
            taken_back(due);
            true
        })
    }

    /// Takes back all work of this domain that waits for this counter, or for any (FI_FLUSH_WORK); returns how much.
    pub fn flush_work(&self, counter: Option<&Counter>) -> usize {
        let counters = match counter {
            Some(counter) => vec![counter.clone()],
            None => self.inner.deferred.lines.lock().map_or_else(Vec::new, |lines| lines.all()),
        };
        self.owner().map_or(0, |owner| take_all_back(counters, owner))
    }
}

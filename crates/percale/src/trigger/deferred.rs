//! Deferred work of a domain: what it does, its names, and the counters that it waits for.

use std::collections::HashMap;
use std::io;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

use super::fire::taken_back;
use super::submissions::Operation;
use super::waiting::Ticket;
use crate::completion::counter::{Counter, WeakCounter};
use crate::endpoint::SharedEndpoint;
use crate::endpoint::work::PostError;
use crate::system::forked::ProcessMutex;

/// Why work was not queued.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// The endpoint refuses the operation.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The endpoint belongs to another domain.
    #[error("the work's endpoint belongs to another domain; queue the work there")]
    OtherDomain,
    /// A counter operation was given a completion counter (DWQ-008).
    #[error("work that changes a counter has no completion counter of its own")]
    CountedTwice,
    /// The system refused a thread that makes progress, or refused to watch a descriptor.
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
            Self::System(error) => crate::system::call::errno(error).unwrap_or(libc::EIO),
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
    /// The operation.
    pub work: Work,
    /// The triggering counter.
    pub counter: Counter,
    /// The work begins when the counter has counted this many successes and errors.
    pub threshold: u64,
    /// Counts the end of the work, as a success or an error. `None` for counter operations.
    pub counting: Option<Counter>,
}

/// Names queued work, to [cancel](crate::Domain::cancel_work) it. Once the work has begun, the id names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkId {
    /// The counter's place in memory.
    pub(crate) counter: usize,
    pub(crate) ticket: Ticket,
}

impl WorkId {
    /// The id as three words, for callers that keep it in a C structure.
    #[must_use]
    pub const fn to_words(self) -> [u64; 3] {
        let [line, entry] = self.ticket.to_words();
        [self.counter as u64, line, entry]
    }

    /// Makes an id from the result of [`to_words`](Self::to_words). An id made from any other words most likely names nothing, but
    /// may name other queued work.
    #[must_use]
    pub const fn from_words([counter, line, entry]: [u64; 3]) -> Self {
        Self { counter: counter as usize, ticket: Ticket::from_words([line, entry]) }
    }
}

/// The counters that work of one owner may wait for.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// By their places in memory: a weak handle keeps its counter's place from being reused for another counter.
    counters: HashMap<usize, WeakCounter>,
    /// The place of the counter that was added last, if it is still among them; else 0.
    last: usize,
    /// The number of counters at which those that are gone are removed.
    limit: usize,
}

impl Lines {
    /// Notes that work waits for this counter from now on.
    pub(crate) fn add(&mut self, counter: &Counter) {
        let place = counter.place_in_memory();
        if self.last == place {
            return;
        }
        if self.counters.len() >= self.limit {
            // No handle is created: it might be the last one when it is dropped, and a lock is held here.
            self.counters.retain(|_, counter| counter.is_alive());
            self.limit = 2 * self.counters.len() + 16;
        }
        self.counters.entry(place).or_insert_with(|| counter.downgrade());
        self.last = place;
    }

    /// The counter at this place, if it still exists.
    pub(crate) fn at(&self, place: usize) -> Option<Counter> {
        self.counters.get(&place)?.upgrade()
    }

    /// The counters that still exist.
    pub(crate) fn all(&self) -> Vec<Counter> {
        self.counters.values().filter_map(WeakCounter::upgrade).collect()
    }
}

/// The deferred work of a domain.
#[derive(Debug)]
pub(crate) struct Deferred {
    pub(crate) lines: ProcessMutex<Lines>,
    /// Unique among all domains of the process, past ones included. A counter's line remembers the owner of the work that was
    /// queued last ([`Waiting`](super::Waiting)), so the number of a domain that has ended must not be reused. `None` once all
    /// numbers are used up; such a domain defers nothing.
    pub(crate) number: Option<NonZeroU32>,
}

impl Default for Deferred {
    fn default() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.try_update(Ordering::Relaxed, Ordering::Relaxed, |next| next.checked_add(1));
        Self { lines: ProcessMutex::default(), number: number.ok().and_then(NonZeroU32::new) }
    }
}

/// Cancels the domain's work: otherwise a counter with a handle to that same counter in its own line would stay forever.
impl Drop for Deferred {
    fn drop(&mut self) {
        if !self.lines.is_here() {
            return; // The work belongs to the parent.
        }
        let lines = std::mem::take(self.lines.get_mut());
        if let Some(number) = self.number {
            take_all_back(lines.all(), number);
        }
    }
}

/// Cancels this owner's work that waits for these counters; returns how much there was.
pub(crate) fn take_all_back(counters: Vec<Counter>, owner: NonZeroU32) -> usize {
    let mut count = 0;
    for counter in counters {
        let taken = counter.take_back(|waiting| waiting.cancel_all(|of, _| of == Some(owner))).unwrap_or_default();
        count += taken.len();
        taken.into_iter().for_each(taken_back);
    }
    count
}

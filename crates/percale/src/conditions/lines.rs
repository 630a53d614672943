//! The counters for which work of one owner waits, and the deferred work of a domain.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::completion::counter::{Counter, WaitId, WeakCounter, taken_back};
use crate::system::forked::ProcessMutex;

/// The identifier of queued work, which [cancels](crate::Domain::cancel_work) it. It becomes invalid when the work
/// begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkId {
    /// The address of the counter.
    pub(crate) counter: usize,
    pub(crate) ticket: WaitId,
}

impl WorkId {
    /// Returns the id as three words, for callers that store it in a C structure.
    #[must_use]
    pub const fn to_words(self) -> [u64; 3] {
        let [line, entry] = self.ticket.to_words();
        [self.counter as u64, line, entry]
    }

    /// Creates an id from the result of [`to_words`](Self::to_words). An id from any other words is most likely
    /// invalid, but may refer to other queued work.
    #[must_use]
    pub const fn from_words([counter, line, entry]: [u64; 3]) -> Self {
        Self { counter: counter as usize, ticket: WaitId::from_words([line, entry]) }
    }
}

/// The counters for which work of one owner may wait.
#[derive(Debug, Default)]
pub(crate) struct CounterLines {
    /// The counters by address. A weak handle prevents the address from being reused for another counter.
    counters: HashMap<usize, WeakCounter>,
    /// The address of the counter that was added last, if it is still in the map, otherwise 0.
    last: usize,
    /// The number of counters at which those that no longer exist are removed.
    limit: usize,
}

impl CounterLines {
    /// Records that work waits for this counter from now on.
    pub(crate) fn add(&mut self, counter: &Counter) {
        let place = counter.place_in_memory();
        if self.last == place {
            return;
        }
        if self.counters.len() >= self.limit {
            // No strong handle is created: it might be the last one when it is dropped, and a lock is held here.
            self.counters.retain(|_, counter| counter.is_alive());
            self.limit = 2 * self.counters.len() + 16;
        }
        self.counters.entry(place).or_insert_with(|| counter.downgrade());
        self.last = place;
    }

    /// Returns the counter at this address, if it still exists.
    pub(crate) fn at(&self, place: usize) -> Option<Counter> {
        self.counters.get(&place)?.upgrade()
    }

    /// Returns the counters that still exist.
    pub(crate) fn all(&self) -> Vec<Counter> {
        self.counters.values().filter_map(WeakCounter::upgrade).collect()
    }
}

/// The deferred work of a domain.
#[derive(Debug)]
pub(crate) struct DeferredWorkList {
    pub(crate) lines: ProcessMutex<CounterLines>,
    /// A number that is unique among all domains of the process, including past ones. A counter's line stores the owner
    /// of the work that was queued last ([`Waiting`](crate::completion::counter::Waiting)), so the number of a domain
    /// that has ended must not be reused. `None` if all numbers are used up; such a domain cannot defer work.
    pub(crate) number: Option<NonZeroU32>,
}

impl Default for DeferredWorkList {
    fn default() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.try_update(Ordering::Relaxed, Ordering::Relaxed, |next| next.checked_add(1));
        Self { lines: ProcessMutex::default(), number: number.ok().and_then(NonZeroU32::new) }
    }
}

/// Cancels the domain's work. Otherwise a counter with a handle to itself in its line would never be freed.
impl Drop for DeferredWorkList {
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

/// Cancels this owner's work that waits for these counters. Returns the number of canceled operations.
pub(crate) fn take_all_back(counters: Vec<Counter>, owner: NonZeroU32) -> usize {
    let mut count = 0;
    for counter in counters {
        let taken = counter.take_back(|waiting| waiting.cancel_all(|of, _| of == Some(owner))).unwrap_or_default();
        count += taken.len();
        taken.into_iter().for_each(taken_back);
    }
    count
}

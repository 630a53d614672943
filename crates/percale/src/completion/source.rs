//! The members of poll sets and wait sets: queues, counters and event queues.

use std::sync::{Mutex, PoisonError};

use super::counter::{Counter, WeakCounter};
use super::event::EventQueue;
use super::queue::CompletionQueue;
use super::wait::{Driven, Wait};

/// An object that can be polled or waited for together with others. It is created from a reference to a queue, counter
/// or event queue, and is another handle to it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Source {
    /// Ready while a result waits.
    Queue(CompletionQueue),
    /// Ready when a value has changed.
    Counter(Counter),
    /// Ready while an event waits.
    Events(EventQueue),
}

impl From<&CompletionQueue> for Source {
    fn from(queue: &CompletionQueue) -> Self {
        Self::Queue(queue.clone())
    }
}

impl From<&Counter> for Source {
    fn from(counter: &Counter) -> Self {
        Self::Counter(counter.clone())
    }
}

impl From<&EventQueue> for Source {
    fn from(events: &EventQueue) -> Self {
        Self::Events(events.clone())
    }
}

impl Source {
    /// Returns the `Wait` in which its readers sleep.
    pub(super) fn wait(&self) -> &Wait {
        match self {
            Self::Queue(queue) => queue.place(),
            Self::Counter(counter) => counter.place(),
            Self::Events(events) => events.place(),
        }
    }

    /// Returns whether both are handles to the same object, which then has one `Wait`.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq(self.wait(), other.wait())
    }
}

/// Marks the queues, counters and event queues that an endpoint of one owner reports to, while it reports there. No wait
/// for them can drive the endpoint.
#[derive(Debug, Default)]
pub(crate) struct Undriven {
    sources: Vec<Source>,
    /// The counters of deferred work. They are not kept alive, because there may be a new one for each operation.
    of_work: Vec<WeakCounter>,
}

impl Undriven {
    /// Creates the marks of an endpoint that reports to these sources.
    pub(crate) fn new(sources: Vec<Source>) -> Self {
        sources.iter().for_each(|source| source.wait().add_undriven());
        Self { sources, of_work: Vec::new() }
    }

    /// Adds a source to which the endpoint also reports.
    pub(crate) fn add(&mut self, source: Source) {
        source.wait().add_undriven();
        self.sources.push(source);
    }

    /// Adds a counter that counts deferred work of the endpoint, unless it was added before.
    pub(crate) fn add_of_work(&mut self, counter: &Counter) {
        self.of_work.retain(WeakCounter::is_alive);
        if !self.of_work.iter().filter_map(WeakCounter::upgrade).any(|known| known.is_same(counter)) {
            counter.place().add_undriven();
            self.of_work.push(counter.downgrade());
        }
    }
}

impl Drop for Undriven {
    fn drop(&mut self) {
        self.sources.iter().for_each(|source| source.wait().remove_undriven());
        self.of_work.iter().filter_map(WeakCounter::upgrade).for_each(|counter| counter.place().remove_undriven());
    }
}

/// A member of a set.
///
/// A counter is reported if it changed since the set last reported it, or since it became a member. A queue and an
/// event queue are reported while they are not empty.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) source: Source,
    /// The counter's values when the set last reported it.
    reported: Mutex<[u64; 3]>,
}

impl Member {
    pub(super) fn new(source: Source) -> Self {
        let reported = Mutex::new(if let Source::Counter(counter) = &source { counter.state() } else { [0; 3] });
        Self { source, reported }
    }

    /// Returns whether the member is ready.
    fn is_ready(&self) -> bool {
        match &self.source {
            Source::Queue(queue) => !queue.is_empty(),
            Source::Counter(counter) => {
                counter.state() != *self.reported.lock().unwrap_or_else(PoisonError::into_inner)
            }
            Source::Events(events) => !events.is_empty(),
        }
    }

    /// Returns whether the member is ready, and records that the caller will report this.
    pub(super) fn take_ready(&self) -> bool {
        let Source::Counter(counter) = &self.source else { return self.is_ready() };
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let now = counter.state();
        std::mem::replace(&mut *reported, now) != now
    }
}

/// The driver that wakes the set. The endpoints that feed the member are drivers of the set themselves.
impl Driven for Member {
    fn progress(&self) {}

    fn arm(&self) -> bool {
        self.source.wait().mark();
        !self.is_ready()
    }
}

//! The destinations of an endpoint's reports: its own completion queue, the queues that it shares with others, its
//! counters, and its event queue.
//!
//! Invariants:
//! * An operation of [`Notify::Queue`](super::types::Notify::Queue) has reserved room in the queue of its direction
//!   before it is posted. One report uses up that room ([`push`](Reporting::push),
//!   [`push_error`](Reporting::push_error)), or the room is returned ([`unreserve`](Reporting::unreserve)).
//! * Without a shared queue for a direction, its results are in the endpoint's own queue, except those of safe
//!   operations.
//! * [`results`](Reporting::results) increases with every result and is never reset. Sleeping threads compare it.
//! * If the results of a direction may need anything besides one push to the endpoint's own queue, its
//!   `fast_path_disabled` is set and no fast path is used for it.

mod counters;
#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use self::counters::Counters;
use super::types::Side;
use crate::completion::entry::{Entry, ErrorEntry};
use crate::completion::event::{Event, EventQueue};
use crate::completion::queue::CompletionQueue;
use crate::completion::ring::{ErrorAvailable, QueueFull, Ring};
use crate::completion::source::Source;

/// The destinations that an endpoint was given.
#[derive(Debug, Default)]
pub(crate) struct Targets {
    /// The queue for operations that the endpoint begins, in place of the endpoint's own queue.
    pub(crate) transmit: Option<CompletionQueue>,
    /// The queue for received messages, in place of the endpoint's own queue.
    pub(crate) receive: Option<CompletionQueue>,
    pub(crate) counters: Counters,
    pub(crate) events: Option<EventQueue>,
}

/// The destinations for the results of one direction, apart from safe operations.
#[derive(Debug)]
struct Direction {
    /// The shared queue. Without one, results go to the endpoint's own queue.
    queue: Option<CompletionQueue>,
    /// Whether some results do not go only to the endpoint's own queue. Then the fast paths are not used.
    fast_path_disabled: bool,
    /// Whether some of the operations are counted, or were begun by counters.
    counted: bool,
}

impl Direction {
    const fn new(queue: Option<CompletionQueue>, counted: bool) -> Self {
        Self { fast_path_disabled: queue.is_some() || counted, queue, counted }
    }

    const fn count(&mut self, counted: bool) {
        self.counted |= counted;
        self.fast_path_disabled |= self.counted;
    }
}

/// The destinations of an endpoint's reports.
#[derive(Debug)]
pub(crate) struct Reporting {
    /// The endpoint's own completion queue.
    own: Ring,
    transmit: Direction,
    receive: Direction,
    counters: Counters,
    events: Option<EventQueue>,
    /// The number of results that were reported to a queue, other than those of fast paths to the endpoint's own.
    reported: u64,
}

impl Reporting {
    /// Creates the state for reports to these destinations. `fast_path_disabled` states whether a received message may
    /// need anything besides one push to the endpoint's own queue, for a reason other than the targets.
    pub(crate) fn new(targets: Targets, fast_path_disabled: bool) -> Self {
        let Targets { transmit, receive, counters, events } = targets;
        let mut receive = Direction::new(receive, counters.count_receives());
        receive.fast_path_disabled |= fast_path_disabled;
        let transmit = Direction::new(transmit, counters.count_transmits());
        Self { own: Ring::default(), transmit, receive, counters, events, reported: 0 }
    }

    #[inline(always)]
    const fn direction(&self, side: Side) -> &Direction {
        match side {
            Side::Transmit => &self.transmit,
            Side::Receive => &self.receive,
        }
    }

    /// Returns the endpoint's own queue, and whether received messages are excluded from the fast paths.
    #[inline(always)]
    pub(super) const fn receive_path(&mut self) -> (&mut Ring, bool) {
        (&mut self.own, self.receive.fast_path_disabled)
    }

    /// Returns the endpoint's own queue, and whether operations that it begins are excluded from the fast paths.
    #[inline(always)]
    pub(super) const fn transmit_path(&mut self) -> (&mut Ring, bool) {
        (&mut self.own, self.transmit.fast_path_disabled)
    }

    /// Returns whether received messages are excluded from the fast paths.
    #[inline(always)]
    pub(super) const fn is_receive_fast_path_disabled(&self) -> bool {
        self.receive.fast_path_disabled
    }

    /// Sets whether received messages are excluded from the fast paths for a reason other than the targets.
    pub(super) const fn disable_receive_fast_path(&mut self, other: bool) {
        let Direction { queue, counted, fast_path_disabled } = &mut self.receive;
        *fast_path_disabled = queue.is_some() || *counted || other;
    }

    /// Returns the shared queue of this direction, if it has one.
    #[inline(always)]
    pub(crate) const fn queue_of(&self, side: Side) -> Option<&CompletionQueue> {
        self.direction(side).queue.as_ref()
    }

    /// Returns the shared queues of both directions.
    pub(crate) fn queues(&self) -> [Option<CompletionQueue>; 2] {
        [self.transmit.queue.clone(), self.receive.queue.clone()]
    }

    /// Returns the shared queues, the counters and the event queue.
    pub(crate) fn sources(&self) -> Vec<Source> {
        let queues = [&self.transmit, &self.receive].into_iter().filter_map(|direction| direction.queue.as_ref());
        let counters = self.counters.all().map(Source::from);
        queues.map(Source::from).chain(counters).chain(self.events.as_ref().map(Source::from)).collect()
    }

    pub(crate) const fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) const fn events(&self) -> Option<&EventQueue> {
        self.events.as_ref()
    }

    /// Returns whether some operations of this direction are counted, or were begun by counters.
    #[inline(always)]
    pub(super) const fn is_counted(&self, side: Side) -> bool {
        self.direction(side).counted
    }

    /// Treats operations of both directions as counted from now on.
    pub(super) const fn count_all(&mut self) {
        (self.transmit.counted, self.receive.counted) = (true, true);
    }

    /// Changes the counters. Operations that are counted no longer use the fast paths.
    pub(super) fn change_counters<R>(&mut self, change: impl FnOnce(&mut Counters) -> R) -> R {
        let result = change(&mut self.counters);
        self.transmit.count(self.counters.count_transmits());
        self.receive.count(self.counters.count_receives());
        result
    }

    /// Reserves room for one result.
    #[inline]
    pub(super) fn reserve(&mut self, side: Side) -> Result<(), QueueFull> {
        match &self.direction(side).queue {
            Some(queue) => queue.reserve(),
            None => self.own.reserve(),
        }
    }

    /// Returns reserved room that is not used.
    #[inline]
    pub(super) fn unreserve(&mut self, side: Side) {
        match &self.direction(side).queue {
            Some(queue) => queue.update(Ring::unreserve),
            None => self.own.unreserve(),
        }
    }

    /// Reports a success for which room was reserved.
    #[inline(always)]
    pub(super) fn push(&mut self, side: Side, entry: Entry) {
        match &self.direction(side).queue {
            Some(queue) => queue.push(entry),
            None => self.own.push(entry),
        }
        self.reported += 1;
    }

    /// Reports a success for which no room was reserved.
    #[inline(always)]
    pub(super) fn push_event(&mut self, side: Side, entry: Entry) {
        match &self.direction(side).queue {
            Some(queue) => queue.update(|ring| ring.push_event(entry)),
            None => self.own.push_event(entry),
        }
        self.reported += 1;
    }

    /// Reports a failure for which room was reserved.
    pub(super) fn push_error(&mut self, side: Side, error: ErrorEntry) {
        match &self.direction(side).queue {
            Some(queue) => queue.push_error(error),
            None => self.own.push_error(error),
        }
        self.reported += 1;
    }

    /// Reports a failure for which no room was reserved.
    pub(super) fn push_error_event(&mut self, side: Side, error: ErrorEntry) {
        match &self.direction(side).queue {
            Some(queue) => queue.update(|ring| ring.push_error_event(error)),
            None => self.own.push_error_event(error),
        }
        self.reported += 1;
    }

    /// Returns whether arriving messages can be reported. If not, transports are not drained, and their senders wait.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        match &self.receive.queue {
            None => self.own.has_room(),
            Some(queue) => queue.update(|ring| ring.has_room()),
        }
    }

    /// Returns the number of results for which room is reserved in the endpoint's own queue (see `remains`).
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn reserved(&self) -> usize {
        self.own.reserved()
    }

    /// Returns whether the endpoint's own queue is empty.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// Reads results from the endpoint's own queue.
    #[inline(always)]
    pub(super) fn read(&mut self, entries: &mut [Entry]) -> Result<usize, ErrorAvailable> {
        self.own.read(entries)
    }

    /// Takes the error that is next in the endpoint's own queue.
    pub(crate) fn read_error(&mut self) -> Option<ErrorEntry> {
        self.own.read_error()
    }

    /// Counts a change as a result, for threads that sleep until the endpoint has one.
    pub(super) const fn count_change(&mut self) {
        self.reported += 1;
    }

    /// Returns a number that increases with every result.
    pub(super) const fn results(&self) -> u64 {
        self.reported + self.own.pushed()
    }

    /// Pushes an event to the event queue, if there is one.
    pub(crate) fn event(&self, event: impl FnOnce() -> Event) {
        if let Some(events) = &self.events {
            events.push(event());
        }
    }
}

//! Events that do not belong to a single operation.
//!
//! An [`EventQueue`] holds events until they are read, oldest first. It is for notification, not for accounting: it
//! keeps a limited number of events, besides the outcomes of asynchronous insertions, which are always kept. Beyond the
//! limit the newest events are counted instead of kept, and an [`Event::Lost`] at their position in the queue reports
//! how many were lost. Cloning returns another handle to the same queue. The queue has one lock, which is not held
//! while other code is called.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::entry::ErrorCode;
use super::request::ConnectionRequest;
use super::wait::{Driven, Wait, WaitError, wait_api};
use crate::address_vector::error::AddressError;
use crate::collective::GroupId;
use crate::types::PeerAddress;

/// The default number of events that a queue keeps.
pub const DEFAULT_LIMIT: usize = 4096;

/// An event that does not belong to a single operation.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A connection to a peer was established.
    Connected {
        /// The endpoint's [id](crate::Endpoint::id).
        endpoint: u64,
        /// The peer, or `UNSPECIFIED` if it is not in the endpoint's address vector. Use `address` then.
        peer: PeerAddress,
        /// The address of the peer.
        address: SocketAddr,
        /// The name of the chosen transport.
        transport: &'static str,
        /// The reason why this transport was chosen instead of a better one.
        reason: String,
        /// The data that the other side of an endpoint of one connection passed with its request or acceptance. Empty
        /// for other endpoints.
        data: Vec<u8>,
    },
    /// A peer requests a connection from a listener.
    ConnectionRequest(ConnectionRequest),
    /// An endpoint of one connection could not establish its connection.
    ConnectionRefused {
        /// The endpoint's [id](crate::Endpoint::id).
        endpoint: u64,
        /// The address of the other side.
        address: SocketAddr,
        /// The error code: `Refused` if the peer rejected the request, or no listener has that address.
        error: ErrorCode,
        /// The reason, as text.
        reason: String,
        /// The data that the listener's owner passed with its rejection.
        data: Vec<u8>,
    },
    /// The connection of an endpoint of one connection has ended: the peer shut it down, closed its endpoint or died.
    /// All messages that the peer had passed to its transport have arrived.
    Shutdown {
        /// The endpoint's [id](crate::Endpoint::id).
        endpoint: u64,
        /// The address of the peer.
        address: SocketAddr,
        /// `Closed` if the peer shut the connection down.
        error: ErrorCode,
        /// How the end was detected.
        reason: String,
    },
    /// All members of a group have joined it. Its operations can be posted.
    Joined {
        /// The group.
        group: GroupId,
        /// The context that was passed to the join.
        context: u64,
    },
    /// A group could not be formed.
    JoinFailed {
        /// The group.
        group: GroupId,
        /// The context that was passed to the join.
        context: u64,
        /// The error code.
        error: ErrorCode,
        /// The reason, as text.
        reason: String,
    },
    /// A connection could not be established. The operations that waited for it fail. The next operation to the peer
    /// tries again.
    Failed {
        /// The peer, or `UNSPECIFIED` if it is not in the endpoint's address vector. Use `address` then.
        peer: PeerAddress,
        /// The address of the peer.
        address: SocketAddr,
        /// The error code with which the operations that waited for the connection fail.
        /// [`is_retriable`](ErrorCode::is_retriable) returns whether a later attempt may succeed.
        error: ErrorCode,
        /// The reason, as text.
        reason: String,
    },
    /// A peer closed its endpoint, died, or can no longer be reached. Operations to it that were under way have failed.
    PeerDown {
        /// The peer, or `UNSPECIFIED` if it is not in the endpoint's address vector. Use `address` then.
        peer: PeerAddress,
        /// The address of the peer.
        address: SocketAddr,
        /// The error code with which the operations that were under way fail: [`Closed`](ErrorCode::Closed) if the peer
        /// closed its endpoint or this process disconnected it, [`PeerDied`](ErrorCode::PeerDied) if its process ended,
        /// [`TimedOut`](ErrorCode::TimedOut) if it no longer answers.
        error: ErrorCode,
        /// How the loss was detected.
        reason: String,
    },
    /// Another process, or a new run of the same program, now answers at a peer's address. Operations to the former
    /// process that were under way have failed, and its keys are invalid.
    PeerReplaced {
        /// The peer, or `UNSPECIFIED` if it is not in the endpoint's address vector. Use `address` then.
        peer: PeerAddress,
        /// The address of the peer.
        address: SocketAddr,
    },
    /// An address of an asynchronous insertion could not be inserted.
    AddressFailed {
        /// The [inserter's id](crate::address::Inserter::id).
        inserter: u64,
        /// The context that was passed to the insertion.
        context: u64,
        /// The address's index in the insertion.
        index: u64,
        /// The reason.
        error: AddressError,
    },
    /// An asynchronous insertion has ended. Its errors were reported before.
    AddressesInserted {
        /// The [inserter's id](crate::address::Inserter::id).
        inserter: u64,
        /// The context that was passed to the insertion.
        context: u64,
        /// The number of addresses that were inserted.
        count: u64,
    },
    /// An asynchronous registration has completed, and the region exists
    /// ([`PendingRegion::finish`](crate::memory::region::PendingRegion::finish)).
    Registered {
        /// The context that was passed to the registration.
        context: u64,
    },
    /// An asynchronous registration has failed.
    RegistrationFailed {
        /// The context that was passed to the registration.
        context: u64,
        /// The libfabric code.
        errno: i32,
        /// The reason, as text.
        reason: String,
    },
    /// An event that the application wrote.
    User {
        /// The application's own number for the kind of event.
        code: u32,
        /// The application's data.
        data: Vec<u8>,
    },
    /// Events arrived faster than they were read, and some events at this position were lost.
    Lost {
        /// The number of lost events.
        count: u64,
    },
}

impl std::fmt::Debug for Event {
    /// Formats the kind of the event and the reason. Data that peers sent is not written to logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, reason) = match self {
            Self::Connected { reason, .. } => ("Connected", reason.as_str()),
            Self::ConnectionRequest(_) => ("ConnectionRequest", ""),
            Self::ConnectionRefused { reason, .. } => ("ConnectionRefused", reason.as_str()),
            Self::Shutdown { reason, .. } => ("Shutdown", reason.as_str()),
            Self::Joined { .. } => ("Joined", ""),
            Self::JoinFailed { reason, .. } => ("JoinFailed", reason.as_str()),
            Self::Failed { reason, .. } => ("Failed", reason.as_str()),
            Self::PeerDown { reason, .. } => ("PeerDown", reason.as_str()),
            Self::PeerReplaced { .. } => ("PeerReplaced", ""),
            Self::AddressFailed { .. } => ("AddressFailed", ""),
            Self::AddressesInserted { .. } => ("AddressesInserted", ""),
            Self::Registered { .. } => ("Registered", ""),
            Self::RegistrationFailed { reason, .. } => ("RegistrationFailed", reason.as_str()),
            Self::User { .. } => ("User", ""),
            Self::Lost { .. } => ("Lost", ""),
        };
        let reason = crate::debug::cut(reason);
        if reason.is_empty() { write!(f, "Event::{name}") } else { write!(f, "Event::{name}: {reason}") }
    }
}

/// The error that is returned if the queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the event queue is full; read events and retry")]
#[non_exhaustive]
pub struct EventQueueFull;

crate::short_debug!(EventQueue, "EventQueue");

impl EventQueueFull {
    /// Returns whether the same call may succeed later although neither it nor the program is changed. Always true:
    /// there is room after events were read.
    #[must_use]
    pub const fn is_retriable(self) -> bool {
        true
    }

    /// Returns the libfabric code for this error.
    #[must_use]
    pub const fn errno(self) -> i32 {
        libc::EAGAIN
    }
}

/// A queue of events that wait to be read. Clones are handles to the same queue.
#[derive(Clone)]
pub struct EventQueue {
    shared: Arc<EventQueueState>,
}

/// An event, or a function that creates one.
enum QueuedEvent {
    Event(Event),
    /// The event is created when it is read. The function may return no event.
    Later(Box<dyn FnOnce() -> Option<Event> + Send>),
    /// The error of an address and of the addresses after it that failed for the same reason, with their total number.
    Failed {
        first: Event,
        count: u64,
    },
}

impl QueuedEvent {
    /// Returns the number of events that the item represents.
    const fn len(&self) -> u64 {
        match self {
            Self::Event(_) | Self::Later(_) => 1,
            Self::Failed { count, .. } => *count,
        }
    }
}

impl std::fmt::Debug for QueuedEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Event(event) => event.fmt(f),
            Self::Later(_) => f.write_str("Later"),
            Self::Failed { first, count } => write!(f, "{count} times {first:?}"),
        }
    }
}

#[derive(Debug)]
struct EventQueueState {
    events: Mutex<VecDeque<QueuedEvent>>,
    limit: usize,
    wait: Wait,
}

impl Default for EventQueue {
    fn default() -> Self {
        Self::new(DEFAULT_LIMIT)
    }
}

impl EventQueue {
    /// Creates a queue that keeps up to `limit` events (at least one).
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let shared = EventQueueState { events: Mutex::new(VecDeque::new()), limit: limit.max(1), wait: Wait::new() };
        Self { shared: Arc::new(shared) }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<QueuedEvent>> {
        self.shared.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event. This never fails, but beyond the limit the event is only counted.
    pub fn push(&self, event: Event) {
        if !self.shared.wait.is_here() {
            return;
        }
        let mut events = self.lock();
        if events.len() < self.shared.limit {
            events.push_back(QueuedEvent::Event(event));
        } else if let Some(QueuedEvent::Event(Event::Lost { count })) = events.back_mut() {
            *count += 1;
        } else {
            events.push_back(QueuedEvent::Event(Event::Lost { count: 1 }));
        }
        drop(events);
        self.shared.wait.notify();
    }

    /// Adds an event that the application depends on. It is kept even beyond the limit.
    pub(crate) fn push_required(&self, event: Event) {
        self.push_beyond(QueuedEvent::Event(event));
    }

    /// Adds one event for each of `count` (at least one) consecutive addresses whose insertion failed for the same
    /// reason. `first` is the event of the first address. Together they take the room of one event, because a range may
    /// have a million addresses.
    pub(crate) fn push_failures(&self, first: Event, count: u64) {
        debug_assert!(
            matches!(first, Event::AddressFailed { .. }),
            "only the events of failed addresses have an index to increment"
        );
        self.push_beyond(QueuedEvent::Failed { first, count });
    }

    /// Adds an item even beyond the limit. In a forked child, where nothing reads the queue, this does nothing.
    fn push_beyond(&self, item: QueuedEvent) {
        if self.shared.wait.is_here() {
            self.lock().push_back(item);
            self.shared.wait.notify();
        }
    }

    /// Adds an event of the application.
    ///
    /// # Errors
    /// If the queue is full.
    pub fn write(&self, code: u32, data: impl Into<Vec<u8>>) -> Result<(), EventQueueFull> {
        self.add(QueuedEvent::Event(Event::User { code, data: data.into() }))
    }

    /// Adds a function that creates an event when the event is read. The reader calls it outside of all locks. If it
    /// returns `None`, there is no event. It runs before any reader gets the event, so the change that the event
    /// reports has already taken effect.
    ///
    /// # Errors
    /// If the queue is full.
    pub fn write_later(&self, make: impl FnOnce() -> Option<Event> + Send + 'static) -> Result<(), EventQueueFull> {
        self.add(QueuedEvent::Later(Box::new(make)))
    }

    fn add(&self, item: QueuedEvent) -> Result<(), EventQueueFull> {
        if !self.shared.wait.is_here() {
            return Err(EventQueueFull);
        }
        let mut events = self.lock();
        if events.len() >= self.shared.limit {
            return Err(EventQueueFull);
        }
        events.push_back(item);
        drop(events);
        self.shared.wait.notify();
        Ok(())
    }

    /// Drives the shared endpoints that report here, then takes the oldest event, if there is one. An endpoint of one
    /// owner ([`Endpoint`](crate::Endpoint)) is not driven: it adds its events during its own calls.
    #[must_use]
    pub fn read(&self) -> Option<Event> {
        self.shared.wait.drive();
        self.take()
    }

    fn take(&self) -> Option<Event> {
        if !self.shared.wait.is_here() {
            return None; // The events belong to the parent.
        }
        loop {
            let mut events = self.lock();
            let item = match events.front_mut() {
                Some(QueuedEvent::Failed { first, count }) if *count > 1 => {
                    *count -= 1;
                    let event = first.clone();
                    if let Event::AddressFailed { index, .. } = first {
                        *index += 1;
                    }
                    Some(QueuedEvent::Event(event))
                }
                _ => events.pop_front(),
            };
            let more = !events.is_empty();
            drop(events);
            if more {
                self.shared.wait.notify();
            }
            match item? {
                QueuedEvent::Event(event) | QueuedEvent::Failed { first: event, .. } => return Some(event),
                QueuedEvent::Later(make) => {
                    if let Some(event) = make() {
                        return Some(event);
                    }
                }
            }
        }
    }

    /// Returns the oldest event without removing it.
    #[must_use]
    pub fn peek(&self) -> Option<Event> {
        if !self.shared.wait.is_here() {
            return None;
        }
        self.shared.wait.drive();
        loop {
            let mut events = self.lock();
            match events.front()? {
                QueuedEvent::Event(event) | QueuedEvent::Failed { first: event, .. } => return Some(event.clone()),
                QueuedEvent::Later(_) => {}
            }
            let Some(QueuedEvent::Later(make)) = events.pop_front() else {
                unreachable!("the queue is locked, and its first item is a function")
            };
            drop(events);
            if let Some(event) = make() {
                self.lock().push_front(QueuedEvent::Event(event));
                // The queue looked empty meanwhile, so another thread may have fallen asleep.
                self.shared.wait.notify();
            }
        }
    }

    /// Returns the number of events that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        if !self.shared.wait.is_here() {
            return 0;
        }
        self.lock().iter().map(|item| item.len() as usize).sum()
    }

    /// Returns whether no event waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.shared.wait.is_here() || self.lock().is_empty()
    }

    /// Takes the oldest event. If there is none, waits for at most `timeout` (`None`: no limit), and drives the shared
    /// endpoints that report here.
    ///
    /// # Errors
    /// If there was no event in time, or the thread could not sleep. If there is no event and an endpoint of one owner
    /// ([`Endpoint`](crate::Endpoint), not [`SharedEndpoint`](crate::SharedEndpoint)) reports here, it fails
    /// immediately ([`WaitError::NotDriven`]), also if the awaited event comes from elsewhere. Use another queue for
    /// insertions, registrations and listeners in this case.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Event, WaitError> {
        self.shared.wait.until(timeout, || self.take())
    }
}

wait_api!(EventQueue);

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirements: AV-034, AV-037.
    #[test]
    fn failure_range_is_stored_once_and_reported_one_by_one() {
        let queue = EventQueue::new(2);
        let failed = |index| Event::AddressFailed { inserter: 1, context: 2, index, error: AddressError::Full };
        queue.push_failures(failed(5), 1_000_000);
        queue.push_failures(failed(0), 1);
        queue.push_required(Event::AddressesInserted { inserter: 1, context: 2, count: 0 });
        assert_eq!((queue.len(), queue.lock().len()), (1_000_002, 3));
        assert_eq!((queue.peek(), queue.peek()), (Some(failed(5)), Some(failed(5))));
        assert!((5..1_000_005).all(|index| queue.read() == Some(failed(index))));
        assert_eq!((queue.read(), queue.len()), (Some(failed(0)), 1));
        assert!(matches!(queue.read(), Some(Event::AddressesInserted { .. })));
        assert!(queue.is_empty() && queue.read().is_none());
    }

    #[test]
    fn events_are_read_in_order_and_peeking_leaves_them() {
        let queue = EventQueue::default();
        queue.write(1, b"one".as_slice()).unwrap();
        let address = "10.0.0.1:5".parse().unwrap();
        queue.push(Event::PeerDown {
            peer: PeerAddress(0),
            address,
            error: ErrorCode::PeerDied,
            reason: "reset".into(),
        });
        let first = Event::User { code: 1, data: b"one".to_vec() };
        assert_eq!(queue.peek(), Some(first.clone()));
        assert_eq!(queue.read(), Some(first));
        assert!(matches!(queue.wait(None), Ok(Event::PeerDown { .. })));
        assert_eq!(queue.read(), None);
        assert!(matches!(queue.wait(Some(Duration::ZERO)), Err(WaitError::TimedOut)));
    }

    #[test]
    fn events_dropped_by_a_full_queue_are_counted() {
        let queue = EventQueue::new(2);
        for code in 0..5 {
            queue.push(Event::User { code, data: Vec::new() });
        }
        assert_eq!(queue.write(9, Vec::new()), Err(EventQueueFull));
        assert!(matches!(queue.read(), Some(Event::User { code: 0, .. })));
        assert!(matches!(queue.read(), Some(Event::User { code: 1, .. })));
        assert_eq!(queue.read(), Some(Event::Lost { count: 3 }));
        assert!(queue.is_empty());
    }

    /// Requirements: MR-064.
    #[test]
    fn deferred_event_is_created_once_and_keeps_its_position() {
        let queue = EventQueue::new(4);
        let made = Arc::new(Mutex::new(0));
        for number in 0..3 {
            let made = Arc::clone(&made);
            let later = move || {
                *made.lock().unwrap() += 1;
                (number != 1).then_some(Event::Registered { context: number })
            };
            queue.write_later(later).unwrap();
        }
        queue.write(5, Vec::new()).unwrap();
        assert_eq!(queue.write_later(|| None), Err(EventQueueFull));
        assert_eq!(*made.lock().unwrap(), 0, "no reader has taken the event yet");
        assert_eq!(queue.peek(), Some(Event::Registered { context: 0 }));
        assert_eq!(queue.peek(), Some(Event::Registered { context: 0 }));
        assert_eq!((queue.read(), *made.lock().unwrap()), (Some(Event::Registered { context: 0 }), 1));
        assert_eq!((queue.read(), *made.lock().unwrap()), (Some(Event::Registered { context: 2 }), 3));
        assert!(matches!(queue.read(), Some(Event::User { code: 5, .. })));
        assert_eq!(queue.peek(), None);
    }

    fn is_readable(queue: &EventQueue) -> bool {
        crate::completion::wait::tests::is_readable(queue.descriptor().unwrap())
    }

    #[test]
    fn descriptor_is_readable_after_a_read_that_leaves_events() {
        let queue = EventQueue::default();
        (0..2).for_each(|code| queue.write(code, Vec::new()).unwrap());
        assert!(!queue.try_wait().unwrap());
        assert!(queue.read().is_some() && is_readable(&queue));
        assert!(!queue.try_wait().unwrap());
        assert!(queue.read().is_some() && !is_readable(&queue));
        assert!(queue.try_wait().unwrap());
    }

    /// While a reader creates the event, the queue looks empty, and another thread may fall asleep.
    #[test]
    fn event_that_a_peek_creates_wakes_sleeping_readers() {
        let queue = EventQueue::default();
        let sleeper = queue.clone();
        let later = move || sleeper.try_wait().unwrap().then_some(Event::Registered { context: 1 });
        queue.write_later(later).unwrap();
        assert_eq!(queue.peek(), Some(Event::Registered { context: 1 }));
        assert!(is_readable(&queue));
    }

    #[test]
    fn a_sleeping_reader_wakes_for_an_event() {
        let queue = EventQueue::default();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| queue.wait(None));
            std::thread::sleep(Duration::from_millis(2));
            queue.write(7, Vec::new()).unwrap();
            assert!(matches!(reader.join().unwrap(), Ok(Event::User { code: 7, .. })));
        });
    }
}

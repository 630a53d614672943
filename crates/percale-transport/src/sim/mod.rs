//! A deterministic network for tests. It has connections within one process and a virtual clock.
//!
//! A [`Network`] creates pairs of [`SimLink`]s. The delay of each frame is random. Frames of one connection never
//! overtake each other, but frames of different connections may. At random, frames are passed to the sink in pieces and
//! connections are lost. The seed and the order of calls determine everything, and every connection has its own random
//! numbers. So the same test with the same seed produces the same events ([`Network::trace`]), and an additional
//! connection does not change anything for the others.
//!
//! The clock advances by a tick with every poll of a link, and by [`Network::advance`] and
//! [`Network::advance_to_arrival`].
//!
//! Locking: one mutex protects the state of the whole network. It is held during a call into the network and never
//! while a sink is called.

mod link;
mod port;
mod random;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use link::SimLink;
pub use port::{SimNotice, SimPort, SimSite};
use random::Random;

use super::{Broken, Refused};
use crate::wire::head::{FrameKind, Head};

/// The options of a simulated network. Times are in virtual nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct SimOptions {
    /// The shortest and the longest delay of a frame.
    pub delay: (u64, u64),
    /// The time by which the clock advances with each poll.
    pub tick: u64,
    /// The probability, per million, that sending a frame breaks the connection.
    pub loss: u32,
    /// The probability, per million, that the payload of a message arrives in pieces.
    pub pieces: u32,
    /// The longest payload of a message frame. It is small, so that offers are tested as well.
    pub frame_limit: usize,
    /// The number of bytes that may be in flight in one direction before messages are refused.
    pub window: usize,
    /// Whether the endpoints of one domain share one set of descriptors, instead of having three descriptors each. This
    /// is for tests with thousands of endpoints on which no thread sleeps: a thread that sleeps on a shared descriptor
    /// is woken up only by a timeout.
    pub shared_descriptors: bool,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            delay: (200, 20_000),
            tick: 100,
            loss: 0,
            pieces: 250_000,
            frame_limit: 2_048,
            window: 32 << 10,
            shared_descriptors: false,
        }
    }
}

/// An event in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimEvent {
    /// The time, in virtual nanoseconds.
    pub now: u64,
    /// The number of the connection, in the order of creation.
    pub connection: usize,
    /// The side of the connection that caused the event.
    pub side: usize,
    /// The kind of event.
    pub what: EventKind,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A frame with this head was sent.
    Sent(Head),
    /// A frame with this head arrived.
    Arrived(Head),
    /// The connection was lost.
    Lost,
    /// This side's link was dropped.
    Dropped,
}

/// A simulated network.
#[derive(Clone, Debug)]
pub struct Network {
    shared: Arc<Mutex<NetworkState>>,
}

#[derive(Debug)]
struct NetworkState {
    directory: port::Directory,
    seed: u64,
    options: SimOptions,
    now: u64,
    wires: Vec<SimConnection>,
    trace: Vec<SimEvent>,
}

/// The two directions of a connection: `directions[side]` contains what `side` sends.
#[derive(Debug)]
struct SimConnection {
    directions: [Direction; 2],
    lost: bool,
    /// The two ports that the connection joins, indexed by side.
    ends: Option<[port::ContextAddress; 2]>,
}

#[derive(Debug)]
struct Direction {
    random: Random,
    flights: VecDeque<InFlight>,
    bytes: usize,
    latest: u64,
}

/// A frame, or the end of the connection, in flight.
#[derive(Debug)]
struct InFlight {
    arrives: u64,
    cargo: InFlightItem,
}

#[derive(Debug)]
enum InFlightItem {
    Frame { head: Head, payload: Vec<u8>, pieces: bool },
    End(Broken),
}

impl Network {
    /// Creates a network. `seed` determines its behavior.
    #[must_use]
    pub fn new(seed: u64, options: SimOptions) -> Self {
        let state = NetworkState {
            directory: port::Directory::default(),
            seed,
            options,
            now: 0,
            wires: Vec::new(),
            trace: Vec::new(),
        };
        Self { shared: Arc::new(Mutex::new(state)) }
    }

    /// Creates a connection and returns its two ends.
    #[doc(hidden)]
    #[must_use]
    pub fn connect(&self) -> (SimLink, SimLink) {
        self.lock().connect(self, None)
    }

    /// Returns the time in virtual nanoseconds since the creation of the network.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.lock().now
    }

    /// Advances the clock.
    pub fn advance(&self, nanoseconds: u64) {
        self.lock().now += nanoseconds;
    }

    /// Advances the clock to the next arrival. Returns whether anything is in flight.
    #[must_use]
    pub fn advance_to_arrival(&self) -> bool {
        let mut state = self.lock();
        let flights = state.wires.iter().flat_map(|wire| &wire.directions).filter_map(|way| way.flights.front());
        let Some(next) = flights.map(|flight| flight.arrives).min() else { return false };
        state.now = state.now.max(next);
        true
    }

    /// Breaks the connection with this number (connections are numbered in the order of creation). Frames in flight
    /// still arrive, and then both ends report that the connection is lost.
    pub fn lose(&self, connection: usize) {
        self.lock().lose(connection, 0);
    }

    /// Returns whether the endpoints of a domain share their descriptors.
    #[doc(hidden)]
    pub fn shares_descriptors(&self) -> bool {
        self.lock().options.shared_descriptors
    }

    /// Returns the seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.lock().seed
    }

    /// Returns all events in order.
    #[must_use]
    pub fn trace(&self) -> Vec<SimEvent> {
        self.lock().trace.clone()
    }

    /// Returns the memory in bytes that the network itself uses for frames in flight and recorded events. The ends of
    /// its connections are not included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let state = self.lock();
        let flights = state.wires.iter().flat_map(|wire| &wire.directions).map(|way| way.flights.capacity());
        flights.sum::<usize>() * size_of::<InFlight>()
            + state.wires.capacity() * size_of::<SimConnection>()
            + state.trace.capacity() * size_of::<SimEvent>()
            + state.directory.bytes()
    }

    /// Locks the state. A poisoned lock can be used, because the state is never left partially changed.
    fn lock(&self) -> MutexGuard<'_, NetworkState> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        write!(f, "simulated network, seed {:#x}, at {} ns", state.seed, state.now)
    }
}

impl NetworkState {
    /// Creates a connection and returns its two ends.
    fn connect(&mut self, network: &Network, ends: Option<[port::ContextAddress; 2]>) -> (SimLink, SimLink) {
        let connection = self.wires.len();
        let random = Random::new(self.seed).fork(connection as u64);
        let direction = |side| Direction { random: random.fork(side), flights: VecDeque::new(), bytes: 0, latest: 0 };
        self.wires.push(SimConnection { directions: [direction(0), direction(1)], lost: false, ends });
        if let Some(ends) = ends {
            self.directory.stands(connection, ends);
        }
        let link = |side| SimLink::new(network.clone(), connection, side, self.options.frame_limit);
        (link(0), link(1))
    }

    /// Sends or refuses a frame.
    fn send(&mut self, connection: usize, side: usize, head: Head, payload: Vec<u8>) -> Result<(), Refused> {
        let window = match head.kind {
            kind if kind.begins() || kind == FrameKind::Data => self.options.window,
            _ => self.options.window.saturating_mul(2),
        };
        let wire = &mut self.wires[connection];
        let way = &mut wire.directions[side];
        if way.bytes >= window {
            return Err(Refused::Full);
        }
        if !wire.lost && way.random.chance(self.options.loss) {
            self.lose(connection, side);
        }
        let pieces_chance =
            if matches!(head.kind, FrameKind::Message | FrameKind::Tagged | FrameKind::Collective | FrameKind::Write) {
                self.options.pieces
            } else {
                0
            };
        self.note(connection, side, EventKind::Sent(head));
        let wire = &mut self.wires[connection];
        if wire.lost {
            // As in a real network, the sender does not detect this yet.
            return Ok(());
        }
        let way = &mut wire.directions[side];
        way.bytes += weight(&payload);
        let pieces = payload.len() > 1 && way.random.chance(pieces_chance);
        way.depart(self.now, self.options.delay, InFlightItem::Frame { head, payload, pieces });
        Ok(())
    }

    /// Returns everything that has arrived for `side`.
    fn arrivals(&mut self, connection: usize, side: usize) -> Vec<InFlightItem> {
        let now = self.now;
        let mut arrived = Vec::new();
        let mut heads = Vec::new();
        let way = &mut self.wires[connection].directions[1 - side];
        while let Some(flight) = way.flights.pop_front_if(|flight| flight.arrives <= now) {
            if let InFlightItem::Frame { head, payload, .. } = &flight.cargo {
                way.bytes -= weight(payload);
                heads.push(*head);
            }
            arrived.push(flight.cargo);
        }
        for head in heads {
            self.note(connection, side, EventKind::Arrived(head));
        }
        arrived
    }

    /// Ends a connection for both sides. Frames that are sent later are lost.
    fn lose(&mut self, connection: usize, side: usize) {
        let text = format!("the simulated network, seed {:#x}, lost connection {connection}", self.seed);
        let (now, delay) = (self.now, self.options.delay);
        let Some(wire) = self.wires.get_mut(connection) else { return };
        if std::mem::replace(&mut wire.lost, true) {
            return;
        }
        for way in &mut wire.directions {
            way.depart(now, delay, InFlightItem::End(Broken::Died(text.clone())));
        }
        self.note(connection, side, EventKind::Lost);
    }

    /// Handles the drop of a link. The other side is notified after it has received everything that was sent before.
    fn drop_link(&mut self, connection: usize, side: usize) {
        let (now, delay) = (self.now, self.options.delay);
        self.note(connection, side, EventKind::Dropped);
        let wire = &mut self.wires[connection];
        if !std::mem::replace(&mut wire.lost, true) {
            let end = Broken::Died("the connection ended without a closing message".into());
            wire.directions[side].depart(now, delay, InFlightItem::End(end));
        }
        // These frames no longer have a receiver.
        wire.directions[1 - side].flights.clear();
        wire.directions[1 - side].bytes = 0;
        if let Some(ends) = wire.ends {
            self.directory.ended(connection, ends[side], ends[1 - side]);
        }
    }

    fn note(&mut self, connection: usize, side: usize, what: EventKind) {
        self.trace.push(SimEvent { now: self.now, connection, side, what });
    }
}

impl Direction {
    /// Adds an item to the items in flight. It never overtakes earlier items.
    fn depart(&mut self, now: u64, delay: (u64, u64), cargo: InFlightItem) {
        let arrives = (now + self.random.between(delay.0, delay.1)).max(self.latest);
        self.latest = arrives;
        self.flights.push_back(InFlight { arrives, cargo });
    }
}

/// Returns the share of the window that a frame uses.
fn weight(payload: &[u8]) -> usize {
    payload.len() + size_of::<Head>()
}

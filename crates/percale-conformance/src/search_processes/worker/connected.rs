//! Endpoints of one connection each. A worker listens, connects to the listeners of other workers, and ends connections
//! at any time.
//!
//! Until a connection ends, it delivers all messages of both sides in order. Then every operation on its endpoints
//! ends.

#![expect(unsafe_code, reason = "takes back the endpoints that futures borrowed")]

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use percale::endpoint::safe::{Cause, OperationError, Received};
use percale::{Domain, Endpoint, EndpointBuilder, ErrorCode, Event, EventQueue, Listener, PostError};

use super::{Open, Worker};
use crate::search_processes::ledger::WorkerLedger;
use crate::search_processes::message::{self, Identity};
use crate::search_processes::plan::OPERATION_TIMEOUT;
use crate::search_processes::task::{OperationEnd, Task};

/// The port used in the contents of these messages, which have no target port.
const NOWHERE: u16 = 0;
/// The maximum number of connections of a worker.
const LINES: usize = 4;
/// The number of endpoint lives that a worker reserves for connections. They follow those of its other endpoints.
const LIVES: u16 = 24;
/// The first of these lives, counted from the first life of the worker.
const FIRST: u16 = 40;
/// The number of posted receives.
const RECEIVES: usize = 4;

/// One end of a connection.
#[derive(Debug)]
struct ConnectionEnd {
    /// Leaked, so that futures need no lifetime. [`close`](Self::close) frees it after the futures were dropped.
    endpoint: &'static Endpoint,
    /// The number of this end.
    id: u16,
    /// The number of the other end. It is `None` until the first message arrives.
    other: Option<u16>,
    /// The receives in the order in which they were posted.
    receives: VecDeque<Task>,
    sends: Vec<Task>,
    sent: u32,
    posted: u64,
    since: Instant,
    stands: bool,
    over: Option<Instant>,
    /// When posts began to be rejected although the connection has not ended.
    refused: Option<Instant>,
    /// When a message was found to be missing because the other end was closed.
    gap: Option<Instant>,
    /// The numbers of the last messages. The keys are the numbers of the receives that received them.
    taken: BTreeMap<u64, u32>,
}

/// The connections of a worker.
#[derive(Debug)]
pub(super) struct EndpointPairs {
    domain: Domain,
    listener: Listener,
    events: EventQueue,
    lines: Vec<ConnectionEnd>,
    next: u16,
    last: u16,
}

impl EndpointPairs {
    /// Opens a listener. The lives of its endpoints are numbered, starting at `life` + [`FIRST`]. Returns `None` if
    /// there are no free descriptors.
    fn new(domain: &Domain, life: u16) -> Option<Self> {
        let events = EventQueue::default();
        let listener = domain.listener().events(&events).bind("127.0.0.1:0").ok()?;
        let next = life + FIRST;
        Some(Self { domain: domain.clone(), listener, events, lines: Vec::new(), next, last: next + LIVES - 1 })
    }

    /// Returns the builder of an endpoint that reports its events to the listener's queue.
    fn builder(&self) -> EndpointBuilder<'_> {
        self.domain.endpoint().event_queue(&self.events).answer_timeout(Duration::from_secs(15))
    }

    fn open<E: std::fmt::Display>(&mut self, ledger: &mut WorkerLedger, opened: Result<Endpoint, E>) {
        let endpoint = match opened {
            Ok(endpoint) => &*Box::leak(Box::new(endpoint)),
            // The client has disconnected, or there are no free descriptors.
            Err(error) => return ledger.note(|| format!("no connection: {error}")),
        };
        self.next += 1;
        let (receives, sends, since) = (VecDeque::new(), Vec::new(), Instant::now());
        let (other, over, refused) = (None, None, None);
        let id = self.next;
        self.lines.push(ConnectionEnd {
            endpoint,
            id,
            other,
            receives,
            sends,
            sent: 0,
            posted: 0,
            since,
            stands: false,
            over,
            refused,
            gap: None,
            taken: BTreeMap::new(),
        });
    }

    fn has_room(&self) -> bool {
        self.lines.len() < LINES && self.next < self.last
    }

    /// Returns the number of operations that have not ended and must end.
    pub(super) fn under_way(&self) -> usize {
        self.lines.iter().map(|line| line.sends.len() + usize::from(!line.stands && line.over.is_none())).sum()
    }

    /// Drives all endpoints. Starts operations if `busy` is set.
    pub(super) fn drive(&mut self, ledger: &mut WorkerLedger, busy: bool) {
        let _any = self.listener.progress();
        while let Some(event) = self.events.read() {
            self.happened(ledger, &event);
        }
        for line in &mut self.lines {
            line.endpoint.progress();
            line.receive(ledger);
            if busy && line.stands && line.sends.len() < 8 && ledger.random.below(6) == 0 {
                line.send(ledger);
            }
            line.collect(ledger);
            line.check(ledger);
        }
        // A connection that has ended is closed when its operations have ended.
        while let Some(at) = self.lines.iter().position(|line| line.over.is_some() && line.sends.is_empty()) {
            self.lines.swap_remove(at).close();
        }
    }

    fn happened(&mut self, ledger: &mut WorkerLedger, event: &Event) {
        ledger.note(|| format!("{event:?}"));
        match event {
            Event::ConnectionRequest(request) if self.has_room() && ledger.finishing.is_none() => {
                let opened = self.builder().accept(request, request.data());
                self.open(ledger, opened);
            }
            Event::ConnectionRequest(request) if ledger.random.below(2) == 0 => drop(request.reject(b"no")),
            Event::Connected { endpoint, .. } => self.each(*endpoint, |line| line.stands = true),
            Event::ConnectionRefused { endpoint, .. } | Event::Shutdown { endpoint, .. } => {
                self.each(*endpoint, |line| line.over = line.over.or_else(|| Some(Instant::now())));
            }
            _ => {}
        }
    }

    fn each(&mut self, endpoint: u64, change: impl FnMut(&mut ConnectionEnd)) {
        self.lines.iter_mut().filter(|line| line.endpoint.id() == endpoint).for_each(change);
    }

    /// Ends a connection by an orderly shutdown, or by closing its endpoint with outstanding operations.
    fn end_one(&mut self, ledger: &mut WorkerLedger) {
        if self.lines.is_empty() {
            return;
        }
        let at = ledger.random.below(self.lines.len());
        ledger.counts.lives += 1;
        if ledger.random.below(2) == 0 {
            let line = &mut self.lines[at];
            drop(line.endpoint.shutdown());
            // The side that shuts down gets no event.
            line.over.get_or_insert_with(Instant::now);
            ledger.note(|| format!("shuts connection {} down", line.id));
        } else {
            let line = self.lines.swap_remove(at);
            ledger.note(|| format!("closes connection {}", line.id));
            line.close();
        }
    }

    fn close(mut self) {
        self.lines.drain(..).for_each(ConnectionEnd::close);
    }
}

impl ConnectionEnd {
    fn receive(&mut self, ledger: &mut WorkerLedger) {
        while self.over.is_none() && self.receives.len() < RECEIVES {
            let buffer = ledger.buffer(self.endpoint.domain(), ledger.plan.longest);
            match self.endpoint.recv(buffer).start() {
                Ok(receiving) => {
                    let future = Box::pin(async move { OperationEnd::Received(receiving.await) });
                    self.receives.push_back(Task::new(future, None, self.posted, 0, "a receive of a connection"));
                    self.posted += 1;
                }
                Err(error) => return self.refused(ledger, &error),
            }
        }
    }

    fn send(&mut self, ledger: &mut WorkerLedger) {
        let data = Identity { sender: self.id, number: self.sent, len: ledger.length() }.pack();
        let bytes = message::contents(data, NOWHERE);
        let peer = self.endpoint.peer();
        if bytes.len() <= 2048 && ledger.random.below(3) == 0 {
            match self.endpoint.inject_with(peer, &bytes, None, Some(data)) {
                Ok(()) => (self.sent, ledger.counts.started) = (self.sent + 1, ledger.counts.started + 1),
                Err(PostError::Again) => {}
                Err(error) => self.doubt(ledger, &error.to_string()),
            }
            return;
        }
        let buffer = ledger.buffer_of(self.endpoint.domain(), bytes);
        let request = self.endpoint.send(peer, buffer).data(data);
        let request = if ledger.random.below(3) == 0 { request.delivered() } else { request };
        match request.start() {
            Ok(sending) => {
                let future = Box::pin(async move { OperationEnd::Sent(sending.await) });
                self.sends.push(Task::new(future, None, 0, 0, "a send of a connection"));
                self.sent += 1;
                ledger.counts.started += 1;
            }
            Err(error) => self.refused(ledger, &error),
        }
    }

    fn refused(&mut self, ledger: &mut WorkerLedger, error: &OperationError) {
        if !matches!(error.cause(), Cause::Post(PostError::Again)) {
            self.doubt(ledger, &error.to_string());
        }
    }

    /// Handles a rejected operation. The connection has ended, and an event must report this within a time limit.
    fn doubt(&mut self, ledger: &mut WorkerLedger, error: &str) {
        let since = *self.refused.get_or_insert_with(Instant::now);
        if self.over.is_none() && since.elapsed() > OPERATION_TIMEOUT {
            self.refused = Some(Instant::now() + OPERATION_TIMEOUT * 100);
            ledger.fault(&format!("connection {} rejects operations, but its end was not reported: {error}", self.id));
        }
    }

    /// Collects ended operations.
    fn collect(&mut self, ledger: &mut WorkerLedger) {
        let mut index = 0;
        while index < self.sends.len() {
            let Some(end) = self.sends[index].poll(false) else {
                index += 1;
                continue;
            };
            self.sends.swap_remove(index);
            ledger.counts.ended += 1;
            if let OperationEnd::Sent(result) = end {
                let buffer = match result {
                    Ok(sent) => Some(sent),
                    Err(error) => self.failed(ledger, error, "a send"),
                };
                buffer.into_iter().for_each(|buffer| ledger.graves.add_freed(buffer, "a send of a connection".into()));
            }
        }
        // Receives end in the order in which they were posted, but this loop may see the end of a later one first.
        let mut index = 0;
        while index < self.receives.len() {
            let Some(end) = self.receives[index].poll(false) else {
                index += 1;
                continue;
            };
            let Some(task) = self.receives.remove(index) else { break };
            if let OperationEnd::Received(result) = end {
                let buffer = match result {
                    Ok(received) => {
                        self.arrived(ledger, task.number, &received);
                        Some(received.buffer)
                    }
                    Err(error) => self.failed(ledger, error, "a receive"),
                };
                buffer
                    .into_iter()
                    .for_each(|buffer| ledger.graves.add_freed(buffer, "a receive of a connection".into()));
            }
        }
    }

    /// Handles the arrival of a message. `number` is the number of the receive, which is also the number of the message
    /// if no earlier message is missing.
    fn arrived(&mut self, ledger: &mut WorkerLedger, number: u64, received: &Received) {
        ledger.counts.received += 1;
        let Some(data) = received.data else {
            return ledger.fault(&format!("a message without data arrived on connection {}", self.id));
        };
        if let Some(wrong) = message::examine(data, &received.to_vec(), false, NOWHERE) {
            return ledger.fault(&format!("a message on connection {}: {wrong}", self.id));
        }
        let identity = Identity::unpack(data);
        let other = *self.other.get_or_insert(identity.sender);
        // A long message is lost if its data was not fetched when the endpoint of its sender closes. Later messages
        // that have arrived are kept.
        if u64::from(identity.number) > number {
            self.gap.get_or_insert_with(Instant::now);
        }
        // The receives, in posting order, must get the messages in sending order, each exactly once.
        let before = self.taken.range(..number).next_back().is_none_or(|(_, taken)| *taken < identity.number);
        let behind = self.taken.range(number..).next().is_none_or(|(_, taken)| identity.number < *taken);
        self.taken.insert(number, identity.number);
        if self.taken.len() > 64 {
            self.taken.pop_first();
        }
        let is_first = u64::from(identity.number) >= number && before && behind;
        if identity.sender != other || !is_first || other == self.id {
            let id = self.id;
            ledger.fault(&format!("receive {number} of connection {id} with {other} took {identity:?}"));
        }
    }

    fn failed(&mut self, ledger: &mut WorkerLedger, error: OperationError, what: &str) -> Option<percale::Buffer> {
        ledger.counts.failed += 1;
        let never =
            [ErrorCode::Protocol, ErrorCode::Fault, ErrorCode::Invalid, ErrorCode::Denied, ErrorCode::Truncated];
        if let Cause::Completion(entry) = error.cause()
            && never.contains(&entry.error)
        {
            ledger.fault(&format!("{what} of connection {} failed with {:?}: {error}", self.id, entry.error));
        }
        error.into_buffer()
    }

    /// Reports operations that should have ended.
    fn check(&mut self, ledger: &mut WorkerLedger) {
        let id = self.id;
        for task in &mut self.sends {
            if task.since.elapsed() > OPERATION_TIMEOUT && !std::mem::replace(&mut task.reported, true) {
                ledger.fault(&format!("{} {id} has not ended for {:?}", task.what, task.since.elapsed()));
            }
        }
        if let Some(over) = self.over
            && over.elapsed() > OPERATION_TIMEOUT
            && !self.sends.is_empty()
        {
            self.over = Some(Instant::now() + OPERATION_TIMEOUT * 100);
            ledger.fault(&format!("connection {id} has ended, but {} of its sends have not", self.sends.len()));
        }
        if self.over.is_none() && self.gap.is_some_and(|since| since.elapsed() > OPERATION_TIMEOUT) {
            self.over = Some(Instant::now());
            ledger.fault(&format!("messages are missing on connection {id}, which has not ended"));
        }
        if !self.stands && self.over.is_none() && self.since.elapsed() > OPERATION_TIMEOUT {
            self.over = Some(Instant::now());
            ledger.fault(&format!("connection {id} was neither established nor refused within {OPERATION_TIMEOUT:?}"));
        }
    }

    fn close(mut self) {
        self.sends.clear();
        self.receives.clear();
        let endpoint = std::ptr::from_ref(self.endpoint).cast_mut();
        // SAFETY: `open` leaked this box, and the futures that borrowed from it were dropped above.
        drop(unsafe { Box::from_raw(endpoint) });
    }
}

impl<A: Open> Worker<A> {
    /// Listens, connects, or ends a connection.
    pub(super) fn change_connections(&mut self) {
        let Some(lines) = &mut self.lines else {
            let life = self.first_id;
            let Some(lines) = EndpointPairs::new(&self.domain, life) else { return };
            self.ledger.print_line(&format!("listener {}", lines.listener.address().port()));
            self.lines = Some(lines);
            return;
        };
        if self.ledger.random.below(2) == 0 {
            return lines.end_one(&mut self.ledger);
        }
        if let Some(port) = self.ledger.some_listener()
            && lines.has_room()
        {
            let opened = lines.builder().connect(format!("127.0.0.1:{port}"), b"search");
            lines.open(&mut self.ledger, opened);
        }
    }

    /// Closes the listener and all connections.
    pub(super) fn close_connections(&mut self) {
        self.lines.take().into_iter().for_each(EndpointPairs::close);
    }
}

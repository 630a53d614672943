//! The model: the posted operations, and the allowed ends of each.
//!
//! The ledger does not refer to endpoints. The code that drives endpoints, in this process or in others, records posted
//! operations and their reports. It gets a [`Fault`] if a report is impossible. The ledger checks:
//!
//! 1. An operation ends exactly once, with an allowed result: [`Ledger::end`].
//! 2. A message arrives exactly once, at its target endpoint, at a receive that matches it, with the length, the tag,
//!    the data and the bytes of its send: [`Ledger::arrive`].
//! 3. If a receive matches all messages that a receive posted later matches, it receives the message that was sent
//!    first. This holds for the messages of each sender.
//!
//! Operations are numbered. The number is the context of the operation and the data of its message (if it has data),
//! and determines the contents of the message.

use std::collections::{HashMap, VecDeque};

use percale::ErrorCode;

use super::payload;

/// An observation that violates a guarantee of percale.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The kind of the violation. Faults with the same cause have the same kind.
    pub kind: &'static str,
    /// A description of the observation.
    pub text: String,
}

impl Fault {
    /// Makes a fault of this kind.
    #[must_use]
    pub fn new(kind: &'static str, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

/// The result of a check.
pub type Verdict<T = ()> = Result<T, Fault>;

/// The life of an endpoint, from its opening until it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Life(pub u32);

/// An address at which endpoints are opened, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointAddress(pub u32);

/// The location where receives wait: an endpoint or a shared context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReceiveHome {
    /// At an endpoint.
    Own(Life),
    /// In a shared context.
    Pool(u32),
}

/// A sent message.
#[derive(Clone, Debug)]
pub struct Message {
    /// The sending endpoint.
    pub from: Life,
    /// The address of the sending endpoint.
    pub from_place: EndpointAddress,
    /// The target address.
    pub to: EndpointAddress,
    /// The length in bytes.
    pub len: usize,
    /// The tag. `None` for an untagged message.
    pub tag: Option<u64>,
    /// Whether its remote completion data is its number.
    pub has_data: bool,
    /// Whether it was posted immediately. Its position among the messages of its sender is then known.
    pub is_ordered: bool,
    /// Whether it must wait for the operations that its sender posted before it.
    pub is_fenced: bool,
    /// The number of times that it was received.
    pub arrivals: u32,
    /// Whether it may have been lost in an event.
    pub may_be_lost: bool,
    /// Whether its send was cancelled, so that it must not arrive.
    pub is_cancelled: bool,
}

/// The messages that a receive matches.
#[derive(Clone, Copy, Debug)]
pub struct Criteria {
    /// The sender. `None` for any sender.
    pub from: Option<EndpointAddress>,
    /// The tag and the ignored bits. `None` for untagged messages.
    pub tag: Option<(u64, u64)>,
}

impl Criteria {
    /// Returns whether a message matches.
    #[must_use]
    pub fn fits(&self, message: &Message) -> bool {
        let tag = match (self.tag, message.tag) {
            (None, None) => true,
            (Some((tag, ignore)), Some(got)) => (tag ^ got) & !ignore == 0,
            _ => false,
        };
        tag && self.from.is_none_or(|from| from == message.from_place)
    }

    /// Returns whether these criteria match every message that `other` matches.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let from = self.from.is_none() || self.from == other.from;
        from && match (self.tag, other.tag) {
            (None, None) => true,
            (Some((tag, ignore)), Some((other, others))) => others & !ignore == 0 && (tag ^ other) & !ignore == 0,
            _ => false,
        }
    }
}

/// A posted receive.
#[derive(Clone, Copy, Debug)]
pub struct LedgerReceive {
    /// The location where it waits.
    pub home: ReceiveHome,
    /// The messages that it matches.
    pub criteria: Criteria,
    /// The size of its buffer in bytes.
    pub capacity: usize,
    /// Whether it receives the oldest of all waiting messages that match. A receive of a claimed message does not.
    pub is_ordered: bool,
}

/// The contents of a message's completion.
#[derive(Clone, Copy, Debug)]
pub struct MessageReport<'a> {
    /// The reported length.
    pub len: usize,
    /// The reported tag.
    pub tag: Option<u64>,
    /// The reported data.
    pub data: Option<u64>,
    /// The reported sender.
    pub source: Option<EndpointAddress>,
    /// The bytes in the receive buffer.
    pub bytes: &'a [u8],
    /// The number of bytes that did not fit.
    pub overflow: usize,
    /// The offset in a buffer for several messages.
    pub offset: usize,
}

/// The model's record of an operation.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The endpoint to which it was posted. `None` for a receive of a shared context.
    pub at: Option<Life>,
    /// The target peer.
    pub peer: Option<EndpointAddress>,
    /// The name of its kind, for messages.
    pub what: &'static str,
    /// Whether the completion of the operation is reported.
    pub is_reported: bool,
    /// Whether the application has requested the end of the operation: it was cancelled, or its handle was dropped.
    pub is_cancelled: bool,
    /// Whether it has ended.
    pub is_over: bool,
    /// Whether its endpoint was closed, or its handle was dropped. Its end need not be reported any more, but may be
    /// reported once.
    pub is_closed: bool,
    /// Whether it is a shared receive that a closed member may have reported to its own queue, which no longer exists.
    pub may_vanish: bool,
    /// Whether it may fail because its peer was closed or a connection broke.
    pub may_fail: bool,
    /// Whether the access may be denied, because a key or the memory may no longer be valid.
    pub may_be_denied: bool,
    /// Whether the access must be denied.
    pub must_be_denied: bool,
    /// The step at which it was posted.
    pub step: u32,
}

impl Operation {
    /// Returns whether a report of its end is still expected.
    #[must_use]
    pub const fn must_end(&self) -> bool {
        !self.is_over && !self.is_closed && !self.may_vanish && self.is_reported
    }
}

#[derive(Clone, Copy, Debug)]
struct Arrival {
    receive: u64,
    offset: usize,
    message: u64,
}

/// The number of earlier arrivals of a stream that are compared with a new one.
const COMPARED: usize = 48;

/// The posted operations and their results.
#[derive(Debug, Default)]
pub struct Ledger {
    next: u64,
    operations: HashMap<u64, Operation>,
    messages: HashMap<u64, Message>,
    receives: HashMap<u64, LedgerReceive>,
    /// The arrivals from a sender at one location, with their receives.
    streams: HashMap<(Life, Life, ReceiveHome), VecDeque<Arrival>>,
    posted: u64,
    arrived: u64,
}

impl Ledger {
    /// Returns the number of messages that arrived.
    #[must_use]
    pub const fn arrivals(&self) -> u64 {
        self.arrived
    }

    /// Returns the number of the next operation.
    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Returns the number of posted operations.
    #[must_use]
    pub const fn posted(&self) -> u64 {
        self.posted
    }

    /// Records an operation.
    pub fn post(&mut self, id: u64, operation: Operation) {
        self.posted += 1;
        self.operations.insert(id, operation);
    }

    /// Records the message of an operation.
    pub fn send(&mut self, id: u64, message: Message) {
        self.messages.insert(id, message);
    }

    /// Records the receive of an operation.
    pub fn receive(&mut self, id: u64, receive: LedgerReceive) {
        self.receives.insert(id, receive);
    }

    /// Removes a rejected operation.
    pub fn refuse(&mut self, id: u64) {
        self.posted -= u64::from(self.operations.remove(&id).is_some());
        self.messages.remove(&id);
        self.receives.remove(&id);
    }

    /// Returns an operation.
    #[must_use]
    pub fn operation(&self, id: u64) -> Option<&Operation> {
        self.operations.get(&id)
    }

    /// Returns a mutable reference to an operation.
    pub fn operation_mut(&mut self, id: u64) -> Option<&mut Operation> {
        self.operations.get_mut(&id)
    }

    /// Records that an operation was cancelled before any part of it was carried out.
    pub fn cancelled(&mut self, id: u64) {
        if let Some(operation) = self.operations.get_mut(&id) {
            operation.is_cancelled = true;
        }
        if let Some(message) = self.messages.get_mut(&id) {
            (message.may_be_lost, message.is_cancelled) = (true, true);
        }
    }

    /// Returns the receive of an operation.
    #[must_use]
    pub fn received_by(&self, id: u64) -> Option<&LedgerReceive> {
        self.receives.get(&id)
    }

    /// Returns the operations of an endpoint that have not ended.
    #[must_use]
    pub fn pending_of(&self, life: Life) -> Vec<u64> {
        let open = self.operations.iter().filter(|(_, operation)| !operation.is_over && operation.at == Some(life));
        let mut ids: Vec<u64> = open.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// Returns a mutable reference to the message of an operation.
    pub fn message_mut(&mut self, id: u64) -> Option<&mut Message> {
        self.messages.get_mut(&id)
    }

    /// Returns the message of an operation.
    #[must_use]
    pub fn message(&self, id: u64) -> Option<&Message> {
        self.messages.get(&id)
    }

    /// Returns mutable references to all messages.
    pub fn messages_mut(&mut self) -> impl Iterator<Item = (u64, &mut Message)> {
        self.messages.iter_mut().map(|(id, message)| (*id, message))
    }

    /// Returns the messages.
    pub fn messages(&self) -> impl Iterator<Item = (u64, &Message)> {
        self.messages.iter().map(|(id, message)| (*id, message))
    }

    /// Returns mutable references to the operations that have not ended.
    pub fn pending_mut(&mut self) -> impl Iterator<Item = (u64, &mut Operation)> {
        self.operations.iter_mut().filter(|(_, operation)| !operation.is_over).map(|(id, operation)| (*id, operation))
    }

    /// Returns the operations that must end, oldest first.
    #[must_use]
    pub fn pending(&self) -> Vec<u64> {
        let open = self.operations.iter().filter(|(_, operation)| operation.must_end());
        let mut ids: Vec<u64> = open.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// Records that a member of the shared context was closed together with its own queue. The shared receives that it
    /// reported there will not be read.
    pub fn vanish(&mut self) {
        for operation in self.operations.values_mut().filter(|operation| !operation.is_over) {
            operation.may_vanish |= matches!(operation.what, "shared receive" | "shared multi-receive");
        }
    }

    /// Returns the shared receives with reports that [may be lost](Self::vanish), oldest first.
    #[must_use]
    pub fn vanished(&self) -> Vec<u64> {
        let some = self.operations.iter().filter(|(_, operation)| !operation.is_over && operation.may_vanish);
        let mut ids: Vec<u64> = some.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// Records that all messages and operations from or to this address may fail or be lost, because its endpoint was
    /// closed or a connection broke.
    pub fn harm(&mut self, place: Option<EndpointAddress>, life: Option<Life>) {
        for operation in self.operations.values_mut().filter(|operation| !operation.is_over) {
            let peer = place.is_none() || operation.peer.is_none() || operation.peer == place;
            operation.may_fail |= peer || operation.at == life;
        }
        for message in self.messages.values_mut().filter(|message| message.arrivals == 0) {
            message.may_be_lost |= place.is_none() || Some(message.to) == place || Some(message.from) == life;
        }
    }

    /// Records that an operation ended.
    ///
    /// # Errors
    /// Fails if there is no such operation, if it had already ended, or if this error is not allowed.
    pub fn end(&mut self, id: u64, result: Result<(), (ErrorCode, &str)>) -> Verdict {
        let Some(operation) = self.operations.get_mut(&id) else {
            return Err(Fault::new(
                "unknown context",
                format!("an end was reported for {id}, which was not posted: {result:?}"),
            ));
        };
        if operation.is_over {
            let what = operation.what;
            return Err(Fault::new("ended twice", format!("{what} {id} ended again: {result:?}")));
        }
        operation.is_over = true;
        if !operation.is_reported && result.is_ok() {
            let what = operation.what;
            return Err(Fault::new(
                "silent success reported",
                format!("{what} {id} reported a success that was not requested"),
            ));
        }
        let must_be_denied = operation.must_be_denied;
        let Err((code, text)) = result else {
            if must_be_denied {
                let what = operation.what;
                return Err(Fault::new(
                    "access with an invalid key succeeded",
                    format!("{what} {id} succeeded although its key was invalid"),
                ));
            }
            return Ok(());
        };
        let what = operation.what;
        let may = match code {
            // The end of a group is reported with different errors.
            _ if what == "collective" && operation.may_fail => !matches!(code, ErrorCode::Fault | ErrorCode::Protocol),
            ErrorCode::Canceled => operation.is_cancelled || operation.may_fail || operation.is_closed,
            ErrorCode::PeerDied
            | ErrorCode::Closed
            | ErrorCode::NotConnected
            | ErrorCode::Refused
            | ErrorCode::Unreachable
            | ErrorCode::TimedOut => operation.may_fail || operation.is_closed,
            ErrorCode::NoMessage => what == "peek" || what == "claim" || what.ends_with("discard"),
            ErrorCode::KeyRejected | ErrorCode::Denied => operation.may_be_denied || operation.may_fail,
            ErrorCode::Truncated => self.receives.contains_key(&id),
            _ => false,
        };
        if may {
            return Ok(());
        }
        Err(Fault::new("failed without a cause", format!("{what} {id} failed as {code:?} ({text})")))
    }

    /// Records that a message arrived.
    ///
    /// # Errors
    /// Fails if the arrival is impossible.
    pub fn arrive(&mut self, at: (Life, EndpointAddress), id: u64, report: &MessageReport<'_>) -> Verdict<u64> {
        let Some(receive) = self.receives.get(&id).copied() else {
            return Err(Fault::new(
                "unknown context",
                format!("a message was reported for {id}, which is not a receive"),
            ));
        };
        let Some(number) = report.data.or_else(|| payload::name_of(report.bytes)) else {
            return Err(Fault::new(
                "message without identity",
                format!("receive {id} got {} bytes without data", report.len),
            ));
        };
        let Some(message) = self.messages.get_mut(&number) else {
            let bytes: Vec<u8> = report.bytes.iter().take(24).copied().collect();
            let text = format!("receive {id} got {} bytes that were not sent: {bytes:02x?}", report.len);
            return Err(Fault::new("bytes that were not sent", text));
        };
        let fault = |kind, text: String| Err(Fault::new(kind, format!("message {number} at receive {id}: {text}")));
        self.arrived += 1;
        message.arrivals += 1;
        if message.arrivals > 1 {
            return fault("arrived twice", format!("the message arrived {} times", message.arrivals));
        }
        if message.is_cancelled {
            return fault("cancelled message arrived", "its send was cancelled".to_owned());
        }
        // If a member of a shared context took a message and did not complete it before it was closed, another member
        // reports it.
        let may_move = matches!(receive.home, ReceiveHome::Pool(_)) && message.may_be_lost;
        if message.to != at.1 && !may_move {
            return fault(
                "wrong endpoint",
                format!("the message was sent to {:?} and arrived at {:?}", message.to, at.1),
            );
        }
        if !receive.criteria.fits(message) {
            return fault("wrong receive", format!("{message:?} does not fit {receive:?}"));
        }
        if report.len + report.overflow != message.len {
            let text = format!("{} bytes were sent, {} and {} more reported", message.len, report.len, report.overflow);
            return fault("wrong length", text);
        }
        if report.tag.is_some_and(|tag| Some(tag) != message.tag) || report.tag.is_none() != message.tag.is_none() {
            return fault("wrong tag", format!("{:?} was sent, {:?} reported", message.tag, report.tag));
        }
        if message.has_data != report.data.is_some() {
            return fault(
                "wrong data",
                format!("the message has data: {}; reported: {:?}", message.has_data, report.data),
            );
        }
        if report.source.is_some_and(|source| source != message.from_place) {
            return fault("wrong source", format!("{:?} sent it, {:?} is reported", message.from_place, report.source));
        }
        if let Some(why) = payload::describe(number, report.bytes) {
            return fault("wrong bytes", why);
        }
        // Messages to different members are not ordered.
        if message.is_ordered && receive.is_ordered && message.to == at.1 {
            let from = message.from;
            self.follows(at.0, from, id, &receive, report.offset, number)?;
        }
        Ok(number)
    }

    /// Records the arrival of a message of `len` bytes that cannot be identified, because too few of its bytes were
    /// received. It can be any message that matches.
    pub fn arrived_nameless(&mut self, at: Option<EndpointAddress>, criteria: &Criteria, len: usize) {
        self.arrived += 1;
        for message in self.messages.values_mut().filter(|message| message.arrivals == 0 && message.len == len) {
            message.may_be_lost |= at.is_none_or(|at| message.to == at) && criteria.fits(message);
        }
    }

    /// Records that a peek found a message, and discarded it if `taken` is set.
    ///
    /// # Errors
    /// Fails if there is no such message.
    pub fn seen(&mut self, at: EndpointAddress, number: u64, criteria: &Criteria, taken: bool) -> Verdict {
        let Some(message) = self.messages.get_mut(&number) else {
            return Err(Fault::new(
                "bytes that were not sent",
                format!("a peek found message {number}, which was not sent"),
            ));
        };
        if message.to != at || !criteria.fits(message) {
            return Err(Fault::new(
                "wrong receive",
                format!("a peek with {criteria:?} at {at:?} found {number}: {message:?}"),
            ));
        }
        if taken && message.arrivals > 0 {
            return Err(Fault::new(
                "arrived twice",
                format!("message {number} was discarded after it had been received"),
            ));
        }
        message.arrivals += u32::from(taken);
        Ok(())
    }

    /// Checks that messages and receives are in order.
    fn follows(
        &mut self,
        at: Life,
        from: Life,
        id: u64,
        receive: &LedgerReceive,
        offset: usize,
        message: u64,
    ) -> Verdict {
        let stream = self.streams.entry((from, at, receive.home)).or_default();
        for other in stream.iter() {
            let Some(than) = self.receives.get(&other.receive) else { continue };
            if (other.receive, other.offset) == (id, offset) {
                continue; // One of the two messages is empty.
            }
            let earlier = (other.receive, other.offset) < (id, offset);
            let (first, second) = if earlier { (than, receive) } else { (receive, than) };
            if !first.criteria.covers(&second.criteria) {
                continue;
            }
            if earlier != (other.message < message) {
                let text = format!(
                    "receive {id} (offset {offset}) got message {message}, receive {} (offset {}) got {}, of one sender",
                    other.receive, other.offset, other.message
                );
                return Err(Fault::new("wrong order", text));
            }
        }
        stream.push_back(Arrival { receive: id, offset, message });
        if stream.len() > COMPARED {
            stream.pop_front();
        }
        Ok(())
    }
}

//! The model: the operations that were posted, and the ways in which they may end.
//!
//! The ledger does not refer to endpoints. The code that drives endpoints, in this process or in others, enters what is posted and what is
//! reported, and gets a [`Fault`] if that is impossible. The ledger checks:
//!
//! 1. An operation ends once, and as it may: [`Ledger::end`].
//! 2. A message arrives once, at a receive that fits it, at the endpoint that it was sent to, with the length, the tag, the data and the
//!    bytes of its send: [`Ledger::arrive`].
//! 3. Of two receives that fit the same messages, the one that was posted first got the message that was sent first, by each sender.
//!
//! Operations are numbered; the number is their context, their message's data (where there is some) and what their bytes are made of.

use std::collections::{HashMap, VecDeque};

use percale::ErrorCode;

use super::payload;

/// An observation that is impossible if percale keeps its promises.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Which promise was broken: stable, and the same for the same cause.
    pub kind: &'static str,
    /// What was seen.
    pub text: String,
}

impl Fault {
    /// A fault of this kind.
    #[must_use]
    pub fn new(kind: &'static str, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

/// Whether all is well.
pub type Verdict<T = ()> = Result<T, Fault>;

/// The life of an endpoint, from its opening until it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Life(pub u32);

/// An address that endpoints are opened at, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place(pub u32);

/// Where receives wait: at one endpoint, or in a shared context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Home {
    /// At an endpoint.
    Own(Life),
    /// In a shared context.
    Pool(u32),
}

/// A message that was sent.
#[derive(Clone, Debug)]
pub struct Message {
    /// The endpoint that sent it.
    pub from: Life,
    /// Its address.
    pub from_place: Place,
    /// The address that it was sent to.
    pub to: Place,
    /// Bytes.
    pub len: usize,
    /// Its tag; untagged without.
    pub tag: Option<u64>,
    /// Whether it carries its number as data.
    pub has_data: bool,
    /// Whether it was posted at once, so that its place among the messages of its sender is known.
    pub is_ordered: bool,
    /// Whether it was to wait for what its sender had posted before.
    pub is_fenced: bool,
    /// How often it was received.
    pub arrivals: u32,
    /// Whether a fault of the world may have lost it.
    pub may_be_lost: bool,
}

/// What a receive takes.
#[derive(Clone, Copy, Debug)]
pub struct Criteria {
    /// The sender; any without.
    pub from: Option<Place>,
    /// Tag and ignored bits; untagged messages without.
    pub tag: Option<(u64, u64)>,
}

impl Criteria {
    /// Whether a message fits.
    #[must_use]
    pub fn fits(&self, message: &Message) -> bool {
        let tag = match (self.tag, message.tag) {
            (None, None) => true,
            (Some((tag, ignore)), Some(got)) => (tag ^ got) & !ignore == 0,
            _ => false,
        };
        tag && self.from.is_none_or(|from| from == message.from_place)
    }

    /// Whether every message that fits `other` fits this one.
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

/// A receive that was posted.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    /// Where it waits.
    pub home: Home,
    /// What it takes.
    pub criteria: Criteria,
    /// Bytes that it has room for.
    pub capacity: usize,
    /// Whether it takes the oldest message that fits, among all that wait: a claimed message was chosen before.
    pub is_ordered: bool,
}

/// The contents of a message's completion.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// Its length, as reported.
    pub len: usize,
    /// Its tag, as reported.
    pub tag: Option<u64>,
    /// Its data, as reported.
    pub data: Option<u64>,
    /// Its sender, as reported.
    pub source: Option<Place>,
    /// The bytes that are in the receive's memory.
    pub bytes: &'a [u8],
    /// Bytes that did not fit.
    pub overflow: usize,
    /// Offset in a buffer that takes several messages.
    pub offset: usize,
}

/// What an operation is, to the model.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The endpoint that it was posted at; none for a receive of a shared context.
    pub at: Option<Life>,
    /// The peer that it is for.
    pub peer: Option<Place>,
    /// What it is, for people.
    pub what: &'static str,
    /// Whether its end is reported.
    pub is_reported: bool,
    /// The application wants it to end: it was cancelled, or its handle dropped.
    pub is_cancelled: bool,
    /// It ended.
    pub is_over: bool,
    /// Its endpoint was closed, or its handle is gone: it need not be reported any more, and may be once.
    pub is_closed: bool,
    /// A shared receive that a closed member may have reported to its own queue, which went with it.
    pub may_vanish: bool,
    /// It may fail because its peer went, or a connection was broken.
    pub may_fail: bool,
    /// The access may be denied, because a key or the memory may be gone.
    pub may_be_denied: bool,
    /// The access must be denied.
    pub must_be_denied: bool,
    /// Step at which it was posted.
    pub step: u32,
}

impl Operation {
    /// Whether its end must be reported yet.
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

/// The arrivals of a stream that are compared with a new one.
const COMPARED: usize = 48;

/// The operations that were posted, and their ends.
#[derive(Debug, Default)]
pub struct Ledger {
    next: u64,
    operations: HashMap<u64, Operation>,
    messages: HashMap<u64, Message>,
    receives: HashMap<u64, Receive>,
    /// What arrived from a sender at a home, by receives that wait there.
    streams: HashMap<(Life, Life, Home), VecDeque<Arrival>>,
    posted: u64,
    arrived: u64,
}

impl Ledger {
    /// Messages that arrived.
    #[must_use]
    pub const fn arrivals(&self) -> u64 {
        self.arrived
    }

    /// The number of the next operation.
    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Operations that were posted.
    #[must_use]
    pub const fn posted(&self) -> u64 {
        self.posted
    }

    /// Enters an operation.
    pub fn post(&mut self, id: u64, operation: Operation) {
        self.posted += 1;
        self.operations.insert(id, operation);
    }

    /// Enters the message of an operation.
    pub fn send(&mut self, id: u64, message: Message) {
        self.messages.insert(id, message);
    }

    /// Enters what an operation receives.
    pub fn receive(&mut self, id: u64, receive: Receive) {
        self.receives.insert(id, receive);
    }

    /// Takes an operation back that was refused.
    pub fn refuse(&mut self, id: u64) {
        self.posted -= u64::from(self.operations.remove(&id).is_some());
        self.messages.remove(&id);
        self.receives.remove(&id);
    }

    /// An operation.
    #[must_use]
    pub fn operation(&self, id: u64) -> Option<&Operation> {
        self.operations.get(&id)
    }

    /// An operation, to change it.
    pub fn operation_mut(&mut self, id: u64) -> Option<&mut Operation> {
        self.operations.get_mut(&id)
    }

    /// What an operation receives.
    #[must_use]
    pub fn received_by(&self, id: u64) -> Option<&Receive> {
        self.receives.get(&id)
    }

    /// Operations of an endpoint that have not ended.
    #[must_use]
    pub fn pending_of(&self, life: Life) -> Vec<u64> {
        let open = self.operations.iter().filter(|(_, operation)| !operation.is_over && operation.at == Some(life));
        let mut ids: Vec<u64> = open.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// The message of an operation, to change it.
    pub fn message_mut(&mut self, id: u64) -> Option<&mut Message> {
        self.messages.get_mut(&id)
    }

    /// The message of an operation.
    #[must_use]
    pub fn message(&self, id: u64) -> Option<&Message> {
        self.messages.get(&id)
    }

    /// The messages, to change them.
    pub fn messages_mut(&mut self) -> impl Iterator<Item = (u64, &mut Message)> {
        self.messages.iter_mut().map(|(id, message)| (*id, message))
    }

    /// The messages.
    pub fn messages(&self) -> impl Iterator<Item = (u64, &Message)> {
        self.messages.iter().map(|(id, message)| (*id, message))
    }

    /// Operations that have not ended, to change them.
    pub fn pending_mut(&mut self) -> impl Iterator<Item = (u64, &mut Operation)> {
        self.operations.iter_mut().filter(|(_, operation)| !operation.is_over).map(|(id, operation)| (*id, operation))
    }

    /// Operations that have not ended, oldest first.
    #[must_use]
    pub fn pending(&self) -> Vec<u64> {
        let open = self.operations.iter().filter(|(_, operation)| operation.must_end());
        let mut ids: Vec<u64> = open.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// A member of the shared context was closed, and its own queue with it: what it reported there of shared receives is not read any more.
    pub fn vanish(&mut self) {
        for operation in self.operations.values_mut().filter(|operation| !operation.is_over) {
            operation.may_vanish |= matches!(operation.what, "shared receive" | "shared multi-receive");
        }
    }

    /// Shared receives that [may have vanished](Self::vanish), oldest first.
    #[must_use]
    pub fn vanished(&self) -> Vec<u64> {
        let some = self.operations.iter().filter(|(_, operation)| !operation.is_over && operation.may_vanish);
        let mut ids: Vec<u64> = some.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// Everything that goes to or comes from this address may fail, or be lost: its endpoint was closed, or a connection broken.
    pub fn harm(&mut self, place: Option<Place>, life: Option<Life>) {
        for operation in self.operations.values_mut().filter(|operation| !operation.is_over) {
            let peer = place.is_none() || operation.peer.is_none() || operation.peer == place;
            operation.may_fail |= peer || operation.at == life;
        }
        for message in self.messages.values_mut().filter(|message| message.arrivals == 0) {
            message.may_be_lost |= place.is_none() || Some(message.to) == place || Some(message.from) == life;
        }
    }

    /// An operation ended.
    ///
    /// # Errors
    /// If there is no such operation, it had ended, or may not fail so.
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
                format!("{what} {id} reported a success that was not asked for"),
            ));
        }
        let must_be_denied = operation.must_be_denied;
        let Err((code, text)) = result else {
            if must_be_denied {
                let what = operation.what;
                return Err(Fault::new(
                    "dead key served",
                    format!("{what} {id} succeeded though its region was closed before"),
                ));
            }
            return Ok(());
        };
        let what = operation.what;
        let may = match code {
            // The end of a group is reported in many ways.
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

    /// A message arrived.
    ///
    /// # Errors
    /// If that cannot be.
    pub fn arrive(&mut self, at: (Life, Place), id: u64, report: &Report<'_>) -> Verdict<u64> {
        let Some(receive) = self.receives.get(&id).copied() else {
            return Err(Fault::new("unknown context", format!("a message was reported for {id}, which is no receive")));
        };
        let Some(number) = report.data.or_else(|| payload::name_of(report.bytes)) else {
            return Err(Fault::new("nameless message", format!("receive {id} got {} bytes without data", report.len)));
        };
        let Some(message) = self.messages.get_mut(&number) else {
            let bytes: Vec<u8> = report.bytes.iter().take(24).copied().collect();
            let text = format!("receive {id} got {} bytes that nobody sent: {bytes:02x?}", report.len);
            return Err(Fault::new("bytes that nobody sent", text));
        };
        let fault = |kind, text: String| Err(Fault::new(kind, format!("message {number} at receive {id}: {text}")));
        self.arrived += 1;
        message.arrivals += 1;
        if message.arrivals > 1 {
            return fault("arrived twice", format!("it arrived {} times", message.arrivals));
        }
        // What a member of a shared context took and did not complete before it was closed is reported by another.
        let may_move = matches!(receive.home, Home::Pool(_)) && message.may_be_lost;
        if message.to != at.1 && !may_move {
            return fault("wrong endpoint", format!("it was sent to {:?} and arrived at {:?}", message.to, at.1));
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
            return fault("wrong data", format!("it has data: {}; reported: {:?}", message.has_data, report.data));
        }
        if report.source.is_some_and(|source| source != message.from_place) {
            return fault("wrong source", format!("{:?} sent it, {:?} is reported", message.from_place, report.source));
        }
        if let Some(why) = payload::describe(number, report.bytes) {
            return fault("wrong bytes", why);
        }
        // Of messages to different members there is no order.
        if message.is_ordered && receive.is_ordered && message.to == at.1 {
            let from = message.from;
            self.follows(at.0, from, id, &receive, report.offset, number)?;
        }
        Ok(number)
    }

    /// A message of `len` bytes arrived, of which too few were received to identify it: it may be any message that fits.
    pub fn arrived_nameless(&mut self, at: Option<Place>, criteria: &Criteria, len: usize) {
        self.arrived += 1;
        for message in self.messages.values_mut().filter(|message| message.arrivals == 0 && message.len == len) {
            message.may_be_lost |= at.is_none_or(|at| message.to == at) && criteria.fits(message);
        }
    }

    /// Records that a peek found a message and left it, or discarded it (`taken`).
    ///
    /// # Errors
    /// If there is no such message.
    pub fn seen(&mut self, at: Place, number: u64, criteria: &Criteria, taken: bool) -> Verdict {
        let Some(message) = self.messages.get_mut(&number) else {
            return Err(Fault::new(
                "bytes that nobody sent",
                format!("a peek found message {number}, which nobody sent"),
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
                format!("message {number} was thrown away, and had been received"),
            ));
        }
        message.arrivals += u32::from(taken);
        Ok(())
    }

    /// The order of messages and receives.
    fn follows(&mut self, at: Life, from: Life, id: u64, receive: &Receive, offset: usize, message: u64) -> Verdict {
        let stream = self.streams.entry((from, at, receive.home)).or_default();
        for other in stream.iter() {
            let Some(than) = self.receives.get(&other.receive) else { continue };
            if (other.receive, other.offset) == (id, offset) {
                continue; // One of the two has no bytes.
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

//! The protocol's state: everything about an endpoint except its links.
//!
//! Links hand frames to the core while they are borrowed, so the core never touches a link: what it wants done on one goes to
//! `outbox`, which the engine empties afterwards. Invariants:
//! * An operation completes exactly once: it is in exactly one of `sends`, a peer's `pending`, a matching table, `arrivals` or
//!   `pulls`, and completing it removes it there. A send that failed while its peer owes an answer keeps its number, and nothing else.
//! * Numbers that leave are [`Id`]s of these tables; each that comes back is checked to be of that peer. One whose value is gone is
//!   late: it is ignored, or answered as gone.
//! * Messages of one peer are matched in the order in which they were sent.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::access::{Execution, Long, Part};
use super::bound::BoundWindows;
use super::collective::Collectives;
use super::counting::{Counters, Reports};
use super::gate::Gate;
use super::kinds::{is_eager, is_tagged};
use super::peers::Peers;
use super::residue::Left;
use super::triggered::Triggered;
use super::types::{
    Action, Arrival, Identity, Multi, Notify, OpenSend, Payload, Place, Pull, Receive, Send, SendState, Serve, Side,
    Unexpected,
};
use super::unsent::Unsent;
use super::windows::told;
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode, ErrorEntry};
use crate::completion::event::{Event, EventQueue};
use crate::completion::queue::CompletionQueue;
use crate::completion::ring::{QueueFull, Ring};
use crate::domain::Trust;
use crate::endpoint::matching::{Held, Matching};
use crate::endpoint::operations::Operations;
use crate::endpoint::pool::{Membership, Pool};
use crate::memory::region::{Keyring, Keys};
use crate::memory::volatile::{Segment, Segments, View};
use crate::table::{Id, Table};
use crate::transport::verbs::Pins;
use crate::transport::{Broken, Connection};
use crate::trigger::{Lines, Submissions, Transfer, Watched};
use crate::wire::head::{Flags, Head, Kind};

/// The state of the protocol: all of an endpoint except its links.
#[derive(Debug)]
pub(crate) struct Core {
    /// Peers, by connection number.
    pub(crate) peers: Peers,
    /// Posted receives and unexpected messages: untagged.
    pub(crate) messages: Matching<Receive, Unexpected>,
    /// The same, tagged.
    pub(crate) tagged: Matching<Receive, Unexpected>,
    /// Messages claimed by a peek, by the operation that claimed them: the table (tagged?) and the place.
    pub(crate) claims: HashMap<Identity, (bool, Held)>,
    /// Sends that wait for their peer.
    pub(crate) sends: Table<Send>,
    /// Sends that have yet to leave.
    pub(crate) unsent: Unsent,
    /// Payloads arriving over streams.
    pub(crate) arrivals: Table<Arrival>,
    /// Payloads being fetched.
    pub(crate) pulls: Table<Pull>,
    /// Accesses to peers' memory that they execute.
    pub(crate) accesses: Table<Execution>,
    /// Their parts.
    pub(crate) parts: Table<Part>,
    /// Those parts that are long.
    pub(crate) long: Vec<Long>,
    /// Bytes of our regions that peers are to fetch.
    pub(crate) serves: Table<Serve>,
    /// What broken connections left.
    pub(crate) left: Vec<Left>,
    /// This endpoint's number in the process.
    pub(crate) endpoint: u64,
    /// Windows that were bound through it.
    pub(crate) windows: BoundWindows,
    /// Our regions.
    pub(crate) keys: Arc<Keys>,
    /// The endpoint's authorization key ([`Via::authority`](crate::memory::region::Via)).
    pub(crate) authority: u64,
    /// Raw keys of peers.
    pub(crate) mapped: Keyring,
    /// Who may reach them without us.
    pub(crate) trust: Trust,
    /// What registers memory of operations with a device.
    pub(crate) pins: Pins,
    /// The segments of receives that have several.
    pub(crate) vectors: Table<Segments>,
    /// Multi-receive buffers.
    pub(crate) multis: Table<Multi>,
    /// A multi-receive buffer with less than this left takes no more messages.
    pub(crate) multi_minimum: usize,
    /// What links are to do next.
    pub(crate) outbox: VecDeque<(Connection, Action)>,
    /// The endpoint's own completion queue.
    pub(crate) queue: Ring,
    /// Where sends report.
    pub(crate) transmit: Reports,
    /// Where receives report.
    pub(crate) receive: Reports,
    /// Counters by kind of operation.
    pub(crate) counters: Counters,
    /// The shared receive context, if there is one.
    pub(crate) pool: Option<Membership>,
    /// The context that this endpoint has left, since it is closing, if no queue outlives it in which it could report the receives that it has
    /// taken.
    pub(crate) heir: Option<Arc<Pool>>,
    /// Safe operations.
    pub(crate) operations: Operations,
    /// What happened to peers.
    pub(crate) events: Option<EventQueue>,
    /// The cap on what is held of one peer's unexpected messages: above it the peer is told to offer rather than to send.
    pub(crate) unexpected_cap: usize,
    /// Peers that are gone and left messages, the longest ago first.
    pub(crate) left_messages: VecDeque<Connection>,
    /// Whom the endpoint is for.
    pub(crate) gate: Gate,
    /// Results that went to a queue so far.
    pub(crate) reported: u64,
    /// Operations that waited for a counter and are due.
    pub(crate) submissions: Arc<Submissions>,
    /// The same, taken from there.
    pub(crate) due: VecDeque<Box<Transfer>>,
    /// Those that have begun.
    pub(crate) triggered: Table<Triggered>,
    /// Counters that others wait for.
    pub(crate) lines: Lines,
    /// Operations wait, or have waited, for counters or variables.
    pub(crate) has_waited: bool,
    /// Operations that wait for a variable.
    pub(crate) watched: Watched,
    /// Groups.
    pub(crate) collectives: Box<Collectives>,
}

impl Core {
    /// The table of tagged or of untagged messages.
    #[inline]
    pub(crate) fn table(&mut self, tagged: bool) -> &mut Matching<Receive, Unexpected> {
        if tagged { &mut self.tagged } else { &mut self.messages }
    }

    /// The endpoint's own queue, and where completions of this direction go.
    #[inline]
    fn reports(&mut self, side: Side) -> (&mut Ring, &Reports) {
        match side {
            Side::Transmit => (&mut self.queue, &self.transmit),
            Side::Receive => (&mut self.queue, &self.receive),
        }
    }

    /// The shared queue of this direction, if it has one.
    pub(crate) const fn queue_of(&self, side: Side) -> Option<&CompletionQueue> {
        match side {
            Side::Transmit => self.transmit.queue.as_ref(),
            Side::Receive => self.receive.queue.as_ref(),
        }
    }

    /// An operation succeeded.
    #[inline(always)]
    pub(crate) fn complete(&mut self, side: Side, notify: Notify, entry: Entry) {
        if self.reports(side).1.counted {
            return self.complete_counted(side, notify, entry);
        }
        self.report(side, notify, entry);
    }

    #[inline(never)]
    fn complete_counted(&mut self, side: Side, notify: Notify, entry: Entry) {
        if notify == Notify::Triggered {
            return self.triggered_over(side, Ok(entry));
        }
        if notify == Notify::Collective {
            return self.collective_over(side, &entry);
        }
        self.counters.succeeded(entry.flags, &self.submissions);
        self.report(side, notify, entry);
    }

    /// As [`complete`](Self::complete), for what is not counted.
    #[inline(always)]
    pub(crate) fn report(&mut self, side: Side, notify: Notify, entry: Entry) {
        let (own, reports) = self.reports(side);
        match (notify, &reports.queue) {
            (Notify::Silent | Notify::SharedSilent | Notify::Triggered | Notify::Collective, _) => return,
            (Notify::Operation, _) => return self.operations.finish(entry.context, Ok(entry)),
            (Notify::Queue, None) => own.push(entry),
            (Notify::Queue, Some(queue)) => queue.push(entry),
            (Notify::Event, None) => own.push_event(entry),
            (Notify::Event | Notify::Shared, Some(queue)) => queue.update(|ring| ring.push_event(entry)),
            (Notify::Shared, None) => return self.report_shared(notify, Ok(entry)),
        }
        self.reported += 1;
    }

    /// An operation failed. That is reported even if its success would not have been.
    #[cold]
    pub(crate) fn fail(&mut self, side: Side, notify: Notify, error: ErrorEntry) {
        if self.reports(side).1.counted {
            return self.fail_counted(side, notify, error);
        }
        self.report_error(side, notify, error);
    }

    #[cold]
    #[inline(never)]
    fn fail_counted(&mut self, side: Side, notify: Notify, error: ErrorEntry) {
        if notify == Notify::Triggered {
            return self.triggered_over(side, Err(error));
        }
        if notify == Notify::Collective {
            return self.collective_transfer_failed(&error);
        }
        self.counters.failed(error.entry.flags, &self.submissions);
        self.report_error(side, notify, error);
    }

    /// As [`fail`](Self::fail), for what is not counted.
    #[cold]
    pub(crate) fn report_error(&mut self, side: Side, notify: Notify, error: ErrorEntry) {
        let (own, reports) = self.reports(side);
        match (notify, &reports.queue) {
            (Notify::Operation, _) => return self.operations.finish(error.entry.context, Err(error)),
            (Notify::Queue, None) => own.push_error(error),
            (Notify::Queue, Some(queue)) => queue.push_error(error),
            // These were dealt with before.
            (Notify::Collective, _) => return,
            (Notify::Event | Notify::Silent | Notify::Triggered, None) => own.push_error_event(error),
            (Notify::Shared | Notify::SharedSilent, None) => return self.report_shared(notify, Err(error)),
            (_, Some(queue)) => queue.update(|ring| ring.push_error_event(error)),
        }
        self.reported += 1;
    }

    /// Reserves room for the result of an operation that is about to be posted.
    #[inline]
    pub(crate) fn reserve(&mut self, side: Side, notify: Notify) -> Result<(), QueueFull> {
        match (notify, self.reports(side)) {
            (Notify::Queue, (_, Reports { queue: Some(queue), .. })) => queue.reserve(),
            (Notify::Queue, (own, _)) => own.reserve(),
            _ => Ok(()),
        }
    }

    /// Gives room back: the operation was not posted after all.
    #[inline]
    pub(crate) fn unreserve(&mut self, side: Side, notify: Notify) {
        match (notify, self.reports(side)) {
            (Notify::Queue, (_, Reports { queue: Some(queue), .. })) => queue.update(Ring::unreserve),
            (Notify::Queue, (own, _)) => own.unreserve(),
            _ => {}
        }
    }

    /// Whether what arrives can be reported. If not, transports are not drained: their senders wait.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        match &self.receive.queue {
            None => self.queue.has_room(),
            Some(queue) => queue.update(|ring| ring.has_room()),
        }
    }

    /// Queues a frame without payload.
    #[inline]
    pub(crate) fn reply(&mut self, to: Connection, kind: Kind, id: u32, tag: u64) {
        let head = Head { kind, flags: Flags::ID, len: 0, tag, data: 0, id };
        self.outbox.push_back((to, Action::Frame(head)));
    }

    /// A message is in its receive buffer, `len` bytes long at its sender: answers the sender and reports.
    #[inline]
    pub(crate) fn received(&mut self, from: Connection, head: &Head, len: u64, receive: &Receive) {
        if head.flags.contains(Flags::ACK) {
            if head.flags.contains(Flags::INVALIDATE) && !self.may_report(from, head, len, receive) {
                return; // Later: the key that it invalidated is still in use.
            }
            self.reply(from, Kind::Ack, head.id, 0);
        }
        let room = receive.place.len() as u64;
        let mut entry = self.received_entry(from, head, len.min(room), receive);
        if let Some(multi) = receive.multi {
            if let Some(many) = self.shared_part(multi) {
                let short = (len > room).then(|| ErrorEntry::truncated(entry, len - room));
                return self.shared_part_over(many, receive.notify, short.map_or(Ok(entry), Err));
            }
            entry.flags |= self.multi_done(multi);
        }
        self.leave(receive.place);
        if len <= room {
            self.complete(Side::Receive, receive.notify, entry);
        } else {
            self.fail(Side::Receive, receive.notify, ErrorEntry::truncated(entry, len - room));
        }
    }

    /// Where a receive of these segments puts its message, until [`leave`](Self::leave).
    #[inline]
    pub(crate) fn place(&mut self, segments: &Segments) -> Place {
        match segments.as_slice() {
            [] => Place::One(Segment::EMPTY),
            [only] => Place::One(*only),
            _ => self.place_of_several(segments),
        }
    }

    #[inline(never)]
    fn place_of_several(&mut self, segments: &Segments) -> Place {
        Place::Several(self.vectors.insert(*segments), segments.len())
    }

    /// A receive is over: its place is no longer needed.
    #[inline]
    pub(crate) fn leave(&mut self, place: Place) {
        if let Place::Several(vector, _) = place {
            self.vectors.remove(vector);
        }
    }

    /// The segments of a place.
    pub(crate) fn segments(&self, place: Place) -> Segments {
        match place {
            Place::One(segment) => Segments::one(segment),
            Place::Several(vector, _) => self.vectors[vector],
        }
    }

    /// Puts a whole payload in its place.
    #[inline]
    pub(crate) fn put(&self, payload: View<'_>, place: Place) {
        match place {
            Place::One(segment) => payload.copy_to_one(segment),
            Place::Several(vector, _) => payload.copy_into(&self.vectors[vector], 0),
        };
    }

    /// The completion of a message.
    #[inline]
    pub(crate) fn received_entry(&mut self, from: Connection, head: &Head, len: u64, receive: &Receive) -> Entry {
        let tagged = is_tagged(head.kind);
        let mut flags =
            CompletionFlags::RECEIVE | if tagged { CompletionFlags::TAGGED } else { CompletionFlags::MESSAGE };
        if head.flags.contains(Flags::DATA) {
            flags |= told(head);
        }
        Entry {
            context: receive.context,
            flags,
            len,
            buffer: if receive.multi.is_some() { first_address(receive) } else { 0 },
            data: head.data,
            tag: if tagged { head.tag } else { 0 },
            source: self.peers.source(from),
        }
    }

    /// A receive that had been matched will get no message: its peer died, or the payload could not be fetched.
    pub(crate) fn receive_failed(
        &mut self,
        from: Connection,
        head: &Head,
        receive: &Receive,
        error: ErrorCode,
        why: &str,
    ) {
        let mut entry = self.received_entry(from, head, 0, receive);
        self.leave(receive.place);
        if let Some(multi) = receive.multi {
            if let Some(many) = self.shared_part(multi) {
                let failure = ErrorEntry::new(entry, error).with_text(why.to_owned());
                return self.shared_part_over(many, receive.notify, Err(failure));
            }
            entry.flags |= self.multi_done(multi);
        }
        self.fail(Side::Receive, receive.notify, ErrorEntry::new(entry, error).with_text(why.to_owned()));
    }

    /// The send of ours that a peer names; `None` if it is gone, or another peer's.
    #[inline]
    pub(super) fn send_of(&self, from: Connection, wire: u32) -> Option<Id<Send>> {
        let id = self.sends.find_wire(wire)?;
        (self.sends[id].to == from).then_some(id)
    }

    /// The payload of a send is over, or its peer has answered; completes it once both hold.
    pub(super) fn send_step(&mut self, id: Id<Send>, step: impl FnOnce(&mut OpenSend)) {
        let Some(Send { to, state: SendState::Open(send) }) = self.sends.get_mut(id) else { return };
        let to = *to;
        step(send);
        if send.payload == Payload::Over && !send.ack {
            let (notify, entry) = (send.notify, send.entry());
            self.sends.remove(id);
            self.send_over(to, notify);
            self.complete(Side::Transmit, notify, entry);
        }
    }

    /// A send that waited for its peer has ended.
    #[inline]
    fn send_over(&mut self, to: Connection, notify: Notify) {
        self.peers.finished(to);
        if notify == Notify::Collective {
            self.peers.finished_for_group(to);
        }
    }

    /// A send failed, and no transport reads its memory any more. It is reported, and keeps its number if the peer has yet to answer.
    pub(super) fn send_failed(&mut self, id: Id<Send>, error: ErrorCode, why: &str) {
        let Some(Send { to, state }) = self.sends.get_mut(id) else { return };
        let to = *to;
        let SendState::Open(send) = std::mem::replace(state, SendState::Failed) else { return };
        if !send.ack {
            self.sends.remove(id);
        }
        self.send_over(to, send.notify);
        self.fail(Side::Transmit, send.notify, ErrorEntry::new(send.entry(), error).with_text(why.to_owned()));
    }

    /// The connection is gone: everything that waited for it ends in error, once.
    #[cold]
    pub(crate) fn down(&mut self, from: Connection, error: ErrorCode, why: &str) {
        self.outbox.retain(|(to, _)| *to != from);
        for pending in self.peers.take_pending(from) {
            let Some(entry) = pending.entry() else { continue }; // It ends below.
            self.fail(Side::Transmit, pending.notify, ErrorEntry::new(entry, error).with_text(why.to_owned()));
        }
        self.fail_unsent(from, error, why);
        let gone: Vec<_> = self.sends.iter().filter(|(_, send)| send.to == from).map(|(id, _)| id).collect();
        for id in gone {
            self.send_failed(id, error, why);
            self.sends.remove(id); // Nobody answers any more.
        }
        let gone: Vec<_> = self.pulls.iter().filter(|(_, pull)| pull.from() == from).map(|(id, _)| id).collect();
        for id in gone {
            if let Some(Pull::Message { head, receive, .. }) = self.pulls.remove(id) {
                self.receive_failed(from, &head, &receive, error, why);
            }
        }
        self.accesses_down(from, error, why);
        self.target_down(from);
        let gone: Vec<_> = self.arrivals.iter().filter(|(_, a)| a.from == from).map(|(id, _)| id).collect();
        for id in gone {
            let Some(arrival) = self.arrivals.remove(id) else { continue };
            if arrival.heap.is_some() && is_eager(arrival.head.kind) {
                self.release(from, arrival.head.len as usize);
            }
            if let Some(receive) = arrival.receive {
                self.receive_failed(from, &arrival.head, &receive, error, why);
            }
        }
        self.windows_down(from);
        self.drop_unfinished(from);
        self.fail_directed(from, error, why);
        self.sender_down(from);
        self.collectives_down(from, error, why);
        self.peers.reset(from);
        self.end_budget(from);
        self.windows_still_wait(from);
    }

    /// Tells the event queue, if there is one.
    pub(crate) fn event(&self, event: impl FnOnce() -> Event) {
        if let Some(events) = &self.events {
            events.push(event());
        }
    }
}

/// The error code for a broken link.
pub(crate) fn broken_code(broken: &Broken) -> ErrorCode {
    match broken {
        Broken::Closed => ErrorCode::Closed,
        Broken::Died(_) => ErrorCode::PeerDied,
        Broken::Timeout(_) => ErrorCode::TimedOut,
        Broken::Protocol(_) => ErrorCode::Protocol,
        Broken::NoMemory(_) => ErrorCode::NoMemory,
        Broken::System(..) => ErrorCode::Io,
    }
}

/// What a send's completion says of it.
#[inline]
pub(crate) fn send_flags(tagged: bool) -> CompletionFlags {
    CompletionFlags::SEND | if tagged { CompletionFlags::TAGGED } else { CompletionFlags::MESSAGE }
}

/// The completion of a send.
#[inline]
pub(crate) fn sent_entry(context: u64, flags: CompletionFlags, len: usize) -> Entry {
    Entry { context, flags, len: len as u64, ..Entry::default() }
}

/// Where a part of a multi-receive buffer starts.
fn first_address(receive: &Receive) -> u64 {
    match receive.place {
        Place::One(segment) => segment.as_ptr().addr() as u64,
        Place::Several(..) => 0,
    }
}

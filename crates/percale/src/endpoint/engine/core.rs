//! The state of the protocol: everything about an endpoint except its links.
//!
//! Links hand frames to the core while they are borrowed, so the core never touches a link: actions for a link go to `outbox`, which the
//! engine empties afterwards. Invariants:
//! 1. An operation completes exactly once: it is in exactly one of `sends`, a peer's `pending`, a matching table, `arrivals` or `pulls`,
//!    and completing it removes it there. A send that failed while its peer owes an answer keeps its number, and nothing else.
//! 2. Numbers that are sent to peers are [`Id`]s of these tables. Each number that comes back is checked to belong to that peer. A number
//!    of an entry that is gone is late: it is ignored, or answered as gone.
//! 3. Messages of one peer are matched in the order in which they were sent.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::access::{Execution, Long, Part};
use super::bound::BoundWindows;
use super::collective::Collectives;
use super::gate::Gate;
use super::kinds::{is_eager, is_tagged};
use super::peers::Peers;
use super::reporting::Reporting;
use super::residue::Left;
use super::triggered::Triggered;
use super::types::{
    Action, Arrival, Identity, Multi, Notify, OpenSend, Payload, Place, Pull, Receive, Send, SendState, Serve, Side,
    Unexpected,
};
use super::unsent::Unsent;
use super::windows::told;
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode, ErrorEntry};
use crate::completion::event::Event;
use crate::completion::ring::QueueFull;
use crate::conditions::lines::Lines;
use crate::conditions::watched::Watched;
use crate::domain::Trust;
use crate::endpoint::matching::{Held, Matching};
use crate::endpoint::operations::Operations;
use crate::endpoint::pool::{Membership, Pool};
use crate::endpoint::submissions::{Submissions, Transfer};
use crate::local_memory::volatile::{Segment, Segments, View, ViewExt as _};
use crate::region::{Keyring, Keys};
use crate::table::{Id, Table};
use crate::transport::verbs::Pins;
use crate::transport::{Broken, Connection};
use crate::wire::head::{Flags, Head, Kind};

/// The state of the protocol: all of an endpoint except its links.
#[derive(Debug)]
pub(crate) struct Core {
    /// Peers, by connection number.
    pub(crate) peers: Peers,
    /// Posted receives and unexpected messages that are untagged.
    pub(crate) messages: Matching<Receive, Unexpected>,
    /// Posted receives and unexpected messages that are tagged.
    pub(crate) tagged: Matching<Receive, Unexpected>,
    /// Messages claimed by a peek, by the operation that claimed them: whether the message is tagged, and where it is held.
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
    /// The parts of these accesses.
    pub(crate) parts: Table<Part>,
    /// The parts that are long.
    pub(crate) long: Vec<Long>,
    /// Bytes of local regions that peers are to fetch.
    pub(crate) serves: Table<Serve>,
    /// Operations that wait until another process lets go of memory (see [`residue`](super::residue)).
    pub(crate) left: Vec<Left>,
    /// This endpoint's number in the process.
    pub(crate) endpoint: u64,
    /// Windows that were bound through this endpoint.
    pub(crate) windows: BoundWindows,
    /// The local regions.
    pub(crate) keys: Arc<Keys>,
    /// The endpoint's authorization key ([`Via::authority`](crate::memory::region::Via)).
    pub(crate) authority: u64,
    /// Raw keys of peers.
    pub(crate) mapped: Keyring,
    /// Which peers may reach the local regions without the engine.
    pub(crate) trust: Trust,
    /// Registers memory of operations with a device.
    pub(crate) pins: Pins,
    /// The segments of receives that have several.
    pub(crate) vectors: Table<Segments>,
    /// Multi-receive buffers.
    pub(crate) multis: Table<Multi>,
    /// A multi-receive buffer with less than this left takes no more messages.
    pub(crate) multi_minimum: usize,
    /// The actions that links are to do next.
    pub(crate) outbox: VecDeque<(Connection, Action)>,
    /// Where the endpoint reports.
    pub(crate) reporting: Reporting,
    /// The shared receive context, if there is one.
    pub(crate) pool: Option<Membership>,
    /// The shared receive context that this endpoint has left because it is closing, if no queue outlives the endpoint in which the
    /// receives that it has taken could be reported.
    pub(crate) heir: Option<Arc<Pool>>,
    /// Safe operations.
    pub(crate) operations: Operations,
    /// The cap on the bytes of unexpected messages that are held for one peer. Above it the peer is asked to offer messages rather than to
    /// send them.
    pub(crate) unexpected_cap: usize,
    /// Peers that are gone and left messages, in the order in which they left.
    pub(crate) left_messages: VecDeque<Connection>,
    /// The peers that the endpoint accepts.
    pub(crate) gate: Gate,
    /// Operations that waited for a counter and are due.
    pub(crate) submissions: Arc<Submissions>,
    /// Operations that were taken from `submissions` and have yet to begin.
    pub(crate) due: VecDeque<Box<Transfer>>,
    /// Operations that waited for a counter and have begun.
    pub(crate) triggered: Table<Triggered>,
    /// Counters that others wait for.
    pub(crate) lines: Lines,
    /// Whether operations wait, or have waited, for counters or variables.
    pub(crate) has_waited: bool,
    /// Operations that wait for a variable.
    pub(crate) watched: Watched<Transfer>,
    /// The groups of the endpoint.
    pub(crate) collectives: Box<Collectives>,
}

impl Core {
    /// Returns the table of tagged or of untagged messages.
    #[inline]
    pub(crate) fn table(&mut self, tagged: bool) -> &mut Matching<Receive, Unexpected> {
        if tagged { &mut self.tagged } else { &mut self.messages }
    }

    /// Completes an operation that succeeded: counts and reports it.
    #[inline(always)]
    pub(crate) fn complete(&mut self, side: Side, notify: Notify, entry: Entry) {
        if self.reporting.is_counted(side) {
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
        self.reporting.counters().succeeded(entry.flags, &self.submissions);
        self.report(side, notify, entry);
    }

    /// Like [`complete`](Self::complete), but does not count.
    #[inline(always)]
    pub(crate) fn report(&mut self, side: Side, notify: Notify, entry: Entry) {
        match notify {
            Notify::Silent | Notify::SharedSilent | Notify::Triggered | Notify::Collective => {}
            Notify::Operation => self.operations.finish(entry.context, Ok(entry)),
            Notify::Queue => self.reporting.push(side, entry),
            Notify::Shared if self.reporting.queue_of(side).is_none() => self.report_shared(notify, Ok(entry)),
            Notify::Event | Notify::Shared => self.reporting.push_event(side, entry),
        }
    }

    /// Completes an operation that failed. A failure is reported even if a success would not have been.
    #[cold]
    pub(crate) fn fail(&mut self, side: Side, notify: Notify, error: ErrorEntry) {
        if self.reporting.is_counted(side) {
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
        self.reporting.counters().failed(error.entry.flags, &self.submissions);
        self.report_error(side, notify, error);
    }

    /// Like [`fail`](Self::fail), but does not count.
    #[cold]
    pub(crate) fn report_error(&mut self, side: Side, notify: Notify, error: ErrorEntry) {
        match notify {
            Notify::Collective => {} // It was handled before.
            Notify::Operation => self.operations.finish(error.entry.context, Err(error)),
            Notify::Queue => self.reporting.push_error(side, error),
            Notify::Shared | Notify::SharedSilent if self.reporting.queue_of(side).is_none() => {
                self.report_shared(notify, Err(error))
            }
            Notify::Event | Notify::Silent | Notify::Triggered | Notify::Shared | Notify::SharedSilent => {
                self.reporting.push_error_event(side, error)
            }
        }
    }

    /// Reserves room for the result of an operation that is about to be posted.
    #[inline]
    pub(crate) fn reserve(&mut self, side: Side, notify: Notify) -> Result<(), QueueFull> {
        if notify == Notify::Queue { self.reporting.reserve(side) } else { Ok(()) }
    }

    /// Returns the reserved room of an operation that was not posted after all.
    #[inline]
    pub(crate) fn unreserve(&mut self, side: Side, notify: Notify) {
        if notify == Notify::Queue {
            self.reporting.unreserve(side);
        }
    }

    /// Returns whether arriving messages can be reported. If not, transports are not drained, and their senders wait.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.reporting.has_room()
    }

    /// Queues a frame without payload.
    #[inline]
    pub(crate) fn reply(&mut self, to: Connection, kind: Kind, id: u32, tag: u64) {
        let head = Head { kind, flags: Flags::ID, len: 0, tag, data: 0, id };
        self.outbox.push_back((to, Action::Frame(head)));
    }

    /// Ends the receive of a message that is in its buffer and that is `len` bytes long at its sender: answers the sender and reports the
    /// message.
    #[inline]
    pub(crate) fn received(&mut self, from: Connection, head: &Head, len: u64, receive: &Receive) {
        if head.flags.contains(Flags::ACK) {
            if head.flags.contains(Flags::INVALIDATE) && !self.may_report(from, head, len, receive) {
                return; // Reported later: the key that it invalidated is still in use.
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

    /// Returns where a receive of these segments puts its message. Valid until [`leave`](Self::leave).
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

    /// Frees the place of a receive that is over.
    #[inline]
    pub(crate) fn leave(&mut self, place: Place) {
        if let Place::Several(vector, _) = place {
            self.vectors.remove(vector);
        }
    }

    /// Returns the segments of a place.
    pub(crate) fn segments(&self, place: Place) -> Segments {
        match place {
            Place::One(segment) => Segments::one(segment),
            Place::Several(vector, _) => self.vectors[vector],
        }
    }

    /// Copies a whole payload to its place.
    #[inline]
    pub(crate) fn put(&self, payload: View<'_>, place: Place) {
        match place {
            Place::One(segment) => payload.copy_to_one(segment),
            Place::Several(vector, _) => payload.copy_into(&self.vectors[vector], 0),
        };
    }

    /// Returns the completion of a received message.
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

    /// Fails a receive that was matched but will get no message: its peer died, or the payload could not be fetched.
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

    /// Returns the send that a peer names by its number, or `None` if it is gone, or is a send to another peer.
    #[inline]
    pub(super) fn send_of(&self, from: Connection, wire: u32) -> Option<Id<Send>> {
        let id = self.sends.find_wire(wire)?;
        (self.sends[id].to == from).then_some(id)
    }

    /// Records that the payload of a send is no longer needed, or that its peer has answered. Completes the send when both hold.
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

    /// Uncounts a send that waited for its peer.
    #[inline]
    fn send_over(&mut self, to: Connection, notify: Notify) {
        self.peers.finished(to);
        if notify == Notify::Collective {
            self.peers.finished_for_group(to);
        }
    }

    /// Fails a send. No transport reads its memory any more. The send is reported, and keeps its number if the peer has yet to answer.
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

    /// Fails everything that waited for a connection that is gone. Each operation ends once.
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
            self.sends.remove(id); // No answer will come.
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
        self.keep_left_messages(from);
        self.sender_down(from);
        self.collectives_down(from, error, why);
        self.peers.reset(from);
        self.end_budget(from);
        self.windows_still_wait(from);
    }

    /// Pushes an event to the event queue, if there is one.
    pub(crate) fn event(&self, event: impl FnOnce() -> Event) {
        self.reporting.event(event);
    }
}

/// Returns the error code for a broken link.
pub(crate) fn broken_code(broken: &Broken) -> ErrorCode {
    match broken {
        Broken::Closed => ErrorCode::Closed,
        Broken::Died(_) => ErrorCode::PeerDied,
        Broken::Timeout(_) => ErrorCode::TimedOut,
        Broken::Protocol(_) => ErrorCode::Protocol,
        Broken::NoMemory(_) => ErrorCode::NoMemory,
        Broken::System(..) => ErrorCode::Io,
        _ => ErrorCode::Io, // There is no other.
    }
}

/// Returns the flags of a send's completion.
#[inline]
pub(crate) fn send_flags(tagged: bool) -> CompletionFlags {
    CompletionFlags::SEND | if tagged { CompletionFlags::TAGGED } else { CompletionFlags::MESSAGE }
}

/// Returns the completion of a send.
#[inline]
pub(crate) fn sent_entry(context: u64, flags: CompletionFlags, len: usize) -> Entry {
    Entry { context, flags, len: len as u64, ..Entry::default() }
}

/// Returns the address at which a part of a multi-receive buffer starts.
fn first_address(receive: &Receive) -> u64 {
    match receive.place {
        Place::One(segment) => segment.as_ptr().addr() as u64,
        Place::Several(..) => 0,
    }
}

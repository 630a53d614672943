//! Handles arriving frames: the core is the sink of its links.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use super::core::Core;
use super::gate::STRANGER;
use super::kinds::{envelope, is_collective, is_eager, is_tagged};
use super::peers::charge_of;
use super::remote::{PART, SERVE};
use super::types::{
    Action, Arrival, Asked, Body, Multi, Notify, Payload, Place, Pull, Receive, Request, SendState, Short, Unexpected,
};
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode};
use crate::endpoint::matching::{Envelope, Keep};
use crate::local_memory::buffer::{Buffer, BufferExt as _};
use crate::local_memory::volatile::{Segment, Segments, View, ViewExt as _};
use crate::region::lease::Lease;
use crate::table::Id;
use crate::transport::{Connection, Landing, PullError, Sink};
use crate::wire::head::{Counts, Flags, Head, Kind, Offer};

impl Core {
    /// Returns the receive to which this message goes, if one is posted. The receive is removed from its table; for a multi-receive buffer,
    /// a part of it is returned.
    #[inline]
    pub(crate) fn match_posted(&mut self, from: Connection, head: &Head, len: u64) -> Option<Receive> {
        let Self { messages, tagged: tagged_table, collectives, multis, multi_minimum, .. } = self;
        let table = match head.kind {
            Kind::Collective | Kind::CollectiveOffer => &mut collectives.messages,
            kind if is_tagged(kind) => tagged_table,
            _ => messages,
        };
        let met = table.arrive_with(envelope(from, head), |_, receive| {
            let Some(multi) = receive.multi else { return (Keep::Remove, None) };
            let state = &mut multis[multi];
            let part = take_part(state, multi, len);
            if state.segments.len().saturating_sub(state.used) < (*multi_minimum).max(1) {
                state.closed = true;
                return (Keep::Remove, Some(part));
            }
            (Keep::Stay, Some(part))
        });
        match met {
            Some((part, taken)) => part.or(taken),
            None if self.pool.is_none() || is_collective(head.kind) => None,
            None => self.match_shared(from, head, len),
        }
    }

    /// Gives an arrived or offered message to its receive.
    pub(crate) fn fill(&mut self, message: Unexpected, receive: Receive) {
        self.peers.release(message.from, charge_of(&message));
        let Unexpected { from, head, len, body } = message;
        match body {
            Body::Short(short) => {
                self.put(View::of(short.as_slice()), receive.place);
                self.received(from, &head, len, &receive);
            }
            Body::Whole(bytes) => {
                self.put(View::of(&bytes), receive.place);
                self.received(from, &head, len, &receive);
            }
            Body::Offered(offer) => self.start_pull(from, head, &offer, receive),
            Body::Arriving(arrival) => self.arrivals[arrival].receive = Some(receive),
        }
    }

    /// Fetches an offer.
    fn start_pull(&mut self, from: Connection, head: Head, offer: &Offer, receive: Receive) {
        let into = self.segments(receive.place).slice(0, usize::try_from(offer.len.get()).unwrap_or(usize::MAX));
        if into.is_empty() {
            // Nothing to fetch: a message of no bytes, or a receive with no room.
            self.peers.reply(from, Kind::Pulled, head.id, 0);
            self.received(from, &head, offer.len.get(), &receive);
            return;
        }
        let pull = Pull::Message { from, head, len: offer.len.get(), receive };
        let token = self.pulls.insert(pull).to_wire();
        let into = Lease::own(&into);
        self.peers.push(from, Action::Pull { id: head.id, offer: *offer, into, token });
    }

    /// Delivers a message of the most common kind, on a fast path: it carries a tag and data at most, has a receive of one segment, fits
    /// it, and is reported to the endpoint's own queue and nowhere else. Returns its completion. Returns `None`, and does nothing, if any
    /// of this does not hold.
    #[inline(always)]
    fn in_place(&mut self, from: Connection, head: &Head, payload: View<'_>) -> Option<Entry> {
        let Self { messages, tagged: tagged_table, peers, reporting, .. } = self;
        if reporting.receives_take_detour() {
            return None;
        }
        let tagged = is_tagged(head.kind);
        let table = if tagged { tagged_table } else { messages };
        let envelope = Envelope { tag: if tagged { head.tag } else { 0 }, source: u64::from(from) };
        let met = table.meet(envelope)?;
        let Receive { place: Place::One(segment), context, notify: Notify::Queue, multi: None } = *table.met(met)
        else {
            return None;
        };
        if payload.len() > segment.len() {
            return None;
        }
        payload.copy_to_one(segment);
        table.use_up(met);
        let kind = if tagged { CompletionFlags::TAGGED } else { CompletionFlags::MESSAGE };
        let told = if head.flags.is_empty() { CompletionFlags::empty() } else { CompletionFlags::REMOTE_DATA };
        let (flags, len, source) = (CompletionFlags::RECEIVE | kind | told, payload.len() as u64, peers.source(from));
        Some(Entry { context, flags, len, buffer: 0, data: head.data, tag: envelope.tag, source })
    }

    /// Delivers such a message and reports it to the queue. Returns false if it is no such message.
    // Out of line, and with few arguments, so that no registers need be saved.
    #[inline(never)]
    fn message_in_place(&mut self, from: Connection, head: &Head, payload: View<'_>) -> bool {
        let Some(entry) = self.in_place(from, head, payload) else { return false };
        self.reporting.receive_path().0.push(entry);
        true
    }

    /// Like [`message_in_place`](Self::message_in_place), but returns the completion in `into` to the caller, which is reading the empty
    /// queue at this moment. Returns false if it is no such message.
    #[inline(always)]
    pub(super) fn message_at_once(
        &mut self,
        from: Connection,
        head: &Head,
        payload: View<'_>,
        into: &mut Entry,
    ) -> bool {
        let Some(entry) = self.in_place(from, head, payload) else { return false };
        *into = entry;
        self.reporting.receive_path().0.unreserve();
        true
    }

    /// Handles any frame.
    #[inline(never)]
    fn any_frame(&mut self, from: Connection, head: Head, payload: View<'_>) {
        if !self.gate.admits(head.kind) {
            return self.peers.accuse(from, STRANGER);
        }
        if head.flags.contains(Flags::INVALIDATE) && !self.invalidates(from, &head) {
            return;
        }
        match head.kind {
            Kind::Message | Kind::Tagged => self.message_by_parts(from, &head, payload),
            Kind::MessageOffer | Kind::TaggedOffer => self.offered(from, head, payload),
            Kind::Collective if self.is_wanted(from, &head) => self.message_by_parts(from, &head, payload),
            Kind::CollectiveOffer if self.is_wanted(from, &head) => self.offered(from, head, payload),
            Kind::Collective | Kind::CollectiveOffer => {}
            Kind::Pull => self.asked(from, &head, payload),
            Kind::Pulled => self.not_pulled(from, head.id),
            Kind::Ack => self.acknowledged(from, head.id, head.tag),
            Kind::Offers => self.peers.set_offers_only(from, head.id != 0),
            Kind::Control => self.control(from, &head, payload),
            Kind::Counts => self.peers.set_counts(from, Counts::from_bits_truncate(head.id)),
            Kind::Data
            | Kind::Bye
            | Kind::Nothing
            | Kind::Transport
            | Kind::Resolve
            | Kind::Resolved
            | Kind::Assist => {}
            _ => self.remote(from, &head, payload),
        }
    }

    /// Handles any eager message that arrived whole.
    #[inline(never)]
    fn message_by_parts(&mut self, from: Connection, head: &Head, payload: View<'_>) {
        let len = payload.len() as u64;
        if let Some(receive) = self.match_posted(from, head, len) {
            self.put(payload, receive.place);
            self.received(from, head, len, &receive);
        } else {
            let short = payload.len() <= Short::MAX;
            let body = if short { Body::Short(Short::of(payload)) } else { Body::Whole(payload.to_vec()) };
            self.hold(Unexpected { from, head: *head, len, body });
        }
    }

    /// Keeps a message until its receive is posted.
    fn hold(&mut self, message: Unexpected) -> crate::endpoint::matching::Held {
        // The charge comes first: a shared receive that was posted meanwhile takes the message, and releases the charge, at once.
        self.peers.charge(message.from, charge_of(&message));
        let envelope = envelope(message.from, &message.head);
        let kind = message.head.kind;
        let held = self.table_of(kind).hold(envelope, message);
        if self.pool.is_some() && !is_collective(kind) {
            self.announce(is_tagged(kind), held);
        }
        held
    }

    /// Handles the offer of a message.
    fn offered(&mut self, from: Connection, head: Head, payload: View<'_>) {
        let Some(offer) = payload.read::<Offer>(0) else {
            return self.peers.accuse(from, "an offer shorter than offers are");
        };
        match self.match_posted(from, &head, offer.len.get()) {
            Some(receive) => self.start_pull(from, head, &offer, receive),
            None => {
                self.hold(Unexpected { from, head, len: offer.len.get(), body: Body::Offered(offer) });
            }
        }
    }

    /// Handles the notice that the receiver wants none of the payload of a local offer.
    fn not_pulled(&mut self, from: Connection, wire: u32) {
        let Some(id) = self.send_of(from, wire) else { return };
        if let SendState::Open(send) = &self.sends[id].state
            && matches!(send.payload, Payload::Leaving | Payload::LeavingRefused)
        {
            return self.peers.accuse(from, "it wants nothing of what it is pulling");
        }
        self.send_step(id, |send| send.payload = Payload::Over);
    }

    /// Handles the acknowledgement that the receiver has delivered a message, or (with an error code) could not.
    fn acknowledged(&mut self, from: Connection, wire: u32, why: u64) {
        let Some(id) = self.send_of(from, wire) else { return };
        let SendState::Open(send) = &mut self.sends[id].state else {
            self.sends.remove(id); // It was reported before. This was the last answer that the peer owed.
            return;
        };
        if why == 0 {
            return self.send_step(id, |send| send.ack = false);
        }
        match send.payload {
            // It ends when nothing reads its source any more.
            Payload::Leaving | Payload::LeavingRefused => send.payload = Payload::LeavingRefused,
            Payload::Offered | Payload::Over => self.not_taken(id, why),
        }
    }

    /// Fails a send because the receiver could not take its message. The receiver sends no further answer about it.
    fn not_taken(&mut self, id: Id<super::types::Send>, why: u64) {
        if let SendState::Open(send) = &mut self.sends[id].state {
            send.ack = false;
        }
        let refused = why == ErrorCode::KeyRejected.errno() as u64;
        let (code, why) = match refused {
            true => (
                ErrorCode::KeyRejected,
                "the peer has no window with the key to be invalidated, or not for this endpoint",
            ),
            false => (ErrorCode::Io, "the peer could not take the message"),
        };
        self.send_failed(id, code, why);
    }

    /// Handles the peer's request for the payload of a local offer.
    fn asked(&mut self, from: Connection, head: &Head, payload: View<'_>) {
        if payload.len() > Request::MAX {
            return self.peers.accuse(from, "a pull request longer than pull requests are");
        }
        let asked = match head.id {
            id if id & PART != 0 => self.remote.write_asked(from, id),
            id if id & SERVE != 0 => self.remote.serve_asked(from, id),
            id => self.send_asked(from, id),
        };
        let source = match asked {
            Asked::Source(source) => source,
            Asked::Gone => Lease::own(&Segments::EMPTY), // Less than is wanted: the transport answers accordingly.
            Asked::Nothing => {
                return self.peers.accuse(from, "a pull request for an operation that offers nothing");
            }
        };
        let request = Request::of(payload);
        self.peers.push(from, Action::Push { id: head.id, token: head.tag, request, source });
    }

    /// Returns the payload of a local send, and marks it as being read by a transport.
    fn send_asked(&mut self, from: Connection, wire: u32) -> Asked {
        let Some(id) = self.send_of(from, wire) else { return Asked::Gone };
        let SendState::Open(send) = &mut self.sends[id].state else { return Asked::Gone };
        if send.payload != Payload::Offered {
            return Asked::Nothing;
        }
        send.payload = Payload::Leaving;
        let (notify, work) = (send.notify, send.posted.work());
        let (context, segments) = (work.context, work.segments);
        Asked::Source(match self.arriving(notify, context) {
            None => Lease::own(&segments),
            Some(arriving) => Lease::arriving(arriving),
        })
    }
}

/// Takes the next part of a multi-receive buffer, for a message of `len` bytes.
pub(super) fn take_part(state: &mut Multi, multi: Id<Multi>, len: u64) -> Receive {
    // The buffer has one segment, as was checked. An empty message has a place in it too.
    let whole = state.segments.as_slice().first().copied().unwrap_or(Segment::EMPTY);
    let part = whole.slice(state.used, usize::try_from(len).unwrap_or(usize::MAX));
    state.used = state.used.saturating_add(part.len());
    state.in_flight = state.in_flight.saturating_add(1);
    Receive { place: Place::One(part), context: state.context, notify: state.notify, multi: Some(multi) }
}

impl Core {
    /// Begins a remote access that arrives in pieces. A write goes directly to its region if possible; else the access is assembled in a
    /// buffer. The link bounds the length of this buffer.
    fn begin_remote(&mut self, from: Connection, head: Head) -> Landing {
        let mut arrival = Arrival { from, head, receive: None, heap: None, held: None, region: None };
        let into = match self.place_of_write(from, &head) {
            Ok(Some((region, into))) => {
                arrival.region = Some(Ok(region));
                into
            }
            Ok(None) => {
                let mut heap = Buffer::from(vec![0; head.len as usize]);
                let into = heap.segment_for_receive().map_or(Segments::EMPTY, Segments::one);
                arrival.heap = Some(heap);
                Lease::own(&into)
            }
            Err(refusal) => {
                arrival.region = Some(Err(refusal));
                Lease::own(&Segments::EMPTY)
            }
        };
        Landing { token: self.arrivals.insert(arrival).to_wire(), into }
    }
}

impl Sink for Core {
    #[inline]
    fn takes(&self, from: Connection) -> bool {
        self.peers.is_read(from)
    }

    #[inline]
    fn frame(&mut self, from: Connection, head: &Head, payload: View<'_>) {
        let in_place = match head.kind {
            Kind::Tagged | Kind::Message if Flags::DATA.contains(head.flags) => {
                self.message_in_place(from, head, payload)
            }
            Kind::Collective if head.flags == Flags::DATA => self.collective_in_place(from, head, payload),
            _ => false,
        };
        if !in_place {
            self.any_frame(from, *head, payload);
        }
    }

    fn begin(&mut self, from: Connection, mut head: Head) -> Landing {
        if !self.gate.admits(head.kind) {
            self.peers.accuse(from, STRANGER);
            head.kind = Kind::Nothing; // Its bytes are discarded.
        }
        if !is_eager(head.kind) {
            return self.begin_remote(from, head);
        }
        if head.flags.contains(Flags::INVALIDATE) && !self.invalidates(from, &head) {
            (head.kind, head.flags) = (Kind::Nothing, Flags::empty());
            return self.begin_remote(from, head);
        }
        if head.kind == Kind::Collective && !self.is_wanted(from, &head) {
            head.kind = Kind::Nothing;
            return self.begin_remote(from, head);
        }
        let len = u64::from(head.len);
        let receive = self.match_posted(from, &head, len);
        let mut arrival = Arrival { from, head, receive, heap: None, held: None, region: None };
        let into = match &arrival.receive {
            Some(receive) => self.segments(receive.place),
            None => {
                let mut heap = Buffer::from(vec![0; head.len as usize]);
                let into = heap.segment_for_receive().map_or(Segments::EMPTY, Segments::one);
                arrival.heap = Some(heap);
                self.peers.charge(from, head.len as usize);
                into
            }
        };
        let expected = arrival.receive.is_some();
        let id = self.arrivals.insert(arrival);
        if !expected {
            let held = self.hold(Unexpected { from, head, len, body: Body::Arriving(id) });
            self.arrivals[id].held = Some(held);
        }
        Landing { token: id.to_wire(), into: Lease::own(&into) }
    }

    fn landed(&mut self, from: Connection, token: u32) {
        let arrival = self.arrivals.find_wire(token).and_then(|id| self.arrivals.remove(id));
        let Some(arrival) = arrival else { return };
        let Arrival { head, receive, heap, held, region, .. } = arrival;
        if let Some(region) = region {
            return self.write_landed(from, &head, region);
        }
        if !is_eager(head.kind) {
            let bytes = heap.map(Buffer::into_vec).unwrap_or_default();
            return self.frame(from, &head, View::of(&bytes));
        }
        let len = u64::from(head.len);
        match (receive, heap) {
            (Some(receive), None) => self.received(from, &head, len, &receive),
            (Some(receive), Some(heap)) => {
                let bytes = heap.into_vec();
                self.put(View::of(&bytes), receive.place);
                self.peers.release(from, bytes.len());
                self.received(from, &head, len, &receive);
            }
            (None, Some(heap)) => {
                let message = held.and_then(|held| self.table_of(head.kind).held_mut(held));
                if let Some(message) = message {
                    message.body = Body::Whole(heap.into_vec());
                } else {
                    // Discarded while it arrived.
                    if head.flags.contains(Flags::ACK) {
                        self.peers.reply(from, Kind::Ack, head.id, 0);
                    }
                    self.peers.release(from, head.len as usize);
                }
            }
            (None, None) => {}
        }
    }

    fn pulled(&mut self, from: Connection, token: u32, result: Result<u64, PullError>) {
        let Some(id) = self.pulls.find_wire(token).filter(|id| self.pulls[*id].from() == from) else { return };
        let Some(pull) = self.pulls.remove(id) else { return };
        let (head, len, receive) = match pull {
            Pull::Message { head, len, receive, .. } => (head, len, receive),
            Pull::Store(store) => return self.stored(store, result),
            Pull::Fetch { part, .. } => return self.fetched(part, result),
        };
        match result {
            Ok(_) => self.received(from, &head, len, &receive),
            Err(error) => {
                let (code, why) = pull_error(error);
                if head.flags.contains(Flags::ACK) {
                    self.peers.reply(from, Kind::Ack, head.id, code.errno() as u64);
                }
                self.receive_failed(from, &head, &receive, code, why);
            }
        }
    }

    fn assisted(&mut self, from: Connection, token: u32, result: Result<(), PullError>) {
        self.assisted_end(from, token, result);
    }

    fn undone(&mut self, from: Connection, token: u32) {
        self.give_back(from, token);
    }

    fn pushed(&mut self, from: Connection, id: u32, result: Result<(), PullError>) {
        if id & PART != 0 {
            return self.write_pushed(from, id);
        }
        if id & SERVE != 0 {
            return self.served(from, id, result.is_ok());
        }
        let Some(id) = self.send_of(from, id) else { return };
        let SendState::Open(send) = &mut self.sends[id].state else { return };
        let refused = send.payload == Payload::LeavingRefused;
        match result {
            // The push was for an operation that is gone, or of another kind, and sent nothing of this one.
            _ if !matches!(send.payload, Payload::Leaving | Payload::LeavingRefused) => {}
            Ok(()) if refused => self.not_taken(id, 0),
            Ok(()) => self.send_step(id, |send| send.payload = Payload::Over),
            Err(error) => {
                send.payload = Payload::Over;
                send.ack &= !refused;
                let (code, why) = pull_error(error);
                self.send_failed(id, code, why);
            }
        }
    }
}

/// Returns the error code and text of a failed pull.
fn pull_error(error: PullError) -> (ErrorCode, &'static str) {
    match error {
        PullError::Fault => {
            (ErrorCode::Fault, "the source or the destination is not memory that can be read or written")
        }
        PullError::Gone | PullError::Refused(_) | PullError::Unknown => {
            (ErrorCode::Canceled, "the sender gave the message up")
        }
        PullError::Revoked => (ErrorCode::Canceled, "the memory's region was closed meanwhile"),
    }
}

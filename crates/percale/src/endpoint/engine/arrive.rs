//! Handles arriving frames: the core is the sink of its links.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use super::admission::NOT_ADMITTED;
use super::core::Core;
use super::kinds::{envelope, is_collective, is_eager, is_tagged};
use super::messages::{SendAsked, refusal_of};
use super::peers::charge_of;
use super::remote::{PART, SERVE};
use super::types::{
    LinkAction, Notify, PayloadPull, PullAnswer, PullFrame, Receive, Short, StreamArrival, Unexpected,
    UnexpectedPayload, checked_offer,
};
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode};
use crate::endpoint::matching::Envelope;
use crate::endpoint::operations::{MakeResult, OperationId};
use crate::endpoint::work::MESSAGE_LIMIT;
use crate::local_memory::buffer::{Buffer, BufferExt as _};
use crate::local_memory::volatile::{Segments, View, ViewExt as _};
use crate::region::lease::Lease;
use crate::transport::{ConnectionId, Landing, PullError, Sink};
use crate::wire::head::{Counts, Flags, FrameKind, Head, Offer};

impl Core {
    /// Returns the receive for this message, if one is posted. The receive is removed from its table. For a
    /// multi-receive buffer, a part of the buffer is returned.
    #[inline]
    pub(crate) fn match_posted(&mut self, from: ConnectionId, head: &Head, len: u64) -> Option<Receive> {
        if is_collective(head.kind) {
            return self.groups.match_posted(from, head);
        }
        match self.messages.match_posted(from, head, len) {
            None if self.shared.is_member() => self.match_shared(from, head, len),
            found => found,
        }
    }

    /// Gives an arrived or offered message to its receive.
    pub(crate) fn fill(&mut self, message: Unexpected, receive: Receive) {
        self.peers.release(message.from, charge_of(&message));
        let Unexpected { from, head, len, body } = message;
        match body {
            UnexpectedPayload::Short(short) => {
                self.messages.memory().put(View::of(short.as_slice()), receive.place);
                self.received(from, &head, len, &receive);
            }
            UnexpectedPayload::Whole(bytes) => {
                self.messages.memory().put(View::of(&bytes), receive.place);
                self.received(from, &head, len, &receive);
            }
            UnexpectedPayload::Offered(offer) => self.start_pull(from, head, &offer, receive),
            UnexpectedPayload::Arriving(arrival) => self.messages.give_arrival(arrival, receive),
        }
    }

    /// Starts to fetch the payload of an offered message.
    fn start_pull(&mut self, from: ConnectionId, head: Head, offer: &Offer, receive: Receive) {
        let into = self
            .messages
            .memory()
            .segments(receive.place)
            .slice(0, usize::try_from(offer.len.get()).unwrap_or(usize::MAX));
        if into.is_empty() {
            // There is nothing to fetch: the message has no bytes, or the receive has no room.
            self.peers.reply(from, FrameKind::Pulled, head.id, 0);
            self.received(from, &head, offer.len.get(), &receive);
            return;
        }
        let pull = PayloadPull::Message { from, head, len: offer.len.get(), receive };
        let token = self.messages.begin_pull(pull);
        let into = Lease::own(&into);
        self.peers.push(from, LinkAction::Pull { id: head.id, offer: *offer, into, token });
    }

    /// Delivers a message on the fast path, which handles messages that carry at most a tag and data, have a receive of
    /// one segment, fit into that segment, and are reported only to the endpoint's own queue. Returns the completion.
    /// Returns `None`, and does nothing, for any other message.
    #[inline(always)]
    fn in_place(
        &mut self,
        from: ConnectionId,
        head: &Head,
        payload: View<'_>,
        takes: impl FnOnce(Notify) -> bool,
    ) -> Option<(Entry, Notify)> {
        let Self { messages, peers, reporting, .. } = self;
        if reporting.is_receive_fast_path_disabled() {
            return None;
        }
        let tagged = is_tagged(head.kind);
        let envelope = Envelope { tag: if tagged { head.tag } else { 0 }, source: u64::from(from) };
        let (context, notify) = messages.deliver(tagged, envelope, payload, takes)?;
        let kind = if tagged { CompletionFlags::TAGGED } else { CompletionFlags::MESSAGE };
        let data_flag = if head.flags.is_empty() { CompletionFlags::empty() } else { CompletionFlags::REMOTE_DATA };
        let (flags, len, source) =
            (CompletionFlags::RECEIVE | kind | data_flag, payload.len() as u64, peers.source(from));
        Some((Entry { context, flags, len, buffer: 0, data: head.data, tag: envelope.tag, source }, notify))
    }

    /// Delivers a message on the fast path and reports it to the queue. Returns false, and does nothing, for any other
    /// message.
    // Not inlined, and with few arguments, so that no registers need to be saved.
    #[inline(never)]
    pub(super) fn message_in_place(&mut self, from: ConnectionId, head: &Head, payload: View<'_>) -> bool {
        self.report_in_place(from, head, payload)
    }

    /// As [`message_in_place`](Self::message_in_place), for a caller in a loop.
    #[inline(always)]
    pub(super) fn report_in_place(&mut self, from: ConnectionId, head: &Head, payload: View<'_>) -> bool {
        let takes = |notify| matches!(notify, Notify::Queue | Notify::Operation);
        let Some((entry, notify)) = self.in_place(from, head, payload, takes) else { return false };
        match notify {
            Notify::Operation => self.operations.succeed(entry),
            _ => self.reporting.receive_path().0.push(entry),
        }
        true
    }

    /// Like [`message_in_place`](Self::message_in_place), but puts the result in `into` if the message is that of the
    /// operation `id`.
    #[inline(always)]
    pub(super) fn message_for<M: MakeResult>(
        &mut self,
        from: ConnectionId,
        head: &Head,
        payload: View<'_>,
        id: OperationId,
        (make, into): (&mut M, &mut Option<M::Result>),
    ) -> bool {
        let takes = |notify| matches!(notify, Notify::Queue | Notify::Operation);
        let Some((entry, notify)) = self.in_place(from, head, payload, takes) else { return false };
        match notify {
            Notify::Operation if entry.context == id.to_u64() => match self.operations.succeed_at_once(id) {
                Some(buffer) => *into = Some(make.make(&entry, buffer)),
                None => self.operations.succeed(entry),
            },
            Notify::Operation => self.operations.succeed(entry),
            _ => self.reporting.receive_path().0.push(entry),
        }
        true
    }

    /// Like [`message_in_place`](Self::message_in_place), but returns the completion in `into` to the caller, which is
    /// reading the empty queue. Returns false, and does nothing, for any other message.
    #[inline(always)]
    pub(super) fn message_at_once(
        &mut self,
        from: ConnectionId,
        head: &Head,
        payload: View<'_>,
        into: &mut Entry,
    ) -> bool {
        let takes = |notify| notify == Notify::Queue;
        let Some((entry, _)) = self.in_place(from, head, payload, takes) else { return false };
        *into = entry;
        self.reporting.receive_path().0.unreserve();
        true
    }

    /// Handles any frame.
    #[inline(never)]
    fn any_frame(&mut self, from: ConnectionId, head: Head, payload: View<'_>) {
        if !self.admission.admits(head.kind) {
            return self.peers.flag_violation(from, NOT_ADMITTED);
        }
        if head.flags.contains(Flags::INVALIDATE) && !self.invalidates(from, &head) {
            return;
        }
        match head.kind {
            FrameKind::Message | FrameKind::Tagged => self.message_by_parts(from, &head, payload),
            FrameKind::MessageOffer | FrameKind::TaggedOffer => self.offered(from, head, payload),
            FrameKind::Collective if self.is_wanted(from, &head) => self.message_by_parts(from, &head, payload),
            FrameKind::CollectiveOffer if self.is_wanted(from, &head) => self.offered(from, head, payload),
            FrameKind::Collective | FrameKind::CollectiveOffer => {}
            FrameKind::Pull => self.handle_pull_request(from, &head, payload),
            FrameKind::Pulled => self.not_pulled(from, head.id),
            FrameKind::Ack => self.acknowledged(from, head.id, head.tag),
            FrameKind::Offers => self.offers_requested(from, head.id),
            FrameKind::Control => self.control(from, &head, payload),
            FrameKind::Counts => self.counts_requested(from, head.id),
            FrameKind::Data
            | FrameKind::Bye
            | FrameKind::Nothing
            | FrameKind::Transport
            | FrameKind::Resolve
            | FrameKind::Resolved
            | FrameKind::Assist => {}
            _ => self.remote(from, &head, payload),
        }
    }

    /// Handles any eager message that arrived completely.
    #[inline(never)]
    fn message_by_parts(&mut self, from: ConnectionId, head: &Head, payload: View<'_>) {
        let len = payload.len() as u64;
        if let Some(receive) = self.match_posted(from, head, len) {
            self.messages.memory().put(payload, receive.place);
            self.received(from, head, len, &receive);
        } else {
            let short = payload.len() <= Short::MAX;
            let body = if short {
                UnexpectedPayload::Short(Short::of(payload))
            } else {
                UnexpectedPayload::Whole(payload.to_vec())
            };
            self.hold(Unexpected { from, head: *head, len, body });
        }
    }

    /// Keeps a message until its receive is posted.
    fn hold(&mut self, message: Unexpected) -> crate::endpoint::matching::HeldMessage {
        // The message is charged first: a shared receive that was posted meanwhile takes the message at once, and then
        // releases the charge.
        self.peers.charge(message.from, charge_of(&message));
        let envelope = envelope(message.from, &message.head);
        let kind = message.head.kind;
        if is_collective(kind) {
            return self.hold_of_group(envelope, message);
        }
        let held = self.messages.table(is_tagged(kind)).hold(envelope, message);
        if self.shared.is_member() {
            self.announce(is_tagged(kind), held);
        }
        held
    }

    /// Handles the offer of a message.
    fn offered(&mut self, from: ConnectionId, head: Head, payload: View<'_>) {
        let offer = match checked_offer(payload, MESSAGE_LIMIT as u64) {
            Ok(offer) => offer,
            Err(why) => return self.peers.flag_violation(from, why),
        };
        match self.match_posted(from, &head, offer.len.get()) {
            Some(receive) => self.start_pull(from, head, &offer, receive),
            None => {
                self.hold(Unexpected { from, head, len: offer.len.get(), body: UnexpectedPayload::Offered(offer) });
            }
        }
    }

    /// Handles the peer's request to offer messages instead of sending them, or the end of that request.
    #[cold]
    fn offers_requested(&mut self, from: ConnectionId, on: u32) {
        match on {
            0 | 1 => self.peers.set_offers_only(from, on == 1),
            _ => self.peers.flag_violation(from, "invalid request to offer messages"),
        }
    }

    /// Handles the peer's request to report accesses to its regions.
    #[cold]
    fn counts_requested(&mut self, from: ConnectionId, counts: u32) {
        match Counts::from_bits(counts) {
            Some(counts) if !counts.contains(Counts::REGION) => self.peers.set_counts(from, counts),
            _ => self.peers.flag_violation(from, "unknown counters in a request for reports"),
        }
    }

    /// Handles the notice that the receiver does not need the payload of a local offer.
    fn not_pulled(&mut self, from: ConnectionId, wire: u32) {
        match self.messages.sends_mut().not_pulled(from, wire) {
            Ok(end) => self.send_ended(end),
            Err(why) => self.peers.flag_violation(from, why),
        }
    }

    /// Handles the acknowledgement that the receiver has delivered a message or, with an error code, could not deliver
    /// it.
    fn acknowledged(&mut self, from: ConnectionId, wire: u32, why: u64) {
        match self.messages.sends_mut().acknowledged(from, wire, refusal_of(why)) {
            Ok(end) => self.send_ended(end),
            Err(why) => self.peers.flag_violation(from, why),
        }
    }

    /// Handles the peer's request for the payload of a local offer.
    fn handle_pull_request(&mut self, from: ConnectionId, head: &Head, payload: View<'_>) {
        if payload.len() > PullFrame::MAX {
            return self.peers.flag_violation(from, "pull request is too long");
        }
        let answer = match head.id {
            id if id & PART != 0 => self.remote.write_asked(from, id),
            id if id & SERVE != 0 => self.remote.serve_asked(from, id),
            id => self.send_asked(from, id),
        };
        let source = match answer {
            PullAnswer::Source(source) => source,
            // An empty source is shorter than the request, so the peer's pull fails.
            PullAnswer::Gone => Lease::own(&Segments::EMPTY),
            PullAnswer::Nothing => {
                return self.peers.flag_violation(from, "pull request for an operation without an offer");
            }
        };
        let request = PullFrame::of(payload);
        self.peers.push(from, LinkAction::Push { id: head.id, token: head.tag, request, source });
    }

    /// Returns the payload of a local send, and marks it as being read by a transport.
    fn send_asked(&mut self, from: ConnectionId, wire: u32) -> PullAnswer {
        match self.messages.sends_mut().handle_pull_request(from, wire) {
            SendAsked::Payload(notify, context, segments) => PullAnswer::Source(match self.arriving(notify, context) {
                None => Lease::own(&segments),
                Some(arriving) => Lease::arriving(arriving),
            }),
            SendAsked::Gone => PullAnswer::Gone,
            SendAsked::Nothing => PullAnswer::Nothing,
        }
    }
}

impl Core {
    /// Begins a remote access that arrives in pieces. A write goes directly to its region if possible. Other accesses
    /// are assembled in a buffer. The link limits its length.
    fn begin_remote(&mut self, from: ConnectionId, head: Head) -> Landing {
        let mut arrival = StreamArrival { from, head, receive: None, heap: None, held: None, region: None };
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
        Landing { token: self.messages.begin_arrival(arrival).to_wire(), into }
    }
}

impl Sink for Core {
    #[inline]
    fn takes(&self, from: ConnectionId) -> bool {
        self.peers.is_read(from)
    }

    #[inline]
    fn frame(&mut self, from: ConnectionId, head: &Head, payload: View<'_>) {
        let in_place = match head.kind {
            FrameKind::Tagged | FrameKind::Message if Flags::DATA.contains(head.flags) => {
                self.message_in_place(from, head, payload)
            }
            FrameKind::Collective if head.flags == Flags::DATA => self.collective_in_place(from, head, payload),
            _ => false,
        };
        if !in_place {
            self.any_frame(from, *head, payload);
        }
    }

    fn begin(&mut self, from: ConnectionId, mut head: Head) -> Landing {
        if !self.admission.admits(head.kind) {
            self.peers.flag_violation(from, NOT_ADMITTED);
            head.kind = FrameKind::Nothing; // The bytes of the access are discarded.
        }
        if !is_eager(head.kind) {
            return self.begin_remote(from, head);
        }
        if head.flags.contains(Flags::INVALIDATE) && !self.invalidates(from, &head) {
            (head.kind, head.flags) = (FrameKind::Nothing, Flags::empty());
            return self.begin_remote(from, head);
        }
        if head.kind == FrameKind::Collective && !self.is_wanted(from, &head) {
            head.kind = FrameKind::Nothing;
            return self.begin_remote(from, head);
        }
        let len = u64::from(head.len);
        let receive = self.match_posted(from, &head, len);
        let mut arrival = StreamArrival { from, head, receive, heap: None, held: None, region: None };
        let into = match &arrival.receive {
            Some(receive) => self.messages.memory().segments(receive.place),
            None => {
                let mut heap = Buffer::from(vec![0; head.len as usize]);
                let into = heap.segment_for_receive().map_or(Segments::EMPTY, Segments::one);
                arrival.heap = Some(heap);
                self.peers.charge(from, head.len as usize);
                into
            }
        };
        let expected = arrival.receive.is_some();
        let id = self.messages.begin_arrival(arrival);
        if !expected {
            let held = self.hold(Unexpected { from, head, len, body: UnexpectedPayload::Arriving(id) });
            self.messages.hold_arrival(id, held);
        }
        Landing { token: id.to_wire(), into: Lease::own(&into) }
    }

    fn landed(&mut self, from: ConnectionId, token: u32) {
        let Some(arrival) = self.messages.take_arrival(token) else { return };
        let StreamArrival { head, receive, heap, held, region, .. } = arrival;
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
                self.messages.memory().put(View::of(&bytes), receive.place);
                self.peers.release(from, bytes.len());
                self.received(from, &head, len, &receive);
            }
            (None, Some(heap)) => {
                let message = match held {
                    Some(held) if is_collective(head.kind) => self.groups.held_mut(held),
                    Some(held) => self.messages.table(is_tagged(head.kind)).held_mut(held),
                    None => None,
                };
                if let Some(message) = message {
                    message.body = UnexpectedPayload::Whole(heap.into_vec());
                } else {
                    // The message was discarded while it arrived.
                    if head.flags.contains(Flags::ACK) {
                        self.peers.reply(from, FrameKind::Ack, head.id, 0);
                    }
                    self.peers.release(from, head.len as usize);
                }
            }
            (None, None) => {}
        }
    }

    fn pulled(&mut self, from: ConnectionId, token: u32, result: Result<u64, PullError>) {
        let Some(pull) = self.messages.take_pull(from, token) else { return };
        let (head, len, receive) = match pull {
            PayloadPull::Message { head, len, receive, .. } => (head, len, receive),
            PayloadPull::Store(store) => return self.stored(store, result),
            PayloadPull::Fetch { part, .. } => return self.fetched(part, result),
        };
        match result {
            Ok(_) => self.received(from, &head, len, &receive),
            Err(error) => {
                let (code, why) = pull_error(error);
                if head.flags.contains(Flags::ACK) {
                    self.peers.reply(from, FrameKind::Ack, head.id, code.errno() as u64);
                }
                self.receive_failed(from, &head, &receive, code, why);
            }
        }
    }

    fn assisted(&mut self, from: ConnectionId, token: u32, result: Result<(), PullError>) {
        self.assisted_end(from, token, result);
    }

    fn undone(&mut self, from: ConnectionId, token: u32) {
        self.give_back(from, token);
    }

    fn pushed(&mut self, from: ConnectionId, id: u32, result: Result<(), PullError>) {
        if id & PART != 0 {
            return self.write_pushed(from, id);
        }
        if id & SERVE != 0 {
            return self.served(from, id, result.is_ok());
        }
        let failure = result.err().map(pull_error);
        let end = self.messages.sends_mut().pushed(from, id, failure);
        self.send_ended(end);
    }
}

/// Returns the error code and text of a failed pull.
fn pull_error(error: PullError) -> (ErrorCode, &'static str) {
    match error {
        PullError::Fault => (ErrorCode::Fault, "the source or the destination is not accessible"),
        PullError::Gone | PullError::Refused(_) | PullError::Unknown => {
            (ErrorCode::Canceled, "the sender cancelled the message")
        }
        PullError::Revoked => (ErrorCode::Canceled, "the memory's region was closed meanwhile"),
    }
}

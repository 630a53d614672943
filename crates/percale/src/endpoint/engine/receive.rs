//! Posts receives, peeks at messages, and cancels operations.

use super::core::Core;
use super::kinds::{envelope, is_collective, is_tagged};
use super::messages::MultiReceive;
use super::peers::{Unresolved, charge_of};
use super::types::{
    Notify, OperationIdentity, PendingOperation, Receive, ReceiveDestination, Side, Unexpected, UnexpectedPayload,
};
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode, ErrorEntry};
use crate::endpoint::matching::{Envelope, HeldMessage, Pattern, SourceFilter};
use crate::endpoint::work::{OpFlags, PostError, ReceiveWork};
use crate::local_memory::volatile::Segment;
use crate::table::Id;
use crate::transport::ConnectionId;
use crate::types::PeerAddress;
use crate::wire::head::{Flags, FrameKind, Head};

impl Core {
    /// Posts a receive on the fast path, which handles receives that have one segment, report to the endpoint's own
    /// queue, and match no message that is held here. Returns false, and does nothing, for any other receive.
    #[inline(always)]
    pub(super) fn post_plain_receive(
        &mut self,
        from: PeerAddress,
        segment: Segment,
        tag: Option<(u64, u64)>,
        context: u64,
        notify: Notify,
    ) -> bool {
        let Self { messages, peers, reporting, .. } = self;
        let (queue, fast_path_disabled) = reporting.receive_path();
        let (table, tag, ignore) = match tag {
            Some((tag, ignore)) => (messages.table(true), tag, ignore),
            None => (messages.table(false), 0, 0),
        };
        if fast_path_disabled || table.holds_any() {
            return false;
        }
        let source = match from {
            PeerAddress::UNSPECIFIED => SourceFilter::Any,
            peer => match peers.resolved(peer) {
                Some(slot) if !peers.get(slot).needs_slow_path() => SourceFilter::From(u64::from(slot)),
                _ => return false,
            },
        };
        if notify == Notify::Queue && queue.reserve().is_err() {
            return false;
        }
        let place = ReceiveDestination::One(segment);
        table.post(Pattern { tag, ignore, source }, Receive { place, context, notify, multi: None });
        true
    }

    /// Posts a receive, or performs the action that its PEEK, CLAIM and DISCARD flags request instead.
    pub(crate) fn post_any_receive(&mut self, work: &ReceiveWork, notify: Notify) -> Result<(), PostError> {
        let pattern = self.pattern(work)?;
        let tagged = work.tag.is_some();
        let special = OpFlags::PEEK | OpFlags::CLAIM | OpFlags::DISCARD | OpFlags::MULTI_RECEIVE;
        if work.flags.intersects(special) {
            self.keep_promises();
            return self.post_special(work, notify, tagged, &pattern);
        }
        let place = self.messages.memory_mut().place(&work.segments);
        let receive = Receive { place, context: work.context, notify, multi: None };
        let found = self.find_own(tagged, &pattern);
        let table = self.messages.table(tagged);
        match found.and_then(|held| table.take(held)) {
            Some(message) => self.fill(message, receive),
            None => {
                table.post(pattern, receive);
            }
        }
        self.flush_receives();
        Ok(())
    }

    /// Redirects receives from one slot to another because both are the same peer. Messages of that peer may be held
    /// here already, and are matched with these receives.
    pub(super) fn redirect_receives(&mut self, from: ConnectionId, to: ConnectionId) {
        let source = |slot: ConnectionId| SourceFilter::From(slot.into());
        for tagged in [false, true] {
            for pattern in self.messages.table(tagged).redirect(source(from), source(to)) {
                while let Some(held) = self.messages.table(tagged).find(&pattern) {
                    let Some(message) = self.messages.table(tagged).held(held) else { break };
                    let (head, len) = (message.head, message.len);
                    // This takes the first receive that matches, which may be another one. There is none if the receive
                    // with this pattern no longer exists.
                    if self.messages.table(tagged).meet(envelope(to, &head)).is_none() {
                        break;
                    }
                    if self.find_own(tagged, &pattern) != Some(held) {
                        continue; // The message was promised to a shared receive.
                    }
                    let Some(receive) = self.match_posted(to, &head, len) else { break };
                    let Some(message) = self.messages.table(tagged).take(held) else { break };
                    self.fill(message, receive);
                }
            }
        }
    }

    /// Returns the pattern of the messages that a receive takes.
    #[inline]
    fn pattern(&mut self, work: &ReceiveWork) -> Result<Pattern, PostError> {
        let (tag, ignore) = work.tag.unwrap_or((0, 0));
        let source = if work.from == PeerAddress::UNSPECIFIED || self.peers.is_single() {
            // An endpoint of one connection has only one sender, and receives may be posted before the peer is known.
            SourceFilter::Any
        } else {
            let slot = self.peers.resolve(work.from).map_err(|error| unresolved(error, work.from))?;
            SourceFilter::From(u64::from(self.peers.direct_receive(slot)))
        };
        Ok(Pattern { tag, ignore, source })
    }

    fn post_special(
        &mut self,
        work: &ReceiveWork,
        notify: Notify,
        tagged: bool,
        pattern: &Pattern,
    ) -> Result<(), PostError> {
        if work.flags.contains(OpFlags::MULTI_RECEIVE) {
            if work.flags.intersects(OpFlags::PEEK | OpFlags::CLAIM | OpFlags::DISCARD) {
                return Err(PostError::Flags("a multi-receive buffer cannot peek, claim or discard"));
            }
            if work.segments.as_slice().len() != 1 {
                return Err(PostError::Flags("a multi-receive buffer must be one segment"));
            }
            return self.post_multi(work, notify, tagged, pattern);
        }
        if work.flags.contains(OpFlags::PEEK) {
            return self.peek(work, notify, tagged, pattern);
        }
        if !work.flags.contains(OpFlags::CLAIM) {
            return Err(PostError::Flags("DISCARD requires PEEK or CLAIM"));
        }
        let identity = OperationIdentity::of(notify, work.context);
        let held = self.messages.take_claim(identity, tagged).ok_or(PostError::NotClaimed)?;
        // A claimed message no longer exists if its sender has disconnected before the payload arrived.
        let message = self.messages.table(tagged).take(held).ok_or(PostError::NotClaimed)?;
        if work.flags.contains(OpFlags::DISCARD) {
            self.discard(work, notify, message);
        } else {
            let place = self.messages.memory_mut().place(&work.segments);
            let receive = Receive { place, context: work.context, notify, multi: None };
            self.fill(message, receive);
        }
        Ok(())
    }

    /// Handles FI_PEEK: reports the first message that the pattern matches, or reports that there is none.
    fn peek(&mut self, work: &ReceiveWork, notify: Notify, tagged: bool, pattern: &Pattern) -> Result<(), PostError> {
        let takes = work.flags.intersects(OpFlags::CLAIM | OpFlags::DISCARD);
        let found = if takes { self.find_own(tagged, pattern) } else { self.messages.table(tagged).find(pattern) };
        let Some(held) = found else {
            let flags =
                CompletionFlags::RECEIVE | if tagged { CompletionFlags::TAGGED } else { CompletionFlags::MESSAGE };
            let entry = Entry { context: work.context, flags, tag: pattern.tag, ..Entry::default() };
            let error = ErrorEntry::new(entry, ErrorCode::NoMessage).with_text("no matching message");
            self.report_error(Side::Receive, notify, error);
            return Ok(());
        };
        if work.flags.contains(OpFlags::DISCARD) {
            if let Some(message) = self.messages.table(tagged).take(held) {
                self.discard(work, notify, message);
            }
            return Ok(());
        }
        if work.flags.contains(OpFlags::CLAIM) {
            let identity = OperationIdentity::of(notify, work.context);
            if !self.messages.claim(identity, tagged, held) {
                return Err(PostError::Flags("a message is already claimed with this context"));
            }
        }
        self.report_peeked(work, notify, tagged, held);
        Ok(())
    }

    fn report_peeked(&mut self, work: &ReceiveWork, notify: Notify, tagged: bool, held: HeldMessage) {
        let Some(message) = self.messages.table(tagged).held(held) else { return };
        let (from, head, len) = (message.from, message.head, message.len);
        let place = ReceiveDestination::One(Segment::EMPTY); // The message is only reported.
        let receive = Receive { place, context: work.context, notify, multi: None };
        let entry = self.received_entry(from, &head, len, &receive);
        self.report(Side::Receive, notify, entry); // It is counted once it is received.
    }

    /// Discards a message: the sender's operation completes, and the local operation reports the message's properties.
    fn discard(&mut self, work: &ReceiveWork, notify: Notify, message: Unexpected) {
        let Unexpected { from, head, len, .. } = message;
        self.drop_message(message);
        let place = ReceiveDestination::One(Segment::EMPTY); // The message is only reported.
        let receive = Receive { place, context: work.context, notify, multi: None };
        let entry = self.received_entry(from, &head, len, &receive);
        self.complete(Side::Receive, notify, entry);
    }

    /// Drops a message that no receive will take, and answers its sender if the sender expects an answer.
    pub(super) fn drop_message(&mut self, message: Unexpected) {
        self.peers.release(message.from, charge_of(&message));
        let Unexpected { from, head, body, .. } = message;
        match body {
            UnexpectedPayload::Short(_) | UnexpectedPayload::Whole(_) => {
                if head.flags.contains(Flags::ACK) {
                    self.peers.reply(from, FrameKind::Ack, head.id, 0);
                }
            }
            UnexpectedPayload::Offered(_) => {
                self.peers.reply(from, FrameKind::Pulled, head.id, 0);
                if head.flags.contains(Flags::ACK) {
                    self.peers.reply(from, FrameKind::Ack, head.id, 0);
                }
            }
            UnexpectedPayload::Arriving(arrival) => self.messages.forget_arrival(arrival),
        }
    }

    /// Posts a buffer for many messages, after assigning to it the messages that are held already.
    fn post_multi(
        &mut self,
        work: &ReceiveWork,
        notify: Notify,
        tagged: bool,
        pattern: &Pattern,
    ) -> Result<(), PostError> {
        let multi = self.messages.memory_mut().add_multi(work.segments, work.context, notify);
        while let Some(held) = self.find_own(tagged, pattern) {
            let Some(message) = self.messages.table(tagged).take(held) else { break };
            let (part, closed) = self.messages.memory_mut().take_part(multi, message.len);
            self.fill(message, part);
            if closed {
                return Ok(());
            }
        }
        let place = self.messages.memory_mut().place(&work.segments);
        let receive = Receive { place, context: work.context, notify, multi: Some(multi) };
        self.messages.table(tagged).post(*pattern, receive);
        self.flush_receives();
        Ok(())
    }

    /// Records that one message of a multi-receive buffer of this endpoint is complete. Returns the flag MULTI_RECEIVE
    /// if that released the buffer.
    pub(crate) fn multi_done(&mut self, multi: Id<MultiReceive>) -> CompletionFlags {
        let released = self.messages.memory_mut().part_over(multi);
        if released { CompletionFlags::MULTI_RECEIVE } else { CompletionFlags::empty() }
    }

    /// Drops the held messages of this kind for which `unwanted` returns true. Returns their number.
    pub(super) fn drop_held(
        &mut self,
        kind: FrameKind,
        unwanted: impl Fn(ConnectionId, u64, &Unexpected) -> bool,
    ) -> usize {
        let unwanted = |envelope: Envelope, message: &Unexpected| unwanted(message.from, envelope.tag, message);
        let dropped = match is_collective(kind) {
            true => self.groups.take_held(unwanted),
            false => self.messages.take_held(is_tagged(kind), unwanted),
        };
        for message in &dropped {
            self.peers.release(message.from, charge_of(message));
            if let UnexpectedPayload::Arriving(arrival) = message.body {
                self.messages.forget_arrival(arrival);
            }
        }
        if !dropped.is_empty() && self.shared.is_member() && !is_collective(kind) {
            self.withdraw_gone(is_tagged(kind));
        }
        dropped.len()
    }

    /// Drops the unexpected messages of a peer with a payload that will never arrive, after the end of its connection.
    /// Complete messages stay and can be received, but are not answered: the next connection at this slot may be that
    /// of another endpoint, which has a send with the same number.
    pub(super) fn end_held_messages(&mut self, from: ConnectionId) {
        for kind in [FrameKind::Message, FrameKind::Tagged, FrameKind::Collective] {
            let dropped = self.drop_held(kind, |of, _, message| {
                of == from && !matches!(message.body, UnexpectedPayload::Whole(_) | UnexpectedPayload::Short(_))
            });
            crate::later::later!(debug: dropped, "dropped unexpected messages whose data will never arrive");
        }
        let leave_unanswered = |message: &mut Unexpected| {
            if message.from == from {
                message.head.flags.remove(Flags::ACK);
            }
        };
        self.messages.change_held(leave_unanswered);
        self.groups.change_held(leave_unanswered);
        self.peers.set_holds_messages(from, true); // This is an assumption, which `has_held_messages` checks.
    }

    /// Assigns the held messages of a peer to receives directed at any of its slots, after its connection has ended.
    pub(super) fn assign_held_messages(&mut self, from: ConnectionId) {
        if [false, true].iter().all(|tagged| !self.messages.table_ref(*tagged).holds_of(from.into())) {
            return;
        }
        let names = self.peers.other_slots(from);
        for name in &names {
            self.peers.set_holds_messages(*name, true);
        }
        let names: Vec<u64> = names.into_iter().map(u64::from).collect();
        for tagged in [false, true] {
            self.messages.table(tagged).leave(from.into(), &names);
        }
    }

    /// Fails the posted receives if no message will come any more.
    pub(super) fn flush_receives(&mut self) {
        let Some((error, why)) = self.admission.over().cloned() else { return };
        for tagged in [false, true] {
            let posted: Vec<Receive> = self.messages.table(tagged).drain_posted(SourceFilter::Any).collect();
            for receive in posted {
                self.fail_receive(0, tagged, receive, error, &why);
            }
        }
    }

    /// Fails a posted receive that will get no message.
    pub(super) fn fail_receive(
        &mut self,
        from: ConnectionId,
        tagged: bool,
        receive: Receive,
        error: ErrorCode,
        why: &str,
    ) {
        let head = Head { kind: if tagged { FrameKind::Tagged } else { FrameKind::Message }, ..Head::default() };
        let mut entry = self.received_entry(from, &head, 0, &receive);
        self.messages.memory_mut().leave(receive.place);
        if let Some(multi) = receive.multi {
            if !self.messages.memory_mut().close(multi) {
                return; // The last message in flight releases the buffer.
            }
            entry.flags |= CompletionFlags::MULTI_RECEIVE;
        }
        self.fail(Side::Receive, receive.notify, ErrorEntry::new(entry, error).with_text(why.to_owned()));
    }

    /// Fails the receives that only this peer could have satisfied, because a wait for a dead peer must end.
    pub(super) fn fail_directed(&mut self, from: ConnectionId, error: ErrorCode, why: &str) {
        self.fail_shared(from, error, why);
        if self.peers.is_single() {
            return; // All its receives end together, when the filter closes.
        }
        for tagged in [false, true] {
            let directed: Vec<Receive> =
                self.messages.table(tagged).drain_posted(SourceFilter::From(from.into())).collect();
            for receive in directed {
                self.fail_receive(from, tagged, receive, error, why);
            }
        }
    }

    /// Cancels the first operation with this context and notification that can still be canceled: a posted receive, or
    /// an operation that was not sent yet, not even in part. Returns whether there was one.
    pub(crate) fn cancel(&mut self, context: u64, notify_operation: bool) -> bool {
        let notify = if notify_operation { Notify::Operation } else { Notify::Queue };
        if self.triggered.any() && self.cancel_waiting(context, notify_operation) {
            return true;
        }
        self.cancel_posted(context, notify.class())
            || self.triggered.any() && self.cancel_begun(context, notify_operation)
    }

    /// Like [`cancel`](Self::cancel), but for operations that a counter began, or that use host memory in place of
    /// device memory. These are posted with their numbers as contexts.
    #[cold]
    fn cancel_begun(&mut self, context: u64, notify_operation: bool) -> bool {
        let begun = self.triggered.begun_with(context, notify_operation);
        begun.into_iter().any(|id| self.cancel_posted(id, Notify::Triggered.class()))
    }

    /// Like [`cancel`](Self::cancel), but only for operations of this class, which are posted with this context.
    fn cancel_posted(&mut self, context: u64, class: u8) -> bool {
        let ours = |posted: u64, notify: Notify| posted == context && notify.class() == class;
        for tagged in [false, true] {
            let wanted = |receive: &Receive| ours(receive.context, receive.notify);
            if let Some(receive) = self.messages.table(tagged).cancel_first(wanted) {
                self.cancel_receive(tagged, receive, "cancelled before a message arrived");
                return true;
            }
        }
        for slot in 0..self.peers.len() as u32 {
            let wanted = |send: &PendingOperation| send.entry().is_some_and(|entry| ours(entry.context, send.notify));
            let Some(send) = self.peers.get_mut(slot).take_matching(wanted) else { continue };
            let Some(entry) = send.entry() else { continue };
            let error = ErrorEntry::new(entry, ErrorCode::Canceled).with_text("cancelled before it was sent");
            let peer = self.peers.source(slot);
            self.fail(Side::Transmit, send.notify, error.with_peer(peer));
            return true;
        }
        false
    }
}

/// Returns the error for an address that resolves to no peer.
pub(crate) fn unresolved(error: Unresolved, peer: PeerAddress) -> PostError {
    match error {
        Unresolved::NoVector => PostError::NoVector,
        Unresolved::Unknown => PostError::UnknownPeer(peer.0),
        Unresolved::NotConnected => PostError::NotConnected,
        Unresolved::Ended => PostError::ConnectionEnded,
    }
}

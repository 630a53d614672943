//! The end of the transfers of groups, of their operations, and of groups themselves.

use std::collections::HashSet;

use crate::collective::CollectiveWork;
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode, ErrorEntry};
use crate::completion::event::Event;
use crate::endpoint::engine::core::Core;
use crate::endpoint::engine::deferred_cleanup::OperationMemory;
use crate::endpoint::engine::groups::{AbortOutcome, GroupEnd, GroupState};
use crate::endpoint::engine::types::{LinkAction, Notify, Side, Unexpected};
use crate::endpoint::matching::{Envelope, HeldMessage};
use crate::local_memory::volatile::View;
use crate::table::Id;
use crate::transport::ConnectionId;
use crate::wire::head::{ABORT, FrameKind, Head};
use crate::wire::join::JOIN;

/// Returns the completion of a collective operation.
pub(in crate::endpoint::engine) fn collective_entry(work: &CollectiveWork) -> Entry {
    let len = work.bytes().unwrap_or(0) as u64;
    Entry { context: work.context, flags: CompletionFlags::COLLECTIVE, len, ..Entry::default() }
}

impl Core {
    /// Schedules the groups that can continue.
    fn groups_ready(&mut self) {
        self.peers.push(0, LinkAction::Advance);
    }

    /// Schedules a group that can continue.
    #[inline(never)]
    fn collective_ready(&mut self, index: Id<GroupState>) {
        self.groups.make_ready(index);
        self.groups_ready();
    }

    /// Delivers a message of a group on the fast path, which handles messages that have a receive and fill it. Returns
    /// false, and does nothing, for any other message.
    #[inline(never)]
    pub(in crate::endpoint::engine) fn collective_in_place(
        &mut self,
        from: ConnectionId,
        head: &Head,
        payload: View<'_>,
    ) -> bool {
        let Some(context) = self.groups.deliver(from, head, payload) else { return false };
        if let Some(index) = self.groups.received(context, head.data) {
            self.advance_group(index);
        }
        true
    }

    /// Keeps a message of a group until its receive is posted. If no operation will take it, the group breaks.
    pub(in crate::endpoint::engine) fn hold_of_group(
        &mut self,
        envelope: Envelope,
        message: Unexpected,
    ) -> HeldMessage {
        let stray = self.groups.break_for_stray(message.from, &message.head);
        let held = self.groups.hold(envelope, message);
        if let Some(index) = stray {
            self.collective_ready(index);
        }
        held
    }

    /// Handles the successful end of a transfer of a group's operation.
    #[inline(never)]
    pub(in crate::endpoint::engine) fn collective_over(&mut self, side: Side, entry: &Entry) {
        let ready = match side {
            Side::Transmit => self.groups.transfer_over(entry.context, None),
            Side::Receive => self.groups.received(entry.context, entry.data),
        };
        if let Some(index) = ready {
            self.advance_group(index);
        }
    }

    /// Handles the failure of a transfer.
    #[cold]
    pub(in crate::endpoint::engine) fn collective_transfer_failed(&mut self, error: &ErrorEntry) {
        let why = "a message between members of the group failed";
        if let Some(index) = self.groups.transfer_over(error.entry.context, Some((error.error, why))) {
            self.advance_group(index);
        }
    }

    /// Performs the next steps of a group until one needs a link. Schedules the group if more remains to be done.
    #[inline(never)]
    fn advance_group(&mut self, index: Id<GroupState>) {
        if !(self.groups.run_steps(index) && self.collective_done(index)) {
            self.collective_ready(index);
        }
    }

    /// Ends and reports the first operation of a group, after its steps are done. Returns whether nothing else remains
    /// to be done for the group.
    pub(super) fn collective_done(&mut self, index: Id<GroupState>) -> bool {
        let Some(end) = self.groups.end_operation(index) else { return true };
        if end.is_join {
            let (group, context) = (end.id(), end.context);
            self.event(|| Event::Joined { group, context });
        } else {
            self.complete(Side::Transmit, end.notify, end.entry());
        }
        end.is_last
    }

    /// Reports the failure of an operation of a group.
    pub(super) fn collective_failed(&mut self, end: &GroupEnd, code: ErrorCode, why: &str) {
        if end.is_join {
            let (group, context, reason) = (end.id(), end.context, why.to_owned());
            return self.event(|| Event::JoinFailed { group, context, error: code, reason });
        }
        let entry = Entry { context: end.context, flags: CompletionFlags::COLLECTIVE, ..Entry::default() };
        self.fail(Side::Transmit, end.notify, ErrorEntry::new(entry, code).with_text(why.to_owned()));
    }

    /// Cancels the receives of a broken group, and discards messages that arrived for it.
    pub(super) fn withdraw(&mut self, index: Id<GroupState>) {
        let held = self.groups.withdraw(index);
        self.discard_all(held);
    }

    fn discard_all(&mut self, messages: Vec<Unexpected>) {
        messages.into_iter().for_each(|message| self.drop_message(message));
    }

    /// Returns whether a message is for a group that may still need it. Handles messages that break a group or join
    /// one.
    pub(in crate::endpoint::engine) fn is_wanted(&mut self, from: ConnectionId, head: &Head) -> bool {
        if head.kind == FrameKind::Collective && head.len == 0 && head.data >= JOIN {
            match head.data {
                ABORT.. => self.aborted(from, head.tag, head.data as u32),
                data => self.receive_join(from, head.tag, data),
            }
            return false;
        }
        if head.data >= JOIN {
            self.peers.flag_violation(from, "a message of a group with an invalid number");
            return false;
        }
        if !self.groups.is_broken(head.tag) {
            return true;
        }
        if head.kind == FrameKind::CollectiveOffer {
            self.peers.reply(from, FrameKind::Pulled, head.id, 0);
        }
        false
    }

    /// Handles the notice of a member that the group is broken.
    fn aborted(&mut self, from: ConnectionId, tag: u64, number: u32) {
        match self.groups.aborted(from, tag, number) {
            AbortOutcome::Broken(_) => self.groups_ready(),
            AbortOutcome::Unknown => {
                let source = u64::from(from);
                let held = self.groups.take_held(|envelope, _| envelope.tag == tag && envelope.source == source);
                self.discard_all(held);
            }
            AbortOutcome::NoMember => {
                self.peers.flag_violation(from, "abort of a group by a peer that is not a member")
            }
        }
    }

    /// Handles the end of a connection. If the peer did not close it in an orderly way, the groups of the peer break.
    pub(in crate::endpoint::engine) fn collectives_down(&mut self, from: ConnectionId, error: ErrorCode, why: &str) {
        if self.groups.member_gone(from, error, why) {
            self.joins_ready();
        }
        for receive in self.groups.take_receives_of(from) {
            let head = Head { kind: FrameKind::Collective, ..Head::default() };
            self.receive_failed(from, &head, &receive, error, why);
        }
        // Messages of the peer for groups in which it is not known to be a member can never be received.
        let known = self.groups.tags_of(from);
        self.drop_held(FrameKind::Collective, |of, tag, _| of == from && !known.contains(&tag));
        if self.groups.break_groups_of(from, error, why) {
            self.groups_ready();
        }
    }

    /// Removes an operation from its group, given the context of its transfers. Returns where it is reported, its
    /// completion, and its memory.
    pub(in crate::endpoint::engine) fn take_collective(
        &mut self,
        context: u64,
    ) -> Option<(Notify, Entry, [OperationMemory; 2])> {
        let (end, scratch, own) = self.groups.take_operation(context)?;
        Some((end.notify, end.entry(), [OperationMemory::Scratch(scratch), OperationMemory::Buffer(own)]))
    }

    /// Ends all operations of groups and all joins, because the endpoint closes. Operations with transfers that have
    /// these contexts do not end yet.
    pub(in crate::endpoint::engine) fn end_groups(&mut self, held: &HashSet<u64>, why: &str) {
        for end in self.groups.end_all(held) {
            self.collective_failed(&end, ErrorCode::Canceled, why);
        }
    }
}

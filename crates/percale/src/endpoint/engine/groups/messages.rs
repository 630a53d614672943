//! The messages of groups: their receives, and messages that wait for a receive.

use super::super::kinds::envelope;
use super::super::types::{Receive, ReceiveDestination, Unexpected};
use super::{DIFFERENT, GroupState, Groups, pattern, receive};
use crate::completion::entry::ErrorCode;
use crate::endpoint::matching::{AfterMatch, Envelope, HeldMessage, SourceFilter};
use crate::local_memory::volatile::{Segment, View, ViewExt as _};
use crate::table::Id;
use crate::transport::ConnectionId;
use crate::wire::head::Head;
use crate::wire::join::JOIN;

impl Groups {
    /// Delivers a message on the fast path, which handles messages that have a receive and fill it. Returns the
    /// receive's context. Returns `None`, and does nothing, for any other message. (A broken group has no receives.)
    #[inline(always)]
    pub(in super::super) fn deliver(&mut self, from: ConnectionId, head: &Head, payload: View<'_>) -> Option<u64> {
        let met = self.messages.meet(envelope(from, head))?;
        let Receive { place: ReceiveDestination::One(segment), context, .. } = *self.messages.met(met) else {
            return None;
        };
        if payload.len() != segment.len() || head.data >= JOIN {
            return None;
        }
        payload.copy_to_one(segment);
        self.messages.use_up(met);
        Some(context)
    }

    /// Returns the receive for a message, if one is posted.
    #[inline]
    pub(in super::super) fn match_posted(&mut self, from: ConnectionId, head: &Head) -> Option<Receive> {
        self.messages.arrive_with(envelope(from, head), |_, _| (AfterMatch::Remove, ()))?.1
    }

    /// Keeps a message until its receive is posted.
    pub(in super::super) fn hold(&mut self, envelope: Envelope, message: Unexpected) -> HeldMessage {
        self.messages.hold(envelope, message)
    }

    /// Breaks the group of a message that no operation will take. Returns the group, which can continue in order to be
    /// wound up.
    pub(in super::super) fn break_for_stray(&mut self, from: ConnectionId, head: &Head) -> Option<Id<GroupState>> {
        let &index = self.by_tag.get(&head.tag)?;
        let group = &mut self.groups[index];
        if head.data >= JOIN || !group.is_stray(head.data) || !group.members.contains(&from) {
            return None;
        }
        group.breaks(ErrorCode::Protocol, DIFFERENT);
        Some(index)
    }

    /// Breaks the group if it keeps a message that no operation will take.
    #[cold]
    pub(super) fn break_for_kept(&mut self, index: Id<GroupState>) {
        let group = &mut self.groups[index];
        let stray = self.messages.unexpected().any(|(_, _, message)| {
            let head = &message.head;
            head.tag == group.tag
                && head.data < JOIN
                && group.is_stray(head.data)
                && group.members.contains(&message.from)
        });
        if stray {
            group.breaks(ErrorCode::Protocol, DIFFERENT);
        }
    }

    /// Returns a message that is kept.
    pub(in super::super) fn held_mut(&mut self, held: HeldMessage) -> Option<&mut Unexpected> {
        self.messages.held_mut(held)
    }

    /// Returns whether a message of this peer is kept.
    pub(in super::super) fn holds_of(&self, peer: ConnectionId) -> bool {
        self.messages.holds_of(peer.into())
    }

    /// Takes the kept message of a member that matches a receive, if there is one.
    #[inline]
    pub(in super::super) fn take_message(&mut self, from: ConnectionId, tag: u64) -> Option<Unexpected> {
        let held = self.messages.find(&pattern(from, tag))?;
        self.messages.take(held)
    }

    /// Posts a receive for a message of a member. Breaks the group instead, and returns false, if that member has
    /// closed its endpoint.
    #[inline]
    pub(in super::super) fn post_receive(
        &mut self,
        index: Id<GroupState>,
        from: ConnectionId,
        tag: u64,
        segment: Segment,
        context: u64,
    ) -> bool {
        let group = &mut self.groups[index];
        if group.gone.contains(&from) {
            group.running.iter_mut().for_each(|running| running.outstanding = running.outstanding.saturating_sub(1));
            group.breaks(ErrorCode::Closed, "a member of the group has closed its endpoint");
            return false;
        }
        self.messages.post(pattern(from, tag), receive(segment, context));
        true
    }

    /// Takes the kept messages for which `unwanted` returns true.
    pub(in super::super) fn take_held(&mut self, unwanted: impl Fn(Envelope, &Unexpected) -> bool) -> Vec<Unexpected> {
        let held = self.messages.extract_held(|envelope, _, message| unwanted(envelope, message));
        held.map(|(_, message)| message).collect()
    }

    /// Calls `change` with each held message.
    pub(in super::super) fn change_held(&mut self, change: impl Fn(&mut Unexpected)) {
        self.messages.change_held(change);
    }

    /// Takes the receives that wait for messages of a disconnected peer.
    pub(in super::super) fn take_receives_of(&mut self, from: ConnectionId) -> Vec<Receive> {
        self.messages.drain_posted(SourceFilter::From(from.into())).collect()
    }
}

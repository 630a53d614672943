//! The beginning and the end of groups: joins, broken groups, and the end of the endpoint.

use std::collections::HashSet;

use super::super::types::Unexpected;
use super::running::RunningOperation;
use super::{AbortOutcome, GroupEnd, GroupState, Groups, PendingWork, Scratch, context_of};
use crate::collective::{GroupId, JoinAction, decode_error_code};
use crate::completion::entry::ErrorCode;
use crate::local_memory::buffer::Buffer;
use crate::table::Id;
use crate::transport::ConnectionId;
use crate::wire::join::Join;

impl Groups {
    /// Starts to join the members of a new group, under a name that this endpoint proposes.
    pub(in super::super) fn join(&mut self, index: Id<GroupState>, name: u64) {
        let group = &self.groups[index];
        self.joins.join(group.list, index.to_u64(), name, &group.members, group.rank);
        self.make_joins_ready();
    }

    /// Takes the next action that joins request. Actions that concern only groups of this endpoint are performed here.
    pub(in super::super) fn next_join_action(&mut self) -> Option<JoinAction> {
        loop {
            match self.joins.deeds.pop_front()? {
                JoinAction::Agreed { group, tag } => {
                    let group = Id::from_u64(group);
                    self.name(group, tag);
                    self.make_ready(group);
                }
                JoinAction::Failed { group, error, why } => {
                    let index = Id::from_u64(group);
                    if let Some(group) = self.groups.get_mut(index) {
                        group.breaks(error, &why);
                        self.make_ready(index);
                    }
                }
                join_action => return Some(join_action),
            }
        }
    }

    /// Returns whether joins request actions.
    pub(in super::super) fn has_join_actions(&self) -> bool {
        !self.joins.deeds.is_empty()
    }

    /// Handles a message of a peer about joining a list. Returns false if the message is invalid, or if there are too
    /// many lists that this endpoint has never joined.
    pub(in super::super) fn receive_join(&mut self, from: ConnectionId, list: u64, data: u64) -> bool {
        Join::from_data(data).is_some_and(|said| self.joins.receive_join(list, from, said))
    }

    /// Handles a peer that advertises an address other than the one at which it was found.
    pub(in super::super) fn handle_address_mismatch(&mut self, peer: ConnectionId, why: &str) {
        self.joins.handle_address_mismatch(peer, why);
    }

    /// Called when the application leaves a group. Operations that were posted still end. Returns whether joins can
    /// continue.
    pub(in super::super) fn leave(&mut self, id: GroupId) -> bool {
        let index = Id::from_u64(id.to_u64());
        let Some(group) = self.groups.get_mut(index).filter(|group| !group.left) else { return false };
        group.left = true;
        if group.running.is_none() {
            self.close(index);
            return false;
        }
        if group.named || !group.queue.is_empty() {
            return false;
        }
        // No operation needs the group: the other members are notified at once, and the next join of these members need
        // not wait for it.
        let list = group.list;
        self.joins.leave(list, index.to_u64());
        self.make_joins_ready();
        true
    }

    /// Handles the notice of a peer that it gave up the group with this tag because of an error with this number.
    pub(in super::super) fn aborted(&mut self, from: ConnectionId, tag: u64, number: u32) -> AbortOutcome {
        let Some(&index) = self.by_tag.get(&tag) else {
            self.record_early_abort(tag, from);
            return AbortOutcome::Unknown;
        };
        if !self.groups[index].members.contains(&from) {
            return AbortOutcome::NoMember;
        }
        // A notice of a peer that is not a member must not mark the tag as broken: messages with the tag would be
        // discarded, and its group would wait forever.
        self.remember_broken(tag);
        self.groups[index].breaks(decode_error_code(number), "a member left the group");
        self.make_ready(index);
        AbortOutcome::Broken(index)
    }

    /// Handles the end of the connection to a peer: ends the joins that wait for the peer, and drops the notices that
    /// the peer sent. Returns whether joins request actions.
    pub(in super::super) fn member_gone(&mut self, from: ConnectionId, error: ErrorCode, why: &str) -> bool {
        self.forget_early_aborts(from);
        self.joins.gone(from, error, why);
        self.has_join_actions()
    }

    /// Returns the tags of the groups that have a tag and that include a peer as a member.
    pub(in super::super) fn tags_of(&self, member: ConnectionId) -> Vec<u64> {
        let groups = self.groups.iter().filter(|(_, group)| group.named && group.members.contains(&member));
        groups.map(|(_, group)| group.tag).collect()
    }

    /// Breaks the groups of a disconnected peer. If the peer closed its endpoint in an orderly way, a group breaks only
    /// when it needs the peer. Returns whether groups can continue.
    pub(in super::super) fn break_groups_of(&mut self, member: ConnectionId, error: ErrorCode, why: &str) -> bool {
        let mut any = false;
        for (index, group) in self.groups.iter_mut() {
            if !group.named || !group.members.contains(&member) {
                continue;
            }
            if error == ErrorCode::Closed {
                group.gone.push(member);
            } else {
                group.breaks(error, &format!("{why} (a member of the group)"));
                self.ready.push_back(PendingWork::Group(index));
                any = true;
            }
        }
        any
    }

    /// Returns the tag, the members and the error of a broken group if its members have to be notified. They are
    /// returned only once.
    pub(in super::super) fn announce_broken(
        &mut self,
        index: Id<GroupState>,
    ) -> Option<(u64, Vec<ConnectionId>, ErrorCode)> {
        let group = &mut self.groups[index];
        let (code, _) = group.broken.as_ref()?;
        if !group.named || std::mem::replace(&mut group.notified, true) {
            return None;
        }
        let others = group.members.iter().zip(0..).filter(|(_, member)| *member != group.rank).map(|(slot, _)| *slot);
        let (tag, others, code) = (group.tag, others.collect(), *code);
        self.remember_broken(tag);
        Some((tag, others, code))
    }

    /// Cancels the receives of a broken group. Returns the messages that arrived for it, which the caller discards.
    pub(in super::super) fn withdraw(&mut self, index: Id<GroupState>) -> Vec<Unexpected> {
        let group = &mut self.groups[index];
        if !group.named {
            return Vec::new(); // No operation of the group has begun.
        }
        let tag = group.tag;
        if let Some(running) = &mut group.running {
            let context = context_of(index, running.sequence);
            while self.messages.cancel_first(|receive| receive.context == context).is_some() {
                running.outstanding = running.outstanding.saturating_sub(1);
            }
        }
        self.take_held(|envelope, _| envelope.tag == tag)
    }

    /// Ends the operations of a broken group if no transfer uses their memory any more. Returns them, and the reason of
    /// their failure.
    pub(in super::super) fn end_broken(&mut self, index: Id<GroupState>) -> Option<(Vec<GroupEnd>, ErrorCode, String)> {
        let group = &mut self.groups[index];
        if group.running.as_ref().is_some_and(|running| running.outstanding > 0) {
            return None;
        }
        let (code, why) = group.broken.clone()?;
        let ended = group.running.take().into_iter().chain(std::mem::take(&mut group.queue));
        Some((ended.map(|running| GroupEnd::of(index, &running)).collect(), code, why))
    }

    /// Removes a broken group after its operations have ended, if the application has left it.
    pub(in super::super) fn close_if_left(&mut self, index: Id<GroupState>) {
        if self.groups.get(index).is_some_and(|group| group.left && group.running.is_none()) {
            self.close(index);
        }
    }

    /// Returns the tags and members of groups with unfinished operations. The members have to be notified that the
    /// endpoint closes.
    pub(in super::super) fn unfinished(&self) -> Vec<(u64, Box<[ConnectionId]>)> {
        let unfinished = |group: &&GroupState| group.named && !group.notified && group.running.is_some();
        let groups = self.groups.iter().map(|(_, group)| group).filter(unfinished);
        groups.map(|group| (group.tag, group.members.clone())).collect()
    }

    /// Removes an operation from its group, given the context of its transfers. Returns its end, and its memory.
    pub(in super::super) fn take_operation(&mut self, context: u64) -> Option<(GroupEnd, Scratch, Option<Buffer>)> {
        let index = self.groups.find_wire((context >> 32) as u32)?;
        let group = &mut self.groups[index];
        let running = group.running.take()?;
        Some((GroupEnd::of(index, &running), std::mem::take(&mut group.scratch), running.own.map(|own| *own)))
    }

    /// Ends all operations and all joins, because the endpoint closes. Operations with transfers that have the contexts
    /// `held` do not end yet. Transfers that end later find no group, and their results are ignored.
    pub(in super::super) fn end_all(&mut self, held: &HashSet<u64>) -> Vec<GroupEnd> {
        let mut all = Vec::new();
        let groups: Vec<Id<GroupState>> = self.groups.iter().map(|(index, _)| index).collect();
        for index in groups {
            let group = &mut self.groups[index];
            let is_held = |running: &mut RunningOperation| held.contains(&context_of(index, running.sequence));
            let running = if group.running.as_mut().is_some_and(is_held) { None } else { group.running.take() };
            let ended = running.into_iter().chain(std::mem::take(&mut group.queue));
            all.extend(ended.map(|running| GroupEnd::of(index, &running)));
            if self.groups[index].running.is_none() {
                self.close(index);
            }
        }
        self.end();
        all
    }
}

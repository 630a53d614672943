//! The end of transfers of groups, of their operations, and of groups themselves.

use std::collections::HashSet;

use super::context_of;
use super::group::Group;
use super::groups::{Collectives, Ready};
use super::running::Running;
use crate::collective::{CollectiveWork, GroupId, Step, heard_code};
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode, ErrorEntry};
use crate::completion::event::Event;
use crate::endpoint::engine::aside::Memory;
use crate::endpoint::engine::core::Core;
use crate::endpoint::engine::kinds::envelope;
use crate::endpoint::engine::types::{Action, Notify, Place as Into, Receive, Side};
use crate::endpoint::matching::{Envelope, Source};
use crate::local_memory::volatile::{View, ViewExt as _};
use crate::table::Id;
use crate::transport::Connection;
use crate::wire::head::{ABORT, Head, Kind};
use crate::wire::join::JOIN;

/// Returns the completion of a collective operation.
pub(in crate::endpoint::engine) fn collective_entry(work: &CollectiveWork) -> Entry {
    let len = work.bytes().unwrap_or(0) as u64;
    Entry { context: work.context, flags: CompletionFlags::COLLECTIVE, len, ..Entry::default() }
}

impl Core {
    /// Schedules a group that can go on.
    fn collective_ready(&mut self, index: Id<Group>) {
        self.collectives.ready.push_back(Ready::Group(index));
        self.peers.push(0, Action::Advance);
    }

    /// Delivers a message of a group of the most common kind, on a fast path: it has a receive, which it fills. Returns false, and does
    /// nothing, if this does not hold. (A broken group has no receives.)
    #[inline(never)]
    pub(in crate::endpoint::engine) fn collective_in_place(
        &mut self,
        from: Connection,
        head: &Head,
        payload: View<'_>,
    ) -> bool {
        let table = &mut self.collectives.messages;
        let Some(met) = table.meet(envelope(from, head)) else { return false };
        let Receive { place: Into::One(segment), context, .. } = *table.met(met) else { return false };
        if payload.len() != segment.len() || head.data >= JOIN {
            return false;
        }
        payload.copy_to_one(segment);
        table.use_up(met);
        self.received_from_member(context, head.data);
        true
    }

    /// Handles the successful end of a transfer of a group's operation.
    #[inline(never)]
    pub(in crate::endpoint::engine) fn collective_over(&mut self, side: Side, entry: &Entry) {
        match side {
            Side::Transmit => self.transfer_over(entry.context, |_| None),
            Side::Receive => self.received_from_member(entry.context, entry.data),
        }
    }

    /// Handles the end of a transfer that received a message with this data.
    #[inline]
    fn received_from_member(&mut self, context: u64, data: u64) {
        let why = "the members of the group do not do the same, in the same order";
        self.transfer_over(context, |running| (data != running.data).then_some((ErrorCode::Protocol, why)));
    }

    /// Handles the failure of a transfer.
    #[cold]
    pub(in crate::endpoint::engine) fn collective_transfer_failed(&mut self, error: &ErrorEntry) {
        let why = "a message between members of the group failed: a member is gone";
        self.transfer_over(error.entry.context, |_| Some((error.error, why)));
    }

    /// Ends a transfer, which may break the group.
    #[inline]
    fn transfer_over(&mut self, context: u64, breaks: impl FnOnce(&Running) -> Option<(ErrorCode, &'static str)>) {
        let sequence = context as u32;
        let Some(index) = self.collectives.groups.find_wire((context >> 32) as u32) else { return };
        let group = &mut self.collectives.groups[index];
        let Some(running) = group.running.as_mut().filter(|running| running.sequence == sequence) else { return };
        running.outstanding -= 1;
        let settled = running.waiting && running.outstanding == 0;
        if let Some((code, why)) = breaks(running) {
            group.breaks(code, why);
        }
        if (settled || group.broken.is_some()) && !self.goes_on_here(index) {
            self.collective_ready(index);
        }
    }

    /// Performs the next steps of a group's operation as long as they need no link. Returns whether nothing is left to do for the group.
    fn goes_on_here(&mut self, index: Id<Group>) -> bool {
        let Collectives { groups, chunks, .. } = &mut *self.collectives;
        let group = &mut groups[index];
        let Some(running) = group.running.as_mut().filter(|_| group.broken.is_none()) else { return false };
        running.waiting = false;
        while let Some(step) = running.program.steps.get(running.at) {
            match step {
                Step::Settle if running.outstanding == 0 => {}
                Step::Fold { .. } | Step::Copy { .. } => running.step_here(&mut group.scratch, step, chunks),
                _ => return false,
            }
            running.at += 1;
        }
        self.collective_done(index)
    }

    /// Ends the first operation of a group. Returns whether nothing else is left to do for the group.
    pub(super) fn collective_done(&mut self, index: Id<Group>) -> bool {
        let group = &mut self.collectives.groups[index];
        let Some(running) = group.running.take() else { return true };
        let Running { program, context, notify, bytes, joins, .. } = running;
        group.spare = Some(program);
        if !group.queue.is_empty() {
            group.running = group.queue.pop_front();
        }
        let is_all = group.running.is_none() && !group.left;
        let id = GroupId::from_u64(index.to_u64());
        let flags = CompletionFlags::COLLECTIVE;
        if joins && notify != Notify::Operation {
            self.event(|| Event::Joined { group: id, context });
        } else {
            self.complete(Side::Transmit, notify, Entry { context, flags, len: bytes as u64, ..Entry::default() });
        }
        is_all
    }

    pub(super) fn collective_failed(&mut self, index: Id<Group>, running: &Running, code: ErrorCode, why: &str) {
        let (context, notify) = (running.context, running.notify);
        if running.joins && notify != Notify::Operation {
            let id = GroupId::from_u64(index.to_u64());
            let reason = why.to_owned();
            return self.event(|| Event::JoinFailed { group: id, context, error: code, reason });
        }
        let entry = Entry { context, flags: CompletionFlags::COLLECTIVE, ..Entry::default() };
        self.fail(Side::Transmit, notify, ErrorEntry::new(entry, code).with_text(why.to_owned()));
    }

    /// Cancels the receives of a broken group, and discards messages that arrived for it.
    pub(super) fn withdraw(&mut self, index: Id<Group>) {
        let group = &mut self.collectives.groups[index];
        if !group.named {
            return; // Nothing of it has begun.
        }
        let tag = group.tag;
        if let Some(running) = &mut group.running {
            let context = context_of(index, running.sequence);
            while self.collectives.messages.cancel_where(|receive| receive.context == context).is_some() {
                running.outstanding -= 1;
            }
        }
        self.throw_away_held(|envelope| envelope.tag == tag);
    }

    fn throw_away_held(&mut self, unwanted: impl Fn(Envelope) -> bool) {
        let held: Vec<_> = self.collectives.messages.extract_held(|envelope, _, _| unwanted(envelope)).collect();
        held.into_iter().for_each(|(_, message)| self.throw_away(message));
    }

    /// Returns whether a message is for a group that may still need it. Handles messages that break a group or join one.
    pub(in crate::endpoint::engine) fn is_wanted(&mut self, from: Connection, head: &Head) -> bool {
        if head.kind == Kind::Collective && head.len == 0 && head.data >= JOIN {
            match head.data {
                ABORT.. => self.aborted(from, head.tag, head.data as u32),
                data => self.hear_join(from, head.tag, data),
            }
            return false;
        }
        if !self.collectives.is_broken(head.tag) {
            return true;
        }
        if head.kind == Kind::CollectiveOffer {
            self.peers.reply(from, Kind::Pulled, head.id, 0);
        }
        false
    }

    /// Handles the notice of a member that the group is broken.
    fn aborted(&mut self, from: Connection, tag: u64, code: u32) {
        let Some(&index) = self.collectives.by_tag.get(&tag) else {
            self.collectives.hear(tag, from);
            return self.throw_away_held(|envelope| envelope.tag == tag && envelope.source == u64::from(from));
        };
        if !self.collectives.groups[index].members.contains(&from) {
            return self.peers.accuse(from, "it breaks a group that it is no member of");
        }
        // A notice of a peer that is not a member must not mark the tag as broken: messages with the tag would be discarded, and its group
        // would wait forever.
        self.collectives.remember_broken(tag);
        self.collectives.groups[index].breaks(heard_code(code), "a member gave the group up");
        self.collective_ready(index);
    }

    /// Handles the end of a connection. If the peer did not close it in an orderly way, the groups of the peer break.
    pub(in crate::endpoint::engine) fn collectives_down(&mut self, from: Connection, error: ErrorCode, why: &str) {
        self.collectives.forget_heard(from);
        self.collectives.joins.gone(from, error, why);
        if !self.collectives.joins.deeds.is_empty() {
            self.joins_ready();
        }
        let receives: Vec<Receive> = self.collectives.messages.drain_posted(Source::From(from.into())).collect();
        for receive in receives {
            let head = Head { kind: Kind::Collective, ..Head::default() };
            self.receive_failed(from, &head, &receive, error, why);
        }
        // Messages of the peer for groups in which it is not known to be a member can never be received.
        let groups = self.collectives.groups.iter();
        let of_its = groups.filter(|(_, group)| group.named && group.members.contains(&from));
        let known: Vec<u64> = of_its.map(|(_, group)| group.tag).collect();
        self.drop_held(Kind::Collective, |of, tag, _| of == from && !known.contains(&tag));
        let groups = self.collectives.groups.iter();
        let of: Vec<Id<Group>> =
            groups.filter(|(_, group)| group.named && group.members.contains(&from)).map(|(index, _)| index).collect();
        for index in of {
            let group = &mut self.collectives.groups[index];
            if error == ErrorCode::Closed {
                group.gone.push(from);
            } else {
                group.breaks(error, &format!("a member of the group is gone: {why}"));
                self.collective_ready(index);
            }
        }
    }

    /// Takes the operation to which the transfer with this context belongs out of its group. Returns where it is reported, its completion,
    /// and its memory.
    pub(in crate::endpoint::engine) fn take_collective(
        &mut self,
        context: u64,
    ) -> Option<(Notify, Entry, [Memory; 2])> {
        let index = self.collectives.groups.find_wire((context >> 32) as u32)?;
        let group = &mut self.collectives.groups[index];
        let running = group.running.take()?;
        let entry = Entry {
            context: running.context,
            flags: CompletionFlags::COLLECTIVE,
            len: running.bytes as u64,
            ..Entry::default()
        };
        let memory = [Memory::Scratch(std::mem::take(&mut group.scratch)), Memory::Buffer(running.own)];
        Some((running.notify, entry, memory))
    }

    /// Ends all operations of groups and all joins, because the endpoint closes. Operations with transfers that have these contexts do not
    /// end yet.
    pub(in crate::endpoint::engine) fn end_groups(&mut self, held: &HashSet<u64>, why: &str) {
        let groups: Vec<Id<Group>> = self.collectives.groups.iter().map(|(index, _)| index).collect();
        for index in groups {
            let group = &mut self.collectives.groups[index];
            let is_held = |running: &mut Running| held.contains(&context_of(index, running.sequence));
            let running = if group.running.as_mut().is_some_and(is_held) { None } else { group.running.take() };
            for ended in running.into_iter().chain(std::mem::take(&mut group.queue)) {
                self.collective_failed(index, &ended, ErrorCode::Canceled, why);
            }
            // Transfers that end later find no group, and their results are ignored.
            let group = &mut self.collectives.groups[index];
            if group.running.is_none() {
                self.collectives.close(index);
            }
        }
        self.collectives.end();
    }
}

//! The groups of an endpoint, their operations, their messages, and the records of groups that were removed or do not
//! exist yet.
//!
//! This is a state machine that sends nothing and reports nothing. [`next`](Groups::next) returns the next action for a
//! group, and the caller (`collective`) performs it. So tests can run several members without transports (`tests`).
//!
//! * `group`: a group; `running`: an operation of it, and its memory
//! * `messages`: the messages of groups; `ends`: joins, broken groups, and the end of the endpoint
//!
//! Invariants:
//! 1. Only the first operation of a group runs; the others wait in the order in which they were posted.
//! 2. An operation waits for exactly the transfers that are counted in it, and ends when its last step is done. The
//!    function that ends the operation returns its [`GroupEnd`], once.
//! 3. An operation of a broken group ends when no transfer uses its memory any more.
//! 4. A group is in `by_tag` exactly while it has a tag. No operation of a group runs before the members have agreed on
//!    the tag.
//! 5. A peer's notice about a group takes effect only if the peer is a member.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod ends;
mod group;
mod messages;
mod running;
#[cfg(all(test, not(loom)))]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};

pub(super) use self::group::GroupState;
pub(super) use self::running::Scratch;
use self::running::{RunningOperation, own_memory};
use super::types::{Notify, Receive, ReceiveDestination, Unexpected};
use crate::collective::{Chunks, Collective, CollectiveWork, GroupId, Joins, Plan, ScheduleStep, combines};
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode};
use crate::endpoint::matching::{Matching, Pattern, SourceFilter};
use crate::endpoint::work::PostError;
use crate::local_memory::buffer::BufferExt as _;
use crate::local_memory::volatile::Segment;
use crate::table::{Id, Table};
use crate::transport::ConnectionId;

/// The maximum number of tags of broken groups that are remembered.
const REMEMBERED: usize = 1024;
/// The maximum number of notices from one peer, about groups that do not exist here yet, that are remembered.
const EARLY_ABORT_LIMIT: usize = 64;

/// Work that can continue after the links were polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PendingWork {
    /// The actions that joins request.
    Joins,
    /// This group, if it still exists.
    Group(Id<GroupState>),
}

/// The next action for a group.
#[derive(Debug)]
pub(super) enum GroupStep {
    /// No action: the group waits for transfers, or has no operation.
    Nothing,
    /// Wind up the group, which is broken.
    WindUp,
    /// End the first operation ([`end_operation`](Groups::end_operation)) and report it: its steps are done.
    Done,
    /// Send a message to a member. The message is counted as under way only if it does not leave at once
    /// ([`count_transfer`](Groups::count_transfer)).
    Send {
        /// The member's slot.
        to: ConnectionId,
        segment: Segment,
        tag: u64,
        data: u64,
        context: u64,
    },
    /// Receive a message of a member. It was counted as under way.
    Receive {
        /// The member's slot.
        from: ConnectionId,
        segment: Segment,
        tag: u64,
        context: u64,
    },
}

/// An operation of a group that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupEnd {
    pub(super) group: Id<GroupState>,
    pub(super) context: u64,
    pub(super) notify: Notify,
    /// The bytes that a completion reports.
    pub(super) bytes: usize,
    /// Whether the operation joins the group, and its end is reported by an event.
    pub(super) is_join: bool,
    /// Whether nothing else remains to be done for the group.
    pub(super) is_last: bool,
}

impl GroupEnd {
    fn of(group: Id<GroupState>, running: &RunningOperation) -> Self {
        let RunningOperation { context, notify, bytes, joins, .. } = *running;
        Self { group, context, notify, bytes, is_join: joins && notify != Notify::Operation, is_last: false }
    }

    /// Returns the number of the operation's group, for the application.
    pub(super) const fn id(&self) -> GroupId {
        GroupId::from_u64(self.group.to_u64())
    }

    /// Returns the completion of the operation.
    #[inline]
    pub(super) fn entry(&self) -> Entry {
        let (context, flags, len) = (self.context, CompletionFlags::COLLECTIVE, self.bytes as u64);
        Entry { context, flags, len, ..Entry::default() }
    }
}

/// The reason that a broken group reports if its members posted different operations.
const DIFFERENT: &str = "the members of the group did not call the same collectives in the same order";

/// The result of a notice that a member gave up a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AbortOutcome {
    /// The group is broken, and can continue in order to be wound up.
    Broken(Id<GroupState>),
    /// There is no such group yet. The notice takes effect when the group exists.
    Unknown,
    /// The peer is not a member of the group.
    NoMember,
}

/// All groups of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    groups: Table<GroupState>,
    by_tag: HashMap<u64, Id<GroupState>>,
    /// Receives and messages of groups.
    messages: Matching<Receive, Unexpected>,
    /// Groups and joins that can continue.
    ready: VecDeque<PendingWork>,
    /// Whether a caller further up the stack is advancing groups.
    advancing: bool,
    /// Memory for values that are being combined. Allocated at first use.
    chunks: Option<Box<Chunks>>,
    /// Groups that are being joined.
    joins: Joins,
    /// The remembered tags of groups that are broken.
    broken: HashSet<u64>,
    /// The tags in `broken`, the oldest first.
    remembered: VecDeque<u64>,
    /// Tags of groups that do not exist here yet, with the peers that gave them up, the oldest first. Any peer may send
    /// such a notice; it counts only if the peer is a member of the group.
    early_aborts: VecDeque<(u64, ConnectionId)>,
    stamp: u32,
}

impl Groups {
    /// Returns the group with this name.
    fn get(&self, id: GroupId) -> Option<&GroupState> {
        self.groups.get(Id::from_u64(id.to_u64())).filter(|group| !group.left)
    }

    /// Returns the rank of this endpoint in a group, and the number of members.
    pub(crate) fn rank(&self, id: GroupId) -> Option<(usize, usize)> {
        self.get(id).map(|group| (group.rank, group.members.len()))
    }

    /// Returns the rank of the member in this slot.
    pub(crate) fn rank_of(&self, id: GroupId, member: ConnectionId) -> Option<usize> {
        self.get(id)?.members.iter().position(|other| *other == member)
    }

    /// Returns the number of operations of a group that have not ended, not counting the join.
    pub(crate) fn outstanding(&self, id: GroupId) -> usize {
        self.get(id).map_or(0, |group| group.running.iter().chain(&group.queue).filter(|one| !one.joins).count())
    }

    /// Creates a group of these members. It has no tag until they have agreed on one.
    pub(super) fn open(&mut self, list: u64, members: Box<[ConnectionId]>, rank: usize) -> Id<GroupState> {
        self.stamp = self.stamp.wrapping_add(1);
        self.groups.insert(GroupState {
            list,
            tag: 0,
            named: false,
            members,
            rank,
            sequence: 0,
            running: None,
            queue: VecDeque::new(),
            broken: None,
            notified: false,
            gone: Vec::new(),
            lost: None,
            left: false,
            scratch: Scratch::default(),
            spare: None,
        })
    }

    /// Returns a number that identifies the newest group of this endpoint. No other group of this incarnation has it.
    pub(super) const fn stamp(&self) -> u32 {
        self.stamp
    }

    /// Sets the tag on which the members of a group have agreed. The group can continue.
    fn name(&mut self, index: Id<GroupState>, tag: u64) {
        let Some(group) = self.groups.get_mut(index) else { return };
        (group.tag, group.named) = (tag, true);
        let gave_up = |(of, who): &(u64, ConnectionId)| *of == tag && group.members.contains(who);
        if self.early_aborts.iter().any(gave_up) {
            group.breaks(ErrorCode::PeerDied, "a member had already left the group");
        }
        self.early_aborts.retain(|(of, _)| *of != tag);
        if let Some((code, why)) = group.lost.take() {
            group.breaks(code, &why);
        }
        self.by_tag.insert(tag, index);
    }

    /// Handles the end of the connection to this peer. The peer may have given up groups that are being joined here,
    /// and the notice of that may have been lost with this connection. Later notices may come from a successor of the
    /// peer. So such a group breaks as soon as its members agree on a tag. A peer that closed the connection in an
    /// orderly way may have been a predecessor of a member, so its end breaks no group.
    pub(super) fn lost(&mut self, from: ConnectionId, error: ErrorCode, why: &str) {
        if error == ErrorCode::Closed {
            return;
        }
        let joins = &self.joins;
        let is_joining = |index: Id<GroupState>, group: &GroupState| {
            !group.named && group.members.contains(&from) && joins.is_under_way(group.list, index.to_u64())
        };
        for (index, group) in self.groups.iter_mut() {
            if is_joining(index, group) {
                group.lost.get_or_insert_with(|| (error, format!("the connection to a member ended: {why}")));
            }
        }
    }

    /// Removes a group that has ended.
    fn close(&mut self, index: Id<GroupState>) {
        let Some(group) = self.groups.remove(index) else { return };
        if group.named {
            self.by_tag.remove(&group.tag);
        }
    }

    /// Ends all joins and all pending work, because the endpoint closes.
    fn end(&mut self) {
        (self.messages, self.joins) = (Matching::new(), Joins::default());
        self.ready.clear();
        self.early_aborts.clear();
    }

    /// Records the tag of a broken group: messages with this tag are not received any more.
    fn remember_broken(&mut self, tag: u64) {
        if self.broken.insert(tag) {
            self.remembered.push_back(tag);
        }
        if self.remembered.len() > REMEMBERED
            && let Some(oldest) = self.remembered.pop_front()
        {
            self.broken.remove(&oldest);
        }
    }

    /// Records that a peer gave up a group that does not exist here yet. At the limit, only the oldest record of the
    /// same peer is dropped, so no peer can displace the records of another.
    fn record_early_abort(&mut self, tag: u64, from: ConnectionId) {
        let said = |(_, who): &&(u64, ConnectionId)| *who == from;
        if self.early_aborts.contains(&(tag, from)) {
            return;
        }
        if self.early_aborts.iter().filter(said).count() >= EARLY_ABORT_LIMIT
            && let Some(oldest) = self.early_aborts.iter().position(|(_, who)| *who == from)
        {
            self.early_aborts.remove(oldest);
        }
        self.early_aborts.push_back((tag, from));
    }

    /// Returns the numbers of records (see `remains`).
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn remains(&self) -> [(&'static str, usize); 3] {
        [
            ("receives of groups", self.messages.posted_len()),
            ("held messages of groups", self.messages.unexpected_len()),
            ("groups that can continue", self.ready.len()),
        ]
    }

    /// Returns whether no group is open, and no record of a group that does not exist yet is kept.
    pub(super) fn is_idle(&self) -> bool {
        self.groups.is_empty() && self.early_aborts.is_empty()
    }

    /// Drops the records of a peer after its connection has ended, since another peer may get its slot number.
    fn forget_early_aborts(&mut self, from: ConnectionId) {
        self.early_aborts.retain(|(_, who)| *who != from);
    }

    /// Returns whether a broken group with this tag is remembered.
    pub(super) fn is_broken(&self, tag: u64) -> bool {
        self.broken.contains(&tag)
    }

    // Operations.

    /// Returns whether the operation of the group that ended last was of the same kind and shape, and its plan can be
    /// used again, so that no new plan is needed.
    ///
    /// # Errors
    /// If there is no such group.
    #[inline]
    pub(super) fn repeats(&self, work: &CollectiveWork) -> Result<bool, PostError> {
        let group = self.get(work.group).ok_or(PostError::NoGroup)?;
        let last = group.spare.as_ref().and_then(|program| program.plan.as_ref());
        Ok(last.is_some_and(|plan| plan.is_of(work) && plan.fits(work)))
    }

    /// Returns the plan of an operation.
    ///
    /// # Errors
    /// If there is no such group, or the group cannot perform the operation.
    pub(super) fn plan_of(&self, work: &CollectiveWork) -> Result<Plan, PostError> {
        let group = self.get(work.group).ok_or(PostError::NoGroup)?;
        check(work, group.members.len(), group.rank)
    }

    /// Starts an operation, or queues it after the existing ones. Without a plan it [repeats](Self::repeats) the
    /// operation that ended last. Returns whether the caller has to advance the group now.
    #[inline]
    pub(super) fn start(
        &mut self,
        index: Id<GroupState>,
        work: &CollectiveWork,
        plan: Option<Plan>,
        notify: Notify,
        joins: bool,
    ) -> bool {
        let group = &mut self.groups[index];
        let mut program = group.spare.take().unwrap_or_default();
        if let Some(plan) = plan {
            program.make(plan, group.members.len(), group.rank);
        }
        let Some(plan) = &program.plan else { unreachable!("group {index:?} has no operation that can be repeated") };
        let Plan { op, datatype, bytes, given, got, shape, .. } = *plan;
        let source = work.source.slice(0, given);
        // A member that gets no result may still have passed memory for one.
        let (mut result, mut own) = (work.result.slice(0, got.max(bytes)), None);
        // A member that gets no result still combines the elements of others, if the program combines any.
        if result.len() < bytes && program.folds {
            let mut buffer = own_memory(bytes);
            result = buffer.segment_for_receive().unwrap_or(Segment::EMPTY);
            own = Some(Box::new(buffer));
        }
        group.sequence = group.sequence.wrapping_add(1);
        let sequence = group.sequence;
        let (data, context) = (shape | u64::from(sequence), work.context);
        let running = move || RunningOperation {
            program,
            at: 0,
            outstanding: 0,
            waiting: false,
            source,
            result,
            own,
            op,
            datatype,
            sequence,
            data,
            bytes,
            context,
            notify,
            joins,
        };
        if group.running.is_some() {
            group.queue.push_back(running());
            return false;
        }
        group.running = Some(running());
        if joins {
            return false; // The operation begins when the members have agreed on the tag.
        }
        if self.messages.holds_any() {
            self.break_for_kept(index);
        }
        if self.advancing {
            self.ready.push_back(PendingWork::Group(index)); // A caller further up the stack advances the group.
            return false;
        }
        true
    }

    /// Begins to advance groups. Returns false if a caller further up the stack advances them. Otherwise the caller
    /// advances them until [`stop_advancing`](Self::stop_advancing).
    #[inline]
    pub(super) const fn begin_advancing(&mut self) -> bool {
        !std::mem::replace(&mut self.advancing, true)
    }

    /// Ends the work that [`begin_advancing`](Self::begin_advancing) began. Returns whether more became ready
    /// meanwhile.
    #[inline]
    pub(super) fn stop_advancing(&mut self) -> bool {
        self.advancing = false;
        !self.ready.is_empty()
    }

    /// Takes the next group, or the joins, that can continue.
    pub(super) fn take_ready(&mut self) -> Option<PendingWork> {
        self.ready.pop_front()
    }

    /// Adds a group to those that can continue.
    #[inline]
    pub(super) fn make_ready(&mut self, index: Id<GroupState>) {
        self.ready.push_back(PendingWork::Group(index));
    }

    /// Adds the joins to the work that can continue.
    pub(super) fn make_joins_ready(&mut self) {
        self.ready.push_back(PendingWork::Joins);
    }

    /// Performs the steps of a group that need no link, and returns the next action.
    #[inline(always)]
    pub(super) fn next(&mut self, index: Id<GroupState>) -> GroupStep {
        let Some(group) = self.groups.get_mut(index) else { return GroupStep::Nothing };
        if group.broken.is_some() {
            return GroupStep::WindUp;
        }
        let Some(running) = &mut group.running else {
            if group.left {
                self.close(index);
            }
            return GroupStep::Nothing;
        };
        while let Some(step) = running.program.steps.get(running.at) {
            match *step {
                ScheduleStep::Settle => {
                    running.waiting = running.outstanding > 0;
                    if running.waiting {
                        return GroupStep::Nothing;
                    }
                }
                ScheduleStep::Send { to, from, len } => {
                    running.at = running.at.saturating_add(1);
                    let (context, data) = (context_of(index, running.sequence), running.data);
                    let segment = running.memory(&mut group.scratch, from, len);
                    return GroupStep::Send { to: group.members[to], segment, tag: group.tag, data, context };
                }
                ScheduleStep::Receive { from, into, len } => {
                    running.at = running.at.saturating_add(1);
                    running.outstanding = running.outstanding.saturating_add(1);
                    let context = context_of(index, running.sequence);
                    let segment = running.memory(&mut group.scratch, into, len);
                    return GroupStep::Receive { from: group.members[from], segment, tag: group.tag, context };
                }
                ScheduleStep::Fold { .. } | ScheduleStep::Copy { .. } => {
                    running.step_here(&mut group.scratch, step, &mut self.chunks);
                }
            }
            running.at = running.at.saturating_add(1);
        }
        GroupStep::Done
    }

    /// Ends the first operation of a group, after its steps are done, and lets the next one run.
    #[inline(always)]
    pub(super) fn end_operation(&mut self, index: Id<GroupState>) -> Option<GroupEnd> {
        let group = &mut self.groups[index];
        let RunningOperation { program, context, notify, bytes, joins, .. } = group.running.take()?;
        group.spare = Some(program);
        if !group.queue.is_empty() {
            group.running = group.queue.pop_front();
        }
        if self.messages.holds_any() {
            self.break_for_kept(index);
        }
        let group = &self.groups[index];
        let is_last = group.running.is_none() && !group.left && group.broken.is_none();
        let is_join = joins && notify != Notify::Operation;
        Some(GroupEnd { group: index, context, notify, bytes, is_join, is_last })
    }

    /// Counts a transfer of the operation that runs in a group.
    #[inline]
    pub(super) fn count_transfer(&mut self, index: Id<GroupState>) {
        if let Some(running) = self.groups[index].running.as_mut() {
            running.outstanding = running.outstanding.saturating_add(1);
        }
    }

    /// Ends a transfer, which may break the group. Returns the group if it can continue.
    #[inline]
    pub(super) fn transfer_over(
        &mut self,
        context: u64,
        failure: Option<(ErrorCode, &'static str)>,
    ) -> Option<Id<GroupState>> {
        self.end_transfer(context, |_| failure)
    }

    /// Like [`transfer_over`](Self::transfer_over), but for a transfer that received a message with this data.
    #[inline]
    pub(super) fn received(&mut self, context: u64, data: u64) -> Option<Id<GroupState>> {
        self.end_transfer(context, |running| (data != running.data).then_some((ErrorCode::Protocol, DIFFERENT)))
    }

    #[inline]
    fn end_transfer(
        &mut self,
        context: u64,
        breaks: impl FnOnce(&RunningOperation) -> Option<(ErrorCode, &'static str)>,
    ) -> Option<Id<GroupState>> {
        let sequence = context as u32;
        let index = self.groups.find_wire((context >> 32) as u32)?;
        let group = &mut self.groups[index];
        let running = group.running.as_mut().filter(|running| running.sequence == sequence)?;
        running.outstanding = running.outstanding.saturating_sub(1);
        let settled = running.waiting && running.outstanding == 0;
        if let Some((code, why)) = breaks(running) {
            group.breaks(code, why);
        }
        (settled || group.broken.is_some()).then_some(index)
    }

    /// Performs the next steps of a group's operation until one needs a link. Returns whether all steps are done and
    /// the operation can be [ended](Self::end_operation).
    #[inline]
    pub(super) fn run_steps(&mut self, index: Id<GroupState>) -> bool {
        let Self { groups, chunks, .. } = self;
        let group = &mut groups[index];
        let Some(running) = group.running.as_mut().filter(|_| group.broken.is_none()) else { return false };
        running.waiting = false;
        while let Some(step) = running.program.steps.get(running.at) {
            match step {
                ScheduleStep::Settle if running.outstanding == 0 => {}
                ScheduleStep::Fold { .. } | ScheduleStep::Copy { .. } => {
                    running.step_here(&mut group.scratch, step, chunks)
                }
                _ => return false,
            }
            running.at = running.at.saturating_add(1);
        }
        true
    }
}

/// Returns the plan of an operation, if the group can perform it.
fn check(work: &CollectiveWork, members: usize, rank: usize) -> Result<Plan, PostError> {
    let plan = Plan::of(work, members, rank).ok_or(PostError::TooLong(usize::MAX))?;
    if work.what.root().is_some_and(|root| root >= members) {
        return Err(PostError::Collective("the root must be the rank of a member"));
    }
    if work.what.combines() && !combines(work.op, work.datatype) {
        return Err(PostError::NoSuchAtomic(work.op, work.datatype));
    }
    let fits = plan.fits(work) && (work.what != Collective::Barrier || work.count == 0);
    if fits {
        Ok(plan)
    } else {
        Err(PostError::Collective("the memory is too short for the elements, or a barrier has elements"))
    }
}

/// Returns the context of the transfers of a group's operation.
const fn context_of(index: Id<GroupState>, sequence: u32) -> u64 {
    (index.to_wire() as u64) << 32 | sequence as u64
}

/// Returns the pattern of a member's messages.
#[inline]
const fn pattern(from: ConnectionId, tag: u64) -> Pattern {
    Pattern { tag, ignore: 0, source: SourceFilter::From(from as u64) }
}

/// Returns a receive of a group's operation.
#[inline]
pub(super) const fn receive(segment: Segment, context: u64) -> Receive {
    Receive { place: ReceiveDestination::One(segment), context, notify: Notify::Collective, multi: None }
}

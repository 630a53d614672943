//! Groups: posting their operations, and the steps of those (see [`collective`](crate::collective)).
//!
//! Only the first operation of a group runs. Its transfers end in [`Core::collective_over`]. When the last transfer that the operation
//! waits for has ended, the group is added to the list of groups that can go on, and the outbox schedules them for the time after the links
//! were polled. Nothing here is on the path of any other message.
//!
//! * `groups`: all groups of an endpoint; `group`: one of them; `running`: an operation of it
//! * `joining`: groups that are being joined
//! * `ends`: the end of transfers, operations and groups

mod ends;
mod group;
mod groups;
mod joining;
mod running;
#[cfg(all(test, not(loom)))]
mod tests;

pub(super) use self::ends::collective_entry;
use self::group::Group;
pub(crate) use self::groups::Collectives;
use self::groups::Ready;
use self::joining::NOBODY;
pub(super) use self::running::Scratch;
use self::running::{Running, own_memory};
use super::Engine;
use super::peers::Leaving;
use super::send::transmit_collective;
use super::types::{GroupMessage, Notify, Pending, Place as Into, Receive, Side, Work};
use crate::collective::{Collective, CollectiveWork, GroupId, MEMBER_LIMIT, Plan, Step, combines};
use crate::completion::entry::ErrorCode;
use crate::endpoint::matching::{Pattern, Source};
use crate::endpoint::operation::Operation;
use crate::endpoint::work::{OpFlags, PostError};
use crate::local_memory::atomic::{AtomicOp, Datatype};
use crate::local_memory::buffer::BufferExt as _;
use crate::local_memory::volatile::{Segment, Segments};
use crate::table::Id;
use crate::transport::Connection;
use crate::types::PeerAddress;
use crate::wire::head::ABORT;

/// The endpoint's own slot among its peers.
const OWN: Connection = 0;

impl Engine {
    /// Joins a group of these members, of which this endpoint is one. The operation ends when all have joined.
    pub(crate) fn join_group(
        &mut self,
        members: &[PeerAddress],
        context: u64,
        notify: Notify,
    ) -> Result<GroupId, PostError> {
        if !self.process.is_here() {
            return Err(self.refusal());
        }
        if self.role.is_some() || self.core.peers.is_single() {
            return Err(PostError::Collective("groups are of endpoints that exchange messages with anybody"));
        }
        if members.len() > MEMBER_LIMIT {
            return Err(PostError::Collective("a group of more members than groups have"));
        }
        let slots = members
            .iter()
            .map(|member| self.core.peers.resolve(*member).map_err(|error| super::receive::unresolved(error, *member)));
        let slots = slots.collect::<Result<Box<[Connection]>, _>>()?;
        let rank = slots.iter().position(|slot| *slot == OWN);
        let rank = rank.ok_or(PostError::Collective("the endpoint is no member of the group that it is to join"))?;
        let mut sorted = slots.clone();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(PostError::Collective("a member is in the group twice"));
        }
        // From now on what ends may be a group's; other endpoints do not look.
        self.core.reporting.count_all();
        let list = self.list_of(&slots);
        let (index, members) = (self.core.collectives.open(list, slots, rank), members.len());
        let id = GroupId::from_u64(index.to_u64());
        let work = CollectiveWork {
            group: id,
            what: Collective::Barrier,
            op: AtomicOp::Sum,
            datatype: Datatype::U8,
            count: 0,
            source: Segment::EMPTY,
            result: Segment::EMPTY,
            context,
            flags: OpFlags::empty(),
        };
        self.start_collective(index, &work, Plan::of(&work, members, rank), notify, true);
        self.start_joining(index);
        Ok(id)
    }

    /// Leaves a group that the application no longer uses. Operations that were posted still end.
    pub(crate) fn leave_group(&mut self, id: GroupId) {
        let id = Id::from_u64(id.to_u64());
        let Some(group) = self.core.collectives.groups.get_mut(id).filter(|group| !group.left) else { return };
        group.left = true;
        if group.running.is_none() {
            self.core.collectives.close(id);
        } else if !group.named && group.queue.is_empty() {
            // No operation needs it: the other members are notified at once, and the next join of these members need not wait for it.
            let list = group.list;
            self.core.collectives.joins.leave(list, id.to_u64());
            self.core.collectives.ready.push_back(Ready::Joins);
            self.advance_groups();
        }
    }

    /// Posts an operation of a group.
    pub(crate) fn post_collective(&mut self, work: &CollectiveWork, notify: Notify) -> Result<(), PostError> {
        if !self.process.is_here() {
            return Err(self.refusal());
        }
        if work.flags.contains(OpFlags::DEVICE) {
            return self.post_located(Operation::Collective(*work), notify);
        }
        let group = self.core.collectives.get(work.group).ok_or(PostError::NoGroup)?;
        let plan = match group.spare.as_ref().and_then(|program| program.plan.as_ref()) {
            Some(plan) if plan.is_of(work) && plan.fits(work) => None,
            _ => Some(check(work, group.members.len(), group.rank)?),
        };
        self.core.reserve(Side::Transmit, notify).map_err(|_| PostError::Again)?;
        self.start_collective(Id::from_u64(work.group.to_u64()), work, plan, notify, false);
        Ok(())
    }

    /// Starts an operation, or queues it behind those that are there. Without a plan it repeats what the group did last.
    fn start_collective(
        &mut self,
        index: Id<Group>,
        work: &CollectiveWork,
        plan: Option<Plan>,
        notify: Notify,
        joins: bool,
    ) {
        let group = &mut self.core.collectives.groups[index];
        let mut program = group.spare.take().unwrap_or_default();
        if let Some(plan) = plan {
            program.make(plan, group.members.len(), group.rank);
        }
        let Some(plan) = &program.plan else { unreachable!("group {index:?} did nothing that could be done again") };
        let Plan { op, datatype, bytes, given, got, shape, .. } = *plan;
        let source = work.source.slice(0, given);
        // A member that gets no result may still have passed memory for one.
        let (mut result, mut own) = (work.result.slice(0, got.max(bytes)), None);
        // A member that gets no result still combines what others send, if the program combines anything.
        if result.len() < bytes && program.folds {
            let mut buffer = own_memory(bytes);
            result = buffer.segment_for_receive().unwrap_or(Segment::EMPTY);
            own = Some(buffer);
        }
        group.sequence = group.sequence.wrapping_add(1);
        let sequence = group.sequence;
        let (data, context) = (shape | u64::from(sequence), work.context);
        let running = move || Running {
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
            return group.queue.push_back(running());
        }
        group.running = Some(running());
        if joins {
            return;
        }
        if self.core.collectives.running {
            return self.core.collectives.ready.push_back(Ready::Group(index)); // A caller up the stack advances it.
        }
        self.core.collectives.running = true;
        self.advance(index);
        self.core.collectives.running = false;
        if !self.core.collectives.ready.is_empty() {
            self.advance_groups();
        }
    }

    /// Advances the groups and joins that can go on.
    #[cold]
    pub(super) fn advance_groups(&mut self) {
        if std::mem::replace(&mut self.core.collectives.running, true) {
            return; // A caller further up the stack does.
        }
        while let Some(ready) = self.core.collectives.ready.pop_front() {
            match ready {
                Ready::Joins => self.joins_go_on(),
                Ready::Group(index) => self.advance(index),
            }
        }
        self.core.collectives.running = false;
    }

    fn advance(&mut self, index: Id<Group>) {
        loop {
            let Some(group) = self.core.collectives.groups.get_mut(index) else { return };
            if group.broken.is_some() {
                return self.wind_up(index);
            }
            let Some(running) = &mut group.running else {
                if group.left {
                    self.core.collectives.close(index);
                }
                return;
            };
            let Some(step) = running.program.steps.get(running.at) else {
                self.core.collective_done(index);
                continue;
            };
            match *step {
                Step::Settle => {
                    running.waiting = running.outstanding > 0;
                    if running.waiting {
                        return;
                    }
                    running.at += 1;
                }
                Step::Send { to, from, len } => {
                    running.at += 1;
                    let (context, data) = (context_of(index, running.sequence), running.data);
                    let (tag, slot) = (group.tag, group.members[to]);
                    let segments = Segments::one(running.memory(&mut group.scratch, from, len));
                    self.send_to_member(slot, &GroupMessage { segments, tag, data, context }, Some(index));
                }
                Step::Receive { from, into, len } => {
                    running.at += 1;
                    running.outstanding += 1;
                    let context = context_of(index, running.sequence);
                    let (tag, slot) = (group.tag, group.members[from]);
                    let segment = running.memory(&mut group.scratch, into, len);
                    self.receive_from_member(index, slot, segment, tag, context);
                }
                Step::Fold { .. } | Step::Copy { .. } => {
                    running.step_here(&mut group.scratch, step, &mut self.core.collectives.chunks);
                    running.at += 1;
                }
            }
        }
    }

    /// Sends a message for the operation that runs in a group. The end of the send is reported to the operation unless the send ends at once.
    fn send_to_member(&mut self, slot: Connection, message: &GroupMessage, of: Option<Id<Group>>) {
        let mut sent = None;
        if self.core.peers.get(slot).may_leave(Leaving::GroupMessage)
            && let Some(Some(link)) = self.links.get_mut(slot as usize)
            && let Ok(over) = transmit_collective(link, &mut self.core, slot, message)
        {
            self.poller.sent(slot, link);
            sent = Some(over);
        }
        if sent == Some(true) {
            return;
        }
        if let Some(running) = of.and_then(|index| self.core.collectives.groups[index].running.as_mut()) {
            running.outstanding += 1;
        }
        if sent.is_none() {
            self.send_to_member_later(slot, message);
        }
    }

    #[cold]
    fn send_to_member_later(&mut self, slot: Connection, message: &GroupMessage) {
        let pending = Pending { work: Work::Collective(*message), notify: Notify::Collective };
        self.core.peers.get_mut(slot).queue_for_group(pending);
        if self.core.peers.get(slot).is_idle() {
            self.start_connecting(slot);
        }
        self.drain(slot);
    }

    fn receive_from_member(&mut self, index: Id<Group>, slot: Connection, segment: Segment, tag: u64, context: u64) {
        let pattern = Pattern { tag, ignore: 0, source: Source::From(slot.into()) };
        let receive = Receive { place: Into::One(segment), context, notify: Notify::Collective, multi: None };
        let messages = &mut self.core.collectives.messages;
        if let Some(message) = messages.find(&pattern).and_then(|held| messages.take(held)) {
            self.core.fill(message, receive);
            if self.core.peers.has_actions() {
                self.act();
            }
            return;
        }
        let group = &mut self.core.collectives.groups[index];
        if group.gone.contains(&slot) {
            group.running.iter_mut().for_each(|running| running.outstanding -= 1);
            return group.breaks(ErrorCode::Closed, "a member of the group has closed its endpoint");
        }
        self.core.collectives.messages.post(pattern, receive);
        // The endpoint notices the death of a member for which it waits only over a connection.
        if self.core.peers.get(slot).is_idle() {
            self.start_connecting(slot);
        }
    }

    /// Notifies the members of groups with unfinished operations that the endpoint closes, since these operations may never end at the
    /// other members. Returns whether there were any such groups.
    pub(in crate::endpoint::engine) fn give_up_groups(&mut self) -> bool {
        let groups = self.core.collectives.groups.iter();
        let unfinished = groups.filter(|(_, group)| group.named && !group.told && group.running.is_some());
        let unfinished: Vec<_> = unfinished.map(|(_, group)| (group.tag, group.members.clone())).collect();
        let any = !unfinished.is_empty();
        for (tag, members) in unfinished {
            let message = GroupMessage::bare(tag, ABORT | ErrorCode::Closed.errno() as u64, NOBODY);
            for slot in members {
                // Members without a connection are notified by the others.
                if slot != OWN && self.core.peers.get(slot).is_up() {
                    self.send_to_member(slot, &message, None);
                }
            }
        }
        any
    }

    /// Winds up a broken group: notifies the members, cancels what can be cancelled, and ends its operations when nothing uses their memory
    /// any more.
    #[cold]
    fn wind_up(&mut self, index: Id<Group>) {
        let group = &mut self.core.collectives.groups[index];
        let Some((code, why)) = group.broken.clone() else { return };
        let (tag, rank) = (group.tag, group.rank);
        if group.named && !std::mem::replace(&mut group.told, true) {
            let members = group.members.clone();
            self.core.collectives.remember_broken(tag);
            for (_, slot) in members.iter().enumerate().filter(|(member, _)| *member != rank) {
                let peer = self.core.peers.get(*slot);
                if peer.is_idle() && peer.is_lost() {
                    continue; // This is the member that died, or it was notified before.
                }
                self.send_to_member(*slot, &GroupMessage::bare(tag, ABORT | code.errno() as u64, NOBODY), None);
            }
        }
        self.core.withdraw(index);
        if self.core.peers.has_actions() {
            self.act();
        }
        let group = &mut self.core.collectives.groups[index];
        if group.running.as_ref().is_some_and(|running| running.outstanding > 0) {
            return;
        }
        let ended = (group.running.take(), std::mem::take(&mut group.queue));
        let left = group.left;
        for running in ended.0.into_iter().chain(ended.1) {
            self.core.collective_failed(index, &running, code, &why);
        }
        if left && self.core.collectives.groups[index].running.is_none() {
            self.core.collectives.close(index);
        }
    }
}

/// Returns the plan of an operation, if it is one that the group can do.
fn check(work: &CollectiveWork, members: usize, rank: usize) -> Result<Plan, PostError> {
    let plan = Plan::of(work, members, rank).ok_or(PostError::TooLong(usize::MAX))?;
    if work.what.root().is_some_and(|root| root >= members) {
        return Err(PostError::Collective("the root is a member's rank"));
    }
    if work.what.combines() && !combines(work.op, work.datatype) {
        return Err(PostError::NoSuchAtomic(work.op, work.datatype));
    }
    let fits = plan.fits(work) && (work.what != Collective::Barrier || work.count == 0);
    if fits { Ok(plan) } else { Err(PostError::Collective("the memory of a collective holds all its elements")) }
}

/// Returns the context of the transfers of a group's operation.
const fn context_of(index: Id<Group>, sequence: u32) -> u64 {
    (index.to_wire() as u64) << 32 | sequence as u64
}

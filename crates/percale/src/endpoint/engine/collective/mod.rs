//! Posts the operations of groups and performs their steps (see [`collective`](crate::collective)).
//!
//! [`Groups`](super::groups::Groups) decides which actions to take; this module performs them, with links, peers and
//! reports. Transfers end in [`Core::collective_over`](super::core::Core::collective_over). When the last transfer for
//! which an operation waits has ended, the steps that need no link are performed at once. If more remains to be done,
//! the group is added to the list of groups that can continue, and an action in the outbox continues these groups after
//! the links were polled. Messages of other kinds do not execute code of this module.
//!
//! * `joining`: groups that are being joined
//! * `ends`: the end of transfers, operations and groups

mod ends;
mod joining;

pub(super) use self::ends::collective_entry;
use self::joining::NO_OPERATION;
use super::Engine;
use super::groups::{GroupState, GroupStep, PendingWork, receive};
use super::peers::OutgoingKind;
use super::send::transmit_collective;
use super::types::{GroupMessage, Notify, PendingOperation, QueuedWork, Side};
use crate::collective::{Collective, CollectiveWork, GroupId, MEMBER_LIMIT, Plan};
use crate::completion::entry::ErrorCode;
use crate::endpoint::operation::RawOperation;
use crate::endpoint::work::{OpFlags, PostError};
use crate::local_memory::atomic::{AtomicOp, Datatype};
use crate::local_memory::volatile::{Segment, Segments};
use crate::table::Id;
use crate::transport::ConnectionId;
use crate::types::PeerAddress;
use crate::wire::head::ABORT;

/// The endpoint's own slot among its peers.
const OWN: ConnectionId = 0;

impl Engine {
    /// Joins a group of these members, which include this endpoint. The operation ends when all have joined.
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
            return Err(PostError::Collective("endpoints of one connection cannot join groups"));
        }
        if members.len() > MEMBER_LIMIT {
            return Err(PostError::Collective("too many members for a group"));
        }
        if members.iter().any(|member| self.core.peers.is_connection_address(*member)) {
            return Err(PostError::Collective("the members of a group must be in the endpoint's address vector"));
        }
        let slots = members
            .iter()
            .map(|member| self.core.peers.resolve(*member).map_err(|error| super::receive::unresolved(error, *member)));
        let slots = slots.collect::<Result<Box<[ConnectionId]>, _>>()?;
        let rank = slots.iter().position(|slot| *slot == OWN);
        let rank = rank.ok_or(PostError::Collective("the endpoint is not a member of the group"))?;
        let mut sorted = slots.clone();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(PostError::Collective("a member is in the group twice"));
        }
        // From now on an ending transfer may belong to a group. Endpoints without groups do not check for this.
        self.core.reporting.count_all();
        let list = self.list_of(&slots);
        let (index, members) = (self.core.groups.open(list, slots, rank), members.len());
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
        let _ = self.core.groups.start(index, &work, Plan::of(&work, members, rank), notify, true);
        let name = self.proposed_name();
        self.core.groups.join(index, name);
        self.advance_groups();
        Ok(id)
    }

    /// Leaves a group that the application no longer uses. Operations that were posted still end.
    pub(crate) fn leave_group(&mut self, id: GroupId) {
        if self.core.groups.leave(id) {
            self.advance_groups();
        }
    }

    /// Posts an operation of a group.
    pub(crate) fn post_collective(&mut self, work: &CollectiveWork, notify: Notify) -> Result<(), PostError> {
        if !self.process.is_here() {
            return Err(self.refusal());
        }
        if work.flags.contains(OpFlags::DEVICE) {
            return self.post_located(RawOperation::Collective(*work), notify);
        }
        // The plan is large, so it is created only if it is needed.
        let plan = if self.core.groups.repeats(work)? { None } else { Some(self.core.groups.plan_of(work)?) };
        self.core.reserve(Side::Transmit, notify).map_err(|_| PostError::Again)?;
        let index = Id::from_u64(work.group.to_u64());
        if self.core.groups.start(index, work, plan, notify, false) {
            self.core.groups.begin_advancing();
            self.advance(index);
            if self.core.groups.stop_advancing() {
                self.advance_groups();
            }
        }
        Ok(())
    }

    /// Advances the groups and joins that can continue.
    #[cold]
    pub(super) fn advance_groups(&mut self) {
        if !self.core.groups.begin_advancing() {
            return; // A caller further up the stack advances them.
        }
        while let Some(ready) = self.core.groups.take_ready() {
            match ready {
                PendingWork::Joins => self.run_join_actions(),
                PendingWork::Group(index) => self.advance(index),
            }
        }
        self.core.groups.stop_advancing();
    }

    fn advance(&mut self, index: Id<GroupState>) {
        loop {
            match self.core.groups.next(index) {
                GroupStep::Nothing => return,
                GroupStep::WindUp => return self.wind_up(index),
                GroupStep::Done => _ = self.core.collective_done(index),
                GroupStep::Send { to, segment, tag, data, context } => {
                    let segments = Segments::one(segment);
                    self.send_to_member(to, &GroupMessage { segments, tag, data, context }, Some(index));
                }
                GroupStep::Receive { from, segment, tag, context } => {
                    self.receive_from_member(index, from, segment, tag, context);
                }
            }
        }
    }

    /// Sends a message for the operation that runs in a group. The end of the send is reported to the operation unless
    /// the send ends at once.
    fn send_to_member(&mut self, slot: ConnectionId, message: &GroupMessage, of: Option<Id<GroupState>>) {
        let mut sent = None;
        if self.core.peers.get(slot).may_send(OutgoingKind::GroupMessage)
            && let Some(Some(link)) = self.links.get_mut(slot as usize)
            && let Ok(over) = transmit_collective(link, &mut self.core, slot, message)
        {
            self.poller.sent(slot, link);
            sent = Some(over);
        }
        if sent == Some(true) {
            return;
        }
        if let Some(index) = of {
            self.core.groups.count_transfer(index);
        }
        if sent.is_none() {
            self.send_to_member_later(slot, message);
        }
    }

    #[cold]
    fn send_to_member_later(&mut self, slot: ConnectionId, message: &GroupMessage) {
        let pending = PendingOperation { work: QueuedWork::Collective(*message), notify: Notify::Collective };
        self.core.peers.get_mut(slot).queue_for_group(pending);
        if self.core.peers.get(slot).is_idle() {
            self.start_connecting(slot);
        }
        self.drain(slot);
    }

    fn receive_from_member(
        &mut self,
        index: Id<GroupState>,
        slot: ConnectionId,
        segment: Segment,
        tag: u64,
        context: u64,
    ) {
        if let Some(message) = self.core.groups.take_message(slot, tag) {
            self.core.fill(message, receive(segment, context));
            if self.core.peers.has_actions() {
                self.act();
            }
            return;
        }
        if !self.core.groups.post_receive(index, slot, tag, segment, context) {
            return;
        }
        // The death of a member for which the endpoint waits is detected only through a connection to that member.
        if self.core.peers.get(slot).is_idle() {
            self.start_connecting(slot);
        }
    }

    /// Notifies the members of groups with unfinished operations that the endpoint closes, since these operations may
    /// never end at the other members. Returns whether there were any such groups.
    pub(in crate::endpoint::engine) fn give_up_groups(&mut self) -> bool {
        let unfinished = self.core.groups.unfinished();
        let any = !unfinished.is_empty();
        for (tag, members) in unfinished {
            let message = GroupMessage::bare(tag, ABORT | ErrorCode::Closed.errno() as u64, NO_OPERATION);
            for slot in members {
                // The other members notify members that are not connected to this endpoint.
                if slot != OWN && self.core.peers.get(slot).is_up() {
                    self.send_to_member(slot, &message, None);
                }
            }
        }
        any
    }

    /// Winds up a broken group: notifies the members, cancels the receives, and ends its operations when nothing uses
    /// their memory any more.
    #[cold]
    fn wind_up(&mut self, index: Id<GroupState>) {
        if let Some((tag, members, code)) = self.core.groups.announce_broken(index) {
            for slot in members {
                let peer = self.core.peers.get(slot);
                if peer.is_idle() && peer.is_lost() {
                    continue; // This is the member that died, or it was notified before.
                }
                self.send_to_member(slot, &GroupMessage::bare(tag, ABORT | code.errno() as u64, NO_OPERATION), None);
            }
        }
        self.core.withdraw(index);
        if self.core.peers.has_actions() {
            self.act();
        }
        let Some((ended, code, why)) = self.core.groups.end_broken(index) else { return };
        for end in ended {
            self.core.collective_failed(&end, code, &why);
        }
        self.core.groups.close_if_left(index);
    }
}

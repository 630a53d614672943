//! Decides whether a frame may leave for a peer now, and queues the operations that may not. No other module decides
//! this.
//!
//! An operation leaves in the call that posts it, or it is queued and leaves in its turn. In both cases
//! [`Peer::may_send`] decides, given a description of the frame ([`OutgoingKind`]). This module does not cover refusals
//! by a link because its ring or socket is full: a queued operation then stays in the queue, and an answer goes to the
//! peer's backlog (`budget`).
//!
//! Order: accesses to a peer are made in one of three ways, one way at a time. An executed access begins when no access
//! by RDMA is under way, and an access by RDMA begins when no executed access is under way. A direct access begins when
//! no executed access is under way. A message waits for long writes and for writes by RDMA, because the target may see
//! their bytes later than a message. It also waits for notices of writes that a link has not taken yet.

use std::collections::VecDeque;

use super::super::types::{LinkAction, Notify, PendingOperation, QueuedWork};
use super::{Peer, PeerState, Peers};
use crate::endpoint::work::OpFlags;
use crate::transport::ConnectionId;
use crate::wire::head::{Flags, FrameKind, Head};

/// The number of operations of the raw API that may wait in one peer's queue (while it connects, or behind a fence)
/// before posting returns [`PostError::Again`](crate::endpoint::work::PostError::Again). Safe operations own their
/// buffers and may always wait.
const PENDING_LIMIT: usize = 4096;

/// The maximum number of parts that wait for answers of one peer.
pub(in super::super) const PARTS_LIMIT: u32 = 1024;

/// The maximum number of bytes of long parts that one peer is asked to transfer at a time: at least two parts.
pub(in super::super) const LONG_BYTES: u64 = 2 * super::super::remote::PART_LIMIT;

/// The number of consecutive accesses that are executed only because other accesses are being executed. After that, an
/// access waits until the executed ones have ended.
const EXECUTED_LIMIT: u32 = 16;

/// A frame or an operation that could leave for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum OutgoingKind {
    /// A message with its payload, in the call that posts it.
    Message,
    /// A message of a group, with its payload or as an offer, in the call that begins it.
    GroupMessage,
    /// An access that the initiator itself makes in the call that posts it. `fenced`: the access waits for all earlier
    /// operations.
    Access {
        /// Whether the access has a fence.
        fenced: bool,
    },
    /// A bind or an invalidation of a window in the call that posts it.
    Window {
        /// Whether the operation is an invalidation, which needs no connection.
        invalidates: bool,
        /// Whether the operation has a fence, for which the queue waits.
        fenced: bool,
    },
    /// The first message of the queue.
    QueuedMessage {
        /// Whether the message has a fence.
        fenced: bool,
    },
    /// The first operation of the queue, if that is an access or an operation on a window.
    Queued {
        /// Whether the operation has a fence.
        fenced: bool,
        /// Whether the operation is an access that has not been sent yet, not even in part. Such an access may add a
        /// notice.
        begins: bool,
    },
    /// The access at the head of the queue, if the initiator makes it itself.
    DirectAccess,
    /// The access at the head of the queue, if the target executes it.
    ExecutedAccess,
    /// A part of an executed access. With this part, the peer has this number of bytes of long parts to transfer.
    AccessPart {
        /// The number of bytes.
        long_bytes: u64,
    },
    /// An answer, or another frame of the outbox.
    Answer,
}

/// An operation that has to be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum QueuingKind {
    /// A message.
    Message,
    /// An access.
    Access,
    /// A bind or an invalidation of a window.
    Window,
}

impl Peer {
    /// Decides whether a frame may leave for the peer now.
    #[inline(always)]
    pub(in super::super) fn may_send(&self, what: OutgoingKind) -> bool {
        match what {
            OutgoingKind::Message => self.is_up() && self.pending.is_empty() && !self.offers_only && !self.must_wait(),
            OutgoingKind::GroupMessage => self.is_up() && self.pending.is_empty() && !self.must_wait(),
            OutgoingKind::Access { fenced } => {
                self.is_up()
                    && self.pending.is_empty()
                    && self.executed == 0
                    && self.notices == 0
                    && (!fenced || self.is_settled())
            }
            OutgoingKind::Window { invalidates, fenced } => {
                self.pending.is_empty() && !fenced && (self.is_up() || invalidates && self.is_idle())
            }
            OutgoingKind::QueuedMessage { fenced } => {
                self.is_up() && !self.must_wait() && (!fenced || self.is_settled())
            }
            OutgoingKind::Queued { fenced, begins } => {
                self.is_up() && !(begins && self.notices > 0) && (!fenced || self.is_settled())
            }
            OutgoingKind::DirectAccess => self.executed == 0,
            OutgoingKind::ExecutedAccess => self.direct == 0,
            OutgoingKind::AccessPart { long_bytes } => self.parts < PARTS_LIMIT && long_bytes <= LONG_BYTES,
            OutgoingKind::Answer => !self.budget.has_backlog(),
        }
    }

    /// Returns whether a message has to wait: for long writes, which the target pulls during its own progress, for
    /// writes by RDMA, or for notices of writes.
    #[inline]
    const fn must_wait(&self) -> bool {
        self.long_writes | self.notices != 0
    }

    /// Returns whether only messages of groups wait for this peer, so that an operation with a fence may leave.
    #[inline]
    const fn is_settled(&self) -> bool {
        self.outstanding == self.of_groups
    }

    /// Returns whether the first operation of the queue, if there is one, may leave.
    #[inline]
    pub(in super::super) fn may_send_first(&self) -> bool {
        let Some(first) = self.pending.front() else { return false };
        let fenced = first.flags().contains(OpFlags::FENCE);
        self.may_send(match &first.work {
            QueuedWork::Send(_) | QueuedWork::Collective(_) => OutgoingKind::QueuedMessage { fenced },
            QueuedWork::Access(access) => OutgoingKind::Queued { fenced, begins: access.what().is_some() },
            QueuedWork::Window(_) => OutgoingKind::Queued { fenced, begins: false },
        })
    }

    /// Returns whether an operation may join the queue. While the queue of an established connection is being sent, it
    /// accepts no further message of the raw API, and only a quarter as many accesses. Operations with a fence, and
    /// operations on windows, are not restricted in this way. `fenced` states whether the operation has a fence.
    pub(in super::super) fn may_queue(&self, what: QueuingKind, notify: Notify, fenced: bool) -> bool {
        let (waiting, draining) = (self.pending.len(), self.is_up() && !self.pending.is_empty() && !fenced);
        match what {
            QueuingKind::Message => notify.may_wait() || !draining && waiting < PENDING_LIMIT,
            QueuingKind::Access => {
                notify.may_wait() || waiting < if draining { PENDING_LIMIT / 4 } else { PENDING_LIMIT }
            }
            QueuingKind::Window => notify == Notify::Operation || waiting < PENDING_LIMIT,
        }
    }

    /// Returns whether the peer asked for offers only, so that a message is offered rather than sent.
    #[inline]
    pub(in super::super) const fn takes_offers_only(&self) -> bool {
        self.offers_only
    }

    /// Returns the number of operations in the queue.
    #[inline]
    pub(in super::super) fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// Returns the first operation of the queue.
    #[inline]
    pub(in super::super) fn first(&self) -> Option<&PendingOperation> {
        self.pending.front()
    }

    /// Returns whether an operation, or an answer, waits for the peer's link.
    pub(in super::super) fn has_something_to_send(&self) -> bool {
        !self.pending.is_empty() || self.budget.has_backlog()
    }

    /// Returns whether there are waiting operations that leave when the connection is established, or when its link has
    /// room.
    pub(in super::super) fn needs_flush(&self) -> bool {
        matches!(self.state, PeerState::Up | PeerState::Connecting(_)) && !self.pending.is_empty()
    }

    /// Queues an operation.
    #[inline]
    pub(in super::super) fn queue(&mut self, pending: PendingOperation) {
        self.pending.push_back(pending);
    }

    /// Takes the first operation of the queue. If it does not leave, [`put_back`](Self::put_back) returns it.
    #[inline]
    pub(in super::super) fn take_first(&mut self) -> Option<PendingOperation> {
        self.pending.pop_front()
    }

    /// Puts an operation at the head of the queue.
    #[inline]
    pub(in super::super) fn put_back(&mut self, pending: PendingOperation) {
        self.pending.push_front(pending);
    }

    /// Returns the first operation of the queue.
    pub(in super::super) fn first_mut(&mut self) -> Option<&mut PendingOperation> {
        self.pending.front_mut()
    }

    /// Takes the first operation for which `wanted` returns true.
    pub(in super::super) fn take_matching(
        &mut self,
        wanted: impl Fn(&PendingOperation) -> bool,
    ) -> Option<PendingOperation> {
        let first = self.pending.iter().position(wanted)?;
        self.pending.remove(first)
    }

    /// Queues a message of a group after other messages of groups and before everything else. The other operations in
    /// the queue may wait for something that the peer's application does only after the group's operation has ended.
    pub(in super::super) fn queue_for_group(&mut self, message: PendingOperation) {
        let last = self.pending.iter().rposition(|other| matches!(other.work, QueuedWork::Collective(_)));
        self.pending.insert(last.map_or(0, |last| last + 1), message);
    }

    /// Counts one more operation that waits for this peer.
    #[inline]
    pub(in super::super) const fn started(&mut self) {
        self.outstanding += 1;
    }

    /// Counts one operation fewer that waits for this peer.
    #[inline]
    pub(in super::super) const fn finished(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// Counts one of the sends that wait for this peer as a message of a group. Such a send ends when the peer's
    /// application posts the operation. Fences do not wait for it.
    pub(in super::super) const fn started_for_group(&mut self) {
        self.of_groups += 1;
    }

    /// Counts the end of a message of a group.
    #[cold]
    pub(in super::super) const fn finished_for_group(&mut self) {
        self.of_groups = self.of_groups.saturating_sub(1);
    }

    /// Counts an access that the peer executes, or helps to make.
    pub(in super::super) const fn execution_started(&mut self) {
        self.executed += 1;
        self.started();
    }

    /// Counts the end, or the restart, of an executed access. `long` states whether messages waited for it.
    pub(in super::super) const fn execution_ended(&mut self, long: bool) {
        self.executed = self.executed.saturating_sub(1);
        self.long_write_ended(long);
        self.finished();
    }

    /// Counts an access by RDMA. `writes` states whether messages wait for it.
    pub(in super::super) fn rdma_started(&mut self, writes: bool) {
        self.direct += 1;
        self.long_writes += u32::from(writes);
        self.started();
    }

    /// Counts the end, or the restart, of an access by RDMA.
    pub(in super::super) const fn rdma_ended(&mut self, writes: bool) {
        self.direct = self.direct.saturating_sub(1);
        self.long_write_ended(writes);
        self.finished();
    }

    /// Counts an executed access with a long write, for which messages wait from now on.
    pub(in super::super) const fn long_write_started(&mut self) {
        self.long_writes += 1;
    }

    const fn long_write_ended(&mut self, any: bool) {
        if any {
            self.long_writes = self.long_writes.saturating_sub(1);
        }
    }

    /// Counts an access that RDMA can reach, but that is executed because other accesses are being executed. Returns
    /// false if too many in a row were executed, so that the access waits instead.
    pub(in super::super) const fn count_executed_instead(&mut self) -> bool {
        self.executed_instead = self.executed_instead.saturating_add(1);
        self.executed_instead <= EXECUTED_LIMIT
    }

    /// Resets the count of accesses that were executed although RDMA can reach their memory.
    pub(in super::super) const fn forget_executed_instead(&mut self) {
        self.executed_instead = 0;
    }

    /// Counts a part of an executed access that has left.
    pub(in super::super) const fn part_sent(&mut self) {
        self.parts += 1;
    }

    /// Counts a part that the peer has answered.
    pub(in super::super) const fn part_ended(&mut self) {
        self.parts = self.parts.saturating_sub(1);
    }

    /// Counts a notice of a write that was added to the outbox.
    pub(in super::super) const fn notice_queued(&mut self) {
        self.notices = self.notices.saturating_add(1);
    }

    /// Counts a notice that the link took.
    pub(in super::super) const fn notice_left(&mut self) {
        self.notices = self.notices.saturating_sub(1);
    }
}

impl Peers {
    /// Puts an action for a link into the outbox.
    #[inline]
    pub(in super::super) fn push(&mut self, to: ConnectionId, action: LinkAction) {
        self.outbox.push(to, action);
    }

    /// Puts a frame without payload into the outbox.
    #[inline]
    pub(in super::super) fn reply(&mut self, to: ConnectionId, kind: FrameKind, id: u32, tag: u64) {
        let head = Head { kind, flags: Flags::ID, len: 0, tag, data: 0, id };
        self.outbox.push(to, LinkAction::Frame(head));
    }

    /// Returns whether the outbox contains actions.
    #[inline]
    pub(in super::super) fn has_actions(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Takes the next action of the outbox.
    #[inline]
    pub(in super::super) fn next_action(&mut self) -> Option<(ConnectionId, LinkAction)> {
        self.outbox.pop()
    }

    /// Returns whether the next action of the outbox is a frame for this peer.
    #[inline]
    pub(in super::super) fn next_is_frame_for(&self, slot: ConnectionId) -> bool {
        self.outbox.continues(slot)
    }

    /// Returns whether the outbox contains actions for this peer.
    pub(in super::super) fn has_actions_for(&self, slot: ConnectionId) -> bool {
        self.outbox.names(slot)
    }

    /// Drops the actions for a closed connection.
    pub(in super::super) fn drop_actions_for(&mut self, slot: ConnectionId) {
        self.outbox.forget(slot);
    }

    /// Drops all actions.
    pub(in super::super) fn drop_actions(&mut self) {
        self.outbox.clear();
    }

    /// Returns the number of actions in the outbox.
    #[cfg(all(test, not(loom)))]
    pub(in super::super) fn actions(&self) -> usize {
        self.outbox.len()
    }

    /// Returns whether an answer may leave for this peer, like [`Peer::may_send`]. Costs one load while no answer
    /// waits for any peer.
    #[inline]
    pub(in super::super) fn may_answer(&self, slot: ConnectionId) -> bool {
        !self.any_owing() || self.get(slot).may_send(OutgoingKind::Answer)
    }

    /// Records that a peer asked for offers only, or withdrew that request.
    pub(in super::super) fn set_offers_only(&mut self, slot: ConnectionId, on: bool) {
        self.get_mut(slot).offers_only = on;
    }

    /// Counts one more operation that waits for this peer.
    #[inline]
    pub(in super::super) fn started(&mut self, slot: ConnectionId) {
        self.get_mut(slot).started();
    }

    /// Counts one operation fewer that waits for this peer.
    #[inline]
    pub(in super::super) fn finished(&mut self, slot: ConnectionId) {
        self.get_mut(slot).finished();
    }

    /// Takes all operations that wait in a slot.
    pub(in super::super) fn take_pending(&mut self, slot: ConnectionId) -> VecDeque<PendingOperation> {
        std::mem::take(&mut self.get_mut(slot).pending)
    }
}

//! Accesses to the memory of peers by RDMA.
//!
//! Only one way is used at a time, as described in [`access`](super). An access by RDMA begins when no executed access
//! is under way, and an executed access, or a message after a write, begins when no access by RDMA is under way. An
//! access that closely follows an executed access is executed as well, without waiting, but only for a bounded number
//! of accesses in a row (`peers::sending`).
//!
//! An access is made by RDMA only if the target need not be notified of it. This excludes atomic operations, accesses
//! with completion data, accesses that the target counts, and writes that complete only when their bytes are visible at
//! the target. An access that the device refused, and the accesses after it, are returned to the head of the queue
//! ([`Core::give_back`]) and are then executed.

use super::super::core::Core;
use super::super::peers::OutgoingKind;
use super::super::remote::{AccessOperation, PendingAccess};
use super::super::types::{Notify, PendingOperation, QueuedWork};
use crate::endpoint::work::OpFlags;
use crate::region::RemoteMemory;
use crate::transport::ConnectionId;
use crate::transport::verbs::{PostFailure, VerbsLink};
use crate::wire::head::Counts;

/// The result of an attempt to make an access by RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum RdmaOutcome {
    /// The whole access was posted.
    Posted,
    /// The access has to wait.
    Waits,
    /// The target executes the access.
    Executed,
}

/// Makes an access by RDMA, or continues it, if possible.
pub(in super::super) fn by_rdma(
    link: &mut VerbsLink,
    core: &mut Core,
    slot: ConnectionId,
    waiting: &mut PendingAccess,
    notify: Notify,
) -> RdmaOutcome {
    if waiting.started().is_none()
        && let Err(course) = begin(link, core, slot, waiting, notify)
    {
        return course;
    }
    let Some((access, &what, true)) = core.remote.started(waiting) else {
        return RdmaOutcome::Executed; // The access began as an executed access.
    };
    if core.remote.has_failed(access) {
        // It is unknown whether a part of the access was made, so no other part is posted.
        core.access_step(access, Ok(()));
        return RdmaOutcome::Posted;
    }
    while !waiting.is_executed_only()
        && let Some((remote, offset)) = what.part_of(waiting.sent(), link.longest_access())
    {
        match post(link, &what, &remote, offset, access.to_wire()) {
            Ok(()) => {
                core.remote.count_part(access);
                waiting.part_sent();
            }
            Err(PostFailure::Full | PostFailure::Broken) => return RdmaOutcome::Waits,
            Err(PostFailure::Unreachable) => waiting.execute_only(),
        }
    }
    if !waiting.is_executed_only() {
        core.access_step(access, Ok(()));
        return RdmaOutcome::Posted;
    }
    // The parts that were posted have to end first, with or without success.
    if core.remote.has_parts_under_way(access) {
        return RdmaOutcome::Waits;
    }
    if let Some(execution) = core.remote.remove(access) {
        core.access_ended(&execution);
        waiting.restart(execution.into_posted());
    }
    if core.peers.get(slot).may_send(OutgoingKind::ExecutedAccess) { RdmaOutcome::Executed } else { RdmaOutcome::Waits }
}

/// Posts a part of an access. `offset` is the start of the part in the local memory.
fn post(
    link: &mut VerbsLink,
    what: &AccessOperation,
    remote: &RemoteMemory,
    offset: u64,
    access: u32,
) -> Result<(), PostFailure> {
    let (AccessOperation::Write(work) | AccessOperation::Read(work)) = what else {
        return Err(PostFailure::Unreachable);
    };
    let local = work.local.slice(offset as usize, remote.len as usize);
    link.post_access(what.changes(), remote, &local, access)
}

/// Posts the first part of an access, if the access can be made by RDMA and its turn has come.
///
/// # Errors
/// [`RdmaOutcome::Executed`] if the target executes the access, or [`RdmaOutcome::Waits`] if the access has to wait. In
/// both cases nothing was posted and the access is not counted: accesses that a broken queue pair returns are put
/// before it in the queue, and it waits for the accesses that are counted.
fn begin(
    link: &mut VerbsLink,
    core: &mut Core,
    slot: ConnectionId,
    waiting: &mut PendingAccess,
    notify: Notify,
) -> Result<(), RdmaOutcome> {
    let Some(&what) = waiting.what() else { return Err(RdmaOutcome::Executed) };
    let peer = core.peers.get_mut(slot);
    let executed = if peer.may_send(OutgoingKind::ExecutedAccess) { RdmaOutcome::Executed } else { RdmaOutcome::Waits };
    let reached = !waiting.is_executed_only()
        && is_plain(&what, peer.counts())
        && what.pieces().iter().all(|piece| link.reaches(piece, what.changes()));
    let Some((remote, offset)) = what.part_of(0, link.longest_access()).filter(|_| reached) else {
        peer.forget_executed_instead();
        return Err(executed);
    };
    if !peer.may_send(OutgoingKind::DirectAccess) {
        return Err(if peer.count_executed_instead() { RdmaOutcome::Executed } else { RdmaOutcome::Waits });
    }
    peer.forget_executed_instead();
    let id = core.remote.next_access();
    match post(link, &what, &remote, offset, id.to_wire()) {
        Ok(()) => {}
        Err(PostFailure::Full | PostFailure::Broken) => return Err(RdmaOutcome::Waits),
        Err(PostFailure::Unreachable) => {
            waiting.execute_only();
            return Err(executed);
        }
    }
    if core.remote.start_by_rdma(slot, waiting, notify).is_none() {
        return Err(RdmaOutcome::Executed);
    }
    waiting.part_sent();
    peer.rdma_started(what.changes());
    Ok(())
}

/// Returns whether the target need neither execute an access nor be notified of it.
fn is_plain(what: &AccessOperation, counted: Counts) -> bool {
    let some = |piece: &RemoteMemory| piece.len > 0;
    // The device may acknowledge a write before its bytes are visible.
    let is_seen = what.changes() && what.flags().contains(OpFlags::DELIVERY_COMPLETE);
    !matches!(what, AccessOperation::Atomic(_))
        && !is_seen
        && what.data().is_none()
        && !counted.intersects(what.counts() - Counts::REGION)
        && what.pieces().iter().all(some)
}

impl Core {
    /// Puts an access that could not be completed by RDMA back into the queue. If there are several accesses, the
    /// caller puts them back in the reverse of the order in which they began.
    pub(in super::super) fn give_back(&mut self, from: ConnectionId, wire: u32) {
        let Some(id) = self.remote.rdma_access_of(from, wire) else { return };
        let Some(execution) = self.remote.remove(id) else { return };
        self.access_ended(&execution);
        let (notify, posted) = (execution.notify(), execution.into_posted());
        let peer = self.peers.get_mut(from);
        match peer.first_mut() {
            // The access was not posted completely, so it is still in the queue.
            Some(PendingOperation { work: QueuedWork::Access(waiting), .. }) if waiting.started() == Some(id) => {
                waiting.restart(posted);
            }
            _ => peer.put_back(PendingOperation { work: QueuedWork::Access(PendingAccess::new(posted)), notify }),
        }
    }
}

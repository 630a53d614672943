//! The raw face of collectives.

#![expect(unsafe_code, reason = "its contract is the caller's to keep")]

use super::Endpoint;
use super::engine::types::Notify;
use super::ownership::Ownership;
use super::work::PostError;
use crate::address::PeerAddress;
use crate::collective::{AddressSet, CollectiveWork, GroupId};

impl<A: Ownership> Endpoint<A> {
    /// Joins a group of these members, of which this endpoint is one (fi_join_collective). All of them join it, and name the same addresses in
    /// the same order; who joins the same list several times is in as many groups, the first with the others' first, and so on. The event queue tells when it has come
    /// about ([`Event::Joined`](crate::Event::Joined), [`Event::JoinFailed`](crate::Event::JoinFailed)).
    ///
    /// # Errors
    /// If there can be no such group.
    pub fn join_group(&self, members: &AddressSet, context: u64) -> Result<GroupId, PostError> {
        self.access.with(|engine| engine.join_group(members.members(), context, Notify::Silent))
    }

    /// Leaves a group. Operations that are posted still end. If none is, and the group is not there yet, it will not be, for nobody.
    pub fn leave_group(&self, group: GroupId) {
        self.access.with(|engine| engine.leave_group(group));
    }

    /// The place of this endpoint in a group, and how many members that has; `None` if it is in no such group.
    #[must_use]
    pub fn rank_in(&self, group: GroupId) -> Option<(usize, usize)> {
        self.access.with(|engine| {
            let group = engine.core.collectives.get(group)?;
            Some((group.rank, group.members.len()))
        })
    }

    /// The place of a member in a group.
    #[must_use]
    pub fn rank_of(&self, group: GroupId, member: PeerAddress) -> Option<usize> {
        self.access.with(|engine| {
            let slot = engine.core.peers.resolve(member).ok()?;
            engine.core.collectives.get(group)?.members.iter().position(|other| *other == slot)
        })
    }

    /// The number of operations of a group that have yet to end.
    #[must_use]
    pub fn outstanding_in(&self, group: GroupId) -> usize {
        self.access.with(|engine| engine.core.collectives.get(group).map_or(0, |group| group.queue.len()))
    }

    /// Posts a collective operation. All members post it, and in the same order; it has ended when this one's part is over.
    ///
    /// # Errors
    /// As [`PostError`] says; then nothing was done.
    ///
    /// # Safety
    /// The segments are as [`Segment::new`](crate::Segment::new) wants them until the operation has completed.
    pub unsafe fn post_collective(&self, work: &CollectiveWork) -> Result<(), PostError> {
        self.access.with(|engine| engine.post_collective(work, Notify::from_flags(work.flags)))
    }
}

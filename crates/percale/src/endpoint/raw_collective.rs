//! The raw API of collectives.

#![expect(unsafe_code, reason = "the caller fulfils the safety contract")]

use super::Endpoint;
use super::engine::types::Notify;
use super::ownership::Ownership;
use super::work::PostError;
use crate::collective::{AddressSet, CollectiveWork, GroupId};
use crate::types::PeerAddress;

impl<A: Ownership> Endpoint<A> {
    /// Joins a group that consists of these members, including this endpoint (fi_join_collective). All members join it
    /// with the same addresses in the same order. An endpoint can join the same list several times and is then in that
    /// many groups: its first join belongs to the first joins of the other members, and so on. The event queue reports
    /// the result ([`Event::Joined`](crate::Event::Joined), [`Event::JoinFailed`](crate::Event::JoinFailed)).
    ///
    /// # Errors
    /// If a group of these members is not possible.
    pub fn join_group(&self, members: &AddressSet, context: u64) -> Result<GroupId, PostError> {
        self.access.with(|engine| engine.join_group(members.members(), context, Notify::Silent))
    }

    /// Leaves a group. Operations that are already posted still complete. If none is posted and the group is not formed
    /// yet, the join fails for all members.
    pub fn leave_group(&self, group: GroupId) {
        self.access.with(|engine| engine.leave_group(group));
    }

    /// Returns the rank of this endpoint in a group and the number of members, or `None` if the endpoint is not in this
    /// group.
    #[must_use]
    pub fn rank_in(&self, group: GroupId) -> Option<(usize, usize)> {
        self.access.with(|engine| engine.core.groups.rank(group))
    }

    /// Returns the rank of a member in a group.
    #[must_use]
    pub fn rank_of(&self, group: GroupId, member: PeerAddress) -> Option<usize> {
        self.access.with(|engine| {
            let slot = engine.core.peers.resolve(member).ok()?;
            engine.core.groups.rank_of(group, slot)
        })
    }

    /// Returns the number of operations of a group that were posted and wait until an earlier operation has ended. The
    /// operation that runs is not counted.
    #[must_use]
    pub fn outstanding_in(&self, group: GroupId) -> usize {
        self.access.with(|engine| engine.core.groups.outstanding(group))
    }

    /// Posts a collective operation. All members post the operations of a group in the same order. An operation
    /// completes when this member's part has ended.
    ///
    /// # Errors
    /// See [`PostError`]. After an error, the operation was not started.
    ///
    /// # Safety
    /// The segments meet the requirements of [`Segment::new`](crate::Segment::new) until the operation has completed.
    pub unsafe fn post_collective(&self, work: &CollectiveWork) -> Result<(), PostError> {
        self.access.with(|engine| engine.post_collective(work, Notify::from_flags(work.flags)))
    }
}

//! Collective operations: what the members of a group do together (fi_collective(3)).
//!
//! * [`AddressSet`] names the members, in an order that is the same everywhere; a member's place in it is its *rank*.
//! * [`Endpoint::join`](crate::Endpoint::join) makes a group of them, when all have joined: [`Group`](crate::endpoint::safe::Group) for
//!   safe operations, a [`GroupId`] for posted ones ([`CollectiveWork`]).
//! * A barrier, a broadcast, a reduction, or what else [`Collective`] names, is posted by every member, in the same order. It may wait for
//!   a counter, as any operation ([`trigger`](crate::trigger)). Once it has begun it continues without further calls: each arriving message
//!   starts the next step.
//!
//! # How
//! A collective is a short program of steps (`schedule`): sends and receives, waits for their completion, and combining the received data.
//! The next step begins when the last transfer that the current step waits for has completed. Messages are of a kind of their own, so no
//! receive of the application matches them. Their tag is a digest of the group, and the members agree on the group's name when they join
//! (`join`). A group's operations run one after another, so that between any two members everything is sent and expected in one order. Each
//! message carries the operation that it belongs to, so that a member detects when another member has posted a different operation.
//!
//! # Results
//! Every member gets the same bits, for floating-point types too: two values are combined on one member only, or on both members with the
//! operands in the same order.
//!
//! # Failure
//! A member that finds that a transfer failed notifies all members. Every operation of the group then ends in error on all members, later
//! operations included. The peers of a member that died detect its death. No member waits for ever, as long as the remaining members make
//! progress: a long message that one of them offers to another is over when the other has replied that it no longer wants it.

mod digest;
mod fold;
mod join;
#[cfg(all(test, not(loom)))]
mod join_tests;
mod plan;
mod schedule;
mod set;

pub(crate) use digest::Digest;
pub(crate) use fold::{Chunks, fold};
pub(crate) use join::{Deed, Joins, heard_code};
pub(crate) use plan::Plan;
pub(crate) use schedule::{Place, Program, Spot, Step};
pub use set::AddressSet;

use crate::local_memory::atomic::{AtomicOp, Datatype, Kind, is_valid};
use crate::local_memory::volatile::Segment;
use crate::types::OpFlags;

/// The most members that a group may have.
pub const MEMBER_LIMIT: usize = 1 << 16;

/// A group that an endpoint has joined, or is joining. Valid for this endpoint only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId {
    pub(crate) index: u32,
    pub(crate) stamp: u32,
}

impl GroupId {
    /// Returns the identifier as a number.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        (self.stamp as u64) << 32 | self.index as u64
    }

    /// Converts a number that [`to_u64`](Self::to_u64) returned. Any other number names no group, or another one.
    #[must_use]
    pub const fn from_u64(number: u64) -> Self {
        Self { index: number as u32, stamp: (number >> 32) as u32 }
    }
}

/// A kind of collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Ends once every member has begun it (FI_BARRIER).
    Barrier,
    /// Every member gets the elements of the member with this rank (FI_BROADCAST).
    Broadcast {
        /// The rank of the member that sends its elements.
        root: usize,
    },
    /// Every member gets all members' elements, combined (FI_ALLREDUCE).
    Allreduce,
    /// Like [`Allreduce`](Self::Allreduce), but only the member with this rank gets the result (FI_REDUCE).
    Reduce {
        /// The rank of the member that gets the result.
        root: usize,
    },
    /// Combines all members' elements and gives each member one block of the result, by rank (FI_REDUCE_SCATTER).
    ReduceScatter,
    /// Every member gets all members' blocks, one behind the other by rank (FI_ALLGATHER).
    Allgather,
    /// Each member has a block for each member, by rank, and gets one block from each member, by rank (FI_ALLTOALL).
    Alltoall,
    /// The member with this rank has a block for each member, by rank; every member gets its own block (FI_SCATTER).
    Scatter {
        /// The rank of the member that has the blocks.
        root: usize,
    },
    /// The member with this rank gets all members' blocks, one behind the other by rank (FI_GATHER).
    Gather {
        /// The rank of the member that gets the blocks.
        root: usize,
    },
}

impl Collective {
    /// Returns the rank of the member that has or gets everything, if there is one.
    #[must_use]
    pub const fn root(self) -> Option<usize> {
        match self {
            Self::Broadcast { root } | Self::Reduce { root } | Self::Scatter { root } | Self::Gather { root } => {
                Some(root)
            }
            Self::Barrier | Self::Allreduce | Self::ReduceScatter | Self::Allgather | Self::Alltoall => None,
        }
    }

    /// Returns how many blocks of [`count`](CollectiveWork::count) elements the member with this rank, of so many members, gives, and how many it
    /// gets. A broadcast uses only the result buffer, also on the member that sends. Where members have blocks for each other, the block of the
    /// member with rank 0 is the first.
    #[must_use]
    pub const fn blocks(self, members: usize, rank: usize) -> (usize, usize) {
        let is_root = matches!(self.root(), Some(root) if root == rank);
        match self {
            Self::Barrier => (0, 0),
            Self::Broadcast { .. } => (0, 1),
            Self::Allreduce => (1, 1),
            Self::Reduce { .. } => (1, is_root as usize),
            Self::ReduceScatter => (members, 1),
            Self::Allgather => (1, members),
            Self::Alltoall => (members, members),
            Self::Scatter { .. } => (if is_root { members } else { 0 }, 1),
            Self::Gather { .. } => (1, if is_root { members } else { 0 }),
        }
    }

    /// Whether it combines elements.
    #[must_use]
    pub const fn combines(self) -> bool {
        matches!(self, Self::Allreduce | Self::Reduce { .. } | Self::ReduceScatter)
    }
}

/// Whether elements of this type can be combined by this operation, in any order: MIN, MAX, SUM, PROD and the logical and bitwise operations,
/// as in fi_query_collective(3).
#[must_use]
pub const fn combines(op: AtomicOp, datatype: Datatype) -> bool {
    is_valid(Kind::Plain, op, datatype) && !matches!(op, AtomicOp::Write)
}

/// A collective operation, as it is posted.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveWork {
    /// The group that performs the operation.
    pub group: GroupId,
    /// The kind of operation.
    pub what: Collective,
    /// How elements are combined. Ignored by operations other than reductions.
    pub op: AtomicOp,
    /// The elements' type.
    pub datatype: Datatype,
    /// The number of elements, the same on all members: where members have blocks for each other ([`Collective::blocks`]), the number in each
    /// block; 0 for a barrier.
    pub count: usize,
    /// This member's elements: as many blocks as it gives. May be the same as `result`. If only one of the two has several blocks, the other may
    /// be this member's block among them. Otherwise they do not overlap.
    pub source: Segment,
    /// Where the result is put: as many blocks as the member gets. For a broadcast, also the elements that the root sends.
    pub result: Segment,
    /// Returned in the completion.
    pub context: u64,
    /// COMPLETION, or none.
    pub flags: OpFlags,
}

impl CollectiveWork {
    /// The length of the elements, or of one block of them, in bytes. `None` if it overflows.
    pub(crate) const fn bytes(&self) -> Option<usize> {
        self.count.checked_mul(self.datatype.size())
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

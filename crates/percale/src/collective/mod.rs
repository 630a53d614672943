//! Collective operations: what the members of a group do together (fi_collective(3)).
//!
//! * [`AddressSet`] names the members, in an order that is the same everywhere; a member's place in it is its *rank*.
//! * [`Endpoint::join`](crate::Endpoint::join) makes a group of them, when all have joined: [`Group`](crate::endpoint::safe::Group) for
//!   safe operations, a [`GroupId`] for posted ones ([`CollectiveWork`]).
//! * A barrier, a broadcast, a reduction, or what else [`Collective`] names, is posted by every member, in the same order. It may wait for
//!   a counter, as any operation ([`trigger`](crate::trigger)), and once it has begun it goes on by itself: what arrives sets off the next step.
//!
//! # How
//! A collective is a short program of steps (`schedule`): sends and receives, waiting for those to end, combining what came. The end of the
//! last transfer that a step waits for begins the next one. Messages are of a kind of their own, so no receive of the application's
//! matches them; their tag is a digest of the group, on whose name its members agree when they join (`join`). A group's operations run one
//! after another, so that between any two members all is sent and expected in one order; with each message comes what operation it belongs
//! to, and members that disagree are found out.
//!
//! # Results
//! Every member gets the same bits, of floating-point types too: wherever two values are combined that is done on one member, or on both
//! with the operands in the same order.
//!
//! # Failure
//! Whoever finds that a transfer failed tells all members, and every operation of the group ends in error, there and everywhere, also later
//! ones. The peers of a member that died find that out; nobody waits for ever, as long as the members that are left make progress: a long
//! message that one of them has on offer to another is over when that one has said that it does not want it any more.

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

use crate::endpoint::work::OpFlags;
use crate::memory::atomic::{AtomicOp, Datatype, Kind, is_valid};
use crate::memory::volatile::Segment;

/// The most members that a group may have.
pub const MEMBER_LIMIT: usize = 1 << 16;

/// A group that an endpoint has joined, or is joining. Of another endpoint it names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId {
    pub(crate) index: u32,
    pub(crate) stamp: u32,
}

impl GroupId {
    /// As a number.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        (self.stamp as u64) << 32 | self.index as u64
    }

    /// Of what [`to_u64`](Self::to_u64) gave; any other number names no group, or another one.
    #[must_use]
    pub const fn from_u64(number: u64) -> Self {
        Self { index: number as u32, stamp: (number >> 32) as u32 }
    }
}

/// What a group does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Ends once every member has begun it (FI_BARRIER).
    Barrier,
    /// Everybody gets the elements of the member with this rank (FI_BROADCAST).
    Broadcast {
        /// Whose.
        root: usize,
    },
    /// All members' elements, combined, for everybody (FI_ALLREDUCE).
    Allreduce,
    /// The same for the member with this rank alone (FI_REDUCE).
    Reduce {
        /// Who gets them.
        root: usize,
    },
    /// All members' elements, combined; of the result each member gets one block, the first the first (FI_REDUCE_SCATTER).
    ReduceScatter,
    /// All members' blocks, one behind the other by rank, for everybody (FI_ALLGATHER).
    Allgather,
    /// Each member has a block for each, by rank, and gets one of each, by rank (FI_ALLTOALL).
    Alltoall,
    /// The member with this rank has a block for each, by rank; everybody gets its own (FI_SCATTER).
    Scatter {
        /// Who has them.
        root: usize,
    },
    /// All members' blocks, one behind the other by rank, for the member with this rank (FI_GATHER).
    Gather {
        /// Who gets them.
        root: usize,
    },
}

impl Collective {
    /// The rank of the member that has or gets everything, if there is one.
    #[must_use]
    pub const fn root(self) -> Option<usize> {
        match self {
            Self::Broadcast { root } | Self::Reduce { root } | Self::Scatter { root } | Self::Gather { root } => {
                Some(root)
            }
            Self::Barrier | Self::Allreduce | Self::ReduceScatter | Self::Allgather | Self::Alltoall => None,
        }
    }

    /// How many blocks of [`count`](CollectiveWork::count) elements the member with this rank, of so many, gives, and how many it gets. What is
    /// broadcast lies where it is got. Where members have blocks for each other, the block of the member with rank 0 is the first.
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

/// Whether elements of this type can be combined so, in any order: MIN, MAX, SUM, PROD and the logical and bitwise operations, as
/// fi_query_collective(3) says.
#[must_use]
pub const fn combines(op: AtomicOp, datatype: Datatype) -> bool {
    is_valid(Kind::Plain, op, datatype) && !matches!(op, AtomicOp::Write)
}

/// A collective operation, as it is posted.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveWork {
    /// Whose.
    pub group: GroupId,
    /// What is done.
    pub what: Collective,
    /// How elements are combined; means nothing to others than reductions.
    pub op: AtomicOp,
    /// The elements' type.
    pub datatype: Datatype,
    /// How many there are, the same everywhere: where members have blocks for each other ([`Collective::blocks`]), in each of those; 0 for a
    /// barrier.
    pub count: usize,
    /// This member's elements, of as many blocks as it gives. May be the same as `result`; if only one of the two has several blocks, the other
    /// may be this member's among them. Else they do not overlap.
    pub source: Segment,
    /// Where the result is put, of as many blocks as the member gets; also what is broadcast.
    pub result: Segment,
    /// Comes back in the completion.
    pub context: u64,
    /// How: COMPLETION, or nothing.
    pub flags: OpFlags,
}

impl CollectiveWork {
    /// Bytes of the elements, or of a block of them; `None` if nobody has so many.
    pub(crate) const fn bytes(&self) -> Option<usize> {
        self.count.checked_mul(self.datatype.size())
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

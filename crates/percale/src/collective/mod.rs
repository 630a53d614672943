//! Collective operations, which the members of a group perform together (fi_collective(3)).
//!
//! * [`AddressSet`] lists the members, in the same order at every member. A member's position in it is its *rank*.
//! * [`Endpoint::join`](crate::Endpoint::join) forms a group of them when all have joined. The result is a
//!   [`Group`](crate::endpoint::safe::Group) for safe operations, or a [`GroupId`] for posted ones
//!   ([`CollectiveWork`]).
//! * Every member posts a barrier, a broadcast, a reduction, or another [`Collective`], in the same order. A collective
//!   may wait for a counter, like any operation ([`trigger`](crate::trigger)). After it has begun, it needs no further
//!   calls: it advances whenever its endpoint makes progress.
//!
//! # Implementation
//! A collective is a short program of steps (`schedule`): sends, receives, waits for their completion, and combinations
//! of the received data. The next step begins when the last transfer for which the current step waits has completed.
//! Messages of collectives have a separate kind, so no receive of the application matches them. Their tag is a digest
//! of the group's name, on which the members agree when they join (`join`). A group's operations run one after another,
//! so all messages between two members are sent and expected in the same order. Each message carries the operation to
//! which it belongs, so that a member detects when another member has posted a different operation.
//!
//! # Results
//! Every member gets bit-identical results, for floating-point types too: two values are combined on one member only,
//! or on both members with the operands in the same order.
//!
//! # Failure
//! A member that detects that a transfer failed notifies all members. Every operation of the group then ends with an
//! error on all members, including later operations. The peers of a member that died detect its death. No member waits
//! forever, as long as the remaining members make progress: a long message that one member offers to another ends when
//! the other member replies that it no longer needs the message.

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
pub(crate) use join::{JoinAction, Joins, decode_error_code};
pub(crate) use plan::Plan;
pub(crate) use schedule::{MemoryPart, MemoryPosition, Program, ScheduleStep};
pub use set::AddressSet;

use crate::local_memory::atomic::{AtomicKind, AtomicOp, Datatype, is_valid};
use crate::local_memory::volatile::Segment;
use crate::types::OpFlags;

/// The maximum number of members of a group.
pub const MEMBER_LIMIT: usize = 1 << 16;

/// The identifier of a group that an endpoint has joined or is joining. It is valid for this endpoint only.
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

    /// Converts a number that [`to_u64`](Self::to_u64) returned. Any other number is invalid or identifies another
    /// group.
    #[must_use]
    pub const fn from_u64(number: u64) -> Self {
        Self { index: number as u32, stamp: (number >> 32) as u32 }
    }
}

/// A kind of collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Completes when every member has begun it (FI_BARRIER).
    Barrier,
    /// Every member gets the elements of the member with this rank (FI_BROADCAST).
    Broadcast {
        /// The rank of the member that sends its elements.
        root: usize,
    },
    /// Combines the elements of all members, and every member gets the result (FI_ALLREDUCE).
    Allreduce,
    /// Like [`Allreduce`](Self::Allreduce), but only the member with this rank gets the result (FI_REDUCE).
    Reduce {
        /// The rank of the member that gets the result.
        root: usize,
    },
    /// Combines the elements of all members, and each member gets one block of the result, by rank (FI_REDUCE_SCATTER).
    ReduceScatter,
    /// Every member gets the blocks of all members, in the order of ranks (FI_ALLGATHER).
    Allgather,
    /// Each member has one block for each member, by rank, and gets one block from each member, by rank (FI_ALLTOALL).
    Alltoall,
    /// The member with this rank has one block for each member, by rank, and every member gets its block (FI_SCATTER).
    Scatter {
        /// The rank of the member that has the blocks.
        root: usize,
    },
    /// The member with this rank gets the blocks of all members, in the order of ranks (FI_GATHER).
    Gather {
        /// The rank of the member that gets the blocks.
        root: usize,
    },
}

impl Collective {
    /// Returns the rank of the root, if the operation has one.
    #[must_use]
    pub const fn root(self) -> Option<usize> {
        match self {
            Self::Broadcast { root } | Self::Reduce { root } | Self::Scatter { root } | Self::Gather { root } => {
                Some(root)
            }
            Self::Barrier | Self::Allreduce | Self::ReduceScatter | Self::Allgather | Self::Alltoall => None,
        }
    }

    /// Returns the number of blocks of [`count`](CollectiveWork::count) elements that the member with this rank
    /// contributes, and the number that it gets, in a group with this many members. A broadcast uses only the result
    /// buffer, also at the root. If a buffer has blocks for several members, the block of the member with rank 0 is the
    /// first.
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

    /// Returns whether the operation combines elements.
    #[must_use]
    pub const fn combines(self) -> bool {
        matches!(self, Self::Allreduce | Self::Reduce { .. } | Self::ReduceScatter)
    }
}

/// Returns whether this operation can combine elements of this type in any order: MIN, MAX, SUM, PROD and the logical
/// and bitwise operations, as in fi_query_collective(3).
#[must_use]
pub const fn combines(op: AtomicOp, datatype: Datatype) -> bool {
    is_valid(AtomicKind::Plain, op, datatype) && !matches!(op, AtomicOp::Write)
}

/// The parameters of a collective operation.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveWork {
    /// The group that performs the operation.
    pub group: GroupId,
    /// The kind of operation.
    pub what: Collective,
    /// The operation that combines elements. Ignored by collectives that are not reductions.
    pub op: AtomicOp,
    /// The type of the elements.
    pub datatype: Datatype,
    /// The number of elements, the same on all members. If buffers have blocks for several members
    /// ([`Collective::blocks`]), it is the number in each block. It is 0 for a barrier.
    pub count: usize,
    /// This member's elements: as many blocks as the member contributes. It may be the same memory as `result`. If only
    /// one of the two has several blocks, the other may be this member's block among them. Otherwise the two do not
    /// overlap.
    pub source: Segment,
    /// The memory for the result: as many blocks as the member gets. For a broadcast it also contains the elements that
    /// the root sends.
    pub result: Segment,
    /// The context, which is returned in the completion.
    pub context: u64,
    /// The flags: COMPLETION or no flag.
    pub flags: OpFlags,
}

impl CollectiveWork {
    /// Returns the length of the elements, or of one block of them, in bytes. Returns `None` if it overflows.
    pub(crate) const fn bytes(&self) -> Option<usize> {
        self.count.checked_mul(self.datatype.size())
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

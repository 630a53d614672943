//! The memory that an operation of a group needs at one member. It is kept for the next operation, which usually has
//! the same parameters.

use super::{Collective, CollectiveWork};
use crate::local_memory::atomic::{AtomicOp, Datatype};
use crate::local_memory::volatile::Segment;

/// The kind of an operation, and the memory that it needs at a member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) what: Collective,
    pub(crate) count: usize,
    pub(crate) op: AtomicOp,
    pub(crate) datatype: Datatype,
    /// For an all-to-all: whether the result overlaps the elements.
    pub(crate) in_place: bool,
    /// The number of bytes of the elements, or of one block of them.
    pub(crate) bytes: usize,
    /// The number of bytes that the member contributes.
    pub(crate) given: usize,
    /// The number of bytes that the member gets.
    pub(crate) got: usize,
    /// A value that messages carry in addition to their operation's number ([`CollectiveWork::shape`]).
    pub(crate) shape: u64,
}

impl Plan {
    /// Returns the plan of an operation, for the member with this rank in a group of `members`. Returns `None` if its
    /// sizes overflow.
    pub(crate) fn of(work: &CollectiveWork, members: usize, rank: usize) -> Option<Self> {
        let CollectiveWork { what, count, op, datatype, .. } = *work;
        let bytes = work.bytes()?;
        // A member may have a buffer for one block of each member.
        bytes.checked_mul(members)?;
        let (given, got) = what.blocks(members, rank);
        let (given, got) = (given * bytes, got * bytes);
        let in_place = in_place(work, given, got);
        Some(Self { what, count, op, datatype, in_place, bytes, given, got, shape: work.shape() })
    }

    /// Returns whether this is also the plan of another operation, for the same member.
    #[inline]
    pub(crate) fn is_of(&self, work: &CollectiveWork) -> bool {
        (self.what, self.count, self.op, self.datatype) == (work.what, work.count, work.op, work.datatype)
            && (self.what != Collective::Alltoall || self.in_place == in_place(work, self.given, self.got))
    }

    /// Returns whether the buffers of an operation are large enough.
    #[inline]
    pub(crate) fn fits(&self, work: &CollectiveWork) -> bool {
        work.source.len() >= self.given && work.result.len() >= self.got
    }
}

/// Returns whether the result of an all-to-all overlaps its elements.
fn in_place(work: &CollectiveWork, given: usize, got: usize) -> bool {
    work.what == Collective::Alltoall && overlap(work.source.slice(0, given), work.result.slice(0, got))
}

/// Returns whether two parts of memory overlap.
fn overlap(one: Segment, other: Segment) -> bool {
    let (first, second) = (one.as_ptr().addr(), other.as_ptr().addr());
    !one.is_empty() && !other.is_empty() && first < second + other.len() && second < first + one.len()
}

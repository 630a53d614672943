//! What an operation of a group takes of one member: worked out once, since the next operation mostly does the same.

use super::{Collective, CollectiveWork};
use crate::memory::atomic::{AtomicOp, Datatype};
use crate::memory::volatile::Segment;

/// What an operation does, and how much memory that takes of a member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) what: Collective,
    pub(crate) count: usize,
    pub(crate) op: AtomicOp,
    pub(crate) datatype: Datatype,
    /// The result is where the elements are: of an all-to-all.
    pub(crate) in_place: bool,
    /// Bytes of the elements, or of a block of them.
    pub(crate) bytes: usize,
    /// Bytes that the member gives,
    pub(crate) given: usize,
    /// and gets.
    pub(crate) got: usize,
    /// What messages carry besides their operation's number ([`CollectiveWork::shape`]).
    pub(crate) shape: u64,
}

impl Plan {
    /// Of an operation, for the member with this rank of so many; `None` if nobody has so much memory.
    pub(crate) fn of(work: &CollectiveWork, members: usize, rank: usize) -> Option<Self> {
        let CollectiveWork { what, count, op, datatype, .. } = *work;
        let bytes = work.bytes()?;
        // Of every member's blocks there is a place somewhere.
        bytes.checked_mul(members)?;
        let (given, got) = what.blocks(members, rank);
        let (given, got) = (given * bytes, got * bytes);
        let in_place = in_place(work, given, got);
        Some(Self { what, count, op, datatype, in_place, bytes, given, got, shape: work.shape() })
    }

    /// Whether it is this operation's too, for the same member.
    #[inline]
    pub(crate) fn is_of(&self, work: &CollectiveWork) -> bool {
        (self.what, self.count, self.op, self.datatype) == (work.what, work.count, work.op, work.datatype)
            && (self.what != Collective::Alltoall || self.in_place == in_place(work, self.given, self.got))
    }

    /// Whether an operation's memory has room for it.
    #[inline]
    pub(crate) fn fits(&self, work: &CollectiveWork) -> bool {
        work.source.len() >= self.given && work.result.len() >= self.got
    }
}

/// Whether the result is where the elements are.
fn in_place(work: &CollectiveWork, given: usize, got: usize) -> bool {
    work.what == Collective::Alltoall && overlap(work.source.slice(0, given), work.result.slice(0, got))
}

/// Whether two parts of memory have bytes in common.
fn overlap(one: Segment, other: Segment) -> bool {
    let (first, second) = (one.as_ptr().addr(), other.as_ptr().addr());
    !one.is_empty() && !other.is_empty() && first < second + other.len() && second < first + one.len()
}

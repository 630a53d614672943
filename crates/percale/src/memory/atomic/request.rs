//! An atomic operation on behalf of a peer.

#![expect(unsafe_code, reason = "hands checked memory to the operations; the block states its reason")]

use super::{AtomicOp, Datatype, Kind, Misaligned, execute};
use crate::memory::volatile::Segment;

/// A checked request: the operands and compare values are as long as its elements, or not used by its kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) op: AtomicOp,
    pub(crate) datatype: Datatype,
    pub(crate) kind: Kind,
    /// Elements.
    pub(crate) count: usize,
    pub(crate) operand: &'a [u8],
    pub(crate) compare: &'a [u8],
}

impl Kind {
    /// As it travels.
    pub(crate) const fn to_u8(self) -> u8 {
        match self {
            Self::Plain => 0,
            Self::Fetch => 1,
            Self::Compare => 2,
        }
    }

    /// What travelled.
    pub(crate) const fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Plain,
            1 => Self::Fetch,
            2 => Self::Compare,
            _ => return None,
        })
    }
}

impl Request<'_> {
    /// Bytes of the elements.
    pub(crate) fn len(&self) -> usize {
        self.count * self.datatype.size()
    }

    /// Does it to `target`, which is as long; `fetched` gets the values from before unless the operation is plain.
    pub(crate) fn apply(&self, target: Segment, fetched: &mut [u8]) -> Result<(), Misaligned> {
        let len = self.len();
        let result = if self.kind == Kind::Plain { std::ptr::null_mut() } else { fetched.as_mut_ptr() };
        assert!(target.len() >= len, "the target is as long as the elements");
        assert!(self.op == AtomicOp::Read || self.operand.len() >= len, "an operand for each element");
        assert!(self.kind != Kind::Compare || self.compare.len() >= len, "a compare value for each element");
        assert!(self.kind == Kind::Plain || fetched.len() >= len, "room for each value");
        // SAFETY: all four are as long as the elements where the operation uses them, as was just checked; the caller is inside
        // of the target's region, so that its memory is there.
        unsafe {
            execute(
                self.op,
                self.datatype,
                target.as_ptr(),
                self.operand.as_ptr(),
                self.compare.as_ptr(),
                result,
                self.count,
            )
        }
    }
}

/// An operation of our own, on memory of a peer that is within reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operands {
    pub(crate) op: AtomicOp,
    pub(crate) datatype: Datatype,
    pub(crate) kind: Kind,
    pub(crate) operand: Segment,
    pub(crate) compare: Segment,
    pub(crate) result: Segment,
}

impl Operands {
    /// Does it to `len` bytes at `target`. What the operation uses is as long.
    ///
    /// # Safety
    /// There are `len` bytes at `target`, mapped and writable until this returns; others may use them.
    #[inline]
    pub(crate) unsafe fn apply(&self, target: *mut u8, len: usize) -> Result<(), Misaligned> {
        let Self { op, datatype, kind, operand, compare, result } = *self;
        assert!(op == AtomicOp::Read || operand.len() == len, "an operand for each element");
        assert!(kind != Kind::Compare || compare.len() == len, "a compare value for each element");
        assert!(kind == Kind::Plain || result.len() == len, "room for each value");
        let into = if kind == Kind::Plain { std::ptr::null_mut() } else { result.as_ptr() };
        let count = len / datatype.size();
        // SAFETY: the caller vouches for the target; the segments are lent to this operation and as long, as was just checked.
        unsafe { execute(op, datatype, target, operand.as_ptr(), compare.as_ptr(), into, count) }
    }
}

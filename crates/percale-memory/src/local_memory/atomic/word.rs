//! The most common atomic operations, in the fewest instructions. They are an addition to one 64-bit word and a
//! compare-and-swap of it, and return the previous value.

#![expect(unsafe_code, reason = "reads and writes operands that were lent; each block states its own reason")]

use super::element::AtomicElement;
use super::{AtomicKind, AtomicOp, DirectOperation, Misaligned};
use crate::local_memory::access::Access;
use crate::local_memory::atomic::KindExt as _;
use crate::local_memory::volatile::Segment;

/// An operation on an aligned word of 64 bits.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    operand: u64,
    compare: Option<u64>,
    result: Segment,
}

impl Word {
    /// The length of the word in bytes.
    pub const LEN: usize = 8;

    /// Creates an addition, or a compare-and-swap if `compare` is given. The segments are lent until the operation is
    /// done. Returns `None` if one of them does not have the length of a word.
    #[inline(always)]
    pub fn new(operand: Segment, compare: Option<Segment>, result: Segment) -> Option<Self> {
        if result.len() != Self::LEN {
            return None;
        }
        let compare = match compare {
            Some(compare) => Some(value(compare)?),
            None => None,
        };
        Some(Self { operand: value(operand)?, compare, result })
    }
}

impl DirectOperation for Word {
    #[inline(always)]
    fn len(&self) -> usize {
        Self::LEN
    }

    #[inline(always)]
    fn rights(&self) -> Access {
        AtomicKind::Fetch.rights(AtomicOp::Sum)
    }

    #[inline(always)]
    unsafe fn apply(&self, target: *mut u8) -> Result<(), Misaligned> {
        let target = target.cast::<u64>();
        if !target.is_aligned() {
            return Err(Misaligned);
        }
        // SAFETY: guaranteed by the caller; the address is aligned.
        let cell = unsafe { u64::cell(target) };
        let before = match self.compare {
            None => u64::sum(cell, self.operand),
            Some(compare) => u64::compare_swap(cell, self.operand, compare),
        };
        // SAFETY: the segment has this length, and was lent to this operation for writing.
        unsafe { self.result.as_ptr().cast::<u64>().write_unaligned(before) };
        Ok(())
    }
}

/// Returns the value of an operand of one word.
#[inline(always)]
fn value(operand: Segment) -> Option<u64> {
    // SAFETY: the segment has this length, and was lent to this operation for reading.
    (operand.len() == Word::LEN).then(|| unsafe { operand.as_ptr().cast::<u64>().read_unaligned() })
}

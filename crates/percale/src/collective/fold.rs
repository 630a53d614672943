//! Combines arrays of elements, in chunks.

use crate::local_memory::atomic::{AtomicOp, Datatype, fold as combine};
use crate::local_memory::volatile::{Segment, SegmentExt as _, View, ViewExt as _};

/// The number of bytes that are combined at a time.
pub(crate) const CHUNK: usize = 4096;

/// The maximum number of bytes that are combined in buffers on the stack.
const FEW: usize = 64;

/// The size of the largest element, in bytes.
const WORD: usize = 8;

/// Buffers for the two chunks that are combined.
#[derive(Debug)]
pub(crate) struct Chunks([[u8; CHUNK]; 2]);

impl Default for Chunks {
    fn default() -> Self {
        Self([[0; CHUNK]; 2])
    }
}

/// Combines `ours` with `theirs` in pieces that fit in the first-level cache.
#[inline]
pub(crate) fn fold(
    result: Segment,
    ours: Segment,
    theirs: Segment,
    theirs_first: bool,
    (op, datatype): (AtomicOp, Datatype),
    chunks: &mut Option<Box<Chunks>>,
) {
    let (first, second) = if theirs_first { (theirs, ours) } else { (ours, theirs) };
    // The most frequent length is a constant here, so that the copies need no further checks.
    if ours.len() == WORD && theirs.len() == WORD {
        let (mut left, mut right) = ([0; WORD], [0; WORD]);
        first.copy_to(&mut left);
        second.copy_to(&mut right);
        combine(op, datatype, &mut left, &right);
        View::of(&left).copy_to_one(result);
        return;
    }
    if ours.len() <= FEW {
        let (mut left, mut right) = ([0; FEW], [0; FEW]);
        return fold_piece((first, second, result), (op, datatype), (&mut left, &mut right));
    }
    let Chunks([left, right]) = &mut **chunks.get_or_insert_default();
    let mut at = 0;
    while at < ours.len() {
        let len = CHUNK.min(ours.len() - at);
        let of = |segment: Segment| segment.slice(at, len);
        fold_piece((of(first), of(second), of(result)), (op, datatype), (left, right));
        at += len;
    }
}

/// Combines pieces that fit into `left` and `right`.
#[inline]
fn fold_piece(
    (first, second, result): (Segment, Segment, Segment),
    (op, datatype): (AtomicOp, Datatype),
    (left, right): (&mut [u8], &mut [u8]),
) {
    let len = first.len().min(second.len());
    let (left, right) = (&mut left[..len], &mut right[..len]);
    first.copy_to(left);
    second.copy_to(right);
    combine(op, datatype, left, right);
    View::of(left).copy_to_one(result);
}

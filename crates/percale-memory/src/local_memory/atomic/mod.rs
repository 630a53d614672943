//! Atomic operations on memory that peers and threads of this process may access at the same time. They are the
//! operations of fi_atomic(3), on integer and floating-point types of up to 8 bytes.
//!
//! * [`Datatype`] and [`AtomicOp`] are the type of an element and the operation on it. [`is_valid`] returns whether a
//!   combination is valid.
//! * `execute` executes the operation on the elements of an array, one by one. It is called by initiators with direct
//!   access, by targets that execute operations for their peers, and by the threads of the target. Their operations are
//!   atomic with respect to each other, because all use the same instructions.
//! * `request` is a checked operation with its operands. `word` contains the most common operations on one word.
//! * `fold` does the same arithmetic on values that no other thread accesses, many at a time, for collectives.
//! * `element` implements the operations for each type, with one instruction if processors have one, otherwise with a
//!   compare-exchange loop of the element's width.
//!
//! # Semantics
//! In the following, `t` is the old value at the target, `o` the operand and `c` the compare operand. A fetching
//! operation returns `t`.
//! * `min`, `max`, `sum`, `prod`: integers wrap at their width. Floats follow IEEE 754, rounded to nearest. With `min`
//!   and `max` the result for a number and a NaN is the number, as in [`f64::min`] (the code in the manual, `if (o <
//!   t)`, would keep a NaN that is at the target). If both are zeros, the result is `t`.
//! * `lor`, `land`, `lxor`: 1 or 0. A value that is not equal to zero is true (so a NaN is true and a negative zero is
//!   false).
//! * `bor`, `band`, `bxor`, and `mswap`, which is `(o & c) | (t & !c)`: integers only.
//! * `cswap` writes `o` if `c == t`. `cswap_ne`, `_le`, `_lt`, `_ge` and `_gt` write it if `c != t`, `c <= t` and so
//!   on, in this order of the operands. All of these compare floats as values: `-0.0 == 0.0`, and a NaN is not equal to
//!   anything.
//! * `read` returns `t`. `write` writes `o`, and a fetching `write` returns `t` (a swap).
//!
//! # Order
//! The operation on each element is sequentially consistent. An operation on an array is not atomic as a whole: other
//! threads may read the new values of some elements and the old values of others.

mod datatype;
mod element;
mod execute;
mod fold;
mod op;
mod request;
mod word;

pub use datatype::Datatype;
pub use execute::Misaligned;
pub use execute::execute;
pub use fold::fold;
pub use op::{AtomicKind, AtomicOp, KindExt};
pub use request::{AtomicRequest, DirectOperation, KindWireExt, Operands};
pub use word::Word;

/// Returns whether atomic operations of this kind can apply `op` to elements of `datatype`, like fi_atomicvalid,
/// fi_fetch_atomicvalid and fi_compare_atomicvalid (fi_atomic(3)).
#[must_use]
#[inline]
pub const fn is_valid(kind: AtomicKind, op: AtomicOp, datatype: Datatype) -> bool {
    if op.is_bitwise() && datatype.is_float() {
        return false;
    }
    match kind {
        AtomicKind::Plain => !op.compares() && !matches!(op, AtomicOp::Read),
        AtomicKind::Fetch => !op.compares(),
        AtomicKind::Compare => op.compares(),
    }
}

#[cfg(all(test, not(loom)))]
mod hammer_tests;
#[cfg(all(test, not(loom)))]
mod tests;

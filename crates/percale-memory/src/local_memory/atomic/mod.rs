//! Atomic operations on memory that peers and this process's threads may touch at the same time: what fi_atomic(3)
//! has, in its integer and floating-point types of up to 8 bytes.
//!
//! * [`Datatype`] and [`AtomicOp`] name the type of an element and the operation on it; [`is_valid`] returns which
//!   combinations are valid.
//! * `execute` performs the operation on the elements of an array, one by one. An initiator with direct access and a target that
//!   executes for its peers both call it, and so do the threads of the target: their operations are atomic to each
//!   other, since all use the same instructions.
//! * `request` is an operation with its operands, checked; `word` the commonest ones, on one word.
//! * `fold` does the same arithmetic on values that no other thread accesses, many at a time: for collectives.
//! * `element` is what they need of each type: one instruction where processors have one, else a compare-exchange loop
//!   of the element's width.
//!
//! # Meaning
//! Written for the old value `t` at the target, operand `o` and compare operand `c`; a fetching operation returns `t`.
//! * `min`, `max`, `sum`, `prod`: integers wrap at their width. Floats follow IEEE 754, rounded to nearest; with
//!   `min` and `max` a NaN loses against a number, as in [`f64::min`] (the manual's sketch, `if (o < t)`, would keep a
//!   NaN that is at the target), and of two equal zeros `t` stays.
//! * `lor`, `land`, `lxor`: 1 or 0. True is what is not equal to zero (so a NaN is true and a negative zero false).
//! * `bor`, `band`, `bxor`, and `mswap`, which is `(o & c) | (t & !c)`: integers only.
//! * `cswap`: writes `o` if `c == t`; `cswap_ne`, `_le`, `_lt`, `_ge` and `_gt` if `c != t`, `c <= t` and so on, in
//!   this order of the two. All compare floats as values: `-0.0 == 0.0`, and a NaN is unequal to everything.
//! * `read` returns `t`; `write` writes `o`, and returns `t` where fetched (a swap).
//!
//! # Order
//! Each element's operation is sequentially consistent. An array is not one atomic operation: others may see some
//! elements done and others not.

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
pub use op::{AtomicOp, Kind, KindExt};
pub use request::{KindWireExt, Operands, Operation, Request};
pub use word::Word;

/// Whether atomic operations of this kind can do `op` to elements of `datatype`: what fi_atomicvalid,
/// fi_fetch_atomicvalid and fi_compare_atomicvalid ask (fi_atomic(3)).
#[must_use]
#[inline]
pub const fn is_valid(kind: Kind, op: AtomicOp, datatype: Datatype) -> bool {
    if op.is_bitwise() && datatype.is_float() {
        return false;
    }
    match kind {
        Kind::Plain => !op.compares() && !matches!(op, AtomicOp::Read),
        Kind::Fetch => !op.compares(),
        Kind::Compare => op.compares(),
    }
}

#[cfg(all(test, not(loom)))]
mod hammer_tests;
#[cfg(all(test, not(loom)))]
mod tests;

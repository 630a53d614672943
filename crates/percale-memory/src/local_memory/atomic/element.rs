//! The operations on each element type that the execution of atomic operations needs.
//!
//! An integer operation that the standard library provides is compiled to one instruction, or to the best loop for the
//! processor (AArch64 has instructions for minimum and maximum, x86-64 does not). Each other operation is a loop that
//! reads, computes, and writes if the value has not changed in the meantime. Floats are handled as bit patterns. Their
//! reads and swaps are single instructions. All their other operations use the loop, which compares bits, so it
//! distinguishes all NaNs and both zeros.

#![expect(unsafe_code, reason = "atomics in memory that is given by address; each block states its own reason")]

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The type of an element. Operations on a cell return the cell's previous value.
pub(super) trait AtomicElement: Copy + PartialOrd + FromBytes + IntoBytes + Immutable + KnownLayout {
    /// The atomic type with the element's size, alignment and bits.
    type Cell;

    /// Returns the element at that address.
    ///
    /// # Safety
    /// The address is a multiple of the element's size. For `'a` the memory is mapped and writable, and all other
    /// accesses to it are atomic.
    unsafe fn cell<'a>(address: *mut Self) -> &'a Self::Cell;

    fn load(cell: &Self::Cell) -> Self;
    fn swap(cell: &Self::Cell, new: Self) -> Self;
    fn sum(cell: &Self::Cell, operand: Self) -> Self;
    fn min(cell: &Self::Cell, operand: Self) -> Self;
    fn max(cell: &Self::Cell, operand: Self) -> Self;
    fn or(cell: &Self::Cell, operand: Self) -> Self;
    fn and(cell: &Self::Cell, operand: Self) -> Self;
    fn xor(cell: &Self::Cell, operand: Self) -> Self;
    /// Writes `new` if the cell equals `compare`.
    fn compare_swap(cell: &Self::Cell, new: Self, compare: Self) -> Self;
    /// Writes the result of `next` for the value, unless the result is `None`. `next` may be called several times.
    fn update(cell: &Self::Cell, next: impl Fn(Self) -> Option<Self>) -> Self;

    fn plus(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    /// Returns whether `other` is the minimum of the two values.
    fn yields_below(self, other: Self) -> bool;
    /// Returns whether `other` is the maximum of the two values.
    fn yields_above(self, other: Self) -> bool;
    fn ored(self, other: Self) -> Self;
    fn anded(self, other: Self) -> Self;
    fn xored(self, other: Self) -> Self;
    /// Returns the bits of `new` where `mask` has ones, and of this value elsewhere.
    fn masked(self, new: Self, mask: Self) -> Self;
    fn is_true(self) -> bool;
    fn truth(is_true: bool) -> Self;
}

/// The loop of [`AtomicElement::update`], on bits.
macro_rules! update {
    ($cell:ident, $next:ident, $from:expr, $to:expr) => {{
        let mut bits = $cell.load(SeqCst);
        loop {
            let old = $from(bits);
            let Some(new) = $next(old) else { return old };
            match $cell.compare_exchange_weak(bits, $to(new), SeqCst, SeqCst) {
                Ok(_) => return old,
                Err(now) => bits = now,
            }
        }
    }};
}

macro_rules! integer {
    ($type:ty, $cell:ty) => {
        impl AtomicElement for $type {
            type Cell = $cell;

            #[inline(always)]
            unsafe fn cell<'a>(address: *mut Self) -> &'a $cell {
                // SAFETY: the caller guarantees the same.
                unsafe { <$cell>::from_ptr(address) }
            }

            #[inline(always)]
            fn load(cell: &$cell) -> Self {
                cell.load(SeqCst)
            }

            #[inline(always)]
            fn swap(cell: &$cell, new: Self) -> Self {
                cell.swap(new, SeqCst)
            }

            #[inline(always)]
            fn sum(cell: &$cell, operand: Self) -> Self {
                cell.fetch_add(operand, SeqCst)
            }

            #[inline(always)]
            fn min(cell: &$cell, operand: Self) -> Self {
                cell.fetch_min(operand, SeqCst)
            }

            #[inline(always)]
            fn max(cell: &$cell, operand: Self) -> Self {
                cell.fetch_max(operand, SeqCst)
            }

            #[inline(always)]
            fn or(cell: &$cell, operand: Self) -> Self {
                cell.fetch_or(operand, SeqCst)
            }

            #[inline(always)]
            fn and(cell: &$cell, operand: Self) -> Self {
                cell.fetch_and(operand, SeqCst)
            }

            #[inline(always)]
            fn xor(cell: &$cell, operand: Self) -> Self {
                cell.fetch_xor(operand, SeqCst)
            }

            #[inline(always)]
            fn compare_swap(cell: &$cell, new: Self, compare: Self) -> Self {
                cell.compare_exchange(compare, new, SeqCst, SeqCst).unwrap_or_else(|old| old)
            }

            #[inline(always)]
            fn update(cell: &$cell, next: impl Fn(Self) -> Option<Self>) -> Self {
                update!(cell, next, std::convert::identity, std::convert::identity)
            }

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn yields_below(self, other: Self) -> bool {
                other < self
            }

            #[inline(always)]
            fn yields_above(self, other: Self) -> bool {
                other > self
            }

            #[inline(always)]
            fn ored(self, other: Self) -> Self {
                self | other
            }

            #[inline(always)]
            fn anded(self, other: Self) -> Self {
                self & other
            }

            #[inline(always)]
            fn xored(self, other: Self) -> Self {
                self ^ other
            }

            #[inline(always)]
            fn masked(self, new: Self, mask: Self) -> Self {
                (new & mask) | (self & !mask)
            }

            #[inline(always)]
            fn is_true(self) -> bool {
                self != 0
            }

            #[inline(always)]
            fn truth(is_true: bool) -> Self {
                is_true.into()
            }
        }
    };
}

/// Bitwise operations are invalid for floats ([`is_valid`](super::is_valid) rejects them). If they are executed
/// nevertheless, they operate on the bits.
macro_rules! float {
    ($type:ty, $bits:ty, $cell:ty) => {
        impl AtomicElement for $type {
            type Cell = $cell;

            #[inline(always)]
            unsafe fn cell<'a>(address: *mut Self) -> &'a $cell {
                // SAFETY: the caller guarantees the same; the bits have the float's size and alignment.
                unsafe { <$cell>::from_ptr(address.cast::<$bits>()) }
            }

            #[inline(always)]
            fn load(cell: &$cell) -> Self {
                <$type>::from_bits(cell.load(SeqCst))
            }

            #[inline(always)]
            fn swap(cell: &$cell, new: Self) -> Self {
                <$type>::from_bits(cell.swap(new.to_bits(), SeqCst))
            }

            #[inline(always)]
            fn sum(cell: &$cell, operand: Self) -> Self {
                Self::update(cell, |old| Some(old.plus(operand)))
            }

            #[inline(always)]
            fn min(cell: &$cell, operand: Self) -> Self {
                Self::update(cell, |old| old.yields_below(operand).then_some(operand))
            }

            #[inline(always)]
            fn max(cell: &$cell, operand: Self) -> Self {
                Self::update(cell, |old| old.yields_above(operand).then_some(operand))
            }

            #[inline(always)]
            fn or(cell: &$cell, operand: Self) -> Self {
                <$type>::from_bits(cell.fetch_or(operand.to_bits(), SeqCst))
            }

            #[inline(always)]
            fn and(cell: &$cell, operand: Self) -> Self {
                <$type>::from_bits(cell.fetch_and(operand.to_bits(), SeqCst))
            }

            #[inline(always)]
            fn xor(cell: &$cell, operand: Self) -> Self {
                <$type>::from_bits(cell.fetch_xor(operand.to_bits(), SeqCst))
            }

            #[inline(always)]
            fn compare_swap(cell: &$cell, new: Self, compare: Self) -> Self {
                Self::update(cell, |old| (compare == old).then_some(new))
            }

            #[inline(always)]
            fn update(cell: &$cell, next: impl Fn(Self) -> Option<Self>) -> Self {
                update!(cell, next, <$type>::from_bits, <$type>::to_bits)
            }

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self * other
            }

            #[inline(always)]
            fn yields_below(self, other: Self) -> bool {
                other < self || self.is_nan()
            }

            #[inline(always)]
            fn yields_above(self, other: Self) -> bool {
                other > self || self.is_nan()
            }

            #[inline(always)]
            fn ored(self, other: Self) -> Self {
                <$type>::from_bits(self.to_bits() | other.to_bits())
            }

            #[inline(always)]
            fn anded(self, other: Self) -> Self {
                <$type>::from_bits(self.to_bits() & other.to_bits())
            }

            #[inline(always)]
            fn xored(self, other: Self) -> Self {
                <$type>::from_bits(self.to_bits() ^ other.to_bits())
            }

            #[inline(always)]
            fn masked(self, new: Self, mask: Self) -> Self {
                let (old, new, mask) = (self.to_bits(), new.to_bits(), mask.to_bits());
                <$type>::from_bits((new & mask) | (old & !mask))
            }

            #[inline(always)]
            fn is_true(self) -> bool {
                self != 0.0
            }

            #[inline(always)]
            fn truth(is_true: bool) -> Self {
                is_true.into()
            }
        }
    };
}

integer!(i8, AtomicI8);
integer!(u8, AtomicU8);
integer!(i16, AtomicI16);
integer!(u16, AtomicU16);
integer!(i32, AtomicI32);
integer!(u32, AtomicU32);
integer!(i64, AtomicI64);
integer!(u64, AtomicU64);
float!(f32, u32, AtomicU32);
float!(f64, u64, AtomicU64);

//! Atomic operations on arrays.

#![expect(unsafe_code, reason = "memory that is given by address; each block states its own reason")]

use super::element::AtomicElement;
use super::{AtomicKind, AtomicOp, Datatype, is_valid};

/// The target of an atomic operation is not aligned to the size of its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the target of an atomic operation is not aligned to the size of its elements")]
#[non_exhaustive]
pub struct Misaligned;

impl Misaligned {
    /// Returns libfabric's positive code for this error: the address is an invalid argument.
    #[must_use]
    #[inline]
    pub fn errno(&self) -> i32 {
        libc::EINVAL
    }
}

/// Executes `op` on `count` elements starting at `target`, with the operands at the same positions of `operand` and
/// `compare`, and stores the previous values in `result`, unless that is null. A read does not use `operand`. Only
/// operations that [compare](AtomicOp::compares) use `compare`. The [module](super) defines the operations. The caller
/// has checked [`is_valid`].
///
/// # Errors
/// If the target is misaligned. In this case nothing was changed.
///
/// # Safety
/// Each pointer that is used is valid for `count` elements until this function returns: `target` for reads and writes,
/// `operand` and `compare` for reads, `result` for writes. During that time all other accesses to the target are
/// atomic, no other code writes the operands or accesses the result, and neither of them overlaps the target. The other
/// pointers may have any alignment. The result may be one of the two operands, but must not overlap it in part.
#[inline]
pub unsafe fn execute(
    op: AtomicOp,
    datatype: Datatype,
    target: *mut u8,
    operand: *const u8,
    compare: *const u8,
    result: *mut u8,
    count: usize,
) -> Result<(), Misaligned> {
    debug_assert!(
        [AtomicKind::Plain, AtomicKind::Fetch, AtomicKind::Compare]
            .into_iter()
            .any(|kind| is_valid(kind, op, datatype)),
        "{op} of {datatype}"
    );
    if target.addr() & (datatype.size() - 1) != 0 {
        return Err(Misaligned);
    }
    macro_rules! run {
        ($type:ty) => {{
            let (target, operand, compare) = (target.cast::<$type>(), operand.cast(), compare.cast());
            // Without a result, more operations are a single instruction.
            if result.is_null() {
                // SAFETY: the caller guarantees the memory; the alignment was checked; no result is written.
                unsafe { array::<$type, false>(op, target, operand, compare, result.cast(), count) }
            } else {
                // SAFETY: the caller guarantees the memory; the alignment was checked.
                unsafe { array::<$type, true>(op, target, operand, compare, result.cast(), count) }
            }
        }};
    }
    match datatype {
        Datatype::I8 => run!(i8),
        Datatype::U8 => run!(u8),
        Datatype::I16 => run!(i16),
        Datatype::U16 => run!(u16),
        Datatype::I32 => run!(i32),
        Datatype::U32 => run!(u32),
        Datatype::I64 => run!(i64),
        Datatype::U64 => run!(u64),
        Datatype::F32 => run!(f32),
        Datatype::F64 => run!(f64),
    }
    Ok(())
}

/// [`execute`] for one type. The operation is selected for each element: a predicted branch costs little compared with
/// a locked instruction, and a separate loop for each operation would be much more code.
///
/// # Safety
/// As for [`execute`]. In addition the target is aligned, and `FETCH` is set only if there is a result.
#[inline(never)]
unsafe fn array<T: AtomicElement, const FETCH: bool>(
    op: AtomicOp,
    target: *mut T,
    operand: *const T,
    compare: *const T,
    result: *mut T,
    count: usize,
) {
    for at in 0..count {
        // Additions of addresses wrap, which never happens within a valid array.
        let operand = || {
            // SAFETY: this operation has an operand of `count` elements, which no other code writes during the call.
            unsafe { operand.wrapping_add(at).read_unaligned() }
        };
        let compare = || {
            // SAFETY: this operation has a compare operand of `count` elements, which no other code writes during the
            // call.
            unsafe { compare.wrapping_add(at).read_unaligned() }
        };
        // SAFETY: the target is aligned, has `count` elements, and is accessed only by atomics.
        let cell = unsafe { T::cell(target.wrapping_add(at)) };
        let old = one::<T>(op, cell, operand, compare);
        if FETCH {
            // SAFETY: the result has `count` elements, which no other code accesses during the call.
            unsafe { result.wrapping_add(at).write_unaligned(old) };
        }
    }
}

/// Executes `op` on one cell, and returns its previous value. Reads only the operands that the operation has.
#[inline(always)]
fn one<T: AtomicElement>(op: AtomicOp, cell: &T::Cell, operand: impl Fn() -> T, compare: impl Fn() -> T) -> T {
    let truth = |f: fn(bool, bool) -> bool| {
        let o = operand().is_true();
        T::update(cell, |t| Some(T::truth(f(t.is_true(), o))))
    };
    let swap_if = |f: fn(T, T) -> bool| {
        let (o, c) = (operand(), compare());
        T::update(cell, |t| f(c, t).then_some(o))
    };
    match op {
        AtomicOp::Min => T::min(cell, operand()),
        AtomicOp::Max => T::max(cell, operand()),
        AtomicOp::Sum => T::sum(cell, operand()),
        AtomicOp::Prod => {
            let o = operand();
            T::update(cell, |t| Some(t.product(o)))
        }
        AtomicOp::Lor => truth(|t, o| t | o),
        AtomicOp::Land => truth(|t, o| t & o),
        AtomicOp::Lxor => truth(|t, o| t ^ o),
        AtomicOp::Bor => T::or(cell, operand()),
        AtomicOp::Band => T::and(cell, operand()),
        AtomicOp::Bxor => T::xor(cell, operand()),
        AtomicOp::Read => T::load(cell),
        AtomicOp::Write => T::swap(cell, operand()),
        AtomicOp::Cswap => T::compare_swap(cell, operand(), compare()),
        AtomicOp::CswapNe => swap_if(|c, t| c != t),
        AtomicOp::CswapLe => swap_if(|c, t| c <= t),
        AtomicOp::CswapLt => swap_if(|c, t| c < t),
        AtomicOp::CswapGe => swap_if(|c, t| c >= t),
        AtomicOp::CswapGt => swap_if(|c, t| c > t),
        AtomicOp::Mswap => {
            let (o, c) = (operand(), compare());
            T::update(cell, |t| Some(t.masked(o, c)))
        }
    }
}

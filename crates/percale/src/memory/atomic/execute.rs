//! Atomic operations on arrays.

#![expect(unsafe_code, reason = "memory that is given by address; each block states its own reason")]

use super::element::Element;
use super::{AtomicOp, Datatype, Kind, is_valid};

/// The target of an atomic operation is not aligned to the size of its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the target of an atomic operation is not aligned to the size of its elements")]
pub struct Misaligned;

impl Misaligned {
    /// The code that libfabric has for this error (positive): the address is no valid argument.
    #[must_use]
    pub fn errno(&self) -> i32 {
        libc::EINVAL
    }
}

/// Does `op` to `count` elements from `target` on, with the operands at the same places of `operand` and `compare`, and
/// puts the values before into `result`, unless that is null. `operand` is not looked at for a read, `compare` only
/// where the operation [compares](AtomicOp::compares). The [module](super) says what operations mean. The caller has
/// asked [`is_valid`].
///
/// # Errors
/// The target is misaligned; nothing was done.
///
/// # Safety
/// Each pointer that is used is valid for `count` elements until this returns: `target` for reads and writes,
/// `operand` and `compare` for reads, `result` for writes. Whoever accesses the target meanwhile does so by atomics.
/// The others may have any alignment; nobody else writes them or reads the result meanwhile, and they do not overlap
/// the target. The result may be one of the two operands, but not overlap it in part.
#[inline]
pub(crate) unsafe fn execute(
    op: AtomicOp,
    datatype: Datatype,
    target: *mut u8,
    operand: *const u8,
    compare: *const u8,
    result: *mut u8,
    count: usize,
) -> Result<(), Misaligned> {
    debug_assert!(
        [Kind::Plain, Kind::Fetch, Kind::Compare].into_iter().any(|kind| is_valid(kind, op, datatype)),
        "{op} of {datatype}"
    );
    if target.addr() & (datatype.size() - 1) != 0 {
        return Err(Misaligned);
    }
    macro_rules! run {
        ($type:ty) => {{
            let array = Array::<$type> {
                target: target.cast(),
                operand: operand.cast(),
                compare: compare.cast(),
                result: result.cast(),
                count,
            };
            // Without a result the compiler has more instructions to choose from.
            if result.is_null() {
                // SAFETY: the caller promised the memory; the alignment was checked; no result is written.
                unsafe { array.run::<false>(op) }
            } else {
                // SAFETY: the caller promised the memory; the alignment was checked.
                unsafe { array.run::<true>(op) }
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

/// The memory of one call, with its type. Only `target` is aligned.
struct Array<T> {
    target: *mut T,
    operand: *const T,
    compare: *const T,
    result: *mut T,
    count: usize,
}

impl<T: Element> Array<T> {
    /// # Safety
    /// As for [`execute`], with the target aligned; `FETCH` only with a result.
    unsafe fn run<const FETCH: bool>(&self, op: AtomicOp) {
        /// One of the loops, over the whole array.
        macro_rules! each {
            ($loop:ident, $f:expr) => {
                // SAFETY: the caller's promise is the same.
                unsafe { self.$loop::<FETCH>($f) }
            };
        }
        match op {
            AtomicOp::Min => each!(with_operand, T::min),
            AtomicOp::Max => each!(with_operand, T::max),
            AtomicOp::Sum => each!(with_operand, T::sum),
            AtomicOp::Prod => each!(with_operand, |cell, o| T::update(cell, |t| Some(t.product(o)))),
            AtomicOp::Lor => each!(with_operand, |cell, o| logical(cell, o, |t, o| t | o)),
            AtomicOp::Land => each!(with_operand, |cell, o| logical(cell, o, |t, o| t & o)),
            AtomicOp::Lxor => each!(with_operand, |cell, o| logical(cell, o, |t, o| t ^ o)),
            AtomicOp::Bor => each!(with_operand, T::or),
            AtomicOp::Band => each!(with_operand, T::and),
            AtomicOp::Bxor => each!(with_operand, T::xor),
            AtomicOp::Read => each!(alone, |cell, _| T::load(cell)),
            AtomicOp::Write => each!(with_operand, T::swap),
            AtomicOp::Cswap => each!(with_both, T::compare_swap),
            AtomicOp::CswapNe => each!(with_both, |cell, o, c| T::update(cell, |t| (c != t).then_some(o))),
            AtomicOp::CswapLe => each!(with_both, |cell, o, c| T::update(cell, |t| (c <= t).then_some(o))),
            AtomicOp::CswapLt => each!(with_both, |cell, o, c| T::update(cell, |t| (c < t).then_some(o))),
            AtomicOp::CswapGe => each!(with_both, |cell, o, c| T::update(cell, |t| (c >= t).then_some(o))),
            AtomicOp::CswapGt => each!(with_both, |cell, o, c| T::update(cell, |t| (c > t).then_some(o))),
            AtomicOp::Mswap => each!(with_both, |cell, o, c| T::update(cell, |t| Some(t.masked(o, c)))),
        }
    }

    /// Does `f` to each cell; it is told the element's number.
    ///
    /// # Safety
    /// As for [`run`](Self::run).
    #[inline(always)]
    unsafe fn alone<const FETCH: bool>(&self, f: impl Fn(&T::Cell, usize) -> T) {
        for at in 0..self.count {
            // SAFETY: the target is aligned, has `count` elements, and is accessed by atomics alone. Wrapping, since
            // the elements of a valid array never do.
            let cell = unsafe { T::cell(self.target.wrapping_add(at)) };
            let old = f(cell, at);
            if FETCH {
                // SAFETY: the result has `count` elements and nobody else has it.
                unsafe { self.result.wrapping_add(at).write_unaligned(old) };
            }
        }
    }

    /// Does `f` to each cell and its operand.
    ///
    /// # Safety
    /// As for [`run`](Self::run).
    #[inline(always)]
    unsafe fn with_operand<const FETCH: bool>(&self, f: impl Fn(&T::Cell, T) -> T) {
        let apply = |cell: &T::Cell, at| {
            // SAFETY: the operand has `count` elements that nobody writes.
            let operand = unsafe { self.operand.wrapping_add(at).read_unaligned() };
            f(cell, operand)
        };
        // SAFETY: the caller's promise is the same.
        unsafe { self.alone::<FETCH>(apply) }
    }

    /// Does `f` to each cell, its operand and its compare operand.
    ///
    /// # Safety
    /// As for [`run`](Self::run).
    #[inline(always)]
    unsafe fn with_both<const FETCH: bool>(&self, f: impl Fn(&T::Cell, T, T) -> T) {
        let apply = |cell: &T::Cell, at| {
            // SAFETY: the operand has `count` elements that nobody writes.
            let operand = unsafe { self.operand.wrapping_add(at).read_unaligned() };
            // SAFETY: so has the compare operand.
            let compare = unsafe { self.compare.wrapping_add(at).read_unaligned() };
            f(cell, operand, compare)
        };
        // SAFETY: the caller's promise is the same.
        unsafe { self.alone::<FETCH>(apply) }
    }
}

/// Replaces a cell's value by the truth of it and the operand.
#[inline(always)]
fn logical<T: Element>(cell: &T::Cell, operand: T, f: impl Fn(bool, bool) -> bool) -> T {
    T::update(cell, |old| Some(T::truth(f(old.is_true(), operand.is_true()))))
}

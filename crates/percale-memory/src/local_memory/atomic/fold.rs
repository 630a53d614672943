//! Combines arrays of values that no other thread accesses. The arithmetic is that of atomic operations, but without
//! atomics, in loops that the compiler can vectorize.

use zerocopy::{FromBytes, Unalign};

use super::element::AtomicElement;
use super::{AtomicOp, Datatype};

/// Combines each element of `first` (the target of an atomic operation) with the same element of `second` (its
/// operand), and stores the result in `first`. Both have the same length, a multiple of the element size. Operations
/// that do not combine leave `first` unchanged.
pub fn fold(op: AtomicOp, datatype: Datatype, first: &mut [u8], second: &[u8]) {
    match datatype {
        Datatype::I8 => array::<i8>(op, first, second),
        Datatype::U8 => array::<u8>(op, first, second),
        Datatype::I16 => array::<i16>(op, first, second),
        Datatype::U16 => array::<u16>(op, first, second),
        Datatype::I32 => array::<i32>(op, first, second),
        Datatype::U32 => array::<u32>(op, first, second),
        Datatype::I64 => array::<i64>(op, first, second),
        Datatype::U64 => array::<u64>(op, first, second),
        Datatype::F32 => array::<f32>(op, first, second),
        Datatype::F64 => array::<f64>(op, first, second),
    }
}

fn array<T: AtomicElement>(op: AtomicOp, first: &mut [u8], second: &[u8]) {
    let truth = |f: fn(bool, bool) -> bool| move |t: T, o: T| T::truth(f(t.is_true(), o.is_true()));
    match op {
        AtomicOp::Min => each(first, second, |t: T, o| if t.yields_below(o) { o } else { t }),
        AtomicOp::Max => each(first, second, |t: T, o| if t.yields_above(o) { o } else { t }),
        AtomicOp::Sum => each(first, second, T::plus),
        AtomicOp::Prod => each(first, second, T::product),
        AtomicOp::Lor => each(first, second, truth(|t, o| t | o)),
        AtomicOp::Land => each(first, second, truth(|t, o| t & o)),
        AtomicOp::Lxor => each(first, second, truth(|t, o| t ^ o)),
        AtomicOp::Bor => each(first, second, T::ored),
        AtomicOp::Band => each(first, second, T::anded),
        AtomicOp::Bxor => each(first, second, T::xored),
        _ => {}
    }
}

#[inline(always)]
fn each<T: AtomicElement>(first: &mut [u8], second: &[u8], f: impl Fn(T, T) -> T) {
    let (Ok(first), Ok(second)) = (<[Unalign<T>]>::mut_from_bytes(first), <[Unalign<T>]>::ref_from_bytes(second))
    else {
        return;
    };
    for (t, o) in first.iter_mut().zip(second) {
        t.set(f(t.get(), o.get()));
    }
}

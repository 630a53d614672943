//! The client's local memory in operations.

use std::ffi::c_void;

use percale::{Segment, Segments};

/// Returns one piece of memory.
///
/// # Safety
/// The requirements of [`Segment::new`] apply.
#[inline(always)]
pub(super) unsafe fn piece(buf: *const c_void, len: usize) -> Segment {
    // SAFETY: the caller upholds the same contract.
    unsafe { Segment::new(buf.cast_mut().cast(), len) }
}

/// Returns one piece as the complete memory of an operation.
///
/// # Safety
/// The requirements of [`Segment::new`] apply.
#[inline(always)]
pub(super) unsafe fn one(buf: *const c_void, len: usize) -> Segments {
    // SAFETY: the caller upholds the same contract.
    Segments::one(unsafe { piece(buf, len) })
}

/// Returns several pieces. Returns -FI_EINVAL if the list is null, if it has more pieces than percale supports, or if
/// the sum of the lengths overflows.
///
/// # Safety
/// `iov` is null or readable for `count` pieces, each of which meets the requirements of [`Segment::new`].
#[inline]
pub(super) unsafe fn several(iov: *const libc::iovec, count: usize) -> Result<Segments, isize> {
    if iov.is_null() && count != 0 {
        return Err(-(libc::EINVAL as isize));
    }
    if count == 1 {
        // SAFETY: there is one piece.
        let only = unsafe { iov.read() };
        // SAFETY: the caller upholds the same contract.
        return Ok(unsafe { one(only.iov_base, only.iov_len) });
    }
    let mut pieces = [Segment::EMPTY; percale::memory::volatile::IOV_LIMIT];
    let Some(pieces) = pieces.get_mut(..count) else { return Err(-(libc::EINVAL as isize)) };
    for (at, place) in pieces.iter_mut().enumerate() {
        // SAFETY: `at` is less than `count`.
        let given = unsafe { iov.add(at).read() };
        // SAFETY: the caller upholds the same contract.
        *place = unsafe { Segment::new(given.iov_base.cast(), given.iov_len) };
    }
    Segments::new(pieces).ok_or(-(libc::EINVAL as isize))
}

/// Converts a context to percale's form. A completion converts it back to a pointer.
#[inline]
pub(super) fn context(context: *mut c_void) -> u64 {
    context.expose_provenance() as u64
}

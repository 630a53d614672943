//! Memory of the client, as operations use it.

use std::ffi::c_void;

use percale::{Segment, Segments};

/// One piece.
///
/// # Safety
/// As of [`Segment::new`].
#[inline(always)]
pub(super) unsafe fn piece(buf: *const c_void, len: usize) -> Segment {
    // SAFETY: passed on.
    unsafe { Segment::new(buf.cast_mut().cast(), len) }
}

/// One piece, as all of an operation's memory.
///
/// # Safety
/// As of [`Segment::new`].
#[inline(always)]
pub(super) unsafe fn one(buf: *const c_void, len: usize) -> Segments {
    // SAFETY: passed on.
    Segments::one(unsafe { piece(buf, len) })
}

/// Returns several pieces; -FI_EINVAL if the list is missing, if it has more pieces than percale takes, or if their lengths overflow.
///
/// # Safety
/// `iov` is null, or readable for `count` pieces, each as of [`Segment::new`].
#[inline]
pub(super) unsafe fn several(iov: *const libc::iovec, count: usize) -> Result<Segments, isize> {
    if iov.is_null() && count != 0 {
        return Err(-(libc::EINVAL as isize));
    }
    if count == 1 {
        // SAFETY: one piece.
        let only = unsafe { iov.read() };
        // SAFETY: passed on.
        return Ok(unsafe { one(only.iov_base, only.iov_len) });
    }
    let mut pieces = [Segment::EMPTY; percale::memory::volatile::IOV_LIMIT];
    let Some(pieces) = pieces.get_mut(..count) else { return Err(-(libc::EINVAL as isize)) };
    for (at, place) in pieces.iter_mut().enumerate() {
        // SAFETY: `at` is less than `count`.
        let given = unsafe { iov.add(at).read() };
        // SAFETY: passed on.
        *place = unsafe { Segment::new(given.iov_base.cast(), given.iov_len) };
    }
    Segments::new(pieces).ok_or(-(libc::EINVAL as isize))
}

/// A context as percale keeps it. It comes back as a pointer in a completion.
#[inline]
pub(super) fn context(context: *mut c_void) -> u64 {
    context.expose_provenance() as u64
}

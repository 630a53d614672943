//! Structures of libibverbs as a program gets them: by pointer, and with errno.

use std::ffi::c_int;
use std::ptr::null_mut;

/// A structure of libibverbs', all zero.
pub(super) fn zeroed<T>() -> Box<T> {
    // SAFETY: the structures are of integers, pointers, and functions that may be missing: zero is a value of each.
    Box::new(unsafe { std::mem::zeroed() })
}

/// Returns the result of a call that returns a pointer: null and errno if it fails.
pub(super) fn given<T>(result: Result<Box<T>, c_int>) -> *mut T {
    match result {
        Ok(object) => Box::into_raw(object),
        Err(errno) => {
            set_errno(errno);
            null_mut()
        }
    }
}

pub(super) fn set_errno(errno: c_int) {
    // SAFETY: the call has no conditions.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the place is this thread's.
    unsafe { *place = errno };
}

/// The errno of a result.
pub(super) fn errno(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(0)
}

/// Reads an object that a program names.
///
/// # Safety
/// It is alive, as the library's user promises.
pub(super) unsafe fn of<'a, T>(ptr: *const T) -> &'a T {
    // SAFETY: passed on.
    unsafe { &*ptr }
}

/// Frees an object of this library, if it was destroyed.
///
/// # Safety
/// It was returned by [`given`], and the user names it no more.
pub(super) unsafe fn freed<T>(ptr: *mut T, result: Result<(), c_int>) -> c_int {
    if result.is_ok() {
        // SAFETY: passed on.
        drop(unsafe { Box::from_raw(ptr) });
    }
    errno(result)
}

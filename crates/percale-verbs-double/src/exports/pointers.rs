//! Structures of libibverbs as programs use them, with pointers and errno.

use std::ffi::c_int;
use std::ptr::null_mut;

/// Returns an all-zero structure of libibverbs.
pub(super) fn zeroed<T>() -> Box<T> {
    // SAFETY: the structures contain integers, pointers, and optional functions. Zero is valid for each of them.
    Box::new(unsafe { std::mem::zeroed() })
}

/// Returns the result of a call that returns a pointer. If the call failed, sets errno and returns null.
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
    // SAFETY: the call has no preconditions.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the address is that of this thread's errno.
    unsafe { *place = errno };
}

/// Returns the errno of a result.
pub(super) fn errno(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(0)
}

/// Returns a reference to an object of the program.
///
/// # Safety
/// The object is alive, which the program guarantees.
pub(super) unsafe fn of<'a, T>(ptr: *const T) -> &'a T {
    // SAFETY: guaranteed by the caller.
    unsafe { &*ptr }
}

/// Frees an object of this library, if it was destroyed.
///
/// # Safety
/// The object was returned by [`given`], and the program no longer uses it.
pub(super) unsafe fn freed<T>(ptr: *mut T, result: Result<(), c_int>) -> c_int {
    if result.is_ok() {
        // SAFETY: guaranteed by the caller.
        drop(unsafe { Box::from_raw(ptr) });
    }
    errno(result)
}

//! Commands of fi_control(3) for objects on which threads can wait.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::abi::{FI_GETWAIT, FI_GETWAITOBJ, FI_WAIT_FD, FI_WAIT_NONE, FI_WAIT_SET, FI_WAIT_UNSPEC, FI_WAIT_YIELD};
use crate::log;

/// Returns the kind of wait object for a queue or counter that `call` opens with the wait object `wait`.
///
/// # Errors
/// Returns the negative error code if this kind is not supported.
pub(crate) fn object(call: &str, subsystem: u32, wait: u32) -> Result<u32, c_int> {
    match wait {
        FI_WAIT_UNSPEC => Ok(FI_WAIT_FD),
        FI_WAIT_NONE | FI_WAIT_FD | FI_WAIT_SET | FI_WAIT_YIELD => Ok(wait),
        other => {
            log::warning!(
                subsystem,
                "{call}: wait object {other} is not supported (FI_WAIT_NONE, UNSPEC, FD, SET and YIELD are)"
            );
            Err(-libc::ENOSYS)
        }
    }
}

/// Executes a command on a queue, counter or set that was opened with this kind of wait object.
///
/// # Safety
/// `argument` points to a writable location for the result of the command, as fi_control(3) requires.
pub(crate) unsafe fn control<'a>(
    wait: u32,
    descriptor: impl FnOnce() -> io::Result<BorrowedFd<'a>>,
    command: c_int,
    argument: *mut c_void,
) -> c_int {
    match command {
        FI_GETWAIT if wait == FI_WAIT_FD => match descriptor() {
            Ok(descriptor) => {
                // SAFETY: the argument of FI_GETWAIT is a location for the descriptor.
                unsafe { argument.cast::<c_int>().write(descriptor.as_raw_fd()) };
                0
            }
            Err(error) => -percale::error_number(&error),
        },
        FI_GETWAITOBJ => {
            // SAFETY: the argument of FI_GETWAITOBJ is a location for the kind.
            unsafe { argument.cast::<u32>().write(wait) };
            0
        }
        FI_GETWAIT => -libc::ENODATA,
        _ => -libc::ENOSYS,
    }
}

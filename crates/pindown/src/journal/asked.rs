//! Whether a userfaultfd has changes that have not been read: asked at each look-up of a cache that is watched by one.

#![expect(unsafe_code, reason = "one ioctl, too frequent for a wrapper; the block states its own reason")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{Ordering, fence};

use rustix::ioctl::{Opcode, opcode};

/// `struct uffdio_range`: addresses.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct UffdioRange {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

/// `struct uffdio_writeprotect`: addresses, and whether they become write-protected.
#[repr(C)]
#[derive(Default)]
pub(crate) struct UffdioWriteprotect {
    pub(crate) range: UffdioRange,
    pub(crate) mode: u64,
}

/// UFFDIO_WRITEPROTECT.
pub(crate) const WRITEPROTECT: Opcode = opcode::read_write::<UffdioWriteprotect>(0xAA, 6);

/// The kernel's answer about changes that have not been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// There is none.
    Settled,
    /// One is under way.
    Changing,
    /// The descriptor is not a userfaultfd: the program has closed it.
    Closed,
}

/// Asks the kernel whether a change is under way that has not been read: the kernel counts a change before the mapping
/// is removed, and meanwhile answers EAGAIN to any write-protection request. Otherwise it answers EINVAL to a request
/// for an empty range. Allocates nothing.
#[inline]
pub(crate) fn ask(uffd: BorrowedFd<'_>) -> Asked {
    let argument = UffdioWriteprotect::default();
    // SAFETY: the opcode is UFFDIO_WRITEPROTECT, which takes this structure; a range of no length is refused.
    let answer = unsafe { libc::ioctl(uffd.as_raw_fd(), WRITEPROTECT as libc::c_ulong, &raw const argument) };
    let errno = io::Error::last_os_error().raw_os_error();
    // What is read from here on is not read before the kernel answered.
    fence(Ordering::Acquire);
    match errno {
        Some(libc::EINVAL) if answer != 0 => Asked::Settled,
        Some(libc::EBADF | libc::ENOTTY) if answer != 0 => Asked::Closed,
        _ => Asked::Changing,
    }
}

//! Queries whether a userfaultfd has unread changes. A cache that is watched by a userfaultfd does this at each
//! look-up.

#![expect(unsafe_code, reason = "one ioctl call, too frequent for a wrapper; the block states its own reason")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{Ordering, fence};

use rustix::ioctl::{Opcode, opcode};

/// `struct uffdio_range`: a range of addresses.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct UffdioRange {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

/// `struct uffdio_writeprotect`: a range of addresses, and whether it becomes write-protected.
#[repr(C)]
#[derive(Default)]
pub(crate) struct UffdioWriteprotect {
    pub(crate) range: UffdioRange,
    pub(crate) mode: u64,
}

/// UFFDIO_WRITEPROTECT.
pub(crate) const WRITEPROTECT: Opcode = opcode::read_write::<UffdioWriteprotect>(0xAA, 6);

/// The result of a query for unread changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnreadChanges {
    /// There are no unread changes.
    Settled,
    /// A change is under way.
    Changing,
    /// The kernel cannot answer: the program has closed the descriptor, or the system denies the request.
    Closed,
}

/// Queries whether a change is under way that has not been read. The kernel counts a change before the mapping is
/// removed, and until the change is read it fails every write-protection request with EAGAIN. Otherwise it fails a
/// request for an empty range with EINVAL. Allocates no memory.
#[inline]
pub(crate) fn ask(uffd: BorrowedFd<'_>) -> UnreadChanges {
    let argument = UffdioWriteprotect::default();
    // SAFETY: the opcode is UFFDIO_WRITEPROTECT, which takes this structure; the kernel rejects a range of length 0.
    let answer = unsafe { libc::ioctl(uffd.as_raw_fd(), WRITEPROTECT as libc::c_ulong, &raw const argument) };
    let errno = io::Error::last_os_error().raw_os_error();
    // Later loads are not performed before the system call has returned.
    fence(Ordering::Acquire);
    match errno {
        Some(libc::EINVAL) if answer != 0 => UnreadChanges::Settled,
        Some(libc::EAGAIN) if answer != 0 => UnreadChanges::Changing,
        _ => UnreadChanges::Closed,
    }
}

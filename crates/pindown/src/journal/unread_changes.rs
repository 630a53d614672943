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
    Unanswered,
}

/// Queries whether a change is under way that has not been read. The kernel counts a change before the mapping is
/// removed, and until the change is read it fails every write-protection request with EAGAIN. Otherwise it fails a
/// request for an empty range with EINVAL. Allocates no memory.
#[inline]
pub(crate) fn ask(uffd: BorrowedFd<'_>) -> UnreadChanges {
    let argument = UffdioWriteprotect::default();
    // SAFETY: the opcode is UFFDIO_WRITEPROTECT, which takes this structure; the kernel rejects a range of length 0.
    let result = unsafe { libc::ioctl(uffd.as_raw_fd(), WRITEPROTECT as libc::c_ulong, &raw const argument) };
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    // Later loads are not performed before the system call has returned.
    fence(Ordering::Acquire);
    decide(result, errno)
}

/// Returns what the result of the system call means. `errno` is valid only if the result is -1. Only the two errors with
/// which a userfaultfd answers a request for an empty range are answers. After any other result, success included, it is
/// unknown whether there are changes. EINTR, with which a supervisor of system calls (seccomp_unotify(2)) may end one
/// call, is no denial: the caller asks again.
#[inline]
fn decide(result: libc::c_int, errno: libc::c_int) -> UnreadChanges {
    match (result, errno) {
        (-1, libc::EINVAL) => UnreadChanges::Settled,
        (-1, libc::EAGAIN | libc::EINTR) => UnreadChanges::Changing,
        _ => UnreadChanges::Unanswered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_two_errors_of_a_userfaultfd_are_answers() {
        assert_eq!(decide(-1, libc::EINVAL), UnreadChanges::Settled);
        for changing in [libc::EAGAIN, libc::EINTR] {
            assert_eq!(decide(-1, changing), UnreadChanges::Changing, "errno {changing}");
        }
        for denied in [libc::EBADF, libc::ENOTTY, libc::EPERM, libc::EACCES, libc::ENOSYS, libc::EFAULT, 0] {
            assert_eq!(decide(-1, denied), UnreadChanges::Unanswered, "errno {denied}");
        }
        // A call that succeeds leaves the errno of an earlier call.
        for (result, errno) in
            [0, 1, -2].into_iter().flat_map(|result| [0, libc::EINVAL, libc::EAGAIN].map(|errno| (result, errno)))
        {
            assert_eq!(decide(result, errno), UnreadChanges::Unanswered, "result {result}, errno {errno}");
        }
    }
}

//! The ioctl that a cache hit makes with the userfaultfd(2) monitor, measured alone.

#![expect(unsafe_code, reason = "userfaultfd(2) and its ioctls; each block states why it is sound")]

use std::hint::black_box;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::c_ulong;

/// UFFD_USER_MODE_ONLY.
const USER_MODE_ONLY: libc::c_int = 1;

/// `_IOWR(0xAA, 0x3F, struct uffdio_api)` and `_IOWR(0xAA, 6, struct uffdio_writeprotect)`, each of three words.
const UFFDIO_API: c_ulong = 0xC018_AA3F;
const UFFDIO_WRITEPROTECT: c_ulong = 0xC018_AA06;

/// A userfaultfd that monitors no memory.
pub(super) struct UserfaultfdProbe(OwnedFd);

impl UserfaultfdProbe {
    pub(super) fn new() -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: the call takes flags and returns a new descriptor.
        let made = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and has no other owner.
        let uffd = unsafe { OwnedFd::from_raw_fd(made as i32) };
        let mut api = [0xAA_u64, 0, 0];
        // SAFETY: the argument of the ioctl is a structure of these three words.
        if unsafe { libc::ioctl(uffd.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(uffd))
    }

    /// Requests write protection of an empty range, which the kernel rejects. pindown makes the same call.
    #[inline]
    pub(super) fn ask(&self) {
        let nothing = [0_u64; 3];
        // SAFETY: the argument of the ioctl is a structure of these three words, which the ioctl only reads. An empty
        // range is rejected.
        black_box(unsafe { libc::ioctl(self.0.as_raw_fd(), UFFDIO_WRITEPROTECT, nothing.as_ptr()) });
    }
}

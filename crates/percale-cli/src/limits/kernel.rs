//! Copies to and from the memory of another process, with one system call for each copy.

#![expect(
    unsafe_code,
    reason = "system calls that copy to and from another process; each block states why it is sound"
)]

use std::io;

/// Memory of another process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Foreign {
    /// The process that owns it.
    pub(crate) process: i32,
    /// The address of the first byte in that process.
    pub(crate) address: u64,
}

impl Foreign {
    /// Returns the description of `len` bytes, starting at byte `at`, for the kernel.
    const fn vector(self, at: usize, len: usize) -> libc::iovec {
        let base = std::ptr::without_provenance_mut(self.address as usize + at);
        libc::iovec { iov_base: base, iov_len: len }
    }

    /// Copies the bytes that start at `at` into `to` (process_vm_readv(2)).
    #[inline]
    pub(crate) fn read(self, at: usize, to: &mut [u8]) -> io::Result<()> {
        let (ours, theirs) =
            (libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() }, self.vector(at, to.len()));
        // SAFETY: the kernel writes only to `to`, which is an exclusive borrow. The kernel checks the other address.
        let count = unsafe { libc::process_vm_readv(self.process, &raw const ours, 1, &raw const theirs, 1, 0) };
        whole(count, to.len())
    }

    /// Copies `from` to the bytes that start at `at` (process_vm_writev(2)).
    #[inline]
    pub(crate) fn write(self, at: usize, from: &[u8]) -> io::Result<()> {
        let (ours, theirs) = (
            libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() },
            self.vector(at, from.len()),
        );
        // SAFETY: the kernel only reads `from`. It writes the buffer of the other process, which provides it for this
        // purpose and accesses it only with copies (see `shared`).
        let count = unsafe { libc::process_vm_writev(self.process, &raw const ours, 1, &raw const theirs, 1, 0) };
        whole(count, from.len())
    }
}

fn whole(count: isize, wanted: usize) -> io::Result<()> {
    match usize::try_from(count) {
        Ok(count) if count == wanted => Ok(()),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

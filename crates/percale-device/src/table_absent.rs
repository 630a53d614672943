//! Replaces `table` in a build without the feature `io-uring`. No table can be opened.

#![expect(unsafe_code, reason = "the signature of the function in builds with `io-uring`")]

use std::convert::Infallible;
use std::io;
use std::os::fd::BorrowedFd;

use pindown::{Access, Pinned, Range, Registrar};

use super::way::Way;

/// io_uring's table of fixed buffers. It is not available in this build, which lacks the feature `io-uring`.
#[derive(Clone, Debug)]
pub struct BufferTable(Infallible);

/// A slot in which memory is pinned. In this build no value of this type exists.
#[derive(Debug)]
pub struct Slot(Infallible);

impl BufferTable {
    /// Returns an error, because this build lacks the feature `io-uring`.
    ///
    /// # Errors
    /// Always fails with [`io::ErrorKind::Unsupported`]. The error names the missing feature.
    pub fn new(_slots: u32) -> io::Result<Self> {
        let why = "this build has no `io-uring` support: build with the feature `io-uring`";
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    }

    /// Returns the number of registrations since the table was opened.
    #[must_use]
    pub fn made(&self) -> u64 {
        match self.0 {}
    }

    /// Returns the current number of registrations.
    #[must_use]
    pub fn registered(&self) -> u32 {
        match self.0 {}
    }

    /// Moves bytes between memory and `other`, and waits until the transfer has ended.
    ///
    /// # Errors
    /// The kernel's error for either end of the transfer.
    ///
    /// # Safety
    /// The memory may be read or written until this function returns.
    pub unsafe fn transfer(&self, _: Option<u32>, _: Range, _: Way, _: BorrowedFd<'_>) -> io::Result<usize> {
        match self.0 {}
    }
}

impl Registrar for BufferTable {
    type Pin = Slot;

    fn pin(&self, _range: Range, _access: Access) -> io::Result<Pinned<Slot>> {
        match self.0 {}
    }

    fn unpin(&self, slot: Slot) {
        match slot.0 {}
    }
}

//! io_uring, one operation at a time.

#![expect(unsafe_code, reason = "submits operations to io_uring; each block states why it is sound")]

use std::io;

use io_uring::{IoUring, opcode, squeue, types};
use pindown::Range;
use rustix::fd::AsRawFd;
use rustix::fd::BorrowedFd;

/// A ring, with a table of fixed buffers.
pub(crate) struct Ring(IoUring);

/// Which way a fixed buffer's bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the pinned pages to a file (IORING_OP_WRITE_FIXED).
    ToFile,
    /// From a file to the pinned pages (IORING_OP_READ_FIXED).
    FromFile,
}

impl Ring {
    /// A ring with so many empty slots for fixed buffers.
    pub(crate) fn new(slots: u32) -> io::Result<Self> {
        let ring = IoUring::new(8)?;
        if slots > 0 {
            ring.submitter().register_buffers_sparse(slots)?;
        }
        Ok(Self(ring))
    }

    /// Pins memory in a slot, or lets it go.
    pub(crate) fn set_slot(&self, slot: u32, range: Option<Range>) -> io::Result<()> {
        let base = range.map_or(0, |range| range.start() as usize);
        let len = range.map_or(0, |range| range.len() as usize);
        let vector = [libc::iovec { iov_base: std::ptr::without_provenance_mut(base), iov_len: len }];
        // SAFETY: only `transfer` uses the slots, and only on memory that no value of this program lies in.
        unsafe { self.0.submitter().register_buffers_update(slot, &vector, None) }
    }

    /// Moves bytes between the start of `file` and the pages that are pinned in `slot`: those that lay at the addresses
    /// `range` when they were pinned.
    pub(crate) fn transfer(&mut self, slot: u32, range: Range, way: Way, file: BorrowedFd<'_>) -> io::Result<()> {
        let fd = types::Fd(file.as_raw_fd());
        let len = range.len() as u32;
        let mut moved = 0;
        // The kernel moves less at a time if somebody else wants the processor.
        while moved < len {
            let address = std::ptr::without_provenance_mut(range.start() as usize + moved as usize);
            let (at, left) = (u64::from(moved), len - moved);
            let now = self.submit(&match way {
                Way::ToFile => opcode::WriteFixed::new(fd, address, left, slot as u16).offset(at).build(),
                Way::FromFile => opcode::ReadFixed::new(fd, address, left, slot as u16).offset(at).build(),
            })?;
            if now == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            moved += now;
        }
        Ok(())
    }

    /// madvise(2) by the kernel's own worker thread.
    pub(crate) fn advise(&mut self, at: Range, advice: i32) -> io::Result<()> {
        let address = std::ptr::without_provenance(at.start() as usize);
        self.submit(&opcode::Madvise::new(address, at.len() as libc::off_t, advice).build()).map(drop)
    }

    /// fallocate(2) likewise.
    pub(crate) fn allocate(&mut self, file: BorrowedFd<'_>, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        let fd = types::Fd(file.as_raw_fd());
        self.submit(&opcode::Fallocate::new(fd, len).offset(offset).mode(mode).build()).map(drop)
    }

    /// ftruncate(2) likewise.
    pub(crate) fn truncate(&mut self, file: BorrowedFd<'_>, len: u64) -> io::Result<()> {
        self.submit(&opcode::Ftruncate::new(types::Fd(file.as_raw_fd()), len).build()).map(drop)
    }

    /// Submits one operation and waits for its answer.
    fn submit(&mut self, entry: &squeue::Entry) -> io::Result<u32> {
        // SAFETY: the operation is over before this returns, and touches only memory in which no value lies: the callers
        // above are given ranges of lots.
        unsafe { self.0.submission().push(entry) }.map_err(io::Error::other)?;
        loop {
            match self.0.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if let Some(answer) = self.0.completion().next() {
                let code = answer.result();
                return u32::try_from(code).map_err(|_| io::Error::from_raw_os_error(-code));
            }
        }
    }
}

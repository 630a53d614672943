//! Changes that kernel threads make on behalf of io_uring, one at a time.

#![expect(unsafe_code, reason = "submits operations to io_uring; each block states why it is sound")]

use std::io;

use io_uring::squeue::Flags;
use io_uring::{IoUring, opcode, squeue, types};
use pindown::Range;
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};

fn advice_on(at: Range, advice: i32) -> squeue::Entry {
    let address = std::ptr::without_provenance(at.start() as usize);
    opcode::Madvise::new(address, at.len() as libc::off_t, advice).build()
}

/// An io_uring instance.
pub(super) struct TestRing(IoUring);

impl TestRing {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(IoUring::new(8)?))
    }

    /// Calls madvise(2) on a kernel worker thread.
    pub(super) fn advise(&mut self, at: Range, advice: i32) -> io::Result<()> {
        self.submit(&advice_on(at, advice)).map(drop)
    }

    /// Like [`Self::advise`], but starts when `event` becomes readable, and does not wait for the completion. The
    /// kernel worker thread starts at that time.
    pub(super) fn advise_after(&mut self, event: &OwnedFd, at: Range, advice: i32) -> io::Result<()> {
        self.submit_after(event, &advice_on(at, advice))
    }

    /// Like [`Self::truncate`], but starts when `event` becomes readable, and does not wait for the completion.
    pub(super) fn truncate_after(&mut self, event: &OwnedFd, file: &OwnedFd, len: u64) -> io::Result<()> {
        self.submit_after(event, &opcode::Ftruncate::new(types::Fd(file.as_raw_fd()), len).build())
    }

    fn submit_after(&mut self, event: &OwnedFd, entry: &squeue::Entry) -> io::Result<()> {
        let wait = opcode::PollAdd::new(types::Fd(event.as_raw_fd()), libc::POLLIN as u32).build();
        let entries = [wait.flags(Flags::IO_HARDLINK), entry.clone()];
        // SAFETY: the request accesses only memory that contains no Rust value: the callers pass parts of a
        // `MemoryRange`, which exists until the request has completed.
        unsafe { self.0.submission().push_multiple(&entries) }.map_err(io::Error::other)?;
        self.0.submit().map(drop)
    }

    /// Waits until `count` requests have completed, with any results.
    pub(super) fn completed(&mut self, count: usize) -> io::Result<()> {
        let mut left = count;
        while left > 0 {
            match self.0.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => left = left.saturating_sub(self.0.completion().count()),
            }
        }
        Ok(())
    }

    /// Calls fallocate(2) on a kernel worker thread.
    pub(super) fn allocate(&mut self, file: BorrowedFd<'_>, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        let fd = types::Fd(file.as_raw_fd());
        self.submit(&opcode::Fallocate::new(fd, len).offset(offset).mode(mode).build()).map(drop)
    }

    /// Calls ftruncate(2) on a kernel worker thread.
    pub(super) fn truncate(&mut self, file: BorrowedFd<'_>, len: u64) -> io::Result<()> {
        self.submit(&opcode::Ftruncate::new(types::Fd(file.as_raw_fd()), len).build()).map(drop)
    }

    /// Submits one operation and waits for its completion.
    fn submit(&mut self, entry: &squeue::Entry) -> io::Result<u32> {
        // SAFETY: the operation completes before this returns, and accesses only memory that contains no Rust value:
        // the callers above pass parts of a `MemoryRange`.
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

//! A range of addresses reserved for one experiment. All changes of mappings are made in this module, with raw system
//! calls.

#![expect(unsafe_code, reason = "changes mappings of this process; each block states why it is sound")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, c_long};
use pindown::Range;

/// A range of addresses that contains no Rust value of this program, and to which no reference points. Therefore
/// changes of its memory do not affect the program. The memory is accessed only by system calls.
#[derive(Debug)]
pub(crate) struct MemoryRange {
    range: Range,
    /// The reserved addresses around the memory range. They ensure that a hole in the memory range does not extend
    /// beyond it. Otherwise the kernel might place a new mapping in the hole.
    reserved: Range,
}

/// Protection flags that permit reading and writing.
pub(crate) const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Converts the return value of a system call.
fn result(answer: c_long) -> io::Result<usize> {
    if answer == -1 { Err(io::Error::last_os_error()) } else { Ok(answer as usize) }
}

/// Returns the range of `len` bytes that begins at `start`.
pub(crate) fn range(start: u64, len: u64) -> io::Result<Range> {
    Range::new(start, len).map_err(io::Error::other)
}

impl MemoryRange {
    /// Reserves `len` bytes of free addresses, aligned and not accessible yet.
    pub(crate) fn reserve(len: u64, align: u64) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let before = pindown::page_size();
        let bytes = before + len + align;
        // SAFETY: the kernel chooses the address of the new mapping, so no existing mapping changes.
        let start =
            unsafe { libc::syscall(libc::SYS_mmap, 0_usize, bytes as usize, libc::PROT_NONE, flags, -1, 0_usize) };
        let start = result(start)? as u64;
        let range_of_lot = range((start + before).next_multiple_of(align), len)?;
        Ok(Self { range: range_of_lot, reserved: range(start, bytes)? })
    }

    /// Maps new memory, readable and writable, that only the caller uses. `flags` are flags of mmap(2) in addition to
    /// those of private anonymous memory.
    pub(crate) fn memory(len: u64, flags: c_int) -> io::Result<Self> {
        let flags = flags & !(libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the kernel chooses the address of the new mapping, so no existing mapping changes.
        let start = unsafe { libc::syscall(libc::SYS_mmap, 0_usize, len as usize, READ_WRITE, flags, -1, 0_usize) };
        Ok(Self::adopt(range(result(start)? as u64, len)?))
    }

    /// Takes over addresses that contain no Rust value of this program: an unused part of a stack, memory allocated by
    /// malloc, or sealed memory that is never accessed.
    pub(crate) fn adopt(range: Range) -> Self {
        Self { range, reserved: range }
    }

    /// Returns the whole range.
    pub(crate) fn range(&self) -> Range {
        self.range
    }

    /// Unmaps the addresses.
    pub(crate) fn release(&self) -> io::Result<()> {
        let Self { reserved, .. } = self;
        // SAFETY: the memory range contains no Rust value, and the reserved addresses around it were never accessed.
        result(unsafe { libc::syscall(libc::SYS_munmap, reserved.start() as usize, reserved.len() as usize) }).map(drop)
    }

    /// Makes the system call `number` with an address, a length and `rest` as arguments. `rest` contains no addresses.
    pub(crate) fn call(&self, number: c_long, at: Range, rest: [usize; 4]) -> io::Result<usize> {
        self.own(at);
        let [a, b, c, d] = rest;
        // SAFETY: the addresses are in the memory range, which contains no Rust value.
        result(unsafe { libc::syscall(number, at.start() as usize, at.len() as usize, a, b, c, d) })
    }

    /// Maps memory in the memory range, replacing existing mappings. If `flags` has MAP_FIXED_NOREPLACE, maps only into
    /// a hole. The caller does not pass MAP_FIXED.
    pub(crate) fn map(
        &self,
        at: Range,
        protection: c_int,
        flags: c_int,
        file: Option<(BorrowedFd<'_>, u64)>,
    ) -> io::Result<()> {
        let fixed = if flags & libc::MAP_FIXED_NOREPLACE == 0 { libc::MAP_FIXED } else { 0 };
        let (fd, offset) = file.map_or((-1, 0), |(fd, offset)| (fd.as_raw_fd(), offset));
        let rest = [protection as usize, (flags | fixed) as usize, fd as usize, offset as usize];
        self.call(libc::SYS_mmap, at, rest).map(drop)
    }

    /// Calls madvise(2).
    pub(crate) fn advise(&self, at: Range, advice: c_int) -> io::Result<()> {
        self.call(libc::SYS_madvise, at, [advice as usize, 0, 0, 0]).map(drop)
    }

    /// Calls munmap(2).
    pub(crate) fn unmap(&self, at: Range) -> io::Result<()> {
        self.call(libc::SYS_munmap, at, [0; 4]).map(drop)
    }

    /// Calls mprotect(2).
    pub(crate) fn protect(&self, at: Range, protection: c_int) -> io::Result<()> {
        self.call(libc::SYS_mprotect, at, [protection as usize, 0, 0, 0]).map(drop)
    }

    /// Calls mremap(2) to move the mapping to `to`, a range of this memory range. Without `to`, the mapping keeps its
    /// address or, with MREMAP_MAYMOVE, moves to an address that the kernel chooses. Returns the new start address of
    /// the mapping.
    pub(crate) fn remap(&self, at: Range, len: u64, flags: c_int, to: Option<Range>) -> io::Result<u64> {
        let flags = match to {
            Some(to) => {
                self.own(to);
                flags | libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED
            }
            None => flags,
        };
        let to = to.map_or(0, |to| to.start() as usize);
        self.call(libc::SYS_mremap, at, [len as usize, flags as usize, to, 0]).map(|start| start as u64)
    }

    /// Calls process_madvise(2) for this process.
    pub(crate) fn advise_process(&self, at: Range, advice: c_int) -> io::Result<()> {
        self.own(at);
        let this = rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty())?;
        let base = std::ptr::without_provenance_mut(at.start() as usize);
        let vector = libc::iovec { iov_base: base, iov_len: at.len() as usize };
        let call = libc::SYS_process_madvise;
        // SAFETY: the vector lives until the call returns, and its addresses are in the memory range, which contains no
        // Rust value.
        let done = unsafe { libc::syscall(call, this.as_raw_fd(), &raw const vector, 1_usize, advice, 0_usize) };
        result(done).map(drop)
    }

    /// Attaches a segment at `at` with shmat(2). The segment has the length of `at`.
    pub(crate) fn attach(&self, segment: c_int, at: Range, flags: c_int) -> io::Result<()> {
        self.own(at);
        // SAFETY: the segment is as long as `at`, which is in the memory range, and the memory range contains no Rust
        // value.
        result(unsafe { libc::syscall(libc::SYS_shmat, segment, at.start() as usize, flags) }).map(drop)
    }

    /// Panics if a range is not in the memory range, which would be a bug in this program.
    fn own(&self, at: Range) {
        assert!(self.range.contains(at), "{at} is not in {}", self.range);
    }
}

//! Memory shared by both processes of a measurement: a sealed memfd with a ring and a buffer for each direction.
//!
//! Both processes run this program and trust each other. The marks in the rings order the accesses to the buffers: a
//! side writes its outgoing buffer and then sets a mark. The other side reads the mark and then the buffer. Its answer
//! releases the buffer. An error in this order results in wrong data, which every measurement checks.

#![expect(unsafe_code, reason = "maps memory and copies to and from it; each block states why it is sound")]

use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::failure::{Failure, Result};

/// The offset of the buffers. The rings precede them.
const BUFFERS: usize = 16 << 10;

/// The offset of the second ring.
const SECOND: usize = 8 << 10;

/// The offset of the words for accesses, between the rings.
const WORDS: usize = 6 << 10;

/// The number of lines of a ring.
pub(crate) const LINES: u64 = 64;

/// One cache line with 8 bytes and a mark.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct MarkedLine {
    /// Returns the payload.
    pub(crate) value: AtomicU64,
    /// The mark, which is written last: the number of lines that the ring has transferred, including this one.
    pub(crate) mark: AtomicU64,
}

/// A ring. The producer writes the lines, and the consumer writes `taken`.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Lines {
    lines: [MarkedLine; LINES as usize],
    /// The number of lines that the consumer has released.
    pub(crate) taken: MarkedLine,
}

impl Lines {
    /// Returns the line for message number `sent`, counted from 0.
    #[inline]
    pub(crate) const fn line(&self, sent: u64) -> &MarkedLine {
        &self.lines[(sent % LINES) as usize]
    }
}

/// The words with which two sides coordinate while one accesses the other's memory. Rounds are distinguished by their
/// numbers.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Words {
    /// The last round for which the far side's buffer is ready.
    pub(crate) ready: MarkedLine,
    /// The last round that is over.
    pub(crate) over: MarkedLine,
    /// The process ID of the far side, and the address of its buffer in that process.
    pub(crate) place: MarkedLine,
    /// Padding. Processors fetch lines in pairs, so the next line must not be in a pair with a line above.
    _apart: MarkedLine,
    /// The word that is changed atomically.
    pub(crate) word: MarkedLine,
}

/// One of the two sides. Each side is the producer of the ring with its number, and writes the buffer with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitSide {
    /// The measuring process.
    Near,
    /// The other process.
    Far,
}

impl LimitSide {
    /// Returns the other side.
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Near => Self::Far,
            Self::Far => Self::Near,
        }
    }
}

/// The mapping of the shared memory.
#[derive(Debug)]
pub(crate) struct Shared {
    base: NonNull<u8>,
    len: usize,
}

impl Shared {
    /// Creates the memory, with buffers of `buffer` bytes.
    pub(crate) fn create(buffer: usize) -> Result<OwnedFd> {
        let what = || "allocating memory for the limit programs";
        let len = BUFFERS + 2 * buffer.next_multiple_of(4096);
        let memory = memfd_create("percale-limits", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let memory = memory.map_err(Failure::system(what()))?;
        ftruncate(&memory, len as u64).map_err(Failure::system(what()))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&memory, seals).map_err(Failure::system(what()))?;
        Ok(memory)
    }

    /// Maps the memory.
    pub(crate) fn map(memory: impl AsFd) -> Result<Self> {
        let what = || "mapping the memory of the limit programs";
        let len = fstat(&memory).map_err(Failure::system(what()))?.st_size;
        let len = usize::try_from(len).unwrap_or(0);
        if len <= BUFFERS {
            return Err(Failure::Protocol("the memory of the limit programs is too small".into()));
        }
        // SAFETY: the kernel chooses the address of the new mapping. The memory is sealed against shrinking, so an
        // access never faults.
        let base = unsafe {
            mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, memory.as_fd(), 0)
        };
        let base = base.map_err(Failure::system(what()))?;
        let base = NonNull::new(base.cast()).ok_or_else(|| Failure::Protocol("mapped at zero".into()))?;
        Ok(Self { base, len })
    }

    /// Returns the ring that `side` writes.
    #[inline]
    pub(crate) const fn ring(&self, side: LimitSide) -> &Lines {
        const { assert!(size_of::<Lines>() <= SECOND && SECOND + size_of::<Lines>() <= BUFFERS) };
        let at = match side {
            LimitSide::Near => 0,
            LimitSide::Far => SECOND,
        };
        self.atomics::<Lines>(at)
    }

    /// Returns the words for accesses.
    #[inline]
    pub(crate) const fn words(&self) -> &Words {
        const { assert!(size_of::<Lines>() <= WORDS && WORDS + size_of::<Words>() <= SECOND) };
        self.atomics::<Words>(WORDS)
    }

    /// Returns the object at `at`, before the buffers: [`Lines`] or [`Words`], which contain only atomics.
    #[inline]
    const fn atomics<T>(&self, at: usize) -> &T {
        assert!(at.is_multiple_of(align_of::<T>()) && at + size_of::<T>() <= BUFFERS);
        // SAFETY: the mapping is longer than `BUFFERS`.
        let place = unsafe { self.base.add(at) };
        // SAFETY: the object is aligned and within the mapping, which lives as long as `self`. It contains only
        // atomics, for which any bytes are valid.
        unsafe { place.cast().as_ref() }
    }

    /// Returns the address of the buffer of `side` in this process.
    pub(crate) fn address(&self, side: LimitSide) -> u64 {
        self.place(side, 0, 0).addr() as u64
    }

    /// Returns the size of one buffer in bytes.
    pub(crate) const fn room(&self) -> usize {
        (self.len - BUFFERS) / 2
    }

    /// Returns the address of `len` bytes at `at` in the buffer that `side` writes.
    #[inline]
    fn place(&self, side: LimitSide, at: usize, len: usize) -> *mut u8 {
        let room = self.room();
        assert!(at <= room && len <= room - at, "the buffers hold {room} bytes");
        let buffer = match side {
            LimitSide::Near => BUFFERS,
            LimitSide::Far => BUFFERS + room,
        };
        self.base.as_ptr().wrapping_add(buffer + at)
    }

    /// Writes `from` to the buffer of `side`.
    #[inline]
    pub(crate) fn put(&self, side: LimitSide, at: usize, from: &[u8]) {
        let to = self.place(side, at, from.len());
        // SAFETY: `place` checked the range. The other process does not access it now (see the module documentation).
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }

    /// Reads the buffer of `side`.
    #[inline]
    pub(crate) fn get(&self, side: LimitSide, at: usize, to: &mut [u8]) {
        let from = self.place(side, at, to.len());
        // SAFETY: as in `put`.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: `map` made the mapping, and no reference into it outlives `self`.
        let result = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
        debug_assert!(result.is_ok(), "{result:?}");
    }
}

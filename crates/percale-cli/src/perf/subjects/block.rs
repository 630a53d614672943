//! The memory of the measured operations, allocated by percale or by the program.

#![expect(
    unsafe_code,
    reason = "lends memory that this object keeps, and copies to and from it; each block states why it is sound"
)]

use std::sync::atomic::AtomicU64;

use percale::memory::volatile::{Segment, Segments};
use percale::{Allocation, Domain};

use crate::failure::{Result, percale};
use crate::row::MessageMemory;

/// The alignment of every block: a page.
const ALIGNMENT: usize = 4096;

/// The allocation, which is only kept alive. The memory is not accessed through it.
#[derive(Debug)]
enum Store {
    Ordinary { _bytes: Vec<u8> },
    Percale { _allocation: Allocation },
}

/// Zeroed memory that is accessed only through segments, words and copies. Its owner drops it after the endpoint,
/// because operations of the endpoint use it.
#[derive(Debug)]
pub(super) struct Block {
    base: *mut u8,
    len: usize,
    _store: Store,
}

impl Block {
    /// Allocates `len` bytes, aligned to a page.
    pub(super) fn new(domain: &Domain, memory: MessageMemory, len: usize) -> Result<Self> {
        let (store, base) = match memory {
            MessageMemory::Ordinary | MessageMemory::Bounced => {
                // The block is aligned like percale's allocations, so that only the kind of memory differs.
                let mut bytes = vec![0_u8; len + ALIGNMENT];
                let skip = bytes.as_ptr().align_offset(ALIGNMENT);
                let base = bytes.as_mut_ptr().wrapping_add(skip);
                (Store::Ordinary { _bytes: bytes }, base)
            }
            MessageMemory::Percale => {
                let allocation = domain.allocate(len).map_err(percale("allocating memory"))?;
                let base = allocation.as_ptr();
                (Store::Percale { _allocation: allocation }, base)
            }
        };
        Ok(Self { base, len, _store: store })
    }

    /// Returns a segment of `len` bytes at `at`.
    pub(super) fn segment(&self, at: usize, len: usize) -> Segment {
        assert!(at <= self.len && len <= self.len - at, "a block has {} bytes", self.len);
        // SAFETY: the segment is within the memory, which outlives the operations on it (see `Block`). The caller
        // accesses the segment only while no operation uses it, or intends concurrent accesses.
        unsafe { Segment::new(self.base.wrapping_add(at), len) }
    }

    /// Like [`segment`](Self::segment), in the form that operations accept.
    pub(super) fn segments(&self, at: usize, len: usize) -> Segments {
        Segments::one(self.segment(at, len))
    }

    /// Writes bytes at `at`.
    #[inline]
    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.segment(at, bytes.len()).as_ptr();
        // SAFETY: the range is within the memory, to which no slice refers. As for `segment`, no operation uses it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies the bytes at `at` into `to`.
    #[inline]
    pub(super) fn read(&self, at: usize, to: &mut [u8]) {
        let from = self.segment(at, to.len()).as_ptr();
        // SAFETY: as in `write`. Data that the other side writes at the same time is only compared, and read again if
        // it may still be arriving.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }

    /// Returns the word at `at`, a multiple of 8.
    #[inline]
    pub(super) fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at < self.len && 8 <= self.len - at, "a block has {} bytes", self.len);
        // SAFETY: the word is within the memory, aligned, and valid as long as `self`. Concurrent accesses to such a
        // word, by another thread or by the other side, are also accesses to a word. Otherwise this side reads the word
        // repeatedly until it has the awaited value.
        unsafe { AtomicU64::from_ptr(self.base.wrapping_add(at).cast()) }
    }
}

//! Memory for the operations of the measurement: percale's, or any.

#![expect(unsafe_code, reason = "lends memory that this object keeps, and copies to and from it; each block says why")]

use std::sync::atomic::AtomicU64;

use percale::memory::volatile::{Segment, Segments};
use percale::{Allocation, Domain};

use crate::failure::{Result, percale};
use crate::row::Memory;

/// The alignment of every block: a page.
const ALIGNMENT: usize = 4096;

/// Keeps the memory alive; it is not accessed through this.
#[derive(Debug)]
enum Store {
    Ordinary { _bytes: Vec<u8> },
    Percale { _allocation: Allocation },
}

/// Zeroed memory that is accessed through segments, words and copies only. Its owner drops it after the endpoint, because the endpoint's operations
/// use it.
#[derive(Debug)]
pub(super) struct Block {
    base: *mut u8,
    len: usize,
    _store: Store,
}

impl Block {
    /// Allocates `len` bytes, from the start of a page.
    pub(super) fn new(domain: &Domain, memory: Memory, len: usize) -> Result<Self> {
        let (store, base) = match memory {
            Memory::Ordinary | Memory::Bounced => {
                // Aligned like percale's allocations, so that only the kind of memory differs.
                let mut bytes = vec![0_u8; len + ALIGNMENT];
                let skip = bytes.as_ptr().align_offset(ALIGNMENT);
                let base = bytes.as_mut_ptr().wrapping_add(skip);
                (Store::Ordinary { _bytes: bytes }, base)
            }
            Memory::Percale => {
                let allocation = domain.allocate(len).map_err(percale("allocating memory"))?;
                let base = allocation.as_ptr();
                (Store::Percale { _allocation: allocation }, base)
            }
        };
        Ok(Self { base, len, _store: store })
    }

    /// `len` bytes from `at` on.
    pub(super) fn segment(&self, at: usize, len: usize) -> Segment {
        assert!(at <= self.len && len <= self.len - at, "a block has {} bytes", self.len);
        // SAFETY: within the memory, which outlives the operations on it (see `Block`); the caller accesses the segment only while no operation has
        // it, or intends concurrent accesses.
        unsafe { Segment::new(self.base.wrapping_add(at), len) }
    }

    /// Like [`segment`](Self::segment), in the form that operations take.
    pub(super) fn segments(&self, at: usize, len: usize) -> Segments {
        Segments::one(self.segment(at, len))
    }

    /// Writes bytes from `at` on.
    #[inline]
    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.segment(at, bytes.len()).as_ptr();
        // SAFETY: within the memory, to which no slice refers; as of `segment`, no operation has it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies the bytes from `at` on.
    #[inline]
    pub(super) fn read(&self, at: usize, to: &mut [u8]) {
        let from = self.segment(at, to.len()).as_ptr();
        // SAFETY: as in `write`; what others write meanwhile is compared only, and read again where it may still be arriving.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }

    /// The word at `at`, a multiple of 8.
    #[inline]
    pub(super) fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at < self.len && 8 <= self.len - at, "a block has {} bytes", self.len);
        // SAFETY: within the memory, aligned, and kept as long as `self`; words that others touch at the same time are touched
        // as words by them as well, or read until they have the awaited value.
        unsafe { AtomicU64::from_ptr(self.base.wrapping_add(at).cast()) }
    }
}

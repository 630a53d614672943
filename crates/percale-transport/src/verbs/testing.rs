//! Memory for tests of registrations. It can be mapped, unmapped and mapped again.

#![expect(unsafe_code, reason = "maps and unmaps memory under a device; each block states its own reason")]

use std::ptr::{read_volatile, with_exposed_provenance, with_exposed_provenance_mut, write_volatile};
use std::sync::atomic::{AtomicUsize, Ordering};

use pindown::Range;
use rustix::mm::{MapFlags, ProtFlags};

/// The distance between the addresses of two `Memory` values, and the maximum size of each.
const APART: usize = 1 << 20;

/// Memory at an address that no other thread of the test harness uses, so that no other mapping can get the address
/// between unmapping and mapping it.
#[derive(Debug)]
pub struct Memory {
    start: usize,
    len: usize,
}

#[expect(clippy::len_without_is_empty, reason = "it is never empty")]
impl Memory {
    /// Maps `len` bytes.
    pub fn new(len: usize) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(96 << 30);
        assert!(len <= APART);
        let memory = Self { start: NEXT.fetch_add(APART, Ordering::Relaxed), len };
        memory.map();
        memory
    }

    fn map(&self) {
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE);
        // SAFETY: the flags ensure that no existing mapping is replaced.
        let mapped = unsafe { rustix::mm::mmap_anonymous(self.as_ptr().cast(), self.len, rights, flags) };
        assert_eq!(mapped.expect("free addresses"), self.as_ptr().cast());
    }

    fn unmap(&self) {
        // SAFETY: there is no reference to the memory, and it is read and written only while it is mapped.
        unsafe { rustix::mm::munmap(self.as_ptr().cast(), self.len) }.expect("mapped memory");
    }

    /// Unmaps memory like an application, calls `reported` with its range, and maps other memory at the same address.
    pub fn change(&self, reported: impl FnOnce(Range)) {
        self.unmap();
        reported(self.range());
        self.map();
        assert_eq!(self.byte(0), 0, "new memory is zeroed");
    }

    /// Returns the address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        with_exposed_provenance_mut(self.start)
    }

    /// Returns the first address as a number.
    pub fn start(&self) -> u64 {
        self.start as u64
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the range of addresses.
    pub fn range(&self) -> Range {
        Range::new(self.start(), self.len as u64).expect("a range")
    }

    /// Returns a byte as the application reads it.
    pub fn byte(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: the memory is mapped, and any byte is a valid value.
        unsafe { read_volatile(with_exposed_provenance(self.start + at)) }
    }

    /// Writes this byte to all of the memory, like the application.
    pub fn fill(&self, byte: u8) {
        for at in 0..self.len {
            // SAFETY: the memory is mapped, and there is no reference to it.
            unsafe { write_volatile(with_exposed_provenance_mut(self.start + at), byte) };
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.unmap();
    }
}

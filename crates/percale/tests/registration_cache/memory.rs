//! Memory that tests map, replace and unmap.

use std::ptr::NonNull;

use percale::pindown::{Range, page_size};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Returns the number of bytes in a page.
pub(crate) fn page() -> usize {
    page_size() as usize
}

/// Private anonymous pages.
pub(crate) struct Memory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the pages belong only to this value.
unsafe impl Send for Memory {}

fn map(at: *mut u8, len: usize, protection: ProtFlags, flags: MapFlags) -> NonNull<u8> {
    // SAFETY: the new pages are at unused addresses, or replace those of a `Memory`, which is not borrowed.
    let mapped = unsafe { mmap_anonymous(at.cast(), len, protection, MapFlags::PRIVATE | flags) };
    NonNull::new(mapped.expect("memory").cast()).expect("not null")
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl Memory {
    pub(crate) fn new(pages: usize) -> Self {
        let len = pages * page();
        Self { start: map(std::ptr::null_mut(), len, READ_WRITE, MapFlags::empty()), len }
    }

    pub(crate) fn range(&self) -> Range {
        Range::of(self.bytes()).expect("not empty")
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the pages are mapped, initialized by the kernel, and borrowed for as long as this value is.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Fills the memory with bytes that differ from word to word and from seed to seed.
    pub(crate) fn fill(&mut self, seed: u8) {
        fill(self.bytes_mut(), seed);
    }

    /// Maps other pages at the same addresses. `gone` is called after the old pages were removed and before the new
    /// ones are accessible.
    pub(crate) fn replace(&mut self, gone: impl FnOnce(Range)) {
        map(self.start.as_ptr(), self.len, ProtFlags::empty(), MapFlags::FIXED);
        gone(self.range_of_nothing());
        map(self.start.as_ptr(), self.len, READ_WRITE, MapFlags::FIXED);
    }

    fn range_of_nothing(&self) -> Range {
        Range::new(self.start.as_ptr().addr() as u64, self.len as u64).expect("not empty")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the pages belong to this value, and are no longer borrowed.
        unsafe { munmap(self.start.as_ptr().cast(), self.len) }.expect("the pages were mapped");
    }
}

pub(crate) fn fill(bytes: &mut [u8], seed: u8) {
    for (n, byte) in bytes.iter_mut().enumerate() {
        *byte = (n % 251) as u8 ^ (n / 4096) as u8 ^ seed.wrapping_mul(37);
    }
}

pub(crate) fn filled(len: usize, seed: u8) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, seed);
    bytes
}

/// Returns the number of pages that the kernel counts as pinned for this process.
pub(crate) fn pinned() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).expect("the file contains VmPin");
    let kilobytes: usize = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kilobytes * 1024 / page()
}

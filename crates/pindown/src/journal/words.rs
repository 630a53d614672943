//! Pages of words that the kernel wipes in a forked child (MADV_WIPEONFORK).

#![cfg_attr(
    not(loom),
    expect(unsafe_code, reason = "anonymous pages and their advice; each block states its own reason")
)]

use std::io;

use crate::sync::AtomicU64;

/// A word with its own cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct PaddedWord(AtomicU64);

impl PaddedWord {
    #[inline]
    pub(super) fn word(&self) -> &AtomicU64 {
        &self.0
    }
}

/// Maps a fresh page of words, which stays mapped until the process exits.
#[cfg(not(loom))]
pub(super) fn page() -> io::Result<impl Iterator<Item = &'static PaddedWord>> {
    use rustix::mm::{Advice, MapFlags, ProtFlags};
    let len = rustix::param::page_size();
    // SAFETY: a new anonymous mapping at an address that the kernel chooses does not affect existing mappings.
    let page = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }?;
    // SAFETY: the page was just mapped; the advice only changes the contents that a child sees.
    unsafe { rustix::mm::madvise(page, len, Advice::LinuxWipeOnFork) }.map_err(crate::calls::named("madvise"))?;
    // SAFETY: the page is mapped, zeroed, never unmapped, aligned for lines, and has space for this many.
    let lines: &'static [PaddedWord] =
        unsafe { std::slice::from_raw_parts(page.cast::<PaddedWord>(), len / size_of::<PaddedWord>()) };
    Ok(lines.iter())
}

#[cfg(loom)]
pub(super) fn page() -> io::Result<impl Iterator<Item = &'static PaddedWord>> {
    let line: &'static PaddedWord = Box::leak(Box::new(PaddedWord(AtomicU64::new(0))));
    Ok(std::iter::once(line))
}

//! Whether this process is a fork of the one that uses percale.
//!
//! Rings, peer mappings and service threads do not survive `fork`: a child that went on using its parent's endpoints would
//! read its parent's messages. One page, wiped in every child (MADV_WIPEONFORK), tells the two apart at the price of a load.

#![expect(unsafe_code, reason = "one anonymous page and its advice; each block states its own reason")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// What the page holds in the process that made it.
const HERE: u64 = 0x7065_7263_616c_6521;

/// The page, for as long as the process lives.
static PAGE: OnceLock<&'static AtomicU64> = OnceLock::new();

/// A mark that is there only in the process that made it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(&'static AtomicU64);

impl Process {
    /// The mark of this process.
    ///
    /// # Errors
    /// What `mmap` or `madvise` says.
    pub(crate) fn current() -> std::io::Result<Self> {
        if let Some(page) = PAGE.get() {
            if page.load(Ordering::Relaxed) == 0 {
                // A child that opens a domain of its own starts afresh: the page is its own copy.
                page.store(HERE, Ordering::Relaxed);
            }
            return Ok(Self(page));
        }
        let len = rustix::param::page_size();
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let page = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        // SAFETY: the page was just mapped; the advice only changes what a child finds in it.
        unsafe { rustix::mm::madvise(page, len, Advice::LinuxWipeOnFork) }?;
        // SAFETY: the page is mapped, aligned, zeroed and never unmapped, so it is an atomic for ever.
        let page: &'static AtomicU64 = unsafe { &*page.cast::<AtomicU64>() };
        page.store(HERE, Ordering::Relaxed);
        Ok(Self(PAGE.get_or_init(|| page)))
    }

    /// Whether this is the process that took the mark (or a child that took its own since).
    #[inline]
    pub(crate) fn is_here(self) -> bool {
        self.0.load(Ordering::Relaxed) != 0 // All that a page that was wiped holds.
    }
}

/// Whether this process is a fork of one that used percale, and has not opened a domain of its own.
pub(crate) fn forked() -> bool {
    PAGE.get().is_some_and(|page| page.load(Ordering::Relaxed) != HERE)
}

//! Words that read 0 in a forked child (MADV_WIPEONFORK): by them a child finds, at no cost, that a cache is its
//! parent's.

#![cfg_attr(
    not(loom),
    expect(unsafe_code, reason = "anonymous pages and their advice; each block states its own reason")
)]

use std::io;
use std::ops::Deref;

use super::OfProcess;
use crate::sync::{AtomicU64, Ordering};

/// A word of its own cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Line(AtomicU64);

#[cfg(not(loom))]
impl Line {
    pub(super) fn word(&self) -> &AtomicU64 {
        &self.0
    }
}

/// One word, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Wiped(&'static Line);

/// Identifies the address space that made the value. A forked child has the value too, but is another address space, whatever its process
/// id is. A program that is executed does not have it.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct Home(Wiped);

#[cfg(not(loom))]
impl Home {
    /// # Errors
    /// What `mmap` or `madvise` says.
    pub(crate) fn here() -> io::Result<Self> {
        Wiped::new(1).map(Self)
    }

    /// Whether this is that address space.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 1
    }
}

/// Words that are free for use.
static FREE: OfProcess<Vec<&'static Line>> = OfProcess::new();

impl Wiped {
    /// A word with this value.
    ///
    /// # Errors
    /// What `mmap` or `madvise` says.
    pub(crate) fn new(value: u64) -> io::Result<Self> {
        let mut free = FREE.lock(Vec::new);
        if free.is_empty() {
            free.extend(page()?);
        }
        let line = free.pop().ok_or(io::ErrorKind::OutOfMemory)?;
        line.0.store(value, Ordering::Release);
        Ok(Self(line))
    }
}

impl Wiped {
    /// The word itself. It stays mapped, and may be given to another owner when this value is dropped.
    pub(crate) fn word(&self) -> &'static AtomicU64 {
        &self.0.0
    }
}

impl Deref for Wiped {
    type Target = AtomicU64;

    #[inline]
    fn deref(&self) -> &AtomicU64 {
        &self.0.0
    }
}

impl Drop for Wiped {
    fn drop(&mut self) {
        // Loom's atomics belong to one run of a model.
        #[cfg(not(loom))]
        FREE.lock(Vec::new).push(self.0);
    }
}

/// A fresh page of words, which stays for as long as the process lives.
#[cfg(not(loom))]
pub(super) fn page() -> io::Result<impl Iterator<Item = &'static Line>> {
    use rustix::mm::{Advice, MapFlags, ProtFlags};
    let len = rustix::param::page_size();
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
    let page = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }?;
    // SAFETY: the page was just mapped; the advice only changes what a child finds in it.
    unsafe { rustix::mm::madvise(page, len, Advice::LinuxWipeOnFork) }.map_err(crate::calls::named("madvise"))?;
    // SAFETY: the page is mapped, zeroed, never unmapped, aligned for lines, and holds this many.
    let lines: &'static [Line] = unsafe { std::slice::from_raw_parts(page.cast::<Line>(), len / size_of::<Line>()) };
    Ok(lines.iter())
}

#[cfg(loom)]
fn page() -> io::Result<impl Iterator<Item = &'static Line>> {
    let line: &'static Line = Box::leak(Box::new(Line(AtomicU64::new(0))));
    Ok(std::iter::once(line))
}

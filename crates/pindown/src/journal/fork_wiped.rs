//! Words that read 0 in a forked child (MADV_WIPEONFORK). With them, a child detects without additional cost that a
//! cache belongs to its parent.

use std::io;
use std::ops::Deref;

use super::PerProcess;
use super::words::{PaddedWord, page};
use crate::sync::{AtomicU64, Ordering};

/// One word, which can be reused after this value is dropped.
#[derive(Debug)]
pub(crate) struct ForkWipedWord(&'static PaddedWord);

/// Identifies the address space in which the value was created. A forked child inherits the value but has another
/// address space, even if it has the same process ID. An executed program does not inherit it.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct ForkToken(ForkWipedWord);

#[cfg(not(loom))]
impl ForkToken {
    /// Returns the identity of the current address space.
    ///
    /// # Errors
    /// Errors of mmap(2) or madvise(2).
    pub(crate) fn here() -> io::Result<Self> {
        ForkWipedWord::new(1).map(Self)
    }

    /// Returns whether the caller runs in that address space.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 1
    }
}

/// Words that are free for use.
static FREE: PerProcess<Vec<&'static PaddedWord>> = PerProcess::new();

impl ForkWipedWord {
    /// Allocates a word with this value.
    ///
    /// # Errors
    /// Errors of mmap(2) or madvise(2).
    pub(crate) fn new(value: u64) -> io::Result<Self> {
        let mut free = FREE.lock(Vec::new);
        if free.is_empty() {
            free.extend(page()?);
        }
        let line = free.pop().ok_or(io::ErrorKind::OutOfMemory)?;
        line.word().store(value, Ordering::Release);
        Ok(Self(line))
    }
}

impl ForkWipedWord {
    /// Returns the word. It stays mapped, and may get another owner after this value is dropped.
    pub(crate) fn word(&self) -> &'static AtomicU64 {
        self.0.word()
    }
}

impl Deref for ForkWipedWord {
    type Target = AtomicU64;

    #[inline]
    fn deref(&self) -> &AtomicU64 {
        self.0.word()
    }
}

impl Drop for ForkWipedWord {
    fn drop(&mut self) {
        // Loom's atomics belong to one run of a model.
        #[cfg(not(loom))]
        FREE.lock(Vec::new).push(self.0);
    }
}

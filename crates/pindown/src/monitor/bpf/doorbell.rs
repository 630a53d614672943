//! The doorbell with which the kernel programs wake waiting threads: a ring buffer in which one record means that
//! something changed.
//!
//! *An empty ring means that a thread waits.* The ring's reader, which is a client, writes the position up to which it
//! has read. A thread that is about to wait sets that position to the end. A program that reports a change adds a
//! record to the ring if the ring is empty, which wakes all threads that poll its descriptor, and does nothing
//! otherwise. So after one record that no thread reads, a change costs two loads, and a client that has exited or
//! sleeps has no effect on others. A client can write only its own position in its own ring.
#![expect(unsafe_code, reason = "maps two words that the kernel shares; each block states its own reason")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::journal::MonitorDoorbell;

/// The size in bytes of the ring, and of each page before it: one with the reader's position, one with the kernel's.
pub(super) const SIZE: usize = 4096;

/// One client's ring.
#[derive(Debug)]
pub(crate) struct RingDoorbell {
    ring: OwnedFd,
    /// The position up to which the reader has read.
    read: NonNull<AtomicU64>,
    /// The position up to which the programs have written.
    written: NonNull<AtomicU64>,
}

// SAFETY: both words are atomics, mapped until the value is dropped.
unsafe impl Send for RingDoorbell {}
// SAFETY: as for Send.
unsafe impl Sync for RingDoorbell {}

impl RingDoorbell {
    /// Maps the positions of the ring behind `ring`, a descriptor of the kernel's map.
    ///
    /// # Errors
    /// Errors of mmap(2).
    pub(super) fn open(ring: OwnedFd) -> io::Result<Self> {
        let read = map(ring.as_fd(), ProtFlags::READ | ProtFlags::WRITE, 0)?;
        let written = map(ring.as_fd(), ProtFlags::READ, SIZE as u64).inspect_err(|_| unmap(read))?;
        Ok(Self { ring, read, written })
    }

    /// Returns the number of bytes ever written to the ring, which is proportional to the number of records.
    pub(super) fn rung(&self) -> u64 {
        // SAFETY: the word is mapped and aligned as long as `self` exists; the kernel writes it atomically.
        unsafe { self.written.as_ref() }.load(Ordering::Acquire)
    }
}

fn map(ring: BorrowedFd<'_>, rights: ProtFlags, offset: u64) -> io::Result<NonNull<AtomicU64>> {
    // SAFETY: a new mapping at an address that the kernel chooses.
    let base = unsafe { mmap(ptr::null_mut(), SIZE, rights, MapFlags::SHARED, ring, offset) }?;
    NonNull::new(base.cast()).ok_or(io::ErrorKind::AddrNotAvailable.into())
}

fn unmap(word: NonNull<AtomicU64>) {
    // SAFETY: the mapping was made by `map`, and there are no more references to it.
    let unmapped = unsafe { munmap(word.as_ptr().cast(), SIZE) };
    debug_assert_eq!(unmapped, Ok(()));
}

impl Drop for RingDoorbell {
    fn drop(&mut self) {
        unmap(self.read);
        unmap(self.written);
    }
}

impl MonitorDoorbell for RingDoorbell {
    fn join(&self) {
        self.silence();
    }

    fn leave(&self) {
        // The next change rings once, although no thread waits.
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    fn silence(&self) {
        // SAFETY: the word is mapped and aligned as long as `self` exists; the kernel reads it atomically.
        let read = unsafe { self.read.as_ref() };
        // Never moves the position back before the one that another waiting thread has set: the ring would then not be
        // empty, and would not wake that thread.
        read.fetch_max(self.rung(), Ordering::SeqCst);
        // A program advances the journal's head before it reads the ring's position.
        fence(Ordering::SeqCst);
    }
}

//! The fixed buffers of a ring: a registrar.

#![expect(unsafe_code, reason = "pins memory and has the kernel move bytes; each block states its own reason")]

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use io_uring::{opcode, types};
use pindown::{Access, Pinned, Range, Registrar};

use super::ring::Ring;
use super::way::Way;
use crate::system::forked::Process;

/// io_uring's table of fixed buffers: pins memory, and moves bytes between pinned memory and files or sockets. Clones are the
/// same table.
///
/// As a [`Registrar`] it gives each registration the number of its slot as the local key. The remote key, which the
/// kernel has no use for, counts registrations. Whatever the rights asked for, the kernel pins pages for writing, so memory
/// that this process may not write is refused with EFAULT.
///
/// Each of its [`Slot`]s is released once, by the table that gave it: no other code can put a slot among the free ones.
#[derive(Clone)]
pub struct BufferTable(Arc<Table>);

/// A slot in which memory is pinned: what [`Registrar::unpin`] takes. One that is dropped instead stays in use for as long as its table is open.
#[must_use = "memory stays pinned until its slot is given back"]
#[derive(Debug)]
pub struct Slot {
    number: u32,
    /// The number of its table.
    table: u64,
}

/// Tables opened so far: the number of the last.
static OPENED: AtomicU64 = AtomicU64::new(0);

struct Table {
    /// Unlike any other table's of this process.
    number: u64,
    /// The only one that may use the ring: its queues are shared with the kernel, and would be with a forked child.
    process: Process,
    ring: Ring,
    free: Mutex<Vec<u32>>,
    slots: u32,
    made: AtomicU64,
}

fn has_no_zero_copy(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL))
}

/// The offset for sockets and pipes, which have none.
const NO_OFFSET: u64 = u64::MAX;

impl BufferTable {
    /// Makes a table with this many slots, which is the most registrations at a time.
    ///
    /// # Errors
    /// The error that the kernel reports: io_uring may be forbidden, and it allows 16,384 slots at most.
    pub fn new(slots: u32) -> io::Result<Self> {
        let process = Process::current()?;
        let ring = Ring::new()?;
        ring.submitter().register_buffers_sparse(slots)?;
        let free = Mutex::new((0..slots).rev().collect());
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        Ok(Self(Arc::new(Table { number, process, ring, free, slots, made: AtomicU64::new(0) })))
    }

    /// Registrations made since it was opened.
    #[must_use]
    pub fn made(&self) -> u64 {
        self.0.made.load(Ordering::Relaxed)
    }

    /// Registrations now; none in a forked child of the process that opened the table.
    #[must_use]
    pub fn registered(&self) -> u32 {
        if !self.0.process.is_here() {
            return 0; // The lock may have been held at the fork.
        }
        self.0.slots - self.free().len() as u32
    }

    /// Moves bytes between memory and `other`, and waits for that. The memory is the pages that are pinned in `slot`, those
    /// which lay at the addresses `range` when they were pinned; without a slot, what lies at the addresses now.
    ///
    /// Returns how many bytes went; one call moves less than 2 GiB.
    ///
    /// # Errors
    /// The kernel's error for either end; EFAULT if the range is not all in the slot; EINVAL for an offset that no file has, or a slot that no table
    /// has; ECHILD in a forked child of the process that opened the table.
    ///
    /// # Safety
    /// The memory named may be read, or written, until this returns.
    pub unsafe fn transfer(
        &self,
        slot: Option<u32>,
        range: Range,
        way: Way,
        other: BorrowedFd<'_>,
    ) -> io::Result<usize> {
        self.check_process()?;
        // Beyond the largest offset of a file the kernel takes it for none, and uses the file's current position.
        if let Way::ToFile(offset) | Way::FromFile(offset) = way
            && i64::try_from(offset).is_err()
        {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let fd = types::Fd(other.as_raw_fd());
        let at = std::ptr::with_exposed_provenance_mut::<u8>(range.start() as usize);
        // Less than the most that one operation takes.
        let len = range.len().min(1 << 30) as u32;
        let slot = slot.map(u16::try_from).transpose().map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        let operation = match (way, slot) {
            (Way::ToFile(offset), Some(slot)) => opcode::WriteFixed::new(fd, at, len, slot).offset(offset).build(),
            (Way::ToFile(offset), None) => opcode::Write::new(fd, at, len).offset(offset).build(),
            (Way::FromFile(offset), Some(slot)) => opcode::ReadFixed::new(fd, at, len, slot).offset(offset).build(),
            (Way::FromFile(offset), None) => opcode::Read::new(fd, at, len).offset(offset).build(),
            (Way::ToSocket, Some(slot)) => {
                opcode::SendZc::new(fd, at, len).buf_index(Some(slot)).flags(libc::MSG_NOSIGNAL).build()
            }
            (Way::ToSocket, None) => opcode::Send::new(fd, at, len).flags(libc::MSG_NOSIGNAL).build(),
            (Way::FromSocket, Some(slot)) => opcode::ReadFixed::new(fd, at, len, slot).offset(NO_OFFSET).build(),
            (Way::FromSocket, None) => opcode::Read::new(fd, at, len).offset(NO_OFFSET).build(),
        };
        // SAFETY: the caller's promise.
        let moved = match unsafe { self.0.ring.run(operation) } {
            // Unix sockets and old kernels send only copies.
            Err(error) if way == Way::ToSocket && slot.is_some() && has_no_zero_copy(&error) => {
                let operation = opcode::Send::new(fd, at, len).flags(libc::MSG_NOSIGNAL).build();
                // SAFETY: the caller's promise.
                unsafe { self.0.ring.run(operation) }
            }
            moved => moved,
        };
        moved.map(|moved| moved as usize)
    }

    /// Returns whether this is the process that opened the table, and not a fork of it.
    fn check_process(&self) -> io::Result<()> {
        if self.0.process.is_here() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ECHILD)) }
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        self.0.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pins memory in a slot, or lets it go.
    fn set(&self, slot: u32, range: Option<Range>) -> io::Result<()> {
        let base = range.map_or(0, |range| range.start() as usize);
        let iov_base = std::ptr::with_exposed_provenance_mut(base);
        let buffer = libc::iovec { iov_base, iov_len: range.map_or(0, |range| range.len() as usize) };
        // SAFETY: the kernel pins what is there, or refuses; it touches the memory only when `transfer` requests it.
        unsafe { self.0.ring.submitter().register_buffers_update(slot, &[buffer], None) }
    }
}

impl Registrar for BufferTable {
    type Pin = Slot;

    fn pin(&self, range: Range, _access: Access) -> io::Result<Pinned<Slot>> {
        self.check_process()?;
        // The cache lets idle registrations go after this error, and asks again.
        let slot = self.free().pop().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSPC))?;
        if let Err(error) = self.set(slot, Some(range)) {
            self.free().push(slot);
            return Err(error);
        }
        let number = self.0.made.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Pinned { pin: Slot { number: slot, table: self.0.number }, local_key: slot.into(), remote_key: number })
    }

    /// Lets the pages of a slot go. Another table's slot is left as it is.
    fn unpin(&self, Slot { number: slot, table }: Slot) {
        if self.check_process().is_err() {
            return; // What is pinned is the parent's.
        }
        if table != self.0.number {
            return crate::later::later!(error: slot, "a fixed buffer was given to another table than its own; it stays pinned");
        }
        match self.set(slot, None) {
            Ok(()) => self.free().push(slot),
            // Then the slot is not used again, and the pages stay pinned.
            Err(error) => crate::later::later!(warn: slot, %error, "a fixed buffer cannot be unpinned"),
        }
    }
}

impl fmt::Debug for BufferTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (slots, registered) = (self.0.slots, self.registered());
        f.debug_struct("BufferTable").field("slots", &slots).field("registered", &registered).finish()
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;

//! The fixed buffers of a ring as a registrar.

#![expect(unsafe_code, reason = "pins memory and has the kernel move bytes; each block states its own reason")]

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use io_uring::{opcode, types};
use pindown::{Access, Pinned, Range, Registrar};

use super::ring::IoRing;
use super::way::Way;
use crate::system::forked::Process;

/// io_uring's table of fixed buffers. It pins memory, and moves bytes between pinned memory and files or sockets.
/// Clones are handles to the same table.
///
/// As a [`Registrar`] it returns the number of a registration's slot as the local key. The remote key counts
/// registrations, and the kernel does not use it. The kernel pins pages for writing regardless of the requested rights,
/// so memory that this process may not write is rejected with EFAULT.
///
/// The table that assigned a [`Slot`] releases it, once. No other code can add a slot to the free slots.
#[derive(Clone)]
pub struct BufferTable(Arc<Table>);

/// A slot in which memory is pinned, for [`Registrar::unpin`]. If it is dropped instead of unpinned, it stays in use as
/// long as its table is open.
#[must_use = "memory stays pinned until its slot is unpinned"]
#[derive(Debug)]
pub struct Slot {
    number: u32,
    /// The number of the table of this slot.
    table: u64,
}

/// The number of tables opened so far, which is the number of the last one.
static OPENED: AtomicU64 = AtomicU64::new(0);

struct Table {
    /// A number that is unique among the tables of this process.
    number: u64,
    /// The only process that may use the ring. The queues of the ring are memory that is shared with the kernel. A
    /// forked child would share it too.
    process: Process,
    ring: IoRing,
    free: Mutex<Vec<u32>>,
    slots: u32,
    made: AtomicU64,
}

fn has_no_zero_copy(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL))
}

/// The offset for sockets and pipes, which have no offsets.
const NO_OFFSET: u64 = u64::MAX;

impl BufferTable {
    /// Creates a table with this many slots, which is the maximum number of registrations at a time.
    ///
    /// # Errors
    /// The error that the kernel reports. io_uring may be forbidden, and a table has at most 16,384 slots.
    pub fn new(slots: u32) -> io::Result<Self> {
        let process = Process::current()?;
        let ring = IoRing::new()?;
        ring.submitter().register_buffers_sparse(slots)?;
        let free = Mutex::new((0..slots).rev().collect());
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        Ok(Self(Arc::new(Table { number, process, ring, free, slots, made: AtomicU64::new(0) })))
    }

    /// Returns the number of registrations since the table was opened.
    #[must_use]
    pub fn made(&self) -> u64 {
        self.0.made.load(Ordering::Relaxed)
    }

    /// Returns the current number of registrations, or 0 in a forked child of the process that opened the table.
    #[must_use]
    pub fn registered(&self) -> u32 {
        if !self.0.process.is_here() {
            return 0; // Another thread may have held the lock at the time of the fork.
        }
        self.0.slots - self.free().len() as u32
    }

    /// Moves bytes between memory and `other`, and waits until the transfer has ended. With a slot, the memory consists
    /// of the pages that are pinned in the slot, which were at the addresses `range` when they were pinned. Without a
    /// slot, it is the memory that is at these addresses at the moment.
    ///
    /// Returns the number of bytes moved. One call moves at most 1 GiB.
    ///
    /// # Errors
    /// The kernel's error for either end of the transfer. EFAULT if the range is not entirely in the slot; EINVAL if
    /// the offset is beyond the maximum of a file, or the table has no such slot; ECHILD in a forked child of the
    /// process that opened the table.
    ///
    /// # Safety
    /// The memory may be read or written, as the direction requires, until this function returns.
    pub unsafe fn transfer(
        &self,
        slot: Option<u32>,
        range: Range,
        way: Way,
        other: BorrowedFd<'_>,
    ) -> io::Result<usize> {
        self.check_process()?;
        // The kernel interprets an offset beyond the maximum of a file as no offset, and uses the file's current
        // position.
        if let Way::ToFile(offset) | Way::FromFile(offset) = way
            && i64::try_from(offset).is_err()
        {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let fd = types::Fd(other.as_raw_fd());
        let at = std::ptr::with_exposed_provenance_mut::<u8>(range.start() as usize);
        // This is less than the maximum of one operation.
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
        // SAFETY: guaranteed by the caller.
        let moved = match unsafe { self.0.ring.run(operation) } {
            // Unix sockets and old kernels can only send copies.
            Err(error) if way == Way::ToSocket && slot.is_some() && has_no_zero_copy(&error) => {
                let operation = opcode::Send::new(fd, at, len).flags(libc::MSG_NOSIGNAL).build();
                // SAFETY: guaranteed by the caller.
                unsafe { self.0.ring.run(operation) }
            }
            moved => moved,
        };
        moved.map(|moved| moved as usize)
    }

    /// Checks that this is the process that opened the table, and not a forked child of it.
    fn check_process(&self) -> io::Result<()> {
        if self.0.process.is_here() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ECHILD)) }
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        self.0.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pins memory in a slot, or releases the slot's memory.
    fn set(&self, slot: u32, range: Option<Range>) -> io::Result<()> {
        let base = range.map_or(0, |range| range.start() as usize);
        let iov_base = std::ptr::with_exposed_provenance_mut(base);
        let buffer = libc::iovec { iov_base, iov_len: range.map_or(0, |range| range.len() as usize) };
        // SAFETY: the kernel pins the memory or returns an error. It accesses the memory only when `transfer` requests
        // it.
        unsafe { self.0.ring.submitter().register_buffers_update(slot, &[buffer], None) }
    }
}

impl Registrar for BufferTable {
    type Pin = Slot;

    fn pin(&self, range: Range, _access: Access) -> io::Result<Pinned<Slot>> {
        self.check_process()?;
        // After this error the cache releases idle registrations and tries again.
        let slot = self.free().pop().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSPC))?;
        if let Err(error) = self.set(slot, Some(range)) {
            self.free().push(slot);
            return Err(error);
        }
        let number = self.0.made.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Pinned { pin: Slot { number: slot, table: self.0.number }, local_key: slot.into(), remote_key: number })
    }

    /// Releases the pages of a slot. A slot of another table is left unchanged.
    fn unpin(&self, Slot { number: slot, table }: Slot) {
        if self.check_process().is_err() {
            return; // The pinned memory belongs to the parent.
        }
        if table != self.0.number {
            return crate::later::later!(error: slot, "a fixed buffer was returned to a different table; it remains pinned");
        }
        match self.set(slot, None) {
            Ok(()) => self.free().push(slot),
            // The slot is not reused in this case, and the pages stay pinned.
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

//! Fixed buffers behind a registration cache: transfers from and to any memory.

#![expect(unsafe_code, reason = "has the kernel read and write borrowed memory; each block states its own reason")]

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pindown::{Access, Cache, Lane, LookupError, OpenError, Range, Stats};

use super::table::BufferTable;
use super::way::Way;

/// Rights of every registration: the kernel pins for writing in any case, so memory that is sent from and received into has
/// one registration.
const RIGHTS: Access = Access::LOCAL_WRITE;

/// Bytes that one transfer moves at most: a fixed buffer holds 1 GiB, in whole pages.
const MOST_BYTES: usize = 1 << 29;

/// Reads and writes files and sockets from any memory of this process: the memory is pinned by the first transfer, and found
/// again by the next ones, as long as it is the same memory. `Domain::fixed_buffers` of percale opens it.
/// Clones are the same.
///
/// Memory that the kernel does not pin (what this process may not write, most kinds of mapped files, and what is beyond the
/// limits of pinned memory once idle registrations are gone) is transferred all the same, by ordinary operations;
/// [`Self::ordinary_transfers`] counts them.
#[derive(Clone)]
pub struct FixedBuffers {
    table: BufferTable,
    cache: Cache<BufferTable>,
    ordinary: Arc<AtomicU64>,
}

crate::short_debug!(FixedBuffers, "FixedBuffers");

/// One user of [`FixedBuffers`]: a thread.
pub struct FixedLane {
    table: BufferTable,
    lane: Lane<BufferTable>,
    ordinary: Arc<AtomicU64>,
}

/// Why there are no fixed buffers, or why a transfer failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FixedError {
    /// io_uring is not to be had.
    #[error("io_uring with fixed buffers is not available: {0}")]
    NoRing(io::Error),
    /// The registration cache.
    #[error(transparent)]
    Cache(#[from] OpenError),
    /// This is a forked child of the process that opened them.
    #[error(transparent)]
    Registration(#[from] LookupError),
    /// The other end of the transfer.
    #[error("the transfer failed: {0}")]
    Transfer(io::Error),
}

impl FixedError {
    /// The libfabric code.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoRing(error) if error.kind() == io::ErrorKind::Unsupported => libc::ENOSYS,
            Self::NoRing(error) | Self::Transfer(error) => crate::system::call::errno(error).unwrap_or(libc::EIO),
            Self::Cache(error) => error.errno(),
            Self::Registration(error) => error.errno(),
        }
    }
}

impl FixedBuffers {
    /// For a thread's transfers.
    #[must_use]
    pub fn lane(&self) -> FixedLane {
        let (table, lane) = (self.table.clone(), self.cache.lane());
        FixedLane { table, lane, ordinary: Arc::clone(&self.ordinary) }
    }

    /// The table of fixed buffers, which counts registrations.
    #[must_use]
    pub fn table(&self) -> &BufferTable {
        &self.table
    }

    /// What the cache has done.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.cache.stats()
    }

    /// Which monitor watches the memory, and why none of the better ones.
    #[must_use]
    pub fn explanation(&self) -> String {
        self.cache.explanation()
    }

    /// Transfers from and to memory that the kernel does not pin.
    #[must_use]
    pub fn ordinary_transfers(&self) -> u64 {
        self.ordinary.load(Ordering::Relaxed)
    }

    /// Unpins memory that is no longer in use. Transfers that register memory do this in passing.
    pub fn sweep(&self) {
        self.cache.sweep();
    }

    /// Drops every registration.
    pub fn flush(&self) {
        self.cache.flush();
    }
}

/// The fixed buffers of this table, whose registrations `cache` holds.
#[must_use]
pub fn behind(table: BufferTable, cache: Cache<BufferTable>) -> FixedBuffers {
    FixedBuffers { table, cache, ordinary: Arc::default() }
}

impl FixedLane {
    /// Writes to a file, from `offset` on; how many bytes went, which may be fewer.
    ///
    /// # Errors
    /// [`FixedError::Transfer`] with the kernel's error; [`FixedError::Registration`] in a forked child.
    pub fn write(&self, from: &[u8], file: impl AsFd, offset: u64) -> Result<usize, FixedError> {
        // SAFETY: the bytes are borrowed until this returns, and are read.
        unsafe { self.transfer(from.as_ptr(), from.len(), Way::ToFile(offset), file) }
    }

    /// Reads from a file, from `offset` on; how many bytes came: 0 at its end.
    ///
    /// # Errors
    /// As for [`Self::write`].
    pub fn read(&self, into: &mut [u8], file: impl AsFd, offset: u64) -> Result<usize, FixedError> {
        // SAFETY: the bytes are borrowed exclusively until this returns.
        unsafe { self.transfer(into.as_mut_ptr(), into.len(), Way::FromFile(offset), file) }
    }

    /// Sends to a connected socket; how many bytes went, which may be fewer. Where the bytes are not copied (TCP), the send is
    /// over when the other end has acknowledged them.
    ///
    /// # Errors
    /// As for [`Self::write`].
    pub fn send(&self, from: &[u8], socket: impl AsFd) -> Result<usize, FixedError> {
        // SAFETY: the bytes are borrowed until this returns, and are read.
        unsafe { self.transfer(from.as_ptr(), from.len(), Way::ToSocket, socket) }
    }

    /// Receives from a connected socket, or a pipe; how many bytes came: 0 at its end.
    ///
    /// # Errors
    /// As for [`Self::write`].
    pub fn receive(&self, into: &mut [u8], socket: impl AsFd) -> Result<usize, FixedError> {
        // SAFETY: the bytes are borrowed exclusively until this returns.
        unsafe { self.transfer(into.as_mut_ptr(), into.len(), Way::FromSocket, socket) }
    }

    /// # Safety
    /// `len` bytes at `at` may be read, or written, until this returns.
    unsafe fn transfer(&self, at: *const u8, len: usize, way: Way, other: impl AsFd) -> Result<usize, FixedError> {
        let len = len.min(MOST_BYTES) as u64;
        let Ok(range) = Range::new(at.expose_provenance() as u64, len) else { return Ok(0) };
        let moved = match self.lane.get(range, RIGHTS) {
            Ok(used) => {
                // A transfer that waits for its other end may take long.
                let used = if way.waits() { self.lane.hold(used) } else { used };
                let slot = Some(used.local_key() as u32);
                // SAFETY: the caller's promise; the cache gives a registration of the memory that is at these addresses, and
                // it stays pinned until the use ends.
                let moved = unsafe { self.table.transfer(slot, range, way, other.as_fd()) };
                self.lane.end(used);
                moved
            }
            Err(LookupError::Registrar { range: pages, source }) => {
                crate::later::later!(debug: %pages, %source, "memory is not pinned for a transfer");
                self.ordinary.fetch_add(1, Ordering::Relaxed);
                // SAFETY: the caller's promise.
                unsafe { self.table.transfer(None, range, way, other.as_fd()) }
            }
            Err(error) => return Err(error.into()),
        };
        moved.map_err(FixedError::Transfer)
    }
}

impl fmt::Debug for FixedLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FixedLane").field("table", &self.table).finish_non_exhaustive()
    }
}

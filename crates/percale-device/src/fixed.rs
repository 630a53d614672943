//! Fixed buffers of io_uring behind a registration cache, for transfers from and to any memory.

#![expect(unsafe_code, reason = "has the kernel read and write borrowed memory; each block states its own reason")]

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pindown::{Access, Cache, Lane, LookupError, OpenError, Range, Stats};

use super::table::BufferTable;
use super::way::Way;

/// The rights of every registration. The kernel pins pages for writing in any case, so memory that is both sent from
/// and received into has a single registration.
const RIGHTS: Access = Access::LOCAL_WRITE;

/// The maximum number of bytes of one transfer. A fixed buffer can have 1 GiB, in whole pages.
const MOST_BYTES: usize = 1 << 29;

/// Reads and writes files and sockets from any memory of this process. The first transfer pins the memory. Later
/// transfers use the pinned memory again, until other memory is mapped at its addresses. `Domain::fixed_buffers` of
/// percale opens it. Clones are handles to the same object.
///
/// Memory that the kernel does not pin is transferred by ordinary operations, which [`Self::ordinary_transfers`]
/// counts. This applies to memory that this process may not write, to most kinds of mapped files, and to memory beyond
/// the limits of pinned memory after idle registrations were removed.
#[derive(Clone)]
pub struct FixedBuffers {
    table: BufferTable,
    cache: Cache<BufferTable>,
    ordinary: Arc<AtomicU64>,
}

crate::short_debug!(FixedBuffers, "FixedBuffers");

/// The handle of one thread that uses [`FixedBuffers`].
pub struct FixedLane {
    table: BufferTable,
    lane: Lane<BufferTable>,
    ordinary: Arc<AtomicU64>,
}

/// The reason why fixed buffers are not available, or why a transfer failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FixedError {
    /// io_uring is not available.
    #[error("io_uring with fixed buffers is not available: {0}")]
    NoRing(io::Error),
    /// The registration cache returned an error.
    #[error(transparent)]
    Cache(#[from] OpenError),
    /// This process is a forked child of the process that opened the fixed buffers.
    #[error(transparent)]
    Registration(#[from] LookupError),
    /// The kernel reported an error for the transfer.
    #[error("the transfer failed: {0}")]
    Transfer(io::Error),
}

impl FixedError {
    /// Returns the libfabric code.
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
    /// Creates a handle for the transfers of one thread.
    #[must_use]
    pub fn lane(&self) -> FixedLane {
        let (table, lane) = (self.table.clone(), self.cache.lane());
        FixedLane { table, lane, ordinary: Arc::clone(&self.ordinary) }
    }

    /// Returns the table of fixed buffers, which counts registrations.
    #[must_use]
    pub fn table(&self) -> &BufferTable {
        &self.table
    }

    /// Returns statistics of the cache.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.cache.stats()
    }

    /// Returns the monitor that watches the memory, and the reason why no better one is used.
    #[must_use]
    pub fn explanation(&self) -> String {
        self.cache.explanation()
    }

    /// Returns the number of transfers from and to memory that the kernel does not pin.
    #[must_use]
    pub fn ordinary_transfers(&self) -> u64 {
        self.ordinary.load(Ordering::Relaxed)
    }

    /// Unpins memory that is no longer in use. Transfers that register memory also do this.
    pub fn sweep(&self) {
        self.cache.sweep();
    }

    /// Removes every registration.
    pub fn flush(&self) {
        self.cache.flush();
    }
}

/// Creates fixed buffers with this table. `cache` contains its registrations.
#[must_use]
pub fn behind(table: BufferTable, cache: Cache<BufferTable>) -> FixedBuffers {
    FixedBuffers { table, cache, ordinary: Arc::default() }
}

impl FixedLane {
    /// Writes to a file, beginning at `offset`. Returns the number of bytes written, which may be fewer than requested.
    ///
    /// # Errors
    /// [`FixedError::Transfer`] with the kernel's error; [`FixedError::Registration`] in a forked child.
    pub fn write(&self, from: &[u8], file: impl AsFd, offset: u64) -> Result<usize, FixedError> {
        // SAFETY: the bytes are borrowed until this returns, and are only read.
        unsafe { self.transfer(from.as_ptr(), from.len(), Way::ToFile(offset), file) }
    }

    /// Reads from a file, beginning at `offset`. Returns the number of bytes read, which is 0 at the end of the file.
    ///
    /// # Errors
    /// See [`Self::write`].
    pub fn read(&self, into: &mut [u8], file: impl AsFd, offset: u64) -> Result<usize, FixedError> {
        // SAFETY: the bytes are borrowed exclusively until this returns.
        unsafe { self.transfer(into.as_mut_ptr(), into.len(), Way::FromFile(offset), file) }
    }

    /// Sends to a connected socket. Returns the number of bytes sent, which may be fewer than requested. If the bytes
    /// are not copied (TCP), the send ends when the other end has acknowledged them.
    ///
    /// # Errors
    /// See [`Self::write`].
    pub fn send(&self, from: &[u8], socket: impl AsFd) -> Result<usize, FixedError> {
        // SAFETY: the bytes are borrowed until this returns, and are only read.
        unsafe { self.transfer(from.as_ptr(), from.len(), Way::ToSocket, socket) }
    }

    /// Receives from a connected socket or a pipe. Returns the number of bytes received, which is 0 at the end of the
    /// stream.
    ///
    /// # Errors
    /// See [`Self::write`].
    pub fn receive(&self, into: &mut [u8], socket: impl AsFd) -> Result<usize, FixedError> {
        // SAFETY: the bytes are borrowed exclusively until this returns.
        unsafe { self.transfer(into.as_mut_ptr(), into.len(), Way::FromSocket, socket) }
    }

    /// # Safety
    /// The `len` bytes at `at` may be read or written, as the direction requires, until this returns.
    unsafe fn transfer(&self, at: *const u8, len: usize, way: Way, other: impl AsFd) -> Result<usize, FixedError> {
        let len = len.min(MOST_BYTES) as u64;
        let Ok(range) = Range::new(at.expose_provenance() as u64, len) else { return Ok(0) };
        let moved = match self.lane.get(range, RIGHTS) {
            Ok(used) => {
                // A transfer that waits for the process at its other end may take a long time.
                let used = if way.waits() { self.lane.hold(used) } else { used };
                let slot = Some(used.local_key() as u32);
                // SAFETY: guaranteed by the caller. The cache returns a registration of the memory at these addresses,
                // which stays pinned until its use ends.
                let moved = unsafe { self.table.transfer(slot, range, way, other.as_fd()) };
                self.lane.end(used);
                moved
            }
            Err(LookupError::Registrar { range: pages, source }) => {
                crate::later::later!(debug: %pages, %source, "memory is not pinned for a transfer");
                self.ordinary.fetch_add(1, Ordering::Relaxed);
                // SAFETY: guaranteed by the caller.
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

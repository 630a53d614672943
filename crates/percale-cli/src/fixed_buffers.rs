//! io_uring's fixed buffers as a device, which pins memory and transfers data to and from the pinned pages.
//!
//! Fixed buffers hold pages exactly as the memory region of an RDMA adapter does (FOLL_LONGTERM): a transfer through a
//! slot accesses the pinned pages, even if other memory has since been mapped at their addresses. They need no adapter,
//! only a kernel that permits io_uring. The library implements them ([`BufferTable`]). This module transfers only
//! memory that contains no Rust value of this program.

#![expect(unsafe_code, reason = "has the device read and write pinned memory; the block states why it is sound")]

use std::io;

use percale::device::{BufferTable, Slot};
use pindown::{Access, Pinned, Range, Registrar};
use rustix::fd::BorrowedFd;

/// The maximum number of concurrent registrations.
pub(crate) const SLOTS: u32 = 4096;

/// The rights of every registration: pages are pinned for writing.
pub(crate) const ACCESS: Access = Access::LOCAL_WRITE;

/// The device. Clones share one table. The local key of a registration is its slot, and the remote key is its number.
/// Slots are reused.
#[derive(Clone)]
pub(crate) struct FixedBuffers(BufferTable);

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferDirection {
    /// From the pinned pages to a file.
    ToFile,
    /// From a file to the pinned pages.
    FromFile,
}

impl FixedBuffers {
    pub(crate) fn new() -> io::Result<Self> {
        BufferTable::new(SLOTS).map(Self)
    }

    /// Transfers bytes between the start of `file` and the pages that are pinned in `slot` and were mapped at the
    /// addresses `range` at that time. All memory pinned here belongs to [`crate::memory_range`] or to percale, and
    /// contains no Rust value of this program.
    pub(crate) fn transfer(
        &self,
        slot: u32,
        range: Range,
        way: BufferDirection,
        file: BorrowedFd<'_>,
    ) -> io::Result<()> {
        use percale::device::Way as Direction;
        let (mut rest, mut moved) = (range, 0);
        // The kernel may transfer less at a time if another task needs the processor.
        loop {
            let way = match way {
                BufferDirection::ToFile => Direction::ToFile(moved),
                BufferDirection::FromFile => Direction::FromFile(moved),
            };
            // SAFETY: the pinned memory contains no Rust value of this program.
            let now = unsafe { self.0.transfer(Some(slot), rest, way, file) }? as u64;
            moved += now;
            if moved == range.len() {
                return Ok(());
            }
            if now == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            rest = Range::new(range.start() + moved, range.len() - moved).map_err(io::Error::other)?;
        }
    }
}

impl Registrar for FixedBuffers {
    type Pin = Slot;

    fn pin(&self, range: Range, access: Access) -> io::Result<Pinned<Slot>> {
        self.0.pin(range, access)
    }

    fn unpin(&self, slot: Slot) {
        self.0.unpin(slot);
    }
}

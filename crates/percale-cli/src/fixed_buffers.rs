//! io_uring's fixed buffers as a device: memory that is pinned for it, and transfers to and from what was pinned.
//!
//! They hold pages exactly as an adapter's memory region does (FOLL_LONGTERM), and transfers through a slot access
//! those pages whatever has meanwhile been mapped at their addresses. Every machine has them. The library implements
//! them ([`BufferTable`]); here they transfer only bytes in which no value of this program lies.

#![expect(unsafe_code, reason = "has the device read and write pinned memory; the block states why it is sound")]

use std::io;

use percale::device::{BufferTable, Slot};
use pindown::{Access, Pinned, Range, Registrar};
use rustix::fd::BorrowedFd;

/// Registrations at a time.
pub(crate) const SLOTS: u32 = 4096;

/// Rights that every registration has: pages are pinned for writing.
pub(crate) const ACCESS: Access = Access::LOCAL_WRITE;

/// The device. Clones share it. The local key of a registration is its slot, the remote key its number: slots are reused.
#[derive(Clone)]
pub(crate) struct FixedBuffers(BufferTable);

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the pinned pages to a file.
    ToFile,
    /// From a file to the pinned pages.
    FromFile,
}

impl FixedBuffers {
    pub(crate) fn new() -> io::Result<Self> {
        BufferTable::new(SLOTS).map(Self)
    }

    /// Moves bytes between the start of `file` and the pages that are pinned in `slot`: those that lay at the addresses
    /// `range` when they were pinned. All memory that is pinned here is [`crate::lot`]'s or percale's, in which no value of
    /// this program lies.
    pub(crate) fn transfer(&self, slot: u32, range: Range, way: Way, file: BorrowedFd<'_>) -> io::Result<()> {
        use percale::device::Way as Direction;
        let (mut rest, mut moved) = (range, 0);
        // The kernel transfers less at a time if another task wants the processor.
        loop {
            let way = match way {
                Way::ToFile => Direction::ToFile(moved),
                Way::FromFile => Direction::FromFile(moved),
            };
            // SAFETY: no value of this program lies in what is pinned here.
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

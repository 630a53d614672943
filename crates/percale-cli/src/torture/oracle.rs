//! The oracle: memory pinned for a device, and whether the device still sees what the processor sees.
//!
//! The device is io_uring: its fixed buffers hold pages exactly as an adapter's memory region does (FOLL_LONGTERM), and
//! operations on a slot reach those pages whatever has meanwhile been mapped at their addresses. The processor's side is
//! read and written by process_vm_readv(2) and process_vm_writev(2), which walk the page tables as a load or store
//! does, but answer EFAULT where one would end the process.

#![expect(unsafe_code, reason = "has the device read and write pinned memory; the block states why it is sound")]

use std::io;

use percale::device::{BufferTable, Way};
use pindown::{Access, Pinned, Range, Registrar};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::MemfdFlags;

use super::lot;
use crate::limits::kernel::Foreign;

/// Registrations at a time: slots are numbered by 16 bits.
pub(super) const SLOTS: u32 = 4096;

/// Rights that every registration of the torture has: pages are pinned for writing.
pub(super) const ACCESS: Access = Access::LOCAL_WRITE;

/// The device. Clones are the same.
#[derive(Clone)]
pub(super) struct Oracle {
    table: BufferTable,
    process: i32,
}

/// What a use says of its registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// Which registration.
    pub(super) number: u64,
    /// Where the device has it.
    pub(super) slot: u32,
}

impl Seen {
    /// As [`BufferTable`] fills in the keys.
    pub(super) fn of(used: &pindown::Use) -> Self {
        Self { number: used.remote_key(), slot: used.local_key() as u32 }
    }
}

impl Oracle {
    pub(super) fn new() -> io::Result<Self> {
        let process = rustix::process::getpid().as_raw_pid();
        Ok(Self { table: BufferTable::new(SLOTS)?, process })
    }

    /// Moves bytes between the start of `file` and the pages that are pinned in `slot`: those that lay at the addresses
    /// `range` when they were pinned.
    fn transfer(&self, slot: u32, range: Range, way: Way, file: &OwnedFd) -> io::Result<()> {
        // SAFETY: no value of this program lies in memory of the torture: the callers are given ranges of lots.
        let moved = unsafe { self.table.transfer(Some(slot), range, way, file.as_fd()) }?;
        if moved as u64 == range.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// A way to look, for one thread.
    pub(super) fn eye(&self) -> io::Result<Eye> {
        let file = rustix::fs::memfd_create(c"percale-torture", MemfdFlags::CLOEXEC)?;
        Ok(Eye { oracle: self.clone(), file, looks: 0 })
    }
}

impl Registrar for Oracle {
    type Pin = u32;

    fn pin(&self, range: Range, access: Access) -> io::Result<Pinned<u32>> {
        self.table.pin(range, access)
    }

    fn unpin(&self, slot: u32) {
        self.table.unpin(slot);
    }
}

/// Looks through the oracle. Several may look at the same memory at once if each looks at other bytes.
pub(super) struct Eye {
    oracle: Oracle,
    /// Where the device reads from and writes to.
    file: OwnedFd,
    looks: u64,
}

impl Eye {
    /// Whether the pages pinned in `slot` are those that the processor sees at `range`, both ways. What the memory held
    /// is put back.
    ///
    /// # Errors
    /// The processor cannot see or write the memory now, or io_uring refuses.
    pub(super) fn is_current(&mut self, slot: u32, range: Range) -> io::Result<bool> {
        let processor = Foreign { process: self.oracle.process, address: range.start() };
        let mut before = vec![0; range.len() as usize];
        processor.read(0, &mut before)?;
        let current = self.compare(slot, range, processor);
        processor.write(0, &before)?;
        current
    }

    /// As [`Self::is_current`], of 8 bytes that nobody else uses, and without putting back what was there.
    pub(super) fn is_word_current(&mut self, slot: u32, address: u64) -> io::Result<bool> {
        let word = lot::range(address, 8)?;
        self.compare(slot, word, Foreign { process: self.oracle.process, address })
    }

    fn compare(&mut self, slot: u32, range: Range, processor: Foreign) -> io::Result<bool> {
        let mut written = self.pattern(range.len());
        processor.write(0, &written)?;
        self.oracle.transfer(slot, range, Way::ToFile(0), &self.file)?;
        let mut seen = vec![0; written.len()];
        read_all(&self.file, &mut seen)?;
        if seen != written {
            return Ok(false);
        }
        written = self.pattern(range.len());
        write_all(&self.file, &written)?;
        self.oracle.transfer(slot, range, Way::FromFile(0), &self.file)?;
        processor.read(0, &mut seen)?;
        Ok(seen == written)
    }

    /// Bytes that no look had before, each word another.
    fn pattern(&mut self, len: u64) -> Vec<u8> {
        self.looks += 1;
        let start = self.looks.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (0..len / 8).flat_map(|word| start.wrapping_add(word.wrapping_mul(0x2545_f491)).to_ne_bytes()).collect()
    }
}

fn read_all(file: &OwnedFd, bytes: &mut [u8]) -> io::Result<()> {
    let read = rustix::io::pread(file, &mut *bytes, 0)?;
    if read == bytes.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn write_all(file: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    let written = rustix::io::pwrite(file, bytes, 0)?;
    if written == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

//! The oracle: memory pinned for a device, and whether the device still sees what the processor sees.
//!
//! The device is io_uring: its fixed buffers hold pages exactly as an adapter's memory region does (FOLL_LONGTERM), and
//! operations on a slot reach those pages whatever has meanwhile been mapped at their addresses. The processor's side is
//! read and written by process_vm_readv(2) and process_vm_writev(2), which walk the page tables as a load or store
//! does, but answer EFAULT where one would end the process.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pindown::{Access, Pinned, Range, Registrar};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::MemfdFlags;

use super::lot;
use super::ring::{Ring, Way};
use crate::limits::kernel::Foreign;

/// Registrations at a time: slots are numbered by 16 bits.
pub(super) const SLOTS: u32 = 4096;

/// Rights that every registration of the torture has: pages are pinned for writing.
pub(super) const ACCESS: Access = Access::LOCAL_WRITE;

/// The device. Clones are the same.
#[derive(Clone)]
pub(super) struct Oracle(Arc<Shared>);

struct Shared {
    ring: Mutex<Ring>,
    free: Mutex<Vec<u32>>,
    /// Registrations so far: each has its own number, though slots are used again.
    made: AtomicU64,
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
    /// As [`Oracle`] fills in the keys.
    pub(super) fn of(used: &pindown::Use) -> Self {
        Self { number: used.local_key(), slot: used.remote_key() as u32 }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Oracle {
    pub(super) fn new() -> io::Result<Self> {
        let ring = Mutex::new(Ring::new(SLOTS)?);
        let process = rustix::process::getpid().as_raw_pid();
        let free = Mutex::new((0..SLOTS).rev().collect());
        Ok(Self(Arc::new(Shared { ring, free, made: AtomicU64::new(0), process })))
    }

    /// A way to look, for one thread.
    pub(super) fn eye(&self) -> io::Result<Eye> {
        let file = rustix::fs::memfd_create(c"percale-torture", MemfdFlags::CLOEXEC)?;
        Ok(Eye { oracle: self.clone(), file, looks: 0 })
    }
}

impl Registrar for Oracle {
    type Pin = u32;

    fn pin(&self, range: Range, _access: Access) -> io::Result<Pinned<u32>> {
        let slot = locked(&self.0.free).pop().ok_or(io::Error::from_raw_os_error(libc::ENOSPC))?;
        if let Err(error) = locked(&self.0.ring).set_slot(slot, Some(range)) {
            locked(&self.0.free).push(slot);
            return Err(error);
        }
        let number = self.0.made.fetch_add(1, Ordering::Relaxed);
        Ok(Pinned { pin: slot, local_key: number, remote_key: slot.into() })
    }

    fn unpin(&self, slot: u32) {
        match locked(&self.0.ring).set_slot(slot, None) {
            Ok(()) => locked(&self.0.free).push(slot),
            // Then the slot is not used again, and the pages stay pinned.
            Err(error) => eprintln!("percale torture: unpinning slot {slot}: {error}"),
        }
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
        let processor = Foreign { process: self.oracle.0.process, address: range.start() };
        let mut before = vec![0; range.len() as usize];
        processor.read(0, &mut before)?;
        let current = self.compare(slot, range, processor);
        processor.write(0, &before)?;
        current
    }

    /// As [`Self::is_current`], of 8 bytes that nobody else uses, and without putting back what was there.
    pub(super) fn is_word_current(&mut self, slot: u32, address: u64) -> io::Result<bool> {
        let word = lot::range(address, 8)?;
        self.compare(slot, word, Foreign { process: self.oracle.0.process, address })
    }

    fn compare(&mut self, slot: u32, range: Range, processor: Foreign) -> io::Result<bool> {
        let mut written = self.pattern(range.len());
        processor.write(0, &written)?;
        locked(&self.oracle.0.ring).device(slot, range, Way::ToFile, self.file.as_fd())?;
        let mut seen = vec![0; written.len()];
        read_all(&self.file, &mut seen)?;
        if seen != written {
            return Ok(false);
        }
        written = self.pattern(range.len());
        write_all(&self.file, &written)?;
        locked(&self.oracle.0.ring).device(slot, range, Way::FromFile, self.file.as_fd())?;
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

//! io_uring's fixed buffers as a device: memory that is pinned for it, and transfers to and from what was pinned.
//!
//! They hold pages exactly as an adapter's memory region does (FOLL_LONGTERM), and transfers through a slot reach those
//! pages whatever has meanwhile been mapped at their addresses. They are on every machine.

mod ring;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pindown::{Access, Pinned, Range, Registrar};
use rustix::fd::BorrowedFd;

pub(crate) use ring::{Ring, Way};

/// Registrations at a time: slots are numbered by 16 bits.
pub(crate) const SLOTS: u32 = 4096;

/// Rights that every registration has: pages are pinned for writing.
pub(crate) const ACCESS: Access = Access::LOCAL_WRITE;

/// The device. Clones are the same. The local key of a registration is its number, the remote key its slot.
#[derive(Clone)]
pub(crate) struct FixedBuffers(Arc<Shared>);

struct Shared {
    ring: Mutex<Ring>,
    free: Mutex<Vec<u32>>,
    /// Registrations so far: each has its own number, though slots are used again.
    made: AtomicU64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FixedBuffers {
    pub(crate) fn new() -> io::Result<Self> {
        let ring = Mutex::new(Ring::new(SLOTS)?);
        let free = Mutex::new((0..SLOTS).rev().collect());
        Ok(Self(Arc::new(Shared { ring, free, made: AtomicU64::new(0) })))
    }

    /// As [`Ring::transfer`].
    pub(crate) fn transfer(&self, slot: u32, range: Range, way: Way, file: BorrowedFd<'_>) -> io::Result<()> {
        locked(&self.0.ring).transfer(slot, range, way, file)
    }
}

impl Registrar for FixedBuffers {
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
            Err(error) => eprintln!("percale: unpinning slot {slot}: {error}"),
        }
    }
}

//! A domain with an imported monitor, its fixed buffers, and a file at the other end of transfers.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use percale::device::{FixedError, FixedLane};
use percale::pindown::Stats;
use percale::pindown::monitor::imported::Notifier;
use percale::{CacheSettings, Domain, FixedBuffers, Info};
use rustix::fs::MemfdFlags;

use crate::memory::{Memory, filled, pinned};

/// Runs one test at a time, because pinned pages are counted for the process.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn domain(settings: CacheSettings) -> Domain {
    Info::discover().expect("found").domain().registration_cache(settings).open().expect("a domain")
}

pub(crate) fn file() -> OwnedFd {
    rustix::fs::memfd_create(c"percale", MemfdFlags::CLOEXEC).expect("a file")
}

/// Opens fixed buffers. Prints the reason and returns `None` if io_uring is not available.
pub(crate) fn buffers(domain: &Domain, slots: u32) -> Option<FixedBuffers> {
    match domain.fixed_buffers(slots) {
        Ok(buffers) => Some(buffers),
        Err(FixedError::NoRing(why)) => {
            eprintln!("SKIPPED (io_uring): {why}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Imports a monitor of the program, which is responsible for all memory, into this domain.
pub(crate) fn import(domain: &Domain) -> Notifier {
    let (notifier, imported) = Notifier::new(|_, _| true).expect("a descriptor");
    // SAFETY: the tests report every change of the memory that they use for transfers, or unpin it before.
    unsafe { domain.import_monitor(imported) }.expect("the first");
    notifier
}

pub(crate) struct World {
    pub(crate) notifier: Notifier,
    pub(crate) buffers: FixedBuffers,
    pub(crate) lane: FixedLane,
    pub(crate) domain: Domain,
    pub(crate) file: OwnedFd,
    /// The number of pages that were pinned before.
    before: usize,
    _alone: MutexGuard<'static, ()>,
}

impl World {
    pub(crate) fn open(settings: CacheSettings, slots: u32) -> Option<Self> {
        let alone = alone();
        let domain = domain(settings);
        let notifier = import(&domain);
        let buffers = buffers(&domain, slots)?;
        let (lane, before) = (buffers.lane(), pinned());
        Some(Self { notifier, buffers, lane, domain, file: file(), before, _alone: alone })
    }

    /// Writes these bytes to the file, and checks that they are in it.
    pub(crate) fn save(&self, bytes: &[u8]) {
        assert_eq!(self.lane.write(bytes, &self.file, 0).expect("written"), bytes.len());
        let mut seen = vec![0; bytes.len()];
        assert_eq!(rustix::io::pread(&self.file, &mut seen[..], 0).expect("read"), bytes.len());
        assert!(seen == bytes, "the file contains other bytes ({} bytes written)", bytes.len());
    }

    /// Writes the bytes that this seed generates to the file, reads them into `into`, and checks them.
    pub(crate) fn fetch(&self, into: &mut [u8], seed: u8) {
        let wanted = filled(into.len(), seed);
        assert_eq!(rustix::io::pwrite(&self.file, &wanted, 0).expect("written"), wanted.len());
        assert_eq!(self.lane.read(into, &self.file, 0).expect("read"), wanted.len());
        assert!(into == wanted, "other bytes were read");
    }

    /// Maps other pages at the addresses, and notifies the monitor.
    pub(crate) fn replace(&self, memory: &mut Memory) {
        memory.replace(|range| self.notifier.changed(range));
    }

    /// Returns the number of registrations made.
    pub(crate) fn made(&self) -> u64 {
        self.buffers.table().made()
    }

    /// Removes the registrations that can be removed, then returns the number of those that remain.
    pub(crate) fn registered(&self) -> u32 {
        self.buffers.sweep();
        self.buffers.table().registered()
    }

    /// Returns the number of pages that are pinned now.
    pub(crate) fn pinned(&self) -> usize {
        self.buffers.sweep();
        pinned() - self.before
    }

    pub(crate) fn stats(&self) -> Stats {
        self.buffers.stats()
    }
}

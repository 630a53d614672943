//! Assigns the bits of an endpoint's bell to its peers.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::transport::connect::LocalBell;
use crate::transport::shm::{self, BELL_BITS, BELL_BYTES, Bell, Mappings, PAIR_BYTES};

/// A bell with an allocator of its bits. The service thread allocates bits and the engine releases them, both on cold paths.
#[derive(Debug)]
pub(crate) struct Doorbell {
    bell: Arc<Bell>,
    bits: Mutex<Bits>,
}

#[derive(Debug, Default)]
struct Bits {
    /// Released bits, to be reused.
    free: Vec<u32>,
    /// The lowest bit that was never used.
    fresh: u32,
}

impl Doorbell {
    /// Creates a doorbell with all bits free.
    pub(crate) fn new(bell: Arc<Bell>) -> Self {
        Self { bell, bits: Mutex::default() }
    }

    /// Returns the bell itself.
    pub(crate) const fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    fn lock(&self) -> MutexGuard<'_, Bits> {
        self.bits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LocalBell for Doorbell {
    fn descriptors(&self) -> Option<[BorrowedFd<'_>; 2]> {
        self.bell.descriptors()
    }

    fn allocate(&self) -> Option<u32> {
        let mut bits = self.lock();
        bits.free.pop().or_else(|| {
            let bit = bits.fresh;
            (bit < BELL_BITS).then(|| {
                bits.fresh += 1;
                bit
            })
        })
    }

    fn release(&self, bit: u32) {
        self.lock().free.push(bit);
    }

    fn make_pair(&self) -> io::Result<OwnedFd> {
        shm::pair_memory()
    }

    fn map(&self, pair: BorrowedFd<'_>, peer_bell: BorrowedFd<'_>) -> io::Result<Option<Mappings>> {
        Mappings::new(pair, peer_bell).map(Some)
    }

    fn pair_bytes(&self) -> u64 {
        PAIR_BYTES as u64
    }

    fn bell_bytes(&self) -> u64 {
        BELL_BYTES as u64
    }
}

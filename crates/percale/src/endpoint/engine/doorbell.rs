//! Which bit of an endpoint's bell stands for which peer.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::transport::connect::LocalBell;
use crate::transport::shm::{self, BELL_BITS, BELL_BYTES, Bell, Mappings, PAIR_BYTES};

/// A bell with an account of its bits. The service thread takes them, the engine gives them back; cold paths both.
#[derive(Debug)]
pub(crate) struct Doorbell {
    bell: Arc<Bell>,
    bits: Mutex<Bits>,
}

#[derive(Debug, Default)]
struct Bits {
    /// Given back, to be used again.
    free: Vec<u32>,
    /// Never used: this one and all above.
    fresh: u32,
}

impl Doorbell {
    /// A bell of which all bits are free.
    pub(crate) fn new(bell: Arc<Bell>) -> Self {
        Self { bell, bits: Mutex::default() }
    }

    /// The bell itself.
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

//! The objects on which an endpoint sleeps, and the allocation of the bits of its doorbell to its peers.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::epoll;

use crate::connect::LocalBell;
use crate::shm::{self, BELL_BITS, BELL_BYTES, Bell, Mappings, PAIR_BYTES};
use crate::system::call::call;

/// The epoll data of the bell's event. Links use their connection numbers.
pub const BELL: u64 = u64::MAX;

/// The objects on which an endpoint sleeps and through which it is woken up.
#[derive(Clone, Debug)]
pub struct Bedside {
    /// The doorbell that local peers ring.
    pub doorbell: Arc<Doorbell>,
    /// The descriptor that becomes readable when the doorbell rings or a link has an event.
    pub epoll: Arc<OwnedFd>,
}

impl Bedside {
    /// Creates an object that peer processes can ring.
    ///
    /// # Errors
    /// If the shared memory or the descriptors cannot be created.
    pub fn shared() -> io::Result<Self> {
        Self::of(Bell::new()?)
    }

    /// Creates an object that only threads of this process can ring.
    ///
    /// # Errors
    /// Like [`shared`](Self::shared), except for errors of shared memory.
    pub fn private() -> io::Result<Self> {
        Self::of(Bell::private()?)
    }

    fn of(bell: Bell) -> io::Result<Self> {
        let bell = Arc::new(bell);
        let epoll = call("epoll_create1", || epoll::create(epoll::CreateFlags::CLOEXEC))?;
        let data = epoll::EventData::new_u64(BELL);
        call("epoll_ctl", || epoll::add(&epoll, bell.event_fd(), data, epoll::EventFlags::IN))?;
        Ok(Self { doorbell: Arc::new(Doorbell::new(bell)), epoll: Arc::new(epoll) })
    }
}

/// A bell with an allocator for its bits. The service thread allocates bits and the engine releases them, both on cold
/// paths.
#[derive(Debug)]
pub struct Doorbell {
    bell: Arc<Bell>,
    bits: Mutex<Bits>,
}

#[derive(Debug, Default)]
struct Bits {
    /// Released bits that can be reused.
    free: Vec<u32>,
    /// The lowest bit that was never allocated.
    fresh: u32,
}

impl Doorbell {
    /// Creates a doorbell with all bits free.
    #[inline]
    pub fn new(bell: Arc<Bell>) -> Self {
        Self { bell, bits: Mutex::default() }
    }

    /// Returns the bell.
    #[inline]
    pub const fn bell(&self) -> &Arc<Bell> {
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

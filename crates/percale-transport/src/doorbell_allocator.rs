//! The objects on which an endpoint sleeps, and the allocation of the bits of its doorbell to its peers.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::epoll;

use crate::connect::LocalDoorbell;
use crate::shm::{self, DOORBELL_BITS, DOORBELL_BYTES, Doorbell, Mappings, PAIR_BYTES};
use crate::system::call::call;

/// The epoll data of the doorbell's event. Links use their connection numbers.
pub const DOORBELL: u64 = u64::MAX;

/// The objects on which an endpoint sleeps and through which it is woken up.
#[derive(Clone, Debug)]
pub struct WaitState {
    /// The doorbell that local peers ring.
    pub doorbell_allocator: Arc<DoorbellAllocator>,
    /// The descriptor that becomes readable when the doorbell rings or a link has an event.
    pub epoll: Arc<OwnedFd>,
}

impl WaitState {
    /// Creates an object that peer processes can ring.
    ///
    /// # Errors
    /// If the shared memory or the descriptors cannot be created.
    pub fn shared() -> io::Result<Self> {
        Self::of(Doorbell::new()?)
    }

    /// Creates an object that only threads of this process can ring.
    ///
    /// # Errors
    /// Like [`shared`](Self::shared), except for errors of shared memory.
    pub fn private() -> io::Result<Self> {
        Self::of(Doorbell::private()?)
    }

    fn of(doorbell: Doorbell) -> io::Result<Self> {
        let doorbell = Arc::new(doorbell);
        let epoll = call("epoll_create1", || epoll::create(epoll::CreateFlags::CLOEXEC))?;
        let data = epoll::EventData::new_u64(DOORBELL);
        call("epoll_ctl", || epoll::add(&epoll, doorbell.event_fd(), data, epoll::EventFlags::IN))?;
        Ok(Self { doorbell_allocator: Arc::new(DoorbellAllocator::new(doorbell)), epoll: Arc::new(epoll) })
    }
}

/// A doorbell with an allocator for its bits. The service thread allocates bits and the engine releases them, both on
/// cold paths.
#[derive(Debug)]
pub struct DoorbellAllocator {
    doorbell: Arc<Doorbell>,
    bits: Mutex<Bits>,
}

#[derive(Debug, Default)]
struct Bits {
    /// Released bits that can be reused.
    free: Vec<u32>,
    /// The lowest bit that was never allocated.
    fresh: u32,
}

impl DoorbellAllocator {
    /// Creates a doorbell with all bits free.
    #[inline]
    pub fn new(doorbell: Arc<Doorbell>) -> Self {
        Self { doorbell, bits: Mutex::default() }
    }

    /// Returns the doorbell.
    #[inline]
    pub const fn doorbell(&self) -> &Arc<Doorbell> {
        &self.doorbell
    }

    fn lock(&self) -> MutexGuard<'_, Bits> {
        self.bits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LocalDoorbell for DoorbellAllocator {
    fn descriptors(&self) -> Option<[BorrowedFd<'_>; 2]> {
        self.doorbell.descriptors()
    }

    fn allocate(&self) -> Option<u32> {
        let mut bits = self.lock();
        bits.free.pop().or_else(|| {
            let bit = bits.fresh;
            (bit < DOORBELL_BITS).then(|| {
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

    fn map(&self, pair: BorrowedFd<'_>, peer_doorbell: BorrowedFd<'_>) -> io::Result<Option<Mappings>> {
        Mappings::new(pair, peer_doorbell).map(Some)
    }

    fn pair_bytes(&self) -> u64 {
        PAIR_BYTES as u64
    }

    fn doorbell_bytes(&self) -> u64 {
        DOORBELL_BYTES as u64
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The bits are as many as the doorbell has, no two rings have the same bit, and a bit is allocated again only after
    /// its release.
    #[test]
    fn released_bits_are_allocated_again() {
        let allocator = DoorbellAllocator::new(Arc::new(Doorbell::private().unwrap()));
        let all: BTreeSet<u32> = (0..DOORBELL_BITS).collect();
        // Each ring releases its bit before the next one is made.
        for _ in 0..2 * DOORBELL_BITS {
            allocator.release(allocator.allocate().unwrap());
        }
        for _ in 0..2 {
            let allocated: BTreeSet<u32> = std::iter::from_fn(|| allocator.allocate()).collect();
            assert_eq!(allocated, all);
            assert_eq!(allocator.allocate(), None);
            for bit in [DOORBELL_BITS - 1, 0, 77] {
                allocator.release(bit);
                assert_eq!((allocator.allocate(), allocator.allocate()), (Some(bit), None));
            }
            allocated.into_iter().for_each(|bit| allocator.release(bit));
        }
    }
}

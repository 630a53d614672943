//! The memory that the two ends of one connection share, and its layout.
//!
//! The memory is one sealed memfd. It contains a control page, then for each direction 32 lines and a byte ring of 4
//! KiB, then for each direction a large ring. The control page and the small rings are 16 KiB in all. They are backed
//! with pages from the start, and are the whole cost of an idle pair. The pages of a large ring are allocated only when
//! the small ring is too small for the sender. "Direction `d`" is the direction in which side `d` sends.

#![expect(unsafe_code, reason = "names places in shared memory; each block states its own reason")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[cfg(all(any(test, feature = "testing"), not(loom)))]
mod words;

#[cfg(all(any(test, feature = "testing"), not(loom)))]
pub use self::words::SharedWord;
use super::ring::{Area, ConsumerProgress, LINE, RingLine};
use super::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::local_memory::mapping::{Mapping, back, sealed_memfd};
use crate::local_memory::rundown;

/// The size of the control page in bytes. The small ring of side 0 follows it, lines first.
pub(super) const PAGE: usize = 4096;
const IDLE_SHIFT: u32 = 5;
/// The size of a small ring's lines in bytes.
pub(super) const IDLE_LINES: usize = LINE << IDLE_SHIFT;
const IDLE_BULK: usize = 4096;
const IDLE: usize = IDLE_LINES + IDLE_BULK;
const GROWN_SHIFT: u32 = 11;
const GROWN_LINES: usize = LINE << GROWN_SHIFT;
const GROWN_BULK: usize = 512 << 10;
const GROWN: usize = GROWN_LINES + GROWN_BULK;
/// The number of bytes at the start that are backed with pages. This is the memory of an idle pair.
const BACKED: usize = PAGE + 2 * IDLE;
/// The size of the whole memory in bytes. Most of it is not backed with pages.
pub const PAIR_BYTES: usize = BACKED + 2 * GROWN;

/// The longest payload in the small ring.
pub(super) const IDLE_MAX: usize = 2048;
/// The longest payload in the large ring.
pub(super) const GROWN_MAX: usize = 16 << 10;
/// The number of pulls that one side may have in progress at a time. Further pulls wait.
pub(super) const SLOTS: usize = 8;

/// The data that the two ends of one direction exchange besides frames. Each part has its own cache line.
#[derive(Debug)]
#[repr(C)]
pub(super) struct DirectionState {
    credits: CreditLine,
    pub(super) consumer: ConsumerMarks,
    pub(super) producer: ProducerMarks,
}

#[derive(Debug)]
#[repr(C, align(64))]
struct CreditLine([ConsumerProgress; 2]);

/// The fields that the consumer writes.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct ConsumerMarks {
    /// Whether the consumer does not poll this ring, so that the producer must ring its doorbell.
    pub(super) cold: AtomicU32,
    /// Whether the consumer can fence on behalf of a producer that does not fence.
    pub(super) barrier: AtomicU32,
}

/// The fields that the producer writes.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct ProducerMarks {
    /// Whether the producer publishes without fences.
    pub(super) unfenced: AtomicU32,
    /// Whether the producer found no room and may be asleep.
    pub(super) wants_room: AtomicU32,
}

/// One large transfer. The puller owns the slot from the time when it sends its request until the pusher writes a final
/// state.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct TransferSlot {
    /// The number of chunks claimed from the front and from the back, 32 bits each. Both sides add to it.
    pub(super) claimed: AtomicU64,
    pub(super) puller: TransferHalf,
    pub(super) pusher: PusherHalf,
}

/// The state of a transfer that one side publishes.
#[derive(Debug)]
#[repr(C)]
pub(super) struct TransferHalf {
    /// The number of bytes that this side has copied.
    pub(super) done: AtomicU64,
    pub(super) state: AtomicU32,
}

impl TransferHalf {
    /// Publishes the number of bytes that this side has copied.
    #[inline]
    pub(super) fn report(&self, copied: u64) {
        self.done.store(copied, Ordering::Release);
    }

    /// Returns the number of bytes that the other side has copied. These bytes are visible to the caller.
    #[inline]
    pub(super) fn reported(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }
}

#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct PusherHalf(pub(super) TransferHalf);

/// The chunks of one long access that both sides have claimed, and those that the target has finished. There is one
/// line for each side as the initiator.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Claims {
    /// The number of the access, and the index of the next chunk.
    pub(super) next: AtomicU64,
    /// The number of the access, and the number of chunks that the target has claimed and finished.
    pub(super) done: AtomicU64,
    /// The number of the access, and the reason if the target could not copy one of the chunks, otherwise 0. Written
    /// before `done`.
    pub(super) failed: AtomicU64,
}

/// Whether a side has permanently stopped copying to and from the other side's memory in transfers, and stopped lending
/// its own memory for reading. Only that side writes it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct StoppedMark(AtomicU32);

impl StoppedMark {
    #[cfg(loom)]
    pub(super) fn for_model() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Sets the mark. A side calls this after its last copy, and before it reuses memory that it offered.
    pub(super) fn set(&self) {
        self.0.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Returns whether the bytes that were just read from the side's memory may differ from those that the side had
    /// offered.
    pub(super) fn was_set(&self) -> bool {
        fence(Ordering::Acquire);
        self.is_set()
    }

    /// Returns whether the mark is set. The mark is never cleared. Once it is set, all copies of the side have ended
    /// and are visible.
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst) != 0
    }
}

#[derive(Debug)]
#[repr(C)]
struct Control {
    directions: [DirectionState; 2],
    /// Indexed by the side that pulls.
    slots: [[TransferSlot; SLOTS]; 2],
    /// The lines in which each side announces its accesses to the other's regions.
    announcements: [rundown::AnnouncementLine; 2],
    /// The claims of both sides in a long access, indexed by the side that initiates it.
    claims: [Claims; 2],
    /// Indexed by the side that has stopped copying.
    gone: [StoppedMark; 2],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Control>() <= PAGE && size_of::<TransferSlot>() == 128);

/// Identifies one of a direction's two rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingSize {
    Idle,
    Grown,
}

/// Creates the memory of a new pair. The side that connects calls this, and passes the descriptor to the other side.
///
/// # Errors
/// If the memfd cannot be created.
pub fn pair_memory() -> io::Result<OwnedFd> {
    sealed_memfd("percale-pair", PAIR_BYTES, BACKED)
}

/// The mapped memory of a pair and the mapped page of the peer's doorbell. They are mapped while the two endpoints can
/// still connect in another way. They are kept because a second attempt to map them could fail.
#[derive(Debug)]
pub struct Mappings {
    pub(super) pair: Mapping,
    pub(super) doorbell: Mapping,
}

impl Mappings {
    /// Maps both objects, and backs the memory of an idle pair with pages.
    ///
    /// # Errors
    /// The error of the system call.
    #[doc(hidden)]
    pub fn new(pair: BorrowedFd<'_>, doorbell: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self { pair: PairMemory::map(pair)?, doorbell: crate::local_memory::doorbell::PeerDoorbell::map(doorbell)? })
    }
}

/// The mapped memory of a pair.
#[derive(Debug)]
pub(super) struct PairMemory {
    mapping: Mapping,
    memory: OwnedFd,
}

impl PairMemory {
    pub(super) fn new(memory: OwnedFd) -> io::Result<Self> {
        Ok(Self::of(Self::map(memory.as_fd())?, memory))
    }

    /// Creates the pair from its mapped memory.
    pub(super) const fn of(mapping: Mapping, memory: OwnedFd) -> Self {
        Self { mapping, memory }
    }

    fn map(memory: BorrowedFd<'_>) -> io::Result<Mapping> {
        let mapping = Mapping::of(memory, PAIR_BYTES)?;
        // The creator should already have done this. A page that cannot be allocated must cause an error here, not a
        // signal later.
        back(memory, 0, BACKED)?;
        Ok(mapping)
    }

    /// Returns whether the memory is mapped in this process. It is not mapped in a forked child of the process that
    /// mapped it.
    #[inline]
    pub(super) fn is_here(&self) -> bool {
        self.mapping.is_here()
    }

    #[inline]
    fn control(&self) -> &Control {
        // SAFETY: the mapping is page-aligned, larger than a control page, and lives as long as this reference; the
        // control page is atomics only.
        unsafe { &*self.mapping.as_ptr().cast::<Control>() }
    }

    /// Returns the marks of the direction in which `side` sends.
    #[inline]
    pub(super) fn direction(&self, side: usize) -> &DirectionState {
        // The side is 0 or 1. The mask avoids a bounds check for each call.
        &self.control().directions[side & 1]
    }

    /// Returns a slot for pulls of `side`.
    #[inline]
    pub(super) fn slot(&self, side: usize, slot: usize) -> Option<&TransferSlot> {
        self.control().slots[side].get(slot)
    }

    /// Returns the line in which `side` announces its accesses to the other's regions.
    #[inline]
    pub(super) fn announcements(&self, side: usize) -> &rundown::AnnouncementLine {
        &self.control().announcements[side]
    }

    /// Returns the claims of both sides in a long access that `side` initiates.
    pub(super) fn claims(&self, side: usize) -> &Claims {
        &self.control().claims[side]
    }

    /// Returns the mark with which `side` reports that it has permanently stopped copying.
    pub(super) fn gone(&self, side: usize) -> &StoppedMark {
        &self.control().gone[side & 1]
    }

    const fn offset(side: usize, size: RingSize) -> usize {
        match size {
            RingSize::Idle => PAGE + side * IDLE,
            RingSize::Grown => BACKED + side * GROWN,
        }
    }

    /// Allocates the pages of the large ring in which `side` sends.
    pub(super) fn back_grown(&self, side: usize) -> io::Result<()> {
        let offset = Self::offset(side, RingSize::Grown);
        // If fallocate has been forbidden in the meantime, touching the pages is sufficient, as is an allocation by the
        // peer.
        let touch = |error| self.mapping.populate(offset, GROWN).map_err(|_| error);
        back(self.memory.as_fd(), offset, GROWN).or_else(touch)
    }

    /// Returns the ring in which `side` sends. A producer or consumer of this ring must not outlive this pair.
    pub(super) fn area(&self, side: usize, size: RingSize) -> Area {
        let (shift, lines, bulk, max) = match size {
            RingSize::Idle => (IDLE_SHIFT, IDLE_LINES, IDLE_BULK, IDLE_MAX),
            RingSize::Grown => (GROWN_SHIFT, GROWN_LINES, GROWN_BULK, GROWN_MAX),
        };
        let at = self.mapping.as_ptr().wrapping_add(Self::offset(side, size));
        let credits = &raw const self.direction(side).credits.0[size as usize];
        // SAFETY: the ranges lie within the mapping (PAIR_BYTES includes them), on page boundaries, and do not overlap.
        unsafe { Area::new(at.cast::<RingLine>(), shift, at.wrapping_add(lines), bulk, credits, max) }
    }
}

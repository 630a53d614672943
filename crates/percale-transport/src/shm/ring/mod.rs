//! A ring for one direction. It consists of 64-byte lines, and a ring of bytes for payloads that do not fit into lines.
//!
//! # Lines
//! Word 0 of **every** line is a mark word: `{lap: u16, kind: u8, flags: u8, len: u32}` from the lowest bits up. It is
//! written last (Release) and read first (Acquire). Line `p` (counted from the ring's beginning, without wrapping) of a
//! ring of `n` lines carries the lap `p / n + 1` (mod 2^16). Until it is written, the line contains the previous lap,
//! or zero in a new ring, so the check whether it has arrived is one load and one comparison. No other word of a line
//! is ever read as a mark, so old payload cannot be mistaken for a mark.
//!
//! Word 0 is followed by the tag (8 bytes), the data (8, with `Flags::DATA`), the id (8, with `Flags::ID`), then the
//! payload:
//! * A payload that fits stays in the line (48 bytes without extras).
//! * A payload of up to [`INLINE_MAX`] bytes continues in the following lines. Each of these contains a mark word and
//!   56 bytes. Marks are written in order, so the receiver copies the first lines while the sender writes the last.
//!   (The receiver has to assemble such a payload, so a longer one is cheaper in one piece.)
//! * A longer payload goes through the byte ring, in one piece that starts on a cache line. If it does not fit before
//!   the end of the ring, the rest is skipped. Both sides compute the position from the lengths alone; an offset from
//!   the peer is never used.
//!
//! # Credits
//! The consumer publishes how many lines and bytes it has consumed (Release), after each quarter of the ring. The
//! producer reads that (Acquire) only when its credits are used up. A payload takes at most a quarter of a large byte
//! ring and half of the small one, which returns its credits with every payload. So an empty ring always has room for
//! any frame that the producer accepts. One line stays free for the frame that announces a larger ring.
//!
//! No value read from a ring is trusted: kind, flags, lengths and credits are checked when they are read, and only the
//! checked copy is used afterwards.

#![expect(unsafe_code, reason = "names places in shared memory; each block states its own reason")]

mod consumer;
mod producer;
mod room_request;
#[cfg(test)]
mod tests;
mod unfenced;

pub(super) use consumer::{Consumer, FrameMark, RingFrame};
#[cfg(all(any(test, feature = "testing"), not(loom)))]
pub use producer::ForgedLine;
pub(super) use producer::{NoRoom, Producer, Publish};
pub(super) use room_request::{RoomRequest, is_room_requested};
pub(super) use unfenced::{clear_unfenced, is_unfenced, mark_unfenced};

use super::sync::{AtomicU64, Ordering, Shared};
use crate::wire::head::{Flags, FrameKind};

/// The size of a line in bytes, and the alignment of payloads in the byte ring.
pub(super) const LINE: usize = 64;
/// Bytes of payload and extras in a frame's first line.
const FIRST: usize = 48;
/// Bytes of payload in each line after a frame's first.
const NEXT: usize = 56;
/// The longest payload that is sent in lines.
pub(super) const INLINE_MAX: usize = 104;
/// The largest number of bytes in those lines, including extras and unused bytes of the last one.
pub(super) const SCRATCH: usize = FIRST + (INLINE_MAX - (FIRST - 16)).div_ceil(NEXT) * NEXT;
/// Memory in which the payload of several lines is assembled.
pub(super) type AssemblyBuffer = [u8; SCRATCH];
/// One line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct RingLine {
    mark: AtomicU64,
    body: Shared<[u64; 7]>,
}

/// The consumer's progress, counted from the ring's beginning.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct ConsumerProgress {
    lines: AtomicU64,
    bulk: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<RingLine>() == LINE && size_of::<ConsumerProgress>() == 16);

/// The location and size of a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    lines: *const RingLine,
    /// The number of lines is 2 to the power of this. The mask is one less than the number of lines.
    shift: u32,
    mask: u64,
    bulk: *mut u8,
    bulk_bytes: u64,
    credits: *const ConsumerProgress,
    /// The longest payload.
    max: usize,
    /// A cell for each line of the byte ring, because loom tracks cells, not bytes.
    #[cfg(loom)]
    pub(super) cells: *const Shared<()>,
}

// SAFETY: an area contains addresses of shared memory. Its two users are one producer and one consumer, each on any
// thread.
unsafe impl Send for Area {}

impl Area {
    /// Describes a ring of `2^shift` lines and `bulk_bytes` bytes (a power of two, at least four lines' worth).
    ///
    /// # Safety
    /// All of the memory stays mapped while a [`Producer`] or [`Consumer`] of this area lives, and is used only as a
    /// ring.
    pub(super) const unsafe fn new(
        lines: *const RingLine,
        shift: u32,
        bulk: *mut u8,
        bulk_bytes: usize,
        credits: *const ConsumerProgress,
        max: usize,
    ) -> Self {
        assert!(bulk_bytes.is_power_of_two() && shift < 32 && max <= bulk_bytes / 2);
        Self {
            lines,
            shift,
            mask: (1 << shift) - 1,
            bulk,
            bulk_bytes: bulk_bytes as u64,
            credits,
            max,
            #[cfg(loom)]
            cells: std::ptr::null(),
        }
    }

    #[inline]
    const fn count(&self) -> u64 {
        self.mask + 1
    }

    #[inline]
    fn line_ptr(&self, position: u64) -> *const RingLine {
        let index = (position & self.mask) as usize;
        // SAFETY: the index is below the number of lines, which the caller of `new` guaranteed.
        unsafe { self.lines.add(index) }
    }

    /// Returns the mark of the line at `position`, without kind, flags and length.
    #[inline]
    const fn lap(&self, position: u64) -> u16 {
        ((position >> self.shift) as u16).wrapping_add(1)
    }

    #[inline]
    fn credits(&self) -> &ConsumerProgress {
        // SAFETY: guaranteed by the caller of `new`; credits are atomics.
        unsafe { &*self.credits }
    }

    /// Returns where `need` bytes (whole lines) start in a byte ring that is in use up to `at`.
    #[inline]
    const fn bulk_start(&self, at: u64, need: u64) -> u64 {
        let rest = self.bulk_bytes - (at & (self.bulk_bytes - 1));
        if need > rest { at + rest } else { at }
    }

    /// Returns the address of the bytes from `start` on, which `bulk_start` made contiguous.
    #[inline]
    const fn bulk_ptr(&self, start: u64) -> *mut u8 {
        self.bulk.wrapping_add((start & (self.bulk_bytes - 1)) as usize)
    }

    /// Reports to loom that these bytes are about to be read or written.
    #[inline]
    #[cfg_attr(not(loom), expect(unused_variables, clippy::unused_self, reason = "the body is empty without loom"))]
    fn watch(&self, start: u64, need: u64, write: bool) {
        #[cfg(loom)]
        for line in 0..need as usize / LINE {
            let index = (start & (self.bulk_bytes - 1)) as usize / LINE + line;
            // SAFETY: the model made a cell for each line of the byte ring.
            let cell = unsafe { self.cells.add(index) };
            // SAFETY: as above; it outlives the ring's ends.
            let cell = unsafe { &*cell };
            if write { cell.with_mut(|_| ()) } else { cell.with(|_| ()) }
        }
    }

    /// Returns the number of consumed bytes after which credits for them are published.
    const fn bulk_quantum(&self) -> u64 {
        if self.max as u64 > self.bulk_bytes / 4 { 1 } else { self.bulk_bytes / 4 }
    }
}

/// One end's position in a ring: the number of lines since its beginning, and the address and lap of the current line,
/// which are read more often than they change.
#[derive(Clone, Debug)]
struct Cursor {
    at: u64,
    line: *const RingLine,
    lap: u16,
}

// SAFETY: as for an area.
unsafe impl Send for Cursor {}

impl Cursor {
    const fn new(area: &Area) -> Self {
        Self { at: 0, line: area.lines, lap: 1 }
    }

    #[inline]
    fn line(&self) -> &RingLine {
        // SAFETY: the area's owner keeps the lines mapped; lines are atomics and cells, so that other writers may
        // exist beside a reference to one.
        unsafe { &*self.line }
    }

    #[inline]
    fn advance(&mut self, area: &Area, count: u64) {
        self.at += count;
        self.line = area.line_ptr(self.at);
        self.lap = area.lap(self.at);
    }

    /// Advances by one line, with fewer instructions than `advance`.
    #[inline]
    fn step(&mut self, area: &Area) {
        self.at += 1;
        if self.at & area.mask == 0 {
            self.advance(area, 0);
        } else {
            self.line = self.line.wrapping_add(1);
        }
    }
}

/// Returns the number of bytes that data and id occupy in a frame's first line.
#[inline]
const fn extras(flags: Flags) -> usize {
    (flags.contains(Flags::DATA) as usize + flags.contains(Flags::ID) as usize) * 8
}

/// Returns the flags as they are sent: `ACK` implies `ID`.
#[inline]
const fn complete(flags: Flags) -> Flags {
    if flags.contains(Flags::ACK) { flags.union(Flags::ID) } else { flags }
}

#[inline]
const fn word(lap: u16, kind: FrameKind, flags: Flags, len: u32) -> u64 {
    lap as u64 | (kind as u64) << 16 | (flags.bits() as u64) << 24 | (len as u64) << 32
}

impl RingLine {
    /// Waits briefly for the line's mark, and returns whether it was written. The sender is writing the line, but it
    /// may have been interrupted or killed.
    #[cold]
    fn wait_for_line(&self, lap: u16) -> bool {
        let polls = if cfg!(loom) { 1 } else { 64 };
        (0..polls).any(|_| {
            std::hint::spin_loop();
            self.mark.load(Ordering::Acquire) as u16 == lap
        })
    }
}

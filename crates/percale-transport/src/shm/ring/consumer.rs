//! The receiving end of a ring.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
#![expect(unsafe_code, reason = "copies from lines; each block states its own reason")]

use super::super::cache::prefetch_read;
use super::super::sync::Ordering;
use super::{Area, AssemblyBuffer, Cursor, FIRST, INLINE_MAX, LINE, NEXT, complete, extras};
use crate::local_memory::volatile::{View, ViewExt as _};
use crate::wire::head::{Flags, FrameKind, Head};

const TAGGED: u8 = FrameKind::Tagged as u8;
const MESSAGE: u8 = FrameKind::Message as u8;
const COLLECTIVE: u8 = FrameKind::Collective as u8;

/// The mark of a frame that has arrived completely or in part. Only [`Consumer::next`] creates it.
#[derive(Clone, Copy, Debug)]
pub(in crate::shm) struct FrameMark(u64);

/// A frame at the head of a ring.
#[derive(Clone, Copy, Debug)]
pub(in crate::shm) struct RingFrame {
    /// The frame's head.
    pub(in crate::shm) head: Head,
    payload: *const u8,
    lines: u64,
    bulk_end: u64,
}

impl RingFrame {
    /// Returns the address of the payload, `head.len` bytes, which is valid until the frame is consumed.
    #[inline]
    pub(in crate::shm) const fn payload(&self) -> *const u8 {
        self.payload
    }

    /// Returns the payload.
    ///
    /// # Safety
    /// The view must be used only until the frame is consumed, and while the scratch memory that was passed to
    /// [`Consumer::peek_any`] or [`Consumer::payload`] lives.
    #[inline]
    pub(in crate::shm) unsafe fn view<'a>(&self) -> View<'a> {
        // SAFETY: `peek` checked the length against the location of the payload.
        unsafe { View::new(self.payload, self.head.len as usize) }
    }
}

/// The receiving end of a ring.
#[derive(Debug)]
pub(in crate::shm) struct Consumer {
    area: Area,
    /// The next line to read, and the position at which credits have to be published.
    cursor: Cursor,
    lines_due: u64,
    bulk_at: u64,
    bulk_published: u64,
}

impl Consumer {
    /// Creates the receiving end of a ring in memory that was zero before its producer began.
    #[inline]
    pub(in crate::shm) const fn new(area: Area) -> Self {
        let cursor = Cursor::new(&area);
        Self { cursor, lines_due: area.count() / 4, bulk_at: 0, bulk_published: 0, area }
    }

    /// Returns whether no part of a frame has arrived.
    #[inline]
    pub(in crate::shm) fn is_empty(&self) -> bool {
        self.cursor.line().mark.load(Ordering::Acquire) as u16 != self.cursor.lap
    }

    /// Returns the mark of the next frame, if it has arrived completely or in part.
    #[inline]
    pub(in crate::shm) fn next(&self) -> Option<FrameMark> {
        let mark = self.cursor.line().mark.load(Ordering::Acquire);
        (mark as u16 == self.cursor.lap).then_some(FrameMark(mark))
    }

    /// Returns the head of the frame with this mark, if the frame is a message with no flag except [`Flags::DATA`].
    /// This is the most frequent kind, and has the shortest path. (Messages of groups always have remote data.)
    #[inline(always)]
    pub(in crate::shm) fn peek_message(&self, FrameMark(mark): FrameMark) -> Option<Head> {
        let (kind, flags) = ((mark >> 16) as u8, Flags::from_bits_retain((mark >> 24) as u8));
        if !Flags::DATA.contains(flags) {
            return None;
        }
        let kind = match kind {
            TAGGED => FrameKind::Tagged,
            MESSAGE => FrameKind::Message,
            COLLECTIVE if !flags.is_empty() => FrameKind::Collective,
            _ => return None,
        };
        let body = &self.cursor.line().body;
        // SAFETY: the word is the first or second of seven. The peer may write to the words, so each is read once,
        // here.
        let word = |at| body.with(|body| unsafe { body.cast::<u64>().wrapping_add(at).read_volatile() });
        let tag = word(0);
        let data = if flags.is_empty() { 0 } else { word(1) };
        Some(Head { kind, flags, len: (mark >> 32) as u32, tag, data, id: 0 })
    }

    /// Returns the payload of such a message if it lies in one line. It stays in the line until it is consumed.
    #[inline(always)]
    pub(in crate::shm) fn short_payload(&self, head: &Head) -> Option<*const u8> {
        let extras = extras(head.flags);
        let place =
            self.cursor.line().body.with(|body| body.cast::<u8>().wrapping_add(size_of::<u64>()).wrapping_add(extras));
        (head.len as usize <= FIRST.saturating_sub(extras)).then_some(place)
    }

    /// Returns the frame with this mark, of any kind, if it has arrived completely. A payload that spans lines is
    /// copied to `scratch`.
    ///
    /// # Errors
    /// The reason why the frame is invalid.
    pub(in crate::shm) fn peek_any(
        &self,
        FrameMark(mark): FrameMark,
        scratch: &mut AssemblyBuffer,
    ) -> Result<Option<RingFrame>, &'static str> {
        let kind = FrameKind::from_u8((mark >> 16) as u8).ok_or("unknown frame kind")?;
        let flags = Flags::from_bits((mark >> 24) as u8).ok_or("a frame with unknown flags")?;
        if flags != complete(flags) {
            return Err("acknowledgement request without a number");
        }
        let mut words = 0;
        let mut get = || {
            // SAFETY: at most three of the seven words are read. The peer may write to them, so they are read once,
            // here.
            let word = |body: *const [u64; 7]| unsafe { body.cast::<u64>().wrapping_add(words).read_volatile() };
            let value = self.cursor.line().body.with(word);
            words = words.wrapping_add(1);
            value
        };
        let tag = get();
        let data = if flags.contains(Flags::DATA) { get() } else { 0 };
        let id = if flags.contains(Flags::ID) { get() as u32 } else { 0 };
        self.payload(Head { kind, flags, len: (mark >> 32) as u32, tag, data, id }, scratch)
    }

    /// Finds the payload of the frame with this head, if it has arrived completely.
    ///
    /// # Errors
    /// If it is too long.
    pub(in crate::shm) fn payload(
        &self,
        head: Head,
        scratch: &mut AssemblyBuffer,
    ) -> Result<Option<RingFrame>, &'static str> {
        let (len, extras) = (head.len as usize, extras(head.flags));
        let room = FIRST.saturating_sub(extras);
        let payload =
            self.cursor.line().body.with(|body| body.cast::<u8>().wrapping_add(size_of::<u64>()).wrapping_add(extras));
        let mut arrival = RingFrame { head, payload, lines: 1, bulk_end: self.bulk_at };
        if len <= room {
            return Ok(Some(arrival));
        }
        if len <= INLINE_MAX {
            return Ok(self.gather(&mut arrival, room, scratch).then_some(arrival));
        }
        if len > self.area.max {
            return Err("a payload longer than its ring allows");
        }
        let need = len.next_multiple_of(LINE) as u64;
        let start = self.area.bulk_start(self.bulk_at, need);
        self.area.watch(start, need, false);
        arrival.payload = self.area.bulk_ptr(start);
        arrival.bulk_end = start.wrapping_add(need);
        // The payload has at least this many lines.
        for line in 0..INLINE_MAX / LINE {
            prefetch_read(arrival.payload.wrapping_add(line.wrapping_mul(LINE)));
        }
        Ok(Some(arrival))
    }

    /// Assembles a payload that spans lines. Returns false if its last lines have not arrived yet. All lines are copied
    /// whole, because that needs no function call. The unused bytes of the last line are copied to memory behind the
    /// payload, which is never read.
    fn gather(&self, arrival: &mut RingFrame, room: usize, scratch: &mut AssemblyBuffer) -> bool {
        let more = (arrival.head.len as usize).saturating_sub(room).div_ceil(NEXT) as u64;
        let count = more.saturating_add(1);
        for ahead in 1..count.min(5) {
            prefetch_read(self.area.line_ptr(self.cursor.at.wrapping_add(ahead)).cast());
        }
        let mut to = scratch.as_mut_ptr();
        // SAFETY: `FIRST` bytes, of which `room` are payload, end with the first line; the scratch memory is longer.
        unsafe { to.copy_from_nonoverlapping(arrival.payload.wrapping_add(room).wrapping_sub(FIRST), FIRST) };
        arrival.payload = to.wrapping_add(FIRST).wrapping_sub(room);
        to = to.wrapping_add(FIRST);
        let mut cursor = self.cursor.clone();
        for _ in 1..count {
            cursor.step(&self.area);
            let line = cursor.line();
            if line.mark.load(Ordering::Acquire) as u16 != cursor.lap && !line.wait_for_line(cursor.lap) {
                return false;
            }
            // SAFETY: a body has 56 bytes, and the scratch memory has room for that many of each of the lines.
            line.body.with(|body| unsafe { to.copy_from_nonoverlapping(body.cast(), NEXT) });
            to = to.wrapping_add(NEXT);
        }
        arrival.lines = count;
        true
    }

    /// Fetches lines that a streaming sender has probably written.
    #[inline]
    pub(in crate::shm) fn prefetch(&self) {
        prefetch_read(self.area.line_ptr(self.cursor.at.wrapping_add(3)).cast());
    }

    /// Consumes a frame of one line that has nothing in the byte ring. Returns whether credits were published.
    #[inline]
    pub(in crate::shm) fn consume_short(&mut self) -> bool {
        self.cursor.step(&self.area);
        self.give_lines()
    }

    #[inline]
    fn give_lines(&mut self) -> bool {
        let due = self.cursor.at >= self.lines_due;
        if due {
            self.area.credits().lines.store(self.cursor.at, Ordering::Release);
            self.lines_due = self.cursor.at.wrapping_add(self.area.count() / 4);
        }
        due
    }

    /// Consumes a frame. Returns whether credits were published.
    #[inline]
    pub(in crate::shm) fn consume(&mut self, arrival: &RingFrame) -> bool {
        self.cursor.advance(&self.area, arrival.lines);
        let mut published = self.give_lines();
        self.bulk_at = arrival.bulk_end;
        if self.bulk_at.wrapping_sub(self.bulk_published) >= self.area.bulk_quantum() {
            self.area.credits().bulk.store(self.bulk_at, Ordering::Release);
            self.bulk_published = self.bulk_at;
            published = true;
        }
        published
    }
}

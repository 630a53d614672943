//! One directed ring: 64-byte lines, and a ring of bytes for payloads that do not fit into lines.
//!
//! # Lines
//! Word 0 of **every** line is a mark word: `{lap: u16, kind: u8, flags: u8, len: u32}` from the lowest bits up. It is
//! written last (Release) and read first (Acquire). Line `p` (counted from the ring's beginning, without end) of a ring
//! of `n` lines carries the lap `p / n + 1` (mod 2^16); what stands there until it is written is the lap before, or
//! zero in a new ring, so "is it there" is one load and one comparison. Since no other word of a line is ever read as
//! a mark, old payload cannot be mistaken for one.
//!
//! After word 0 stand the tag (8), the data (8, with `Flags::DATA`), the id (8, with `Flags::ID`), then payload:
//! * what fits stays in the line (48 bytes without extras);
//! * up to [`INLINE_MAX`] goes on in the lines that follow, each a mark word and 56 bytes. Marks are written in order,
//!   so the receiver copies the first lines while the sender writes the last. (The receiver has to put such a payload
//!   together: longer ones are cheaper in one piece.)
//! * more goes through the byte ring, in one piece that starts on a cache line: where it does not fit before the end,
//!   the rest is skipped. Both sides compute the place from the lengths alone; no offset of the peer's is ever used.
//!
//! # Credits
//! The consumer publishes how many lines and bytes it is done with (Release), each quarter of the ring; the producer
//! reads that (Acquire) only when what it knew is used up. A payload takes at most a quarter of a large byte ring and
//! half of the small one, whose credits are returned with every payload: so an empty ring always has room for any frame
//! that the producer takes. One line stays free for the frame that announces a larger ring.
//!
//! Nothing read from a ring is trusted: kind, flags, lengths and credits are checked where they are read, and a copy is
//! used afterwards.

#![expect(unsafe_code, reason = "copies to and from lines; each block states its own reason")]

use super::cache::{prefetch_read, prefetch_write};
use super::sync::{AtomicU64, Ordering, Shared, fence, publish_fenced};
use crate::memory::volatile::{Segments, View, copy_short};
use crate::wire::head::{Flags, Head, Kind};

/// Bytes in a line, and what payloads in the byte ring are aligned to.
pub(super) const LINE: usize = 64;
/// Payload and extras in a frame's first line.
const FIRST: usize = 48;
/// Payload in each line after a frame's first.
const NEXT: usize = 56;
/// The longest payload that travels in lines.
pub(super) const INLINE_MAX: usize = 104;
/// What those lines hold at most, extras and unused bytes of the last one included.
pub(super) const SCRATCH: usize = FIRST + (INLINE_MAX - (FIRST - 16)).div_ceil(NEXT) * NEXT;
/// Where the payload of several lines is put together.
pub(super) type Scratch = [u8; SCRATCH];
/// Prefetch for writing no further than this into the byte ring: beyond, the copy's own prefetching has caught up.
const PREFETCH_MAX: usize = 8192;

/// One line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Line {
    mark: AtomicU64,
    body: Shared<[u64; 7]>,
}

/// What the consumer is done with, counted from the ring's beginning.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Credits {
    lines: AtomicU64,
    bulk: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Line>() == LINE && size_of::<Credits>() == 16);

/// Where a ring lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    lines: *const Line,
    /// The number of lines is 2 to the power of this, and one more than the mask.
    shift: u32,
    mask: u64,
    bulk: *mut u8,
    bulk_bytes: u64,
    credits: *const Credits,
    /// The longest payload.
    max: usize,
    /// A cell for each line of the byte ring: loom watches those, not bytes.
    #[cfg(loom)]
    pub(super) cells: *const Shared<()>,
}

// SAFETY: an area is addresses of shared memory; its two users are one producer and one consumer on any threads.
unsafe impl Send for Area {}

impl Area {
    /// A ring of `2^shift` lines and `bulk_bytes` bytes (a power of two, at least four lines' worth).
    ///
    /// # Safety
    /// All of it stays mapped while a [`Producer`] or [`Consumer`] of this area lives, and is used as a ring only.
    pub(super) const unsafe fn new(
        lines: *const Line,
        shift: u32,
        bulk: *mut u8,
        bulk_bytes: usize,
        credits: *const Credits,
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
    fn line_ptr(&self, position: u64) -> *const Line {
        let index = (position & self.mask) as usize;
        // SAFETY: the index is below the number of lines, which `new` was promised.
        unsafe { self.lines.add(index) }
    }

    /// The mark of the line at `position`, without kind, flags and length.
    #[inline]
    const fn lap(&self, position: u64) -> u16 {
        ((position >> self.shift) as u16).wrapping_add(1)
    }

    #[inline]
    fn credits(&self) -> &Credits {
        // SAFETY: promised to `new`; credits are atomics.
        unsafe { &*self.credits }
    }

    /// Where `need` bytes (whole lines) start if the byte ring is used up to `at`.
    #[inline]
    const fn bulk_start(&self, at: u64, need: u64) -> u64 {
        let rest = self.bulk_bytes - (at & (self.bulk_bytes - 1));
        if need > rest { at + rest } else { at }
    }

    /// The bytes from `start` on, which `bulk_start` made contiguous.
    #[inline]
    const fn bulk_ptr(&self, start: u64) -> *mut u8 {
        self.bulk.wrapping_add((start & (self.bulk_bytes - 1)) as usize)
    }

    /// Tells loom that these bytes are about to be read or written.
    #[inline]
    #[cfg_attr(not(loom), expect(unused_variables, clippy::unused_self, reason = "only loom has anything to check"))]
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

    /// After how many bytes consumed they are given back.
    const fn bulk_quantum(&self) -> u64 {
        if self.max as u64 > self.bulk_bytes / 4 { 1 } else { self.bulk_bytes / 4 }
    }
}

/// One end's place in a ring: lines since its beginning, and the line and lap there, which are asked for more often than they change.
#[derive(Clone, Debug)]
struct Cursor {
    at: u64,
    line: *const Line,
    lap: u16,
}

// SAFETY: as an area.
unsafe impl Send for Cursor {}

impl Cursor {
    const fn new(area: &Area) -> Self {
        Self { at: 0, line: area.lines, lap: 1 }
    }

    #[inline]
    fn line(&self) -> &Line {
        // SAFETY: the area's owner keeps the lines mapped; lines are atomics and cells, so that a reference
        // promises nothing about who writes them.
        unsafe { &*self.line }
    }

    #[inline]
    fn advance(&mut self, area: &Area, count: u64) {
        self.at += count;
        self.line = area.line_ptr(self.at);
        self.lap = area.lap(self.at);
    }

    /// As `advance` by one line, in fewer instructions.
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

/// Bytes of data and id in a frame's first line.
#[inline]
const fn extras(flags: Flags) -> usize {
    (flags.contains(Flags::DATA) as usize + flags.contains(Flags::ID) as usize) * 8
}

/// Flags as they travel: `ACK` implies `ID`.
#[inline]
const fn complete(flags: Flags) -> Flags {
    if flags.contains(Flags::ACK) { flags.union(Flags::ID) } else { flags }
}

#[inline]
const fn word(lap: u16, kind: Kind, flags: Flags, len: u32) -> u64 {
    lap as u64 | (kind as u64) << 16 | (flags.bits() as u64) << 24 | (len as u64) << 32
}

/// Why a frame was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// Not now.
    Full,
    /// Never in this ring.
    TooLong,
    /// The consumer claims to have consumed what was not sent.
    BadCredits,
}

/// How a frame's last mark is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Publish {
    /// A plain store; whoever needs a fence makes it later.
    Plain,
    /// Followed by a full fence.
    Fenced,
}

/// The sending end.
#[derive(Debug)]
pub(super) struct Producer {
    area: Area,
    /// The next line to write, and the first that must not be written yet.
    cursor: Cursor,
    limit: u64,
    /// The same of the byte ring.
    bulk_at: u64,
    bulk_limit: u64,
}

impl Producer {
    /// The sending end of a ring whose memory is all zero.
    pub(super) const fn new(area: Area) -> Self {
        let cursor = Cursor::new(&area);
        Self { cursor, limit: area.count() - 1, bulk_at: 0, bulk_limit: area.bulk_bytes, area }
    }

    /// Learns how far the consumer has come.
    #[cold]
    fn refresh(&mut self) -> Result<(), NoRoom> {
        let credits = self.area.credits();
        let lines = credits.lines.load(Ordering::Acquire);
        let bulk = credits.bulk.load(Ordering::Acquire);
        let (limit, bulk_limit) = (lines.wrapping_add(self.area.count() - 1), bulk.wrapping_add(self.area.bulk_bytes));
        if lines > self.cursor.at || limit < self.limit || bulk > self.bulk_at || bulk_limit < self.bulk_limit {
            return Err(NoRoom::BadCredits);
        }
        (self.limit, self.bulk_limit) = (limit, bulk_limit);
        Ok(())
    }

    #[inline(always)]
    fn need_lines(&mut self, count: u64) -> Result<(), NoRoom> {
        if self.cursor.at + count > self.limit {
            self.refresh()?;
            if self.cursor.at + count > self.limit {
                return Err(NoRoom::Full);
            }
        }
        Ok(())
    }

    /// Writes one frame; `payload` has `head.len` bytes. The head goes to other functions by value: while it need not be in
    /// memory, what is known of it when this is inlined costs nothing.
    #[inline(always)]
    pub(super) fn push(&mut self, head: &Head, payload: &Segments, publish: Publish) -> Result<(), NoRoom> {
        let flags = complete(head.flags);
        let len = payload.len();
        debug_assert_eq!(len, head.len as usize, "the head and its payload differ in length");
        let room = FIRST - extras(flags);
        if len <= room {
            self.need_lines(1)?;
            self.first(head, flags, payload, len);
            self.publish_first(head.kind, flags, len as u32, publish);
            self.cursor.step(&self.area);
            prefetch_write(self.area.line_ptr(self.cursor.at + 3).cast());
            Ok(())
        } else if len <= INLINE_MAX {
            self.push_lines(*head, flags, payload, room, publish)
        } else {
            self.push_bulk(*head, flags, payload, publish)
        }
    }

    /// Writes a frame without payload into the line that is kept free for it.
    pub(super) fn push_reserved(&mut self, head: &Head) {
        self.first(head, head.flags, &Segments::EMPTY, 0);
        self.publish_first(head.kind, head.flags, 0, Publish::Plain);
        self.cursor.advance(&self.area, 1);
    }

    /// Fills a frame's first line, all but the mark.
    #[inline(always)]
    fn first(&self, head: &Head, flags: Flags, payload: &Segments, inline: usize) {
        let body = &self.cursor.line().body;
        let mut words = 0;
        let mut put = |value: u64| {
            // SAFETY: at most three of the seven words.
            body.with_mut(|body| unsafe { body.cast::<u64>().wrapping_add(words).write(value) });
            words += 1;
        };
        put(head.tag);
        if flags.contains(Flags::DATA) {
            put(head.data);
        }
        if flags.contains(Flags::ID) {
            put(u64::from(head.id));
        }
        // SAFETY: the caller left room for `inline` bytes behind the words just written.
        let copy = |to: *mut u8| unsafe { payload.copy_start_to_raw(to, inline) };
        body.with_mut(|body| copy(body.cast::<u64>().wrapping_add(words).cast()));
    }

    /// Writes the mark of a frame's first line.
    #[inline]
    fn publish_first(&self, kind: Kind, flags: Flags, len: u32, publish: Publish) {
        let (mark, word) = (&self.cursor.line().mark, word(self.cursor.lap, kind, flags, len));
        match publish {
            Publish::Plain => mark.store(word, Ordering::Release),
            Publish::Fenced => publish_fenced(mark, word),
        }
    }

    #[inline(never)]
    fn push_lines(
        &mut self,
        head: Head,
        flags: Flags,
        payload: &Segments,
        room: usize,
        publish: Publish,
    ) -> Result<(), NoRoom> {
        let [only] = payload.as_slice() else {
            // Put together first: rare.
            let mut bytes = [0; INLINE_MAX];
            let len = payload.copy_to(0, &mut bytes);
            return Segments::lend(&bytes[..len], |whole| self.push_lines(head, flags, whole, room, publish));
        };
        let len = only.len();
        let count = 1 + (len - room).div_ceil(NEXT) as u64;
        self.need_lines(count)?;
        self.first(&head, flags, payload, room);
        self.publish_first(head.kind, flags, len as u32, Publish::Plain);
        let mut from = only.as_ptr().cast_const().wrapping_add(room);
        let mut rest = len - room;
        let mut cursor = self.cursor.clone();
        // Whole lines are the most, and need no call.
        while rest > NEXT {
            cursor.step(&self.area);
            // SAFETY: a line's body has 56 bytes, and more than so many are left of the segment.
            cursor.line().body.with_mut(|body| unsafe { body.cast::<u8>().copy_from_nonoverlapping(from, NEXT) });
            cursor.line().mark.store(word(cursor.lap, head.kind, flags, NEXT as u32), Ordering::Release);
            from = from.wrapping_add(NEXT);
            rest -= NEXT;
        }
        cursor.step(&self.area);
        // SAFETY: as above, with the rest, at most 56 bytes.
        cursor.line().body.with_mut(|body| unsafe { copy_short(from, body.cast(), rest) });
        cursor.line().mark.store(word(cursor.lap, head.kind, flags, rest as u32), Ordering::Release);
        // The receiver that goes to sleep looks at the first line, not at the last: an exchange of the last mark would
        // order only that one.
        if publish == Publish::Fenced {
            fence(Ordering::SeqCst);
        }
        cursor.step(&self.area);
        self.cursor = cursor;
        for ahead in 0..count.min(4) {
            prefetch_write(self.area.line_ptr(self.cursor.at + ahead).cast());
        }
        Ok(())
    }

    #[inline(never)]
    fn push_bulk(&mut self, head: Head, flags: Flags, payload: &Segments, publish: Publish) -> Result<(), NoRoom> {
        let len = payload.len();
        if len > self.area.max {
            return Err(NoRoom::TooLong);
        }
        let need = len.next_multiple_of(LINE) as u64;
        let start = self.area.bulk_start(self.bulk_at, need);
        self.need_lines(1)?;
        if start + need > self.bulk_limit {
            self.refresh()?;
            if start + need > self.bulk_limit {
                return Err(NoRoom::Full);
            }
        }
        self.area.watch(start, need, true);
        let to = self.area.bulk_ptr(start);
        // SAFETY: `bulk_start` left `need` contiguous bytes there, and the credits say that they are free.
        unsafe { payload.copy_to_raw(0, to, len) };
        self.first(&head, flags, &Segments::EMPTY, 0);
        self.publish_first(head.kind, flags, len as u32, publish);
        self.cursor.advance(&self.area, 1);
        self.bulk_at = start + need;
        // The next payload is likely as long: take its lines from the receiver's cache while nobody waits.
        let next = self.area.bulk_ptr(self.area.bulk_start(self.bulk_at, need));
        let end = next.wrapping_add(len.min(PREFETCH_MAX));
        let mut at = next;
        while at < end {
            prefetch_write(at);
            at = at.wrapping_add(LINE);
        }
        Ok(())
    }
}

/// A frame at the head of a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// Its head.
    pub(super) head: Head,
    payload: *const u8,
    lines: u64,
    bulk_end: u64,
}

impl Arrival {
    /// Where its payload lies, `head.len` bytes, until it is consumed.
    #[inline]
    pub(super) const fn payload(&self) -> *const u8 {
        self.payload
    }

    /// The payload.
    ///
    /// # Safety
    /// Only until the frame is consumed, and while the scratch memory that was given to `peek` stands.
    #[inline]
    pub(super) unsafe fn view<'a>(&self) -> View<'a> {
        // SAFETY: `peek` checked the length against where the payload lies.
        unsafe { View::new(self.payload, self.head.len as usize) }
    }
}

/// The receiving end.
#[derive(Debug)]
pub(super) struct Consumer {
    area: Area,
    /// The next line to read, and how far to come before credits are due.
    cursor: Cursor,
    lines_due: u64,
    bulk_at: u64,
    bulk_published: u64,
}

impl Consumer {
    /// The receiving end of a ring whose memory was all zero before its producer began.
    pub(super) const fn new(area: Area) -> Self {
        let cursor = Cursor::new(&area);
        Self { cursor, lines_due: area.count() / 4, bulk_at: 0, bulk_published: 0, area }
    }

    /// Whether a frame has arrived, or has begun to.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.cursor.line().mark.load(Ordering::Acquire) as u16 != self.cursor.lap
    }

    /// The mark of the next frame, if that has arrived or has begun to.
    #[inline]
    pub(super) fn next(&self) -> Option<Mark> {
        let mark = self.cursor.line().mark.load(Ordering::Acquire);
        (mark as u16 == self.cursor.lap).then_some(Mark(mark))
    }

    /// The head of this mark's frame, if it is a message with nothing besides: the commonest, without detours.
    #[inline]
    pub(super) fn peek_message(&self, Mark(mark): Mark) -> Option<Head> {
        let kind = (mark >> 16) as u16;
        let tagged = kind == Kind::Tagged as u16;
        if !(tagged || kind == Kind::Message as u16) {
            return None;
        }
        let kind = if tagged { Kind::Tagged } else { Kind::Message };
        // SAFETY: the first of seven words; the peer may write it, so it is read once, here.
        let tag = self.cursor.line().body.with(|body| unsafe { body.cast::<u64>().read_volatile() });
        Some(Head { kind, flags: Flags::empty(), len: (mark >> 32) as u32, tag, data: 0, id: 0 })
    }

    /// The payload of such a message if it lies in one line, where it stands until it is consumed.
    #[inline]
    pub(super) fn short_payload(&self, head: &Head) -> Option<*const u8> {
        let place = self.cursor.line().body.with(|body| body.cast::<u64>().wrapping_add(1).cast());
        (head.len as usize <= FIRST).then_some(place)
    }

    /// The frame of this mark, whatever it is, if it is all there. A payload that spans lines is copied to `scratch`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn peek_any(&self, Mark(mark): Mark, scratch: &mut Scratch) -> Result<Option<Arrival>, &'static str> {
        let kind = Kind::from_u8((mark >> 16) as u8).ok_or("a frame of no known kind")?;
        let flags = Flags::from_bits((mark >> 24) as u8).ok_or("a frame with unknown flags")?;
        if flags != complete(flags) {
            return Err("a frame that asks for an answer and says not to what");
        }
        let mut words = 0;
        let mut get = || {
            // SAFETY: at most three of the seven words; the peer may write them, so they are read once, here.
            let word = |body: *const [u64; 7]| unsafe { body.cast::<u64>().wrapping_add(words).read_volatile() };
            let value = self.cursor.line().body.with(word);
            words += 1;
            value
        };
        let tag = get();
        let data = if flags.contains(Flags::DATA) { get() } else { 0 };
        let id = if flags.contains(Flags::ID) { get() as u32 } else { 0 };
        self.payload(Head { kind, flags, len: (mark >> 32) as u32, tag, data, id }, scratch)
    }

    /// Finds the payload of this head's frame, if it is all there.
    ///
    /// # Errors
    /// If it is too long.
    pub(super) fn payload(&self, head: Head, scratch: &mut Scratch) -> Result<Option<Arrival>, &'static str> {
        let (len, extras) = (head.len as usize, extras(head.flags));
        let room = FIRST - extras;
        let payload = self.cursor.line().body.with(|body| body.cast::<u8>().wrapping_add(size_of::<u64>() + extras));
        let mut arrival = Arrival { head, payload, lines: 1, bulk_end: self.bulk_at };
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
        arrival.bulk_end = start + need;
        // More than so many lines it has in any case.
        for line in 0..INLINE_MAX / LINE {
            prefetch_read(arrival.payload.wrapping_add(line * LINE));
        }
        Ok(Some(arrival))
    }

    /// Copies a payload that spans lines together; false if its last lines are not there yet. All lines are copied whole,
    /// since that needs no call: what the last one does not use of it lands behind the payload, unread.
    fn gather(&self, arrival: &mut Arrival, room: usize, scratch: &mut Scratch) -> bool {
        let count = 1 + (arrival.head.len as usize - room).div_ceil(NEXT) as u64;
        for ahead in 1..count.min(5) {
            prefetch_read(self.area.line_ptr(self.cursor.at + ahead).cast());
        }
        let mut to = scratch.as_mut_ptr();
        // SAFETY: `FIRST` bytes, of which `room` are payload, end with the first line; the scratch memory is longer.
        unsafe { to.copy_from_nonoverlapping(arrival.payload.wrapping_sub(FIRST - room), FIRST) };
        arrival.payload = to.wrapping_add(FIRST - room);
        to = to.wrapping_add(FIRST);
        let mut cursor = self.cursor.clone();
        for _ in 1..count {
            cursor.step(&self.area);
            let line = cursor.line();
            if line.mark.load(Ordering::Acquire) as u16 != cursor.lap && !line.comes(cursor.lap) {
                return false;
            }
            // SAFETY: a body has 56 bytes, and the scratch memory room for so many of as many lines as there are.
            line.body.with(|body| unsafe { to.copy_from_nonoverlapping(body.cast(), NEXT) });
            to = to.wrapping_add(NEXT);
        }
        arrival.lines = count;
        true
    }

    /// Fetches lines that a streaming sender has probably written.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch_read(self.area.line_ptr(self.cursor.at + 3).cast());
    }

    /// Goes past a frame of one line that has nothing in the byte ring. Whether credits were published.
    #[inline]
    pub(super) fn consume_short(&mut self) -> bool {
        self.cursor.step(&self.area);
        self.give_lines()
    }

    #[inline]
    fn give_lines(&mut self) -> bool {
        let due = self.cursor.at >= self.lines_due;
        if due {
            self.area.credits().lines.store(self.cursor.at, Ordering::Release);
            self.lines_due = self.cursor.at + self.area.count() / 4;
        }
        due
    }

    /// Goes past a frame. Whether credits were published.
    #[inline]
    pub(super) fn consume(&mut self, arrival: &Arrival) -> bool {
        self.cursor.advance(&self.area, arrival.lines);
        let mut published = self.give_lines();
        self.bulk_at = arrival.bulk_end;
        if self.bulk_at - self.bulk_published >= self.area.bulk_quantum() {
            self.area.credits().bulk.store(self.bulk_at, Ordering::Release);
            self.bulk_published = self.bulk_at;
            published = true;
        }
        published
    }
}

/// The mark of a frame that has arrived, or has begun to. Made by [`Consumer::next`] alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark(u64);

impl Line {
    /// Whether the line is written in a moment. Its sender is at it, but may have been interrupted, or killed.
    #[cold]
    fn comes(&self, lap: u16) -> bool {
        let patience = if cfg!(loom) { 0 } else { 64 };
        (0..patience).any(|_| {
            std::hint::spin_loop();
            self.mark.load(Ordering::Acquire) as u16 == lap
        })
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;

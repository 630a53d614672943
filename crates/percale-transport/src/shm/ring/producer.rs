//! The sending end of a ring.

#![expect(unsafe_code, reason = "copies to lines; each block states its own reason")]

use super::super::cache::{can_demote, demote, prefetch_write};
use super::super::sync::{Ordering, fence, publish_fenced};
use super::{Area, Cursor, FIRST, INLINE_MAX, LINE, NEXT, complete, extras, word};
use crate::local_memory::volatile::{Segment, Segments, SegmentsExt as _, copy_short};
use crate::wire::head::{Flags, FrameKind, Head};

/// The longest payload that is written to prefetched lines, through the processor's wide registers. A longer payload is
/// written in whole lines that need not be fetched (as the C library does), so prefetching would only delay it.
const FETCHED: usize = 4096;
/// Like [`FETCHED`], but in a stream, where there is no time to prefetch lines.
const FETCHED_STREAM: usize = 2048;

/// The reason why a frame was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shm) enum NoRoom {
    /// There is no room at the moment.
    Full,
    /// The frame is too long for this ring.
    TooLong,
    /// The consumer claims to have consumed more than was sent.
    BadCredits,
}

/// The way in which a frame's last mark is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shm) enum Publish {
    /// With a plain store. A caller that needs a fence executes it later.
    Plain,
    /// Followed by a full fence.
    Fenced,
}

/// The sending end of a ring.
#[derive(Debug)]
pub(in crate::shm) struct Producer {
    area: Area,
    /// The next line to write, and the first that must not be written yet.
    cursor: Cursor,
    limit: u64,
    /// The corresponding positions in the byte ring.
    bulk_at: u64,
    bulk_limit: u64,
    demotes: bool,
}

impl Producer {
    /// Creates the sending end of a ring in zeroed memory.
    #[inline]
    pub(in crate::shm) fn new(area: Area) -> Self {
        let cursor = Cursor::new(&area);
        let (limit, bulk_limit) = (area.count() - 1, area.bulk_bytes);
        Self { cursor, limit, bulk_at: 0, bulk_limit, demotes: can_demote(), area }
    }

    /// Returns the number of lines that were written since the ring's beginning.
    #[inline]
    pub(in crate::shm) const fn position(&self) -> u64 {
        self.cursor.at
    }

    /// Reads the consumer's credits.
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

    /// Writes one frame; `payload` has `head.len` bytes.
    #[inline]
    pub(in crate::shm) fn push(&mut self, head: &Head, payload: &Segments, publish: Publish) -> Result<(), NoRoom> {
        match payload.only() {
            Some(only) => self.push_one(head, only, publish),
            None if payload.is_empty() => self.push_one(head, Segment::EMPTY, publish),
            None => self.push_several(head, payload, publish),
        }
    }

    /// Like [`push`](Self::push), for a payload in several pieces.
    #[inline(never)]
    fn push_several(&mut self, head: &Head, payload: &Segments, publish: Publish) -> Result<(), NoRoom> {
        if payload.len() > INLINE_MAX {
            return self.push_bulk(*head, complete(head.flags), payload, publish);
        }
        let mut bytes = [0; INLINE_MAX];
        let len = payload.copy_to(0, &mut bytes);
        // SAFETY: the bytes outlive the call, which keeps no reference to them.
        let together = unsafe { Segment::new(bytes.as_mut_ptr(), len) };
        self.push_one(head, together, publish)
    }

    /// Like [`push`](Self::push), for a payload in one piece. The head is passed to other functions by value. As long
    /// as it need not be in memory, checks of constants in it cost nothing when this function is inlined.
    #[inline(always)]
    pub(in crate::shm) fn push_one(&mut self, head: &Head, payload: Segment, publish: Publish) -> Result<(), NoRoom> {
        let flags = complete(head.flags);
        let len = payload.len();
        debug_assert_eq!(len, head.len as usize, "the head and its payload differ in length");
        let room = FIRST - extras(flags);
        if len <= room {
            self.need_lines(1)?;
            self.first(head, flags, payload.as_ptr(), len);
            self.publish_first(head.kind, flags, len as u32, publish);
            self.cursor.step(&self.area);
            if publish == Publish::Plain {
                // This is done only in a stream. In an exchange of single messages, a waiting receiver would fetch the
                // line back.
                prefetch_write(self.area.line_ptr(self.cursor.at + 3).cast());
            }
            Ok(())
        } else if len <= INLINE_MAX {
            self.push_lines(*head, flags, payload, room, publish)
        } else {
            self.push_bulk(*head, flags, &Segments::one(payload), publish)
        }
    }

    /// Writes a frame without payload into the line that is reserved for it.
    #[inline]
    pub(in crate::shm) fn push_reserved(&mut self, head: &Head) {
        self.first(head, head.flags, std::ptr::null(), 0);
        self.publish_first(head.kind, head.flags, 0, Publish::Plain);
        self.cursor.advance(&self.area, 1);
    }

    /// Fills a frame's first line, except for the mark. `inline` bytes of the payload are copied; the caller guarantees
    /// that they fit.
    #[inline(always)]
    fn first(&self, head: &Head, flags: Flags, payload: *const u8, inline: usize) {
        let body = &self.cursor.line().body;
        let mut words = 0;
        let mut put = |value: u64| {
            // SAFETY: at most three of the seven words are written.
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
        // SAFETY: the creator of the segment guaranteed readable memory; the caller left room behind the words just
        // written.
        let copy = |to: *mut u8| unsafe { copy_short(payload, to, inline) };
        body.with_mut(|body| copy(body.cast::<u64>().wrapping_add(words).cast()));
    }

    /// Writes the mark of a frame's first line.
    #[inline]
    fn publish_first(&self, kind: FrameKind, flags: Flags, len: u32, publish: Publish) {
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
        payload: Segment,
        room: usize,
        publish: Publish,
    ) -> Result<(), NoRoom> {
        let len = payload.len();
        let count = 1 + (len - room).div_ceil(NEXT) as u64;
        self.need_lines(count)?;
        self.first(&head, flags, payload.as_ptr(), room);
        self.publish_first(head.kind, flags, len as u32, Publish::Plain);
        let mut from = payload.as_ptr().cast_const().wrapping_add(room);
        let mut rest = len - room;
        let mut cursor = self.cursor.clone();
        // Most lines are whole, and copying them needs no function call.
        while rest > NEXT {
            cursor.step(&self.area);
            // SAFETY: a line's body has 56 bytes, and more than that are left of the segment.
            cursor.line().body.with_mut(|body| unsafe { body.cast::<u8>().copy_from_nonoverlapping(from, NEXT) });
            cursor.line().mark.store(word(cursor.lap, head.kind, flags, NEXT as u32), Ordering::Release);
            from = from.wrapping_add(NEXT);
            rest -= NEXT;
        }
        cursor.step(&self.area);
        // SAFETY: as above, for the rest, which is at most 56 bytes.
        cursor.line().body.with_mut(|body| unsafe { copy_short(from, body.cast(), rest) });
        cursor.line().mark.store(word(cursor.lap, head.kind, flags, rest as u32), Ordering::Release);
        // A receiver that goes to sleep checks the first line, not the last. An atomic exchange of the last mark would
        // order only the last.
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
        let fetched = len <= if publish == Publish::Fenced { FETCHED } else { FETCHED_STREAM };
        if fetched {
            // SAFETY: `bulk_start` left `need` contiguous bytes there, and the credits show that they are free.
            unsafe { payload.copy_in_pieces(to, len) };
        } else {
            // SAFETY: as above.
            unsafe { payload.copy_to_raw(0, to, len) };
        }
        self.first(&head, flags, std::ptr::null(), 0);
        self.publish_first(head.kind, flags, len as u32, publish);
        if fetched && self.demotes && publish == Publish::Fenced {
            // The receiver of a single message already reads the first lines. It gets the other lines faster from the
            // shared cache than from the cache of this core: 4 KiB in 650 ns instead of 780 ns. A stream would take
            // three times as long.
            for line in 0..need as usize / LINE {
                demote(to.wrapping_add(line * LINE));
            }
        }
        self.cursor.advance(&self.area, 1);
        self.bulk_at = start + need;
        if fetched {
            self.fetch(need);
        }
        Ok(())
    }

    /// Prefetches the lines of the next payload from the receiver's cache. The next payload probably has the same
    /// length. Called after a frame was published, so that no receiver waits for the prefetch.
    #[inline]
    fn fetch(&self, need: u64) {
        let next = self.area.bulk_ptr(self.area.bulk_start(self.bulk_at, need));
        for line in 0..need as usize / LINE {
            prefetch_write(next.wrapping_add(line * LINE));
        }
    }
}

/// A line as a misbehaving peer writes it.
#[cfg(all(any(test, feature = "testing"), not(loom)))]
#[derive(Clone, Copy, Debug, Default)]
pub struct ForgedLine {
    /// The number of the frame's kind.
    pub kind: u8,
    /// The frame's flags.
    pub flags: u8,
    /// The length of the payload, as stated in the mark.
    pub len: u32,
    /// The difference between the lap in the mark and the correct lap.
    pub lap: u16,
    /// The words after the mark.
    pub body: [u64; 7],
}

#[cfg(all(any(test, feature = "testing"), not(loom)))]
impl Producer {
    /// Writes a line with arbitrary content, `back` lines before the next one. Only a line that is the next one (`back`
    /// is 0) moves the position.
    pub(in crate::shm) fn forge(&mut self, line: &ForgedLine, back: u64) {
        let at = self.cursor.at - back;
        let cursor = Cursor { at, line: self.area.line_ptr(at), lap: self.area.lap(at) };
        // SAFETY: the body has seven words.
        cursor.line().body.with_mut(|body| unsafe { body.write(line.body) });
        let mark = u64::from(cursor.lap.wrapping_add(line.lap))
            | u64::from(line.kind) << 16
            | u64::from(line.flags) << 24
            | u64::from(line.len) << 32;
        cursor.line().mark.store(mark, Ordering::SeqCst);
        if back == 0 {
            self.cursor.advance(&self.area, 1);
        }
    }
}

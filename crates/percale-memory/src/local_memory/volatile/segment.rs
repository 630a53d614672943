//! Memory of this process, lent to operations.

#![expect(
    unsafe_code,
    reason = "copies through raw pointers by the rules of the module above; each block states its own reason"
)]

use super::copy::{SHORT, copy_long, copy_short};

/// How many segments one operation may gather from or scatter to.
pub const IOV_LIMIT: usize = 4;

/// A range of this process's memory, lent to an operation until that operation completes.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: a segment is an address and a length; its creator promised that the memory may be used from any thread.
unsafe impl Send for Segment {}
// SAFETY: as above; a segment has no state of its own.
unsafe impl Sync for Segment {}

impl Segment {
    /// A segment of no bytes.
    pub const EMPTY: Self = Self { ptr: std::ptr::null_mut(), len: 0 };

    /// Lends `len` bytes from `ptr`.
    ///
    /// # Safety
    /// Until every operation that was given this segment has completed, the range stays allocated; it is not written
    /// by others while an operation sends from it, and neither read nor written by others while one receives into it
    /// (so it must then be writable). "Others" does not include peers to which the range was handed on purpose.
    #[must_use]
    #[inline]
    pub const unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len }
    }

    /// Length in bytes.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the segment has no bytes.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte. Dereferencing it is as unsafe as creating the segment.
    #[must_use]
    #[inline]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// `len` bytes of this segment from `offset`; both are clipped to it.
    #[must_use]
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Self {
        let offset = offset.min(self.len);
        let len = len.min(self.len - offset);
        Self { ptr: self.ptr.wrapping_add(offset), len }
    }
}

/// Copies through a [`Segment`]. For the crates of percale, not for programs.
#[doc(hidden)]
pub trait SegmentExt: Sized {
    /// Copies its first bytes; as many as both have.
    fn copy_to(&self, to: &mut [u8]);
}

impl SegmentExt for Segment {
    #[inline(always)]
    fn copy_to(&self, to: &mut [u8]) {
        let len = self.len.min(to.len());
        if len <= SHORT {
            // SAFETY: the segment's maker promised readable memory; `to` is exclusive, so it overlaps no lent memory.
            unsafe { copy_short(self.ptr, to.as_mut_ptr(), len) };
        } else {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(self.ptr, to.as_mut_ptr(), len) };
        }
    }
}

/// The memory of one operation: up to [`IOV_LIMIT`] segments, read or written as if they stood end to end.
#[derive(Clone, Copy, Debug)]
pub struct Segments {
    list: [Segment; IOV_LIMIT],
    count: usize,
    len: usize,
}

impl Segments {
    /// No memory at all.
    pub const EMPTY: Self = Self { list: [Segment::EMPTY; IOV_LIMIT], count: 0, len: 0 };

    /// One segment.
    #[must_use]
    #[inline]
    pub const fn one(segment: Segment) -> Self {
        let mut list = [Segment::EMPTY; IOV_LIMIT];
        list[0] = segment;
        Self { list, count: 1, len: segment.len }
    }

    /// Several segments; `None` if there are more than [`IOV_LIMIT`] or their lengths overflow.
    #[must_use]
    #[inline]
    pub fn new(segments: &[Segment]) -> Option<Self> {
        let mut all = Self::EMPTY;
        for &segment in segments {
            *all.list.get_mut(all.count)? = segment;
            all.count += 1;
            all.len = all.len.checked_add(segment.len)?;
        }
        Some(all)
    }

    /// Bytes in all.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The segments, in order.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[Segment] {
        &self.list[..self.count]
    }

    /// `len` bytes from `offset` on; both are clipped.
    #[must_use]
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Self {
        if self.count == 1 {
            let piece = self.list[0].slice(offset, len);
            return if piece.is_empty() { Self::EMPTY } else { Self::one(piece) };
        }
        self.slice_several(offset, len)
    }

    fn slice_several(&self, offset: usize, len: usize) -> Self {
        let mut part = Self::EMPTY;
        let (mut skip, mut want) = (offset, len);
        for segment in self.as_slice() {
            let piece = segment.slice(skip, want);
            skip = skip.saturating_sub(segment.len);
            if !piece.is_empty() {
                part.list[part.count] = piece;
                part.count += 1;
                part.len += piece.len;
                want -= piece.len;
            }
        }
        part
    }
}

/// Lends memory as [`Segments`], and copies through them. For the crates of percale, not for programs.
#[doc(hidden)]
pub trait SegmentsExt: Sized {
    /// Lends private bytes for the length of a call, as something to send from.
    fn lend<R>(bytes: &[u8], f: impl FnOnce(&Self) -> R) -> R;

    /// Like [`lend`](Self::lend), but to write to.
    fn lend_mut<R>(bytes: &mut [u8], f: impl FnOnce(&Self) -> R) -> R;

    /// Lends these segments and, behind them, private bytes, as something to send from; `None` if they are too many.
    fn with_tail<R>(&self, tail: &[u8], f: impl FnOnce(&Self) -> R) -> Option<R>;

    /// The only segment, if there is one only.
    fn only(&self) -> Option<Segment>;

    /// Like [`copy_to_raw`](Self::copy_to_raw) from the beginning on, but by the processor's wide registers whatever the length (to 16 KiB).
    ///
    /// # Safety
    /// As for [`copy_to_raw`](Self::copy_to_raw).
    unsafe fn copy_in_pieces(&self, to: *mut u8, len: usize);

    /// Copies `len` bytes from `offset` on to `to`. Clipped to what there is; returns the number of bytes copied.
    ///
    /// # Safety
    /// `to` is valid for writes of `len` bytes and does not overlap the segments.
    unsafe fn copy_to_raw(&self, offset: usize, to: *mut u8, len: usize) -> usize;

    /// Copies the bytes from `offset` on into `to`; returns how many there were.
    fn copy_to(&self, offset: usize, to: &mut [u8]) -> usize;

    /// Everything, copied out.
    #[must_use]
    fn to_vec(self) -> Vec<u8>;

    /// Copies from other segments of this process: at most what both sides have; returns the number of bytes.
    /// The two may overlap (a send to oneself may name the receive buffer).
    fn copy_from(&self, from: &Segments) -> usize;
}

impl SegmentsExt for Segments {
    #[inline]
    fn lend<R>(bytes: &[u8], f: impl FnOnce(&Self) -> R) -> R {
        // SAFETY: the bytes outlive the call, nothing writes through a source, and `f` cannot keep the reference; a
        // transport's `send` never keeps a copy of its payload's segments either.
        f(&Self::one(unsafe { Segment::new(bytes.as_ptr().cast_mut(), bytes.len()) }))
    }

    #[inline]
    fn lend_mut<R>(bytes: &mut [u8], f: impl FnOnce(&Self) -> R) -> R {
        // SAFETY: the borrow is exclusive and outlives the call; `f` uses what it is lent only until it returns.
        f(&Self::one(unsafe { Segment::new(bytes.as_mut_ptr(), bytes.len()) }))
    }

    #[inline]
    fn with_tail<R>(&self, tail: &[u8], f: impl FnOnce(&Self) -> R) -> Option<R> {
        let mut all = *self;
        // SAFETY: as in `lend`.
        *all.list.get_mut(all.count)? = unsafe { Segment::new(tail.as_ptr().cast_mut(), tail.len()) };
        all.count += 1;
        all.len = all.len.checked_add(tail.len())?;
        Some(f(&all))
    }

    #[inline]
    fn only(&self) -> Option<Segment> {
        if self.count == 1 { Some(self.list[0]) } else { None }
    }

    #[inline]
    unsafe fn copy_in_pieces(&self, to: *mut u8, len: usize) {
        match self.only() {
            // SAFETY: the segment's maker promised readable memory; the caller promised `to`.
            Some(segment) => unsafe { copy_long(segment.ptr, to, len.min(segment.len)) },
            None => {
                // SAFETY: passed on.
                unsafe { self.copy_to_raw(0, to, len) };
            }
        }
    }

    #[inline]
    unsafe fn copy_to_raw(&self, offset: usize, to: *mut u8, len: usize) -> usize {
        if self.count == 1 {
            let piece = self.list[0].slice(offset, len);
            if piece.len <= SHORT {
                // SAFETY: the segment's maker promised readable memory; the caller promised `to`.
                unsafe { copy_short(piece.ptr, to, piece.len) };
            } else {
                // SAFETY: as above.
                unsafe { std::ptr::copy_nonoverlapping(piece.ptr, to, piece.len) };
            }
            return piece.len;
        }
        let mut done = 0;
        for piece in self.slice(offset, len).as_slice() {
            // SAFETY: `done + piece.len <= len`, since `slice` was clipped to `len`, and the caller promised so many bytes.
            let to = unsafe { to.add(done) };
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(piece.ptr, to, piece.len) };
            done += piece.len;
        }
        done
    }

    #[inline]
    fn copy_to(&self, offset: usize, to: &mut [u8]) -> usize {
        // SAFETY: `to` is an exclusive slice, so it is writable and overlaps no lent memory.
        unsafe { self.copy_to_raw(offset, to.as_mut_ptr(), to.len()) }
    }

    #[inline]
    fn to_vec(self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.copy_to(0, &mut bytes);
        bytes
    }

    #[inline]
    fn copy_from(&self, from: &Segments) -> usize {
        let mut done = 0;
        for target in self.as_slice() {
            let mut at = 0;
            while at < target.len {
                let rest = from.slice(done, target.len - at);
                let Some(piece) = rest.as_slice().first() else { return done };
                // SAFETY: both segments were promised to their operations; `copy` allows overlap.
                unsafe { std::ptr::copy(piece.ptr, target.ptr.wrapping_add(at), piece.len) };
                at += piece.len;
                done += piece.len;
            }
        }
        done
    }
}

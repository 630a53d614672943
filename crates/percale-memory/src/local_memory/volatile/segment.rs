//! Memory of this process, lent to operations.

#![expect(
    unsafe_code,
    reason = "copies through raw pointers by the rules of the module above; each block states its own reason"
)]

use super::copy::{SHORT, copy_long, copy_short};

/// The maximum number of segments that one operation may gather from or scatter to.
pub const IOV_LIMIT: usize = 4;

/// A range of this process's memory, lent to an operation until that operation completes.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: a segment is an address and a length; its creator guaranteed that the memory may be used from any thread.
unsafe impl Send for Segment {}
// SAFETY: as above; a segment has no state of its own.
unsafe impl Sync for Segment {}

impl Segment {
    /// A segment without bytes.
    pub const EMPTY: Self = Self { ptr: std::ptr::null_mut(), len: 0 };

    /// Lends `len` bytes starting at `ptr`.
    ///
    /// # Safety
    /// Until every operation that was given this segment has completed, the range stays allocated. No other code writes
    /// it while an operation sends from it. No other code reads or writes it while an operation receives into it, and
    /// it must be writable during that time. Peers to which the range was passed on purpose are exempt from this.
    #[must_use]
    #[inline]
    pub const unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len }
    }

    /// Returns the length in bytes.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the segment has no bytes.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte. Dereferencing it is as unsafe as creating the segment.
    #[must_use]
    #[inline]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Returns the `len` bytes of this segment that start at `offset`. Both values are clipped to the segment.
    #[must_use]
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Self {
        let offset = offset.min(self.len);
        let len = len.min(self.len - offset);
        Self { ptr: self.ptr.wrapping_add(offset), len }
    }
}

/// Copies through a [`Segment`]. This is for the crates of percale, not for programs.
#[doc(hidden)]
pub trait SegmentExt: Sized {
    /// Copies bytes from the start of the segment, until the segment or `to` ends.
    fn copy_to(&self, to: &mut [u8]);
}

impl SegmentExt for Segment {
    #[inline(always)]
    fn copy_to(&self, to: &mut [u8]) {
        let len = self.len.min(to.len());
        if len <= SHORT {
            // SAFETY: the creator of the segment guaranteed readable memory. `to` is exclusive, so it does not overlap
            // lent memory.
            unsafe { copy_short(self.ptr, to.as_mut_ptr(), len) };
        } else {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(self.ptr, to.as_mut_ptr(), len) };
        }
    }
}

/// The memory of one operation: up to [`IOV_LIMIT`] segments, which are read or written as one contiguous range.
#[derive(Clone, Copy, Debug)]
pub struct Segments {
    list: [Segment; IOV_LIMIT],
    count: usize,
    len: usize,
}

impl Segments {
    /// No memory.
    pub const EMPTY: Self = Self { list: [Segment::EMPTY; IOV_LIMIT], count: 0, len: 0 };

    /// Creates a list of one segment.
    #[must_use]
    #[inline]
    pub const fn one(segment: Segment) -> Self {
        let mut list = [Segment::EMPTY; IOV_LIMIT];
        list[0] = segment;
        Self { list, count: 1, len: segment.len }
    }

    /// Creates a list of several segments. Returns `None` if there are more than [`IOV_LIMIT`], or if the sum of their
    /// lengths overflows.
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

    /// Returns the total number of bytes.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the segments have no bytes.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the segments, in order.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[Segment] {
        &self.list[..self.count]
    }

    /// Returns the `len` bytes that start at `offset`. Both values are clipped.
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

/// Lends memory as [`Segments`], and copies through them. This is for the crates of percale, not for programs.
#[doc(hidden)]
pub trait SegmentsExt: Sized {
    /// Lends private bytes for the duration of a call, for sending.
    fn lend<R>(bytes: &[u8], f: impl FnOnce(&Self) -> R) -> R;

    /// Lends private bytes for the duration of a call, for receiving.
    fn lend_mut<R>(bytes: &mut [u8], f: impl FnOnce(&Self) -> R) -> R;

    /// Lends these segments followed by private bytes, for sending. Returns `None` if there are too many segments.
    fn with_tail<R>(&self, tail: &[u8], f: impl FnOnce(&Self) -> R) -> Option<R>;

    /// Returns the segment if there is exactly one.
    fn only(&self) -> Option<Segment>;

    /// Like [`copy_to_raw`](Self::copy_to_raw) from the start, but uses the processor's wide registers for any length
    /// up to 16 KiB.
    ///
    /// # Safety
    /// As for [`copy_to_raw`](Self::copy_to_raw).
    unsafe fn copy_in_pieces(&self, to: *mut u8, len: usize);

    /// Copies the `len` bytes that start at `offset` to `to`, clipped to the existing bytes. Returns the number of
    /// bytes copied.
    ///
    /// # Safety
    /// `to` is valid for writes of `len` bytes and does not overlap the segments.
    unsafe fn copy_to_raw(&self, offset: usize, to: *mut u8, len: usize) -> usize;

    /// Copies the bytes starting at `offset` into `to`. Returns the number of bytes copied.
    fn copy_to(&self, offset: usize, to: &mut [u8]) -> usize;

    /// Returns a copy of all bytes.
    #[must_use]
    fn to_vec(self) -> Vec<u8>;

    /// Copies bytes from other segments of this process, until the shorter side ends. Returns the number of bytes
    /// copied. The two sides may overlap (if an endpoint sends to itself, the receive buffer may be the source of the
    /// send).
    fn copy_from(&self, from: &Segments) -> usize;
}

impl SegmentsExt for Segments {
    #[inline]
    fn lend<R>(bytes: &[u8], f: impl FnOnce(&Self) -> R) -> R {
        // SAFETY: the bytes outlive the call, no code writes through a source, and `f` cannot keep the reference; a
        // transport's `send` never keeps a copy of its payload's segments either.
        f(&Self::one(unsafe { Segment::new(bytes.as_ptr().cast_mut(), bytes.len()) }))
    }

    #[inline]
    fn lend_mut<R>(bytes: &mut [u8], f: impl FnOnce(&Self) -> R) -> R {
        // SAFETY: the borrow is exclusive and outlives the call; `f` uses the segments only until it returns.
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
            // SAFETY: the creator of the segment guaranteed readable memory; the caller guaranteed `to`.
            Some(segment) => unsafe { copy_long(segment.ptr, to, len.min(segment.len)) },
            None => {
                // SAFETY: the caller meets the same requirements.
                unsafe { self.copy_to_raw(0, to, len) };
            }
        }
    }

    #[inline]
    unsafe fn copy_to_raw(&self, offset: usize, to: *mut u8, len: usize) -> usize {
        if self.count == 1 {
            let piece = self.list[0].slice(offset, len);
            if piece.len <= SHORT {
                // SAFETY: the creator of the segment guaranteed readable memory; the caller guaranteed `to`.
                unsafe { copy_short(piece.ptr, to, piece.len) };
            } else {
                // SAFETY: as above.
                unsafe { std::ptr::copy_nonoverlapping(piece.ptr, to, piece.len) };
            }
            return piece.len;
        }
        let mut done = 0;
        for piece in self.slice(offset, len).as_slice() {
            // SAFETY: `done + piece.len <= len`, because `slice` was clipped to `len`, and the caller guaranteed this
            // many bytes.
            let to = unsafe { to.add(done) };
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(piece.ptr, to, piece.len) };
            done += piece.len;
        }
        done
    }

    #[inline]
    fn copy_to(&self, offset: usize, to: &mut [u8]) -> usize {
        // SAFETY: `to` is an exclusive slice, so it is writable and does not overlap lent memory.
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
                // SAFETY: both segments are lent to their operations; `copy` allows overlap.
                unsafe { std::ptr::copy(piece.ptr, target.ptr.wrapping_add(at), piece.len) };
                at += piece.len;
                done += piece.len;
            }
        }
        done
    }
}

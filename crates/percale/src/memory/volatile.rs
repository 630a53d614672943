//! Memory that somebody else may read or write while we do.
//!
//! Two rules, after which everything else in the crate can be safe code:
//!
//! 1. Such memory is never a `&[u8]` or `&mut [u8]`: a reference promises that nobody else writes, and a peer keeps no
//!    promises. It is a [`Segment`] (ours, lent by whoever posted an operation) or a [`View`] (what arrived), both of
//!    which only ever copy.
//! 2. What was copied out is checked after the copy, never before: the original may change in between.
//!
//! Words that two processes synchronise on are atomics and live with their protocol (`transport::shm`).

#![expect(unsafe_code, reason = "copies through raw pointers; the rules are above, each block states its own")]

use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// How many segments one operation may gather from or scatter to.
pub const IOV_LIMIT: usize = 4;

/// A range of this process's memory, lent to an operation until that operation completes.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: a segment is an address and a length; whoever made it promised that the memory may be used from any thread.
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
    pub const unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the segment has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte. Following it is as unsafe as making the segment was.
    #[must_use]
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

    /// Lends private bytes for the length of a call, as something to send from.
    pub fn lend<R>(bytes: &[u8], f: impl FnOnce(&Self) -> R) -> R {
        // SAFETY: the bytes outlive the call, nothing writes through a source, and `f` cannot keep the reference; a
        // transport's `send` never keeps a copy of its payload's segments either.
        f(&Self::one(unsafe { Segment::new(bytes.as_ptr().cast_mut(), bytes.len()) }))
    }

    /// As [`lend`](Self::lend), as something to write to.
    pub fn lend_mut<R>(bytes: &mut [u8], f: impl FnOnce(&Self) -> R) -> R {
        // SAFETY: the borrow is exclusive and outlives the call; `f` uses what it is lent only until it returns.
        f(&Self::one(unsafe { Segment::new(bytes.as_mut_ptr(), bytes.len()) }))
    }

    /// Lends these segments and, behind them, private bytes, as something to send from; `None` if they are too many.
    pub fn with_tail<R>(&self, tail: &[u8], f: impl FnOnce(&Self) -> R) -> Option<R> {
        let mut all = *self;
        // SAFETY: as in `lend`.
        *all.list.get_mut(all.count)? = unsafe { Segment::new(tail.as_ptr().cast_mut(), tail.len()) };
        all.count += 1;
        all.len = all.len.checked_add(tail.len())?;
        Some(f(&all))
    }

    /// Several segments; `None` if there are more than [`IOV_LIMIT`] or their lengths overflow.
    #[must_use]
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
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The segments, in order.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[Segment] {
        &self.list[..self.count]
    }

    /// The only segment, if there is one only.
    #[inline]
    pub(crate) const fn only(&self) -> Option<Segment> {
        if self.count == 1 { Some(self.list[0]) } else { None }
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

    /// Copies `len` bytes from `offset` on to `to`. Clipped to what there is; returns the number of bytes copied.
    ///
    /// # Safety
    /// `to` is valid for writes of `len` bytes and does not overlap the segments.
    #[inline]
    pub unsafe fn copy_to_raw(&self, offset: usize, to: *mut u8, len: usize) -> usize {
        if self.count == 1 {
            let piece = self.list[0].slice(offset, len);
            // SAFETY: the segment's maker promised readable memory; the caller promised `to`.
            unsafe { std::ptr::copy_nonoverlapping(piece.ptr, to, piece.len) };
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

    /// Copies the first `len` bytes, which must exist and be no more than 64.
    ///
    /// # Safety
    /// As of [`copy_to_raw`](Self::copy_to_raw).
    #[inline(always)]
    pub(crate) unsafe fn copy_start_to_raw(&self, to: *mut u8, len: usize) {
        if len <= self.list[0].len {
            // SAFETY: the segment's maker promised readable memory; the caller promised `to`.
            unsafe { copy_short(self.list[0].ptr, to, len) };
        } else {
            // SAFETY: passed on.
            unsafe { self.copy_to_raw(0, to, len) };
        }
    }

    /// Copies the bytes from `offset` on into `to`; returns how many there were.
    pub fn copy_to(&self, offset: usize, to: &mut [u8]) -> usize {
        // SAFETY: `to` is an exclusive slice, so it is writable and overlaps no lent memory.
        unsafe { self.copy_to_raw(offset, to.as_mut_ptr(), to.len()) }
    }

    /// Everything, copied out.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.copy_to(0, &mut bytes);
        bytes
    }

    /// Copies from other segments of this process: at most what both sides have; returns the number of bytes.
    /// The two may overlap (a send to oneself may name the receive buffer).
    pub fn copy_from(&self, from: &Segments) -> usize {
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

    /// Calls `f` with `prefix` followed by the segments from `offset` on, as the kernel's vectors for sending.
    pub fn with_io_slices<R>(&self, prefix: &[u8], offset: usize, f: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        let mut vectors = [IoSlice::new(&[]); IOV_LIMIT + 1];
        let mut count = 0;
        if !prefix.is_empty() {
            vectors[0] = IoSlice::new(prefix);
            count = 1;
        }
        for piece in self.slice(offset, usize::MAX).as_slice() {
            // SAFETY: the memory is readable until the operation completes; the slice goes to the kernel only, which
            // does not care whether a peer writes it meanwhile.
            vectors[count] = IoSlice::new(unsafe { std::slice::from_raw_parts(piece.ptr, piece.len) });
            count += 1;
        }
        f(&vectors[..count])
    }

    /// Calls `f` with the segments from `offset` on, at most `len` bytes, followed by `tail`, as the kernel's vectors
    /// for receiving.
    pub fn with_io_slices_mut<R>(
        &self,
        offset: usize,
        len: usize,
        tail: &mut [u8],
        f: impl FnOnce(&mut [IoSliceMut<'_>]) -> R,
    ) -> R {
        let mut vectors: [IoSliceMut<'_>; IOV_LIMIT + 1] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let mut count = 0;
        for piece in self.slice(offset, len).as_slice() {
            // SAFETY: the memory is writable and the operation's alone until it completes; the slice goes to the
            // kernel only and ends before `f` returns.
            vectors[count] = IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(piece.ptr, piece.len) });
            count += 1;
        }
        if !tail.is_empty() {
            vectors[count] = IoSliceMut::new(tail);
            count += 1;
        }
        f(&mut vectors[..count])
    }
}

/// The most that [`copy_short`] copies.
const SHORT: usize = 64;

/// Copies at most 64 bytes; 8, the commonest of all, without a call.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, and they do not overlap.
#[inline]
pub(crate) unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
    if len == 8 {
        // SAFETY: promised by the caller.
        unsafe { to.copy_from_nonoverlapping(from, 8) };
    } else {
        // SAFETY: passed on.
        unsafe { copy_odd(from, to, len) };
    }
}

/// # Safety
/// As of [`copy_short`].
#[inline(never)]
unsafe fn copy_odd(from: *const u8, to: *mut u8, len: usize) {
    debug_assert!(len <= SHORT, "{len} bytes are not short");
    if len >= 32 {
        // SAFETY: passed on; 32 to 64 bytes.
        unsafe { copy_ends::<32>(from, to, len) };
    } else if len >= 16 {
        // SAFETY: passed on; 16 to 31 bytes.
        unsafe { copy_ends::<16>(from, to, len) };
    } else if len >= 8 {
        // SAFETY: passed on; 8 to 15 bytes.
        unsafe { copy_ends::<8>(from, to, len) };
    } else if len >= 4 {
        // SAFETY: passed on; 4 to 7 bytes.
        unsafe { copy_ends::<4>(from, to, len) };
    } else {
        for at in 0..len {
            // SAFETY: `at` is below `len`, so that the caller's promise covers it, here and below.
            let byte = unsafe { from.wrapping_add(at).read() };
            // SAFETY: as above.
            unsafe { to.wrapping_add(at).write(byte) };
        }
    }
}

/// Copies the first and the last `N` bytes, which overlap unless there are twice as many.
///
/// # Safety
/// As of [`copy_short`], and `N <= len <= 2 * N`.
#[inline]
unsafe fn copy_ends<const N: usize>(from: *const u8, to: *mut u8, len: usize) {
    let last = len - N;
    // SAFETY: `N <= len`, here and below.
    let first_bytes = unsafe { from.cast::<[u8; N]>().read() };
    // SAFETY: `last + N` is `len`, here and below.
    let last_bytes = unsafe { from.wrapping_add(last).cast::<[u8; N]>().read() };
    // SAFETY: as above.
    unsafe { to.cast::<[u8; N]>().write(first_bytes) };
    // SAFETY: as above.
    unsafe { to.wrapping_add(last).cast::<[u8; N]>().write(last_bytes) };
}

/// Bytes that arrived and may still change under our eyes (a ring slot), or that are ours already (a receive buffer).
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    ptr: *const u8,
    len: usize,
    life: PhantomData<&'a [u8]>,
}

impl<'a> View<'a> {
    /// No bytes.
    pub const EMPTY: Self = Self { ptr: std::ptr::null(), len: 0, life: PhantomData };

    /// A view of private bytes.
    #[must_use]
    pub const fn of(bytes: &'a [u8]) -> Self {
        Self { ptr: bytes.as_ptr(), len: bytes.len(), life: PhantomData }
    }

    /// A view of `len` bytes from `ptr`.
    ///
    /// # Safety
    /// The range stays mapped and readable for `'a`. Others may write it.
    #[must_use]
    #[inline]
    pub const unsafe fn new(ptr: *const u8, len: usize) -> Self {
        Self { ptr, len, life: PhantomData }
    }

    /// Length in bytes.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first `len` bytes, or all if there are fewer.
    #[must_use]
    pub fn first(&self, len: usize) -> Self {
        Self { len: self.len.min(len), ..*self }
    }

    /// Copies to the start of one segment; clipped to it; returns the number of bytes copied.
    #[inline]
    pub fn copy_to_one(&self, to: Segment) -> usize {
        let len = self.len.min(to.len);
        if len <= SHORT {
            // SAFETY: as in `copy_into`.
            unsafe { copy_short(self.ptr, to.ptr, len) };
        } else {
            // SAFETY: as in `copy_into`.
            unsafe { to.ptr.copy_from_nonoverlapping(self.ptr, len) };
        }
        len
    }

    /// Copies to `to` from its byte `at` on; clipped to both; returns the number of bytes copied.
    #[inline]
    pub fn copy_into(&self, to: &Segments, at: usize) -> usize {
        if let [only] = to.as_slice() {
            let target = only.slice(at, self.len);
            // SAFETY: the view is readable for `'a`, the segment writable for its operation; ring slots and receive
            // buffers are never lent as segments, so the two do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(self.ptr, target.ptr, target.len) };
            return target.len;
        }
        let mut done = 0;
        for target in to.slice(at, self.len).as_slice() {
            // SAFETY: as above; `done + target.len <= self.len`, since the slice was clipped to it.
            unsafe { std::ptr::copy_nonoverlapping(self.ptr.wrapping_add(done), target.ptr, target.len) };
            done += target.len;
        }
        done
    }

    /// Copies what fits into `bytes`; returns how much that was.
    #[inline]
    pub fn read_into(&self, bytes: &mut [u8]) -> usize {
        let len = self.len.min(bytes.len());
        // SAFETY: the view is readable for `'a`; the slice is exclusive and has room for `len`.
        unsafe { std::ptr::copy_nonoverlapping(self.ptr, bytes.as_mut_ptr(), len) };
        len
    }

    /// Everything, copied out.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        // SAFETY: the view is readable for `'a`; the vector is new, has room and overlaps nothing.
        unsafe { std::ptr::copy_nonoverlapping(self.ptr, bytes.as_mut_ptr(), self.len) };
        bytes
    }

    /// A plain value at `offset`, copied out first (so that what is checked is what is used); `None` past the end.
    #[must_use]
    pub fn read<T: FromBytes + IntoBytes + Immutable>(&self, offset: usize) -> Option<T> {
        let size = size_of::<T>();
        if offset.checked_add(size)? > self.len {
            return None;
        }
        let mut value = T::new_zeroed();
        // SAFETY: the range was just checked to lie within the view; `T` takes any bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(self.ptr.wrapping_add(offset), value.as_mut_bytes().as_mut_ptr(), size)
        };
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lend(bytes: &mut [u8]) -> Segment {
        // SAFETY: the tests keep the slice alive and do not touch it while the segment is used.
        unsafe { Segment::new(bytes.as_mut_ptr(), bytes.len()) }
    }

    #[test]
    fn segments_gather_and_scatter_as_if_end_to_end() {
        let (mut a, mut b, mut c) = ([1u8, 2, 3], [4u8], [5u8, 6, 7, 8]);
        let all = Segments::new(&[lend(&mut a), lend(&mut b), lend(&mut c)]).unwrap();
        assert_eq!(all.to_vec(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(all.slice(2, 4).to_vec(), [3, 4, 5, 6]);
        assert_eq!(all.slice(7, 9).to_vec(), [8]);
        assert!(all.slice(8, 1).is_empty());
        assert_eq!(View::of(&[9, 9, 9]).copy_into(&all, 2), 3);
        assert_eq!(all.to_vec(), [1, 2, 9, 9, 9, 6, 7, 8]);
        let (mut d, mut e) = ([0u8; 5], [0u8; 9]);
        let other = Segments::new(&[lend(&mut d), lend(&mut e)]).unwrap();
        assert_eq!(other.copy_from(&all), 8);
        assert_eq!(other.to_vec()[..9], [1, 2, 9, 9, 9, 6, 7, 8, 0]);
    }

    #[test]
    fn short_copies_move_their_bytes_and_no_others() {
        let from: Vec<u8> = (1..=64).collect();
        for len in 0..=64 {
            let mut to = [0; 70];
            // SAFETY: both have so many bytes and are apart.
            unsafe { copy_short(from.as_ptr(), to.as_mut_ptr().wrapping_add(3), len) };
            assert_eq!(to[3..3 + len], from[..len]);
            assert_eq!((to[..3].to_vec(), to[3 + len..].to_vec()), (vec![0; 3], vec![0; 67 - len]));
        }
    }

    #[test]
    fn too_many_segments_are_refused() {
        assert!(Segments::new(&[Segment::EMPTY; IOV_LIMIT + 1]).is_none());
    }

    #[test]
    fn a_view_reads_values_only_within_itself() {
        let view = View::of(&[1, 0, 0, 0, 2]);
        assert_eq!(view.read::<u32>(0), Some(1));
        assert_eq!(view.read::<u32>(2), None);
        assert_eq!(view.read::<u64>(usize::MAX), None);
    }
}

//! Memory that another process may write.

#![expect(
    unsafe_code,
    reason = "copies through raw pointers by the rules of the module above; each block states its own reason"
)]

use std::marker::PhantomData;

use zerocopy::{FromBytes, IntoBytes, Unalign};

use super::copy::{SHORT, copy_long, copy_short};
use super::segment::{Segment, Segments};

/// Received bytes. They may still change while they are read (a ring slot), or are already private (a receive buffer).
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    ptr: *const u8,
    len: usize,
    life: PhantomData<&'a [u8]>,
}

impl<'a> View<'a> {
    /// A view without bytes.
    pub const EMPTY: Self = Self { ptr: std::ptr::null(), len: 0, life: PhantomData };

    /// Returns the length in bytes.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the view has no bytes.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the first `len` bytes, or all bytes if there are fewer.
    #[must_use]
    #[inline]
    pub fn first(&self, len: usize) -> Self {
        Self { len: self.len.min(len), ..*self }
    }
}

/// Creates a [`View`], and copies from it. This is for the crates of percale, not for programs.
#[doc(hidden)]
pub trait ViewExt<'a>: Sized {
    /// Creates a view of private bytes.
    #[must_use]
    fn of(bytes: &'a [u8]) -> Self;

    /// Creates a view of the `len` bytes at `ptr`.
    ///
    /// # Safety
    /// The range stays mapped and readable for `'a`. Other threads and processes may write it.
    #[must_use]
    unsafe fn new(ptr: *const u8, len: usize) -> Self;

    /// Copies to the start of one segment, clipped to it. Returns the number of bytes copied.
    fn copy_to_one(&self, to: Segment) -> usize;

    /// Copies to `to`, starting at its byte `at`, clipped to both. Returns the number of bytes copied.
    fn copy_into(&self, to: &Segments, at: usize) -> usize;

    /// Copies as many bytes as fit into `bytes`. Returns their number.
    fn read_into(&self, bytes: &mut [u8]) -> usize;

    /// Returns a copy of all bytes.
    #[must_use]
    fn to_vec(self) -> Vec<u8>;

    /// Returns a copy of the plain value at `offset`, or `None` if it does not lie within the view. The copy is
    /// volatile: the compiler must not read the original again, so the value that is checked is the value that is used.
    /// The copy is made in words, because a compiler copies a volatile structure byte by byte.
    #[must_use]
    fn read<T: FromBytes + IntoBytes>(&self, offset: usize) -> Option<T>;
}

impl<'a> ViewExt<'a> for View<'a> {
    #[inline]
    fn of(bytes: &'a [u8]) -> Self {
        Self { ptr: bytes.as_ptr(), len: bytes.len(), life: PhantomData }
    }

    #[inline]
    unsafe fn new(ptr: *const u8, len: usize) -> Self {
        Self { ptr, len, life: PhantomData }
    }

    #[inline(always)]
    fn copy_to_one(&self, to: Segment) -> usize {
        let len = self.len.min(to.len());
        if len <= SHORT {
            // SAFETY: as in `copy_into`.
            unsafe { copy_short(self.ptr, to.as_ptr(), len) };
        } else {
            // SAFETY: as in `copy_into`.
            unsafe { copy_long(self.ptr, to.as_ptr(), len) };
        }
        len
    }

    #[inline]
    fn copy_into(&self, to: &Segments, at: usize) -> usize {
        if let [only] = to.as_slice() {
            let target = only.slice(at, self.len);
            // SAFETY: the view is readable for `'a`, and the segment is writable for its operation. Ring slots and
            // receive buffers are never lent as segments, so the two do not overlap.
            unsafe { copy_long(self.ptr, target.as_ptr(), target.len()) };
            return target.len();
        }
        let mut done = 0;
        for target in to.slice(at, self.len).as_slice() {
            // SAFETY: as above. The total length of the targets is at most `self.len`, because the slice was clipped to
            // it.
            unsafe { copy_long(self.ptr.wrapping_add(done), target.as_ptr(), target.len()) };
            done += target.len();
        }
        done
    }

    #[inline]
    fn read_into(&self, bytes: &mut [u8]) -> usize {
        let len = self.len.min(bytes.len());
        // SAFETY: the view is readable for `'a`; the slice is exclusive and has room for `len`.
        unsafe { std::ptr::copy_nonoverlapping(self.ptr, bytes.as_mut_ptr(), len) };
        len
    }

    #[inline]
    fn to_vec(self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        // SAFETY: the view is readable for `'a`; the vector is new, has enough room and overlaps no other memory.
        unsafe { std::ptr::copy_nonoverlapping(self.ptr, bytes.as_mut_ptr(), self.len) };
        bytes
    }

    #[inline]
    fn read<T: FromBytes + IntoBytes>(&self, offset: usize) -> Option<T> {
        if offset.checked_add(size_of::<T>())? > self.len {
            return None;
        }
        let mut value = T::new_zeroed();
        let (words, rest) = value.as_mut_bytes().as_chunks_mut::<8>();
        let mut from = self.ptr.wrapping_add(offset);
        for word in words {
            // SAFETY: the range was just checked to lie within the view, and may start anywhere.
            *word = unsafe { from.cast::<Unalign<u64>>().read_volatile() }.into_inner().to_ne_bytes();
            from = from.wrapping_add(8);
        }
        for byte in rest {
            // SAFETY: as above.
            *byte = unsafe { from.read_volatile() };
            from = from.wrapping_add(1);
        }
        Some(value)
    }
}

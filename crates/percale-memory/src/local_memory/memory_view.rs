//! Access of a program to its own memory that peers may read and write at the same time.
//!
//! No reference to the bytes is ever created, because a peer may change them at any time. Values are copied by volatile
//! loads and stores, and longer ranges by ordinary copies to and from private memory, as
//! [`volatile`](super::volatile) describes. Only references to the standard library's atomics are given out: other
//! threads and processes may change an atomic while a reference to it exists.

#![expect(unsafe_code, reason = "loads and stores through raw pointers; each block states its own reason")]

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::RangeBounds;
use std::sync::atomic;

use zerocopy::{FromBytes, Immutable, IntoBytes, Unalign};

use super::sealed::Allocation;
use super::volatile::{Segment, Segments, SegmentsExt as _, View, ViewExt as _};
use crate::types::span_of_memory;

/// The reasons why memory was not accessed through a [`MemoryView`]. Nothing was read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// A part of the range is outside the view.
    #[error("{start}..{end} is out of range for {len} bytes of memory")]
    Range {
        /// The offset of the first byte.
        start: usize,
        /// The offset after the last byte.
        end: usize,
        /// The length of the view in bytes.
        len: usize,
    },
    /// The address of an atomic integer is not a multiple of its size.
    #[error(
        "the address of offset {offset} is not a multiple of {size}; use memory of Domain::allocate, which begins at a \
         multiple of 64"
    )]
    Misaligned {
        /// The offset of the integer.
        offset: usize,
        /// The size of the integer in bytes.
        size: usize,
    },
    /// The memory is shared or static, so it must not be written.
    #[error("the memory is read-only, because it is shared or static; register a buffer that owns its bytes")]
    ReadOnly,
    /// The memory was allocated by the parent process of this fork, and does not exist in this process.
    #[error("the memory belongs to the parent process of this fork; allocate memory in this process")]
    Forked,
}

impl ViewError {
    /// Returns libfabric's positive code for this error.
    #[must_use]
    #[inline]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Range { .. } | Self::Misaligned { .. } => libc::EINVAL,
            Self::ReadOnly => libc::EACCES,
            Self::Forked => libc::ECHILD,
        }
    }
}

mod private {
    pub trait Sealed {}
}

/// An integer that a [`MemoryView`] can access atomically.
pub trait AtomicInteger: private::Sealed {
    /// The atomic type of the standard library for this integer.
    type Atomic: std::fmt::Debug + Sync + 'static;
}

macro_rules! atomic_integer {
    ($($type:ty => $atomic:ident),*) => {$(
        impl private::Sealed for $type {}

        impl AtomicInteger for $type {
            type Atomic = atomic::$atomic;
        }
    )*};
}

atomic_integer!(i8 => AtomicI8, u8 => AtomicU8, i16 => AtomicI16, u16 => AtomicU16);
atomic_integer!(i32 => AtomicI32, u32 => AtomicU32, i64 => AtomicI64, u64 => AtomicU64);

/// Memory of this process that peers may read and write at the same time, as its owner accesses it.
///
/// A view copies values and bytes, and gives access to atomic integers. It never gives out a reference to bytes, which
/// a peer could change. Offsets are in bytes and are counted from the first byte of the view. Every access is checked,
/// and one that fails has no effect. A view can be copied, and used by several threads at the same time.
///
/// # Types
/// [`read_at`](Self::read_at) and [`write_at`](Self::write_at) copy plain data: types that implement the traits of the
/// crate `zerocopy` (version 0.8). These are the numbers, arrays of plain types, and structures for which a program
/// derives the traits. Values have the byte order of the machine, unless the type has another one
/// (`zerocopy::little_endian`).
///
/// # Concurrent accesses
/// * A value of 1, 2, 4 or 8 bytes at an address that is a multiple of its size is read by one load and written by one
///   store. So a value that is changed only by atomic operations is never read in part.
/// * Every other access may be torn: if a peer or another thread writes the bytes during a read, the result may be any
///   mixture of old and new bytes; if two of them write the same bytes, so may the content.
/// * These copies do not order other accesses. Use [`atomic`](Self::atomic), or a message of the peer, to learn that
///   bytes are complete.
///
/// # Atomic operations
/// The integers of [`atomic`](Self::atomic) are atomic with all atomic operations of peers on memory of the same type
/// at the same offset, on every transport: the operations of all peers are executed by processors of the owner's
/// machine, with the same instructions. They are not atomic with reads and writes of peers, which may be torn.
///
/// # Order
/// * **From a peer to the owner.** The peer writes bytes, waits until the write has completed, and then changes a flag
///   by an atomic operation of the same endpoint. If the owner loads the flag with [`Acquire`](atomic::Ordering::Acquire)
///   and gets the new value, its later accesses get the bytes. If the flag is changed through another endpoint, the
///   write needs the completion level *delivery* (`OpFlags::DELIVERY_COMPLETE`): otherwise a write over RDMA completes
///   when the device has acknowledged it, which may be before the owner can read the bytes.
/// * A message that the peer sends after the write also arrives after its bytes.
/// * **From the owner to a peer.** The owner writes bytes, and then stores to a flag with
///   [`Release`](atomic::Ordering::Release). If an atomic operation of the peer has returned the new value, the reads
///   that the peer posts later get the bytes.
/// * A flag that a peer changes by a write, and not by an atomic operation, gives no order.
#[derive(Clone, Copy)]
pub struct MemoryView<'a> {
    segment: Segment,
    writable: bool,
    /// The allocation that contains the memory. It does not exist in a forked child.
    allocation: Option<&'a Allocation>,
    life: PhantomData<&'a ()>,
}

crate::short_debug!(MemoryView<'_>, "MemoryView", len: |this| this.len(), writable: |this| this.writable);

/// Creates a [`MemoryView`]. This is for the crates of percale, not for programs.
#[doc(hidden)]
pub trait MemoryViewExt<'a>: Sized {
    /// Creates a view of memory that exists for `'a`. `allocation` is the allocation that contains it, if there is one.
    /// If `writable`, no code in this process requires for `'a` that the bytes do not change.
    fn of(segment: Segment, writable: bool, allocation: Option<&'a Allocation>) -> Self;
}

impl<'a> MemoryViewExt<'a> for MemoryView<'a> {
    #[inline]
    fn of(segment: Segment, writable: bool, allocation: Option<&'a Allocation>) -> Self {
        Self { segment, writable, allocation, life: PhantomData }
    }
}

impl<'a> MemoryView<'a> {
    /// Returns the length in bytes.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.segment.len()
    }

    /// Returns whether the view has no bytes.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.segment.is_empty()
    }

    /// Returns whether the owner may write the memory, which requires that it is the only owner of the bytes.
    #[must_use]
    #[inline]
    pub const fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns a view of a part.
    ///
    /// # Errors
    /// [`Range`](ViewError::Range) if the range is not within the view.
    #[inline]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self, ViewError> {
        let len = self.len();
        let (start, end) = span_of_memory(&range, len).map_err(|(start, end)| ViewError::Range { start, end, len })?;
        Ok(Self { segment: self.segment.slice(start, end - start), ..*self })
    }

    /// Returns a copy of the value at `offset`, which need not be aligned.
    ///
    /// # Errors
    /// [`Range`](ViewError::Range), [`Forked`](ViewError::Forked).
    #[inline]
    pub fn read_at<T: FromBytes>(&self, offset: usize) -> Result<T, ViewError> {
        let from = self.check(offset, size_of::<T>())?;
        let mut value = MaybeUninit::<T>::zeroed();
        // SAFETY: `check` returned an address with this many readable bytes, and `value` has room for them.
        unsafe { load(from, value.as_mut_ptr().cast(), size_of::<T>()) };
        // SAFETY: any bytes are a value of the type.
        Ok(unsafe { value.assume_init() })
    }

    /// Writes a value to `offset`, which need not be aligned.
    ///
    /// # Errors
    /// [`Range`](ViewError::Range), [`ReadOnly`](ViewError::ReadOnly), [`Forked`](ViewError::Forked).
    #[inline]
    pub fn write_at<T: IntoBytes + Immutable>(&self, offset: usize, value: T) -> Result<(), ViewError> {
        let to = self.check_writable(offset, size_of::<T>())?;
        let bytes = value.as_bytes();
        // SAFETY: `check_writable` returned an address with this many bytes that may be written.
        unsafe { store(bytes, to) };
        Ok(())
    }

    /// Copies the bytes from `offset` into `to`.
    ///
    /// # Errors
    /// [`Range`](ViewError::Range), [`Forked`](ViewError::Forked).
    #[inline]
    pub fn copy_to(&self, offset: usize, to: &mut [u8]) -> Result<(), ViewError> {
        self.check(offset, to.len())?;
        Segments::one(self.segment).copy_to(offset, to);
        Ok(())
    }

    /// Copies `from` to the bytes from `offset`.
    ///
    /// # Errors
    /// [`Range`](ViewError::Range), [`ReadOnly`](ViewError::ReadOnly), [`Forked`](ViewError::Forked).
    #[inline]
    pub fn copy_from(&self, offset: usize, from: &[u8]) -> Result<(), ViewError> {
        self.check_writable(offset, from.len())?;
        View::of(from).copy_to_one(self.segment.slice(offset, from.len()));
        Ok(())
    }

    /// Returns the atomic integer at `offset`. The [type](Self) states with which accesses it is atomic, and which
    /// order it gives.
    ///
    /// A process that forks must not use such references in the child, where memory of `Domain::allocate` is not
    /// mapped.
    ///
    /// # Errors
    /// [`Range`](ViewError::Range), [`Misaligned`](ViewError::Misaligned), [`ReadOnly`](ViewError::ReadOnly),
    /// [`Forked`](ViewError::Forked).
    #[inline]
    pub fn atomic<T: AtomicInteger>(&self, offset: usize) -> Result<&'a T::Atomic, ViewError> {
        let size = size_of::<T::Atomic>();
        let at = self.check_writable(offset, size)?.cast::<T::Atomic>();
        if at.addr() % size != 0 {
            return Err(ViewError::Misaligned { offset, size });
        }
        // SAFETY: the address is aligned, and valid for reads and writes for `'a`. The type is an atomic integer of
        // the standard library, because the trait is sealed. Every bit pattern is a value, and other threads and
        // processes may change it. This process has no reference to the bytes and accesses them only by copies.
        Ok(unsafe { &*at })
    }

    /// Returns the address of `len` bytes at `offset`, which can be read.
    #[inline]
    fn check(&self, offset: usize, len: usize) -> Result<*mut u8, ViewError> {
        if offset > self.len() || len > self.len() - offset {
            return Err(ViewError::Range { start: offset, end: offset.saturating_add(len), len: self.len() });
        }
        if self.allocation.is_some_and(|allocation| !allocation.exists_here()) {
            return Err(ViewError::Forked);
        }
        Ok(self.segment.as_ptr().wrapping_add(offset))
    }

    /// Like [`check`](Self::check), for bytes that can also be written.
    #[inline]
    fn check_writable(&self, offset: usize, len: usize) -> Result<*mut u8, ViewError> {
        let at = self.check(offset, len)?;
        if self.writable { Ok(at) } else { Err(ViewError::ReadOnly) }
    }
}

/// Calls a macro with each integer type that one instruction loads and stores, and an expression.
macro_rules! for_each_integer {
    ($one:ident) => {
        $one!(u64);
        $one!(u32);
        $one!(u16);
        $one!(u8);
    };
}

/// Copies `len` bytes out of memory that may change: by one load if they are an aligned integer.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, and they do not overlap.
#[inline(always)]
unsafe fn load(mut from: *const u8, mut to: *mut u8, mut len: usize) {
    macro_rules! whole {
        ($integer:ty) => {
            if len == size_of::<$integer>() && from.cast::<$integer>().is_aligned() {
                // SAFETY: the caller guarantees the bytes; the address is aligned.
                let value = unsafe { from.cast::<$integer>().read_volatile() };
                // SAFETY: the caller guarantees the bytes.
                return unsafe { to.cast::<$integer>().write_unaligned(value) };
            }
        };
    }
    for_each_integer!(whole);
    while len >= 8 {
        // SAFETY: at least 8 bytes are left.
        let word = unsafe { from.cast::<Unalign<u64>>().read_volatile() };
        // SAFETY: as above.
        unsafe { to.cast::<Unalign<u64>>().write(word) };
        (from, to, len) = (from.wrapping_add(8), to.wrapping_add(8), len - 8);
    }
    for at in 0..len {
        // SAFETY: these bytes are left.
        let byte = unsafe { from.wrapping_add(at).read_volatile() };
        // SAFETY: as above.
        unsafe { to.wrapping_add(at).write(byte) };
    }
}

/// Copies bytes to memory that others may access: by one store if they are an aligned integer.
///
/// # Safety
/// `to` is valid for writes of as many bytes.
#[inline(always)]
unsafe fn store(from: &[u8], to: *mut u8) {
    macro_rules! whole {
        ($integer:ty) => {
            if let Ok(bytes) = <[u8; size_of::<$integer>()]>::try_from(from)
                && to.cast::<$integer>().is_aligned()
            {
                // SAFETY: the caller guarantees the bytes; the address is aligned.
                return unsafe { to.cast::<$integer>().write_volatile(<$integer>::from_ne_bytes(bytes)) };
            }
        };
    }
    for_each_integer!(whole);
    let (words, rest) = from.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        // SAFETY: the word is within the range.
        unsafe { to.wrapping_add(8 * at).cast::<[u8; 8]>().write_volatile(*word) };
    }
    for (at, byte) in rest.iter().enumerate() {
        // SAFETY: the byte is within the range.
        unsafe { to.wrapping_add(8 * words.len() + at).write_volatile(*byte) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::local_memory::sealed::{AllocationExt as _, allocate};

    fn with_view<R>(len: usize, test: impl FnOnce(MemoryView<'_>) -> R) -> R {
        let memory = allocate(len).unwrap();
        test(MemoryView::of(memory.segment(), true, Some(&memory)))
    }

    #[test]
    fn value_of_any_size_and_alignment_is_read_as_it_was_written() {
        with_view(64, |view| {
            for offset in 0..9 {
                macro_rules! round {
                    ($($value:expr),*) => {$(
                        view.copy_from(0, &[0xEE; 64]).unwrap();
                        view.write_at(offset, $value).unwrap();
                        let mut expected = [0xEE; 64];
                        expected[offset..][..size_of_val(&$value)].copy_from_slice($value.as_bytes());
                        let mut all = [0; 64];
                        view.copy_to(0, &mut all).unwrap();
                        assert_eq!(all, expected, "{:?} at {offset}", $value);
                        let mut same = $value;
                        same.as_mut_bytes().fill(0);
                        assert_ne!(same, $value);
                        same = view.read_at(offset).unwrap();
                        assert_eq!(same, $value, "at {offset}");
                    )*};
                }
                round!(7_u8, -2_i16, 0x0102_0304_u32, 0x0102_0304_0506_0708_u64, 1.5_f64);
                round!([1_u8, 2, 3], [1_u8; 8], [5_u32, 6, 7], [1_u64, 2, 3], 1_u128 << 100);
            }
        });
    }

    #[test]
    fn access_beyond_the_view_fails_and_changes_nothing() {
        with_view(20, |all| {
            let view = all.slice(4..12).unwrap();
            assert_eq!(view.len(), 8);
            let beyond = |offset: usize, len: usize| {
                Err::<(), _>(ViewError::Range { start: offset, end: offset.saturating_add(len), len: 8 })
            };
            for offset in [1, 8, 9, usize::MAX - 3, usize::MAX] {
                assert_eq!(view.read_at::<u64>(offset).map(drop), beyond(offset, 8));
                assert_eq!(view.write_at(offset, u64::MAX), beyond(offset, 8));
                assert_eq!(view.atomic::<u64>(offset).map(drop), beyond(offset, 8));
                assert_eq!(view.copy_to(offset, &mut [0; 8]), beyond(offset, 8));
                assert_eq!(view.copy_from(offset, &[1; 8]), beyond(offset, 8));
            }
            assert_eq!(view.slice(5..9).map(drop), beyond(5, 4));
            assert_eq!(view.copy_from(8, &[]), Ok(()));
            assert_eq!(view.read_at::<[u8; 0]>(8), Ok([]));
            assert_eq!(all.read_at::<[u8; 20]>(0), Ok([0; 20]));
        });
    }

    #[test]
    fn atomic_integer_needs_an_aligned_address() {
        with_view(64, |view| {
            let part = view.slice(1..).unwrap();
            assert_eq!(part.atomic::<u64>(3).map(drop), Err(ViewError::Misaligned { offset: 3, size: 8 }));
            assert_eq!(part.atomic::<u16>(2).map(drop), Err(ViewError::Misaligned { offset: 2, size: 2 }));
            part.atomic::<u8>(0).unwrap().store(1, Ordering::Relaxed);
            let word = part.atomic::<u64>(7).unwrap();
            assert_eq!(word.fetch_add(5, Ordering::AcqRel), 0);
            assert_eq!(word.compare_exchange(5, 6, Ordering::AcqRel, Ordering::Acquire), Ok(5));
            assert_eq!((view.read_at::<u64>(8), view.read_at::<u8>(1)), (Ok(6), Ok(1)));
        });
    }

    #[test]
    fn threads_add_to_one_word_without_losing_an_addition() {
        with_view(8, |view| {
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(move || {
                        for _ in 0..1000 {
                            view.atomic::<u32>(4).unwrap().fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
            });
            assert_eq!(view.read_at::<[u32; 2]>(0), Ok([0, 3000]));
        });
    }

    #[test]
    fn read_only_memory_can_only_be_read() {
        let bytes = std::sync::Arc::<[u8]>::from([1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let read = Segments::lend(&bytes, |lent| {
            let view = MemoryView::of(lent.as_slice()[0], false, None);
            assert!(!view.is_writable());
            assert_eq!(view.write_at(0, 1_u8), Err(ViewError::ReadOnly));
            assert_eq!(view.copy_from(0, &[1]), Err(ViewError::ReadOnly));
            assert_eq!(view.atomic::<u8>(0).map(drop), Err(ViewError::ReadOnly));
            view.read_at::<[u8; 9]>(0)
        });
        assert_eq!(read, Ok([1, 2, 3, 4, 5, 6, 7, 8, 9]));
    }

    /// Requirements: FLT-010.
    #[test]
    fn view_of_the_parents_allocation_fails_in_a_child() {
        with_view(64, |view| {
            assert!(crate::system::forked::in_a_child(|| {
                let forked = Err(ViewError::Forked);
                view.read_at::<u64>(0).map(drop) == forked
                    && view.write_at(0, 1_u64) == forked
                    && view.copy_to(0, &mut [0; 8]) == forked
                    && view.copy_from(0, &[0; 8]) == forked
                    && view.atomic::<u64>(0).map(drop) == forked
            }));
        });
    }
}

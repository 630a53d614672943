//! Memory of plain values: vectors, boxed slices and allocations of a type that is nothing but its bytes.
//!
//! A buffer that was made of such memory contains it in a box, because a buffer has three words, and a vector of an
//! unknown type needs five: the three of a vector, and two that refer to the type.

use std::marker::PhantomData;

use zerocopy::IntoBytes;

use super::buffer::Buffer;
pub use super::plain::Plain;
use super::sealed::{AllocateError, Allocation, LINE, allocate};

mod private {
    pub trait Sealed {}
    impl<T: super::Plain> Sealed for Vec<T> {}
    impl<T: super::Plain> Sealed for Box<[T]> {}
    impl<T: super::Plain> Sealed for super::TypedAllocation<T> {}
}

/// Memory of plain values that an operation or a region can own: `Vec<T>`, `Box<[T]>` and [`TypedAllocation<T>`].
pub trait TypedMemory: private::Sealed + Sized {
    /// The type of the values.
    type Value: Plain;

    /// Converts the memory to a buffer of its bytes, without copying them. For `Vec<T>` and `Box<[T]>`, 24 bytes for
    /// the handle are allocated.
    fn into_buffer(self) -> Buffer;

    /// Converts a buffer back to the memory of which [`into_buffer`](Self::into_buffer) made it.
    ///
    /// # Errors
    /// If the buffer was made of memory of another kind, or was shortened. The error contains the buffer.
    fn from_buffer(buffer: Buffer) -> Result<Self, FromBufferError>;
}

/// The error of [`TypedMemory::from_buffer`]: the buffer contains memory of another type.
#[derive(Debug, thiserror::Error)]
#[error("the buffer was not created from memory of this type, or was shortened; use into_vec")]
pub struct FromBufferError {
    buffer: Buffer,
}

impl FromBufferError {
    /// Returns the buffer, which is unchanged.
    #[must_use]
    pub fn into_inner(self) -> Buffer {
        self.buffer
    }
}

impl<T: Plain> TypedMemory for Vec<T> {
    type Value = T;

    fn into_buffer(self) -> Buffer {
        Buffer::of_values(Box::new(self))
    }

    fn from_buffer(buffer: Buffer) -> Result<Self, FromBufferError> {
        buffer.into_values().map_err(|buffer| FromBufferError { buffer })
    }
}

impl<T: Plain> TypedMemory for Box<[T]> {
    type Value = T;

    fn into_buffer(self) -> Buffer {
        self.into_vec().into_buffer()
    }

    fn from_buffer(buffer: Buffer) -> Result<Self, FromBufferError> {
        Ok(Vec::from_buffer(buffer)?.into_boxed_slice())
    }
}

impl<T: Plain> TypedMemory for TypedAllocation<T> {
    type Value = T;

    fn into_buffer(self) -> Buffer {
        self.bytes.into()
    }

    fn from_buffer(buffer: Buffer) -> Result<Self, FromBufferError> {
        const { Self::check_type() };
        let bytes = buffer.into_allocation().map_err(|error| FromBufferError { buffer: error.into_inner() })?;
        if bytes.is_shortened() || !bytes.len().is_multiple_of(size_of::<T>()) {
            return Err(FromBufferError { buffer: bytes.into() });
        }
        Ok(Self { bytes, values: PhantomData })
    }
}

/// Memory for values of a type, which local peers can map. It begins at a multiple of 64 bytes, so the values are
/// aligned. It is freed when it is dropped.
///
/// Peers that have mapped the memory may write it at any time, so it does not dereference to a slice. Values are copied
/// in and out.
pub struct TypedAllocation<T> {
    bytes: Allocation,
    values: PhantomData<T>,
}

crate::short_debug!(for [T] TypedAllocation<T>, "TypedAllocation", bytes: |this| this.bytes.len());

impl<T> TypedAllocation<T> {
    const fn check_type() {
        assert!(size_of::<T>() > 0, "the type has no bytes");
        assert!(align_of::<T>() <= LINE, "the alignment of the type is more than 64 bytes");
    }
}

impl<T: Plain> TypedAllocation<T> {
    /// Allocates memory for `count` values, whose bytes are all 0. Types without bytes, and types whose alignment is
    /// more than 64, do not compile.
    ///
    /// # Errors
    /// See [`AllocateError`].
    pub fn new(count: usize) -> Result<Self, AllocateError> {
        const { Self::check_type() };
        let len = count.checked_mul(size_of::<T>()).ok_or(AllocateError::TooLarge(usize::MAX))?;
        Ok(Self { bytes: allocate(len)?, values: PhantomData })
    }

    /// Returns the number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() / size_of::<T>()
    }

    /// Returns whether there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Copies the values from index `start` into `to`.
    ///
    /// # Panics
    /// If there are fewer than `to.len()` values from `start`, or in a forked child of the process that allocated the
    /// memory.
    pub fn read(&self, start: usize, to: &mut [T]) {
        self.check(start, to.len());
        self.bytes.read(start * size_of::<T>(), to.as_mut_bytes());
    }

    /// Copies `from` to the values from index `start`.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    pub fn write(&mut self, start: usize, from: &[T]) {
        self.check(start, from.len());
        self.bytes.write(start * size_of::<T>(), from.as_bytes());
    }

    /// Returns a copy of all values.
    ///
    /// # Panics
    /// In a forked child of the process that allocated the memory.
    #[must_use]
    pub fn to_vec(&self) -> Vec<T> {
        let mut values: Vec<T> = std::iter::repeat_with(T::new_zeroed).take(self.len()).collect();
        self.read(0, &mut values);
        values
    }

    /// Returns the memory without its type.
    #[must_use]
    pub fn into_allocation(self) -> Allocation {
        self.bytes
    }

    #[track_caller]
    fn check(&self, start: usize, count: usize) {
        let len = self.len();
        assert!(
            start.checked_add(count).is_some_and(|end| end <= len),
            "{count} values at {start} are out of range for an allocation of {len} values"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local_memory::buffer::BufferExt as _;
    use crate::local_memory::volatile::{Segments, View, ViewExt as _};
    use zerocopy::{FromBytes, Immutable, KnownLayout};

    #[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(C)]
    struct Point {
        x: f64,
        y: f64,
        number: u64,
    }

    const POINTS: [Point; 2] = [Point { x: 1.0, y: 2.0, number: 3 }, Point { x: 4.0, y: 5.0, number: 6 }];

    /// Changes the number of the second point, as an operation would, and returns the memory.
    fn received<M: TypedMemory<Value = Point>>(memory: M) -> M {
        let mut buffer = memory.into_buffer();
        assert_eq!((buffer.len(), buffer.is_writable()), (48, true));
        let segment = buffer.segment_for_receive().unwrap();
        assert_eq!(segment.as_ptr().addr() % align_of::<Point>(), 0);
        assert_eq!(View::of(&7_u64.to_ne_bytes()).copy_into(&Segments::one(segment), 40), 8);
        let buffer = Vec::<u16>::from_buffer(buffer).unwrap_err().into_inner();
        M::from_buffer(buffer).unwrap_or_else(|_| panic!("the memory has another type"))
    }

    #[test]
    fn memory_of_values_is_received_into_and_returned_in_its_type() {
        let changed = [POINTS[0], Point { number: 7, ..POINTS[1] }];
        let vector = POINTS.to_vec();
        let address = vector.as_ptr();
        let vector = received(vector);
        assert_eq!((vector.as_slice(), vector.as_ptr()), (changed.as_slice(), address));
        assert_eq!(*received(Box::from(POINTS)), changed);
        let mut allocation = TypedAllocation::new(2).unwrap();
        allocation.write(0, &POINTS);
        let allocation = received(allocation);
        assert_eq!((allocation.len(), allocation.to_vec()), (2, changed.to_vec()));
        let mut last = [POINTS[0]];
        allocation.read(1, &mut last);
        assert_eq!(last, [changed[1]]);
    }

    #[test]
    fn buffer_of_other_memory_is_returned() {
        assert_eq!(Vec::<u32>::from_buffer(Buffer::from(vec![1, 2])).unwrap_err().into_inner().into_vec(), [1, 2]);
        assert!(TypedAllocation::<u32>::from_buffer(allocate(6).unwrap().into()).is_err());
        assert_eq!(TypedAllocation::<u32>::from_buffer(allocate(8).unwrap().into()).unwrap().to_vec(), [0, 0]);
        let mut short = vec![1_u32, 2].into_buffer();
        short.truncate(4);
        assert_eq!(Vec::<u32>::from_buffer(short).unwrap_err().into_inner().into_vec(), 1_u32.to_ne_bytes());
        let mut short = TypedAllocation::<u32>::new(2).unwrap().into_buffer();
        short.truncate(8);
        assert_eq!(TypedAllocation::<u32>::from_buffer(short).unwrap().len(), 2, "nothing was cut off");
        let mut short = TypedAllocation::<u32>::new(2).unwrap().into_buffer();
        short.truncate(4);
        assert_eq!(TypedAllocation::<u32>::from_buffer(short).unwrap_err().into_inner().len(), 4);
    }

    #[test]
    #[should_panic(expected = "2 values at 1 are out of range for an allocation of 2 values")]
    fn access_past_the_last_value_panics() {
        TypedAllocation::<u64>::new(2).unwrap().read(1, &mut [0; 2]);
    }

    #[test]
    fn absurd_counts_are_refused() {
        assert!(matches!(TypedAllocation::<u64>::new(usize::MAX), Err(AllocateError::TooLarge(_))));
    }
}

//! Types whose values are plain bytes, and vectors of such values without their type.

use std::any::Any;

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A type whose values are plain bytes: any bytes are a valid value, and every byte of a value can be read. These are
/// numbers, arrays of plain types, and structures for which a program derives `Clone`, `Copy`, and the traits
/// `FromBytes`, `IntoBytes` and `Immutable` of the crate `zerocopy` (version 0.8).
///
/// Values that are `Copy` have no destructor. This is required because the library drops buffers while it holds locks.
pub trait Plain: Copy + FromBytes + IntoBytes + Immutable + Send + Sync + 'static {}

impl<T: Copy + FromBytes + IntoBytes + Immutable + Send + Sync + 'static> Plain for T {}

/// A vector of plain values, without the type of the values.
pub(super) trait Values: Send + Sync {
    fn as_bytes(&self) -> &[u8];
    fn as_mut_bytes(&mut self) -> &mut [u8];
    /// Returns the address of the values and their length in bytes, without making a slice of them.
    fn location(&self) -> (*const u8, usize);
    /// Returns the vector itself, to compare its type.
    fn as_any(&self) -> &dyn Any;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

impl<T: Plain> Values for Vec<T> {
    fn as_bytes(&self) -> &[u8] {
        IntoBytes::as_bytes(self.as_slice())
    }

    fn as_mut_bytes(&mut self) -> &mut [u8] {
        IntoBytes::as_mut_bytes(self.as_mut_slice())
    }

    fn location(&self) -> (*const u8, usize) {
        (self.as_ptr().cast(), size_of::<T>() * self.len())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

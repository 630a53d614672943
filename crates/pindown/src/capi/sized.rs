//! Structures of the caller that this library fills in, and that may be of an older or newer version: their first field is
//! their size.

use std::ptr::NonNull;

use zerocopy::{Immutable, IntoBytes};

use super::error::Failure;

/// A size greater than that of any version of a structure. Larger sizes are rejected.
const LONGEST: usize = 4096;

/// A structure of the caller, with a size that was checked.
pub(super) struct CallersStructure {
    start: NonNull<u8>,
    size: usize,
}

impl CallersStructure {
    /// Reads the size of a structure, which must be at least `least`. `name` is that of the argument.
    ///
    /// # Safety
    /// The pointer refers to as many writable bytes as its first field contains, or at least to that field.
    pub(super) unsafe fn new<T>(at: NonNull<T>, least: usize, name: &str) -> Result<Self, Failure> {
        // SAFETY: the caller guarantees that the first field is there.
        let size = unsafe { at.cast::<usize>().read() };
        if size < least || !size.is_multiple_of(8) || size > LONGEST {
            return Err(Failure::invalid(format!("{name}->size is {size}: set it to sizeof(struct pindown_{name})")));
        }
        Ok(Self { start: at.cast(), size })
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Fills in the fields that the structure has. Fields that this version does not have become 0.
    ///
    /// # Safety
    /// The structure is still valid, and no other thread accesses it.
    pub(super) unsafe fn write(&self, value: &(impl IntoBytes + Immutable)) {
        let bytes = value.as_bytes();
        let known = self.size.min(bytes.len());
        // SAFETY: both have at least this number of bytes, and the caller's structure is not part of `value`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr(), known) };
        let rest = self.start.as_ptr().wrapping_add(known);
        // SAFETY: these bytes belong to the caller's structure.
        unsafe { rest.write_bytes(0, self.size - known) };
    }
}

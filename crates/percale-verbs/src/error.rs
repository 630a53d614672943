//! The errors of libibverbs, and the pointers that it returns.

#![expect(unsafe_code, reason = "a pointer type that is Send and Sync; each block states its own reason")]

use std::ptr::NonNull;
use std::{fmt, io};

/// A call to libibverbs failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {}", io::Error::from_raw_os_error(*.errno))]
#[non_exhaustive]
pub struct VerbsError {
    /// The name of the call.
    pub call: &'static str,
    /// The error number.
    pub errno: i32,
}

impl VerbsError {
    /// Converts the return value of a call that returns its errno.
    pub(super) const fn check(call: &'static str, errno: i32) -> Result<(), Self> {
        // Some drivers return the negative error number.
        if errno == 0 { Ok(()) } else { Err(Self { call, errno: errno.saturating_abs() }) }
    }

    /// Creates the error of a call that sets errno.
    pub(super) fn last(call: &'static str) -> Self {
        Self { call, errno: io::Error::last_os_error().raw_os_error().filter(|errno| *errno != 0).unwrap_or(libc::EIO) }
    }

    /// Creates the error of a call that the device's driver does not support.
    pub(super) const fn unsupported(call: &'static str) -> Self {
        Self { call, errno: libc::EOPNOTSUPP }
    }
}

/// Returns the error number of an error that may be a [`VerbsError`].
pub fn errno_of(error: &io::Error) -> i32 {
    let verbs = error.get_ref().and_then(|inner| inner.downcast_ref::<VerbsError>());
    verbs.map(|error| error.errno).or(error.raw_os_error()).filter(|errno| *errno > 0).unwrap_or(libc::EIO)
}

impl From<VerbsError> for io::Error {
    fn from(error: VerbsError) -> Self {
        Self::new(Self::from_raw_os_error(error.errno).kind(), error)
    }
}

/// A pointer to an object that libibverbs allocated. Its owner destroys the object.
pub(super) struct ObjectPointer<T>(NonNull<T>);

impl<T> fmt::Debug for ObjectPointer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:p}", self.0)
    }
}

// SAFETY: libibverbs' objects may be used from any thread. Each call takes the locks that it needs.
unsafe impl<T> Send for ObjectPointer<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for ObjectPointer<T> {}

impl<T> ObjectPointer<T> {
    /// Converts the result of a call to a handle, or to an error if the pointer is null.
    pub(super) fn given(call: &'static str, ptr: *mut T) -> Result<Self, VerbsError> {
        NonNull::new(ptr).map(Self).ok_or_else(|| VerbsError::last(call))
    }

    pub(super) const fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

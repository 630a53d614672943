//! Errors in the form of the C interface: a negative errno, and a text that the calling thread can read.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::fmt;
use std::io;

use crate::access::Access;
use crate::cache::{LookupError, OpenError, UnknownHandle};
use crate::calls::errno_for;

/// A failed call: an errno, and the reason as text (`pindown_last_error`).
#[derive(Debug)]
pub struct Failure {
    /// A positive errno.
    code: c_int,
    why: String,
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

impl Failure {
    /// Creates a failure with this positive errno.
    #[must_use]
    pub fn new(code: c_int, why: impl Into<String>) -> Self {
        Self { code, why: why.into() }
    }

    /// Creates a failure with EINVAL.
    pub(super) fn invalid(why: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, why)
    }

    /// Creates a failure with EINVAL: the pointer `name` is null.
    #[cold]
    pub(super) fn null(name: &str) -> Self {
        Self::invalid(format!("{name} is NULL"))
    }

    /// Creates a failure with EINVAL: the rights contain unknown bits.
    #[cold]
    pub(super) fn unknown_access(access: u32) -> Self {
        Self::invalid(format!("unknown rights: {:#x}", access & !Access::all().bits()))
    }

    /// Creates a failure with ECHILD.
    pub(super) fn forked() -> Self {
        LookupError::Forked.into()
    }

    /// Stores the reason for this thread. Returns the negative code that the call returns.
    #[cold]
    pub fn answer(self) -> c_int {
        let why = CString::new(self.why.replace('\0', "\\0")).unwrap_or_default();
        // A thread that is ending stores no reason.
        LAST.try_with(|last| last.replace(why)).ok();
        -self.code
    }
}

/// Converts a result to the return value of a call: 0 or more, or a negative errno, with the reason stored for this
/// thread.
pub fn answer(result: Result<c_int, Failure>) -> c_int {
    result.unwrap_or_else(Failure::answer)
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(errno_for(&error), error.to_string())
    }
}

impl From<LookupError> for Failure {
    fn from(error: LookupError) -> Self {
        Self::new(error.errno(), error.to_string())
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        Self::new(error.errno(), error.to_string())
    }
}

impl From<UnknownHandle> for Failure {
    fn from(error: UnknownHandle) -> Self {
        Self::new(error.errno(), error.to_string())
    }
}

/// Returns the reason why the last failed call of this thread failed, as text; "" if none has failed.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) extern "C" fn pindown_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

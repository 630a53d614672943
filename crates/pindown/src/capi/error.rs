//! Refusals as C knows them: a negative errno, and words that the thread can ask for.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::fmt;
use std::io;

use crate::access::Access;
use crate::cache::{LookupError, OpenError, UnknownHandle};

/// A refusal.
#[derive(Debug)]
pub(super) struct Failure {
    /// An errno, positive.
    code: c_int,
    why: String,
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

impl Failure {
    pub(super) fn new(code: c_int, why: impl Into<String>) -> Self {
        Self { code, why: why.into() }
    }

    /// -EINVAL.
    pub(super) fn invalid(why: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, why)
    }

    /// -EINVAL: there is nothing at `name`.
    #[cold]
    pub(super) fn null(name: &str) -> Self {
        Self::invalid(format!("{name} is NULL"))
    }

    /// -EINVAL: nobody knows these rights.
    #[cold]
    pub(super) fn unknown_access(access: u32) -> Self {
        Self::invalid(format!("unknown rights: {:#x}", access & !Access::all().bits()))
    }

    /// -ECHILD.
    pub(super) fn forked() -> Self {
        LookupError::Forked.into()
    }

    /// Keeps the reason for this thread; the code that the call returns.
    #[cold]
    pub(super) fn answer(self) -> c_int {
        let why = CString::new(self.why.replace('\0', "\\0")).unwrap_or_default();
        // A thread that is ending keeps none.
        LAST.try_with(|last| last.replace(why)).ok();
        -self.code
    }
}

/// What a call returns.
pub(super) fn answer(result: Result<c_int, Failure>) -> c_int {
    result.unwrap_or_else(Failure::answer)
}

/// The errno that an error stands for.
fn code(error: &io::Error) -> c_int {
    match (error.raw_os_error(), error.kind()) {
        (Some(code), _) if code > 0 => code,
        (_, io::ErrorKind::OutOfMemory) => libc::ENOMEM,
        (_, io::ErrorKind::Unsupported) => libc::EOPNOTSUPP,
        _ => libc::EIO,
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(code(&error), error.to_string())
    }
}

impl From<LookupError> for Failure {
    fn from(error: LookupError) -> Self {
        let code = match &error {
            LookupError::Range(_) => libc::EINVAL,
            LookupError::Forked => libc::ECHILD,
            LookupError::Registrar { source, .. } => code(source),
        };
        Self::new(code, error.to_string())
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let code = match &error {
            OpenError::Kernel { source, .. } => code(source),
            OpenError::Monitor(unavailable) => code(&unavailable.source),
            OpenError::TooMany(_) => libc::EINVAL,
        };
        Self::new(code, error.to_string())
    }
}

impl From<UnknownHandle> for Failure {
    fn from(error: UnknownHandle) -> Self {
        Self::new(libc::ENOENT, error.to_string())
    }
}

/// Why the last call of this thread that failed did so, in words; "" if none has.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pindown_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

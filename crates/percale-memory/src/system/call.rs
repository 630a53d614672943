//! System calls that return errors with the name of the call that failed, and advice.
//!
//! Calls that open or grow something are made through [`call`]. Its error is passed on as an [`io::Error`], and
//! [`errno`] returns its number.

use std::fmt;
use std::io;

use rustix::io::Errno;

use super::interrupted::uninterrupted;

/// A system call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallError {
    name: &'static str,
    errno: Errno,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {}", self.name, io::Error::from(self.errno))?;
        let advice = advice(self.errno);
        if advice.is_empty() { Ok(()) } else { write!(f, "; {advice}") }
    }
}

impl std::error::Error for CallError {}

impl From<CallError> for io::Error {
    #[inline]
    fn from(error: CallError) -> Self {
        Self::new(Self::from(error.errno).kind(), error)
    }
}

/// The advice for a call that failed.
const fn advice(errno: Errno) -> &'static str {
    match errno {
        Errno::PERM | Errno::ACCESS | Errno::NOSYS => {
            "a sandbox (seccomp), a security module or an old kernel does not allow it: allow it there"
        }
        Errno::MFILE | Errno::NFILE => "raise the limit on open files (ulimit -n)",
        Errno::NOMEM => {
            "free memory, or raise the limits on memory and mappings (ulimit -v, ulimit -l, vm.max_map_count)"
        }
        Errno::NOSPC => "free memory, or raise the memory limit of the control group",
        Errno::FBIG => "raise the limit on the size of files (ulimit -f)",
        Errno::AGAIN => "raise the limit on processes (ulimit -u)",
        _ => "",
    }
}

/// Makes a system call, and repeats it while a signal interrupts it.
///
/// # Errors
/// The error of the call, with its name.
pub fn call<T>(name: &'static str, make: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    uninterrupted(make).map_err(named(name))
}

/// Adds the name of a system call to its error.
#[inline]
pub fn named(name: &'static str) -> impl Fn(Errno) -> io::Error {
    move |errno| CallError { name, errno }.into()
}

/// Returns the error number of an error that was created by [`call`] or the standard library.
#[inline]
pub fn errno(error: &io::Error) -> Option<i32> {
    let named = error.get_ref().and_then(|inner| inner.downcast_ref::<CallError>());
    named.map(|error| error.errno.raw_os_error()).or_else(|| error.raw_os_error())
}

/// Returns the errno of an error that percale or the standard library created for a failed system call, or `EIO` for
/// any other error. Errors of percale contain the name of the call, so [`io::Error::raw_os_error`] does not return
/// their numbers.
#[must_use]
#[inline]
pub fn error_number(error: &io::Error) -> i32 {
    errno(error).unwrap_or(libc::EIO)
}

/// Returns whether the system had too little of something that other programs, or other parts of this one, may release:
/// memory, descriptors, threads or space.
#[must_use]
pub fn is_shortage(error: &io::Error) -> bool {
    let lacking = [libc::ENOMEM, libc::ENOBUFS, libc::EMFILE, libc::ENFILE, libc::EAGAIN, libc::ENOSPC];
    errno(error).is_some_and(|errno| lacking.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_contains_call_name_and_errno() {
        let error = call("memfd_create", || Err::<(), _>(Errno::PERM)).unwrap_err();
        assert_eq!((errno(&error), error.kind()), (Some(libc::EPERM), io::ErrorKind::PermissionDenied));
        let text = error.to_string();
        assert!(text.starts_with("memfd_create failed: Operation not permitted") && text.contains("seccomp"), "{text}");
        let mut interruptions = 3;
        let made = call("ftruncate", || {
            interruptions -= 1;
            if interruptions > 0 { Err(Errno::INTR) } else { Ok(7) }
        });
        assert_eq!(made.unwrap(), 7);
        assert_eq!(errno(&io::Error::from_raw_os_error(libc::EMFILE)), Some(libc::EMFILE));
        assert_eq!(errno(&io::Error::other("no call")), None);
    }
}

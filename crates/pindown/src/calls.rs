//! Errors that name the failed system call, and a call that does not panic when the kernel rejects it.

#![cfg_attr(
    not(loom),
    expect(
        unsafe_code,
        reason = "rustix panics if a limit or the size of memory cannot be read; each block states why it is sound"
    )
)]

use std::fmt;
use std::io;

use rustix::io::Errno;

/// A system call that failed.
#[derive(Clone, Copy, Debug)]
struct Refused {
    call: &'static str,
    errno: Errno,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {}", self.call, io::Error::from(self.errno))?;
        match self.errno {
            Errno::PERM | Errno::ACCESS => f.write_str("; a sandbox (seccomp) or a security module does not allow it"),
            Errno::FBIG => f.write_str("; raise the limit on the size of files (ulimit -f)"),
            Errno::MFILE | Errno::NFILE => f.write_str("; raise the limit on open files (ulimit -n)"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Refused {}

/// Adds the name of the system call to an error.
pub(crate) fn named(call: &'static str) -> impl Fn(Errno) -> io::Error {
    move |errno| io::Error::new(io::Error::from(errno).kind(), Refused { call, errno })
}

/// Like [`named`], but for the error of the last system call.
#[cfg(not(loom))]
pub(crate) fn last(call: &'static str) -> io::Error {
    named(call)(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Returns the errno of an error, if it comes from a system call.
pub(crate) fn errno(error: &io::Error) -> Option<i32> {
    let named = error.get_ref().and_then(|inner| inner.downcast_ref::<Refused>());
    named.map(|refused| refused.errno.raw_os_error()).or_else(|| error.raw_os_error())
}

/// Returns the errno that corresponds to an error.
pub(crate) fn errno_for(error: &io::Error) -> i32 {
    match (errno(error), error.kind()) {
        (Some(code), _) if code > 0 => code,
        (_, io::ErrorKind::OutOfMemory) => libc::ENOMEM,
        (_, io::ErrorKind::Unsupported) => libc::EOPNOTSUPP,
        _ => libc::EIO,
    }
}

/// Returns a limit of this process (`RLIMIT_*`); `None` if the kernel does not report it.
#[cfg(not(loom))]
pub(crate) fn limit(resource: libc::__rlimit_resource_t) -> Option<libc::rlimit64> {
    let mut limits = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limits` is valid, and every bit pattern is a valid value of its type.
    let read = unsafe { libc::getrlimit64(resource, &raw mut limits) };
    (read == 0).then_some(limits)
}

/// Returns the size in bytes of this machine's memory, with its swap; `None` if the kernel does not report it.
#[cfg(not(loom))]
pub(crate) fn system_memory() -> Option<u64> {
    // SAFETY: every bit pattern is a valid value, including zeros.
    let mut system: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: `system` is valid.
    let read = unsafe { libc::sysinfo(&raw mut system) };
    (read == 0).then(|| system.totalram.saturating_add(system.totalswap).saturating_mul(system.mem_unit.into()))
}

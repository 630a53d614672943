//! The signals that end the helper, as a descriptor that its loop can poll.
#![expect(unsafe_code, reason = "signalfd(2) has no safe wrapper here; each block states its own reason")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// The signals, with their names.
const ENDING: [(libc::c_int, &str); 3] =
    [(libc::SIGTERM, "SIGTERM"), (libc::SIGINT, "SIGINT"), (libc::SIGHUP, "SIGHUP")];

/// Returns the name of the signal that has arrived.
pub(super) fn arrived(signals: BorrowedFd<'_>) -> &'static str {
    // The structure of signalfd(2) begins with the number of the signal. One read returns it as a whole.
    let mut information = [0_u8; size_of::<libc::signalfd_siginfo>()];
    rustix::io::read(signals, &mut information).ok();
    let number = information.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
    ENDING.iter().find(|(signal, _)| *signal == number).map_or("a signal", |(_, name)| name)
}

/// Blocks SIGTERM, SIGINT and SIGHUP in this thread and in those that it starts from now on. Returns a descriptor that
/// is readable once one of these signals has arrived.
pub(super) fn ending() -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the call initialises the set that it is given.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for (signal, _) in ENDING {
        // SAFETY: the set was initialised above; the signal exists.
        unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
    }
    // SAFETY: the set is initialised; the former mask is not requested.
    let blocked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), ptr::null_mut()) };
    if blocked != 0 {
        return Err(io::Error::from_raw_os_error(blocked));
    }
    // SAFETY: the set is initialised; -1 requests a new descriptor.
    let fd = unsafe { libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made the descriptor for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

//! Threads that the library starts.

#![expect(unsafe_code, reason = "maps memory and blocks signals; each block states its own reason")]

use std::io;
use std::thread::{Builder, JoinHandle};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::calls::named;

/// The size in bytes of the address space that a thread takes: its stack, unless RUST_MIN_STACK sets another size, and
/// its signal stack.
const BYTES: usize = (2 << 20) + (64 << 10);

/// Starts a thread that never runs a signal handler of the program, because every signal is blocked in it.
///
/// # Errors
/// The call that failed, and a possible remedy.
pub(super) fn start(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    room()?;
    let thread = Builder::new().name(name.to_owned());
    let started = without_signals(|| thread.spawn(run));
    started.map_err(|why| named("starting a thread (clone3)")(Errno::from_io_error(&why).unwrap_or(Errno::AGAIN)))
}

/// Checks that the address space has room for a thread. A thread that finds room for its stack but not for its signal
/// stack ends the process, because the standard library panics where unwinding is impossible. Mappings that other
/// threads make at the same time may still take the room.
///
/// # Errors
/// The address space has no room.
pub(in crate::monitor) fn room() -> io::Result<()> {
    let allowed = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses does not affect existing mappings.
    match unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), BYTES, allowed, MapFlags::PRIVATE) } {
        Ok(stack) => {
            // SAFETY: the memory was just mapped, and no other code has its address. If the call fails, the mapping
            // stays.
            unsafe { rustix::mm::munmap(stack, BYTES) }.ok();
            Ok(())
        }
        Err(Errno::NOMEM) => Err(named("mapping the stack of a thread (mmap)")(Errno::NOMEM)),
        Err(_) => Ok(()),
    }
}

/// Runs `start` with every signal blocked. A thread that it starts inherits this.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: a signal set is a set of bits, and all zero is the empty set.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    let mut before = all;
    // SAFETY: `all` is a valid set.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: both are valid sets, and live through the call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    let answer = start();
    // SAFETY: `before` is the set that this thread had.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    answer
}

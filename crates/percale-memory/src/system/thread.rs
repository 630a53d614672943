//! Starts threads after checking for sufficient address space, pauses threads, and counts how often a thread lost its
//! processor.

#![expect(
    unsafe_code,
    reason = "maps pages and unmaps them immediately, and calls getrusage(2); each block states its own reason"
)]

use std::io;
use std::ptr::null_mut;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::call::{self, named};

/// The address space of a thread, which contains its stack (unless RUST_MIN_STACK sets another size) and its signal
/// stack.
const THREAD: usize = (2 << 20) + (64 << 10);

/// Starts a thread.
///
/// A thread that finds room for its stack but not for its signal stack ends the process, because the standard library
/// panics where unwinding is impossible. So this function first checks that there is room for both. Other threads may
/// still use that room in the meantime.
///
/// # Errors
/// The reason why no thread can be started, with advice.
pub fn start_thread(name: &'static str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    if let Err(error) = find_room(THREAD)
        && call::errno(&error) == Some(libc::ENOMEM)
    {
        return Err(named("mapping the stack of a thread (mmap)")(Errno::NOMEM));
    }
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
        named("starting a thread (clone3)")(errno)
    })
}

/// Pauses this thread for at most this time. A signal ends the pause. If the system refuses to let the thread sleep, it
/// only yields. (`std::thread::sleep` panics in that case.)
pub fn pause(time: Duration) {
    let time = Timespec::try_from(time).ok();
    match rustix::event::poll(&mut [], time.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(_) => std::thread::yield_now(),
    }
}

/// Returns how often this thread lost its processor to another thread although it could run (including yields that let
/// another thread run). Returns `None` if this is unknown because the system refuses the call or does not count.
#[inline]
pub fn lost_processor() -> Option<u64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes one such structure or nothing.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: the structure consists of integers, which may be 0.
    let usage = unsafe { usage.assume_init() };
    u64::try_from(usage.ru_nivcsw).ok().filter(|count| *count > 0)
}

/// Maps `len` bytes and unmaps them again.
fn find_room(len: usize) -> io::Result<()> {
    let start = call::call("mmap", || {
        // SAFETY: a new mapping at an address of the kernel's choice does not affect existing memory.
        unsafe { rustix::mm::mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }
    })?;
    call::call("munmap", || {
        // SAFETY: the range was mapped above and is not used.
        unsafe { rustix::mm::munmap(start, len) }
    })
}

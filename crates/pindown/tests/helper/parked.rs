//! Threads that stay inside `madvise(MADV_DONTNEED)` for as long as the test needs: they wait for a userfaultfd of
//! their own process.

use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use crate::client::map;
use crate::support::PAGE;

/// linux/userfaultfd.h
const UFFD_USER_MODE_ONLY: i32 = 1;
const UFFD_API: u64 = 0xaa;
const UFFD_FEATURE_EVENT_REMOVE: u64 = 1 << 3;
const UFFDIO_API: libc::Ioctl = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::Ioctl = 0xc020_aa00;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;

#[derive(Debug)]
pub(crate) struct Parked {
    uffd: OwnedFd,
    threads: Vec<JoinHandle<()>>,
}

impl Parked {
    /// Starts `count` threads that are all inside the call. Returns `None` if the system forbids userfaultfd.
    pub(crate) fn new(count: usize) -> Option<Self> {
        // SAFETY: the call takes no pointers.
        let fd =
            unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK | UFFD_USER_MODE_ONLY) };
        if fd < 0 {
            return None;
        }
        // SAFETY: the descriptor was just made.
        let uffd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let memory = map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1) as u64;
        // SAFETY: the memory was mapped above.
        unsafe { (memory as *mut u8).write_volatile(1) };
        let mut api = [UFFD_API, UFFD_FEATURE_EVENT_REMOVE, 0];
        // SAFETY: the structure of the request has three words.
        let known = unsafe { libc::ioctl(uffd.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) };
        let mut register = [memory, PAGE as u64, UFFDIO_REGISTER_MODE_MISSING, 0];
        // SAFETY: the structure of the request has four words.
        let registered = unsafe { libc::ioctl(uffd.as_raw_fd(), UFFDIO_REGISTER, register.as_mut_ptr()) };
        if (known, registered) != (0, 0) {
            return None;
        }
        let begun = Arc::new(AtomicUsize::new(0));
        let park = |_| {
            let begun = Arc::clone(&begun);
            let call = move || {
                begun.fetch_add(1, Ordering::Relaxed);
                // SAFETY: the memory belongs to this test, and no code reads it.
                unsafe { libc::syscall(libc::SYS_madvise, memory, PAGE, libc::MADV_DONTNEED) };
            };
            thread::Builder::new().stack_size(64 << 10).spawn(call).expect("a thread")
        };
        let threads: Vec<_> = (0..count).map(park).collect();
        while begun.load(Ordering::Relaxed) < count || inside() < count {
            thread::yield_now();
        }
        Some(Self { uffd, threads })
    }

    /// Lets the threads continue, and waits until they have ended.
    pub(crate) fn release(self) {
        let mut event = [0_u8; 32];
        for thread in self.threads {
            while !thread.is_finished() {
                // SAFETY: the buffer has the 32 bytes of an event.
                unsafe { libc::read(self.uffd.as_raw_fd(), event.as_mut_ptr().cast(), event.len()) };
                thread::yield_now();
            }
            thread.join().expect("the thread does not panic");
        }
    }
}

/// Returns the number of this process's threads in uninterruptible sleep: those that wait for the userfaultfd, and
/// those that wait for the lock before it.
fn inside() -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("own threads").flatten();
    let sleeps = |stat: String| stat.rsplit(") ").next().is_some_and(|state| state.starts_with('D'));
    tasks.filter(|task| fs::read_to_string(task.path().join("stat")).is_ok_and(sleeps)).count()
}

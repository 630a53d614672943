//! What a thread of the library sheds of whoever started it.
//!
//! A thread inherits its starter's processors and scheduling policy. An owner that is pinned and spins, or runs in real time,
//! would leave a thread that sleeps most of the time no turn at all when it is needed.

#![expect(unsafe_code, reason = "rustix has no sched_setscheduler(2); each block states its own reason")]

use std::io;

use rustix::thread::CpuSet;

/// Lets the calling thread run on every processor that its process may use (the kernel cuts the set down to the process's
/// cpuset), and takes real-time priority from it.
pub(crate) fn step_back() {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|processor| all.set(processor));
    if let Err(error) = rustix::thread::sched_setaffinity(None, &all) {
        tracing::warn!(%error, "a thread of the library stays on the processors of whoever started it");
    }
    // SAFETY: takes an integer; 0 is the calling thread.
    let policy = unsafe { libc::sched_getscheduler(0) };
    if matches!(policy & !libc::SCHED_RESET_ON_FORK, libc::SCHED_FIFO | libc::SCHED_RR) {
        let usual = libc::sched_param { sched_priority: 0 };
        // SAFETY: the parameters are a valid structure, only read; 0 is the calling thread.
        if unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const usual) } != 0 {
            let error = io::Error::last_os_error();
            tracing::warn!(%error, "a thread of the library keeps its starter's priority");
        }
    }
}

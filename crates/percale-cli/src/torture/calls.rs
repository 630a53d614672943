//! The cost of system calls for all processes while a monitor is loaded. Some monitors require the kernel to report
//! every call.

use std::hint::black_box;
use std::time::Instant;

use serde::Serialize;

/// The number of calls that are timed together, and the number of rounds.
const CALLS: u32 = 1000;
const ROUNDS: usize = 31;

/// The time in nanoseconds of a system call that does almost no work (getppid), in a process without a cache.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Calls {
    pub(super) without_ns: f64,
    pub(super) with_ns: f64,
}

/// Returns the median nanoseconds of one call.
pub(super) fn measure() -> f64 {
    let mut rounds = [(); ROUNDS].map(|()| {
        let start = Instant::now();
        (0..CALLS).for_each(|_| _ = black_box(rustix::process::getppid()));
        start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
    });
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

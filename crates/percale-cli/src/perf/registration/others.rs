//! The cost of a monitor for processes that do not use it: for a system call, and for mmap(2) and munmap(2) of memory
//! that is not registered.

use std::hint::black_box;
use std::io;
use std::time::Duration;

use super::lines::{Figures, Work};
use crate::clock::Clock;
use crate::memory_range::MemoryRange;
use crate::statistics::Samples;

/// The number of system calls that are timed together.
const CALLS: u32 = 16;

/// The number of pages of a mapping.
const PAGES: u64 = 16;

pub(super) fn measure(clock: &Clock, work: Work, time: Duration) -> io::Result<Figures> {
    let mut samples = Samples::default();
    // The flags differ from those of adjacent mappings. Otherwise the kernel would merge the new mapping with them in
    // some processes and not in others.
    let flags = libc::MAP_NORESERVE | if work == Work::FilledMapping { libc::MAP_POPULATE } else { 0 };
    let len = PAGES * pindown::page_size();
    super::bench::rounds(time, 20, |_| {
        for _ in 0..50 {
            let start = clock.now();
            let times = match work {
                Work::Call => {
                    (0..CALLS).for_each(|_| _ = black_box(rustix::process::getppid()));
                    CALLS
                }
                Work::Mapping | Work::FilledMapping => {
                    MemoryRange::memory(len, flags)?.release()?;
                    1
                }
            };
            let end = clock.now();
            samples.push(clock.nanoseconds(end.wrapping_sub(start)) / f64::from(times));
        }
        Ok(())
    })?;
    Figures::of(samples).ok_or_else(|| io::Error::other("nothing was timed"))
}

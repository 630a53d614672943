//! What a monitor costs those who have nothing to do with it: mmap(2) and munmap(2) of memory that nobody has registered.

use std::io;
use std::time::Duration;

use super::lines::Figures;
use crate::clock::Clock;
use crate::lot::Lot;
use crate::statistics::Samples;

/// Pages of a mapping.
const PAGES: u64 = 16;

pub(super) fn measure(clock: &Clock, touched: bool, time: Duration) -> io::Result<Figures> {
    let mut samples = Samples::default();
    // Unlike its neighbours, with which it would become one mapping, in some processes and not in others.
    let flags = libc::MAP_NORESERVE | if touched { libc::MAP_POPULATE } else { 0 };
    let len = PAGES * pindown::page_size();
    super::bench::rounds(time, 20, |_| {
        for _ in 0..50 {
            let start = clock.now();
            Lot::memory(len, flags)?.release()?;
            let end = clock.now();
            samples.push(clock.nanoseconds(end.wrapping_sub(start)));
        }
        Ok(())
    })?;
    Figures::of(samples).ok_or_else(|| io::Error::other("nothing was timed"))
}

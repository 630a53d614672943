//! The costs of the cache itself, with a registrar that pins nothing: misses, and dropping changed registrations.

use std::hint::black_box;
use std::io;
use std::time::{Duration, Instant};

use pindown::Access;
use pindown::mapping::Mappings;

use super::bench::{self, RegistrationBench, median};
use super::lines::RegistrationLine;

/// The number of misses that are timed together.
const MISSES: u32 = 1000;

/// The number of registrations that a change covers.
const DROPPED: u32 = 1000;

pub(super) fn miss(bench: &RegistrationBench, time: Duration) -> io::Result<RegistrationLine> {
    let page = pindown::page_size() as usize;
    let memory = bench.memory(page * MISSES as usize)?;
    let ranges = (0..MISSES as usize).map(|part| memory.part(part, page)).collect::<io::Result<Vec<_>>>()?;
    let (cache, _notifier) = bench.unpinned(MISSES)?;
    let lane = cache.lane();
    let mappings = Mappings::open()?;
    let (mut misses, mut queries) = (Vec::new(), Vec::new());
    bench::rounds(time, 5, |_| {
        let (nanoseconds, kept) = bench.time(|| {
            ranges.iter().try_for_each(|range| {
                let used = lane.get(*range, Access::LOCAL_WRITE).map_err(io::Error::other)?;
                lane.end(used);
                Ok::<(), io::Error>(())
            })
        });
        kept?;
        misses.push(nanoseconds / f64::from(MISSES));
        cache.flush();
        let (nanoseconds, found) =
            bench.time(|| ranges.iter().try_for_each(|range| mappings.of(*range).map(black_box).map(drop)));
        found?;
        queries.push(nanoseconds / f64::from(MISSES));
        Ok(())
    })?;
    // The first miss had to allocate the tables.
    misses.remove(0);
    Ok(RegistrationLine::Miss { monitor: bench.monitor.clone(), ns: median(misses), query_ns: median(queries) })
}

/// The maximum time until a monitor's thread records a change that the kernel has already reported to it.
const RECORDING_TIMEOUT: Duration = Duration::from_secs(10);

/// Measures the dropping of registrations. Returns `None` if the memory cannot change.
///
/// A round has a result only if its first sweep finds the change. A monitor with a thread may record the change
/// slightly later, and a sweep that found a part of the work already done would be too short.
pub(super) fn invalidation(bench: &RegistrationBench, time: Duration) -> io::Result<Option<RegistrationLine>> {
    let page = pindown::page_size() as usize;
    let (cache, notifier) = bench.unpinned(DROPPED)?;
    let lane = cache.lane();
    let mut each = Vec::new();
    let mut is_kept = true;
    bench::rounds(time, 5, |_| {
        let memory = bench.memory(page * DROPPED as usize)?;
        let bench::RegistrationMemory::Anonymous(memory_range) = &memory else {
            is_kept = false;
            return Ok(());
        };
        for part in 0..DROPPED as usize {
            let used = lane.get(memory.part(part, page)?, Access::LOCAL_WRITE).map_err(io::Error::other)?;
            lane.end(used);
        }
        let before = cache.stats();
        memory_range.unmap(memory_range.range())?;
        if let Some(notifier) = &notifier {
            notifier.changed(memory_range.range());
        }
        let dropped = || cache.stats().invalidations - before.invalidations;
        let (nanoseconds, ()) = bench.time(|| cache.sweep());
        if dropped() == u64::from(DROPPED) {
            each.push(nanoseconds / f64::from(DROPPED));
        }
        let start = Instant::now();
        while dropped() < u64::from(DROPPED) {
            if start.elapsed() > RECORDING_TIMEOUT {
                return Err(io::Error::other(format!(
                    "the {} monitor reported {} of {DROPPED} unmapped registrations within {RECORDING_TIMEOUT:?}",
                    bench.monitor,
                    dropped(),
                )));
            }
            std::thread::yield_now();
            cache.sweep();
        }
        Ok(())
    })?;
    if is_kept && each.is_empty() {
        return Err(io::Error::other(format!(
            "the {} monitor recorded every change too late to be timed",
            bench.monitor
        )));
    }
    let line =
        RegistrationLine::Invalidation { monitor: bench.monitor.clone(), entries: DROPPED, ns_each: median(each) };
    Ok(is_kept.then_some(line))
}

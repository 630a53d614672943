//! What a hit costs: random look-ups, and their ends, among so many registrations, by one thread and by two.

use std::hint::black_box;
use std::io;
use std::sync::Barrier;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use pindown::{Access, Cache, Lane, Range};

use super::asked::Asked;
use super::bench::{self, Bench, Nothing, median};
use super::lines::Line;

/// Registrations.
const ENTRIES: [u32; 4] = [1, 64, 4096, 65_536];

/// Look-ups of a round; the median of rounds is taken.
const LOOK_UPS: usize = 1 << 20;

/// Likewise where each is a system call.
const SLOW_LOOK_UPS: usize = 1 << 17;

pub(super) fn measure(bench: &Bench, time: Duration) -> io::Result<Vec<Line>> {
    let page = pindown::page_size() as usize;
    let asked = if bench.monitor.starts_with("userfaultfd") { Some(Asked::new()?) } else { None };
    let look_ups = if asked.is_some() { SLOW_LOOK_UPS } else { LOOK_UPS };
    let mut lines = Vec::new();
    for entries in ENTRIES {
        let memory = bench.memory(page * entries as usize)?;
        let (cache, _notifier) = bench.unpinned(entries)?;
        let lane = cache.lane();
        // A part of a page each, as messages are.
        let range = |number: u64| Range::new(memory.range().start() + number * page as u64 + 64, 1024);
        for number in 0..entries.into() {
            let used = lane.get(range(number).map_err(io::Error::other)?, Access::empty());
            lane.end(used.map_err(io::Error::other)?);
        }
        if cache.stats().entries != u64::from(entries) {
            return Err(io::Error::other(format!("{} of {entries} registrations are kept", cache.stats().entries)));
        }
        let mut random = xorshift();
        let ranges = (0..look_ups).map(|_| range(random() % u64::from(entries))).collect::<Result<Vec<_>, _>>();
        let ranges = ranges.map_err(io::Error::other)?;
        let (mut alone, mut together, mut ioctls) = (Vec::new(), Vec::new(), Vec::new());
        bench::rounds(time, 3, |_| {
            alone.push(round(&lane, &ranges)?);
            ioctls.extend(asked.as_ref().map(|asked| per_call(look_ups, || asked.ask())));
            together.push(by_two(&cache, &ranges)?);
            Ok(())
        })?;
        let ioctl_ns = (!ioctls.is_empty()).then(|| median(ioctls));
        for (threads, ns) in [(1, median(alone)), (2, median(together))] {
            lines.push(Line::Hit { monitor: bench.monitor.clone(), entries, threads, ns, ioctl_ns });
        }
    }
    Ok(lines)
}

/// ns a look-up of the slower of two threads.
fn by_two(cache: &Cache<Nothing>, ranges: &[Range]) -> io::Result<f64> {
    let both = Barrier::new(2);
    std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| {
            scope.spawn(|| {
                let lane = cache.lane();
                both.wait();
                round(&lane, ranges)
            })
        });
        let end = |thread: ScopedJoinHandle<'_, io::Result<f64>>| {
            thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
        };
        threads.into_iter().map(end).try_fold(0.0, |slowest: f64, time| Ok(slowest.max(time?)))
    })
}

/// ns a look-up.
fn round(lane: &Lane<Nothing>, ranges: &[Range]) -> io::Result<f64> {
    let start = Instant::now();
    for range in ranges {
        let used = lane.get(*range, Access::empty()).map_err(io::Error::other)?;
        black_box(used.local_key());
        lane.end(used);
    }
    Ok(start.elapsed().as_nanos() as f64 / ranges.len() as f64)
}

fn per_call(calls: usize, mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..calls).for_each(|_| call());
    start.elapsed().as_nanos() as f64 / calls as f64
}

fn xorshift() -> impl FnMut() -> u64 {
    let mut state = 88_172_645_463_325_252_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

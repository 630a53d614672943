//! The cost of a hit: random lookups among a number of registrations, each followed by the end of its use, by one
//! thread and by two.

use std::hint::black_box;
use std::io;
use std::sync::Barrier;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use pindown::{Access, Lane, Range};

use super::bench::{self, Nothing, RegistrationBench, median};
use super::lines::RegistrationLine;
use super::userfaultfd_probe::UserfaultfdProbe;

/// The numbers of registrations.
const ENTRIES: [u32; 4] = [1, 64, 4096, 65_536];

/// One of this many pages is registered.
const APART: u64 = 16;

/// The length of the list of lookups. It is too long for branch predictors to learn. At 2 MiB, reading the list takes a
/// negligible time (at 16 MiB, it takes a third of a nanosecond per lookup).
const LOOK_UPS: usize = 1 << 17;

/// The number of passes through the list in a round if a lookup makes no system call. There are several passes, so that
/// two threads run at the same time. The median of the rounds is reported.
const PASSES: usize = 8;

pub(super) fn measure(bench: &RegistrationBench, time: Duration) -> io::Result<Vec<RegistrationLine>> {
    let page = pindown::page_size() as usize;
    let probe = if bench.monitor.starts_with("userfaultfd") { Some(UserfaultfdProbe::new()?) } else { None };
    let passes = if probe.is_some() { 1 } else { PASSES };
    let mut lines = Vec::new();
    for entries in ENTRIES {
        let memory = bench.memory(page * APART as usize * entries as usize)?;
        let (cache, _notifier) = bench.unpinned(entries)?;
        let lane = cache.lane();
        // Each range is a part of a page, as messages are. The distances between the pages are irregular.
        let range = |number: u64| {
            let place = number * APART + spread(number) % APART;
            Range::new(memory.range().start() + place * page as u64 + 64, 1024)
        };
        for number in 0..entries.into() {
            let used = lane.get(range(number).map_err(io::Error::other)?, Access::empty());
            lane.end(used.map_err(io::Error::other)?);
        }
        if cache.stats().entries != u64::from(entries) {
            return Err(io::Error::other(format!("{} of {entries} registrations are kept", cache.stats().entries)));
        }
        let mut random = xorshift();
        let ranges = (0..LOOK_UPS).map(|_| range(random() % u64::from(entries))).collect::<Result<Vec<_>, _>>();
        let ranges = ranges.map_err(io::Error::other)?;
        let (mut alone, mut together) = (Vec::new(), Vec::new());
        let (mut ioctl_alone, mut ioctl_together) = (Vec::new(), Vec::new());
        let before = cache.stats();
        bench::rounds(time, 3, |_| {
            alone.push(round(&lane, &ranges, passes)?);
            together.push(by_two(|| {
                let (lane, ranges) = (cache.lane(), &ranges);
                move || round(&lane, ranges, passes)
            })?);
            if let Some(probe) = &probe {
                let ask = || Ok(per_call(LOOK_UPS, || probe.ask()));
                ioctl_alone.push(ask()?);
                ioctl_together.push(by_two(|| ask)?);
            }
            Ok(())
        })?;
        let after = cache.stats();
        let slow = (after.slow_hits - before.slow_hits) as f64 / (after.hits - before.hits) as f64;
        for (threads, ns, ioctls) in [(1, alone, ioctl_alone), (2, together, ioctl_together)] {
            let ioctl_ns = (!ioctls.is_empty()).then(|| median(ioctls));
            lines.push(RegistrationLine::Hit {
                monitor: bench.monitor.clone(),
                entries,
                threads,
                ns: median(ns),
                slow,
                ioctl_ns,
            });
        }
    }
    Ok(lines)
}

/// Measures two threads, each of which first prepares its own state. Returns the time of the slower one.
fn by_two<F: FnOnce() -> io::Result<f64>>(prepare: impl Fn() -> F + Sync) -> io::Result<f64> {
    let both = Barrier::new(2);
    std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| {
            scope.spawn(|| {
                let measure = prepare();
                both.wait();
                measure()
            })
        });
        let end = |thread: ScopedJoinHandle<'_, io::Result<f64>>| {
            thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
        };
        threads.into_iter().map(end).try_fold(0.0, |slowest: f64, time| Ok(slowest.max(time?)))
    })
}

/// Returns the nanoseconds per lookup.
fn round(lane: &Lane<Nothing>, ranges: &[Range], passes: usize) -> io::Result<f64> {
    let start = Instant::now();
    for _ in 0..passes {
        for range in ranges {
            let used = lane.get(*range, Access::empty()).map_err(io::Error::other)?;
            black_box(used.local_key());
            lane.end(used);
        }
    }
    Ok(start.elapsed().as_nanos() as f64 / (passes * ranges.len()) as f64)
}

fn per_call(calls: usize, mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..calls).for_each(|_| call());
    start.elapsed().as_nanos() as f64 / calls as f64
}

/// Hashes a number to 24 bits.
const fn spread(number: u64) -> u64 {
    let mixed = (number ^ number >> 7).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53) >> 40
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

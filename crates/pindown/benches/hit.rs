//! Measures the cost of a hit: random look-ups among 1 to 65,536 registered buffers, by one thread and by two.
//!
//! `cargo bench -p pindown --bench hit`. Prints medians of rounds in ns for each look-up (including its end), with the
//! share of look-ups that were not hits, and the cost of a look-up by a page that is not the registration's first.

use std::hint::black_box;
use std::io;
use std::time::Instant;

use pindown::monitor::Choice;
use pindown::monitor::imported::Notifier;
use pindown::{Access, Cache, Lane, Pinned, Range, Registrar, page_size};

/// A registrar that pins nothing, because only hits are measured.
struct Nothing;

impl Registrar for Nothing {
    type Pin = ();

    fn pin(&self, range: Range, _access: Access) -> io::Result<Pinned<()>> {
        Ok(Pinned { pin: (), local_key: range.start(), remote_key: 0 })
    }

    fn unpin(&self, _pin: ()) {}
}

/// The number of look-ups of a round. They are too many for the branch predictor to learn. The list takes 2 MiB, so
/// that reading it does not dominate the result (reading 16 MiB takes a third of a nanosecond for each look-up).
const LOOK_UPS: usize = 1 << 17;

/// The number of passes over the list in a round, so that two threads run at the same time.
const PASSES: usize = 8;

/// The number of rounds. Their median is printed.
const ROUNDS: usize = 9;

/// Returns buffer `number`. It is in two of sixteen pages, at an irregular distance from its neighbours, so that hashes
/// collide as in real programs.
fn buffer(number: u64) -> Range {
    let mixed = (number ^ number >> 7).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    let place = 16 * number + (mixed >> 40) % 15;
    let start = 0x7f00_0000_0000 + place * page_size() + 64;
    Range::new(start, 4096 + 1024).expect("a range")
}

/// Returns the last part of a buffer.
fn rest(buffer: Range) -> Range {
    Range::new(buffer.end() - 1024, 1024).expect("a range")
}

/// Returns the median of all rounds in ns for each look-up.
fn measure(lane: &Lane<Nothing>, ranges: &[Range]) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..PASSES {
                for range in ranges {
                    let used = lane.get(*range, Access::empty()).expect("registered");
                    black_box(used.local_key());
                    lane.end(used);
                }
            }
            start.elapsed().as_nanos() as f64 / (PASSES * ranges.len()) as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

fn main() {
    println!("{:>8}  {:>10}  {:>10}  {:>8}  {:>10}", "entries", "1 thread", "2 threads", "slow", "elsewhere");
    for entries in [1_u64, 64, 4096, 65_536] {
        let (_notifier, imported) = Notifier::new(|_, _| true).expect("a descriptor");
        let cache = Cache::builder(Nothing).monitor(Choice::Imported(imported)).max_count(entries as u32);
        let cache = cache.open().expect("opens");
        let mut state = 88_172_645_463_325_252_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let ranges: Vec<Range> = (0..LOOK_UPS).map(|_| buffer(random() % entries)).collect();
        let lane = cache.lane();
        for number in 0..entries {
            lane.end(lane.get(buffer(number), Access::empty()).expect("registered"));
        }
        let before = cache.stats();
        let one = measure(&lane, &ranges);
        let two = std::thread::scope(|scope| {
            let threads = [(); 2].map(|()| {
                scope.spawn(|| {
                    let lane = cache.lane();
                    measure(&lane, &ranges)
                })
            });
            threads.map(|thread| thread.join().expect("no panic")).into_iter().fold(0.0, f64::max)
        });
        let after = cache.stats();
        let slow = (after.slow_hits + after.misses - before.slow_hits - before.misses) as f64;
        let slow = slow * 100.0 / (3 * ROUNDS * PASSES * LOOK_UPS) as f64;
        let rests: Vec<Range> = ranges.iter().map(|range| rest(*range)).collect();
        for number in 0..entries {
            lane.end(lane.get(rest(buffer(number)), Access::empty()).expect("registered"));
        }
        let elsewhere = measure(&lane, &rests);
        println!("{entries:>8}  {one:>7.2} ns  {two:>7.2} ns  {slow:>7.3}%  {elsewhere:>7.2} ns");
    }
}

//! Figure 1 of the paper: transfers into memory that was registered in advance, into memory that is registered for each
//! transfer, and into memory that is looked up in the cache. The three methods alternate in short rounds, with the same
//! memory.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use pindown::{Range, Registrar};

use super::bench::{self, RegistrationBench, RegistrationMemory};
use super::lines::{Figures, RegistrationLine};
use crate::fixed_buffers::{ACCESS, BufferDirection};
use crate::statistics::Samples;

#[derive(Clone, Copy, Debug)]
enum Side {
    InAdvance,
    EachTime,
    Cached,
}

/// The orders in which the three methods alternate. Within these orders, each method follows each other method equally
/// often.
const ORDERS: [[Side; 3]; 6] = {
    use Side::{Cached, EachTime, InAdvance};
    [
        [InAdvance, EachTime, Cached],
        [InAdvance, Cached, EachTime],
        [EachTime, InAdvance, Cached],
        [EachTime, Cached, InAdvance],
        [Cached, InAdvance, EachTime],
        [Cached, EachTime, InAdvance],
    ]
};

/// The number of rounds between two checked rounds.
const CHECK_EVERY: u32 = 64;

/// The approximate number of bytes that one method receives in a turn, in at most 16 transfers.
const TURN: usize = 256 << 10;

struct Transfers<'a> {
    bench: &'a RegistrationBench,
    memory: RegistrationMemory,
    range: Range,
    source: File,
    /// The slot of the registration made in advance.
    slot: u32,
}

pub(super) fn measure(bench: &RegistrationBench, bytes: usize, time: Duration) -> io::Result<RegistrationLine> {
    let memory = bench.memory(bytes)?;
    memory.fill()?;
    let range = memory.part(0, bytes)?;
    let pinned = bench.device.pin(range, ACCESS)?;
    let transfers = Transfers { bench, memory, range, source: bench::source()?, slot: pinned.local_key as u32 };
    let line = transfers.measure(bytes, time);
    bench.device.unpin(pinned.pin);
    bench.cache.flush();
    line
}

impl Transfers<'_> {
    fn measure(&self, bytes: usize, time: Duration) -> io::Result<RegistrationLine> {
        let kept = self.bench.lane.get(self.range, ACCESS).map_err(io::Error::other)?;
        let single = kept.is_single();
        self.bench.lane.end(kept);
        if single {
            return Err(io::Error::other(format!(
                "monitor {} keeps no registrations of this kind of memory",
                self.bench.monitor
            )));
        }
        let before = self.bench.cache.stats();
        let mut samples = [(); 3].map(|()| Samples::default());
        let turn = (TURN / bytes).clamp(1, 16);
        let mut verified = 0;
        let checked = |round: u32| round.is_multiple_of(CHECK_EVERY);
        bench::rounds(time, 7, |round| {
            for side in ORDERS[round as usize % ORDERS.len()] {
                if checked(round) {
                    self.check(side, bytes)?;
                    verified += 1;
                } else if turn > 1 {
                    // This transfer is not timed. It loads the data into the CPU caches again, because the other
                    // methods have displaced it.
                    self.receive(side)?;
                }
                for _ in 0..turn {
                    let (nanoseconds, moved) = self.bench.time(|| self.receive(side));
                    moved?;
                    samples[side as usize].push(nanoseconds);
                }
            }
            Ok(())
        })?;
        let after = self.bench.cache.stats();
        let none = || io::Error::other("nothing was timed");
        let [in_advance, each_time, cached] = samples.map(|samples| Figures::of(samples).ok_or_else(none));
        let (in_advance, each_time, cached) = (in_advance?, each_time?, cached?);
        let missed = |stats: &pindown::Stats| stats.misses + stats.single_uses.iter().sum::<u64>();
        Ok(RegistrationLine::Transfer {
            monitor: self.bench.monitor.clone(),
            bytes,
            in_advance,
            each_time,
            cached,
            each_time_ratio: each_time.ratio(&in_advance),
            cached_ratio: cached.ratio(&in_advance),
            misses: missed(&after) - missed(&before),
            verified,
        })
    }

    #[inline]
    fn receive(&self, side: Side) -> io::Result<()> {
        let Self { bench: RegistrationBench { device, lane, .. }, range, .. } = self;
        let transfer = |slot| device.transfer(slot, *range, BufferDirection::FromFile, self.source.as_fd());
        match side {
            Side::InAdvance => transfer(self.slot),
            Side::EachTime => {
                let pinned = device.pin(*range, ACCESS)?;
                let moved = transfer(pinned.local_key as u32);
                device.unpin(pinned.pin);
                moved
            }
            Side::Cached => {
                let used = lane.get(*range, ACCESS).map_err(io::Error::other)?;
                let moved = transfer(used.local_key() as u32);
                lane.end(used);
                moved
            }
        }
    }

    /// Checks that the device's data arrives at both ends of the memory.
    fn check(&self, side: Side, bytes: usize) -> io::Result<()> {
        let len = 8.min(bytes);
        for at in [0, bytes - len] {
            self.memory.write(at, &[0x5a; 8][..len])?;
        }
        self.receive(side)?;
        for at in [0, bytes - len] {
            let mut seen = [0xff; 8];
            self.memory.read(at, &mut seen[..len])?;
            if seen[..len] != [0; 8][..len] {
                return Err(io::Error::other(format!("wrong data at {at} of {bytes}: {side:?}")));
            }
        }
        Ok(())
    }
}

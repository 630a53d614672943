//! The costs of registering: directly with the device, by a lookup that misses, and by the cache's calls for
//! registration.

use std::io;
use std::time::Duration;

use pindown::Registrar;

use super::bench::{self, RegistrationBench, RegistrationMemory};
use super::lines::{Figures, RegistrationLine};
use crate::fixed_buffers::ACCESS;
use crate::statistics::Samples;

/// The number of bytes that are registered at a time, and the maximum number of registrations.
const AT_A_TIME: usize = 64 << 20;
const MOST: usize = 48;

pub(super) fn measure(bench: &RegistrationBench, bytes: usize, time: Duration) -> io::Result<RegistrationLine> {
    let parts = (AT_A_TIME / bytes).clamp(1, MOST);
    let memory = bench.memory(bytes * parts)?;
    memory.fill()?;
    let mut timed = Timed::default();
    let work: [Turn; 3] = [plain, missed, watched];
    bench::rounds(time, 4, |round| {
        for turn in 0..work.len() {
            let index = (turn + round as usize) % work.len();
            // The first round warms up.
            let mut first = Timed::default();
            work[index](bench, &memory, (parts, bytes), if round == 0 { &mut first } else { &mut timed })?;
        }
        Ok(())
    })?;
    let none = || io::Error::other("nothing was timed");
    let [plain, missed, plain_and_back, watched_and_back] =
        [timed.plain, timed.missed, timed.plain_and_back, timed.watched_and_back]
            .map(|samples| Figures::of(samples).ok_or_else(none));
    let (plain, missed, plain_and_back, watched_and_back) = (plain?, missed?, plain_and_back?, watched_and_back?);
    Ok(RegistrationLine::Registration {
        monitor: bench.monitor.clone(),
        bytes,
        plain,
        missed,
        ratio: missed.ratio(&plain),
        plain_and_back,
        watched_and_back,
        and_back_ratio: watched_and_back.ratio(&plain_and_back),
    })
}

#[derive(Default)]
struct Timed {
    plain: Samples,
    missed: Samples,
    plain_and_back: Samples,
    watched_and_back: Samples,
}

/// A function that registers parts of the memory. The pair is the number of parts and the length of each in bytes.
type Turn = fn(&RegistrationBench, &RegistrationMemory, (usize, usize), &mut Timed) -> io::Result<()>;

fn plain(
    bench: &RegistrationBench,
    memory: &RegistrationMemory,
    (parts, bytes): (usize, usize),
    timed: &mut Timed,
) -> io::Result<()> {
    let mut made = Vec::with_capacity(parts);
    for part in 0..parts {
        let range = memory.part(part, bytes)?;
        let (there, pinned) = bench.time(|| bench.device.pin(range, ACCESS));
        made.push((there, pinned?.pin));
    }
    for (there, pin) in made {
        let (back, ()) = bench.time(|| bench.device.unpin(pin));
        timed.plain.push(there);
        timed.plain_and_back.push(there + back);
    }
    Ok(())
}

fn missed(
    bench: &RegistrationBench,
    memory: &RegistrationMemory,
    (parts, bytes): (usize, usize),
    timed: &mut Timed,
) -> io::Result<()> {
    for part in 0..parts {
        let range = memory.part(part, bytes)?;
        let (nanoseconds, used) = bench.time(|| bench.lane.get(range, ACCESS));
        bench.lane.end(used.map_err(io::Error::other)?);
        timed.missed.push(nanoseconds);
    }
    bench.cache.flush();
    Ok(())
}

fn watched(
    bench: &RegistrationBench,
    memory: &RegistrationMemory,
    (parts, bytes): (usize, usize),
    timed: &mut Timed,
) -> io::Result<()> {
    let mut made = Vec::with_capacity(parts);
    for part in 0..parts {
        let range = memory.part(part, bytes)?;
        let (there, registered) = bench.time(|| bench.cache.register(range, ACCESS));
        made.push((there, registered.map_err(io::Error::other)?.handle));
    }
    for (there, handle) in made {
        let (back, gone) = bench.time(|| bench.cache.deregister(handle));
        gone.map_err(io::Error::other)?;
        timed.watched_and_back.push(there + back);
    }
    Ok(())
}

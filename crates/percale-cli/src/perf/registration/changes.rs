//! A program that repeatedly maps new memory, registers it, receives into it and unmaps it. Compares deregistration
//! because of the monitor's reports with explicit deregistration (section VII of the paper).

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pindown::{Cache, Handle, Waited};

use super::bench::{self, RegistrationBench, RegistrationMemory};
use super::lines::{DeregistrationMethod, Figures, RegistrationLine};
use crate::failure::Failure;
use crate::fixed_buffers::{ACCESS, BufferDirection as Direction, FixedBuffers};
use crate::perf::monitors::IMPORTED;
use crate::perf::processors;
use crate::statistics::Samples;

/// The number of iterations of one method in a turn.
const TURN: u32 = 32;

/// Measures all methods in turns. Returns no lines if the memory cannot change.
pub(super) fn measure(bench: &RegistrationBench, bytes: usize, time: Duration) -> io::Result<Vec<RegistrationLine>> {
    if !matches!(bench.memory(1)?, RegistrationMemory::Anonymous(_)) || bench.monitor == IMPORTED {
        return Ok(Vec::new());
    }
    let mut samples = DeregistrationMethod::ALL.map(|_| Samples::default());
    bench::rounds(time, 3, |round| {
        for turn in 0..DeregistrationMethod::ALL.len() {
            let index = (turn + round as usize) % DeregistrationMethod::ALL.len();
            let mut first = Samples::default();
            run(
                bench,
                bytes,
                DeregistrationMethod::ALL[index],
                if round == 0 { &mut first } else { &mut samples[index] },
            )?;
        }
        Ok(())
    })?;
    let none = || io::Error::other("nothing was timed");
    let figures: Vec<_> =
        samples.into_iter().map(|samples| Figures::of(samples).ok_or_else(none)).collect::<Result<_, _>>()?;
    Ok(DeregistrationMethod::ALL
        .into_iter()
        .zip(&figures)
        .map(|(way, figures_of)| RegistrationLine::Change {
            monitor: bench.monitor.clone(),
            bytes,
            way,
            figures: *figures_of,
            ratio: figures_of.ratio(&figures[0]),
        })
        .collect())
}

fn run(bench: &RegistrationBench, bytes: usize, way: DeregistrationMethod, samples: &mut Samples) -> io::Result<()> {
    let before = processors::allowed().map_err(other)?;
    if way == DeregistrationMethod::ThreadOnOneProcessor {
        processors::pin(before[0]).map_err(other)?;
    }
    let (done, source) = (AtomicBool::new(false), bench::source()?);
    let threaded = matches!(way, DeregistrationMethod::Thread | DeregistrationMethod::ThreadOnOneProcessor);
    let cache = &bench.cache;
    let result = std::thread::scope(|scope| {
        // The thread inherits the CPU affinity.
        let waiter = threaded.then(|| scope.spawn(|| deregister_what_changes(cache, &done)));
        let iterations =
            (0..TURN).try_for_each(|_| iteration(bench, bytes, way, &source).map(|time| samples.push(time)));
        done.store(true, Ordering::Release);
        cache.interrupt();
        let waited = waiter.map_or(Ok(()), |waiter| waiter.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())));
        iterations.and(waited)
    });
    processors::allow(&before).map_err(other)?;
    // Process the changes that the thread had not processed when it was interrupted.
    cache.wait(Some(Duration::ZERO))?;
    while let Some(handle) = cache.check() {
        deregister(cache, handle)?;
    }
    result
}

fn iteration(bench: &RegistrationBench, bytes: usize, way: DeregistrationMethod, source: &File) -> io::Result<f64> {
    let RegistrationBench { cache, device, .. } = bench;
    let (nanoseconds, done) = bench.time(|| {
        let memory = bench.memory(bytes)?;
        memory.fill()?;
        let range = memory.part(0, bytes)?;
        let registered = cache.register(range, ACCESS).map_err(io::Error::other)?;
        device.transfer(registered.local_key as u32, range, Direction::FromFile, source.as_fd())?;
        if way == DeregistrationMethod::Explicit {
            deregister(cache, registered.handle)?;
        }
        drop(memory);
        if way == DeregistrationMethod::Check {
            let reported = cache.check().ok_or_else(|| io::Error::other("a change was not reported"))?;
            deregister(cache, reported)?;
        }
        Ok(())
    });
    done.map(|()| nanoseconds)
}

fn deregister(cache: &Cache<FixedBuffers>, handle: Handle) -> io::Result<()> {
    cache.deregister(handle).map_err(io::Error::other)
}

fn deregister_what_changes(cache: &Cache<FixedBuffers>, done: &AtomicBool) -> io::Result<()> {
    loop {
        match cache.wait(None)? {
            Waited::Changed(handle) => deregister(cache, handle)?,
            Waited::Interrupted | Waited::TimedOut if done.load(Ordering::Acquire) => return Ok(()),
            Waited::Interrupted | Waited::TimedOut => {}
        }
    }
}

fn other(failure: Failure) -> io::Error {
    io::Error::other(failure.to_string())
}

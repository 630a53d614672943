//! Sends that start when a variable is written: by a thread on one processor, while another thread makes progress for
//! the sender, or by a stream of a device.
//!
//! The measured time starts before the store and ends when the message has returned to the storing thread. The limit is
//! a plain exchange: the other processor reads the stored value and writes a cache line that the first one polls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use percale::device::{Device, Interface};
use percale::trigger::Variable;
use percale::{Domain, Progress};

use super::super::figure::Figure;
use super::super::team::domain;
use super::pair::{AHEAD, PairEndpoint, Waits, both, pair};
use crate::clock::Clock;
use crate::failure::{Result, percale};
use crate::statistics::Samples;

const THREAD: &str = "a thread's store, until a send arrives";
const STREAM: &str = "a CUDA stream's store, until a send arrives";
const LINES: &str = "a store detected and answered";

/// The number of messages of a batch.
const BATCH: u64 = AHEAD;

/// The writer of a variable.
#[derive(Clone, Copy)]
enum Writer {
    Thread,
    Stream(Device),
}

impl Writer {
    fn variable(self, domain: &Domain) -> Result<Variable> {
        match self {
            Self::Thread => Ok(domain.variable()),
            Self::Stream(device) => domain.device_variable(device).map_err(percale("creating a variable for a device")),
        }
    }

    #[inline]
    fn store(self, variable: &Variable) -> Result<()> {
        match self {
            Self::Thread => {
                variable.write();
                Ok(())
            }
            Self::Stream(device) => {
                device.write_variable(variable).map_err(percale("writing a variable from a device"))
            }
        }
    }
}

/// Measures the stores of a thread and, if there is a device, those of a stream.
pub(super) fn measure(clock: &Clock, time: Duration) -> Result<[Figure; 2]> {
    let thread = figure(THREAD, Writer::Thread, clock, time)?;
    let stream = match Device::new(Interface::Cuda, 0) {
        Ok(device) => figure(STREAM, Writer::Stream(device), clock, time)?,
        Err(why) => Figure { what: STREAM, reason: Some(why.to_string()), ..Figure::default() },
    };
    Ok([thread, stream])
}

/// The variables of a batch, passed from the posting thread to the storing thread.
type Batch = Mutex<Vec<Variable>>;

fn figure(what: &'static str, writer: Writer, clock: &Clock, time: Duration) -> Result<Figure> {
    let (batch, timed) = (Batch::default(), (clock, time / 2));
    let [near, far] = pair()?;
    let sent = both(
        |waits| {
            let come = |_| near.poll();
            stores(writer, &batch, timed, waits, || near.expect(), come, |number| near.check(number))
        },
        |waits| posts(far, writer, &batch, waits),
    )?;
    let (domain, line) = (domain(Progress::Manual)?, AtomicU64::new(0));
    let seen = both(
        |waits| {
            let come = |number| {
                std::hint::spin_loop();
                Ok(line.load(Ordering::Acquire) == number)
            };
            stores(writer, &batch, timed, waits, || Ok(()), come, |_| Ok(()))
        },
        |waits| answers(&domain, writer, &batch, &line, waits),
    )?;
    let limit_ns = seen.summary().map_or(0.0, |summary| summary.p50);
    Ok(Figure { bytes: Some(8), ..Figure::of(what, sent, 1) }.beside(LINES, limit_ns))
}

/// Writes the variables of each batch. Measures the time from each write until `come` reports that the message has
/// arrived.
fn stores(
    writer: Writer,
    batch: &Batch,
    (clock, time): (&Clock, Duration),
    waits: &Waits,
    expect: impl Fn() -> Result<()>,
    come: impl Fn(u64) -> Result<bool>,
    check: impl Fn(u64) -> Result<()>,
) -> Result<Samples> {
    let (mut samples, mut number, since) = (Samples::default(), 0, Instant::now());
    while number <= BATCH || since.elapsed() < time {
        waits.begin()?;
        let variables = std::mem::take(&mut *batch.lock().unwrap_or_else(PoisonError::into_inner));
        for variable in &variables {
            number += 1;
            expect()?;
            let start = clock.now();
            writer.store(variable)?;
            waits.until(|| come(number))?;
            let end = clock.now();
            check(number)?;
            // The first batch connects the sides, so it is not counted.
            if number > BATCH {
                samples.push(clock.nanoseconds(end.wrapping_sub(start)));
            }
        }
    }
    waits.end();
    Ok(samples)
}

/// Passes a batch of variables to the storing thread.
fn hand_over(domain: &Domain, writer: Writer, batch: &Batch) -> Result<Vec<Variable>> {
    let variables: Vec<Variable> = (0..BATCH).map(|_| writer.variable(domain)).collect::<Result<_>>()?;
    batch.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&variables);
    Ok(variables)
}

/// Posts sends that wait for variables, and makes progress until the batch is over.
fn posts(mut side: PairEndpoint, writer: Writer, batch: &Batch, waits: &Waits) -> Result<()> {
    let (mut before, mut number) = (0, 0);
    while waits.another(before, || side.poll().map(drop))? {
        for variable in hand_over(&side.domain, writer, batch)? {
            number += 1;
            side.send_when_written(number, &variable)?;
        }
        waits.ready();
        before += 1;
    }
    Ok(())
}

/// Answers each store by writing a cache line.
fn answers(domain: &Domain, writer: Writer, batch: &Batch, line: &AtomicU64, waits: &Waits) -> Result<()> {
    let (mut before, mut number) = (0, 0);
    while waits.another(before, || Ok(()))? {
        let variables = hand_over(domain, writer, batch)?;
        waits.ready();
        for variable in variables {
            number += 1;
            waits.until(|| {
                std::hint::spin_loop();
                Ok(variable.is_written())
            })?;
            line.store(number, Ordering::Release);
        }
        before += 1;
    }
    Ok(())
}

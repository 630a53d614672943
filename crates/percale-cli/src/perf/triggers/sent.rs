//! A send of 8 bytes that a counter sets off: what it adds to an increment, and how long it takes to the other processor.
//!
//! Two threads pass messages to and fro, which their senders' counters set off; each is posted before the other side's
//! message comes. Every other one of the first side is an ordinary send, for comparison.

use std::time::{Duration, Instant};

use percale::Counter;

use super::super::figure::Figure;
use super::pair::{Side, Waits, both, pair};
use super::{CALL, LINE, SEND};
use crate::clock::Clock;
use crate::failure::Result;
use crate::statistics::Samples;

const ALONE: &str = "increment a counter";
const WITH: &str = "increment it, and a send leaves";
const POSTED: &str = "post a send, and it leaves";
const ARRIVED: &str = "increment it, and a send arrives";

/// Messages of a batch, and increments that are timed together.
const BATCH: u64 = 100;

/// What is timed.
struct Times {
    /// Two readings of the clock.
    nothing: Samples,
    alone: Samples,
    posted: Samples,
    with: Samples,
    arrived: Samples,
}

/// The figures, beside a call and a line's way.
pub(super) fn measure(clock: &Clock, time: Duration, call_ns: f64, line_ns: f64) -> Result<[Figure; 4]> {
    let [near, far] = pair()?;
    let times = both(|waits| ping(near, clock, time, waits), |waits| pong(far, waits))?;
    let nothing = times.nothing.summary().map_or(0.0, |summary| summary.p50);
    let alone = Figure::of(ALONE, times.alone, BATCH).beside(CALL, call_ns);
    let [mut posted, mut with] = [(POSTED, times.posted), (WITH, times.with)].map(|(what, samples)| {
        let figure = Figure::of(what, samples, 1);
        Figure { p50_ns: figure.p50_ns.map(|ns| (ns - nothing).max(0.0)), ..figure }
    });
    if let Some(posted) = posted.p50_ns {
        with = with.beside(SEND, posted);
    }
    posted = posted.beside(CALL, call_ns);
    let arrived = Figure::of(ARRIVED, times.arrived, 1).beside(LINE, line_ns);
    let of_8 = |figure| Figure { bytes: Some(8), ..figure };
    Ok([alone, of_8(posted), of_8(with), of_8(arrived)])
}

fn ping(mut side: Side, clock: &Clock, time: Duration, waits: &Waits) -> Result<Times> {
    let (trigger, plain) = (Counter::new(), Counter::new());
    let [nothing, alone, posted, with, arrived] = std::array::from_fn(|_| Samples::default());
    let mut times = Times { nothing, alone, posted, with, arrived };
    let took = |start: u64, end: u64| clock.nanoseconds(end.wrapping_sub(start));
    let (mut number, mut fired, since) = (0, 0, Instant::now());
    while number <= BATCH || since.elapsed() < time {
        waits.begin()?;
        for _ in 0..BATCH {
            number += 1;
            side.expect()?;
            // The first connect.
            if number > BATCH && number % 2 == 0 {
                let send = side.send(number);
                let start = clock.now();
                side.post(&send)?;
                times.posted.push(took(start, clock.now()));
                side.receive(waits)?;
                side.check(number)?;
                continue;
            }
            fired += 1;
            side.send_when(number, &trigger, fired)?;
            let start = clock.now();
            trigger.add(1);
            let left = clock.now();
            side.receive(waits)?;
            let end = clock.now();
            side.check(number)?;
            if number > BATCH {
                times.with.push(took(start, left));
                times.arrived.push(took(start, end) / 2.0);
            }
        }
        let start = clock.now();
        let end = clock.now();
        (0..BATCH).for_each(|_| plain.add(1));
        times.nothing.push(took(start, end));
        times.alone.push(took(end, clock.now()) / BATCH as f64);
    }
    waits.end();
    Ok(times)
}

fn pong(mut side: Side, waits: &Waits) -> Result<()> {
    let trigger = Counter::new();
    let (mut batch, mut number) = (0, 0);
    while waits.another(batch, || side.poll().map(drop))? {
        for at in 0..BATCH {
            number += 1;
            side.expect()?;
            side.send_when(number, &trigger, number)?;
            if at == 0 {
                waits.ready();
            }
            side.receive(waits)?;
            trigger.add(1);
            side.check(number)?;
        }
        batch += 1;
    }
    Ok(())
}

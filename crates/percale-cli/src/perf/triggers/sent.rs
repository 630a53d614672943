//! A send of 8 bytes that a counter triggers, compared with an ordinary send: the time until the call has sent it, and
//! the time until it arrives at another processor.
//!
//! 1. The time until it is sent is measured with both sides in one thread. No cache line must be transferred from
//!    another processor, so the call returns as soon as its instructions have executed. The last of them release a
//!    lock.
//! 2. The time until it arrives is measured by two threads that exchange messages. All answers are triggered by
//!    counters. The time of an ordinary send is its round trip minus the time of the answer, which is half of a round
//!    trip of triggered sends.

use std::time::{Duration, Instant};

use percale::Counter;

use super::super::figure::Figure;
use super::pair::{PairEndpoint, Waits, both, pair};
use super::{CALL, LINE, SEND};
use crate::clock::Clock;
use crate::failure::Result;
use crate::statistics::Samples;

const ALONE: &str = "increment a counter";
const POSTED: &str = "post a send, until it is sent";
const SET_OFF: &str = "increment it, until a send is sent";
const POSTED_ARRIVED: &str = "post a send, until it arrives";
const ARRIVED: &str = "increment it, until a send arrives";

/// The number of messages in a batch, half of which are ordinary, and the number of increments that are timed together.
const BATCH: u64 = 100;

/// The pause in nanoseconds before each timed post or increment. In this time the other side finishes its work between
/// messages and waits for the next one.
const PAUSE_NS: f64 = 500.0;

/// A value for each kind of send.
struct Sends<T> {
    ordinary: T,
    set_off: T,
}

impl<T> Sends<T> {
    fn of(&mut self, ordinary: bool) -> &mut T {
        if ordinary { &mut self.ordinary } else { &mut self.set_off }
    }
}

/// Means of batches. Single times are not used, because the resolution of the clock may be coarser than the measured
/// time.
#[derive(Default)]
struct Means {
    sum: f64,
    samples: Samples,
}

impl Means {
    /// Ends a batch. Adds its mean if `counts` is set.
    fn end(&mut self, counts: bool) {
        let sum = std::mem::take(&mut self.sum);
        if counts {
            self.samples.push(sum / (BATCH / 2) as f64);
        }
    }

    fn figure(self, what: &'static str, less: f64) -> Figure {
        let figure = Figure::of(what, self.samples, BATCH / 2);
        Figure { bytes: Some(8), p50_ns: figure.p50_ns.map(|ns| (ns - less).max(0.0)), ..figure }
    }
}

/// Makes empty means for both kinds of sends.
fn means() -> Sends<Means> {
    Sends { ordinary: Means::default(), set_off: Means::default() }
}

/// Measures all results, with a function call and the transfer of a cache line as limits.
pub(super) fn measure(clock: &Clock, time: Duration, call_ns: f64, line_ns: f64) -> Result<[Figure; 5]> {
    let alone = Figure::of(ALONE, alone(clock, time / 4), BATCH).beside(CALL, call_ns);
    let [near, far] = pair()?;
    let (nothing, left) = both(|waits| leave(near, &far, clock, time / 2, waits), |_| Ok(()))?;
    let posted = left.ordinary.figure(POSTED, nothing).beside(CALL, call_ns);
    let mut set_off = left.set_off.figure(SET_OFF, nothing);
    if let Some(posted) = posted.p50_ns {
        set_off = set_off.beside(SEND, posted);
    }
    let [near, far] = pair()?;
    let around = both(|waits| ping(near, clock, time, waits), |waits| pong(far, waits))?;
    let there_and_back = around.set_off.figure(ARRIVED, nothing);
    let answer = there_and_back.p50_ns.unwrap_or_default() / 2.0;
    let arrived = Figure { p50_ns: there_and_back.p50_ns.map(|ns| ns / 2.0), ..there_and_back };
    let posted_arrived = around.ordinary.figure(POSTED_ARRIVED, nothing + answer);
    let [posted_arrived, arrived] = [posted_arrived, arrived].map(|figure| figure.beside(LINE, line_ns));
    Ok([alone, posted, set_off, posted_arrived, arrived])
}

/// Times increments of a counter that no operation waits for.
fn alone(clock: &Clock, time: Duration) -> Samples {
    let (counter, mut samples, since) = (Counter::new(), Samples::default(), Instant::now());
    while since.elapsed() < time {
        let start = clock.now_in_order();
        (0..BATCH).for_each(|_| counter.add(1));
        let end = clock.now_in_order();
        samples.push(clock.nanoseconds(end.wrapping_sub(start)) / BATCH as f64);
    }
    samples
}

/// Times the calls that send a message, and two readings of the clock, with both sides in this thread.
fn leave(
    mut near: PairEndpoint,
    far: &PairEndpoint,
    clock: &Clock,
    time: Duration,
    waits: &Waits,
) -> Result<(f64, Sends<Means>)> {
    let (trigger, mut means, mut readings) = (Counter::new(), means(), Samples::default());
    let took = |start: u64, end: u64| clock.nanoseconds(end.wrapping_sub(start));
    let (mut number, mut fired, since) = (0, 0, Instant::now());
    while number <= BATCH || since.elapsed() < time {
        let mut nothing = 0.0;
        for _ in 0..BATCH {
            number += 1;
            far.expect()?;
            let ordinary = number % 2 == 0;
            let [start, end] = begin(&mut near, number, ordinary, (&trigger, &mut fired), clock, || {})?;
            waits.until(|| near.poll().and_then(|_| far.poll()))?;
            far.check(number)?;
            means.of(ordinary).sum += took(start, end);
            let start = clock.now_in_order();
            nothing += took(start, clock.now_in_order());
        }
        // The first batch connects the sides, so it is not counted.
        [true, false].into_iter().for_each(|ordinary| means.of(ordinary).end(number > BATCH));
        readings.push(nothing / BATCH as f64);
    }
    Ok((readings.summary().map_or(0.0, |summary| summary.p50), means))
}

/// Starts a send after a pause: posts it, or increments the counter that it waits for. Returns the times before and
/// after that call.
#[inline]
fn begin(
    side: &mut PairEndpoint,
    number: u64,
    ordinary: bool,
    (trigger, fired): (&Counter, &mut u64),
    clock: &Clock,
    pause: impl FnOnce(),
) -> Result<[u64; 2]> {
    if ordinary {
        let send = side.send(number);
        pause();
        let start = clock.now_in_order();
        side.post(&send)?;
        return Ok([start, clock.now_in_order()]);
    }
    *fired += 1;
    side.send_when(number, trigger, *fired)?;
    pause();
    let start = clock.now_in_order();
    trigger.add(1);
    Ok([start, clock.now_in_order()])
}

fn ping(mut side: PairEndpoint, clock: &Clock, time: Duration, waits: &Waits) -> Result<Sends<Means>> {
    let (trigger, mut means) = (Counter::new(), means());
    let took = |start: u64, end: u64| clock.nanoseconds(end.wrapping_sub(start));
    let pause = || {
        let start = clock.now();
        while took(start, clock.now()) < PAUSE_NS {
            std::hint::spin_loop();
        }
    };
    let (mut number, mut fired, since) = (0, 0, Instant::now());
    while number <= BATCH || since.elapsed() < time {
        waits.begin()?;
        for _ in 0..BATCH {
            number += 1;
            side.expect()?;
            let ordinary = number % 2 == 0;
            let [start, _] = begin(&mut side, number, ordinary, (&trigger, &mut fired), clock, pause)?;
            side.receive(waits)?;
            let end = clock.now_in_order();
            side.check(number)?;
            means.of(ordinary).sum += took(start, end);
        }
        // The first batch connects the sides, so it is not counted.
        [true, false].into_iter().for_each(|ordinary| means.of(ordinary).end(number > BATCH));
    }
    waits.end();
    Ok(means)
}

fn pong(mut side: PairEndpoint, waits: &Waits) -> Result<()> {
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

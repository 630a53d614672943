//! Counter operations that wait for a counter: the cost of adding one to the counter's queue, and of starting it.

use std::hint::black_box;
use std::time::{Duration, Instant};

use percale::{Counter, Domain};

use super::super::figure::Figure;
use super::super::generator::next;
use super::CALL;
use crate::clock::Clock;
use crate::failure::{Failure, Result, percale};
use crate::statistics::Samples;

/// The order of the thresholds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    Upward,
    Random,
}

impl Order {
    pub(super) const ALL: [Self; 2] = [Self::Upward, Self::Random];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Upward => "upward",
            Self::Random => "random",
        }
    }

    fn thresholds(self, count: u64) -> Vec<u64> {
        let mut all: Vec<u64> = (1..=count).collect();
        if let Self::Random = self {
            let mut state = count;
            for at in (1..all.len()).rev() {
                all.swap(at, next(&mut state, at as u64 + 1) as usize);
            }
        }
        all
    }
}

pub(super) const QUEUE: &str = "queue a counter operation";
pub(super) const JUMP: &str = "fire all at once";
pub(super) const STEPS: &str = "fire one by one";
const PUSH: &str = "a push";

/// The minimum data that a queue must keep for each operation.
type QueuedData = [u64; 4];

/// The nanoseconds of each part, for each round.
#[derive(Default)]
struct Rounds {
    queue: Vec<f64>,
    jump: Vec<f64>,
    steps: Vec<f64>,
    push: Vec<f64>,
    call: Vec<f64>,
}

/// Measures rounds of all parts, with `count` operations in the queue.
pub(super) fn measure(domain: &Domain, clock: &Clock, count: u64, order: Order, time: Duration) -> Result<[Figure; 3]> {
    let thresholds = order.thresholds(count);
    let mut kept: Vec<QueuedData> = vec![[0; 4]; thresholds.len()];
    let (mut rounds, since) = (Rounds::default(), Instant::now());
    while since.elapsed() < time || rounds.queue.len() < 3 {
        round(domain, clock, &thresholds, &mut rounds)?;
        rounds.push.push(each(clock, count, || push(&mut kept, &thresholds)));
        rounds.call.push(each(clock, count, || call(count)));
    }
    let median = |rounds: Vec<f64>| Samples::from_iter(rounds).summary().map_or(0.0, |summary| summary.p50);
    let (push, call) = (median(rounds.push), median(rounds.call));
    let figure = |what, rounds: Vec<f64>, limit, limit_ns| Figure {
        thresholds: Some(order.name()),
        queued: Some(count),
        ..Figure::of(what, rounds.into_iter().collect(), count).beside(limit, limit_ns)
    };
    Ok([
        figure(QUEUE, rounds.queue, PUSH, push),
        figure(JUMP, rounds.jump, CALL, call),
        figure(STEPS, rounds.steps, CALL, call),
    ])
}

/// Queues all operations and raises the counter to the last threshold in one step. Then queues all of them again and
/// increments the counter one by one.
fn round(domain: &Domain, clock: &Clock, thresholds: &[u64], rounds: &mut Rounds) -> Result<()> {
    let (count, done) = (thresholds.len() as u64, Counter::new());
    let queue = |trigger: &Counter| {
        thresholds.iter().try_for_each(|&threshold| domain.defer_add(&done, 1, (trigger, threshold)).map(drop))
    };
    let fired = |wanted: u64| {
        let fired = done.value();
        if fired == wanted { Ok(()) } else { Err(Failure::Data(format!("{fired} of {wanted} operations fired"))) }
    };
    let mut queued = Ok(());
    let trigger = Counter::new();
    rounds.queue.push(each(clock, count, || queued = queue(&trigger)));
    queued.map_err(percale("queueing a counter operation"))?;
    fired(0)?;
    rounds.jump.push(each(clock, count, || trigger.add(count)));
    fired(count)?;
    let trigger = Counter::new();
    queue(&trigger).map_err(percale("queueing a counter operation"))?;
    rounds.steps.push(each(clock, count, || (0..count).for_each(|_| trigger.add(1))));
    fired(2 * count)
}

fn each(clock: &Clock, count: u64, what: impl FnOnce()) -> f64 {
    let start = clock.now();
    what();
    clock.nanoseconds(clock.now().wrapping_sub(start)) / count as f64
}

/// Returns the time of a function call in nanoseconds.
pub(super) fn call_ns(clock: &Clock) -> f64 {
    const CALLS: u64 = 1000;
    let rounds: Samples = (0..1000).map(|_| each(clock, CALLS, || call(CALLS))).collect();
    rounds.summary().map_or(0.0, |summary| summary.p50)
}

/// The limit of queueing: appends the necessary data to memory that is already allocated.
fn push(kept: &mut Vec<QueuedData>, thresholds: &[u64]) {
    kept.clear();
    for &threshold in thresholds {
        kept.push(black_box([threshold, 1, 2, 3]));
    }
    black_box(kept);
}

/// The limit of starting operations: the counting thread calls functions that take the place of the operations.
fn call(count: u64) {
    let mut done = 0;
    for _ in 0..count {
        black_box(step as fn(&mut u64, u64))(&mut done, 1);
    }
    black_box(done);
}

#[inline(never)]
fn step(done: &mut u64, count: u64) {
    *done = done.wrapping_add(count);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_have_each_threshold_once() {
        for order in Order::ALL {
            let mut all = order.thresholds(1000);
            assert_eq!(all.is_sorted(), matches!(order, Order::Upward));
            all.sort_unstable();
            assert_eq!(all, (1..=1000).collect::<Vec<_>>());
        }
    }
}

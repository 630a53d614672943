//! `percale perf --triggers`: the costs of triggered operations, compared with their minimum.
//!
//! * [`queued`]: adding counter operations to a counter's queue, and starting them
//! * [`sent`]: a send that a counter starts
//! * [`chain`]: a token that processes pass around by deferred work
//! * [`written`]: sends that start when a thread or a device writes a variable

pub(super) mod chain;
mod pair;
mod queued;
mod sent;
mod written;

use std::time::Duration;

use percale::Progress;

use super::args::PerfArgs;
use super::figure::{Figure, FigureReport, draw, panel};
use super::line;
use super::team::domain;
use crate::clock::Clock;
use crate::failure::Result;
use crate::plot::Across;
use queued::Order;

/// The default number of seconds for each line.
const SECONDS: f64 = 0.5;

/// The default number of processes of a ring.
const PROCESSES: u8 = 4;

/// Limits that are shared by several results.
const CALL: &str = "a call";
const LINE: &str = "a cache line, one way";
const SEND: &str = "an ordinary send";

const NOTES: &str = "\
p50: over rounds and batches, time per operation. A send is sent when the call returns; here one thread drives both
endpoints. It is sent from one processor to another over shared memory. The time until it arrives is half a round trip;
for an ordinary send it is the round trip less the reply. A store makes no call: the sender makes progress on the other
processor, and the send returns to the first. For a token it is one hop; with more processes than processors it
includes waiting for a processor.
limit: p50 of a plain program in the same run.
  a push: 32 bytes of each operation, appended to preallocated memory
  a call: of a function that is not inlined
  an ordinary send: posted by a call, alternately with those that counters start
  a cache line, one way: 8 bytes and a mark in a cache line, from one processor to another (the limit of tagged-latency)
  a store detected and answered: the other processor reads the store, and writes a line that the first one reads";

/// Runs the measurement.
pub(super) fn run(args: &PerfArgs) -> Result<()> {
    let time = Duration::from_secs_f64(args.seconds.unwrap_or(SECONDS));
    let clock = Clock::calibrate();
    let mut rings = vec![2, usize::from(args.processes.unwrap_or(PROCESSES))];
    rings.dedup();
    let mut report = FigureReport::new(args.json, args.queued.len() * Order::ALL.len() + 2 + rings.len())?;
    let counters = domain(Progress::Manual)?;
    for &count in &args.queued {
        for order in Order::ALL {
            report.begin(format!("{count} operations, thresholds {}", order.name()));
            report.add(queued::measure(&counters, &clock, count.into(), order, time)?)?;
        }
    }
    report.begin("a send");
    // Measure the limit again for each result that is compared with it, because the load of the machine varies.
    report.add(sent::measure(&clock, time, queued::call_ns(&clock), line::way(8, time / 2)?)?)?;
    for processes in rings {
        report.begin(format!("a token passed around {processes} processes"));
        report.add([chain::measure(processes, time, line::way(8, time / 2)?)?])?;
    }
    report.begin("stores");
    report.add(written::measure(&clock, time)?)?;
    let figures = report.end(NOTES)?;
    let of = |order: Order| {
        let all: Vec<&Figure> = figures.iter().filter(|figure| figure.thresholds == Some(order.name())).collect();
        let title = match order {
            Order::Upward => "thresholds upward",
            Order::Random => "thresholds at random",
        };
        panel(title, Across::Queued, &all, |figure| figure.queued.map(|queued| queued as f64))
    };
    draw(args.svg.as_deref(), "Counter operations that wait for a counter (p50, each)", &Order::ALL.map(of))
}

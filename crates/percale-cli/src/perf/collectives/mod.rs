//! `percale perf --collectives`: measures collectives between processes of this machine, and compares them with their
//! minimum time.
//!
//! [`member`] posts collectives one after another. [`row`] is a chain of sums that starts when a counter is set.

pub(super) mod member;
pub(super) mod row;

use std::time::{Duration, Instant};

use super::args::PerfArgs;
use super::figure::{Figure, FigureReport, draw, panel};
use super::line;
use super::team::{Team, TeamTask};
use crate::failure::{Failure, Result};
use crate::limits::ring;
use crate::plot::Across;
use crate::statistics::Samples;
use crate::units;
use member::{CollectiveKind, MemberJob, TOGETHER};

/// The default number of seconds for each line.
const SECONDS: f64 = 0.5;

/// The default number of processes.
const PROCESSES: u8 = 2;

/// The default sizes.
const SIZES: [usize; 2] = [8, 1 << 20];

/// The approximate time of a round.
const ROUND: Duration = Duration::from_millis(10);

/// The maximum number of collectives of a round.
const MOST: u64 = 20_000;

const ROW: &str = "allreduce, a chain that a store starts";
const THERE_AND_BACK: &str = "a cache line, there and back";
const ONE_WAY: &str = "a cache line, one way";
const COPY: &str = "a copy";

const NOTES: &str = "\
p50: over rounds, time per collective in the slowest member. Collectives are posted one after the other and polled;
a chain is deferred work and needs no further calls. broadcast: each member in turn sends the data that it received
before. allreduce: the sum of F64. The last result of each round was checked.
limit: p50 of a plain program in the same run, with two processes for any number of members.
  a cache line, one way: 8 bytes and a mark in a cache line, from one processor to another (more: a copy in, a copy
    out); there and back: two of these
  a copy: one processor copies data that the other has written";

/// Runs the measurement.
pub(super) fn run(args: &PerfArgs) -> Result<()> {
    let time = Duration::from_secs_f64(args.seconds.unwrap_or(SECONDS));
    let processes = usize::from(args.processes.unwrap_or(PROCESSES));
    let sizes = if args.size.is_empty() { SIZES.as_slice() } else { &args.size };
    if let Some(bytes) = sizes.iter().find(|bytes| !bytes.is_multiple_of(size_of::<f64>())) {
        let size = units::size(*bytes);
        return Err(Failure::Usage(format!(
            "--collectives --size {bytes}: the size of a sum must be a multiple of 8 bytes, not {size}"
        )));
    }
    let mut report = FigureReport::new(args.json, 2 + 2 * sizes.len())?;
    let mut team = Team::start(TeamTask::Collectives, processes)?;
    let small = line::way(8, time / 2)?;
    let plan = sizes.iter().flat_map(|&bytes| [(CollectiveKind::Broadcast, bytes), (CollectiveKind::Allreduce, bytes)]);
    for (what, bytes) in std::iter::once((CollectiveKind::Barrier, 0)).chain(plan) {
        report.begin(format!("{} {}", what.name(), units::size(bytes)));
        // Measure the limit again for each result that is compared with it, because the load of the machine varies.
        let way = if bytes == 0 { small } else { line::way(bytes, time / 2)? };
        report.add([measure(&mut team, what, bytes, time, way)?])?;
    }
    drop(team);
    report.begin("a chain of sums");
    let sums = row::measure(processes, time)?;
    let sums = Figure { processes: Some(processes), bytes: Some(8), ..Figure::of(ROW, sums, row::SUMS) };
    report.add([sums.beside(THERE_AND_BACK, 2.0 * small)])?;
    let figures = report.end(NOTES)?;
    let mut plotted: Vec<&Figure> = figures.iter().filter(|figure| figure.bytes.is_some()).collect();
    plotted.retain(|figure| figure.what != ROW);
    let size = |figure: &Figure| figure.bytes.map(|bytes| bytes as f64);
    draw(args.svg.as_deref(), "Collectives (p50)", &[panel("processes of one machine", Across::Sizes, &plotted, size)])
}

/// Measures rounds of one collective.
fn measure(team: &mut Team, what: CollectiveKind, bytes: usize, time: Duration, way: f64) -> Result<Figure> {
    let mut number = 0;
    let mut round = |count: u64| -> Result<f64> {
        number += 1;
        let took: Vec<f64> = team.ask(|_| MemberJob { what, bytes, count, number })?;
        Ok(took.into_iter().fold(0.0, f64::max))
    };
    // The first call connects the members. The second determines how many collectives fill a round.
    let each = round(TOGETHER).and_then(|_| round(2 * TOGETHER))?;
    let count = ((ROUND.as_nanos() as f64 / each) as u64).clamp(1, MOST).next_multiple_of(TOGETHER);
    let (mut samples, since) = (Vec::new(), Instant::now());
    while samples.len() < 3 || since.elapsed() < time {
        samples.push(round(count)?);
    }
    let samples: Samples = samples.into_iter().collect();
    let size = (what != CollectiveKind::Barrier).then_some(bytes);
    let figure = Figure { processes: Some(team.len()), bytes: size, ..Figure::of(what.name(), samples, count) };
    Ok(match what {
        _ if bytes > ring::LONGEST => figure.beside(COPY, way),
        CollectiveKind::Broadcast => figure.beside(ONE_WAY, way),
        CollectiveKind::Barrier | CollectiveKind::Allreduce => figure.beside(THERE_AND_BACK, 2.0 * way),
    })
}

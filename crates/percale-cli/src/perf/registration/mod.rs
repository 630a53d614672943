//! `percale perf --registration`: the costs of registering memory, and the savings of a registration cache.
//!
//! The device is io_uring's fixed buffers. Each monitor is measured in a separate process ([`part`]), to which this
//! process sends jobs: [`transfers`] (figure 1 of the paper), [`registrations`], [`hits`], the [`pieces`] of a miss,
//! [`changes`]. This process also measures the cost of a monitor for processes that do not use it ([`others`]), both
//! while the part process has loaded the monitor and before. The two sides of a comparison are always measured in
//! turns. [`text`] and [`picture`] display the [`lines`].

mod bench;
mod changes;
mod hits;
mod lines;
mod others;
mod part;
mod picture;
mod pieces;
mod registrations;
mod text;
mod transfers;
mod userfaultfd_probe;

use std::time::Duration;

use indicatif::ProgressBar;
use serde::de::DeserializeOwned;

use super::args::PerfArgs;
use super::monitors;
use crate::clock::Clock;
use crate::failure::{Failure, Result};
use crate::output::{print_line, progress_bar};
use crate::units;
use crate::worker::Worker;
use lines::{Figures, RegistrationLine, Work, WorkingProcess};
use part::{Measurement, OtherAnswer, RegistrationJob};
pub(crate) use part::{PART, run as part};

/// The default number of seconds for each line with a time.
const SECONDS: f64 = 0.4;

/// The default sizes.
const SIZES: [usize; 8] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];

/// The maximum size for which [`changes`] are measured. Programs seldom allocate larger memory repeatedly.
const CHANGED: usize = 1 << 20;

/// The number of times that a monitor is loaded to measure its cost for other processes.
const LOADINGS: u32 = 5;

/// The timeout of a job, in addition to its given time.
const JOB_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs the measurement.
pub(super) fn run(args: &PerfArgs) -> Result<()> {
    let sizes = if args.size.is_empty() { &SIZES } else { args.size.as_slice() };
    let named = |name: &&str| args.monitor.is_empty() || args.monitor.iter().any(|monitor| monitor == name);
    let monitors: Vec<_> = monitors::ALL.into_iter().filter(named).collect();
    let seconds = args.seconds.unwrap_or(SECONDS);
    let mut report = Report { json: args.json, lines: Vec::new() };
    let others = Work::ALL.len() * LOADINGS as usize;
    let each = 2 + others + sizes.iter().map(|bytes| whats(*bytes).count()).sum::<usize>();
    let besides = monitors.iter().filter(|monitor| measures_records_alone(monitor)).count() * others;
    let bar = progress_bar((monitors.len() * each + besides) as u64)?;
    for monitor in monitors {
        let steps = bar.position() + (each + if measures_records_alone(monitor) { others } else { 0 }) as u64;
        match start(monitor) {
            Ok(worker) => {
                report.add(RegistrationLine::Monitor {
                    monitor: monitor.into(),
                    available: true,
                    reason: String::new(),
                })?;
                Measured { monitor, bar: &bar, seconds }.all(worker, sizes, &mut report)?;
            }
            Err(why) if !args.monitor.is_empty() => {
                return Err(Failure::Registration(format!("{monitor} is not available here: {why}")));
            }
            Err(reason) => {
                report.add(RegistrationLine::Monitor { monitor: monitor.into(), available: false, reason })?
            }
        }
        bar.set_position(steps);
    }
    bar.finish_and_clear();
    if !args.json {
        print_line(&text::text(&report.lines))?;
    }
    if let Some(file) = &args.svg {
        let picture = picture::picture(&report.lines)?;
        std::fs::write(file, picture).map_err(Failure::system(format!("writing {}", file.display())))?;
    }
    Ok(())
}

/// Returns whether the cost of the monitor's records for other processes is measured separately.
fn measures_records_alone(monitor: &str) -> bool {
    monitor == monitors::BPF && matches!(pindown::monitor::bpf::reports_beginnings(), Ok(true))
}

/// Returns the measurements for one size.
fn whats(bytes: usize) -> impl Iterator<Item = Measurement> {
    let change = (bytes <= CHANGED).then_some(Measurement::Change { bytes });
    [Measurement::Transfer { bytes }, Measurement::Registration { bytes }].into_iter().chain(change)
}

/// The lines measured so far.
struct Report {
    json: bool,
    lines: Vec<RegistrationLine>,
}

impl Report {
    /// Adds a line. For JSON output, prints it immediately.
    fn add(&mut self, line: RegistrationLine) -> Result<()> {
        if self.json {
            print_line(&serde_json::to_string(&line).map_err(Failure::system("writing JSON"))?)?;
        }
        self.lines.push(line);
        Ok(())
    }
}

/// Starts a part process and opens a cache there.
fn start(monitor: &str) -> Result<Worker, String> {
    let mut worker = Worker::start(&[PART])?;
    open(&mut worker, monitor)?;
    Ok(worker)
}

fn open(worker: &mut Worker, monitor: &str) -> Result<(), String> {
    let why: String = worker.ask(&RegistrationJob::Open { monitor: monitor.into() }, JOB_TIMEOUT)?;
    if why.is_empty() { Ok(()) } else { Err(why) }
}

/// A process, its work, and the results without and with the monitor for each time that it was loaded.
type Compared = (WorkingProcess, Work, Vec<(Figures, Figures)>);

/// The measurement of one monitor.
struct Measured<'a> {
    monitor: &'a str,
    bar: &'a ProgressBar,
    seconds: f64,
}

impl Measured<'_> {
    fn all(&self, mut worker: Worker, sizes: &[usize], report: &mut Report) -> Result<()> {
        let sized = sizes.iter().flat_map(|bytes| whats(*bytes));
        for what in sized.chain([Measurement::Pieces, Measurement::Hits]) {
            self.say(&match what {
                Measurement::Transfer { bytes } => format!("transfers of {}", units::size(bytes)),
                Measurement::Registration { bytes } => format!("registrations of {}", units::size(bytes)),
                Measurement::Change { bytes } => format!("fresh memory of {}", units::size(bytes)),
                Measurement::Pieces => "misses".into(),
                Measurement::Hits => "hits".into(),
            });
            let job = RegistrationJob::Measure { what, seconds: self.seconds };
            let lines: Vec<RegistrationLine> =
                self.ask::<Result<_, String>>(&mut worker, &job)?.map_err(|why| self.failed(why))?;
            lines.into_iter().try_for_each(|line| report.add(line))?;
            self.bar.inc(1);
        }
        drop(worker);
        self.others(self.monitor)?.into_iter().try_for_each(|line| report.add(line))?;
        // On other kernels the records are the whole monitor, which has already been measured.
        if measures_records_alone(self.monitor) {
            self.others(bench::RECORDS_ALONE)?.into_iter().try_for_each(|line| report.add(line))?;
        }
        Ok(())
    }

    /// Measures the work of this process and of another one. The other process opens a cache between the two runs.
    fn others(&self, monitor: &str) -> Result<Vec<RegistrationLine>> {
        let alone = monitor == bench::RECORDS_ALONE;
        self.say("the work of other processes");
        let clock = Clock::calibrate();
        let seconds = self.seconds / f64::from(LOADINGS);
        let mut measured: Vec<Compared> = Vec::new();
        for work in Work::ALL {
            let (mut client, mut other) = (Vec::new(), Vec::new());
            for _ in 0..LOADINGS {
                let mut worker = Worker::start(&[PART]).map_err(|why| self.failed(why))?;
                let there = |worker: &mut Worker| {
                    let figures = self.ask::<OtherAnswer>(worker, &RegistrationJob::Other { work, seconds })?;
                    figures.map_err(|why| self.failed(why))
                };
                let here = || {
                    let time = Duration::from_secs_f64(seconds);
                    others::measure(&clock, work, time)
                        .map_err(Failure::system("system calls that do not involve registrations"))
                };
                // This cache has no cost for other processes, so that the two runs differ only in the monitor.
                open(&mut worker, monitors::IMPORTED).map_err(|why| self.failed(why))?;
                let without = (there(&mut worker)?, here()?);
                open(&mut worker, monitor).map_err(|why| self.failed(why))?;
                let with = (there(&mut worker)?, here()?);
                client.push((without.0, with.0));
                other.push((without.1, with.1));
                self.bar.inc(1);
            }
            measured.extend([(WorkingProcess::Client, work, client), (WorkingProcess::Other, work, other)]);
        }
        let line = |(process, work, mut pairs): Compared| {
            // Use the loading with the median ratio.
            pairs.sort_by(|a, b| a.1.ratio(&a.0).total_cmp(&b.1.ratio(&b.0)));
            let (without, with) = pairs[pairs.len() / 2];
            let (monitor, ratio) = (self.monitor.into(), with.ratio(&without));
            if alone {
                RegistrationLine::RecordsAlone { monitor, process, work, without, with, ratio }
            } else {
                RegistrationLine::Other { monitor, process, work, without, with, ratio }
            }
        };
        Ok(measured.into_iter().map(line).collect())
    }

    fn say(&self, what: &str) {
        self.bar.set_message(format!("{}: {what}", self.monitor));
    }

    fn ask<T: DeserializeOwned>(&self, worker: &mut Worker, job: &RegistrationJob) -> Result<T> {
        worker.ask(job, JOB_TIMEOUT + Duration::from_secs_f64(self.seconds)).map_err(|why| self.failed(why))
    }

    fn failed(&self, why: String) -> Failure {
        Failure::Registration(format!("{}: {why}", self.monitor))
    }
}

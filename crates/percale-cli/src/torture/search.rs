//! `percale torture --search`: runs of threads, one after another, each in a separate process. They have more kinds of
//! events than the runs of `--seconds`, and their random choices depend on a seed.

use std::time::{Duration, Instant};

use super::args::TortureArgs;
use super::dice::Dice;
use super::monitors::Monitor;
use super::race::{self, Mix};
use super::report::{Searched, TortureLine, TortureReport};
use super::workers::Workers;
use super::{plan, random};
use crate::failure::Result;
use crate::output::progress_bar;

/// The duration of a run.
const RUN: Duration = Duration::from_millis(1500);

/// A monitor and the results of its search.
struct Subject {
    monitor: &'static Monitor,
    workers: Workers,
    found: Searched,
}

/// Searches with each monitor for the time `each`. The monitors take turns, so that an error of any of them is found
/// early.
pub(super) fn run(args: &TortureArgs, each: Duration, report: &mut TortureReport) -> Result<()> {
    let first = args.seed.map_or_else(random, Ok)?;
    let mut subjects = Vec::new();
    for monitor in plan::monitors(&args.monitor) {
        let mut workers = Workers::new(monitor, args.device);
        let reason = workers.probe().err();
        report.add(TortureLine::Monitor {
            monitor: monitor.name,
            available: reason.is_none(),
            reason: reason.clone().unwrap_or_default(),
            calls: None,
        })?;
        if reason.is_none() {
            subjects.push(Subject { monitor, workers, found: Searched::default() });
        }
    }
    let all = each * subjects.len() as u32;
    let (begin, bar) = (Instant::now(), progress_bar(all.as_secs())?);
    let mut seeds = first..;
    while begin.elapsed() < all {
        let Some(seed) = seeds.next() else { break };
        for subject in &mut subjects {
            bar.set_message(format!("{}: seed {seed}; {}", subject.monitor.name, subject.found));
            let mix = Mix::draw(&mut Dice::new(seed));
            let plan = race::Plan { milliseconds: RUN.as_millis() as u64, threads: args.threads, seed, mix };
            let tally = subject.workers.search(&plan);
            if let Some(wrong) = TortureLine::wrong_run(subject.monitor, &plan, &tally) {
                report.add(wrong)?;
            }
            subject.found.add(tally);
            bar.set_position(begin.elapsed().as_secs().min(all.as_secs()));
        }
    }
    bar.finish_and_clear();
    subjects
        .into_iter()
        .try_for_each(|Subject { monitor, found, .. }| report.add(TortureLine::search(monitor, first, found)))
}

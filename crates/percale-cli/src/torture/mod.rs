//! `percale torture`: checks that the registration cache stays correct when its memory changes.
//!
//! Each kind of memory in [`kinds`] is combined with each of the [`operations`] on it, for each of the [`monitors`].
//! One combination is a [`case`]. The [`oracle`] pins memory as a device does, and checks whether the pinned pages are
//! still the pages that the CPU accesses. [`race`] does the same with several threads, and [`search`] for hours, with
//! changes to the whole process (such as fork). All of these run in separate processes ([`part`], started by
//! [`workers`]), because operations may kill the process. [`report`] prints the results.

mod args;
mod calls;
mod case;
mod device;
mod dice;
mod fork;
mod helper_process;
mod kinds;
mod ledger;
mod memory;
mod monitors;
mod operations;
mod oracle;
mod origins;
mod part;
mod plan;
mod race;
mod report;
mod ring;
mod search;
mod tracer;
mod workers;

use crate::failure::{Failure, Result};
use crate::output::progress_bar;
pub(crate) use args::TortureArgs;
use calls::Calls;
pub(crate) use monitors::choice;
pub(crate) use part::{WorkerRole, run as part};
use report::{TortureLine, TortureReport};
use workers::Workers;

/// The name of the hidden subcommand that runs the processes of the torture program.
pub(crate) const PART: &str = "torture-part";

/// Runs the subcommand.
pub(crate) fn run(args: &TortureArgs) -> Result<()> {
    let pairs = plan::pairs(args.filter.as_deref());
    if pairs.is_empty() {
        return Err(Failure::Usage("--filter: no memory and no operation has a name that contains this text".into()));
    }
    let mut report = TortureReport::new(args);
    if let Some(minutes) = args.search {
        search::run(args, std::time::Duration::from_secs_f64(60.0 * minutes), &mut report)?;
        return report.end();
    }
    let seed = args.seed.map_or_else(random, Ok)?;
    for monitor in plan::monitors(&args.monitor) {
        let mut workers = Workers::new(monitor, args.device);
        let without_ns = calls::measure();
        if let Err(why) = workers.probe() {
            report.add(TortureLine::Monitor { monitor: monitor.name, available: false, reason: why, calls: None })?;
            continue;
        }
        let calls = Some(Calls { without_ns, with_ns: calls::measure() });
        report.add(TortureLine::Monitor { monitor: monitor.name, available: true, reason: String::new(), calls })?;
        let bar = progress_bar(pairs.len() as u64)?;
        for pair in &pairs {
            bar.set_message(format!("{}: {}, {}", monitor.name, pair.kind.name, pair.operation.name));
            report.add(TortureLine::pair(monitor, pair, workers.pair(pair)))?;
            bar.inc(1);
        }
        if args.seconds > 0 {
            bar.set_message(format!("{}: threads for {} s, seed {seed}", monitor.name, args.seconds));
            let (milliseconds, mix) = (1000 * args.seconds, race::Mix::plain());
            let race = race::Plan { milliseconds, threads: args.threads, seed, mix };
            report.add(TortureLine::race(monitor, &race, workers.race(&race)))?;
        }
        bar.finish_and_clear();
    }
    report.end()
}

fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(Failure::system("drawing a random number"))?;
    Ok(u64::from_ne_bytes(bytes) >> 32)
}

//! The processes of the torture program, which are hidden subcommands.

use std::io::{self, BufRead};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::case::{self, Outcome, Verdict};
use super::device::DeviceChoice;
use super::kinds::MemoryKind;
use super::monitors::{Monitor, TestedCache};
use super::operations::{Operation, Tools};
use super::oracle::Oracle;
use super::{helper_process, race};
use crate::fixed_buffers::SLOTS;
use crate::worker::answer;

/// The roles of such a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WorkerRole {
    /// Has a cache, and memory that is changed.
    Worker,
    /// Changes files and memory of the worker from outside.
    Helper,
}

/// The jobs of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum WorkerJob {
    /// Opens a cache with this monitor for this device. Must be the first job. The answer is a `String`: empty on
    /// success, otherwise the reason for the failure.
    Open { monitor: String, device: DeviceChoice },
    /// Tests one operation on one kind of memory. The answer is a [`Verdict`].
    Pair { mapping: String, operation: String },
    /// Runs threads that use memory while it is changed. The answer is a [`race::Tally`], or a `String` with the reason
    /// for a failure.
    Race(race::Plan),
    /// Opens its own caches, and runs threads with changes to the whole process. The answer is the same as for `Race`.
    Search { monitor: String, device: DeviceChoice, plan: race::Plan },
}

/// Runs a part until standard input ends. The process is killed when its parent ends, because at that time it may be in
/// the middle of a long job.
pub(crate) fn run(part: WorkerRole) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    match part {
        WorkerRole::Helper => helper_process::run(),
        WorkerRole::Worker => work(),
    }
}

fn work() -> io::Result<()> {
    let mut opened: Option<(&Monitor, TestedCache, Oracle)> = None;
    for line in io::stdin().lock().lines() {
        let job: WorkerJob = serde_json::from_str(&line?)?;
        match (job, &opened) {
            (WorkerJob::Open { monitor: name, device }, _) => {
                let monitor = Monitor::named(&name).ok_or(io::ErrorKind::NotFound)?;
                let made = Oracle::new(device)
                    .and_then(|oracle| Ok((monitor.open(oracle.clone(), SLOTS / 4, false)?, oracle)));
                match made {
                    Ok((subject, oracle)) => {
                        opened = Some((monitor, subject, oracle));
                        answer(&"")?;
                    }
                    Err(why) => answer(&why)?,
                }
            }
            (WorkerJob::Search { monitor, device, plan }, _) => {
                let monitor = Monitor::named(&monitor).ok_or(io::ErrorKind::NotFound)?;
                let tally = race::search(&plan, monitor, device);
                answer(&tally.map_err(|error| error.to_string()))?;
            }
            (_, None) => return Err(io::ErrorKind::InvalidInput.into()),
            (WorkerJob::Pair { mapping, operation }, Some((_, subject, oracle))) => {
                answer(&pair(&mapping, &operation, subject, oracle))?;
            }
            (WorkerJob::Race(plan), Some((monitor, subject, oracle))) => {
                let tally = race::run(&plan, monitor, subject, oracle);
                answer(&tally.map_err(|error| error.to_string()))?;
            }
        }
    }
    Ok(())
}

fn pair(mapping: &str, operation: &str, subject: &TestedCache, oracle: &Oracle) -> Verdict {
    let (Some(kind), Some(operation)) = (MemoryKind::named(mapping), Operation::named(operation)) else {
        return Verdict::because(Outcome::Failed, "unknown memory or operation");
    };
    match Tools::for_way(operation.way) {
        Ok(mut tools) => case::run(kind, operation, subject, oracle, &mut tools),
        Err(error) => Verdict::because(Outcome::Failed, error),
    }
}

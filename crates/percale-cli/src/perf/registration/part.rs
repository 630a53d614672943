//! The process with the cache. A monitor remains loaded until its process ends, so each monitor has its own process.

use std::io::{self, BufRead};
use std::time::Duration;

use pindown::monitor::bpf::RecordsAlone;
use serde::{Deserialize, Serialize};

use super::bench::{Bench, RECORDS_ALONE};
use super::lines::{Figures, Line, Work};
use super::{changes, hits, others, pieces, registrations, transfers};
use crate::clock::Clock;
use crate::worker::answer;

/// The hidden subcommand.
pub(crate) const PART: &str = "registration-part";

/// The jobs of the process. All jobs but the first two require the cache.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Job {
    /// Does work that does not involve the cache. The answer is `Result<Figures, String>`.
    Other { work: Work, seconds: f64 },
    /// Opens a cache with this monitor and drops the previous cache. For [`RECORDS_ALONE`], attaches the programs of
    /// the monitor instead. The answer is a `String`: empty on success, otherwise the reason of the failure.
    Open { monitor: String },
    /// Executes a measurement. The answer is `Result<Vec<Line>, String>`.
    Measure { what: What, seconds: f64 },
}

/// The measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum What {
    Transfer { bytes: usize },
    Registration { bytes: usize },
    Change { bytes: usize },
    Pieces,
    Hits,
}

/// Answers jobs until standard input ends.
pub(crate) fn run() -> io::Result<()> {
    let clock = Clock::calibrate();
    let mut open: (Option<Bench>, Option<RecordsAlone>) = (None, None);
    for line in io::stdin().lock().lines() {
        match serde_json::from_str(&line?)? {
            Job::Other { work, seconds } => {
                let figures = others::measure(&clock, work, Duration::from_secs_f64(seconds));
                answer(&figures.map_err(|error| error.to_string()))?;
            }
            Job::Open { monitor } if monitor == RECORDS_ALONE => {
                let attached = RecordsAlone::attach();
                answer(&attached.as_ref().map_or_else(ToString::to_string, |_| String::new()))?;
                open = (None, attached.ok().flatten());
            }
            Job::Open { monitor } => {
                let opened = Bench::open(&monitor);
                answer(&opened.as_ref().map_or_else(io::Error::to_string, |_| String::new()))?;
                open = (opened.ok(), None);
            }
            Job::Measure { what, seconds } => {
                let bench = open.0.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
                let lines = measure(bench, what, Duration::from_secs_f64(seconds));
                answer(&lines.map_err(|error| error.to_string()))?;
            }
        }
    }
    Ok(())
}

fn measure(bench: &Bench, what: What, time: Duration) -> io::Result<Vec<Line>> {
    Ok(match what {
        What::Transfer { bytes } => vec![transfers::measure(bench, bytes, time)?],
        What::Registration { bytes } => vec![registrations::measure(bench, bytes, time)?],
        What::Change { bytes } => changes::measure(bench, bytes, time)?,
        What::Pieces => {
            let miss = pieces::miss(bench, time)?;
            std::iter::once(miss).chain(pieces::invalidation(bench, time)?).collect()
        }
        What::Hits => hits::measure(bench, time)?,
    })
}

/// The answer to [`Job::Other`].
pub(super) type Done = Result<Figures, String>;

//! The process that contains the measured cache. A monitor remains loaded until its process ends, so each monitor has
//! its own process.

use std::io::{self, BufRead};
use std::time::Duration;

use pindown::monitor::bpf::RecordsAlone;
use serde::{Deserialize, Serialize};

use super::bench::{RECORDS_ALONE, RegistrationBench};
use super::lines::{Figures, RegistrationLine, Work};
use super::{changes, hits, others, pieces, registrations, transfers};
use crate::clock::Clock;
use crate::worker::answer;

/// The name of the hidden subcommand that runs this process.
pub(crate) const PART: &str = "registration-part";

/// The jobs of the process. All jobs but the first two require the cache.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum RegistrationJob {
    /// Does work that does not involve the cache. The answer is `Result<Figures, String>`.
    Other { work: Work, seconds: f64 },
    /// Opens a cache with this monitor and drops the previous cache. For [`RECORDS_ALONE`], attaches the programs of
    /// the monitor instead. The answer is a `String`: empty on success, otherwise the reason for the failure.
    Open { monitor: String },
    /// Executes a measurement. The answer is `Result<Vec<RegistrationLine>, String>`.
    Measure { what: Measurement, seconds: f64 },
}

/// The measurements of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Measurement {
    Transfer { bytes: usize },
    Registration { bytes: usize },
    Change { bytes: usize },
    Pieces,
    Hits,
}

/// Answers jobs until standard input ends.
pub(crate) fn run() -> io::Result<()> {
    let clock = Clock::calibrate();
    let mut open: (Option<RegistrationBench>, Option<RecordsAlone>) = (None, None);
    for line in io::stdin().lock().lines() {
        match serde_json::from_str(&line?)? {
            RegistrationJob::Other { work, seconds } => {
                let figures = others::measure(&clock, work, Duration::from_secs_f64(seconds));
                answer(&figures.map_err(|error| error.to_string()))?;
            }
            RegistrationJob::Open { monitor } if monitor == RECORDS_ALONE => {
                let attached = RecordsAlone::attach();
                answer(&attached.as_ref().map_or_else(ToString::to_string, |_| String::new()))?;
                open = (None, attached.ok().flatten());
            }
            RegistrationJob::Open { monitor } => {
                let opened = RegistrationBench::open(&monitor);
                answer(&opened.as_ref().map_or_else(io::Error::to_string, |_| String::new()))?;
                open = (opened.ok(), None);
            }
            RegistrationJob::Measure { what, seconds } => {
                let bench = open.0.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
                let lines = measure(bench, what, Duration::from_secs_f64(seconds));
                answer(&lines.map_err(|error| error.to_string()))?;
            }
        }
    }
    Ok(())
}

fn measure(bench: &RegistrationBench, what: Measurement, time: Duration) -> io::Result<Vec<RegistrationLine>> {
    Ok(match what {
        Measurement::Transfer { bytes } => vec![transfers::measure(bench, bytes, time)?],
        Measurement::Registration { bytes } => vec![registrations::measure(bench, bytes, time)?],
        Measurement::Change { bytes } => changes::measure(bench, bytes, time)?,
        Measurement::Pieces => {
            let miss = pieces::miss(bench, time)?;
            std::iter::once(miss).chain(pieces::invalidation(bench, time)?).collect()
        }
        Measurement::Hits => hits::measure(bench, time)?,
    })
}

/// The answer to [`RegistrationJob::Other`].
pub(super) type OtherAnswer = Result<Figures, String>;

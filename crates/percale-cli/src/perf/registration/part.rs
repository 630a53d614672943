//! The process that has the cache: a monitor stays loaded until its process ends, so each has one of its own.

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

/// What it is asked. Everything but the first two needs the cache.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Job {
    /// To do what has nothing to do with the cache: `Result<Figures, String>`.
    Other { work: Work, seconds: f64 },
    /// To open a cache with this monitor (or to have its programs attached: [`RECORDS_ALONE`]), and forget the one before: a
    /// `String`, empty or why not.
    Open { monitor: String },
    /// To measure: `Result<Vec<Line>, String>`.
    Measure { what: What, seconds: f64 },
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum What {
    Transfer { bytes: usize },
    Registration { bytes: usize },
    Change { bytes: usize },
    Pieces,
    Hits,
}

/// Answers until standard input ends.
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

/// As [`Job::Other`] asks.
pub(super) type Done = Result<Figures, String>;

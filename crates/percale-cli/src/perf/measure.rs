//! Measures one row: rounds of percale, by one or both of its APIs, and of its limit in turns, in the same two
//! processes, until the time of the row has elapsed.
//!
//! First, each subject is run to find out how many messages fill a round, which also warms it up. For the limit, this
//! also determines its fastest setting. Then there are eight rounds of each. Their order is reversed after each pair,
//! so that other load of the machine affects both equally. After each pair, unless checks are disabled, a short untimed
//! round of each checks every byte of every message.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::plan::Planned;
use super::session::Session;
use crate::failure::{Failure, Result};
use crate::pattern::CheckedPart;
use crate::round::{MOST, MessageShape, Round, WARM};
use crate::row::{Api, Pattern, Row};
use crate::statistics::{Samples, Summary};
use crate::subject::{AccessMeans, SubjectKind};

/// The number of timed rounds of each subject in a row.
const ROUNDS: u32 = 8;

/// The approximate number of bytes in a round of verification.
const VERIFIED_BYTES: usize = 1 << 20;

/// The duration of one try of a setting of a limit.
const SETTING_TIME: Duration = Duration::from_millis(10);

/// The options of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options<'a> {
    /// The total time of all timed rounds of a row.
    pub(crate) time: Duration,
    /// The number of timed messages of a row, instead of a time.
    pub(crate) iterations: Option<u64>,
    /// Whether the whole source is written before each send (latencies).
    pub(crate) dirty: bool,
    /// Whether the data is checked.
    pub(crate) verify: bool,
    /// The APIs of percale that are measured. If there is none, only the limits are.
    pub(crate) apis: &'a [Api],
}

/// The fastest settings of limits that have been found so far.
pub(crate) type Best = HashMap<(SubjectKind, usize, Pattern), (usize, String)>;

/// Measures one row. `step` is called after each of its [`STEPS`] parts.
pub(crate) fn row(
    session: &mut Session,
    planned: &Planned,
    options: &Options<'_>,
    best: &mut Best,
    mut step: impl FnMut(),
) -> Result<Row> {
    let shape = planned.shape();
    let mut runs = Vec::new();
    for &api in options.apis {
        runs.push(Run::start(session, planned.subject(api), shape, options, (0, String::new()))?);
    }
    if session.is_local() {
        let (kind, shape) = planned.limit();
        match best_setting(session, kind, &shape, options, best) {
            Ok(best) => runs.push(Run::start(session, kind, shape, options, best)?),
            // The row then has no limit.
            Err(Failure::Forbidden(_)) => {}
            Err(error) => return Err(error),
        }
    }
    step();
    let mut verified = 0;
    for number in 0..ROUNDS {
        for turn in 0..runs.len() {
            let index = (turn + number as usize) % runs.len();
            runs[index].timed(session, options)?;
        }
        if options.verify {
            for run in &runs {
                let checked = run.verify(session)?;
                // A row counts percale's messages as verified. It counts those of the limit only if percale is not
                // measured.
                if options.apis.is_empty() || run.kind.api().is_some() {
                    verified += checked;
                }
            }
        }
        step();
    }
    Ok(finish(planned, options, runs, verified))
}

/// Makes a row of the samples.
fn finish(planned: &Planned, options: &Options<'_>, runs: Vec<Run>, verified: u64) -> Row {
    // The API of the row is measured first. If only the limit is measured, this is the only run.
    let iterations = runs.first().map_or(0, |run| u64::from(ROUNDS) * run.count * run.shape.batch());
    let (api, beside) = (options.apis.first().copied(), options.apis.get(1).copied());
    let (mut subject, mut raw, mut limit, mut limit_name) = (None, None, None, None);
    for run in runs {
        let place = match run.kind.api() {
            None => {
                limit_name = Some(run.name());
                &mut limit
            }
            own if own == beside => &mut raw,
            Some(_) => &mut subject,
        };
        *place = run.samples.summary();
    }
    let p50 = |of: Option<Summary>| of.map(|summary| summary.p50);
    let p99 = |of: Option<Summary>| of.map(|summary| summary.p99);
    let rate = |of| p50(of).map(|time| 1e9 / time);
    let bandwidth = |of| rate(of).map(|rate| rate * planned.bytes as f64);
    let ratio = |to| p50(subject).zip(p50(to)).map(|(time, other)| time / other);
    Row {
        transport: planned.transport,
        op: planned.op,
        bytes: planned.bytes,
        memory: planned.memory,
        dirty: options.dirty && planned.op.can_be_dirty(),
        api,
        p50_ns: p50(subject),
        p99_ns: p99(subject),
        rate: rate(subject),
        bytes_per_s: bandwidth(subject),
        raw_p50_ns: p50(raw),
        raw_p99_ns: p99(raw),
        raw_rate: rate(raw),
        raw_bytes_per_s: bandwidth(raw),
        raw_ratio: ratio(raw),
        limit: limit_name,
        limit_p50_ns: p50(limit),
        limit_p99_ns: p99(limit),
        limit_rate: rate(limit),
        limit_bytes_per_s: bandwidth(limit),
        ratio: ratio(limit),
        iterations,
        verified,
    }
}

/// The number of steps of a row.
pub(crate) const STEPS: u64 = 1 + ROUNDS as u64;

/// Returns a round that writes and checks only the parts of messages that a timed round accesses.
fn timed_round(shape: &MessageShape, options: &Options<'_>) -> Round {
    let ends = if options.verify { CheckedPart::Ends } else { CheckedPart::Nothing };
    let write = if options.dirty && shape.op.can_be_dirty() { CheckedPart::Whole } else { ends };
    Round { number: 0, warm: 0, count: 1, batch: shape.batch(), write, check: ends, setting: 0 }
}

/// The rounds of one of the compared subjects.
struct Run {
    kind: SubjectKind,
    shape: MessageShape,
    setting: usize,
    setting_name: String,
    count: u64,
    samples: Samples,
}

impl Run {
    /// Prepares the subject, and finds out how many messages fill a round.
    fn start(
        session: &mut Session,
        kind: SubjectKind,
        shape: MessageShape,
        options: &Options<'_>,
        (setting, setting_name): (usize, String),
    ) -> Result<Self> {
        session.prepare(kind, &shape)?;
        // The first messages are not timed. They connect the two processes and touch the buffers.
        session.round(kind, Round { count: 2, setting, ..timed_round(&shape, options) })?;
        let mut run = Self { kind, shape, setting, setting_name, count: 1, samples: Samples::default() };
        run.count = match options.iterations {
            Some(iterations) => iterations.div_ceil(u64::from(ROUNDS) * shape.batch()).clamp(1, MOST),
            None => {
                // The subjects of a row, each API and the limit, get equal parts of its time.
                let target = options.time / ((options.apis.len() as u32 + 1) * ROUNDS);
                run.fill(session, options, target)?
            }
        };
        Ok(run)
    }

    /// Returns the number of messages that take approximately the time `target`.
    fn fill(&self, session: &mut Session, options: &Options<'_>, target: Duration) -> Result<u64> {
        let round = Round { setting: self.setting, ..timed_round(&self.shape, options) };
        let mut count = 4;
        let mut try_it = |count| {
            let start = Instant::now();
            session.round(self.kind, Round { count, ..round }).map(|_| start.elapsed())
        };
        loop {
            let mut spent = try_it(count)?;
            if spent >= target / 8 {
                // Measure again, because a single interruption may have taken longer than the messages.
                spent = spent.min(try_it(count)?);
            }
            if spent >= target / 8 || count >= MOST {
                let fit = target.as_secs_f64() / spent.as_secs_f64() * count as f64;
                return Ok((fit as u64).clamp(1, MOST));
            }
            count *= 4;
        }
    }

    fn timed(&mut self, session: &mut Session, options: &Options<'_>) -> Result<()> {
        // When a round begins, the caches still contain data of the other subject.
        let warm = if self.shape.op.pattern() == Pattern::Stream { 0 } else { (self.count / 16).clamp(1, WARM) };
        let round = Round { warm, count: self.count, setting: self.setting, ..timed_round(&self.shape, options) };
        let (samples, _) = session.round(self.kind, round)?;
        self.samples.append(samples);
        Ok(())
    }

    /// Returns the number of messages that both processes together have checked.
    fn verify(&self, session: &mut Session) -> Result<u64> {
        let pattern = self.shape.op.pattern();
        let count = match pattern {
            // Make one access to each slot, so that each slot can be checked after all accesses.
            Pattern::Access => self.shape.slots() as u64,
            Pattern::PingPong | Pattern::Stream => (VERIFIED_BYTES / self.shape.bytes).clamp(2, 64) as u64,
        };
        let (write, check) = (CheckedPart::Whole, CheckedPart::Whole);
        let round = Round { number: 0, warm: 0, count, batch: 1, write, check, setting: self.setting };
        let (_, far) = session.round(self.kind, round)?;
        // A stream is checked where it arrives, an access at its destination, and a ping-pong at both ends.
        Ok(if pattern == Pattern::PingPong { far + round.verified() } else { far })
    }

    fn name(&self) -> String {
        let name = match self.kind {
            SubjectKind::Ring => "ring",
            SubjectKind::Copy => "copy",
            SubjectKind::Access(AccessMeans::Copy) => "copy",
            SubjectKind::Access(AccessMeans::Kernel) => "kernel",
            SubjectKind::Access(AccessMeans::Word) => "word",
            SubjectKind::Twice => "twice",
            SubjectKind::Sockets => "sockets",
            SubjectKind::Percale(..) | SubjectKind::OneSided(..) | SubjectKind::Bounced(_) => "percale",
        };
        if self.setting_name.is_empty() { name.into() } else { format!("{name}: {}", self.setting_name) }
    }
}

/// The number of times that each setting of a limit is tried. The first try only warms up the sockets, because their
/// buffers grow.
const PASSES: usize = 4;

/// Tries the settings of a limit in turns. A setting is rated by its slowest median, and the setting with the best
/// rating is used for all rows of the shape. (The results of some settings vary by a factor of four between passes, so
/// a single fast pass must not determine the choice.)
fn best_setting(
    session: &mut Session,
    kind: SubjectKind,
    shape: &MessageShape,
    options: &Options<'_>,
    best: &mut Best,
) -> Result<(usize, String)> {
    let key = (kind, shape.bytes, shape.op.pattern());
    if let Some(found) = best.get(&key) {
        return Ok(found.clone());
    }
    let settings = session.prepare(kind, shape)?;
    let mut slowest = vec![0.0_f64; settings.len()];
    if settings.len() > 1 {
        for pass in 0..PASSES {
            for (setting, slowest) in slowest.iter_mut().enumerate() {
                let name = String::new();
                let samples = Samples::default();
                let run = Run { kind, shape: *shape, setting, setting_name: name, count: 1, samples };
                let count = run.fill(session, options, SETTING_TIME)?;
                let round = Round { count, setting, ..timed_round(shape, options) };
                let (samples, _) = session.round(kind, round)?;
                if let Some(summary) = samples.summary().filter(|_| pass > 0) {
                    *slowest = slowest.max(summary.p50);
                }
            }
        }
    }
    let fastest = slowest.iter().enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(0, |(setting, _)| setting);
    let name = settings.into_iter().nth(fastest);
    let found = (fastest, name.ok_or_else(|| Failure::Protocol("a limit without settings".into()))?);
    best.insert(key, found.clone());
    Ok(found)
}

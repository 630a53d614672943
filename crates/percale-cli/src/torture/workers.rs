//! The worker processes of `percale torture`. Starts them, sends them jobs, waits for answers, and ends them.

use std::time::Duration;

use serde::de::DeserializeOwned;

use super::PART;
use super::case::{Outcome, Verdict};
use super::device::DeviceChoice;
use super::monitors::Monitor;
use super::operations::ExecutionMode;
use super::part::WorkerJob;
use super::plan::Pair;
use super::race;
use crate::worker::Worker;

/// The timeout for one pair.
const PAIR_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a run of the search may take in addition to its own duration. It calls fsync(2) at random times, which is
/// slow on a busy disk.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(180);

/// Starts a worker with a cache.
fn start(monitor: &Monitor, device: DeviceChoice) -> Result<Worker, String> {
    let mut worker = Worker::start(&[PART, "worker"])?;
    let why: String = worker.ask(&WorkerJob::Open { monitor: monitor.name.into(), device }, PAIR_TIMEOUT)?;
    if why.is_empty() { Ok(worker) } else { Err(why) }
}

/// The workers of one monitor, one at a time. A worker runs as many pairs as the monitor permits.
pub(super) struct Workers {
    monitor: &'static Monitor,
    device: DeviceChoice,
    worker: Option<Worker>,
}

impl Workers {
    pub(super) fn new(monitor: &'static Monitor, device: DeviceChoice) -> Self {
        Self { monitor, device, worker: None }
    }

    /// Starts the worker with the monitor. Returns an error with the reason if the monitor is not available here.
    pub(super) fn probe(&mut self) -> Result<(), String> {
        self.worker().map(drop)
    }

    /// Runs one pair.
    pub(super) fn pair(&mut self, pair: &Pair) -> Verdict {
        let apart = self.monitor.alone || pair.operation.way == ExecutionMode::Worker;
        if apart {
            self.worker = None;
        }
        let job = WorkerJob::Pair { mapping: pair.kind.name.into(), operation: pair.operation.name.into() };
        let verdict = self.ask(&job, PAIR_TIMEOUT);
        if apart {
            self.worker = None;
        }
        verdict.unwrap_or_else(|why| Verdict::because(Outcome::Failed, why))
    }

    /// Runs the threads in a new worker.
    pub(super) fn race(&mut self, plan: &race::Plan) -> Result<race::Tally, String> {
        self.worker = None;
        let time = PAIR_TIMEOUT + Duration::from_millis(plan.milliseconds);
        self.ask::<Result<_, _>>(&WorkerJob::Race(plan.clone()), time).flatten()
    }

    /// Like [`Self::race`], with the events of a search.
    pub(super) fn search(&mut self, plan: &race::Plan) -> Result<race::Tally, String> {
        self.worker = None;
        let mut worker = Worker::start(&[PART, "worker"])?;
        let job = WorkerJob::Search { monitor: self.monitor.name.into(), device: self.device, plan: plan.clone() };
        worker.ask::<Result<_, _>>(&job, SEARCH_TIMEOUT + Duration::from_millis(plan.milliseconds)).flatten()
    }

    fn ask<T: DeserializeOwned>(&mut self, job: &WorkerJob, timeout: Duration) -> Result<T, String> {
        let answer = self.worker()?.ask(job, timeout);
        if answer.is_err() {
            self.worker = None;
        }
        answer
    }

    fn worker(&mut self) -> Result<&mut Worker, String> {
        let worker = match self.worker.take() {
            Some(worker) => worker,
            None => start(self.monitor, self.device)?,
        };
        Ok(self.worker.insert(worker))
    }
}

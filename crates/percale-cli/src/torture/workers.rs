//! The processes in which it happens, as the command sees them: started, asked, waited for, ended.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::case::{Outcome, Verdict};
use super::monitors::Monitor;
use super::operations::Way;
use super::part::{Job, PART};
use super::plan::Pair;
use super::race;

/// How long a worker may take for one pair.
const PATIENCE: Duration = Duration::from_secs(60);

/// A worker, and why it will answer nothing more.
struct Worker {
    process: Child,
    asked: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Worker {
    fn start(monitor: &Monitor) -> Result<Self, String> {
        let mut command = Command::new("/proc/self/exe");
        command.args([PART, "worker"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = command.spawn().map_err(|error| error.to_string())?;
        let asked = process.stdin.take();
        let (send, answers) = channel();
        if let Some(out) = process.stdout.take() {
            // Ends when the worker does, or nobody listens.
            std::thread::spawn(move || {
                BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| send.send(line))
            });
        }
        let mut worker = Self { process, asked, answers };
        let why: String = worker.ask(&Job::Open { monitor: monitor.name.into() }, PATIENCE)?;
        if why.is_empty() { Ok(worker) } else { Err(why) }
    }

    /// The answer to a job.
    ///
    /// # Errors
    /// There is none: the worker must not be asked again.
    fn ask<T: DeserializeOwned>(&mut self, job: &Job, patience: Duration) -> Result<T, String> {
        let job = serde_json::to_string(job).map_err(|error| error.to_string())?;
        let asked = self.asked.as_mut().map(|asked| writeln!(asked, "{job}"));
        if !matches!(asked, Some(Ok(()))) {
            return Err(self.end());
        }
        match self.answers.recv_timeout(patience) {
            Ok(line) => serde_json::from_str(&line).map_err(|error| format!("{error} in: {line}")),
            Err(RecvTimeoutError::Disconnected) => Err(self.end()),
            Err(RecvTimeoutError::Timeout) => Err(format!("no answer for {} s", patience.as_secs())),
        }
    }

    /// How it ended.
    fn end(&mut self) -> String {
        self.asked = None;
        match self.process.wait() {
            Ok(status) => format!("its process ended: {status}"),
            Err(error) => error.to_string(),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.asked = None;
        // Nothing is lost by ending it: it is ours, and has answered or does not.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// The workers of one monitor: one at a time, for as many pairs as it may have.
pub(super) struct Workers {
    monitor: &'static Monitor,
    worker: Option<Worker>,
}

impl Workers {
    pub(super) fn new(monitor: &'static Monitor) -> Self {
        Self { monitor, worker: None }
    }

    /// Whether the monitor is to be had here; why not.
    pub(super) fn probe(&mut self) -> Result<(), String> {
        self.worker().map(drop)
    }

    /// One pair.
    pub(super) fn pair(&mut self, pair: &Pair) -> Verdict {
        let apart = self.monitor.alone || pair.operation.way == Way::Worker;
        if apart {
            self.worker = None;
        }
        let job = Job::Pair { mapping: pair.kind.name.into(), operation: pair.operation.name.into() };
        let verdict = self.ask(&job, PATIENCE);
        if apart {
            self.worker = None;
        }
        verdict.unwrap_or_else(|why| Verdict::because(Outcome::Failed, why))
    }

    /// The threads, in a new worker.
    pub(super) fn race(&mut self, plan: &race::Plan) -> Result<race::Tally, String> {
        self.worker = None;
        self.ask::<Result<_, _>>(&Job::Race(plan.clone()), PATIENCE + Duration::from_secs(plan.seconds)).flatten()
    }

    fn ask<T: DeserializeOwned>(&mut self, job: &Job, patience: Duration) -> Result<T, String> {
        let answer = self.worker()?.ask(job, patience);
        if answer.is_err() {
            self.worker = None;
        }
        answer
    }

    fn worker(&mut self) -> Result<&mut Worker, String> {
        let worker = match self.worker.take() {
            Some(worker) => worker,
            None => Worker::start(self.monitor)?,
        };
        Ok(self.worker.insert(worker))
    }
}

//! A child process that executes jobs. It reads jobs and writes answers, each as one line of JSON.
//!
//! A job may end the process or never return. The owner reports both as errors. Hidden subcommands implement the
//! worker's side.

mod stuck;

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The child process. It is killed when this value is dropped.
pub(crate) struct Worker {
    process: Child,
    stdin: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Worker {
    /// Starts this program again with these arguments.
    pub(crate) fn start(arguments: &[&str]) -> Result<Self, String> {
        let mut command = Command::new("/proc/self/exe");
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = command.spawn().map_err(|error| error.to_string())?;
        let stdin = process.stdin.take();
        let (send, answers) = channel();
        if let Some(out) = process.stdout.take() {
            // The thread ends when the worker ends, or when the receiver is dropped.
            std::thread::spawn(move || {
                BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| send.send(line))
            });
        }
        Ok(Self { process, stdin, answers })
    }

    /// Sends a job and waits for the answer.
    ///
    /// # Errors
    /// Fails if there is no answer. The worker must not be used again.
    pub(crate) fn ask<T: DeserializeOwned>(&mut self, job: &impl Serialize, timeout: Duration) -> Result<T, String> {
        self.send_job(job)?;
        self.receive_answer(timeout)?
            .ok_or_else(|| format!("no answer for {} s; {}", timeout.as_secs(), stuck::threads_of(self.process.id())))
    }

    /// Sends a job. The answer is received with [`receive_answer`](Self::receive_answer).
    ///
    /// # Errors
    /// Fails if the worker has ended.
    pub(crate) fn send_job(&mut self, job: &impl Serialize) -> Result<(), String> {
        let job = serde_json::to_string(job).map_err(|error| error.to_string())?;
        let sent = self.stdin.as_mut().map(|stdin| writeln!(stdin, "{job}"));
        if matches!(sent, Some(Ok(()))) { Ok(()) } else { Err(self.end()) }
    }

    /// Receives the answer to a job sent with [`send_job`](Self::send_job). Returns `None` on timeout.
    ///
    /// # Errors
    /// Fails if there will be no answer. The worker must not be used afterwards.
    pub(crate) fn receive_answer<T: DeserializeOwned>(&mut self, timeout: Duration) -> Result<Option<T>, String> {
        match self.answers.recv_timeout(timeout) {
            Ok(line) => serde_json::from_str(&line).map(Some).map_err(|error| format!("{error} in: {line}")),
            Err(RecvTimeoutError::Disconnected) => Err(self.end()),
            Err(RecvTimeoutError::Timeout) => Ok(None),
        }
    }

    /// Returns a text that describes how the process ended.
    fn end(&mut self) -> String {
        self.stdin = None;
        match self.process.wait() {
            Ok(status) => format!("its process ended: {status}"),
            Err(error) => error.to_string(),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stdin = None;
        // The process has no state that could be lost: it belongs to this object, and it has answered or does not
        // respond.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Writes the worker's answer to one job.
pub(crate) fn answer(value: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(value)?)?;
    out.flush()
}

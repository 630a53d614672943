//! A process of our own that is asked things: jobs go in, answers come out, a line of JSON each.
//!
//! What it is asked to do may end it, or take for ever: both are answers too. Hidden subcommands are the workers' side.

mod stuck;

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The process, and why it will answer nothing more. It ends with its owner.
pub(crate) struct Worker {
    process: Child,
    asked: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Worker {
    /// This program again, with these arguments.
    pub(crate) fn start(arguments: &[&str]) -> Result<Self, String> {
        let mut command = Command::new("/proc/self/exe");
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = command.spawn().map_err(|error| error.to_string())?;
        let asked = process.stdin.take();
        let (send, answers) = channel();
        if let Some(out) = process.stdout.take() {
            // Ends when the worker does, or when the receiver is dropped.
            std::thread::spawn(move || {
                BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| send.send(line))
            });
        }
        Ok(Self { process, asked, answers })
    }

    /// The answer to a job.
    ///
    /// # Errors
    /// There is none: the worker must not be asked again.
    pub(crate) fn ask<T: DeserializeOwned>(&mut self, job: &impl Serialize, patience: Duration) -> Result<T, String> {
        self.tell(job)?;
        self.hear(patience)?
            .ok_or_else(|| format!("no answer for {} s; {}", patience.as_secs(), stuck::threads_of(self.process.id())))
    }

    /// Sends it a job; the answer is to be [heard](Self::hear).
    ///
    /// # Errors
    /// It has ended.
    pub(crate) fn tell(&mut self, job: &impl Serialize) -> Result<(), String> {
        let job = serde_json::to_string(job).map_err(|error| error.to_string())?;
        let asked = self.asked.as_mut().map(|asked| writeln!(asked, "{job}"));
        if matches!(asked, Some(Ok(()))) { Ok(()) } else { Err(self.end()) }
    }

    /// The answer to a job that it was told, if it comes in time.
    ///
    /// # Errors
    /// There will be none: the worker must not be asked again.
    pub(crate) fn hear<T: DeserializeOwned>(&mut self, patience: Duration) -> Result<Option<T>, String> {
        match self.answers.recv_timeout(patience) {
            Ok(line) => serde_json::from_str(&line).map(Some).map_err(|error| format!("{error} in: {line}")),
            Err(RecvTimeoutError::Disconnected) => Err(self.end()),
            Err(RecvTimeoutError::Timeout) => Ok(None),
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

/// The worker's answer to one job.
pub(crate) fn answer(value: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(value)?)?;
    out.flush()
}

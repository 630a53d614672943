//! A child process that executes jobs. It reads jobs and writes answers, each as one line of JSON.
//!
//! A job may end the process or never return. The owner reports both as errors. Hidden subcommands implement the
//! worker's side.

mod stuck;

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The child process. It is killed when this value is dropped.
pub(crate) struct Worker {
    process: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    /// Bytes from the process that follow the last answer.
    received: Vec<u8>,
}

impl Worker {
    /// Starts this program again with these arguments.
    pub(crate) fn start(arguments: &[&str]) -> Result<Self, String> {
        let started = Self::spawn(Command::new(own_program()).args(arguments).stdin(Stdio::piped()));
        started.map_err(|error| format!("{} cannot be started: {error}", own_program().display()))
    }

    /// Starts this program again with these arguments. The process reads no jobs, and has the standard input of this
    /// process. It takes one descriptor.
    pub(crate) fn start_without_jobs(arguments: &[&OsStr]) -> io::Result<Self> {
        Self::spawn(Command::new(own_program()).args(arguments).stdin(Stdio::inherit()))
    }

    fn spawn(command: &mut Command) -> io::Result<Self> {
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn()?;
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
        Ok(Self { process, stdin, stdout, received: Vec::new() })
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
        let Some(line) = self.receive_line(timeout)? else { return Ok(None) };
        serde_json::from_slice(&line)
            .map(Some)
            .map_err(|error| format!("{error} in: {}", String::from_utf8_lossy(&line).trim_end()))
    }

    /// Receives a line of the output, which is an answer unless something else in the process prints. Returns `None` on
    /// timeout.
    ///
    /// # Errors
    /// Fails if there will be no line. The worker must not be used afterwards.
    pub(crate) fn receive_line(&mut self, timeout: Duration) -> Result<Option<Vec<u8>>, String> {
        self.read_line(timeout).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.end(),
            _ => error.to_string(),
        })
    }

    /// Reads a line, with its end. Returns `None` on timeout. No thread reads the output: a process that has reached
    /// its limit of threads can still start workers.
    ///
    /// # Errors
    /// Fails with `UnexpectedEof` if the process has closed its output.
    fn read_line(&mut self, timeout: Duration) -> io::Result<Option<Vec<u8>>> {
        let until = Instant::now() + timeout;
        let mut searched = 0;
        loop {
            if let Some(at) = self.received[searched..].iter().position(|byte| *byte == b'\n') {
                return Ok(Some(self.received.drain(..=searched + at).collect()));
            }
            searched = self.received.len();
            let stdout = self.stdout.as_mut().ok_or(io::ErrorKind::UnexpectedEof)?;
            let left = Timespec::try_from(until.saturating_duration_since(Instant::now()));
            match poll(&mut [PollFd::new(&*stdout, PollFlags::IN)], left.ok().as_ref()) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let mut bytes = [0; 8192];
            match stdout.read(&mut bytes)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => self.received.extend_from_slice(&bytes[..length]),
            }
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

/// Returns a path of this program that can be executed, even if its file was replaced or /proc is not mounted.
fn own_program() -> &'static Path {
    let own = Path::new("/proc/self/exe");
    // Without /proc: the path with which the program was started.
    if own.is_symlink() { own } else { Path::new(OsStr::from_bytes(rustix::param::linux_execfn().to_bytes())) }
}

/// Writes the worker's answer to one job.
pub(crate) fn answer(value: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(value)?)?;
    out.flush()
}

//! Runs another program with a time limit. Its output is passed through, collected, or read line by line.
//!
//! A program that exceeds its limit is killed with all its children.

use crate::failure::{Failure, Outcome};
use crate::processes;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, ErrorKind, PipeReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The default time limit. It is longer than any step takes on a slow machine, and short enough to detect a hang.
const DEFAULT_LIMIT: Duration = Duration::from_secs(30 * 60);

/// The number of output lines that are shown for a failed program: enough for a panic message and the end of its
/// backtrace.
const LAST_LINES: usize = 20;

/// A program before it runs.
pub(crate) struct Program {
    command: Command,
    limit: Duration,
}

/// The output of a program and its exit status.
pub(crate) struct Output {
    pub(crate) shown: String,
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Program {
    pub(crate) fn new(name: impl AsRef<OsStr>) -> Self {
        Self { command: Command::new(name), limit: DEFAULT_LIMIT }
    }

    pub(crate) fn cargo(directory: &Path) -> Self {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut program = Self::new(cargo);
        program.command.current_dir(directory);
        program
    }

    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    pub(crate) fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.command.args(arguments);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    pub(crate) fn without(mut self, variable: &str) -> Self {
        self.command.env_remove(variable);
        self
    }

    pub(crate) fn within(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    /// Returns the command, for callers that run it themselves.
    pub(crate) fn into_command(self) -> Command {
        self.command
    }

    /// Returns the command line for messages.
    pub(crate) fn shown(&self) -> String {
        let name = Path::new(self.command.get_program()).file_name().unwrap_or_default();
        let words = std::iter::once(name).chain(self.command.get_args());
        words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
    }

    /// Runs the program and passes its output through.
    ///
    /// # Errors
    /// Fails if the program cannot be started, exceeds its limit, or returns a failure.
    pub(crate) fn passed(mut self) -> Outcome {
        let shown = self.shown();
        self.command.stdin(Stdio::null());
        let (mut child, watch) = self.start()?;
        let status = watch.wait(&mut child)?;
        if status.success() { Ok(()) } else { Err(Failure::new(format!("`{shown}` failed ({status})"))) }
    }

    /// Runs the program and calls `each` for every output line of either stream, in the order of printing.
    pub(crate) fn lines(mut self, mut each: impl FnMut(&str)) -> Outcome<ExitStatus> {
        let (reader, writer) = std::io::pipe()?;
        self.command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let (mut child, watch) = self.start()?;
        // The command holds copies of the pipe's write end. While they are open, the pipe has no end of file.
        drop(self);
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line)? > 0 {
            each(String::from_utf8_lossy(&line).trim_end());
            line.clear();
        }
        let status = watch.wait(&mut child)?;
        Ok(status)
    }

    /// Runs the program and calls `each` for every output line, with its stream. Lines of standard error that were
    /// printed before a line of standard output are passed before that line.
    pub(crate) fn streams(mut self, mut each: impl FnMut(Stream, &str)) -> Outcome<ExitStatus> {
        let (output, output_end) = std::io::pipe()?;
        let (error, error_end) = std::io::pipe()?;
        self.command.stdin(Stdio::null()).stdout(output_end).stderr(error_end);
        let (mut child, watch) = self.start()?;
        // The command holds the write ends of the pipes. While they are open, the pipes have no end of file.
        drop(self);
        let (mut output, mut error) = (Lines::of(output)?, Lines::of(error)?);
        while output.is_open || error.is_open {
            wait_for(&output, &error)?;
            // Data on standard error that is available after a read of standard output was printed before a part of
            // that output.
            let more = output.read_some()?;
            while error.read_some()? {}
            error.give(|line| each(Stream::Error, line));
            if more || !output.is_open {
                output.give(|line| each(Stream::Output, line));
            }
        }
        let status = watch.wait(&mut child)?;
        Ok(status)
    }

    /// Runs the program and collects its output.
    pub(crate) fn output(mut self) -> Outcome<Output> {
        let shown = self.shown();
        self.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (mut child, watch) = self.start()?;
        let errors = gather(child.stderr.take());
        let printed = gather(child.stdout.take());
        let (stdout, stderr) = (join(printed), join(errors));
        let status = watch.wait(&mut child)?;
        Ok(Output { shown, status, stdout, stderr })
    }

    /// Starts the program in the background and discards its output. Dropping the returned value kills the program.
    pub(crate) fn background(mut self) -> Outcome<Background> {
        self.command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let shown = self.shown();
        let child = self.command.spawn().map_err(Failure::during(format!("starting `{shown}`")))?;
        Ok(Background(child))
    }

    fn start(&mut self) -> Outcome<(Child, Watch)> {
        let shown = self.shown();
        let child = self.command.spawn().map_err(Failure::during(format!("starting `{shown}`")))?;
        let watch = Watch::over(child.id(), self.limit, shown);
        Ok((child, watch))
    }
}

impl Output {
    /// Returns the standard output of the program.
    ///
    /// # Errors
    /// Fails if the program returned a failure. The error contains the end of its output.
    pub(crate) fn success(&self) -> Outcome<&str> {
        if self.status.success() {
            return Ok(&self.stdout);
        }
        let text = if self.stderr.trim().is_empty() { &self.stdout } else { &self.stderr };
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n  ");
        Err(Failure::new(format!("`{}` failed ({}):\n  {last}", self.shown, self.status)))
    }
}

/// A program in the background. Dropping it kills the program and all its children.
pub(crate) struct Background(Child);

impl Background {
    /// Returns whether the program has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(Some(_)))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if !self.has_ended() {
            processes::end_with_children(self.0.id());
        }
        // Reaps the ended process. Errors are ignored, because there is no caller to report them to.
        self.0.wait().ok();
    }
}

/// Kills a program that exceeds its limit.
struct Watch {
    done: mpsc::Sender<()>,
    thread: JoinHandle<bool>,
    limit: Duration,
    shown: String,
}

impl Watch {
    fn over(id: u32, limit: Duration, shown: String) -> Self {
        let (done, ended) = mpsc::channel();
        let thread = thread::spawn(move || {
            let too_long = ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
            if too_long {
                processes::end_with_children(id);
            }
            too_long
        });
        Self { done, thread, limit, shown }
    }

    /// Waits for the program. It is reaped only after the watch has ended, so that its process ID is not reused before.
    fn wait(self, child: &mut Child) -> Outcome<ExitStatus> {
        while let Err(rustix::io::Errno::INTR) =
            waitid(WaitId::Pid(Pid::from_child(child)), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
        {}
        let ended = self.end();
        let status = child.wait()?;
        ended.map(|()| status)
    }

    fn end(self) -> Outcome {
        drop(self.done);
        match self.thread.join() {
            Ok(true) => {
                Err(Failure::new(format!("`{}` ran longer than {} s and was killed", self.shown, self.limit.as_secs())))
            }
            _ => Ok(()),
        }
    }
}

/// The two output streams of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stream {
    Output,
    Error,
}

/// The lines that were read from a pipe. Reading does not block.
struct Lines {
    pipe: PipeReader,
    bytes: Vec<u8>,
    is_open: bool,
}

impl Lines {
    fn of(pipe: PipeReader) -> Outcome<Self> {
        let flags = rustix::fs::fcntl_getfl(&pipe).map_err(std::io::Error::from)?;
        rustix::fs::fcntl_setfl(&pipe, flags | rustix::fs::OFlags::NONBLOCK).map_err(std::io::Error::from)?;
        Ok(Self { pipe, bytes: Vec::new(), is_open: true })
    }

    /// Reads available data, if there is any.
    fn read_some(&mut self) -> Outcome<bool> {
        let mut piece = [0; 1 << 14];
        match self.pipe.read(&mut piece) {
            Ok(0) => self.is_open = false,
            Ok(len) => {
                self.bytes.extend_from_slice(&piece[..len]);
                return Ok(true);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(false)
    }

    /// Calls `each` for the complete lines and, at the end of the pipe, for the last incomplete line.
    fn give(&mut self, mut each: impl FnMut(&str)) {
        let mut whole = self.bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if !self.is_open {
            whole = self.bytes.len();
        }
        for line in self.bytes[..whole].split_inclusive(|byte| *byte == b'\n') {
            each(String::from_utf8_lossy(line).trim_end());
        }
        self.bytes.drain(..whole);
    }
}

/// Waits until one of the open pipes has data or has ended.
fn wait_for(first: &Lines, second: &Lines) -> Outcome {
    let open = [first, second].into_iter().filter(|lines| lines.is_open);
    let mut wanted: Vec<_> = open.map(|lines| PollFd::new(&lines.pipe, PollFlags::IN)).collect();
    match rustix::event::poll(&mut wanted, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(std::io::Error::from(error).into()),
    }
}

fn gather(stream: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            // If the read fails, the output read so far is returned.
            stream.read_to_end(&mut bytes).ok();
        }
        bytes
    })
}

fn join(thread: JoinHandle<Vec<u8>>) -> String {
    String::from_utf8_lossy(&thread.join().unwrap_or_default()).into_owned()
}

/// Returns the path of the program with this name, if it is on the search path.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    // Debian installs `ip` in this directory, which is not on the search path of an ordinary user.
    places.push("/usr/sbin".into());
    places.into_iter().map(|directory| directory.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::{Program, Stream};

    #[test]
    fn streams_are_separate_and_error_output_keeps_its_order() {
        let script = "for i in 1 2 3; do echo started $i >&2; printf 'test %s ... ' $i; echo within >&2; echo ok; done";
        let mut lines = Vec::new();
        let ended = Program::new("sh")
            .args(["-c", &format!("{script}; printf open; exit 3")])
            .streams(|stream, line| lines.push((stream, line.to_owned())));
        assert_eq!(ended.expect("it ran").code(), Some(3));
        let of = |wanted| lines.iter().filter(move |(stream, _)| *stream == wanted).map(|(_, line)| line.as_str());
        let output: Vec<_> = of(Stream::Output).collect();
        assert_eq!(output, ["test 1 ... ok", "test 2 ... ok", "test 3 ... ok", "open"]);
        assert_eq!(of(Stream::Error).filter(|line| *line == "within").count(), 3);
        for i in 1..=3 {
            let place = |wanted: &str| lines.iter().position(|(_, line)| line == wanted).expect(wanted);
            assert!(place(&format!("started {i}")) < place(&format!("test {i} ... ok")));
        }
    }
}

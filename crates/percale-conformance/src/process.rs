//! Helper processes: the test program itself, started again in another role.
//!
//! A test program with helpers has a test `helper` that calls [`play`] with its roles. In a process that is not a
//! helper, that test does nothing. A helper and its test exchange lines. The helper uses [`print_line`] and [`ask`],
//! and the test uses [`Helper::receive_line`] and [`Helper::send_line`]. Helpers are killed when the thread that
//! started them ends. Dropping a [`Helper`] kills it by its process ID.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal};

/// The environment variable with the role of a helper.
const ROLE: &str = "PERCALE_ROLE";
/// The environment variable with the program, and its arguments, that runs programs for another processor (an emulator).
const RUNNER: &str = "PERCALE_RUNNER";
/// The prefix of the lines of a helper. Other lines on its standard output come from the test harness.
const MARK: &str = "@helper ";
/// How long a test waits for a line.
const LINE_TIMEOUT: Duration = Duration::from_secs(100);

/// Runs the role that this process was started for, if any, and exits.
pub fn play(roles: &[(&str, fn())]) {
    let Ok(role) = std::env::var(ROLE) else { return };
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).expect("a death signal");
    let (_, part) = roles.iter().find(|(name, _)| *name == role).unwrap_or_else(|| panic!("no role is named {role}"));
    let _watchdog = crate::watchdog::Watchdog::within(&role, Duration::from_secs(600));
    part();
    std::process::exit(0);
}

/// Copies a program to a file that is executed later. Another process makes the copy. If this process had the copy open
/// for writing, a child that another thread starts at the same time would inherit the descriptor, and the copy could
/// not be executed until the child closes it ("Text file busy").
///
/// # Errors
/// Fails if `cp` cannot be started or fails.
pub fn copy_program(from: &Path, to: &Path) -> std::io::Result<()> {
    let status = Command::new("cp").arg(from).arg(to).status()?;
    if status.success() { Ok(()) } else { Err(std::io::Error::other(format!("cp failed: {status}"))) }
}

/// Returns the command that runs a program that was built with this one, or a copy of it. Programs for another processor
/// are run by the program that the variable `PERCALE_RUNNER` names.
#[must_use]
pub fn command_of(program: &Path) -> Command {
    starting_with(runner(), program)
}

/// Returns the command that runs this program again.
///
/// # Panics
/// Panics if the path of this program is unknown.
#[must_use]
pub fn this_program() -> Command {
    command_of(&std::env::current_exe().expect("the program has a path"))
}

fn runner() -> Vec<String> {
    std::env::var(RUNNER).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// Returns the command that runs `program` by the program and the arguments in `words`, if there are any.
fn starting_with(words: Vec<String>, program: &Path) -> Command {
    let mut words = words.into_iter();
    let Some(first) = words.next() else { return Command::new(program) };
    let mut command = Command::new(first);
    command.args(words).arg(program);
    command
}

/// Returns the value of an environment variable that the test set for this helper.
///
/// # Panics
/// Panics if the variable is not set.
#[must_use]
pub fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("the test sets {name}"))
}

/// Sends a line to the test.
///
/// # Panics
/// Panics if the test has exited.
pub fn print_line(line: &str) {
    let mut out = std::io::stdout().lock();
    // The harness may have printed an incomplete line.
    writeln!(out, "\n{MARK}{line}").and_then(|()| out.flush()).expect("the test reads the output");
}

/// Waits for a line from the test.
#[must_use]
pub fn ask() -> String {
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line).unwrap_or(0) == 0 {
        std::process::exit(3); // The test has ended.
    }
    line.trim_end().to_owned()
}

/// A helper process.
#[derive(Debug)]
pub struct Helper {
    child: Child,
    /// The process ID of the helper. It differs from that of `child` if another program started the helper.
    pid: u32,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Helper {
    /// Starts this program in another role.
    ///
    /// # Panics
    /// Panics if it cannot be started.
    #[must_use]
    pub fn start(role: &str, variables: &[(&str, &str)]) -> Self {
        Self::through(&[], role, variables, |_| {})
    }

    /// Like [`start`](Self::start), with another program that starts the helper (`unshare`, `strace`), and with the
    /// command adjusted.
    ///
    /// # Panics
    /// Panics if it cannot be started.
    #[must_use]
    pub fn through(
        program: &[&str],
        role: &str,
        variables: &[(&str, &str)],
        adjust: impl FnOnce(&mut Command),
    ) -> Self {
        let own = std::env::current_exe().expect("the test program has a name");
        let words = program.iter().map(|word| (*word).to_owned()).chain(runner()).collect();
        Self::run(starting_with(words, &own), role, variables, adjust)
    }

    /// Like [`start`](Self::start), with a copy of this program, and with the command adjusted.
    ///
    /// # Panics
    /// Panics if it cannot be started.
    #[must_use]
    pub fn of_copy(program: &Path, role: &str, variables: &[(&str, &str)], adjust: impl FnOnce(&mut Command)) -> Self {
        Self::run(command_of(program), role, variables, adjust)
    }

    fn run(mut command: Command, role: &str, variables: &[(&str, &str)], adjust: impl FnOnce(&mut Command)) -> Self {
        command.args(["helper", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).envs(variables.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        adjust(&mut command);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?} in the role {role}: {error}"));
        let out = child.stdout.take().expect("the output is piped");
        let (sender, lines) = channel();
        let listen = move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Some(line) = line.strip_prefix(MARK)
                    && sender.send(line.to_owned()).is_err()
                {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("listener".into()).spawn(listen).expect("a thread to listen");
        Self { pid: child.id(), stdin: child.stdin.take(), child, lines }
    }

    /// Waits for the next line.
    ///
    /// # Panics
    /// Panics if the helper ends, or sends no line before the timeout.
    #[track_caller]
    pub fn receive_line(&mut self) -> String {
        match self.lines.recv_timeout(LINE_TIMEOUT * crate::watchdog::timeout_scale()) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("the helper {} sent no line", self.pid),
            Err(RecvTimeoutError::Disconnected) => panic!("the helper {} ended: {:?}", self.pid, self.child.wait()),
        }
    }

    /// Waits for the next line, for at most `limit`.
    ///
    /// # Errors
    /// Returns the exit status of the helper, or `None` if it still runs but has sent no line.
    pub fn receive_line_within(&mut self, limit: Duration) -> Result<String, Option<String>> {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => Err(None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Some(self.child.wait().map_or_else(|e| e.to_string(), |s| s.to_string())))
            }
        }
    }

    /// Returns the next line if it has arrived.
    pub fn try_receive_line(&mut self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// Sends a line to the helper.
    ///
    /// # Panics
    /// Panics if the helper has exited.
    #[track_caller]
    pub fn send_line(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("the helper's input is open");
        writeln!(stdin, "{line}").and_then(|()| stdin.flush()).expect("the helper listens");
    }

    /// Returns the process ID, in the PID namespace of the test.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// Panics if the helper has already exited.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).expect("a process id");
        rustix::process::kill_process(pid, signal).expect("the helper exists");
    }

    /// Kills the helper and waits until it has ended.
    pub fn kill(&mut self) {
        // The helper may already have ended, so an error is ignored.
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// Waits until the helper has ended successfully.
    ///
    /// # Panics
    /// Panics if it failed.
    #[track_caller]
    pub fn end(mut self) {
        self.stdin = None;
        let status = self.child.wait().expect("the helper's status");
        assert!(status.success(), "the helper {} failed: {status}", self.pid);
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Forks. The child runs `f` and exits immediately, without unwinding or running destructors. Returns the child's
/// process ID.
///
/// # Panics
/// Panics if no process can be created.
#[expect(unsafe_code, reason = "forks, which only tests do")]
pub fn fork(f: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child only runs `f`, which the caller has written for the child of a multithreaded process, and then
    // ends.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or(false);
        // SAFETY: the call ends this process and has no other effect.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    pid
}

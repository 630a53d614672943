//! Helper processes: the test program itself, started again in another role.
//!
//! A test program with helpers has a test `helper` that calls [`play`] with its roles; in a program that is no helper
//! it does nothing. A helper talks to its test by lines: [`say`] and [`ask`] on its side, [`Helper::hear`] and
//! [`Helper::tell`] on the test's. Helpers die with the thread that started them, and dropping a [`Helper`] kills it,
//! by its process id.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal};

/// Where a helper finds its role.
const ROLE: &str = "PERCALE_ROLE";
/// What the lines of a helper begin with; anything else on its standard output is the test harness's.
const MARK: &str = "@helper ";
/// How long a test waits for a line.
const PATIENCE: Duration = Duration::from_secs(100);

/// Plays the role that this process was started for, if any, and ends the process.
pub fn play(roles: &[(&str, fn())]) {
    let Ok(role) = std::env::var(ROLE) else { return };
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).expect("a death signal");
    let (_, part) = roles.iter().find(|(name, _)| *name == role).unwrap_or_else(|| panic!("no role is named {role}"));
    let _watchdog = crate::watchdog::Watchdog::within(&role, Duration::from_secs(600));
    part();
    std::process::exit(0);
}

/// Copies a program that is then run. Another process does it: if this one had the copy open for writing, a child that another thread starts
/// meanwhile would inherit the descriptor, and as long as the child has it the copy cannot be run ("Text file busy").
///
/// # Errors
/// If `cp` cannot be started, or fails.
pub fn copy_program(from: &Path, to: &Path) -> std::io::Result<()> {
    let status = Command::new("cp").arg(from).arg(to).status()?;
    if status.success() { Ok(()) } else { Err(std::io::Error::other(format!("cp failed: {status}"))) }
}

/// Returns the value of an environment variable that the test set for this helper.
///
/// # Panics
/// If it did not.
#[must_use]
pub fn told(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("the test gives {name}"))
}

/// Sends a line to the test.
///
/// # Panics
/// If the test has exited.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // The harness may have left a line open.
    writeln!(out, "\n{MARK}{line}").and_then(|()| out.flush()).expect("the test listens");
}

/// Waits for a line of the test.
#[must_use]
pub fn ask() -> String {
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line).unwrap_or(0) == 0 {
        std::process::exit(3); // The test is gone.
    }
    line.trim_end().to_owned()
}

/// A helper process.
#[derive(Debug)]
pub struct Helper {
    child: Child,
    /// The helper itself, where `child` is a program that started it.
    pid: u32,
    tell: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Helper {
    /// Starts this program in another role.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(role: &str, variables: &[(&str, &str)]) -> Self {
        Self::through(&[], role, variables, |_| {})
    }

    /// As [`start`](Self::start), by another program that runs it (`unshare`, `strace`), and with the command adjusted.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn through(
        program: &[&str],
        role: &str,
        variables: &[(&str, &str)],
        adjust: impl FnOnce(&mut Command),
    ) -> Self {
        let own = std::env::current_exe().expect("the test program has a name");
        let mut command = match program {
            [] => Command::new(own),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(own);
                command
            }
        };
        command.args(["helper", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).envs(variables.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        adjust(&mut command);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{program:?} in the role {role}: {error}"));
        let out = child.stdout.take().expect("its output is piped");
        let (heard, lines) = channel();
        let listen = move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Some(line) = line.strip_prefix(MARK)
                    && heard.send(line.to_owned()).is_err()
                {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("listener".into()).spawn(listen).expect("a thread to listen");
        Self { pid: child.id(), tell: child.stdin.take(), child, lines }
    }

    /// Waits for the next line.
    ///
    /// # Panics
    /// If the helper ends, or sends no line for long.
    #[track_caller]
    pub fn hear(&mut self) -> String {
        match self.lines.recv_timeout(PATIENCE * crate::watchdog::patience()) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("the helper {} says nothing", self.pid),
            Err(RecvTimeoutError::Disconnected) => panic!("the helper {} ended: {:?}", self.pid, self.child.wait()),
        }
    }

    /// Waits for the next line, at most for `limit`.
    ///
    /// # Errors
    /// How the helper ended, or `None` if it still runs but has sent no line.
    pub fn hear_within(&mut self, limit: Duration) -> Result<String, Option<String>> {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => Err(None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Some(self.child.wait().map_or_else(|e| e.to_string(), |s| s.to_string())))
            }
        }
    }

    /// The next line, if it is here.
    pub fn try_hear(&mut self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// Sends a line to the helper.
    ///
    /// # Panics
    /// If the helper has exited.
    #[track_caller]
    pub fn tell(&mut self, line: &str) {
        let tell = self.tell.as_mut().expect("the helper's input is open");
        writeln!(tell, "{line}").and_then(|()| tell.flush()).expect("the helper listens");
    }

    /// Its process id, as seen from here.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If the helper has already exited.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).expect("a process id");
        rustix::process::kill_process(pid, signal).expect("the helper is there");
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// Waits until it has ended successfully.
    ///
    /// # Panics
    /// If it failed.
    #[track_caller]
    pub fn end(mut self) {
        self.tell = None;
        let status = self.child.wait().expect("the helper's status");
        assert!(status.success(), "the helper {} failed: {status}", self.pid);
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Forks; the child runs `f` and ends at once, without unwinding or running destructors. Returns the child's process
/// id.
///
/// # Panics
/// If there can be no further process.
#[expect(unsafe_code, reason = "fork, which only tests want")]
pub fn fork(f: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child only runs `f`, which its caller wrote for a child of many threads, and then ends.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or(false);
        // SAFETY: ends this process and nothing else.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    pid
}

/// Whether a socket of this process listens at an address.
#[must_use]
pub fn listens_here(address: std::net::SocketAddr) -> bool {
    const LISTENS: &str = "0A";
    let port = format!(":{:04X}", address.port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let listening = table.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let here = words.get(1)?.ends_with(&port) && *words.get(3)? == LISTENS;
        here.then(|| format!("socket:[{}]", words.get(9).copied().unwrap_or_default()))
    });
    let sockets: Vec<String> = listening.collect();
    let ours = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let ours = ours.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    ours.into_iter().any(|link| sockets.iter().any(|socket| link.as_os_str() == socket.as_str()))
}

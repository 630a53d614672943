//! The processes that the tests start and communicate with: a helper, and clients of another user, in a separate
//! directory.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use pindown::monitor::bpf::loadable;

use crate::copied::copy_program;

pub(crate) const NOBODY: u32 = 65534;
/// The page size of the systems on which the kernel programs can be loaded.
pub(crate) const PAGE: usize = 4096;

/// Returns the program under test: another build of it if `PINDOWN_HELPER` contains a path.
pub(crate) fn program() -> PathBuf {
    std::env::var_os("PINDOWN_HELPER").map_or_else(|| env!("CARGO_BIN_EXE_pindown-helper").into(), PathBuf::from)
}

/// A directory for a socket, and for a copy of this program that user `nobody` may run.
pub(crate) struct SocketDirectory(pub(crate) PathBuf);

impl SocketDirectory {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let place = std::env::temp_dir().join(format!("pindown-{}-{number}", std::process::id()));
        fs::create_dir(&place).expect("a new directory");
        copy_program(&std::env::current_exe().expect("this program"), &place.join("client"));
        Self(place)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }
}

impl Drop for SocketDirectory {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// A process, which is killed when the value is dropped, and its output.
pub(crate) struct Talker {
    pub(crate) child: Child,
    says: BufReader<ChildStdout>,
    hears: ChildStdin,
}

impl Talker {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the process starts");
        let says = BufReader::new(child.stdout.take().expect("piped"));
        let hears = child.stdin.take().expect("piped");
        Self { child, says, hears }
    }

    /// Returns the next line for the test; "ended" if the process has ended.
    pub(crate) fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            if self.says.read_line(&mut line).expect("the output can be read") == 0 {
                return "ended".into();
            }
            // The test harness of the client also writes, and does not end its lines.
            if let Some((_, message)) = line.trim().split_once("> ") {
                return message.into();
            }
        }
    }

    /// Returns the next line unchanged.
    pub(crate) fn raw_line(&mut self) -> String {
        String::from_utf8(self.raw_bytes()).expect("the line is UTF-8")
    }

    /// Like [`Self::raw_line`], for a line that may not be UTF-8.
    pub(crate) fn raw_bytes(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        self.says.read_until(b'\n', &mut line).expect("the output can be read");
        line
    }

    /// Sends a request that takes some time.
    pub(crate) fn tell(&mut self, what: &str) {
        writeln!(self.hears, "{what}").expect("the process reads its input");
    }

    pub(crate) fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        self.line()
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Starts a helper that listens, unless the programs cannot be loaded.
pub(crate) fn helper(place: &SocketDirectory, arguments: &[&str]) -> Option<Talker> {
    if let Err(why) = loadable() {
        eprintln!("skipped (bpf): {why}");
        return None;
    }
    let mut helper = Talker::start(Command::new(program()).arg("--socket").arg(place.socket()).args(arguments));
    let line = helper.raw_line();
    assert!(line.starts_with("listening at"), "{line}");
    Some(helper)
}

/// Starts the test `client_process` as a process of user `nobody`.
pub(crate) fn client(place: &SocketDirectory, role: &str) -> Talker {
    Talker::start(command(place, role).uid(NOBODY).gid(NOBODY))
}

/// Like [`client`], for any user, and without starting the process.
pub(crate) fn command(place: &SocketDirectory, role: &str) -> Command {
    let mut command = Command::new(place.0.join("client"));
    command.args(["client::client_process", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("PINDOWN_ROLE", role).env("PINDOWN_SOCKET", place.socket());
    command
}

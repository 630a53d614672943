//! A served directory and its server, and copies to and from it.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use serde_json::Value;

use crate::common::{eventually, percale, text};

pub(crate) const TRANSPORTS: [&str; 2] = ["shm", "tcp"];

/// The size of copies that are interrupted. It is large enough for an interruption in the middle.
pub(crate) const LONG: usize = 160 << 20;

/// A directory with `served` and `local` below it. It is removed when the test ends.
pub(crate) struct TestDirectory(pub(crate) PathBuf);

impl TestDirectory {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("percale-copy-{}-{name}", std::process::id()));
        std::fs::create_dir_all(path.join("served")).unwrap();
        std::fs::create_dir_all(path.join("local")).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns a path as an argument.
    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().into()
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    pub(crate) fn mode(&self, name: &str, mode: u32) {
        std::fs::set_permissions(self.path(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    /// Returns the names of the files in a directory.
    pub(crate) fn names(&self, directory: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(directory)).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _removed: std::io::Result<()> = std::fs::remove_dir_all(&self.0);
    }
}

/// A server of a test's directory. It is killed when the test ends.
pub(crate) struct Serving {
    pub(crate) child: Child,
    pub(crate) address: String,
    pub(crate) lines: BufReader<ChildStdout>,
}

impl Serving {
    pub(crate) fn start(place: &TestDirectory, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_percale"));
        Self::of(command.args(["serve", &place.text("served"), "--listen", "127.0.0.1:0", "--json"]).args(more))
    }

    /// Starts a server with this command.
    pub(crate) fn of(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut serving = Self { child, address: String::new(), lines };
        let line = serving.line();
        assert_eq!(line["is"], "serving", "{line}");
        serving.address = line["address"].as_str().unwrap().into();
        serving
    }

    /// Reads the next line of the server.
    pub(crate) fn line(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line}"))
    }

    pub(crate) fn at(&self, path: &str) -> String {
        format!("{}/{path}", self.address)
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _killed: std::io::Result<()> = self.child.kill();
        let _ended: std::io::Result<std::process::ExitStatus> = self.child.wait();
    }
}

/// Returns bytes that differ between blocks.
pub(crate) fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

pub(crate) fn copy(from: &str, to: &str, more: &[&str]) -> Output {
    percale(&[&["cp", from, to, "--json"], more].concat())
}

/// Returns the result of a copy that must succeed.
#[track_caller]
pub(crate) fn copied(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the error message of a copy that must fail.
#[track_caller]
pub(crate) fn refused(output: &Output) -> String {
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(output.stdout.is_empty());
    error
}

#[track_caller]
pub(crate) fn identical(a: &Path, b: &Path) {
    // `assert_eq!` is not used, because it would print both files.
    assert!(std::fs::read(a).unwrap() == std::fs::read(b).unwrap(), "{} and {} differ", a.display(), b.display());
}

/// Returns the path of a file while it is incomplete.
pub(crate) fn part_of(target: &Path) -> PathBuf {
    target.parent().unwrap().join(".percale-parts").join(target.file_name().unwrap())
}

/// Starts a copy. Returns when a large part of it has arrived.
pub(crate) fn half_way(from: &str, to: &str, transport: &str, part: &Path) -> Child {
    let child = Command::new(env!("CARGO_BIN_EXE_percale"))
        .args(["cp", from, to, "--transport", transport])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Blocks are written as they arrive, but the first arrives before 15 later ones.
    eventually("the copy does not advance", || part.metadata().is_ok_and(|part| part.len() > 64 << 20));
    child
}

/// Returns the number of repetitions of an attempt: `times`, or ten times as many with PERCALE_LONG.
pub(crate) fn repeats(times: u32) -> u32 {
    if std::env::var_os("PERCALE_LONG").is_some() { times * 10 } else { times }
}

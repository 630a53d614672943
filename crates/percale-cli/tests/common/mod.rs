//! Functions shared by the tests of the command.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Runs the command until it exits.
pub(crate) fn percale(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_percale")).args(arguments).output().unwrap()
}

/// Converts the output of a command to text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Waits until a condition holds. Fails the test if it does not hold before a timeout.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns the child processes of `parent`.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let tasks = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    tasks.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Returns whether a process is still running.
pub(crate) fn is_running(pid: u32) -> bool {
    // A zombie has ended, but its parent has not yet waited for it.
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X'])))
}

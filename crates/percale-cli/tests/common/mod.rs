//! What the tests of the command share.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Runs the command to its end.
pub(crate) fn percale(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_percale")).args(arguments).output().unwrap()
}

/// What it printed.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Waits until something holds; fails the test if it never does.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

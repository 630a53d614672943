//! Attempts of hostile clients, and the service for a well-behaved client meanwhile.
//!
//! The attempts of each kind and the successes among them are counted. An attempt succeeds if a file is read or written
//! without permission, or if a well-behaved client is not served meanwhile. The results are printed as a table.
//! PERCALE_LONG=1 makes ten times as many attempts.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use percale::TransportKind;

use crate::place::{Serving, TestDirectory};

pub(crate) const KINDS: [TransportKind; 2] = [TransportKind::Shm, TransportKind::Tcp];

/// The time limit for a copy of a small file by a well-behaved client during an attack.
const HONEST: Duration = Duration::from_secs(20);

/// Counts attempts and successful attempts.
#[derive(Default)]
pub(crate) struct Attempts(Vec<(&'static str, u64, u64)>);

impl Attempts {
    /// Counts an attempt.
    pub(crate) fn count(&mut self, kind: &'static str, succeeded: bool) {
        let at = match self.0.iter().position(|(of, ..)| *of == kind) {
            Some(at) => at,
            None => {
                self.0.push((kind, 0, 0));
                self.0.len() - 1
            }
        };
        self.0[at].1 += 1;
        self.0[at].2 += u64::from(succeeded);
    }

    /// Prints the table, and fails the test if there were successful attempts.
    pub(crate) fn report(&self) {
        for (kind, attempts, successes) in &self.0 {
            println!("hostile client: {attempts:5} x {kind}: {successes} successes");
        }
        assert!(self.0.iter().all(|(.., successes)| *successes == 0), "see the table");
    }
}

/// Returns whether a well-behaved client gets a file before a timeout.
pub(crate) fn serves(serving: &Serving, place: &TestDirectory, name: &str) -> bool {
    let target = place.path("local/honest");
    let mut child = Command::new(env!("CARGO_BIN_EXE_percale"))
        .args(["cp", &serving.at(name), target.to_str().unwrap()])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            None if start.elapsed() > HONEST => {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(2)),
            status => break status,
        }
    };
    let same = std::fs::read(&target).ok() == std::fs::read(place.path(&format!("served/{name}"))).ok();
    std::fs::remove_file(&target).ok();
    status.is_some_and(|status| status.success()) && same
}

pub(crate) fn resident(child: &Child) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

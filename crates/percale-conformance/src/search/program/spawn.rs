//! Runs helpers and reads their reports.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::{Done, Fault, RunTransport, double};
use crate::process::this_program;

/// The results of a helper.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) runs: u64,
    pub(super) done: Done,
    /// The seed after the last one used.
    pub(super) next: u64,
    /// The seed of the run that found a fault, the step, and the fault.
    pub(super) fault: Option<(u64, usize, Fault)>,
}

/// The time without a report after which a run is considered to hang.
const SILENCE: Duration = Duration::from_secs(30);

/// The first words of a report of AddressSanitizer, and the number of its lines that are kept.
const SANITIZER: &str = "ERROR: AddressSanitizer";
const REPORTED: usize = 40;

/// The kinds of faults, under the names that the helper prints.
const KINDS: [&str; 32] = [
    "unknown context",
    "ended twice",
    "silent success reported",
    "failed without a cause",
    "message without identity",
    "bytes that were not sent",
    "arrived twice",
    "wrong endpoint",
    "wrong receive",
    "wrong length",
    "wrong tag",
    "wrong data",
    "wrong source",
    "wrong bytes",
    "wrong order",
    "written outside",
    "written after its end",
    "address not released",
    "refused without a cause",
    "no error",
    "reported elsewhere",
    "finished handle acted",
    "foreign buffer",
    "message lost",
    "shared receive never ended",
    "send never ended",
    "receive never ended",
    "never ended",
    "wakers kept",
    "reservations kept",
    "freed memory written",
    "panicked",
];

fn kind(name: &str) -> &'static str {
    if let Some(known) = KINDS.iter().find(|kind| **kind == name) {
        return known;
    }
    // This leaks only a few strings.
    Box::leak(name.to_owned().into_boxed_str())
}

/// Returns the command of a helper that executes runs for this time, starting with this seed.
pub(super) fn helper(transport: RunTransport, seed: u64, time: Duration) -> Command {
    let mut command = this_program();
    command.arg("child").arg(transport.name()).arg(seed.to_string()).arg(time.as_millis().to_string());
    if transport == RunTransport::Verbs {
        command.envs(double::path().map(|path| (double::LIBRARY, path)));
    }
    command
}

/// Executes runs for this time, starting with this seed. If steps are given, executes one run with only these steps.
pub(super) fn batch(transport: RunTransport, seed: u64, time: Duration, kept: Option<&str>) -> Batch {
    let mut command = helper(transport, seed, time);
    command.args(kept);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("a helper");
    let (lines, printed) = channel();
    let output = child.stdout.take().expect("the output is piped");
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    let errors = child.stderr.take().expect("the output is piped");
    let errors = std::thread::spawn(move || {
        let lines: Vec<String> = BufReader::new(errors).lines().map_while(Result::ok).collect();
        match lines.iter().position(|line| line.contains(SANITIZER)) {
            Some(first) => lines[first..].iter().take(REPORTED).map(|line| line.trim()).collect::<Vec<_>>().join(" "),
            None => lines[lines.len().saturating_sub(4)..].join(" "),
        }
    });
    let mut batch = Batch { runs: 0, done: Done::default(), next: seed, fault: None };
    let mut running = None;
    loop {
        let silence = if kept.is_some() { SILENCE / 2 } else { SILENCE };
        let line = match printed.recv_timeout(silence * crate::watchdog::timeout_scale()) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let text = format!("the run printed nothing for {} s", silence.as_secs());
                batch.fault = Some((running.unwrap_or(seed), 0, Fault::new("hang", text)));
                child.kill().unwrap_or_default();
                break;
            }
        };
        let (first, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match first {
            "s" => {
                running = rest.parse().ok();
                batch.next = running.unwrap_or(seed).wrapping_add(1);
            }
            "e" => {
                let mut numbers = rest.split(' ').map(|number| number.parse().unwrap_or(0));
                batch.runs += 1;
                batch.done.operations += numbers.next().unwrap_or(0);
                batch.done.lives += numbers.next().unwrap_or(0);
                running = None;
            }
            "f" => {
                let mut parts = rest.splitn(3, '|');
                let name = parts.next().unwrap_or_default();
                let step = parts.next().and_then(|step| step.parse().ok()).unwrap_or(0);
                let fault = Fault::new(kind(name), parts.next().unwrap_or_default());
                batch.fault = Some((running.unwrap_or(seed), step, fault));
            }
            _ => {}
        }
    }
    let status = child.wait().expect("a helper ends");
    reader.join().unwrap_or_default();
    let errors = errors.join().unwrap_or_default();
    if batch.fault.is_none() && status.code() != Some(0) {
        let name = match status.signal() {
            Some(signal) => format!("signal {signal}"),
            None if errors.contains(SANITIZER) => "address sanitizer".to_owned(),
            None => "ended early".to_owned(),
        };
        batch.fault = Some((running.unwrap_or(seed), 0, Fault::new(kind(&name), errors)));
    }
    batch
}

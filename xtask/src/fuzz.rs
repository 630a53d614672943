//! Runs the fuzz targets of fuzz/, which is a separate workspace because libFuzzer needs a C++ compiler.

use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use crate::program::{Program, on_path};
use crate::steps::{Findings, Steps};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The time for which each target runs
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Only these targets
    targets: Vec<String>,
}

/// The targets and the kind of input that each parses from arbitrary bytes.
const TARGETS: [(&str, &str); 6] = [
    ("ring", "what a peer may write to a shared ring"),
    ("stream", "what a peer may send on a TCP connection"),
    ("control", "what a peer may send about the connections of connected endpoints"),
    ("grants", "what a target may reply about its regions"),
    ("names", "what a peer may send for an application to parse: names of memory, raw keys"),
    ("handshake", "what a process may send before its handshake is complete"),
];

/// The number of output lines that are shown for a failed target.
const LINES: usize = 30;

pub(crate) fn run(place: &Repository, arguments: &Arguments) -> Outcome<bool> {
    if on_path("cargo-fuzz").is_none() {
        return Err(Failure::new(
            "cargo-fuzz is not installed: cargo install cargo-fuzz --locked (it needs a C++ compiler: g++)",
        ));
    }
    if let Some(name) = arguments.targets.iter().find(|name| !TARGETS.iter().any(|(target, _)| target == name)) {
        let known = TARGETS.map(|(target, _)| target).join(", ");
        return Err(Failure::new(format!("unknown fuzz target {name}; the targets are {known}")));
    }
    let is_chosen = |name: &str| arguments.targets.is_empty() || arguments.targets.iter().any(|its| its == name);
    let chosen: Vec<_> = TARGETS.into_iter().filter(|(name, _)| is_chosen(name)).collect();
    let mut steps = Steps::new(chosen.len());
    for (name, about) in chosen {
        steps.run(name, about, || fuzz(place, name, arguments.seconds));
    }
    Ok(steps.finish())
}

/// Builds and runs one target. Stable Rust has no sanitizers, so none is used. The code under test is safe or checks
/// every access, and the targets search for panics and overflows.
fn fuzz(place: &Repository, name: &str, seconds: u64) -> Outcome<Findings> {
    let artifacts = place.root.join("fuzz/artifacts").join(name);
    let before = inputs(&artifacts);
    // Arguments after `--` are passed to libFuzzer.
    let libfuzzer = [format!("-max_total_time={seconds}"), "-print_final_stats=1".into(), "-verbosity=0".into()];
    let program = Program::cargo(&place.root).args(["fuzz", "run", "-s", "none", name, "--"]).args(libfuzzer);
    let mut runs = "";
    let mut printed = Vec::new();
    let status = program.limit(Duration::from_secs(seconds + 20 * 60)).lines(|line| printed.push(line.to_owned()))?;
    for line in &printed {
        runs = line.strip_prefix("stat::number_of_executed_units:").map_or(runs, str::trim);
    }
    let fresh: Vec<_> = inputs(&artifacts).into_iter().filter(|path| !before.contains(path)).collect();
    if status.success() && fresh.is_empty() && !runs.is_empty() {
        return Ok(Findings::new(1, 0, format!("{runs} inputs")));
    }
    let first = printed.iter().position(|line| line.contains("panicked at"));
    let first = first.unwrap_or(printed.len().saturating_sub(LINES));
    printed.iter().skip(first).take(LINES).for_each(|line| println!("  {line}"));
    let kept = fresh.iter().map(|path| path.strip_prefix(&place.root).unwrap_or(path).display().to_string());
    let kept: Vec<String> = kept.collect();
    Ok(Findings::new(
        0,
        1,
        if kept.is_empty() { status.to_string() } else { format!("input kept: {}", kept.join(" ")) },
    ))
}

/// Returns the inputs for which a target failed. libFuzzer stores them.
fn inputs(directory: &PathBuf) -> Vec<PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

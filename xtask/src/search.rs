//! The search for faults: builds `percale-search` and runs it. What it does is said in percale-conformance, module `search`.

use crate::failure::{Failure, Outcome};
use crate::place::Place;
use crate::program::Program;
use crate::steps::Findings;
use serde_json::Value;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How long; fractions are allowed
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// The first seed; further runs count up from it. Without: one from the clock
    #[arg(long)]
    seed: Option<u64>,
    /// sim, loopback, shm, tcp or verbs, several separated by commas, or all
    #[arg(long, default_value = "all")]
    transport: String,
    /// The result as one JSON object
    #[arg(long)]
    json: bool,
}

/// The seed from which runs of every check count.
const FIXED: u64 = 1;

/// Minutes of a check on fixed seeds, and again on fresh ones.
const CHECK: f64 = 1.1;

pub(crate) fn run(place: &Place, arguments: &Arguments) -> Outcome<bool> {
    let Arguments { minutes, seed, transport, json } = arguments;
    let mut program = program(place, *minutes)?.args(["--transport", transport]);
    if let Some(seed) = seed {
        program = program.arg("--seed").arg(seed.to_string());
    }
    if *json {
        program = program.arg("--json");
    }
    let status = program.lines(|line| println!("{line}"))?;
    match status.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        _ => Err(Failure::new(format!("percale-search ended with {status}"))),
    }
}

/// A part of `cargo xtask test`: a minute on seeds that every check has, and a minute on others.
pub(crate) fn check(place: &Place) -> Outcome<Findings> {
    let (mut runs, mut failed, mut operations) = (0, 0, 0);
    let fixed = FIXED.to_string();
    for seed in [&["--seed", &fixed][..], &[]] {
        let mut printed = String::new();
        program(place, CHECK)?.arg("--json").args(seed).lines(|line| printed = line.to_owned())?;
        let found: Value = serde_json::from_str(&printed)?;
        let of = |part: &str| found[part].as_array().cloned().unwrap_or_default();
        for transport in of("transports") {
            runs += transport["runs"].as_u64().unwrap_or_default();
            operations += transport["operations"].as_u64().unwrap_or_default();
        }
        for fault in of("faults") {
            failed += 1;
            let text = |part: &str| fault[part].as_str().unwrap_or_default().to_owned();
            println!("  {} over {}, seed {}: {}", text("kind"), text("transport"), fault["seed"], text("text"));
        }
        of("left_out").iter().for_each(|known| println!("  left out: {}", known.as_str().unwrap_or_default()));
        println!("  seed {}", found["seed"]);
    }
    Ok(Findings::new(usize::try_from(runs).unwrap_or(usize::MAX), failed, format!("{operations} operations")))
}

/// The program, built, for so many minutes.
fn program(place: &Place, minutes: f64) -> Outcome<Program> {
    let build = ["build", "--quiet", "--profile", "search", "-p", "percale-conformance", "--bin", "percale-search"];
    place.cargo().args(build).passed()?;
    // What it runs over in the place of libibverbs; it looks for it beside itself.
    place.cargo().args(["build", "--quiet", "--profile", "search", "-p", "percale-verbs-double"]).passed()?;
    let program = Program::new(place.target.join("search").join("percale-search"));
    let limit = Duration::from_secs_f64(minutes.max(0.0) * 60.0 + 15.0 * 60.0);
    Ok(program.arg("--minutes").arg(minutes.to_string()).limit(limit))
}

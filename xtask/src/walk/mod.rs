//! `cargo xtask walk`: a C program (crates/percale-ofi/tests/walk) calls every entry of every table of the provider
//! with unusual but legal arguments. It closes objects in every order, at every threading level and API version. It
//! runs with the system's libfabric and with a newer one, under AddressSanitizer, UndefinedBehaviorSanitizer and
//! LeakSanitizer if they are installed.
//!
//! * [`build`]: the program and the instrumented provider
//! * [`found`]: the counts that the program prints

mod build;
mod found;

use crate::failure::{Failure, Outcome};
use crate::interop;
use crate::machine;
use crate::packages::{self, LIBFABRIC_HEADERS};
use crate::place::Repository;
use crate::program::Program;
use crate::steps::{Findings, Steps};
use build::Built;
use found::WalkFindings;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Every version at every level for every scenario, and more orders; without this option, each pair of a scenario
    /// and a level runs once
    #[arg(long)]
    all: bool,
    /// The first seed
    #[arg(long)]
    seed: Option<u64>,
    /// The number of closing orders for each case
    #[arg(long)]
    orders: Option<u64>,
    /// Only cases with this text in their names; entries that were never called are then not a failure
    #[arg(long)]
    case: Option<String>,
    /// The directory of another provider that is instrumented with AddressSanitizer
    #[arg(long, value_name = "DIRECTORY")]
    provider: Option<PathBuf>,
}

/// The time limit. The complete walk takes less, even on a busy machine. Its cases have their own limits.
const LIMIT: Duration = Duration::from_secs(60 * 60);

/// Leaks are errors, and the sanitizer reports crashes. Some of libfabric's own providers install signal handlers that
/// would hide crashes.
const ASAN: &str = "detect_leaks=1:handle_segv=2:handle_sigbus=2:handle_abort=2";

/// The numbers of closing orders of each case: in the complete walk, and in the part that every check runs.
const ALL_ORDERS: u64 = 12;
const SOME_ORDERS: u64 = 1;

pub(crate) fn run(place: &Repository, arguments: &Arguments) -> Outcome<bool> {
    let mut steps = Steps::new(1);
    steps.run("walk", "every call, every order of closing, under sanitizers", || walk(place, arguments));
    Ok(steps.finish())
}

/// Runs the part that every check runs (each scenario at each level), or the complete walk if `all` is set.
pub(crate) fn check(place: &Repository, all: bool) -> Outcome<Findings> {
    walk(place, &Arguments { all, seed: None, orders: None, case: None, provider: None })
}

fn walk(place: &Repository, arguments: &Arguments) -> Outcome<Findings> {
    let required = machine::is_ci();
    if let Err(why) = packages::ensure(&[LIBFABRIC_HEADERS]) {
        return if required { Err(why) } else { Ok(Findings::skipped(why.to_string())) };
    }
    let mut built = build::build(place, required)?;
    if let Some(provider) = &arguments.provider {
        built.provider.clone_from(provider);
    }
    let mut remarks = Vec::new();
    if let Some(why) = &built.unsanitized {
        remarks.push(format!("skipped: the sanitizers; only crashes and wrong results are detected: {why}"));
    }
    let mut all = on_libfabric(&built, arguments, "the system's libfabric", None)?;
    match interop::newer_libfabric(place) {
        Ok(directory) => all.add(on_libfabric(&built, arguments, "a newer libfabric", Some(&directory))?),
        Err(why) => remarks.push(format!("skipped: a newer libfabric: {why}")),
    }
    let failed = all.reports + if arguments.case.is_some() { 0 } else { all.missed };
    Ok(Findings::new(all.cases, failed, all.to_string()).with_remarks(remarks))
}

/// Runs the program with one libfabric.
fn on_libfabric(built: &Built, arguments: &Arguments, name: &str, directory: Option<&Path>) -> Outcome<WalkFindings> {
    let orders = arguments.orders.unwrap_or(if arguments.all { ALL_ORDERS } else { SOME_ORDERS });
    let mut program = Program::new(&built.program).args(["-n", &orders.to_string()]);
    if arguments.all {
        program = program.arg("-a");
    }
    if let Some(directory) = directory {
        program = program.arg("-l").arg(directory);
    }
    if let Some(seed) = arguments.seed {
        program = program.args(["-s", &seed.to_string()]);
    }
    if let Some(case) = &arguments.case {
        program = program.args(["-c", case]);
    }
    let program = program.env("FI_PROVIDER_PATH", &built.provider).env("FI_PROVIDER", "percale");
    let program = program.without("PERCALE_TRANSPORT").without("FI_PERCALE_TRANSPORT").without("FI_LOG_LEVEL");
    let program = program.env("ASAN_OPTIONS", ASAN).env("UBSAN_OPTIONS", "print_stacktrace=1");
    let mut found = None;
    let status = program.limit(LIMIT).lines(|line| {
        match line.parse::<WalkFindings>() {
            Ok(last) => found = Some(last),
            // Calls of the program, and reports of a sanitizer.
            Err(_) => println!("    {line}"),
        }
    })?;
    let mut found = found.ok_or_else(|| Failure::new(format!("the walk on {name} ended with {status}")))?;
    if !status.success() && found.reports + found.missed == 0 {
        found.reports += 1;
    }
    println!("  on {name}: {found}");
    Ok(found)
}

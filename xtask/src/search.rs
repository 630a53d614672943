//! The search for faults. Builds a program of percale-conformance and runs it. `percale-search` runs in one process
//! (module `search`), and `search-processes` in several (module `search_processes`).

use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use crate::program::Program;
use crate::sanitizer::{Reports, Sanitizer};
use crate::steps::Findings;
use serde_json::Value;
use std::fs;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The time limit in minutes; fractions are allowed
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// The first seed; further runs count up from it. The default is taken from the clock
    #[arg(long)]
    seed: Option<u64>,
    /// sim, loopback, shm, tcp or verbs (shm or tcp with --processes), several separated by commas, or all
    #[arg(long, default_value = "all")]
    transport: String,
    /// Searches with several processes, which are killed, stopped and forked, execute other programs, and get connections
    /// from unrelated processes
    #[arg(long)]
    processes: bool,
    /// Builds the search with AddressSanitizer
    #[arg(long)]
    asan: bool,
    /// Prints the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// The first seed of every check. The seeds of later runs are consecutive.
const FIXED: u64 = 1;

/// The durations in minutes of a check on fixed seeds and of a check on new seeds, in the short and in the long form.
const CHECK: (f64, f64) = (0.4, 30.0);

/// The library of the test double of libibverbs.
const DOUBLE: &str = "libpercale_verbs_double.so";

/// A program that searches.
#[derive(Clone, Copy)]
pub(crate) enum Searcher {
    Alone,
    Processes,
}

impl Searcher {
    pub(crate) const ALL: [Self; 2] = [Self::Alone, Self::Processes];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Alone => "percale-search",
            Self::Processes => "search-processes",
        }
    }

    /// Builds the program, with a sanitizer if one is given, and returns it with a limit of this many minutes.
    fn program(self, place: &Repository, minutes: f64, sanitizer: Option<Sanitizer>) -> Outcome<Program> {
        let plain = place.target.join("search");
        let plainly =
            |selected: &[&str]| place.cargo().args(["build", "--quiet", "--profile", "search"]).args(selected).passed();
        let selected = ["-p", "percale-conformance", "--bin", self.name()];
        let (program, directory) = if let Some(sanitizer) = sanitizer {
            let built = sanitizer.build(place, &selected)?;
            (sanitizer.program(&built, self.name()), built)
        } else {
            plainly(&selected)?;
            (Program::new(plain.join(self.name())), plain.clone())
        };
        if let Self::Alone = self {
            // The program searches for the test double of libibverbs in its own directory. The double is built without
            // the sanitizer: a library with it needs symbols that the program does not export.
            plainly(&["-p", "percale-verbs-double"])?;
            if directory != plain {
                fs::copy(plain.join(DOUBLE), directory.join(DOUBLE)).map_err(Failure::during(DOUBLE))?;
            }
        }
        Ok(limited(program, minutes))
    }
}

/// Makes a search run for this many minutes.
fn limited(program: Program, minutes: f64) -> Program {
    let limit = Duration::from_secs_f64(minutes.max(0.0) * 60.0 + 15.0 * 60.0);
    program.arg("--minutes").arg(minutes.to_string()).limit(limit)
}

pub(crate) fn run(place: &Repository, arguments: &Arguments) -> Outcome<bool> {
    let Arguments { minutes, seed, transport, processes, asan, json } = arguments;
    let searcher = if *processes { Searcher::Processes } else { Searcher::Alone };
    let mut program =
        searcher.program(place, *minutes, asan.then_some(Sanitizer::Address))?.args(["--transport", transport]);
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
        _ => Err(Failure::new(format!("{} ended with {status}", searcher.name()))),
    }
}

/// A step of `cargo xtask test`. Half of its time is spent on fixed seeds, and the other half on new seeds. The program
/// is the one that was built for the tests.
pub(crate) fn check(place: &Repository, all: bool) -> Outcome<Findings> {
    let program = place.tested()?.join(Searcher::Alone.name());
    place.cargo().args(["build", "--quiet", "--profile", "test", "-p", "percale-verbs-double"]).passed()?;
    let mut sums = Sums::default();
    let (fixed, minutes) = (FIXED.to_string(), if all { CHECK.1 } else { CHECK.0 });
    for seed in [&["--seed", &fixed][..], &[]] {
        sums.add(&found(limited(Program::new(&program), minutes).arg("--json").args(seed))?);
    }
    Ok(sums.findings())
}

/// Runs a search for some minutes with a sanitizer, which writes its reports to files.
pub(crate) fn instrumented(
    place: &Repository,
    searcher: Searcher,
    minutes: f64,
    sanitizer: Sanitizer,
    reports: &Reports,
) -> Outcome<Findings> {
    let mut sums = Sums::default();
    sums.add(&found(reports.of(searcher.program(place, minutes, Some(sanitizer))?.arg("--json")))?);
    Ok(sums.findings())
}

/// The results of searches.
#[derive(Default)]
struct Sums {
    runs: u64,
    faults: usize,
    operations: u64,
    lives: u64,
}

impl Sums {
    /// Adds the result of a program, and prints it.
    fn add(&mut self, found: &Value) {
        let of = |part: &str| found[part].as_array().cloned().unwrap_or_default();
        println!("  from seed {}", found["seed"]);
        for transport in of("transports") {
            let count = |what: &str| transport[what].as_u64().unwrap_or_default();
            self.runs += count("runs");
            self.operations += count("operations");
            self.lives += count("lives");
            println!(
                "    {:<9} {:>5} runs, {:>6} operations, {:>5} lifecycle events in {:.1} s",
                transport["transport"].as_str().unwrap_or_default(),
                count("runs"),
                count("operations"),
                count("lives"),
                transport["seconds"].as_f64().unwrap_or_default()
            );
        }
        for fault in of("faults") {
            self.faults += 1;
            let text = |part: &str| fault[part].as_str().unwrap_or_default().to_owned();
            println!("    {} over {}, seed {}: {}", text("kind"), text("transport"), fault["seed"], text("text"));
            if !text("again").is_empty() {
                println!("      again: {}; logs: {}", text("again"), text("logs"));
            }
        }
        of("left_out").iter().for_each(|known| println!("    left out: {}", known.as_str().unwrap_or_default()));
    }

    fn findings(&self) -> Findings {
        let Self { runs, faults, operations, lives } = self;
        let note = format!("{operations} operations, {lives} lifecycle events");
        Findings::new(usize::try_from(*runs).unwrap_or(usize::MAX), *faults, note)
    }
}

/// Returns the result of a program, which is the JSON object that it prints last.
fn found(program: Program) -> Outcome<Value> {
    let (shown, mut printed) = (program.shown(), String::new());
    let status = program.lines(|line| printed = line.to_owned())?;
    serde_json::from_str(&printed).map_err(|_| Failure::new(format!("`{shown}` ended with {status}: {printed}")))
}

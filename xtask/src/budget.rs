//! Instruction budgets: the cost of each operation is counted in instructions instead of time, so that a later change
//! cannot undo an earlier improvement without notice.
//!
//! The benchmarks of the library run each operation under valgrind with gungraun: `budget` has the operations of the
//! raw API, `safe_budget` has those of the safe API, and `raw_budget` has the same ones by the raw API. They run in two
//! builds. One is the build of the workspace (link-time optimization, one codegen unit). The other is the build of a
//! crate outside of it with the default release profile, as users build the library (`downstream`).
//! crates/percale/benches/budget.toml contains the ceilings, one `"name" = instructions` per line. The names of the
//! second build begin with "downstream ".
//! The check fails for a benchmark without a ceiling, a ceiling without a benchmark, and a count above its ceiling.

use crate::failure::{Failure, Outcome};
use crate::packages::{self, VALGRIND};
use crate::place::Repository;
use crate::program::{Program, on_path};
use crate::steps::{Findings, Steps};
use crate::table::table;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Sets the ceilings to the current counts plus 5 %; review the difference before you commit it
    #[arg(long)]
    update: bool,
    /// Prints the counts as one JSON object
    #[arg(long)]
    json: bool,
}

const BENCHMARKS: [&str; 3] = ["budget", "raw_budget", "safe_budget"];
const RUNNER: &str = "gungraun-runner";
const CEILINGS: &str = "crates/percale/benches/budget.toml";
/// The directory of the crate outside the workspace, and the target directory of its build.
const DOWNSTREAM: &str = "downstream";

/// The ratio of a new ceiling to its count. Compilers and C libraries differ slightly.
const ROOM: f64 = 1.05;

type Counts = BTreeMap<String, u64>;

/// The two builds of the library.
#[derive(Clone, Copy)]
enum Build {
    /// As part of the workspace.
    Workspace,
    /// As a dependency of a crate outside the workspace.
    Downstream,
}

impl Build {
    /// Returns the prefix of the names of this build's operations.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Workspace => "",
            Self::Downstream => "downstream ",
        }
    }

    /// Returns a cargo program for commands on the package of the benchmark, and the target directory.
    fn cargo(self, place: &Repository) -> (Program, PathBuf) {
        match self {
            Self::Workspace => (place.cargo(), place.target.clone()),
            Self::Downstream => {
                let target = place.target.join(DOWNSTREAM);
                let cargo = Program::cargo(&place.root.join(DOWNSTREAM)).env("CARGO_TARGET_DIR", &target);
                (cargo, target)
            }
        }
    }

    const fn package(self) -> &'static str {
        match self {
            Self::Workspace => "percale",
            Self::Downstream => "percale-downstream",
        }
    }
}

pub(crate) fn run(place: &Repository, arguments: &Arguments) -> Outcome<bool> {
    if arguments.update || arguments.json {
        packages::ensure(&[VALGRIND])?;
        let counts = count(place)?;
        if arguments.json {
            println!("{}", serde_json::to_string_pretty(&counts)?);
        }
        if arguments.update {
            write(place, &counts)?;
        }
        return Ok(true);
    }
    let mut steps = Steps::new(1);
    steps.run("budgets", "instructions per operation", || check(place));
    Ok(steps.finish())
}

/// Counts the instructions and compares them with the ceilings.
pub(crate) fn check(place: &Repository) -> Outcome<Findings> {
    let targets = place.targets("percale", "bench");
    if let Some(missing) = BENCHMARKS.iter().find(|name| !targets.contains(name)) {
        return Ok(Findings::skipped(format!("crates/percale has no benchmark named {missing}")));
    }
    if let Err(why) = packages::ensure(&[VALGRIND]) {
        return Ok(Findings::skipped(format!("valgrind is {why}")));
    }
    let counts = count(place)?;
    let text = fs::read_to_string(place.root.join(CEILINGS)).map_err(Failure::during(format!("reading {CEILINGS}")))?;
    let ceilings = parse(&text)?;
    let mut shown = table(["100 operations", "instructions", "ceiling", ""], 1);
    let mut failed = 0;
    let names: BTreeSet<&String> = counts.keys().chain(ceilings.keys()).collect();
    for &name in &names {
        let (count, ceiling) = (counts.get(name).copied(), ceilings.get(name).copied());
        let verdict = verdict(count, ceiling);
        failed += usize::from(verdict != "ok");
        let figure = |value: Option<u64>| value.map_or("–".to_owned(), |value| value.to_string());
        shown.add_row([name.clone(), figure(count), figure(ceiling), verdict.to_owned()]);
    }
    println!("{shown}");
    Ok(Findings::new(names.len() - failed, failed, ""))
}

fn verdict(count: Option<u64>, ceiling: Option<u64>) -> &'static str {
    match (count, ceiling) {
        (Some(count), Some(ceiling)) if count <= ceiling => "ok",
        (Some(_), Some(_)) => "above its ceiling",
        (Some(_), None) => "has no ceiling: cargo xtask budget --update",
        (None, _) => "was not counted",
    }
}

/// Runs the benchmark in both builds and returns the instructions of each operation. The builds run at the same time:
/// other work on the machine does not change the counts.
fn count(place: &Repository) -> Outcome<Counts> {
    let runner = runner(place)?;
    std::thread::scope(|scope| {
        let downstream = scope.spawn(|| count_build(place, Build::Downstream, &runner));
        let mut counts = count_build(place, Build::Workspace, &runner)?;
        counts.extend(downstream.join().map_err(|_| Failure::new("the thread of the second build panicked"))??);
        Ok(counts)
    })
}

fn count_build(place: &Repository, build: Build, runner: &Path) -> Outcome<Counts> {
    let (cargo, target) = build.cargo(place);
    // Removes earlier results, because gungraun would compare with them.
    fs::remove_dir_all(target.join("gungraun")).ok();
    let program = cargo.args(["bench", "--quiet", "-p", build.package()]);
    let program = program.args(BENCHMARKS.iter().flat_map(|name| ["--bench", name]));
    let program = program.args(["--", "--output-format=json"]).env("GUNGRAUN_RUNNER", runner);
    let output = program.env("PATH", path_with(runner)).limit(Duration::from_secs(20 * 60)).output()?;
    let counts: Counts = serde_json::Deserializer::from_str(output.success()?)
        .into_iter::<Value>()
        .map(|value| counted(&value?).ok_or_else(|| Failure::new("unexpected output of gungraun")))
        .map(|counted| counted.map(|(name, count)| (format!("{}{name}", build.prefix()), count)))
        .collect::<Outcome<_>>()?;
    if counts.is_empty() { Err(Failure::new("no operation was counted")) } else { Ok(counts) }
}

/// Returns the name (`ring::send.8`) and the instructions of one benchmark from gungraun's summary (version 7 of its
/// format).
fn counted(summary: &Value) -> Option<(String, u64)> {
    let path = summary["module_path"].as_str()?;
    let path = path.split_once("::").map_or(path, |(_file, path)| path);
    let name = match summary["id"].as_str() {
        Some(id) => format!("{path}.{id}"),
        None => path.to_owned(),
    };
    let profile = summary["profiles"].as_array()?.iter().find(|profile| profile["tool"] == "Callgrind")?;
    let instructions = profile["data"]["total"]["metrics"]["Ir"]["values"]["new"].as_u64()?;
    Some((name, instructions))
}

/// Installs the runner in the version of the library in Cargo.lock. It is built without optimization, because its speed
/// does not matter.
fn runner(place: &Repository) -> Outcome<PathBuf> {
    let lock = fs::read_to_string(place.root.join("Cargo.lock"))?;
    let version = version_in(&lock, "gungraun").ok_or_else(|| Failure::new("Cargo.lock does not contain gungraun"))?;
    let tools = place.target.join("tools");
    let runner = tools.join("bin").join(RUNNER);
    let says = |path: &PathBuf| Some(Program::new(path).arg("--version").output().ok()?.stdout.contains(&version));
    if let Some(found) = on_path(RUNNER).filter(|path| says(path) == Some(true)) {
        return Ok(found);
    }
    if !runner.is_file() || says(&runner) != Some(true) {
        eprintln!("  installing {RUNNER} {version} into the target directory");
        let program = place.cargo().args(["install", "--quiet", "--locked", "--force", "--debug", RUNNER]);
        program.args(["--version", &format!("={version}"), "--root"]).arg(&tools).passed()?;
    }
    Ok(runner)
}

fn version_in(lock: &str, package: &str) -> Option<String> {
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines().skip_while(|line| *line != name);
    Some(lines.nth(1)?.strip_prefix("version = \"")?.strip_suffix('"')?.to_owned())
}

fn path_with(runner: &Path) -> std::ffi::OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = runner.parent().map(PathBuf::from).into_iter().chain(std::env::split_paths(&path));
    std::env::join_paths(places).unwrap_or(path)
}

fn parse(text: &str) -> Outcome<Counts> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| entry(line).ok_or_else(|| Failure::new(format!("{CEILINGS}: `{line}`")))).collect()
}

fn entry(line: &str) -> Option<(String, u64)> {
    let (name, ceiling) = line.split_once('=')?;
    let name = name.trim().strip_prefix('"')?.strip_suffix('"')?;
    Some((name.to_owned(), ceiling.trim().replace('_', "").parse().ok()?))
}

fn write(place: &Repository, counts: &Counts) -> Outcome {
    let mut text =
        "# Instructions that 100 operations may take, at both ends: `cargo xtask budget --update` sets them.\n"
            .to_owned();
    for (name, count) in counts {
        let ceiling = (*count as f64 * ROOM).ceil() as u64;
        writeln!(text, "\"{name}\" = {ceiling}").map_err(Failure::during("writing ceilings"))?;
    }
    fs::write(place.root.join(CEILINGS), text)?;
    println!("wrote {CEILINGS}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{counted, parse, verdict, version_in};
    use serde_json::json;

    #[test]
    fn ceilings_are_read() {
        let read = parse("# why\n\"ring::send.8\" = 1_234\n\n\"poll\"=7\n").unwrap();
        assert_eq!(read["ring::send.8"], 1234);
        assert_eq!(read["poll"], 7);
        assert!(parse("ring = 7").is_err());
        assert!(parse("\"ring\" = seven").is_err());
    }

    #[test]
    fn a_summary_gives_its_count() {
        let summary = json!({"module_path": "budget::ring::send", "id": "8", "profiles": [{"tool": "Callgrind",
            "data": {"total": {"metrics": {"Ir": {"values": {"new": 60}}}}}}]});
        assert_eq!(counted(&summary), Some(("ring::send.8".to_owned(), 60)));
        assert_eq!(counted(&json!({"module_path": "x"})), None);
    }

    #[test]
    fn count_mismatch_is_not_ok() {
        assert_eq!(verdict(Some(5), Some(5)), "ok");
        assert_ne!(verdict(Some(6), Some(5)), "ok");
        assert_ne!(verdict(Some(6), None), "ok");
        assert_ne!(verdict(None, Some(5)), "ok");
    }

    #[test]
    fn version_is_read_from_the_lock_file() {
        let lock = "[[package]]\nname = \"gungraun-common\"\nversion = \"0.1.0\"\n\n\
            [[package]]\nname = \"gungraun\"\nversion = \"0.20.0\"\n";
        assert_eq!(version_in(lock, "gungraun").as_deref(), Some("0.20.0"));
        assert_eq!(version_in(lock, "other"), None);
    }
}

//! libfabric's own test programs (fabtests), which the user has built. They run over the provider, and over libfabric's
//! shm and tcp providers.
//!
//! * [`cases`]: the list of cases
//! * `run`: runs one case over one provider and evaluates its result
//!
//! The runner of fabtests kills all processes on the machine whose names begin like those of its own programs.
//! Therefore each case runs separately here, and is killed by its own process IDs.

mod cases;
mod run;

use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use crate::table::table;
use cases::{FabtestsCase, Generation};

use run::CaseEnding;
pub(super) use run::{FabtestsSite, Over};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Serialize)]
struct Row {
    case: String,
    /// The result over each provider.
    endings: BTreeMap<&'static str, CaseEnding>,
    /// The reason why the case did not pass over percale, or why it failed over another provider. A case that another
    /// provider excludes has not failed.
    why: String,
    /// The time of all runs.
    seconds: f64,
}

/// Finds the programs in `directory` and their libfabric.
pub(super) fn site(
    place: &Repository,
    provider: PathBuf,
    directory: &Path,
    libfabric: Option<&Path>,
) -> Outcome<FabtestsSite> {
    // Clients run in a different directory, so the paths must be absolute.
    let absolute = |path: &Path| path.canonicalize().map_err(Failure::during(path.display()));
    let programs = absolute(directory)?;
    let beside = programs.join("../lib");
    let found = libfabric.or_else(|| beside.join("libfabric.so.1").exists().then_some(&*beside));
    let libfabric = found.map(absolute).transpose()?;
    let printed = place.target.join("interop/fabtests");
    fs::create_dir_all(&printed)?;
    Ok(FabtestsSite { programs, libfabric, provider, printed })
}

/// Runs the cases that `wanted` selects over these providers, or over all providers.
pub(super) fn run(site: &FabtestsSite, over: &[Over], wanted: impl Fn(&str) -> bool, json: bool) -> Outcome<bool> {
    let over = if over.is_empty() { &Over::ALL } else { over };
    let is_newer = site.programs.join("fi_flood").exists();
    let generation = if is_newer { Generation::Newer } else { Generation::Older };
    let cases = generation.cases().into_iter().filter(|case| wanted(&case.line));
    let (cases, missing): (Vec<FabtestsCase>, Vec<FabtestsCase>) = cases.partition(|case| site.program(case).exists());
    for case in missing {
        eprintln!("  {} was not built", case.line);
    }
    if cases.is_empty() {
        return Err(Failure::new(format!("no such program of fabtests is in {}", site.programs.display())));
    }
    let mut rows = Vec::with_capacity(cases.len());
    for (number, case) in cases.iter().enumerate() {
        eprint!("  [{}/{}] {} ...", number + 1, cases.len(), case.line);
        let start = Instant::now();
        let mut endings = BTreeMap::new();
        for &provider in over {
            let ending = site.run(case, provider)?;
            eprint!(" {}: {ending},", provider.name());
            endings.insert(provider.name(), ending);
        }
        let seconds = start.elapsed().as_secs_f64();
        let why = why(over, &endings);
        eprintln!(" {seconds:.1} s {why}");
        rows.push(Row { case: case.line.clone(), endings, why, seconds });
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        show(&rows, over);
    }
    let failed = |row: &Row| {
        over.iter().any(|one| one.transport().is_some() && matches!(row.endings[one.name()], CaseEnding::Failed(_)))
    };
    Ok(!rows.iter().any(failed))
}

/// Returns why a case did not pass, for the first provider with a reason.
fn why(over: &[Over], endings: &BTreeMap<&'static str, CaseEnding>) -> String {
    let printed = over.iter().map(|one| (one, &endings[one.name()])).find(|(_, ending)| !ending.why().is_empty());
    printed.map(|(one, ending)| format!("{}: {}", one.name(), ending.why())).unwrap_or_default()
}

fn show(rows: &[Row], over: &[Over]) {
    let heads = ["case"].into_iter().chain(over.iter().map(|one| one.name())).chain(["why"]);
    let mut shown = table(heads, 1);
    for row in rows {
        let endings = over.iter().map(|one| row.endings[one.name()].to_string());
        let why: String = row.why.chars().take(100).collect();
        shown.add_row([row.case.clone()].into_iter().chain(endings).chain([why]));
    }
    println!("{shown}");
    for one in over {
        let mut counts = [0; 3];
        for row in rows {
            counts[match row.endings[one.name()] {
                CaseEnding::Passed => 0,
                CaseEnding::Failed(_) => 1,
                CaseEnding::Excluded(_) => 2,
            }] += 1;
        }
        println!("{}: {} passed, {} failed, {} excluded", one.name(), counts[0], counts[1], counts[2]);
    }
}

//! Requirement coverage: the requirements that are proved by tests that ran and passed.
//!
//! A requirement is proved if, in each cell that it applies to, a test that asserts it passed and none failed. A cell is
//! a transport and an API, such as `shm/rust`, see [`cell`](crate::requirements::cell). A requirement is excused if
//! docs/requirements.md has an exception, with the reason, for each cell in which it is not proved.

mod proofs;

use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use crate::requirements::cell::{self, CELLS, Cell};
use crate::requirements::{self, Marks, Requirements};
use crate::results::{Results, TestEnding};
use crate::table::table;
use proofs::{Proofs, State};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only this area (MSG, AV, ...)
    #[arg(long)]
    area: Option<String>,
    /// Lists the requirements that are neither proved nor excused, with the missing cells
    #[arg(long)]
    missing: bool,
    /// Lists the exceptions with their reasons
    #[arg(long)]
    excused: bool,
    /// Only this cell, such as shm/rust
    #[arg(long)]
    cell: Option<String>,
    /// Prints everything as one JSON object
    #[arg(long)]
    json: bool,
    /// Fails if a requirement is neither proved nor excused
    #[arg(long)]
    strict: bool,
}

/// Numbers of requirements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Totals {
    requirements: usize,
    proved: usize,
    excused: usize,
    missing: usize,
}

/// The requirements of an area or of the document.
#[derive(Clone, Debug, Default, Serialize)]
struct Counts {
    #[serde(flatten)]
    totals: Totals,
    /// The number of requirements that are proved in a cell, and of those that apply to it.
    cells: BTreeMap<Cell, (usize, usize)>,
}

#[derive(Serialize)]
struct Report<'a> {
    commit: &'a str,
    total: Counts,
    areas: BTreeMap<&'a str, Counts>,
    /// The requirements that are not proved, with the missing cells.
    missing: BTreeMap<&'a str, Vec<Cell>>,
    /// The exceptions.
    excused: BTreeMap<&'a str, &'a BTreeMap<Cell, String>>,
    /// The exceptions for cells in which the requirement is proved.
    needless: BTreeMap<&'a str, Vec<Cell>>,
    unknown: &'a BTreeMap<String, String>,
    skipped: usize,
}

pub(crate) fn run(place: &Repository, arguments: &Arguments) -> Outcome<bool> {
    let mut all = requirements::load(place)?;
    let results = Results::load(place)?
        .ok_or_else(|| Failure::new("there are no results: run `cargo xtask test --only tests,verbs,loom` first"))?;
    let proofs = Proofs::read(&all, &Marks::load(place)?, &results.tests);
    if let Some(area) = &arguments.area {
        let area = area.to_ascii_uppercase();
        all.retain(|_, requirement| requirement.area == area);
        if all.is_empty() {
            return Err(Failure::new(format!("docs/requirements.md has no area {area}")));
        }
    }
    if let Some(name) = &arguments.cell {
        let cell = cell::named(name)
            .ok_or_else(|| Failure::new(format!("there is no cell {name}; the cells are {}", CELLS.join(", "))))?;
        all.retain(|_, requirement| requirement.cells.contains(cell));
        for requirement in all.values_mut() {
            requirement.cells.retain(|its| *its == cell);
            requirement.excused.retain(|its, _| *its == cell);
        }
    }
    let report = report(&proofs, &all, &results);
    let is_good = report.unknown.is_empty()
        && report.needless.is_empty()
        && !(arguments.strict && report.total.totals.missing > 0);
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(is_good);
    }
    print(&report, &all, arguments);
    let here = crate::machine::commit(place);
    if results.commit != here || here.ends_with('+') {
        println!(
            "\nthe results are of {}, but the tree is at {here}: run `cargo xtask test` to update them",
            results.commit
        );
    }
    Ok(is_good)
}

fn report<'a>(proofs: &'a Proofs, all: &'a Requirements, results: &'a Results) -> Report<'a> {
    let (total, areas) = count(proofs, all);
    let cells_of = |of: &dyn Fn(&str, &requirements::Requirement) -> Vec<Cell>| {
        let each = all.iter().map(|(id, requirement)| (id.as_str(), of(id, requirement)));
        each.filter(|(_, cells)| !cells.is_empty()).collect::<BTreeMap<_, _>>()
    };
    let excused = all.iter().filter(|(_, requirement)| !requirement.excused.is_empty());
    Report {
        commit: &results.commit,
        total,
        areas,
        missing: cells_of(&|id, requirement| proofs.missing(id, requirement)),
        excused: excused.map(|(id, requirement)| (id.as_str(), &requirement.excused)).collect(),
        needless: cells_of(&|id, requirement| proofs.needless(id, requirement)),
        unknown: &proofs.unknown,
        skipped: results.tests.iter().filter(|test| test.ending == TestEnding::Skipped).count(),
    }
}

/// Counts the requirements of the document and of each area.
fn count<'a>(proofs: &Proofs, all: &'a Requirements) -> (Counts, BTreeMap<&'a str, Counts>) {
    let mut total = Counts::default();
    let mut areas: BTreeMap<&str, Counts> = BTreeMap::new();
    for (id, requirement) in all {
        let state = proofs.state(id, requirement);
        for counts in [&mut total, areas.entry(&requirement.area).or_default()] {
            counts.totals.requirements += 1;
            match state {
                State::Proved => counts.totals.proved += 1,
                State::Excused => counts.totals.excused += 1,
                State::Missing => counts.totals.missing += 1,
            }
            for cell in &requirement.cells {
                let (proved, applicable) = counts.cells.entry(cell).or_default();
                *proved += usize::from(proofs.proves(id, cell));
                *applicable += 1;
            }
        }
    }
    (total, areas)
}

fn print(report: &Report<'_>, all: &Requirements, arguments: &Arguments) {
    let columns: Vec<Cell> = CELLS.into_iter().filter(|cell| report.total.cells.contains_key(cell)).collect();
    // Each cell in two lines, so that the columns are narrow.
    let cells = columns.iter().map(|cell| cell.replace('/', "\n"));
    let titles = ["area", "proved", "excused", "missing"].map(str::to_owned).into_iter().chain(cells);
    let mut shown = table(titles, 1);
    let row = |name: &str, counts: &Counts| {
        let Totals { requirements, proved, excused, missing } = counts.totals;
        let numbers = [format!("{proved}/{requirements}"), excused.to_string(), missing.to_string()];
        let cells = columns.iter().map(|cell| {
            let of = counts.cells.get(cell);
            of.map_or_else(|| "–".to_owned(), |(proved, applicable)| format!("{proved}/{applicable}"))
        });
        std::iter::once(name.to_owned()).chain(numbers).chain(cells).collect::<Vec<_>>()
    };
    for (name, counts) in &report.areas {
        shown.add_row(row(name, counts));
    }
    if report.areas.len() > 1 {
        shown.add_row(row("all", &report.total));
    }
    println!("{shown}");
    let Totals { requirements, proved, excused, missing } = report.total.totals;
    println!(
        "\n{requirements} requirements: {proved} proved in every cell that they apply to, {excused} excused by an \
         exception, {missing} not proved; {} tests were skipped",
        report.skipped
    );
    if arguments.missing {
        for (id, cells) in &report.missing {
            println!("  {id} in {}: {}", cells.join(", "), all[*id].text);
        }
    }
    if arguments.excused {
        for (id, excused) in &report.excused {
            excused.iter().for_each(|(cell, reason)| println!("  {id} in {cell}: {reason}"));
        }
    }
    for (id, cells) in &report.needless {
        println!("{id} is proved in {}: remove its exception from docs/requirements.md", cells.join(", "));
    }
    for (id, test) in report.unknown {
        println!("{test} names {id}, which docs/requirements.md does not contain");
    }
}

#[cfg(test)]
mod tests {
    use super::{Totals, count};
    use crate::coverage::proofs::Proofs;
    use crate::requirements::{Marks, Requirement, Requirements};
    use crate::results::{TestEnding, TestResult};

    #[test]
    fn requirements_are_counted_by_state_and_by_cell() {
        let cells = ["shm/rust", "tcp/rust"];
        let all = Requirements::from([
            ("MSG-001".to_owned(), Requirement::for_test(&cells, &[])),
            ("MSG-002".to_owned(), Requirement::for_test(&cells, &["tcp/rust"])),
            ("MSG-003".to_owned(), Requirement::for_test(&["shm/rust"], &[])),
        ]);
        let marks = Marks::for_test(&[("a", &["MSG-001", "MSG-002", "MSG-003"])]);
        let tests =
            [TestResult::new("tests", "conformance (tests/conformance.rs)", "shm::rust::a", TestEnding::Passed)];
        let (total, areas) = count(&Proofs::read(&all, &marks, &tests), &all);
        assert_eq!(total.totals, Totals { requirements: 3, proved: 1, excused: 1, missing: 1 });
        assert_eq!((total.cells["shm/rust"], total.cells["tcp/rust"]), ((3, 3), (0, 2)));
        assert_eq!(areas["MSG"].totals, total.totals);
    }
}

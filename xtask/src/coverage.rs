//! Requirement coverage: the requirements that are proved by tests that ran and passed.
//!
//! A requirement is proved in one cell of the table if a test in that cell with its mark passed and no such test
//! failed. A cell is a transport and an API (`shm/rust`), which are read from the test's module path. A test without a
//! transport in its path proves its requirement in general, which the column `any` counts. The column `proved` counts
//! the requirements that are proved in any cell.

use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use crate::requirements::{self, Marks, Requirements, TRANSPORTS};
use crate::results::{Results, TestEnding, TestResult};
use crate::table::table;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only this area (MSG, AV, ...)
    #[arg(long)]
    area: Option<String>,
    /// Lists the requirements that are not proved
    #[arg(long)]
    missing: bool,
    /// With --missing: only the requirements that are not proved in this cell, such as shm/rust
    #[arg(long, requires = "missing")]
    cell: Option<String>,
    /// Prints everything as one JSON object
    #[arg(long)]
    json: bool,
}

const ANY: &str = "any";
const APIS: [&str; 2] = ["rust", "c"];

/// The test results of one cell: the requirements with a passed test and those with a failed test.
#[derive(Default)]
struct Cell {
    passed: BTreeSet<String>,
    failed: BTreeSet<String>,
}

impl Cell {
    fn proves(&self, id: &str) -> bool {
        self.passed.contains(id) && !self.failed.contains(id)
    }
}

/// The requirements and the results that were read.
struct Proofs {
    cells: BTreeMap<String, Cell>,
    /// Marks that are not in the document, each with a test that has the mark.
    unknown: BTreeMap<String, String>,
}

#[derive(Serialize)]
struct Count {
    proved: usize,
    total: usize,
}

#[derive(Serialize)]
struct Report<'a> {
    commit: &'a str,
    areas: BTreeMap<&'a str, BTreeMap<&'a str, Count>>,
    missing: Vec<&'a str>,
    unknown: &'a BTreeMap<String, String>,
}

pub(crate) fn run(place: &Repository, arguments: &Arguments) -> Outcome<bool> {
    let mut all = requirements::load(place)?;
    let results = Results::load(place)?
        .ok_or_else(|| Failure::new("there are no results: run `cargo xtask test --only tests` first"))?;
    let proofs = Proofs::read(&all, &Marks::load(place)?, &results.tests);
    if let Some(area) = &arguments.area {
        let area = area.to_ascii_uppercase();
        all.retain(|_, requirement| requirement.area == area);
        if all.is_empty() {
            return Err(Failure::new(format!("docs/requirements.md has no area {area}")));
        }
    }
    let missing = proofs.missing(&all, arguments.cell.as_deref())?;
    if arguments.json {
        let areas = proofs.count(&all);
        let report = Report { commit: &results.commit, areas, missing, unknown: &proofs.unknown };
        println!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(proofs.unknown.is_empty());
    }
    print_table(&proofs, &all);
    if arguments.missing {
        println!("\nnot proved{}:", arguments.cell.iter().map(|cell| format!(" in {cell}")).collect::<String>());
        missing.iter().for_each(|id| println!("  {id} {}", all[*id].text));
    }
    let here = crate::machine::commit(place);
    if results.commit != here || here.ends_with('+') {
        println!(
            "\nthe results are of {}, but the tree is at {here}: run `cargo xtask test` to update them",
            results.commit
        );
    }
    for (id, test) in &proofs.unknown {
        println!("\n{test} is marked {id}, which docs/requirements.md does not contain");
    }
    Ok(proofs.unknown.is_empty())
}

impl Proofs {
    fn read(all: &Requirements, marks: &Marks, tests: &[TestResult]) -> Self {
        let mut proofs = Self { cells: BTreeMap::from([(ANY.to_owned(), Cell::default())]), unknown: BTreeMap::new() };
        for test in tests {
            // The name of a documentation test has more words after its module: `refused::name (line 5) - compile
            // fail`.
            let path = test.name.rsplit("::").next().unwrap_or_default();
            let function = path.split(' ').next().unwrap_or_default();
            for id in marks.of(function).iter().cloned() {
                if !all.contains_key(&id) {
                    proofs.unknown.insert(id, format!("{}: {}", test.program, test.name));
                    continue;
                }
                let cell = proofs.cells.entry(cell_of(&test.name)).or_default();
                match test.ending {
                    TestEnding::Passed => cell.passed.insert(id),
                    TestEnding::Failed => cell.failed.insert(id),
                    TestEnding::Ignored | TestEnding::Skipped => continue,
                };
            }
        }
        proofs
    }

    /// Returns whether a requirement is proved in some cell and failed in no cell.
    fn proves(&self, id: &str) -> bool {
        self.cells.values().any(|cell| cell.proves(id)) && !self.cells.values().any(|cell| cell.failed.contains(id))
    }

    fn missing<'a>(&self, all: &'a Requirements, cell: Option<&str>) -> Outcome<Vec<&'a str>> {
        let ids = all.keys().map(String::as_str);
        let Some(name) = cell else {
            return Ok(ids.filter(|id| !self.proves(id)).collect());
        };
        let cell = self.cells.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.cells.keys().map(String::as_str).collect();
            Failure::new(format!("no test ran in cell {name}; cells with tests: {}", known.join(", ")))
        })?;
        Ok(ids.filter(|id| is_counted(all, id, name) && !cell.proves(id)).collect())
    }

    /// Returns the counts by area and column. The columns are the cells, and `proved` for all cells together.
    fn count<'a>(&'a self, all: &'a Requirements) -> BTreeMap<&'a str, BTreeMap<&'a str, Count>> {
        let mut areas: BTreeMap<&str, BTreeMap<&str, Count>> = BTreeMap::new();
        for (id, requirement) in all {
            let area = areas.entry(&requirement.area).or_default();
            let mut add = |column, proved: bool| {
                let count = area.entry(column).or_insert(Count { proved: 0, total: 0 });
                count.proved += usize::from(proved);
                count.total += 1;
            };
            add("proved", self.proves(id));
            for (name, cell) in self.cells.iter().filter(|(name, _)| is_counted(all, id, name)) {
                add(name, cell.proves(id));
            }
        }
        areas
    }
}

/// Returns whether a requirement applies to the transport of a cell.
fn is_counted(all: &Requirements, id: &str, cell: &str) -> bool {
    let transport = cell.split('/').next().unwrap_or_default();
    cell == ANY || all[id].is_about(transport)
}

/// Returns the cell of a test: the first transport and the first API in its path. Tests of this workspace are written
/// in Rust, so a path with a transport but no API counts for the Rust API.
fn cell_of(path: &str) -> String {
    let modules = || path.split("::").take(path.matches("::").count());
    let Some(transport) = modules().find(|module| TRANSPORTS.contains(module)) else { return ANY.to_owned() };
    let api = modules().find(|module| APIS.contains(module)).unwrap_or(APIS[0]);
    format!("{transport}/{api}")
}

fn print_table(proofs: &Proofs, all: &Requirements) {
    let cells: Vec<&str> = proofs.cells.keys().map(String::as_str).collect();
    let columns = || std::iter::once("proved").chain(cells.iter().copied());
    let mut shown = table(std::iter::once("area").chain(columns()), 1);
    let areas = proofs.count(all);
    let row = |name: &str, of: &dyn Fn(&str) -> (usize, usize)| {
        let counts = columns().map(|column| match of(column) {
            (_, 0) => "–".to_owned(),
            (proved, total) => format!("{proved}/{total}"),
        });
        std::iter::once(name.to_owned()).chain(counts).collect::<Vec<_>>()
    };
    for (name, area) in &areas {
        shown.add_row(row(name, &|column| area.get(column).map_or((0, 0), |count| (count.proved, count.total))));
    }
    if areas.len() > 1 {
        shown.add_row(row("all", &|column| {
            let counts = areas.values().filter_map(|area| area.get(column));
            counts.fold((0, 0), |(proved, total), count| (proved + count.proved, total + count.total))
        }));
    }
    println!("{shown}");
}

#[cfg(test)]
mod tests {
    use super::{Proofs, cell_of};
    use crate::requirements::{Marks, Requirements};
    use crate::results::{TestEnding, TestResult};

    fn test(name: &str, ending: TestEnding) -> TestResult {
        TestResult { step: "tests".into(), program: "conformance".into(), name: name.into(), ending, because: None }
    }

    fn document() -> Requirements {
        let requirement = |transports: &[&str]| crate::requirements::Requirement::for_test("MSG", transports);
        Requirements::from([
            ("MSG-001".to_owned(), requirement(&[])),
            ("MSG-002".to_owned(), requirement(&["shm"])),
            ("MSG-003".to_owned(), requirement(&[])),
        ])
    }

    #[test]
    fn test_path_determines_its_cell() {
        assert_eq!(cell_of("conformance::shm::rust::x"), "shm/rust");
        assert_eq!(cell_of("tcp::c::x"), "tcp/c");
        assert_eq!(cell_of("transport::shm::ring::tests::x"), "shm/rust");
        assert_eq!(cell_of("matching::tests::x"), "any");
        assert_eq!(cell_of("shm"), "any");
    }

    #[test]
    fn requirement_needs_a_pass_and_no_failure() {
        let all = document();
        let marks = Marks::for_test(&[("a", &["MSG-001"]), ("b", &["MSG-002", "MSG-003"]), ("c", &["MSG-003"])]);
        let proofs = Proofs::read(
            &all,
            &marks,
            &[
                test("shm::rust::a", TestEnding::Passed),
                test("tcp::rust::a", TestEnding::Ignored),
                test("shm::rust::b", TestEnding::Passed),
                test("shm::rust::c", TestEnding::Failed),
            ],
        );
        assert_eq!(proofs.missing(&all, None).unwrap(), ["MSG-003"]);
        assert_eq!(proofs.missing(&all, Some("shm/rust")).unwrap(), ["MSG-003"]);
        assert_eq!(proofs.missing(&all, Some("tcp/rust")).unwrap(), ["MSG-001", "MSG-003"]);
        assert!(proofs.missing(&all, Some("sim/rust")).is_err());
        let count = &proofs.count(&all)["MSG"];
        assert_eq!((count["proved"].proved, count["proved"].total), (2, 3));
        assert_eq!((count["tcp/rust"].proved, count["tcp/rust"].total), (0, 2));
    }

    #[test]
    fn an_unknown_mark_is_reported() {
        let proofs = Proofs::read(
            &document(),
            &Marks::for_test(&[("x", &["MSG-999"])]),
            &[test("shm::x", TestEnding::Passed), test("shm::sends_100_messages", TestEnding::Passed)],
        );
        assert_eq!(proofs.unknown.keys().collect::<Vec<_>>(), ["MSG-999"]);
    }
}

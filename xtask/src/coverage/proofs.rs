//! The results of tests, by requirement and cell.

use crate::requirements::cell::{self, ANY, CELLS, Cell};
use crate::requirements::{Marks, Requirement, Requirements};
use crate::results::{TestEnding, TestResult};
use std::collections::{BTreeMap, BTreeSet};

/// Where a requirement passed and failed.
#[derive(Debug, Default)]
struct Outcomes {
    passed: BTreeSet<Cell>,
    failed: BTreeSet<Cell>,
}

/// The proofs of all requirements.
#[derive(Debug, Default)]
pub(super) struct Proofs {
    outcomes: BTreeMap<String, Outcomes>,
    /// IDs that the document does not contain, each with a test that names it.
    pub(super) unknown: BTreeMap<String, String>,
}

/// The state of a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is proved in each cell that it applies to.
    Proved,
    /// It is proved in each cell that it applies to, except those with a written exception.
    Excused,
    /// A cell is missing, or a test failed.
    Missing,
}

impl Proofs {
    pub(super) fn read(all: &Requirements, marks: &Marks, tests: &[TestResult]) -> Self {
        let mut proofs = Self::default();
        for test in tests {
            // The name of a documentation test has more words after its module: `refused::name (line 5) - compile
            // fail`.
            let path = test.name.rsplit("::").next().unwrap_or_default();
            let function = path.split(' ').next().unwrap_or_default();
            let passed = match test.ending {
                TestEnding::Passed => Some(true),
                TestEnding::Failed => Some(false),
                TestEnding::Ignored | TestEnding::Skipped | TestEnding::Elsewhere => None,
            };
            let cell = cell::of_test(&test.program, &test.name);
            for id in passed.iter().flat_map(|_| marks.of(function)) {
                proofs.add(all, test, id, cell, passed == Some(true));
            }
            for (claims, passed) in [(&test.proved, true), (&test.failed, false)] {
                for (cell, ids) in claims {
                    let cell = cell::named(cell).unwrap_or(ANY);
                    ids.iter().for_each(|id| proofs.add(all, test, id, cell, passed));
                }
            }
        }
        proofs
    }

    fn add(&mut self, all: &Requirements, test: &TestResult, id: &str, cell: Cell, passed: bool) {
        if !all.contains_key(id) {
            self.unknown.insert(id.to_owned(), format!("{}: {}", test.program, test.name));
            return;
        }
        let outcomes = self.outcomes.entry(id.to_owned()).or_default();
        let cells = if passed { &mut outcomes.passed } else { &mut outcomes.failed };
        cells.insert(cell);
    }

    /// Returns whether a requirement is proved in a cell: a test passed there, and none failed. The cell `any` includes
    /// all others.
    pub(super) fn proves(&self, id: &str, cell: Cell) -> bool {
        let Some(Outcomes { passed, failed }) = self.outcomes.get(id) else { return false };
        if cell == ANY {
            return !passed.is_empty() && failed.is_empty();
        }
        passed.contains(cell) && !failed.contains(cell)
    }

    /// Returns the cells in which a requirement is neither proved nor excused, and cells to which it does not apply but
    /// in which a test failed.
    pub(super) fn missing(&self, id: &str, requirement: &Requirement) -> Vec<Cell> {
        let failed = |cell: Cell| self.outcomes.get(id).is_some_and(|outcomes| outcomes.failed.contains(cell));
        let is_missing = |cell: &Cell| {
            let applies = requirement.cells.contains(cell) && !requirement.excused.contains_key(cell);
            (applies && !self.proves(id, cell)) || failed(*cell)
        };
        CELLS.into_iter().filter(is_missing).collect()
    }

    /// Returns the cells of a requirement's exceptions in which it is proved.
    pub(super) fn needless(&self, id: &str, requirement: &Requirement) -> Vec<Cell> {
        requirement.excused.keys().copied().filter(|cell| self.proves(id, cell)).collect()
    }

    pub(super) fn state(&self, id: &str, requirement: &Requirement) -> State {
        if !self.missing(id, requirement).is_empty() {
            return State::Missing;
        }
        if requirement.excused.is_empty() { State::Proved } else { State::Excused }
    }
}

#[cfg(test)]
mod tests {
    use super::{Proofs, State};
    use crate::requirements::{Marks, Requirement, Requirements};
    use crate::results::{TestEnding, TestResult};

    fn test(program: &str, name: &str, ending: TestEnding) -> TestResult {
        TestResult::new("tests", program, name, ending)
    }

    const CONFORMANCE: &str = "conformance (tests/conformance.rs)";

    fn document() -> Requirements {
        let both = ["shm/rust", "tcp/rust"];
        Requirements::from([
            ("MSG-001".to_owned(), Requirement::for_test(&both, &[])),
            ("MSG-002".to_owned(), Requirement::for_test(&both, &["tcp/rust"])),
            ("MSG-003".to_owned(), Requirement::for_test(&["any"], &[])),
        ])
    }

    fn state(proofs: &Proofs, id: &str) -> State {
        proofs.state(id, &document()[id])
    }

    #[test]
    fn requirement_needs_a_pass_in_each_cell() {
        let marks = Marks::for_test(&[("a", &["MSG-001", "MSG-002", "MSG-003"])]);
        let mut tests = vec![test(CONFORMANCE, "shm::rust::a", TestEnding::Passed)];
        let proofs = Proofs::read(&document(), &marks, &tests);
        assert_eq!(proofs.missing("MSG-001", &document()["MSG-001"]), ["tcp/rust"]);
        assert_eq!((state(&proofs, "MSG-002"), state(&proofs, "MSG-003")), (State::Excused, State::Proved));
        tests.push(test(CONFORMANCE, "tcp::rust::a", TestEnding::Passed));
        let proofs = Proofs::read(&document(), &marks, &tests);
        assert_eq!(state(&proofs, "MSG-001"), State::Proved);
        assert_eq!(proofs.needless("MSG-002", &document()["MSG-002"]), ["tcp/rust"]);
    }

    #[test]
    fn failed_test_disproves_its_requirements() {
        let marks = Marks::for_test(&[("a", &["MSG-003"]), ("b", &["MSG-003"])]);
        let tests = [
            test(CONFORMANCE, "shm::rust::a", TestEnding::Passed),
            test(CONFORMANCE, "sim::rust::b", TestEnding::Failed),
        ];
        let proofs = Proofs::read(&document(), &marks, &tests);
        assert_eq!(proofs.missing("MSG-003", &document()["MSG-003"]), ["sim/rust", "any"]);
    }

    #[test]
    fn unit_tests_and_skipped_tests_prove_nothing_in_a_cell() {
        let marks = Marks::for_test(&[("a", &["MSG-001", "MSG-003"])]);
        let tests = [
            test("percale_transport (src/lib.rs)", "shm::a", TestEnding::Passed),
            test(CONFORMANCE, "tcp::rust::a", TestEnding::Skipped),
        ];
        let proofs = Proofs::read(&document(), &marks, &tests);
        assert_eq!(proofs.missing("MSG-001", &document()["MSG-001"]), ["shm/rust", "tcp/rust"]);
        assert_eq!(state(&proofs, "MSG-003"), State::Proved);
    }

    #[test]
    fn printed_requirements_count_in_the_printed_cell() {
        let mut every = test("every (tests/every.rs)", "loopback::c::x", TestEnding::Passed);
        let ids = |ids: &[&str]| ids.iter().map(|&id| id.to_owned()).collect();
        every.proved.insert("shm/rust".to_owned(), ids(&["MSG-001", "MSG-009"]));
        every.failed.insert("tcp/rust".to_owned(), ids(&["MSG-001"]));
        let proofs = Proofs::read(&document(), &Marks::for_test(&[]), &[every]);
        assert_eq!(proofs.missing("MSG-001", &document()["MSG-001"]), ["tcp/rust"]);
        assert_eq!(proofs.unknown.keys().collect::<Vec<_>>(), ["MSG-009"]);
    }
}

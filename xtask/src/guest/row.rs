//! The result of a program of the list, as a row of the printed table.

use serde::Serialize;

/// The result of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    Passed,
    Failed,
    /// The guest lacks a feature that the program tests.
    Skipped,
    /// The guest crashed, or the time limit was reached.
    NoResult,
}

impl Verdict {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::Skipped => "skipped",
            Self::NoResult => "NO RESULT",
        }
    }
}

/// The row of a program.
#[derive(Debug, Serialize)]
pub(super) struct ProgramRow {
    pub(super) name: String,
    pub(super) result: Verdict,
    /// The number of tests, or of pairs of memory and operation, that passed.
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) ignored: usize,
    pub(super) seconds: f64,
    pub(super) note: String,
}

impl ProgramRow {
    pub(super) fn new(passed: usize, failed: usize, ignored: usize, note: String) -> Self {
        let result = if failed == 0 { Verdict::Passed } else { Verdict::Failed };
        Self { name: String::new(), result, passed, failed, ignored, seconds: 0.0, note }
    }
}

//! The steps of a task. They run one after another. Each is timed, and a summary is printed at the end.
//!
//! The steps after a failed step still run, so that one run shows all failures. A check that is not possible on the
//! machine is skipped, and the summary lists it with the reason.

use crate::failure::Outcome;
use crate::table::table;
use std::time::{Duration, Instant};

/// The result of a step.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// The number of tests (or examples, models, rows) that passed.
    pub(crate) passed: usize,
    /// The number of tests (or examples, models, rows) that failed.
    pub(crate) failed: usize,
    /// A short text for the summary.
    pub(crate) note: String,
    /// Lines for the end of the run: checks that were skipped, with the reasons.
    remarks: Vec<String>,
    is_skipped: bool,
}

impl Findings {
    pub(crate) fn new(passed: usize, failed: usize, note: impl Into<String>) -> Self {
        Self { passed, failed, note: note.into(), ..Self::default() }
    }

    /// Returns the result of a step that could not check anything, with the reason.
    pub(crate) fn skipped(why: impl Into<String>) -> Self {
        Self { note: why.into(), is_skipped: true, ..Self::default() }
    }

    /// Adds these lines, which are printed below the summary.
    pub(crate) fn with_remarks(self, remarks: Vec<String>) -> Self {
        Self { remarks, ..self }
    }

    /// Returns the lines for the end of the run.
    pub(crate) fn remarks(&self) -> impl Iterator<Item = &str> {
        self.remarks.iter().map(String::as_str)
    }

    fn word(&self) -> &'static str {
        match self {
            Self { is_skipped: true, .. } => "SKIPPED",
            Self { failed: 0, .. } => "ok",
            _ => "FAILED",
        }
    }
}

/// The steps that have run.
pub(crate) struct Steps {
    total: usize,
    /// Set if a step that could not check anything has failed.
    is_strict: bool,
    done: Vec<(&'static str, Findings, Duration)>,
}

impl Steps {
    /// Starts a run of `total` steps.
    pub(crate) fn new(total: usize) -> Self {
        Self { total, is_strict: false, done: Vec::new() }
    }

    /// Counts skipped steps as failed if `is_strict` is set.
    pub(crate) fn strict(self, is_strict: bool) -> Self {
        Self { is_strict, ..self }
    }

    /// Runs one step. An error counts as one failure.
    pub(crate) fn run(&mut self, name: &'static str, about: &str, step: impl FnOnce() -> Outcome<Findings>) {
        println!("[{}/{}] {name}: {about}", self.done.len() + 1, self.total);
        let start = Instant::now();
        let findings = step().unwrap_or_else(|failure| {
            println!("  {failure}");
            let first = failure.to_string().lines().next().unwrap_or_default().to_owned();
            Findings::new(0, 1, first)
        });
        let findings = if findings.is_skipped && self.is_strict {
            Findings { failed: 1, is_skipped: false, ..findings }
        } else {
            findings
        };
        let elapsed = start.elapsed();
        println!("  {} in {:.1} s  {}", findings.word(), elapsed.as_secs_f64(), findings.note);
        self.done.push((name, findings, elapsed));
    }

    /// Prints the summary and, on a separate last line, the totals. Returns whether there were no failures.
    pub(crate) fn finish(self) -> bool {
        let mut shown = table(["step", "", "passed", "failed", "seconds", "note"], 2);
        if let Some(column) = shown.column_mut(5) {
            column.set_cell_alignment(comfy_table::CellAlignment::Left);
        }
        for (name, findings, elapsed) in &self.done {
            let (passed, failed) = (findings.passed.to_string(), findings.failed.to_string());
            let seconds = format!("{:.1}", elapsed.as_secs_f64());
            shown.add_row([*name, findings.word(), &passed, &failed, &seconds, &findings.note]);
        }
        println!("\n{shown}");
        for (name, findings, _) in self.done.iter().filter(|(_, findings, _)| findings.is_skipped) {
            println!("step {name} was skipped: {}", findings.note);
        }
        for (name, findings, _) in &self.done {
            findings.remarks.iter().for_each(|remark| println!("{name}: {remark}"));
        }
        let sum = |of: fn(&Findings) -> usize| self.done.iter().map(|(_, findings, _)| of(findings)).sum::<usize>();
        let (passed, failed) = (sum(|findings| findings.passed), sum(|findings| findings.failed));
        println!("\n{passed} passed, {failed} failed");
        failed == 0
    }
}

#[cfg(test)]
mod tests {
    use super::{Findings, Steps};
    use crate::failure::Failure;

    #[test]
    fn failed_step_does_not_stop_later_steps() {
        let mut steps = Steps::new(2);
        steps.run("first", "fails", || Err(Failure::new("no such thing")));
        steps.run("second", "passes", || Ok(Findings::new(3, 0, "")));
        assert_eq!(steps.done.len(), 2);
        assert!(!steps.finish());
    }

    #[test]
    fn skipped_step_is_a_failure_in_ci() {
        let mut steps = Steps::new(1).strict(true);
        steps.run("one", "is skipped", || Ok(Findings::skipped("not root")));
        assert_eq!(steps.done[0].1.word(), "FAILED");
        assert!(!steps.finish());
    }

    #[test]
    fn skipped_step_is_not_a_failure() {
        let mut steps = Steps::new(1);
        steps.run("one", "is skipped", || Ok(Findings::skipped("not root")));
        assert_eq!(steps.done[0].1.word(), "SKIPPED");
        assert!(steps.finish());
    }
}

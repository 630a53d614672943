//! The costs of registrations, windows and transfers on the guest's RDMA device, measured by `percale perf --rdma` and
//! stored for the report. Absolute times of a translated CPU are meaningless, but their ratios are useful to some
//! extent.

use super::row::ProgramRow;
use crate::failure::Outcome;
use crate::machine;
use crate::place::Repository;
use crate::table;
use comfy_table::Table;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The file of the last run, in the target directory.
pub(crate) const FILE: &str = "bench/guest.json";

/// The results that each size must have: the command's names with descriptions.
const WHAT: [(&str, &str); 8] = [
    ("in-advance", "transfer into memory registered in advance"),
    ("each-time", "transfer, registering and deregistering for it"),
    ("cached", "transfer, looking up in the cache"),
    ("copied", "transfer into a registered buffer, and a copy"),
    ("register", "register"),
    ("deregister", "deregister"),
    ("bind", "bind a window of type 2"),
    ("invalidate", "invalidate the window"),
];

/// A line of the command's output.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct OutputLine {
    what: String,
    bytes: u64,
    /// The time divided by the time of a transfer into memory that was registered in advance.
    ratio: f64,
    monitor: String,
}

/// A run of the command.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CommandRun {
    date: String,
    commit: String,
    /// The kernel, and the accelerator on which it ran.
    under: String,
    lines: Vec<OutputLine>,
}

fn lines(printed: &[String]) -> Vec<OutputLine> {
    printed.iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn sizes(lines: &[OutputLine]) -> Vec<u64> {
    let mut sizes: Vec<u64> = lines.iter().map(|line| line.bytes).collect();
    sizes.dedup();
    sizes
}

fn ratio(lines: &[OutputLine], what: &str, bytes: u64) -> Option<f64> {
    lines.iter().find(|line| line.what == what && line.bytes == bytes).map(|line| line.ratio)
}

/// Evaluates the output. Every result must have been measured for each size.
pub(super) fn judge(printed: &[String]) -> ProgramRow {
    let lines = lines(printed);
    let sizes = sizes(&lines);
    let missing = sizes.iter().flat_map(|&bytes| WHAT.map(|(what, _)| ratio(&lines, what, bytes)));
    let missing = missing.filter(|ratio| !ratio.is_some_and(|ratio| ratio.is_finite() && ratio > 0.0)).count();
    ProgramRow::new(
        lines.len(),
        missing + usize::from(lines.is_empty()),
        0,
        format!("figures of {} sizes", sizes.len()),
    )
}

/// Saves the results for the report.
pub(super) fn save(place: &Repository, printed: &[String], under: String) -> Outcome<PathBuf> {
    place
        .save(FILE, &CommandRun { date: machine::date(), commit: machine::commit(place), under, lines: lines(printed) })
}

impl CommandRun {
    /// Returns the results as text and as a table of ratios.
    pub(crate) fn shown(&self, markdown: impl FnOnce(&[&str], usize) -> Table) -> String {
        let sizes = sizes(&self.lines);
        let heads: Vec<String> =
            std::iter::once("what".to_owned()).chain(sizes.iter().map(|&b| table::size(b))).collect();
        let mut shown = markdown(&heads.iter().map(String::as_str).collect::<Vec<_>>(), 1);
        for (what, name) in WHAT {
            let cells = sizes.iter().map(|&bytes| ratio(&self.lines, what, bytes));
            let cells = cells.map(|ratio| {
                ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.0$}", if ratio < 0.1 { 3 } else { 2 }))
            });
            shown.add_row(std::iter::once(name.to_owned()).chain(cells));
        }
        let monitor = self.lines.first().map_or("", |line| &line.monitor);
        let Self { date, commit, under, .. } = self;
        format!("{ABOUT}\n\n{shown}\n\n{under}; the cache's monitor: {monitor}; measured {date} (commit {commit}).")
    }
}

const ABOUT: &str = "\
The device is soft-RoCE in a virtual machine (`cargo xtask guest --only figures`). Absolute times would not be
meaningful, so the table has ratios to a peer's write of as many bytes into memory that was registered in advance. The
emulated device makes this write on the processor (packets, copies, checksums), and hardware would not, so registering
appears cheaper in comparison than it is. Differences of 0.1 or 0.2 between ratios are not significant. Windows are
bound to regions of that size.";

#[cfg(test)]
mod tests {
    use super::{CommandRun, WHAT, judge, lines};
    use crate::guest::row::Verdict;
    use crate::table;

    fn printed() -> Vec<String> {
        let line = |bytes: u64| {
            move |(what, _): (&str, &str)| {
                format!(r#"{{"what":"{what}","bytes":{bytes},"p50_ns":9.0,"ratio":1.25,"count":3,"monitor":"bpf"}}"#)
            }
        };
        WHAT.map(line(4096)).into_iter().chain(WHAT.map(line(1 << 20))).collect()
    }

    #[test]
    fn missing_figure_is_a_failure() {
        let mut printed = printed();
        let row = judge(&printed);
        assert_eq!((row.result, row.passed), (Verdict::Passed, 16));
        printed.pop();
        assert_eq!(judge(&printed).result, Verdict::Failed, "a figure of one size is missing");
        assert_eq!(judge(&[]).result, Verdict::Failed);
    }

    #[test]
    fn only_ratios_are_shown() {
        let (date, commit, under) = ("2026-01-31".into(), "0123".into(), "Linux 6.1 under TCG".into());
        let run = CommandRun { date, commit, under, lines: lines(&printed()) };
        let text = run.shown(|heads, text| table::table(heads.iter().copied(), text));
        assert!(text.contains("1.25") && text.contains("1 MiB") && text.contains("monitor: bpf"), "{text}");
        assert!(!text.contains(" ns") && !text.contains("µs"), "{text}");
    }
}

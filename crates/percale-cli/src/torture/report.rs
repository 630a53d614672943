//! The results, formatted as JSON lines or as tables.

use std::collections::BTreeMap;
use std::fmt;

use comfy_table::Table;
use serde::Serialize;

use super::args::TortureArgs;
use super::calls::Calls;
use super::case::{Outcome, Verdict};
use super::monitors::Monitor;
use super::plan::Pair;
use super::race;
use crate::failure::{Failure, Result};
use crate::output::print_line;
use crate::table::{RULED, left, right};
use crate::units;

/// A line of the result. It is also the object of a line of `--json`.
#[derive(Debug, Serialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub(super) enum TortureLine {
    Monitor {
        monitor: &'static str,
        available: bool,
        /// The reason why the monitor is not available. Empty if it is available.
        reason: String,
        /// The cost of system calls for other processes while the monitor is loaded, if it is available.
        calls: Option<Calls>,
    },
    Pair {
        monitor: &'static str,
        mapping: &'static str,
        operation: &'static str,
        result: Outcome,
        /// Whether the operation makes an earlier registration, independent of the cache, stale.
        changed: Option<bool>,
        /// The reason for the result.
        detail: Option<String>,
        /// The text with which the monitor documents this limit.
        documented: Option<&'static str>,
    },
    Race {
        monitor: &'static str,
        seconds: u64,
        threads: u64,
        seed: u64,
        #[serde(flatten)]
        tally: race::Tally,
        /// The reason why there are no results, if there are none.
        failure: Option<String>,
    },
    /// A run of the search that found an error.
    WrongRun {
        monitor: &'static str,
        seed: u64,
        mix: race::Mix,
        #[serde(flatten)]
        tally: race::Tally,
        failure: Option<String>,
    },
    /// All runs of the search for one monitor.
    Search {
        monitor: &'static str,
        first_seed: u64,
        #[serde(flatten)]
        found: Searched,
    },
}

/// The amount of work and the errors found in the runs of a search.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Searched {
    runs: u64,
    /// Runs in which the torture program itself failed.
    failed: u64,
    #[serde(flatten)]
    tally: race::Tally,
}

impl Searched {
    pub(super) fn add(&mut self, tally: Result<race::Tally, String>) {
        self.runs += 1;
        match tally {
            Ok(tally) => self.tally.add(tally),
            Err(_) => self.failed += 1,
        }
    }
}

impl fmt::Display for Searched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [uses, stale, wrong] = [self.tally.uses, self.tally.stale, self.tally.wrong_keys].map(units::count);
        write!(f, "{uses} look-ups, {stale} stale, {wrong} wrong keys")
    }
}

impl TortureLine {
    pub(super) fn pair(monitor: &Monitor, pair: &Pair, verdict: Verdict) -> Self {
        let Verdict { outcome: result, changed, detail } = verdict;
        let wrong = matches!(result, Outcome::Stale | Outcome::Rights);
        let documented = monitor.exception(pair.operation.name).filter(|_| wrong);
        let (mapping, operation) = (pair.kind.name, pair.operation.name);
        Self::Pair { monitor: monitor.name, mapping, operation, result, changed, detail, documented }
    }

    /// Returns the line for a run of the search that found an error or failed.
    pub(super) fn wrong_run(monitor: &Monitor, plan: &race::Plan, tally: &Result<race::Tally, String>) -> Option<Self> {
        let (tally, failure) = match tally {
            Ok(tally) if tally.stale + tally.wrong_keys == 0 => return None,
            Ok(tally) => (tally.clone(), None),
            Err(why) => (race::Tally::default(), Some(why.clone())),
        };
        Some(Self::WrongRun { monitor: monitor.name, seed: plan.seed, mix: plan.mix.clone(), tally, failure })
    }

    pub(super) fn search(monitor: &Monitor, first_seed: u64, found: Searched) -> Self {
        Self::Search { monitor: monitor.name, first_seed, found }
    }

    pub(super) fn race(monitor: &Monitor, plan: &race::Plan, tally: Result<race::Tally, String>) -> Self {
        let race::Plan { milliseconds, threads, seed, .. } = *plan;
        let seconds = milliseconds / 1000;
        let (tally, failure) = match tally {
            Ok(tally) => (tally, None),
            Err(why) => (race::Tally::default(), Some(why)),
        };
        Self::Race { monitor: monitor.name, seconds, threads, seed, tally, failure }
    }

    fn monitor(&self) -> &'static str {
        match self {
            Self::Monitor { monitor, .. }
            | Self::Pair { monitor, .. }
            | Self::Race { monitor, .. }
            | Self::WrongRun { monitor, .. }
            | Self::Search { monitor, .. } => monitor,
        }
    }
}

/// All lines of the result.
pub(super) struct TortureReport {
    json: bool,
    pairs: bool,
    /// Whether the user named the monitors. Each of them must be available in this case.
    named: bool,
    lines: Vec<TortureLine>,
}

/// The results in the order of the output, with their names in tables.
const OUTCOMES: [(Outcome, &str); 8] = [
    (Outcome::Stale, "stale"),
    (Outcome::Rights, "rights"),
    (Outcome::Caught, "caught"),
    (Outcome::Kept, "kept"),
    (Outcome::Needless, "needless"),
    (Outcome::Refused, "refused"),
    (Outcome::NotApplicable, "n/a"),
    (Outcome::Failed, "failed"),
];

fn name(outcome: Outcome) -> &'static str {
    OUTCOMES.iter().find(|(which, _)| *which == outcome).map_or("", |(_, name)| name)
}

impl TortureReport {
    pub(super) fn new(args: &TortureArgs) -> Self {
        Self { json: args.json, pairs: args.pairs, named: !args.monitor.is_empty(), lines: Vec::new() }
    }

    /// Adds a line. For JSON output, prints it immediately.
    pub(super) fn add(&mut self, line: TortureLine) -> Result<()> {
        if self.json {
            print_line(&serde_json::to_string(&line).map_err(Failure::system("writing JSON"))?)?;
        }
        self.lines.push(line);
        Ok(())
    }

    /// Returns a description of the errors found, or `None` if there are none.
    pub(super) fn wrong(&self) -> Option<String> {
        let (mut stale, mut wrong_keys, mut failed) = (0, 0, 0);
        let mut missing = Vec::new();
        for line in &self.lines {
            match line {
                TortureLine::Pair { result: Outcome::Stale | Outcome::Rights, documented: None, .. } => stale += 1,
                TortureLine::Pair { result: Outcome::Failed, .. } | TortureLine::Race { failure: Some(_), .. } => {
                    failed += 1
                }
                TortureLine::Race { tally, .. } => {
                    stale += tally.stale;
                    wrong_keys += tally.wrong_keys;
                }
                TortureLine::Search { found, .. } => {
                    stale += found.tally.stale;
                    wrong_keys += found.tally.wrong_keys;
                    failed += found.failed;
                }
                TortureLine::Monitor { monitor, available: false, reason, .. } if self.named => {
                    missing.push(format!("{monitor} is not available here: {reason}"));
                }
                _ => {}
            }
        }
        let stale = (stale > 0).then(|| format!("{} stale registrations were returned", units::count(stale)));
        let wrong_keys = (wrong_keys > 0).then(|| format!("{} wrong keys were returned", units::count(wrong_keys)));
        let failed = (failed > 0).then(|| format!("{} trials failed without a result", units::count(failed)));
        let parts: Vec<_> = stale.into_iter().chain(wrong_keys).chain(failed).chain(missing).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// Prints the tables, unless the lines were already printed as JSON.
    ///
    /// # Errors
    /// Fails if an error was [found](Self::wrong).
    pub(super) fn end(&self) -> Result<()> {
        if !self.json {
            print_line(&self.text())?;
        }
        self.wrong().map_or(Ok(()), |why| Err(Failure::Torture(why)))
    }

    /// Formats all results as text.
    pub(super) fn text(&self) -> String {
        let is_search = self.lines.iter().any(|line| matches!(line, TortureLine::Search { .. }));
        let first = if self.pairs { self.every_pair() } else { self.by_operation() };
        let parts = if is_search {
            vec![self.searches(), self.remarks()]
        } else {
            vec![first, self.totals(), self.races(), self.calls(), self.remarks()]
        };
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n")
    }

    fn monitors(&self) -> Vec<&'static str> {
        let available = |line: &TortureLine| matches!(line, TortureLine::Monitor { available: true, .. });
        self.lines.iter().filter(|line| available(line)).map(TortureLine::monitor).collect()
    }

    /// Formats a table with the number of kinds of memory for each operation and result.
    fn by_operation(&self) -> String {
        let monitors = self.monitors();
        let mut order = Vec::new();
        let mut counts: BTreeMap<(&str, &str), BTreeMap<Outcome, u64>> = BTreeMap::new();
        for line in &self.lines {
            if let TortureLine::Pair { monitor, operation, result, .. } = line {
                if !order.contains(operation) {
                    order.push(operation);
                }
                *counts.entry((operation, monitor)).or_default().entry(*result).or_default() += 1;
            }
        }
        let mut table = table();
        table.set_header(std::iter::once("operation").chain(monitors.iter().copied()).map(left));
        for operation in order {
            let cell = |monitor: &&str| {
                let counts = counts.get(&(operation, *monitor));
                let one =
                    |(outcome, name): &(Outcome, &str)| counts?.get(outcome).map(|count| format!("{count} {name}"));
                // "Not applicable" is omitted if there are other results.
                let some: Vec<_> = OUTCOMES.iter().filter(|(which, _)| *which != Outcome::NotApplicable).collect();
                let shown: Vec<_> = some.into_iter().filter_map(one).collect();
                if shown.is_empty() { name(Outcome::NotApplicable).into() } else { shown.join(", ") }
            };
            table.add_row(std::iter::once(left(operation)).chain(monitors.iter().map(cell).map(left)));
        }
        table.to_string()
    }

    fn every_pair(&self) -> String {
        let mut table = table();
        table.set_header(["monitor", "memory", "operation", "result", "because"].map(left));
        for line in &self.lines {
            if let TortureLine::Pair { monitor, mapping, operation, result, detail, documented, .. } = line {
                let because = documented.or(detail.as_deref()).unwrap_or("");
                table.add_row([monitor, mapping, operation, name(*result), because].map(left));
            }
        }
        table.to_string()
    }

    fn totals(&self) -> String {
        let mut table = table();
        let heads = OUTCOMES.iter().map(|(_, name)| right(name));
        table.set_header(std::iter::once(left("pairs")).chain(heads).chain([right("changed"), right("tried")]));
        for monitor in self.monitors() {
            let of = |wanted: &dyn Fn(Outcome, Option<bool>) -> bool| {
                let hit = |line: &&TortureLine| match line {
                    TortureLine::Pair { result, changed, .. } => line.monitor() == monitor && wanted(*result, *changed),
                    _ => false,
                };
                right(units::count(self.lines.iter().filter(hit).count() as u64))
            };
            let counts = OUTCOMES.iter().map(|(outcome, _)| of(&|result, _| result == *outcome));
            let changed = of(&|result, changed| applies(result) && changed == Some(true));
            let tried = of(&|result, _| applies(result));
            table.add_row(std::iter::once(left(monitor)).chain(counts).chain([changed, tried]));
        }
        format!("{table}\nchanged: trials after which the pages differed, regardless of what the cache returned.")
    }

    fn searches(&self) -> String {
        let mut table = table();
        let heads = ["runs", "changes", "look-ups", "hits", "checked", "stale", "wrong keys", "failed"].map(right);
        table.set_header(std::iter::once(left("search")).chain(heads));
        for line in &self.lines {
            if let TortureLine::Search { monitor, found, .. } = line {
                let Searched { runs, failed, tally } = found;
                let race::Tally { changes, uses, hits, checked, stale, wrong_keys, .. } = *tally;
                let figures = [*runs, changes, uses, hits, checked, stale, wrong_keys, *failed];
                table.add_row(std::iter::once(left(monitor)).chain(figures.map(|n| right(units::count(n)))));
            }
        }
        table.to_string()
    }

    fn races(&self) -> String {
        let mut table = table();
        let heads = ["changes", "uses", "hits", "checked", "stale", "wrong keys"].map(right);
        table.set_header(std::iter::once(left("threads")).chain(heads));
        let mut any = false;
        for line in &self.lines {
            if let TortureLine::Race { monitor, tally, failure: None, .. } = line {
                let race::Tally { changes, uses, hits, checked, stale, wrong_keys, .. } = *tally;
                let figures = [changes, uses, hits, checked, stale, wrong_keys];
                table.add_row(std::iter::once(left(monitor)).chain(figures.map(|n| right(units::count(n)))));
                any = true;
            }
        }
        if any { table.to_string() } else { String::new() }
    }

    /// Formats a table of the costs of the monitors for processes that do not use them.
    fn calls(&self) -> String {
        let mut table = table();
        table.set_header([left("a system call"), right("without"), right("with"), right("ratio")]);
        let mut any = false;
        for line in &self.lines {
            if let TortureLine::Monitor { monitor, calls: Some(Calls { without_ns, with_ns }), .. } = line {
                let [without, with] = [*without_ns, *with_ns].map(|ns| right(units::time(ns)));
                table.add_row([left(monitor), without, with, right(format!("{:.2}", with_ns / without_ns))]);
                any = true;
            }
        }
        let notes = "getppid in a process without a cache, before and after the monitor is loaded.";
        if any { format!("{table}\n{notes}") } else { String::new() }
    }

    /// Lists the results that must not be overlooked. Equal results for several kinds of memory are combined in one
    /// line.
    fn remarks(&self) -> String {
        let mut remarks = Vec::new();
        let mut alike: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for line in &self.lines {
            match line {
                TortureLine::Monitor { monitor, available: false, reason, .. } => {
                    remarks.push(format!("{monitor} is not available here: {reason}"));
                }
                TortureLine::Pair { monitor, mapping, operation, result, detail, documented, .. } => {
                    let what = match (result, documented) {
                        (Outcome::Stale | Outcome::Rights, Some(_)) => "documented",
                        (Outcome::Stale | Outcome::Rights, None) => "WRONG",
                        (Outcome::Failed, _) => "failed",
                        _ => continue,
                    };
                    let why = documented.or(detail.as_deref()).map_or_else(String::new, |why| format!(" ({why})"));
                    let remark = format!("{what}: {monitor}, {operation}: {result}{why}", result = name(*result));
                    alike.entry(remark).or_default().push(mapping);
                }
                TortureLine::Race { monitor, tally, seed, failure, .. } => {
                    let wrong = |(after, count)| format!("WRONG: {monitor}, seed {seed}: {count} times after {after}");
                    remarks.extend(tally.after.iter().map(wrong));
                    remarks.extend(tally.wrong_key.iter().map(|what| format!("WRONG: {monitor}, seed {seed}: {what}")));
                    remarks.extend(failure.iter().map(|why| format!("failed: {monitor}, threads: {why}")));
                }
                TortureLine::WrongRun { monitor, seed, mix, tally, failure } => {
                    remarks.push(format!("{monitor}, seed {seed}: {mix}"));
                    let wrong = |(after, count)| format!("  WRONG: {count} times stale after {after}");
                    remarks.extend(tally.after.iter().map(wrong));
                    remarks.extend(tally.wrong_key.iter().map(|what| format!("  WRONG: {what}")));
                    remarks.extend(failure.iter().map(|why| format!("  failed: {why}")));
                }
                TortureLine::Monitor { .. } | TortureLine::Search { .. } => {}
            }
        }
        remarks.extend(alike.iter().map(|(remark, mappings)| format!("{remark}: {}", mappings.join(", "))));
        remarks.join("\n")
    }
}

/// Returns whether the pair could be tested.
fn applies(outcome: Outcome) -> bool {
    !matches!(outcome, Outcome::NotApplicable | Outcome::Failed)
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_style(RULED);
    table
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Subcommand};

    fn report(arguments: &[&str]) -> TortureReport {
        let args = Args::try_parse_from([&["percale", "torture"], arguments].concat()).expect("arguments");
        match args.subcommand {
            Subcommand::Torture(args) => TortureReport::new(&args),
            other => panic!("{other:?}"),
        }
    }

    fn pair(operation: &'static str, result: Outcome, documented: Option<&'static str>) -> TortureLine {
        let (monitor, mapping, changed) = ("none", "System V", Some(true));
        TortureLine::Pair { monitor, mapping, operation, result, changed, detail: None, documented }
    }

    fn available(available: bool) -> TortureLine {
        let calls = available.then_some(Calls { without_ns: 80.0, with_ns: 120.0 });
        TortureLine::Monitor { monitor: "none", available, reason: "no such thing".into(), calls }
    }

    #[test]
    fn only_undocumented_results_are_wrong() {
        let mut report = report(&[]);
        for line in
            [available(true), pair("shmdt", Outcome::Caught, None), pair("mprotect", Outcome::Rights, Some("so"))]
        {
            report.add(line).expect("nothing to print");
        }
        assert_eq!(report.wrong(), None);
        let text = report.text();
        assert!(text.contains("120 ns") && text.contains("1.50"), "{text}");
        assert!(
            text.contains("1 caught") && text.contains("documented: none, mprotect: rights (so): System V"),
            "{text}"
        );
        for (outcome, message) in [(Outcome::Stale, "1 stale registrations"), (Outcome::Failed, "1 trials failed")] {
            report.add(pair("munmap all", outcome, None)).expect("nothing to print");
            assert!(report.wrong().expect("wrong").contains(message), "{outcome:?}");
        }
        assert!(report.text().contains("WRONG: none, munmap all: stale: System V"), "{}", report.text());
    }

    #[test]
    fn stale_race_and_missing_requested_monitor_are_wrong() {
        let mut stale = report(&[]);
        let plan = race::Plan { milliseconds: 1000, threads: 1, seed: 7, mix: race::Mix::plain() };
        let after = [("System V, shmdt".to_owned(), 3)].into();
        let tally = race::Tally { stale: 3, after, ..Default::default() };
        let monitor = Monitor::named("none").expect("a monitor");
        stale.add(TortureLine::race(monitor, &plan, Ok(tally))).expect("nothing to print");
        assert!(stale.wrong().expect("wrong").contains("3 stale"));
        assert!(stale.text().contains("WRONG: none, seed 7: 3 times after System V, shmdt"), "{}", stale.text());
        for (arguments, wrong) in [([].as_slice(), false), (&["--monitor", "none"], true)] {
            let mut report = report(arguments);
            report.add(available(false)).expect("nothing to print");
            assert_eq!(report.wrong().is_some(), wrong, "{arguments:?}");
            assert!(report.text().contains("none is not available here: no such thing"), "{}", report.text());
        }
    }
}

//! The results, as a table, as JSON, and as docs/mutations.md.

use super::list::Mutation;
use super::trials::{State, Verdict};
use crate::failure::Outcome;
use crate::place::Repository;
use crate::table::table;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;

const FILE: &str = "docs/mutations.md";

/// The end of a result, if a test did not end.
const ENDLESS: &str = " (does not end)";

/// Returns the test that noticed each mutation in the run that docs/mutations.md describes.
pub(super) fn former(place: &Repository) -> BTreeMap<String, String> {
    let text = fs::read_to_string(place.root.join(FILE)).unwrap_or_default();
    text.lines().filter_map(former_of).collect()
}

/// Reads the name and the test of a row.
fn former_of(line: &str) -> Option<(String, String)> {
    let cells: Vec<&str> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect();
    let (name, result) = (cells.first()?, cells.last()?);
    let test = result.strip_suffix(ENDLESS).unwrap_or(result);
    (cells.len() == 5 && test.split(' ').count() == 3).then(|| ((*name).to_owned(), test.to_owned()))
}

pub(super) struct Report<'a> {
    rows: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    file: &'a str,
    kind: &'static str,
    effect: &'a str,
    #[serde(skip)]
    state: RowState,
    result: String,
}

#[derive(PartialEq, Eq, Clone, Copy, PartialOrd, Ord, Debug)]
enum RowState {
    Noticed,
    Survived,
    Equivalent,
    Untried,
}

#[derive(Serialize, Default, Clone, Copy)]
struct Counts {
    noticed: usize,
    survived: usize,
    equivalent: usize,
    untried: usize,
}

impl Counts {
    fn add(&mut self, state: RowState) {
        match state {
            RowState::Noticed => self.noticed += 1,
            RowState::Survived => self.survived += 1,
            RowState::Equivalent => self.equivalent += 1,
            RowState::Untried => self.untried += 1,
        }
    }

    /// Returns the noticed part of those that a test can notice and that were tried.
    fn percent(self) -> f64 {
        let tried = self.noticed + self.survived;
        if tried == 0 { 0.0 } else { self.noticed as f64 * 100.0 / tried as f64 }
    }
}

impl<'a> Report<'a> {
    pub(super) fn of(mutations: &'a [Mutation], apart: &BTreeMap<usize, String>, state: &State) -> Self {
        let row = |(number, mutation): (usize, &'a Mutation)| {
            let (state, result) = match (&mutation.equivalent, state.verdicts.get(&mutation.name)) {
                (Some(why), _) => (RowState::Equivalent, why.clone()),
                (None, Some(Verdict::Noticed { by, ended: true, .. })) => (RowState::Noticed, by.clone()),
                (None, Some(Verdict::Noticed { by, .. })) => (RowState::Noticed, format!("{by}{ENDLESS}")),
                (None, Some(Verdict::Survived { tried, of })) => {
                    (RowState::Survived, format!("NOT NOTICED by {tried} of {of} tests"))
                }
                (None, None) => {
                    let why = apart.get(&number).map_or("not tried", String::as_str);
                    (RowState::Untried, why.to_owned())
                }
            };
            let Mutation { name, file, kind, effect, .. } = mutation;
            Row { name, file, kind: kind.name(), effect, state, result }
        };
        Self { rows: mutations.iter().enumerate().map(row).collect() }
    }

    /// Returns the number of mutations that no test noticed.
    pub(super) fn survived(&self) -> usize {
        self.rows.iter().filter(|row| row.state == RowState::Survived).count()
    }

    fn counts(&self) -> (BTreeMap<String, Counts>, Counts) {
        let (mut crates, mut all) = (BTreeMap::<String, Counts>::new(), Counts::default());
        for row in &self.rows {
            let name = row.file.split('/').nth(1).unwrap_or(row.file);
            crates.entry(name.to_owned()).or_default().add(row.state);
            all.add(row.state);
        }
        (crates, all)
    }

    pub(super) fn print(&self) {
        for row in self.rows.iter().filter(|row| row.state == RowState::Survived) {
            println!("{} {}: {}\n    {}", row.name, row.file, row.effect, row.result);
        }
        let mut shown = table(["crate", "noticed", "not noticed", "equivalent", "not tried", "noticed %"], 1);
        let (crates, all) = self.counts();
        for (name, counts) in crates.iter().map(|(name, counts)| (name.as_str(), *counts)).chain([("all", all)]) {
            let Counts { noticed, survived, equivalent, untried } = counts;
            let numbers = [noticed, survived, equivalent, untried].map(|count| count.to_string());
            let percent = format!("{:.1}", counts.percent());
            shown.add_row([name.to_owned()].into_iter().chain(numbers).chain([percent]));
        }
        println!("{shown}");
    }

    pub(super) fn print_json(&self) -> Outcome {
        let (crates, all) = self.counts();
        let whole = serde_json::json!({ "mutations": self.rows, "crates": crates, "all": all });
        println!("{}", serde_json::to_string_pretty(&whole)?);
        Ok(())
    }

    /// Writes docs/mutations.md.
    pub(super) fn write(&self, place: &Repository) -> Outcome {
        let (crates, all) = self.counts();
        let mut text = String::from(
            "# Mutations\n\n`cargo xtask mutate --write` makes this file. Each row is a change of the sources. \
             [testing.md](testing.md#mutations) describes\nthe method. The last column names the first test that failed, or the reason why no test can notice the change.\n\n\
             | crate | noticed | not noticed | equivalent | not tried | noticed |\n|---|---|---|---|---|---|\n",
        );
        for (name, counts) in crates.iter().map(|(name, counts)| (name.as_str(), *counts)).chain([("all", all)]) {
            let Counts { noticed, survived, equivalent, untried } = counts;
            let percent = counts.percent();
            text += &format!("| {name} | {noticed} | {survived} | {equivalent} | {untried} | {percent:.1} % |\n");
        }
        text += "\n| name | source | kind | effect | noticed by |\n|---|---|---|---|---|\n";
        for Row { name, file, kind, effect, result, .. } in &self.rows {
            let file = file.strip_prefix("crates/").unwrap_or(file);
            let escaped = |text: &str| text.replace('|', "\\|");
            text += &format!("| {name} | {file} | {kind} | {} | {} |\n", escaped(effect), escaped(result));
        }
        fs::write(place.root.join(FILE), text)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::former_of;

    #[test]
    fn the_test_of_a_row_is_read() {
        let of = |result: &str| former_of(&format!("| E1 | percale/src/a.rs | check | a \\| b | {result} |"));
        let test = Some(("E1".to_owned(), "tests percale a::b".to_owned()));
        assert_eq!(of("tests percale a::b"), test);
        assert_eq!(of("tests percale a::b (does not end)"), test);
        for other in ["NOT NOTICED by 3 of 5 tests", "not tried", "the value is never read"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}

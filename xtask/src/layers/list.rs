//! `xtask/layers.txt`: the allowed dependencies, one per line. They are compared with the sources.
//!
//! ```text
//! percale-cli => percale                   a crate depends on another one of the workspace
//! percale-ofi => percale-conformance (dev) only its tests, examples and benchmarks do
//! percale: endpoint -> transport           a top-level module depends on another one
//! percale: memory -> domain !              the same, in a cycle that is to be broken
//! percale: arrows in cycles below the top: 40
//!                                          the number of arrows inside cycles of deeper modules; no line: none
//! ```

use super::graph::{Graph, Level};
use super::workspace::{CrateDependency, WorkspaceSources};
use crate::failure::{Failure, Outcome};
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// The list's path in the repository.
pub(crate) const LIST: &str = "xtask/layers.txt";

/// The header comments that are written if a list has none.
const HEADER: &str = "\
# The dependencies that `cargo xtask layers` allows between the workspace's crates (=>) and between the top-level
# modules of each crate (->). A mark (!) denotes an arrow inside a cycle. To break the cycle, some of its arrows must be
# removed. `cargo xtask layers --write` writes the list from the sources; review the difference before you commit it.
";

const BELOW: &str = "arrows in cycles below the top";

/// An entry of the list, in the order of the list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ListEntry {
    Crates { from: String, to: String, is_dev: bool },
    Arrow { name: String, from: String, to: String },
    Below { name: String },
}

/// The data of an entry in the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stated {
    is_marked: bool,
    /// The number of arrows, for [`ListEntry::Below`].
    count: usize,
    /// The line in the list, or 0 for an entry that was derived from the sources.
    line: usize,
}

/// The list, read from the file or derived from the sources.
#[derive(Debug)]
pub(crate) struct List {
    header: String,
    entries: BTreeMap<ListEntry, Stated>,
}

impl fmt::Display for ListEntry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crates { from, to, is_dev } => write!(out, "{from} => {to}{}", if *is_dev { " (dev)" } else { "" }),
            Self::Arrow { name, from, to } => write!(out, "{name}: {from} -> {to}"),
            Self::Below { name } => write!(out, "{name}: {BELOW}"),
        }
    }
}

impl List {
    /// Parses a list.
    ///
    /// # Errors
    /// Fails if a line is invalid or occurs twice. The error names the line.
    pub(crate) fn parse(text: &str) -> Outcome<Self> {
        let is_header = |line: &&str| line.starts_with('#');
        let header: String = text.lines().take_while(is_header).map(|line| format!("{line}\n")).collect();
        let mut entries = BTreeMap::<ListEntry, Stated>::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (entry, stated) = entry(line).ok_or_else(|| {
                let forms =
                    "`A => B`, `A => B (dev)`, `CRATE: a -> b`, `CRATE: a -> b !`, `CRATE: arrows in cycles below the top: N`";
                Failure::new(format!("{LIST}:{number}: `{line}` does not have one of the forms {forms}"))
            })?;
            let shown = entry.to_string();
            if let Some(first) = entries.insert(entry, Stated { line: number, ..stated }) {
                let first = first.line;
                return Err(Failure::new(format!("{LIST}:{number}: {shown} is also in line {first}; remove one")));
            }
        }
        Ok(Self { header, entries })
    }

    /// Derives the list from the sources.
    pub(crate) fn of(found: &WorkspaceSources) -> Self {
        let mut entries = BTreeMap::new();
        for dependency in &found.dependencies {
            entries.insert(crates(dependency), Stated::default());
        }
        for graph in &found.graphs {
            let top = graph.top();
            for ends in top.arrows.keys() {
                let stated = Stated { is_marked: top.cycle_of(*ends).is_some(), ..Stated::default() };
                entries.insert(arrow(graph, top, *ends), stated);
            }
            if graph.cyclic_arrows_below() > 0 {
                let stated = Stated { count: graph.cyclic_arrows_below(), ..Stated::default() };
                entries.insert(ListEntry::Below { name: graph.name.clone() }, stated);
            }
        }
        Self { header: HEADER.to_owned(), entries }
    }

    /// Returns the entries with the comments of another list, if that list has comments.
    pub(crate) fn with_header_of(self, other: &Self) -> Self {
        if other.header.is_empty() { self } else { Self { header: other.header.clone(), ..self } }
    }

    pub(crate) fn text(&self) -> String {
        let mut text = self.header.clone();
        let mut group = None;
        for (entry, stated) in &self.entries {
            // There is a group of lines for the crates, a group for the arrows of each crate, and a group for the
            // counts.
            let (is_bound, its) = match entry {
                ListEntry::Crates { .. } => (false, ""),
                ListEntry::Arrow { name, .. } => (false, name.as_str()),
                ListEntry::Below { .. } => (true, ""),
            };
            if group.replace((is_bound, its)) != Some((is_bound, its)) {
                text.push('\n');
            }
            let mark = if stated.is_marked { " !" } else { "" };
            let bound = if is_bound { format!(": {}", stated.count) } else { String::new() };
            writeln!(text, "{entry}{mark}{bound}").ok();
        }
        text
    }

    /// Returns the differences between this list and the sources. Each is one line with a location and a remedy.
    pub(crate) fn problems(&self, found: &WorkspaceSources) -> Vec<String> {
        let wanted = Self::of(found);
        let mut problems = Vec::new();
        for dependency in &found.dependencies {
            let entry = crates(dependency);
            if !self.entries.contains_key(&entry) {
                let remedy = "remove the dependency, or add this line if the direction is right";
                problems.push(format!("{}: `{entry}` is not in {LIST}: {remedy}", dependency.place));
            }
        }
        for graph in &found.graphs {
            self.compare_arrows(graph, &mut problems);
            self.compare_bound(graph, &mut problems);
        }
        let stale = self.entries.iter().filter(|(entry, _)| !wanted.entries.contains_key(entry));
        for (entry, Stated { line, .. }) in stale {
            problems.push(match entry {
                ListEntry::Crates { .. } => {
                    format!("{LIST}:{line}: `{entry}`: no Cargo.toml declares this: remove the line")
                }
                ListEntry::Arrow { .. } => format!("{LIST}:{line}: `{entry}`: no source needs this: remove the line"),
                ListEntry::Below { name } => format!("{LIST}:{line}: {name} has no {BELOW}: remove the line"),
            });
        }
        problems
    }

    fn compare_arrows(&self, graph: &Graph, problems: &mut Vec<String>) {
        let top = graph.top();
        let stated = |ends| self.entries.get(&arrow(graph, top, ends));
        // Marks apply to the arrows in the list. An arrow that is not in the list is one problem, regardless of the
        // cycles that it closes.
        let listed = top.only(|ends| stated(ends).is_some());
        let size = |level: &Level, ends| level.cycle_of(ends).map(Vec::len);
        for (ends, found) in &top.arrows {
            let (entry, place) = (arrow(graph, top, *ends), &found.example);
            match (stated(*ends), size(&listed, *ends)) {
                (None, _) => problems.push(match size(top, *ends) {
                    Some(size) => format!(
                        "{place}: `{entry}` is not in {LIST} and is in a cycle of {size} modules: remove the import"
                    ),
                    None => format!(
                        "{place}: `{entry}` is not in {LIST}: remove the import, or add this line if the direction is right"
                    ),
                }),
                (Some(Stated { is_marked: false, line, .. }), Some(size)) => problems.push(format!(
                    "{place}: `{entry}` is in a cycle of {size} modules and has no mark in {LIST}:{line}: break the \
                     cycle, or add ` !` to the line if the arrow will be removed later"
                )),
                (Some(Stated { is_marked: true, line, .. }), None) => {
                    problems.push(format!("{LIST}:{line}: `{entry}` is no longer in a cycle: remove the mark"));
                }
                _ => {}
            }
        }
    }

    fn compare_bound(&self, graph: &Graph, problems: &mut Vec<String>) {
        let name = &graph.name;
        let stated = self.entries.get(&ListEntry::Below { name: name.clone() }).copied().unwrap_or_default();
        let (allowed, count) = (stated.count, graph.cyclic_arrows_below());
        let place = if stated.line == 0 { LIST.to_owned() } else { format!("{LIST}:{}", stated.line) };
        if count > allowed {
            let parents = graph.levels[1..].iter().flat_map(|level| level.cycles().map(|_| level.parent.as_str()));
            let parents = parents.collect::<Vec<_>>().join(", ");
            problems.push(format!(
                "{place}: {name} has {count} {BELOW}, {allowed} are allowed: remove the new one; the cycles are in {parents}, \
                 and `cargo xtask layers` shows their imports"
            ));
        } else if count < allowed && count > 0 {
            problems.push(format!("{place}: {name} has {count} {BELOW}, {allowed} are allowed: lower it to {count}"));
        }
    }

    /// Returns the number of arrows between modules, and the number of marked arrows.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let arrows = self.entries.iter().filter(|(entry, _)| matches!(entry, ListEntry::Arrow { .. }));
        arrows.fold((0, 0), |(all, marked), (_, stated)| (all + 1, marked + usize::from(stated.is_marked)))
    }
}

fn crates(CrateDependency { from, to, is_dev, .. }: &CrateDependency) -> ListEntry {
    ListEntry::Crates { from: from.clone(), to: to.clone(), is_dev: *is_dev }
}

fn arrow(graph: &Graph, level: &Level, (from, to): (usize, usize)) -> ListEntry {
    let (from, to) = (level.members[from].clone(), level.members[to].clone());
    ListEntry::Arrow { name: graph.name.clone(), from, to }
}

/// Parses one line.
fn entry(line: &str) -> Option<(ListEntry, Stated)> {
    let word = |text: &str| {
        let text = text.trim();
        (!text.is_empty() && !text.contains([' ', '\t'])).then(|| text.to_owned())
    };
    if let Some((from, to)) = line.split_once("=>") {
        let (to, is_dev) = to.trim_end().strip_suffix("(dev)").map_or((to, false), |to| (to, true));
        return Some((ListEntry::Crates { from: word(from)?, to: word(to)?, is_dev }, Stated::default()));
    }
    let (name, rest) = line.split_once(": ")?;
    let name = word(name)?;
    if let Some(count) = rest.trim().strip_prefix(BELOW) {
        let count = count.strip_prefix(':')?.trim().parse().ok()?;
        return Some((ListEntry::Below { name }, Stated { count, ..Stated::default() }));
    }
    let (from, to) = rest.split_once("->")?;
    let (to, is_marked) = to.trim_end().strip_suffix('!').map_or((to, false), |to| (to, true));
    Some((ListEntry::Arrow { name, from: word(from)?, to: word(to)? }, Stated { is_marked, ..Stated::default() }))
}

#[cfg(test)]
mod tests {
    use super::List;

    #[test]
    fn list_round_trips_through_text() {
        let text = "# About the list.\n\na => b\na => c (dev)\n\na: x -> y\na: y -> x !\n\na: arrows in cycles below the top: 2\n";
        assert_eq!(List::parse(text).unwrap().text(), text);
    }

    #[test]
    fn other_lines_and_repeated_lines_are_named() {
        let failure = List::parse("a => b\na: x > y\n").unwrap_err().to_string();
        assert!(failure.starts_with("xtask/layers.txt:2: `a: x > y`"), "{failure}");
        let failure = List::parse("a: x -> y\na: x -> y !\n").unwrap_err().to_string();
        assert!(failure.starts_with("xtask/layers.txt:2: a: x -> y is also in line 1"), "{failure}");
    }
}

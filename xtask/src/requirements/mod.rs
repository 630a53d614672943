//! Reads docs/requirements.md: the requirements, the cells that each applies to, and the exceptions.
//!
//! A requirement is a line `ID [tag] (source) precondition: action -> observable result`. A source `(own, shm tcp)`
//! names the transports that the requirement applies to. Without names it applies to all of them.
//!
//! Two other kinds of lines refer to requirements by their IDs (`MSG-001`), by ranges (`MSG-001..005`) or by areas
//! (`MSG`):
//!
//! * `Cells MSG, TAG: rust, c. Reason.` names the cells that these requirements apply to, see [`cell::list`]. A line
//!   with an ID has precedence over a line with its area. Each requirement needs a line.
//! * `Exception MSG-014 in c: Reason.` names cells in which a requirement applies but is not proved.

pub(crate) mod cell;
mod marks;

pub(crate) use marks::Marks;

use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// One requirement.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Requirement {
    pub(crate) area: String,
    pub(crate) text: String,
    /// The cells that the requirement applies to.
    pub(crate) cells: BTreeSet<Cell>,
    /// The cells of `cells` in which it is not proved, with the reasons.
    pub(crate) excused: BTreeMap<Cell, String>,
    /// The transports in its source. If the list is empty, it applies to all transports.
    transports: Vec<String>,
}

impl Requirement {
    fn is_about(&self, cell: Cell) -> bool {
        let Some(transport) = cell::transport_of(cell) else { return true };
        self.transports.is_empty() || self.transports.iter().any(|its| its == transport)
    }

    #[cfg(test)]
    pub(crate) fn for_test(cells: &[Cell], excused: &[Cell]) -> Self {
        Self {
            area: "MSG".to_owned(),
            cells: cells.iter().copied().collect(),
            excused: excused.iter().map(|&cell| (cell, "a reason".to_owned())).collect(),
            ..Self::default()
        }
    }
}

/// All requirements by their IDs.
pub(crate) type Requirements = BTreeMap<String, Requirement>;

pub(crate) fn load(place: &Repository) -> Outcome<Requirements> {
    let path = place.root.join("docs/requirements.md");
    let text = fs::read_to_string(&path).map_err(Failure::during(format!("reading {}", path.display())))?;
    parse(&text)
}

fn parse(text: &str) -> Outcome<Requirements> {
    let mut all = Requirements::new();
    for (id, requirement) in text.lines().filter_map(requirement_in) {
        if all.insert(id.clone(), requirement).is_some() {
            return Err(Failure::new(format!("docs/requirements.md defines {id} twice")));
        }
    }
    if all.is_empty() {
        return Err(Failure::new("docs/requirements.md contains no requirements"));
    }
    let in_line = |line: &str, why: &Failure| {
        Failure::new(format!("docs/requirements.md, `{}`: {why}", line.chars().take(60).collect::<String>()))
    };
    // A line with an ID has precedence over a line with its area.
    for reads in [areas_in, ids_in] {
        for line in text.lines() {
            if let Some(scope) = line.strip_prefix("Cells ") {
                reads(&mut all, scope).map_err(|why| in_line(line, &why))?;
            }
        }
    }
    for requirement in all.values_mut() {
        let kept: BTreeSet<Cell> =
            requirement.cells.iter().copied().filter(|cell| requirement.is_about(cell)).collect();
        requirement.cells = kept;
    }
    if let Some((id, _)) = all.iter().find(|(_, requirement)| requirement.cells.is_empty()) {
        return Err(Failure::new(format!("docs/requirements.md: no line with `Cells` gives {id} a cell")));
    }
    for line in text.lines() {
        if let Some(exception) = line.strip_prefix("Exception ") {
            exception_in(&mut all, exception).map_err(|why| in_line(line, &why))?;
        }
    }
    Ok(all)
}

fn requirement_in(line: &str) -> Option<(String, Requirement)> {
    let (id, rest) = line.split_once(' ')?;
    let (area, _) = split_id(id)?;
    let (_tag, rest) = rest.strip_prefix('[')?.split_once("] (")?;
    // A source may contain parentheses: "(001 + fi_getinfo(3)) ...".
    let (source, text) = rest.split_once(") ")?;
    let words = source.split([',', ';', ' ']).filter(|word| cell::TRANSPORTS.contains(word));
    let transports = words.map(str::to_owned).collect();
    Some((
        id.to_owned(),
        Requirement { area: area.to_owned(), text: text.to_owned(), transports, ..Default::default() },
    ))
}

/// Returns the area and the number of an ID.
fn split_id(id: &str) -> Option<(&str, u16)> {
    let (area, number) = id.split_once('-')?;
    if is_area(area) && is_number(number) { Some((area, number.parse().ok()?)) } else { None }
}

fn is_area(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_uppercase())
}

fn is_number(text: &str) -> bool {
    text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit())
}

/// Reads the areas of `MSG, TAG, CMP-021: rust, c. Reason.`
fn areas_in(all: &mut Requirements, line: &str) -> Outcome {
    let (names, cells) = scope_in(line)?;
    for area in names.into_iter().filter(|name| is_area(name)) {
        let of_area: Vec<_> = all.values_mut().filter(|requirement| requirement.area == area).collect();
        if of_area.is_empty() {
            return Err(Failure::new(format!("no requirement is in area {area}")));
        }
        of_area.into_iter().for_each(|requirement| requirement.cells = cells.clone());
    }
    Ok(())
}

/// Reads the IDs of `MSG, TAG, CMP-021: rust, c. Reason.`
fn ids_in(all: &mut Requirements, line: &str) -> Outcome {
    let (names, cells) = scope_in(line)?;
    for name in names.into_iter().filter(|name| !is_area(name)) {
        for id in range(name)? {
            let requirement = all.get_mut(&id).ok_or_else(|| Failure::new(format!("there is no {id}")))?;
            requirement.cells = cells.clone();
        }
    }
    Ok(())
}

fn scope_in(line: &str) -> Outcome<(Vec<&str>, BTreeSet<Cell>)> {
    let (names, rest) = line.split_once(": ").ok_or_else(|| Failure::new("no colon after the names"))?;
    let (cells, _reason) = rest.split_once('.').ok_or_else(|| Failure::new("no full stop after the cells"))?;
    Ok((names.split(", ").collect(), cell::list(cells)?))
}

/// Reads `MSG-014, MSG-015 in c: Reason.`
fn exception_in(all: &mut Requirements, line: &str) -> Outcome {
    let (rest, reason) = line.split_once(": ").ok_or_else(|| Failure::new("no reason after a colon"))?;
    let (ids, cells) = rest.split_once(" in ").ok_or_else(|| Failure::new("no cells after `in`"))?;
    let cells = cell::list(cells)?;
    for id in ids.split(", ") {
        for id in range(id)? {
            let requirement = all.get_mut(&id).ok_or_else(|| Failure::new(format!("there is no {id}")))?;
            let mut is_used = false;
            for &cell in requirement.cells.iter().filter(|cell| cells.contains(*cell)) {
                is_used = true;
                requirement.excused.insert(cell, reason.to_owned());
            }
            if !is_used {
                return Err(Failure::new(format!("{id} does not apply to these cells")));
            }
        }
    }
    Ok(())
}

/// Returns the IDs of `MSG-001` or `MSG-001..005`.
fn range(text: &str) -> Outcome<Vec<String>> {
    let (first, last) = text.split_once("..").map_or((text, None), |(first, last)| (first, Some(last)));
    let bad = || Failure::new(format!("`{text}` is not an ID or a range of IDs"));
    let (area, first) = split_id(first).ok_or_else(bad)?;
    let last = match last {
        Some(last) if is_number(last) => last.parse().map_err(|_| bad())?,
        Some(_) => return Err(bad()),
        None => first,
    };
    if last < first { Err(bad()) } else { Ok((first..=last).map(|number| format!("{area}-{number:03}")).collect()) }
}

#[cfg(test)]
mod tests {
    use super::{Marks, parse, requirement_in};
    use crate::place::Repository;

    #[test]
    fn lines_in_the_format_are_requirements() {
        let (id, read) = requirement_in("AV-002 [must] (003, implied) open -> a vector.").unwrap();
        assert_eq!((id.as_str(), read.area.as_str(), read.text.as_str()), ("AV-002", "AV", "open -> a vector."));
        assert!(read.is_about("shm/rust") && read.is_about("tcp/c") && read.is_about("any"));
        assert!(requirement_in("XPU-002 [must] (001 + fi_getinfo(3)) fi_getinfo -> no match.").is_some());
        assert!(requirement_in("AMB-33 Error code for FI_READ without name.").is_none());
        assert!(requirement_in("## AV — address vectors (source 003)").is_none());
    }

    #[test]
    fn a_source_may_name_transports() {
        let (_, read) = requirement_in("RES-001 [must] (own, shm) two processes: no page leaks.").unwrap();
        assert!(read.is_about("shm/rust") && !read.is_about("tcp/rust") && read.is_about("any"));
        let (_, read) = requirement_in("CON-013 [must] (own, shm tcp; fi_cm(3)) connect -> connected.").unwrap();
        assert!(read.is_about("shm/rust") && read.is_about("tcp/c") && !read.is_about("verbs/rust"));
    }

    #[test]
    fn duplicate_id_is_rejected() {
        let line = "MR-001 [must] (000) a -> b.\n";
        assert!(parse(&line.repeat(2)).is_err());
    }

    /// Three requirements and these lines.
    fn with(lines: &str) -> Result<super::Requirements, String> {
        let text = "MR-001 [must] (000) a -> b.\nMR-002 [must] (own, shm tcp) a -> b.\nAV-001 [must] (003) a -> b.\n";
        parse(&format!("{text}{lines}")).map_err(|error| error.to_string())
    }

    #[test]
    fn cells_of_an_id_replace_those_of_its_area() {
        let all = with("Cells MR, AV: rust, c. Both.\nCells MR-001: any. It is not about a transport.\n").unwrap();
        assert_eq!(all["MR-001"].cells.iter().copied().collect::<Vec<_>>(), ["any"]);
        assert_eq!(all["MR-002"].cells.iter().copied().collect::<Vec<_>>(), ["shm/c", "shm/rust", "tcp/c", "tcp/rust"]);
        assert_eq!(all["AV-001"].cells.len(), 8);
    }

    #[test]
    fn an_exception_names_its_cells_and_a_reason() {
        let all = with("Cells MR, AV: rust, c.\nException MR-001..002, AV-001 in c, not tcp: No test: yet.\n").unwrap();
        assert_eq!(all["MR-001"].excused.keys().copied().collect::<Vec<_>>(), ["loopback/c", "shm/c"]);
        assert_eq!(all["MR-002"].excused["shm/c"], "No test: yet.");
        assert_eq!(all["AV-001"].excused.len(), 2);
    }

    #[test]
    fn lines_that_refer_to_nothing_are_rejected() {
        for (lines, error) in [
            ("Cells MR: c.\n", "gives AV-001 a cell"),
            ("Cells MR, AV, XPU: c.\n", "area XPU"),
            ("Cells MR, AV: c.\nCells MR-003: c.\n", "there is no MR-003"),
            ("Cells MR, AV: c.\nCells MR-001..2: c.\n", "not an ID"),
            ("Cells MR, AV: d.\n", "not a cell"),
            ("Cells MR, AV: c\n", "full stop"),
            ("Cells MR, AV: c.\nException MR-001 in rust: why.\n", "does not apply"),
            ("Cells MR, AV: c.\nException MR-001: why.\n", "no cells"),
            ("Cells MR, AV: loopback.\n", "gives MR-002 a cell"),
        ] {
            let found = with(lines).unwrap_err();
            assert!(found.contains(error), "{lines}: {found}");
        }
    }

    #[test]
    fn the_workspace_has_only_marks_of_known_requirements() {
        let place = Repository::find().unwrap();
        let (known, marks) = (super::load(&place).unwrap(), Marks::load(&place).unwrap());
        let unknown: Vec<_> = marks.all().filter(|(_, ids)| ids.iter().any(|id| !known.contains_key(id))).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        let count = marks.all().count();
        assert!(count > 500, "only {count} marked tests were found: has the format of the sources changed?");
    }
}

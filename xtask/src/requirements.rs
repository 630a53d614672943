//! Reads docs/requirements.md, which has one requirement per line, and the marks of tests.
//!
//! A line is `ID [tag] (source) precondition: action -> observable result`. A source `(own, shm tcp)` names the
//! transports that a requirement applies to. Without names it applies to all of them.
//!
//! A test's mark is the beginning of its function's name: `av_002_av_003_a_range_is_one_entry` marks AV-002 and AV-003.

use crate::failure::{Failure, Outcome};
use crate::place::Place;
use std::collections::BTreeMap;
use std::fs;

/// The existing and planned transports, as test paths and sources spell them.
pub(crate) const TRANSPORTS: [&str; 5] = ["loopback", "shm", "tcp", "sim", "verbs"];

/// One requirement.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Requirement {
    pub(crate) area: String,
    pub(crate) text: String,
    /// The transports that the requirement applies to. An empty list stands for all.
    transports: Vec<String>,
}

impl Requirement {
    pub(crate) fn is_about(&self, transport: &str) -> bool {
        self.transports.is_empty() || self.transports.iter().any(|its| its == transport)
    }

    #[cfg(test)]
    pub(crate) fn for_test(area: &str, transports: &[&str]) -> Self {
        let transports = transports.iter().map(|&name| name.to_owned()).collect();
        Self { area: area.to_owned(), text: String::new(), transports }
    }
}

/// All requirements by their IDs.
pub(crate) type Requirements = BTreeMap<String, Requirement>;

pub(crate) fn load(place: &Place) -> Outcome<Requirements> {
    let path = place.root.join("docs/requirements.md");
    let text = fs::read_to_string(&path).map_err(Failure::during(format!("reading {}", path.display())))?;
    parse(&text)
}

fn parse(text: &str) -> Outcome<Requirements> {
    let mut all = Requirements::new();
    for (id, requirement) in text.lines().filter_map(requirement_in) {
        if all.insert(id.clone(), requirement).is_some() {
            return Err(Failure::new(format!("docs/requirements.md has two requirements {id}")));
        }
    }
    if all.is_empty() { Err(Failure::new("docs/requirements.md holds no requirement")) } else { Ok(all) }
}

fn requirement_in(line: &str) -> Option<(String, Requirement)> {
    let (id, rest) = line.split_once(' ')?;
    let (area, number) = id.split_once('-')?;
    let is_id = area.bytes().all(|b| b.is_ascii_uppercase()) && is_number(number);
    let (_tag, rest) = rest.strip_prefix('[')?.split_once("] (")?;
    if !is_id {
        return None;
    }
    // A source may contain parentheses: "(001 + fi_getinfo(3)) ...".
    let (source, text) = rest.split_once(") ")?;
    let words = source.split([',', ' ']).filter(|word| TRANSPORTS.contains(word));
    let transports = words.map(str::to_owned).collect();
    Some((id.to_owned(), Requirement { area: area.to_owned(), text: text.to_owned(), transports }))
}

fn is_number(text: &str) -> bool {
    text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit())
}

/// Returns the IDs in the name of a test function. A name that only has the same form, like `sends_100_messages`, gives
/// an ID of an area that does not exist.
pub(crate) fn marks(function: &str) -> Vec<String> {
    let mut parts = function.split('_');
    let mut found = Vec::new();
    while let (Some(area), Some(number)) = (parts.next(), parts.next()) {
        let is_area = !area.is_empty() && area.bytes().all(|b| b.is_ascii_lowercase());
        if !is_area || !is_number(number) {
            break;
        }
        found.push(format!("{}-{number}", area.to_ascii_uppercase()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{marks, parse, requirement_in};

    #[test]
    fn lines_in_the_format_are_requirements() {
        let (id, read) = requirement_in("AV-002 [must] (003, implied) open -> a vector.").unwrap();
        assert_eq!((id.as_str(), read.area.as_str(), read.text.as_str()), ("AV-002", "AV", "open -> a vector."));
        assert!(read.is_about("shm") && read.is_about("tcp"));
        assert!(requirement_in("XPU-002 [must] (001 + fi_getinfo(3)) fi_getinfo -> no match.").is_some());
        assert!(requirement_in("AMB-33 Error code for FI_READ without name.").is_none());
        assert!(requirement_in("## AV — address vectors (source 003)").is_none());
    }

    #[test]
    fn a_source_may_name_transports() {
        let (_, read) = requirement_in("RES-001 [must] (own, shm) two processes: no page leaks.").unwrap();
        assert!(read.is_about("shm") && !read.is_about("tcp"));
    }

    #[test]
    fn an_id_stands_once() {
        let line = "MR-001 [must] (000) a -> b.\n";
        assert!(parse(&line.repeat(2)).is_err());
    }

    #[test]
    fn marks_stand_before_the_name() {
        assert_eq!(marks("av_002_av_003_a_range"), ["AV-002", "AV-003"]);
        assert_eq!(marks("mr_010_regions"), ["MR-010"]);
        assert_eq!(marks("tag_001"), ["TAG-001"]);
        assert!(marks("av_02_short").is_empty());
        assert!(marks("").is_empty());
    }
}

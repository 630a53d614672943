//! Reads the marks of tests: the requirements that each test asserts.
//!
//! A test's mark is a line of its documentation: `Requirements: AV-002, AV-003.` Only one file of the workspace may
//! define a marked test of a given name, because results identify a test only by its function. The same function may
//! run in several programs and on several transports.
//!
//! The C programs of percale-ofi have no marks. They print the requirements that their checks assert, see
//! `crates/percale-ofi/tests/every.rs`.

use super::split_id;
use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The first word of a mark.
const MARK: &str = "Requirements: ";

/// The requirements proved by tests. The keys are the names of the tests' functions.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    ids: BTreeMap<String, Vec<String>>,
    /// The files that define a test of this name, or a function of this name with a mark.
    files: BTreeMap<String, BTreeSet<PathBuf>>,
}

impl Marks {
    /// Reads the sources of the workspace.
    ///
    /// # Errors
    /// Fails if a source cannot be read, if a mark is not a list of IDs, or if two files define a marked test of the
    /// same name.
    pub(crate) fn load(place: &Repository) -> Outcome<Self> {
        let mut marks = Self::default();
        for directory in ["crates", "xtask/src"] {
            marks.read_directory(&place.root, Path::new(directory))?;
        }
        marks.check()?;
        Ok(marks)
    }

    fn read_directory(&mut self, root: &Path, directory: &Path) -> Outcome {
        let reading = || format!("reading {}", directory.display());
        for entry in fs::read_dir(root.join(directory)).map_err(Failure::during(reading()))? {
            let entry = entry.map_err(Failure::during(reading()))?;
            let path = directory.join(entry.file_name());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.read_directory(root, &path)?;
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(root.join(&path)).map_err(Failure::during(reading()))?;
                self.read(&path, &text)?;
            }
        }
        Ok(())
    }

    /// Reads one source: the marks, and the names of tests.
    fn read(&mut self, file: &Path, text: &str) -> Outcome {
        let mut mark: Option<String> = None;
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            if let Some(documentation) = line.strip_prefix("///").map(str::trim) {
                match &mut mark {
                    Some(open) if !open.ends_with('.') => {
                        open.push(' ');
                        open.push_str(documentation);
                    }
                    _ => mark = documentation.strip_prefix(MARK).map(str::to_owned).or(mark),
                }
            } else if line.starts_with("#[") {
                is_test |= line == "#[test]";
            } else if let Some(name) = function_in(line).or_else(|| module_in(line)) {
                if let Some(mark) = mark.take() {
                    let ids = ids_in(&mark).ok_or_else(|| {
                        Failure::new(format!("{}: the mark of {name} is not a list of IDs: {mark}", file.display()))
                    })?;
                    self.ids.entry(name.to_owned()).or_default().extend(ids);
                    is_test = true;
                }
                if std::mem::take(&mut is_test) {
                    self.files.entry(name.to_owned()).or_default().insert(file.to_owned());
                }
            } else if !is_part_of_attribute(line) {
                (mark, is_test) = (None, false);
            }
        }
        Ok(())
    }

    fn check(&self) -> Outcome {
        for name in self.ids.keys() {
            let files: Vec<String> = self.files[name].iter().map(|file| file.display().to_string()).collect();
            if files.len() > 1 {
                return Err(Failure::new(format!(
                    "tests named {name} are in {}, and one of them is marked with requirements: rename one",
                    files.join(" and ")
                )));
            }
        }
        Ok(())
    }

    /// Returns the marked functions, each with the IDs of its mark.
    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = (&String, &Vec<String>)> {
        self.ids.iter()
    }

    /// Returns the IDs in the mark of a test's function.
    pub(crate) fn of(&self, function: &str) -> &[String] {
        self.ids.get(function).map_or(&[], Vec::as_slice)
    }

    #[cfg(test)]
    pub(crate) fn for_test(marks: &[(&str, &[&str])]) -> Self {
        let owned = |ids: &[&str]| ids.iter().map(|&id| id.to_owned()).collect();
        let ids = marks.iter().map(|&(name, ids)| (name.to_owned(), owned(ids))).collect();
        Self { ids, files: BTreeMap::new() }
    }
}

/// Returns whether a line belongs to an attribute of several lines. Its inner lines are indented, and the last one
/// closes it.
fn is_part_of_attribute(line: &str) -> bool {
    line.ends_with(")]") || line.ends_with(',')
}

/// Returns the name of the function whose definition begins in this line.
fn function_in(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once("fn ")?;
    let is_definition =
        before.split_whitespace().all(|word| word.starts_with("pub") || ["async", "unsafe", "const"].contains(&word));
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
    (is_definition && end > 0).then_some(&rest[..end])
}

/// Returns the name of a module that a line defines without items, for documentation tests.
fn module_in(line: &str) -> Option<&str> {
    line.strip_prefix("pub mod ")?.strip_suffix(" {}")
}

/// Parses the IDs of a mark: `MR-001, MR-002.`
fn ids_in(mark: &str) -> Option<Vec<String>> {
    let list = mark.strip_suffix('.')?;
    list.split(", ").map(str::trim).map(|id| split_id(id).map(|_| id.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::Marks;
    use std::path::Path;

    /// Returns a source with a mark. It is assembled here so that this file itself contains no mark.
    fn source(mark: &str, name: &str) -> String {
        format!("/// Returns.\n///\n/// {mark}\n#[cfg_attr(\n    miri,\n    ignore,\n)]\n#[test]\nfn {name}() {{}}\n")
    }

    fn read(sources: &[String]) -> Result<Marks, String> {
        let mut marks = Marks::default();
        for (number, text) in sources.iter().enumerate() {
            marks.read(Path::new(&format!("{number}.rs")), text).map_err(|error| error.to_string())?;
        }
        marks.check().map_err(|error| error.to_string())?;
        Ok(marks)
    }

    #[test]
    fn a_mark_is_a_line_of_a_tests_documentation() {
        let marks = read(&[
            source("Requirements: AV-002, AV-003.", "a_range_is_one_entry"),
            source("Requirements: MR-001,\n/// MR-002.", "two_lines"),
            source("Proves MR-001.", "no_mark"),
        ])
        .unwrap();
        assert_eq!(marks.of("a_range_is_one_entry"), ["AV-002", "AV-003"]);
        assert_eq!(marks.of("two_lines"), ["MR-001", "MR-002"]);
        assert!(marks.of("no_mark").is_empty() && marks.of("unknown").is_empty());
    }

    #[test]
    fn a_mark_belongs_to_the_next_function_only() {
        let text = format!(
            "{}fn next() {{}}\n/// Requirements: X-001.\nstruct Other;\nfn third() {{}}\n",
            source("Requirements: MR-001.", "first")
        );
        let marks = read(&[text]).unwrap();
        assert_eq!(marks.of("first"), ["MR-001"]);
        assert!(marks.of("next").is_empty() && marks.of("third").is_empty());
    }

    #[test]
    fn a_mark_that_is_not_a_list_of_ids_is_refused() {
        for mark in
            ["Requirements: MR-1.", "Requirements: MR-001", "Requirements: mr-001.", "Requirements: MR-001 MR-002."]
        {
            let error = read(&[source(mark, "test")]).unwrap_err();
            assert!(error.contains("not a list of IDs"), "{mark}: {error}");
        }
    }

    #[test]
    fn two_files_with_a_marked_test_of_one_name_are_refused() {
        let unmarked = "#[test]\nfn one() {}\n".to_owned();
        let error = read(&[source("Requirements: MR-001.", "one"), unmarked.clone()]).unwrap_err();
        assert!(error.contains("0.rs and 1.rs"), "{error}");
        assert!(read(&[unmarked.clone(), unmarked]).is_ok());
    }
}

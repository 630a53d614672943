//! `cargo xtask abi`: compares the interface of libpindown.so with the list in docs/api/libpindown.txt.
//!
//! The list contains what compiled programs depend on: the soname, the functions with their symbol versions and
//! declarations, and the values of constants, sizes and offsets in structures as the C compiler computes them.
//!
//! A program that was compiled earlier runs with a library whose list has only additional lines. Other differences need a
//! new soname. `--write` therefore writes them only if the soname differs from that in the list, or if no release has had
//! the list (`--unreleased`).

use super::header::{self, Header};
use super::link::{self, Library};
use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use crate::program::Program;
use crate::steps::Findings;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Writes the list, if programs that were compiled earlier run with the new library
    #[arg(long)]
    write: bool,
    /// With --write: also writes incompatible changes, because no release has the interface in the list
    #[arg(long, requires = "write")]
    unreleased: bool,
}

/// The first word of the line with the soname.
const SONAME: &str = "soname";

pub(crate) fn run(place: &Repository, arguments: &Arguments) -> Outcome<bool> {
    let header = header::read(place)?;
    let library = link::build(place)?;
    let found = lines(place, &header, &library)?;
    let path = list(place);
    let written = read(place)?;
    let differences = Differences::new(&written, &found);
    if !arguments.write {
        differences.print();
        return Ok(differences.is_empty());
    }
    if differences.is_incompatible() && !arguments.unreleased {
        differences.print();
        return Err(Failure::new(
            "these changes break compiled programs: change the soname (xtask/src/pindown/link.rs) and name the symbol \
             versions after the new release (crates/pindown/libpindown.map), or use --unreleased if no release has the \
             interface in the list",
        ));
    }
    let text = found.join("\n") + "\n";
    fs::write(&path, text).map_err(Failure::during(format!("writing {}", path.display())))?;
    println!("docs/api/libpindown.txt: {} lines", found.len());
    Ok(true)
}

/// Compares the library with the list, as a part of the step `abi`. Returns a description of the result.
pub(super) fn compare(place: &Repository, header: &Header, library: &Library) -> Outcome<Findings> {
    let found = lines(place, header, library)?;
    let differences = Differences::new(&read(place)?, &found);
    differences.print();
    let failed = usize::from(!differences.is_empty());
    Ok(Findings::new(1 - failed, failed, format!("{} lines of docs/api/libpindown.txt", found.len())))
}

fn list(place: &Repository) -> PathBuf {
    place.root.join("docs/api/libpindown.txt")
}

fn read(place: &Repository) -> Outcome<Vec<String>> {
    let path = list(place);
    match fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        read => {
            let text = read.map_err(Failure::during(format!("reading {}", path.display())))?;
            Ok(text.lines().map(str::to_owned).collect())
        }
    }
}

/// The differences between the list and the library.
#[derive(Debug, PartialEq, Eq)]
struct Differences {
    added: Vec<String>,
    removed: Vec<String>,
    has_new_soname: bool,
}

impl Differences {
    fn new(written: &[String], found: &[String]) -> Self {
        let (old, new): (BTreeSet<_>, BTreeSet<_>) = (written.iter().collect(), found.iter().collect());
        let removed: Vec<String> = old.difference(&new).map(|line| line.to_string()).collect();
        let added = new.difference(&old).map(|line| line.to_string()).collect();
        let has_new_soname = removed.iter().any(|line| line.starts_with(SONAME));
        Self { added, removed, has_new_soname }
    }

    fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }

    /// Returns whether programs that were compiled earlier may not run with the library, although it has their soname.
    /// A structure that grew is compatible: programs pass the size that they know.
    fn is_incompatible(&self) -> bool {
        let is_growth = |line: &String| {
            let size = |line: &str| -> Option<u64> { line.strip_suffix(" bytes")?.rsplit(' ').next()?.parse().ok() };
            let name = line.split(':').next().unwrap_or_default();
            let same = self.added.iter().filter(|added| added.split(':').next() == Some(name));
            let grown = same.map(String::as_str).find_map(size);
            name != "struct pindown_use" && size(line).zip(grown).is_some_and(|(old, new)| old < new)
        };
        !self.has_new_soname && !self.removed.iter().all(is_growth)
    }

    fn print(&self) {
        if self.is_empty() {
            return;
        }
        let word = if self.is_incompatible() { "in an incompatible way" } else { "compatibly" };
        println!(
            "  the interface of libpindown.so differs {word} from docs/api/libpindown.txt (+: only in the library); if \
             the change is intended, run `cargo xtask abi --write` and commit the list:"
        );
        self.added.iter().for_each(|line| println!("    + {line}"));
        self.removed.iter().for_each(|line| println!("    - {line}"));
    }
}

/// Returns the lines of the list for a library.
fn lines(place: &Repository, header: &Header, library: &Library) -> Outcome<Vec<String>> {
    let dynamic = Program::new("readelf").args(["-d", "-W"]).arg(&library.shared).output()?;
    let dynamic = dynamic.success()?;
    let name = dynamic.lines().find(|line| line.contains("(SONAME)")).and_then(|line| line.split(['[', ']']).nth(1));
    let mut lines = vec![format!("{SONAME} {}", name.ok_or_else(|| Failure::new("the library has no soname"))?)];
    let symbols = Program::new("readelf").args(["--dyn-syms", "-W"]).arg(&library.shared).output()?;
    let symbols = symbols_of(symbols.success()?);
    let exported: BTreeSet<&str> = symbols.iter().map(|(name, _)| name.as_str()).collect();
    let declared: BTreeSet<&str> = header.functions.iter().map(|function| function.name.as_str()).collect();
    if let Some(name) = exported.symmetric_difference(&declared).next() {
        return Err(Failure::new(format!(
            "{name} is either declared in pindown.h or exported, but not both: list every function of the header in \
             crates/pindown/libpindown.map, and no other symbol"
        )));
    }
    for (name, version) in &symbols {
        let declaration = header.functions.iter().find(|function| function.name == *name);
        lines.push(format!("{version} {}", declaration.map_or(name, |function| &function.declaration)));
    }
    lines.extend(header.types.iter().cloned());
    lines.extend(measured(place, header)?);
    Ok(lines)
}

/// Returns the exported functions with their versions, from the output of readelf.
fn symbols_of(table: &str) -> Vec<(String, String)> {
    let mut symbols: Vec<(String, String)> = Vec::new();
    for line in table.lines() {
        // Number, value, size, type, binding, visibility, section, name.
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[_, _, _, kind, "GLOBAL" | "WEAK", _, section, name, ..] = words.as_slice() else { continue };
        if section == "UND" || kind == "OBJECT" && section == "ABS" {
            continue;
        }
        let (name, version) = name.split_once("@@").or_else(|| name.split_once('@')).unwrap_or((name, "unversioned"));
        symbols.push((name.to_owned(), version.to_owned()));
    }
    symbols.sort();
    symbols
}

/// Returns the values of constants, the sizes of structures, and the offsets and declarations of their fields.
fn measured(place: &Repository, header: &Header) -> Outcome<Vec<String>> {
    let mut program = String::from("#include <stdio.h>\n#include \"pindown.h\"\nint main(void) {\n");
    let mut print = |text: &str, value: String| {
        // The text contains no percent sign and no quotation mark, because it consists of declarations.
        writeln!(program, "printf(\"{text}\\n\", (unsigned long long)({value}));").map_err(Failure::during("a program"))
    };
    for structure in &header.structures {
        let name = &structure.name;
        print(&format!("struct {name}: %llu bytes"), format!("sizeof(struct {name})"))?;
        for (field, declaration) in &structure.fields {
            print(&format!("struct {name} + %llu: {declaration}"), format!("offsetof(struct {name}, {field})"))?;
        }
    }
    for name in &header.constants {
        print(&format!("{name} = %llu"), name.clone())?;
    }
    program += "return 0; }\n";
    let directory = place.target.join("pindown");
    let (source, binary) = (directory.join("layout.c"), directory.join("layout"));
    fs::write(&source, program).map_err(Failure::during(format!("writing {}", source.display())))?;
    let compiler = Program::new("cc").arg("-I").arg(place.root.join("crates/pindown/include"));
    compiler.arg("-o").arg(&binary).arg(&source).output()?.success()?;
    let printed = Program::new(&binary).output()?;
    Ok(printed.success()?.lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::{Differences, symbols_of};

    fn lines(text: &[&str]) -> Vec<String> {
        text.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn removed_lines_are_incompatible_unless_the_soname_changes() {
        let old = lines(&["soname libpindown.so.0", "PINDOWN_0.2 int pindown_a(void)", "PINDOWN_X = 1"]);
        let is_incompatible = |new: &[&str]| Differences::new(&old, &lines(new)).is_incompatible();
        let (name, function) = ("soname libpindown.so.0", "PINDOWN_0.2 int pindown_a(void)");
        assert!(!is_incompatible(&[name, function, "PINDOWN_X = 1", "new"]));
        assert!(is_incompatible(&["soname libpindown.so.0", "PINDOWN_0.2 int pindown_a(void)", "PINDOWN_X = 2"]));
        assert!(is_incompatible(&["soname libpindown.so.0", "PINDOWN_0.3 int pindown_a(void)", "PINDOWN_X = 1"]));
        assert!(!is_incompatible(&["soname libpindown.so.1", "PINDOWN_X = 2"]));
    }

    #[test]
    fn structures_may_grow_at_their_end() {
        let old = lines(&["struct a: 16 bytes", "struct a + 8: int x"]);
        let is_incompatible = |old: &[String], new: &[&str]| Differences::new(old, &lines(new)).is_incompatible();
        assert!(!is_incompatible(&old, &["struct a: 24 bytes", "struct a + 8: int x", "struct a + 16: int y"]));
        assert!(is_incompatible(&old, &["struct a: 8 bytes", "struct a + 8: int x"]));
        assert!(is_incompatible(&old, &["struct a: 24 bytes", "struct a + 16: int x"]));
        let fixed = lines(&["struct pindown_use: 24 bytes"]);
        assert!(is_incompatible(&fixed, &["struct pindown_use: 32 bytes"]));
    }

    #[test]
    fn exported_functions_are_found_with_their_versions() {
        let table = "\
Symbol table '.dynsym' contains 4 entries:
   Num:    Value          Size Type    Bind   Vis      Ndx Name
     0: 0000000000000000     0 NOTYPE  LOCAL  DEFAULT  UND 
     1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND memcpy@GLIBC_2.14 (2)
     2: 0000000000000000     0 OBJECT  GLOBAL DEFAULT  ABS PINDOWN_0.2
     3: 0000000000012340    72 FUNC    GLOBAL DEFAULT   12 pindown_open@@PINDOWN_0.2
     4: 0000000000012390    72 FUNC    GLOBAL DEFAULT   12 pindown_end
";
        let expected = [("pindown_end", "unversioned"), ("pindown_open", "PINDOWN_0.2")];
        assert_eq!(symbols_of(table), expected.map(|(name, version)| (name.to_owned(), version.to_owned())));
    }
}

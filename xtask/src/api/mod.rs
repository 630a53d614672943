//! `cargo xtask api`: lists the public items of the published crates in docs/api/*.txt, one line for each item.
//!
//! The list is made from rustdoc's JSON output, so it contains what macros generate, and re-exports are resolved. Items
//! that other crates of the workspace define are listed where a published crate re-exports them. Hidden items
//! (`#[doc(hidden)]`) and private items are not part of the list.
//!
//! A line is the declaration of an item, with its full path. The lines are sorted by the paths. An item that several
//! paths name is listed at the shortest one. The others have a line `pub use PATH = SHORTEST PATH`. Implementations of
//! traits have the lines `impl ... for ...`. Those that the compiler derives for auto traits are left out.
//!
//! `--check` compares the lists with the sources. So a change of the public API always appears in a reviewed change of a
//! list, as a new dependency does in `xtask/layers.txt`.
//!
//! rustdoc's JSON output is unstable. The compiler accepts the option because of `RUSTC_BOOTSTRAP`, which is set only for
//! rustdoc: crates of which the documentation is not built are compiled as usual, and are not compiled again.

mod items;
mod render;
#[cfg(test)]
mod tests;

use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use crate::steps::Findings;
use items::Documented;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Compares the lists with the sources and prints the differences, without writing
    #[arg(long)]
    check: bool,
}

/// The crates that have a list.
const LISTED: [&str; 3] = ["percale", "percale-verbs", "pindown"];

/// The crates with items that a listed crate re-exports.
const INNER: [&str; 5] = ["percale-device", "percale-memory", "percale-region", "percale-transport", "percale-wire"];

/// The number of differences of a list that are printed.
const SHOWN: usize = 40;

/// The list of a crate.
struct ApiList {
    name: &'static str,
    lines: Vec<String>,
}

impl ApiList {
    fn path(&self, place: &Repository) -> PathBuf {
        place.root.join("docs/api").join(format!("{}.txt", self.name))
    }

    /// Returns the text of the file.
    fn text(&self) -> String {
        let mut text = self.lines.join("\n");
        text.push('\n');
        text
    }

    /// Returns the differences from the file, `+` for items that only the sources have.
    fn differences(&self, place: &Repository) -> Outcome<Vec<String>> {
        let path = self.path(place);
        let written = match fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            read => read.map_err(Failure::during(format!("reading {}", path.display())))?,
        };
        Ok(differences(&written, &self.lines))
    }
}

fn differences(written: &str, lines: &[String]) -> Vec<String> {
    let written: BTreeSet<&str> = written.lines().collect();
    let found: BTreeSet<&str> = lines.iter().map(String::as_str).collect();
    let missing = found.difference(&written).map(|line| format!("+ {line}"));
    missing.chain(written.difference(&found).map(|line| format!("- {line}"))).collect()
}

/// Builds rustdoc's JSON files and makes the lists.
fn lists(place: &Repository) -> Outcome<Vec<ApiList>> {
    let directory = place.target.join("tools");
    fs::create_dir_all(&directory).map_err(Failure::during(format!("creating {}", directory.display())))?;
    let rustdoc = directory.join("rustdoc-json");
    let script = "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n";
    fs::write(&rustdoc, script).map_err(Failure::during(format!("writing {}", rustdoc.display())))?;
    fs::set_permissions(&rustdoc, fs::Permissions::from_mode(0o755))?;
    let named = LISTED.iter().chain(&INNER).flat_map(|name| ["-p", name]);
    let program = place.cargo().args(["doc", "--quiet", "--no-deps", "--lib", "--all-features"]).args(named);
    program.env("RUSTDOC", &rustdoc).env("RUSTDOCFLAGS", "-Z unstable-options --output-format json").passed()?;
    let mut documented = Documented::default();
    for name in LISTED.iter().chain(&INNER) {
        let name = name.replace('-', "_");
        let path = place.target.join("doc").join(format!("{name}.json"));
        let text = fs::read_to_string(&path).map_err(Failure::during(format!("reading {}", path.display())))?;
        documented.add(&name, serde_json::from_str(&text)?);
    }
    LISTED.iter().map(|name| Ok(ApiList { name, lines: documented.lines(&name.replace('-', "_"))? })).collect()
}

pub(crate) fn run(place: &Repository, arguments: &Arguments) -> Outcome<bool> {
    if arguments.check {
        let findings = check(place)?;
        println!("{}", findings.note);
        return Ok(findings.failed == 0);
    }
    fs::create_dir_all(place.root.join("docs/api"))?;
    for list in lists(place)? {
        let path = list.path(place);
        fs::write(&path, list.text()).map_err(Failure::during(format!("writing {}", path.display())))?;
        println!("{}: {} lines", list.name, list.lines.len());
    }
    Ok(true)
}

/// Compares the lists with the sources, as a step of `cargo xtask test`.
pub(crate) fn check(place: &Repository) -> Outcome<Findings> {
    let (mut passed, mut failed, mut counts) = (0, 0, Vec::new());
    for list in lists(place)? {
        let differences = list.differences(place)?;
        counts.push(format!("{} {}", list.name, list.lines.len()));
        if differences.is_empty() {
            passed += 1;
            continue;
        }
        failed += 1;
        let name = list.name;
        println!(
            "  docs/api/{name}.txt differs from the sources of {name} in {} lines (+: only in the sources); if the \
             change of the public API is intended, run `cargo xtask api` and commit the list:",
            differences.len()
        );
        differences.iter().take(SHOWN).for_each(|line| println!("    {line}"));
        if differences.len() > SHOWN {
            println!("    and {} more", differences.len() - SHOWN);
        }
    }
    Ok(Findings::new(passed, failed, format!("lines: {}", counts.join(", "))))
}

//! `cargo xtask layers`: checks the dependencies between modules and between crates against a list, and shows them.
//!
//! Definitions:
//!
//! 1. An *import* is a path that begins with `crate`, `self` or `super`, in a `use` declaration or anywhere else in the
//!    source, including macro calls. Its target is the deepest module that it names.
//! 2. An *arrow* is a dependency between siblings, that is, between modules of one parent. If module `x` of `A` imports
//!    from module `y` of `B`, there is an arrow `A -> B` at the level where A and B are siblings. A child that uses its
//!    parent and a parent that uses its child are one unit: this is containment and is not an arrow.
//! 3. A *cycle* is a strongly connected component with more than one member in the graph of the siblings of one parent.
//!    Each level of the module tree has its own graph.
//! 4. A *layer* contains the components that depend only on components in lower layers. The lowest layer has number 0.
//!
//! A re-export counts as the module that the path names, and not as the module that defines the item. If the named
//! module contains the importing one, the arrow would be lost (for example `crate::Domain` in a module of
//! `crate::memory`). In this case the re-export is followed. Names that are imported by a glob of such a module are not
//! followed.
//!
//! Modules and items that are compiled only for tests are ignored, and so are `tests/`, `benches/`, `examples/` and
//! build scripts.
//!
//! The allowed dependencies are in `xtask/layers.txt` (`list.rs` describes the format). The list must agree with the
//! sources in both directions. Therefore new dependencies always appear in a reviewed change. The check fails for a
//! dependency that is not in the list, a line that no source needs, a mark without a cycle, and a number of arrows that
//! is too high.

mod graph;
mod list;
mod paths;
mod picture;
mod show;
mod source;
#[cfg(test)]
mod tests;
mod workspace;

use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use crate::steps::Findings;
use list::{LIST, List};
use picture::DOCUMENT;
use std::fs;
use workspace::WorkspaceSources;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Prints the same facts as one JSON object
    #[arg(long)]
    json: bool,
    /// Writes xtask/layers.txt and the picture in docs/ARCHITECTURE.md from the sources: review the difference
    #[arg(long)]
    write: bool,
}

pub(crate) fn run(place: &Repository, arguments: &Arguments) -> Outcome<bool> {
    let found = WorkspaceSources::read(place)?;
    if arguments.write {
        write(place, &found)?;
    }
    let problems = problems(place, &found)?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&found.json(&problems))?);
        return Ok(problems.is_empty());
    }
    show::print(&found);
    println!();
    print_problems(&problems);
    println!("{} problems; the list has {}", problems.len(), summary(&found));
    Ok(problems.is_empty())
}

/// Runs the checks as a step of `cargo xtask test`.
pub(crate) fn check(place: &Repository) -> Outcome<Findings> {
    let found = WorkspaceSources::read(place)?;
    let problems = problems(place, &found)?;
    print_problems(&problems);
    let crates = found.graphs.len();
    Ok(Findings::new(usize::from(problems.is_empty()), problems.len(), format!("{crates} crates, {}", summary(&found))))
}

fn print_problems(problems: &[String]) {
    problems.iter().for_each(|problem| println!("{problem}"));
}

fn summary(found: &WorkspaceSources) -> String {
    let (arrows, marked) = List::of(found).counts();
    format!("{arrows} arrows, {marked} of them in cycles")
}

fn problems(place: &Repository, found: &WorkspaceSources) -> Outcome<Vec<String>> {
    let list = read(place, LIST).map_err(Failure::during("run `cargo xtask layers --write` to begin a list"))?;
    let mut problems = List::parse(&list)?.problems(found);
    if problems.is_empty() {
        // The picture is checked only after the list. Otherwise it would be written with dependencies that must be
        // removed.
        problems.extend(picture::problem(&read(place, DOCUMENT)?, found)?);
    }
    Ok(problems)
}

fn write(place: &Repository, found: &WorkspaceSources) -> Outcome {
    let list = List::of(found);
    let list = match fs::read_to_string(place.root.join(LIST)) {
        Ok(text) => list.with_header_of(&List::parse(&text)?),
        Err(_) => list,
    };
    save(place, LIST, &list.text())?;
    save(place, DOCUMENT, &picture::inserted(&read(place, DOCUMENT)?, found)?)
}

fn read(place: &Repository, file: &str) -> Outcome<String> {
    fs::read_to_string(place.root.join(file)).map_err(Failure::during(format!("reading {file}")))
}

fn save(place: &Repository, file: &str, text: &str) -> Outcome {
    fs::write(place.root.join(file), text).map_err(Failure::during(format!("writing {file}")))
}

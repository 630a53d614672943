//! `cargo xtask layers`: which modules and crates depend on which, checked against a list, and shown.
//!
//! Definitions:
//!
//! 1. An *import* is a path that begins with `crate`, `self` or `super`, in a `use` declaration or anywhere else in the
//!    source, macro calls included. It leads to the deepest module that it names.
//! 2. An *arrow* is a dependency between siblings, that is, between modules of one parent. Module `x` of `A` that imports
//!    from module `y` of `B` makes the arrow `A -> B` at the level where A and B are siblings. A child that uses its
//!    parent, and a parent that uses its child, are one unit: this is containment and makes no arrow.
//! 3. A *cycle* is a strongly connected component with more than one member in the graph of the siblings of one parent.
//!    Each level of the module tree has its own graph.
//! 4. A *layer* holds the components with all dependencies in lower layers. The lowest has number 0.
//!
//! A re-export counts as the module that the path names, and not as the one that defines the item. Where the named
//! module contains the importing one, which would lose the arrow (`crate::Domain` in a module of `crate::memory`), the
//! re-export is followed. Names that come through a glob of such a module are not.
//!
//! Modules and items that only tests are compiled with are left out. So are `tests/`, `benches/`, `examples/` and build
//! scripts.
//!
//! What is allowed is in `xtask/layers.txt` (`list.rs` has its form). The list can only shrink without a remark in a
//! review: a line that no source needs, a mark without a cycle, and a count of arrows that is too high fail the check, as
//! does what the list does not allow.

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
use crate::place::Place;
use crate::steps::Findings;
use list::{LIST, List};
use picture::DOCUMENT;
use std::fs;
use workspace::Found;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Prints the same facts as one JSON object
    #[arg(long)]
    json: bool,
    /// Writes xtask/layers.txt and the picture in docs/ARCHITECTURE.md from the sources: review the difference
    #[arg(long)]
    write: bool,
}

pub(crate) fn run(place: &Place, arguments: &Arguments) -> Outcome<bool> {
    let found = Found::read(place)?;
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

/// The step of `cargo xtask test`.
pub(crate) fn check(place: &Place) -> Outcome<Findings> {
    let found = Found::read(place)?;
    let problems = problems(place, &found)?;
    print_problems(&problems);
    let crates = found.graphs.len();
    Ok(Findings::new(usize::from(problems.is_empty()), problems.len(), format!("{crates} crates, {}", summary(&found))))
}

fn print_problems(problems: &[String]) {
    problems.iter().for_each(|problem| println!("{problem}"));
}

fn summary(found: &Found) -> String {
    let (arrows, marked) = List::of(found).counts();
    format!("{arrows} arrows, {marked} of them in cycles")
}

fn problems(place: &Place, found: &Found) -> Outcome<Vec<String>> {
    let list = read(place, LIST).map_err(Failure::during("run `cargo xtask layers --write` to begin a list"))?;
    let mut problems = List::parse(&list)?.problems(found);
    if problems.is_empty() {
        // Before that, writing the picture would accept what has to be removed.
        problems.extend(picture::problem(&read(place, DOCUMENT)?, found)?);
    }
    Ok(problems)
}

fn write(place: &Place, found: &Found) -> Outcome {
    let list = List::of(found);
    let list = match fs::read_to_string(place.root.join(LIST)) {
        Ok(text) => list.with_header_of(&List::parse(&text)?),
        Err(_) => list,
    };
    save(place, LIST, &list.text())?;
    save(place, DOCUMENT, &picture::inserted(&read(place, DOCUMENT)?, found)?)
}

fn read(place: &Place, file: &str) -> Outcome<String> {
    fs::read_to_string(place.root.join(file)).map_err(Failure::during(format!("reading {file}")))
}

fn save(place: &Place, file: &str, text: &str) -> Outcome {
    fs::write(place.root.join(file), text).map_err(Failure::during(format!("writing {file}")))
}

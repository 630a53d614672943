//! Mutations: changes of the sources, each of which a test must notice.
//!
//! The lists in `xtask/mutations` name each change by the text that it replaces. All changes are compiled into one copy
//! of the workspace (`splice`), and the environment selects one when a test runs (`switch.rs`). Each test first runs
//! once without a change, to find out which places of changes it reaches. A change is then tried with the tests that
//! reach it, until one of them fails.

mod list;
mod programs;
mod report;
mod splice;
mod tree;
mod trials;

use crate::failure::Outcome;
use crate::place::Repository;
use list::Mutation;
use std::collections::{BTreeMap, BTreeSet};
use tree::Tree;
use trials::{State, Verdict};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only the mutations whose names or files contain one of these texts
    only: Vec<String>,
    /// Only the mutations that no test has noticed, and those that were not tried
    #[arg(long)]
    survivors: bool,
    /// The time limit for one mutation in seconds; the test that runs at that time is completed
    #[arg(long, default_value_t = 180.0)]
    seconds: f64,
    /// The number of tests that run at once; the default is the number of processors
    #[arg(long)]
    jobs: Option<usize>,
    /// Measures again which changes each test reaches
    #[arg(long)]
    again: bool,
    /// Runs nothing, and shows the results of earlier runs
    #[arg(long)]
    shown: bool,
    /// Only writes the copy of the workspace, and prints the number of each change for the variable PERCALE_MUTATION
    #[arg(long)]
    tree: bool,
    /// Writes the results to docs/mutations.md
    #[arg(long)]
    write: bool,
    /// Prints the results as one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(place: &Repository, arguments: &Arguments) -> Outcome<bool> {
    let mutations = list::load(place)?;
    let mut state = State::load(place)?;
    if arguments.tree {
        let tree = Tree::write(place, &mutations, &BTreeMap::new())?;
        for (number, mutation) in chosen(&mutations, arguments, &state) {
            println!("{number:>4} {} {}", mutation.name, mutation.file);
        }
        println!("the copy is in {}", tree.root.display());
        return Ok(true);
    }
    let apart = if arguments.shown {
        BTreeMap::new()
    } else {
        let (tree, tests) = programs::build(place, &mutations)?;
        if arguments.again {
            state.tests.clear();
        }
        let jobs = arguments.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        let mut chosen = chosen(&mutations, arguments, &state);
        chosen.retain(|(number, _)| tree.functions.contains_key(number));
        for (_, mutation) in &chosen {
            state.verdicts.remove(&mutation.name);
        }
        trials::try_former(place, &tests, &chosen, &report::former(place), jobs, &mut state)?;
        chosen.retain(|(_, mutation)| !state.verdicts.contains_key(&mutation.name));
        if !chosen.is_empty() {
            trials::observe(place, &tree, &mutations, &tests, jobs, &mut state)?;
            trials::try_all(place, &tests, &chosen, jobs, arguments.seconds, &mut state)?;
        }
        tree.apart
    };
    let known: BTreeSet<&String> = mutations.iter().map(|mutation| &mutation.name).collect();
    state.verdicts.retain(|name, _| known.contains(name));
    let report = report::Report::of(&mutations, &apart, &state);
    if arguments.write {
        report.write(place)?;
    }
    if arguments.json {
        report.print_json()?
    } else {
        report.print()
    }
    Ok(report.survived() == 0)
}

fn chosen<'a>(all: &'a [Mutation], arguments: &Arguments, state: &State) -> Vec<(usize, &'a Mutation)> {
    let is_wanted = |mutation: &Mutation| {
        let Arguments { only, survivors, .. } = arguments;
        let is_named =
            only.is_empty() || only.iter().any(|part| mutation.name.contains(part) || mutation.file.contains(part));
        let is_noticed = matches!(state.verdicts.get(&mutation.name), Some(Verdict::Noticed { .. }));
        is_named && !(*survivors && is_noticed) && mutation.equivalent.is_none()
    };
    all.iter().enumerate().filter(|(_, mutation)| is_wanted(mutation)).collect()
}

#[cfg(test)]
mod tests {
    use super::list;
    use crate::place::Repository;

    #[test]
    fn each_mutation_of_the_lists_fits_the_sources() {
        let place = Repository::find().unwrap();
        let mutations = list::load(&place).unwrap();
        let fits = |mutation: &list::Mutation| {
            let text = std::fs::read_to_string(place.root.join(&mutation.file)).unwrap_or_default();
            text.matches(&mutation.old).count() == 1 && mutation.old != mutation.new
        };
        let outdated = mutations.iter().filter(|mutation| !fits(mutation));
        let outdated: Vec<String> = outdated.map(|mutation| format!("{}: {}", mutation.name, mutation.file)).collect();
        assert!(outdated.is_empty(), "correct or remove these in xtask/mutations: {outdated:#?}");
    }
}

//! Runs tests: first each test once, to find out which places of mutations it reaches and how long it takes, and then
//! the tests that reach a mutation, with the mutation.

use super::list::Mutation;
use super::programs::{Program, Test};
use super::tree::Tree;
use crate::failure::Outcome;
use crate::place::Repository;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The time limit of a test without a mutation.
const LIMIT: Duration = Duration::from_secs(240);

/// Tests with a mutation have this many times their usual time, and [`SPARE`].
const TIMES: u32 = 4;
const SPARE: Duration = Duration::from_secs(15);

/// A test that takes more seconds than this is long: it runs alone, after the others.
const LONG: f64 = 2.0;

/// The assumed usual time in seconds of a test whose time is not known.
const FORMER: f64 = 10.0;

/// The number of tests that are tried first. Each next group has twice as many.
const FIRST: usize = 8;

/// What one test reaches, and its duration.
#[derive(Serialize, Deserialize, Clone, Default)]
pub(super) struct Reach {
    pub(super) seconds: f64,
    pub(super) passed: bool,
    /// The names of the mutations with places that the test reaches.
    pub(super) mutations: BTreeSet<String>,
}

/// The state of one mutation.
#[derive(Serialize, Deserialize, Clone)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    /// A test failed or exceeded its limit: the test, and whether it ended in time.
    Noticed { by: String, ended: bool },
    /// No test failed: the number of tests that were run, and of those that reach the mutation.
    Survived { tried: usize, of: usize },
}

/// Everything that was measured, which is kept in the target directory.
#[derive(Serialize, Deserialize, Default)]
pub(super) struct State {
    pub(super) tests: BTreeMap<String, Reach>,
    /// The mutations with places that were observed.
    pub(super) observed: BTreeSet<String>,
    pub(super) verdicts: BTreeMap<String, Verdict>,
}

const FILE: &str = "mutate/state.json";

impl State {
    pub(super) fn load(place: &Repository) -> Outcome<Self> {
        Ok(place.load(FILE)?.unwrap_or_default())
    }

    pub(super) fn save(&self, place: &Repository) -> Outcome {
        place.save(FILE, self).map(drop)
    }
}

/// Calls `each` with every item, on as many threads as there are jobs.
fn in_parallel<T: Sync>(jobs: usize, items: &[T], each: impl Fn(usize, &T) + Sync) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for job in 0..jobs.max(1) {
            let (next, each) = (&next, &each);
            scope.spawn(move || {
                while let Some(item) = items.get(next.fetch_add(1, Relaxed)) {
                    each(job, item);
                }
            });
        }
    });
}

/// The end of one run of some tests of a program.
enum Ending {
    Passed,
    /// The name of the first test that failed, if the program lived to print it.
    Failed(Option<String>),
    TooLate,
}

fn run(program: &Program, names: &[&str], limit: Duration, set: &[(&str, &str)]) -> Ending {
    let Ok((mut reader, writer)) = std::io::pipe() else { return Ending::Failed(None) };
    let mut command = program.command(names);
    command.envs(set.iter().copied()).env("RUST_BACKTRACE", "0");
    command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return Ending::Failed(None) };
    drop(command);
    let start = Instant::now();
    // The pipe may outlive the program, in a child that a test left behind, so it is read by a thread of its own.
    let printed = std::sync::Arc::new(Mutex::new(Vec::new()));
    let shared = std::sync::Arc::clone(&printed);
    thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(read @ 1..) = reader.read(&mut piece) {
            shared.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&piece[..read]);
        }
    });
    let mut pause = Duration::from_millis(1);
    let status = loop {
        if let Ok(Some(status)) = child.try_wait() {
            break status;
        }
        if start.elapsed() > limit {
            crate::processes::end_with_children(child.id());
            child.wait().ok();
            return Ending::TooLate;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    if status.success() {
        return Ending::Passed;
    }
    let printed = printed.lock().unwrap_or_else(PoisonError::into_inner);
    let text = String::from_utf8_lossy(&printed);
    let failed = text.lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    Ending::Failed(failed.map(str::to_owned))
}

/// Runs each test once that is not known yet, or that failed.
pub(super) fn observe(
    place: &Repository,
    tree: &Tree,
    mutations: &[Mutation],
    tests: &[Test],
    jobs: usize,
    state: &mut State,
) -> Outcome {
    let named: Vec<(usize, &str)> =
        tree.functions.keys().map(|&number| (number, mutations[number].name.as_str())).collect();
    let names: BTreeSet<String> = named.iter().map(|(_, name)| (*name).to_owned()).collect();
    if !names.is_subset(&state.observed) {
        state.tests.clear();
    }
    state.observed = names;
    let is_known = |test: &Test| state.tests.get(&test.key()).is_some_and(|reach| reach.passed);
    let unknown: Vec<&Test> = tests.iter().filter(|test| !is_known(test)).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    println!("running {} tests, each once, to find out which places of mutations they reach", unknown.len());
    let directory = place.target.join("mutate");
    let (found, start, count) = (Mutex::new(&mut state.tests), Instant::now(), unknown.len());
    let done = AtomicUsize::new(0);
    in_parallel(jobs, &unknown, |job, test| {
        let reach = observed(&named, test, &directory.join(format!("reached-{job}")));
        if !reach.passed {
            println!("  {} fails without a mutation; it is left out", test.key());
        }
        found.lock().unwrap_or_else(PoisonError::into_inner).insert(test.key(), reach);
        let done = done.fetch_add(1, Relaxed) + 1;
        if done.is_multiple_of(200) {
            println!("  {done} of {count} in {:.0} s", start.elapsed().as_secs_f64());
        }
    });
    state.save(place)
}

fn observed(named: &[(usize, &str)], test: &Test, file: &Path) -> Reach {
    let last = named.last().map_or(0, |(number, _)| *number);
    if fs::write(file, vec![0; last + 1]).is_err() {
        return Reach::default();
    }
    let start = Instant::now();
    let set = [("PERCALE_MUTATION_REACHED", &*file.to_string_lossy())];
    let passed = matches!(run(&test.program, &[&test.name], LIMIT, &set), Ending::Passed);
    let seconds = start.elapsed().as_secs_f64();
    let reached = fs::read(file).unwrap_or_default();
    let mutations = named.iter().filter(|(number, _)| reached.get(*number) == Some(&1));
    Reach { seconds, passed, mutations: mutations.map(|(_, name)| (*name).to_owned()).collect() }
}

/// Tries each mutation with the test that noticed it in an earlier run, as docs/mutations.md names it. Most mutations need
/// no more than that.
pub(super) fn try_former(
    place: &Repository,
    tests: &[Test],
    chosen: &[(usize, &Mutation)],
    former: &BTreeMap<String, String>,
    jobs: usize,
    state: &mut State,
) -> Outcome {
    let of_key: BTreeMap<String, &Test> = tests.iter().map(|test| (test.key(), test)).collect();
    let named = chosen.iter().filter_map(|&(number, mutation)| {
        let test = *of_key.get(former.get(&mutation.name)?)?;
        Some((number, mutation, test))
    });
    let named: Vec<_> = named.collect();
    if named.is_empty() {
        return Ok(());
    }
    println!("trying {} mutations with the test that noticed each of them before", named.len());
    let found = Mutex::new(&mut *state);
    in_parallel(jobs, &named, |_, &(number, mutation, test)| {
        let reach = Reach { seconds: FORMER, ..Reach::default() };
        if let Some(verdict) = noticed_by(&[(test, &reach)], &number.to_string()) {
            found.lock().unwrap_or_else(PoisonError::into_inner).verdicts.insert(mutation.name.clone(), verdict);
        } else {
            println!("  {} is no longer noticed by {}", mutation.name, test.key());
        }
    });
    state.save(place)
}

/// Runs the tests that reach each mutation, until one fails, and prints a line for each mutation.
pub(super) fn try_all(
    place: &Repository,
    tests: &[Test],
    chosen: &[(usize, &Mutation)],
    jobs: usize,
    seconds: f64,
    state: &mut State,
) -> Outcome {
    let (reached, done) = (state.tests.clone(), AtomicUsize::new(0));
    let state = Mutex::new(state);
    in_parallel(jobs, chosen, |_, &(number, mutation)| {
        let verdict = tried(number, mutation, tests, &reached, seconds);
        let count = done.fetch_add(1, Relaxed) + 1;
        let text = match &verdict {
            Verdict::Noticed { by, .. } => format!("noticed by {by}"),
            Verdict::Survived { tried, of } => format!("NOT NOTICED by {tried} of {of} tests"),
        };
        println!("  {count:>4}/{} {} {text}", chosen.len(), mutation.name);
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        state.verdicts.insert(mutation.name.clone(), verdict);
        if count.is_multiple_of(8)
            && let Err(failure) = state.save(place)
        {
            println!("  {failure}");
        }
    });
    state.into_inner().unwrap_or_else(PoisonError::into_inner).save(place)
}

fn tried(
    number: usize,
    mutation: &Mutation,
    tests: &[Test],
    reached: &BTreeMap<String, Reach>,
    seconds: f64,
) -> Verdict {
    let known = tests.iter().filter_map(|test| Some((test, reached.get(&test.key())?)));
    let mut reaching: Vec<(&Test, &Reach)> =
        known.filter(|(_, reach)| reach.passed && reach.mutations.contains(&mutation.name)).collect();
    // The tests of the crate itself, and those that reach few mutations, examine this one more closely. Long tests come
    // last.
    reaching.sort_by_key(|(test, reach)| {
        let is_of_another_crate = !test.program.is_of(&mutation.file);
        ((reach.seconds / LONG).floor() as u64, is_of_another_crate, reach.mutations.len())
    });
    let (start, of, number) = (Instant::now(), reaching.len(), number.to_string());
    let (mut tried, mut size) = (0, FIRST);
    while tried < of {
        if start.elapsed().as_secs_f64() > seconds {
            return Verdict::Survived { tried, of };
        }
        let rest = &reaching[tried..];
        let short = rest.iter().take(size).take_while(|(_, reach)| reach.seconds < LONG).count();
        let group = &rest[..short.max(1)];
        if let Some(verdict) = noticed_by(group, &number) {
            return verdict;
        }
        (tried, size) = (tried + group.len(), size * 2);
    }
    Verdict::Survived { tried, of }
}

/// Runs these tests with a mutation, those of one program together.
fn noticed_by(group: &[(&Test, &Reach)], number: &str) -> Option<Verdict> {
    let mut programs: BTreeMap<String, Vec<(&Test, &Reach)>> = BTreeMap::new();
    for &(test, reach) in group {
        programs.entry(test.program.key()).or_default().push((test, reach));
    }
    programs.values().find_map(|tests| {
        let program = &tests[0].0.program;
        let names: Vec<&str> = tests.iter().map(|(test, _)| test.name.as_str()).collect();
        let usual: f64 = tests.iter().map(|(_, reach)| reach.seconds).sum();
        let limit = Duration::from_secs_f64(usual) * TIMES + SPARE;
        let (failed, ended) = match run(program, &names, limit, &[("PERCALE_MUTATION", number)]) {
            Ending::Passed => return None,
            Ending::Failed(failed) => (failed, true),
            Ending::TooLate => (None, false),
        };
        let failed: Vec<&str> =
            names.iter().copied().filter(|name| failed.as_deref().is_none_or(|one| one == *name)).collect();
        // A test may also fail by chance.
        let by_chance = !matches!(run(program, &failed, limit, &[]), Ending::Passed);
        let by = match failed[..] {
            [one] => format!("{} {one}", program.key()),
            _ => format!("{} {} or another of {} tests", program.key(), failed.first()?, failed.len()),
        };
        (!by_chance).then_some(Verdict::Noticed { by, ended })
    })
}

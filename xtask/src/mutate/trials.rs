//! Runs tests: first each test once, to find out which functions it calls and how long it takes, and then the tests
//! that call a mutated function, with the mutation.

use super::list::Mutation;
use super::programs::Test;
use super::tree::Tree;
use crate::failure::Outcome;
use crate::place::Repository;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The time limit of a test without a mutation.
const LIMIT: Duration = Duration::from_secs(240);

/// A test with a mutation has this many times its usual time, and [`SPARE`].
const TIMES: u32 = 4;
const SPARE: Duration = Duration::from_secs(15);

/// The calls and the duration of one test.
#[derive(Serialize, Deserialize, Clone, Default)]
pub(super) struct Reach {
    pub(super) seconds: f64,
    pub(super) passed: bool,
    /// The called functions that have mutations.
    pub(super) functions: BTreeSet<String>,
}

/// The state of one mutation.
#[derive(Serialize, Deserialize, Clone)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    /// A test failed or exceeded its limit. The number of tests that were run, and whether the test ended in time.
    Noticed { by: String, tried: usize, ended: bool },
    /// No test failed: the number of tests that were run, and of those that call the function.
    Survived { tried: usize, of: usize },
}

/// Everything that was measured, which is kept in the target directory.
#[derive(Serialize, Deserialize, Default)]
pub(super) struct State {
    pub(super) tests: BTreeMap<String, Reach>,
    /// The functions that were observed.
    pub(super) functions: BTreeSet<String>,
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

/// The end of one run of a test.
#[derive(PartialEq, Eq, Clone, Copy)]
enum Ending {
    Passed,
    Failed,
    TooLate,
}

fn run(test: &Test, limit: Duration, set: &[(&str, &str)]) -> Ending {
    let mut command = test.program().into_command();
    command.envs(set.iter().copied()).env("RUST_BACKTRACE", "0");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return Ending::Failed };
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return if status.success() { Ending::Passed } else { Ending::Failed };
        }
        if start.elapsed() > limit {
            crate::processes::end_with_children(child.id());
            child.wait().ok();
            return Ending::TooLate;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Runs each test once that is not known yet, or that failed.
pub(super) fn observe(place: &Repository, tree: &Tree, tests: &[Test], jobs: usize, state: &mut State) -> Outcome {
    let functions: BTreeSet<String> = tree.functions.values().cloned().collect();
    if !functions.is_subset(&state.functions) {
        state.tests.clear();
    }
    state.functions = functions;
    let unknown: Vec<&Test> =
        tests.iter().filter(|test| !state.tests.get(&test.key()).is_some_and(|reach| reach.passed)).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    println!("running {} tests, each once, to find out which functions they call", unknown.len());
    let directory = place.target.join("mutate");
    let (found, start, count) = (Mutex::new(&mut state.tests), Instant::now(), unknown.len());
    in_parallel(jobs, &unknown, |job, test| {
        let reach = observed(tree, test, &directory.join(format!("calls-{job}")));
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        if !reach.passed {
            println!("  {} fails without a mutation; it is left out", test.key());
        }
        found.insert(test.key(), reach);
        if found.len().is_multiple_of(200) {
            println!("  {} of {count} in {:.0} s", found.len(), start.elapsed().as_secs_f64());
        }
    });
    state.save(place)
}

fn observed(tree: &Tree, test: &Test, calls: &Path) -> Reach {
    let last = tree.functions.keys().max().copied().unwrap_or_default();
    if fs::write(calls, vec![0; last + 1]).is_err() {
        return Reach::default();
    }
    let start = Instant::now();
    let ending = run(test, LIMIT, &[("PERCALE_MUTATION_CALLS", &calls.to_string_lossy())]);
    let seconds = start.elapsed().as_secs_f64();
    let called = fs::read(calls).unwrap_or_default();
    let functions = tree.functions.iter().filter(|(number, _)| called.get(**number) == Some(&1));
    Reach { seconds, passed: ending == Ending::Passed, functions: functions.map(|(_, name)| name.clone()).collect() }
}

/// Runs the tests that call each mutated function, until one fails, and prints a line for each mutation.
pub(super) fn try_all(
    place: &Repository,
    tree: &Tree,
    tests: &[Test],
    chosen: &[(usize, &Mutation)],
    jobs: usize,
    seconds: f64,
    state: &mut State,
) -> Outcome {
    let (reached, done) = (state.tests.clone(), AtomicUsize::new(0));
    let state = Mutex::new(state);
    in_parallel(jobs, chosen, |_, &(number, mutation)| {
        let Some(function) = tree.functions.get(&number) else { return };
        let verdict = tried(number, function, tests, &reached, seconds);
        let count = done.fetch_add(1, Relaxed) + 1;
        let text = match &verdict {
            Verdict::Noticed { by, tried, .. } => format!("noticed by {by} (test {tried})"),
            Verdict::Survived { tried, of, .. } => format!("NOT NOTICED by {tried} of {of} tests"),
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

fn tried(number: usize, function: &str, tests: &[Test], reached: &BTreeMap<String, Reach>, seconds: f64) -> Verdict {
    let mut calling: Vec<(&Test, &Reach)> = tests
        .iter()
        .filter_map(|test| Some((test, reached.get(&test.key())?)))
        .filter(|(_, reach)| reach.passed && reach.functions.contains(function))
        .collect();
    // Tests that call few mutated functions examine those more closely. Long tests come last.
    calling.sort_by_key(|(_, reach)| ((reach.seconds / 2.0).floor() as u64, reach.functions.len()));
    let (start, of, number) = (Instant::now(), calling.len(), number.to_string());
    for (index, (test, reach)) in calling.iter().enumerate() {
        if start.elapsed().as_secs_f64() > seconds {
            return Verdict::Survived { tried: index, of };
        }
        let limit = Duration::from_secs_f64(reach.seconds) * TIMES + SPARE;
        let ending = run(test, limit, &[("PERCALE_MUTATION", &number)]);
        // A test may also fail by chance.
        if ending != Ending::Passed && run(test, limit, &[]) == Ending::Passed {
            return Verdict::Noticed { by: test.key(), tried: index + 1, ended: ending == Ending::Failed };
        }
    }
    Verdict::Survived { tried: of, of }
}

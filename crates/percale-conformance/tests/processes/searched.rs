//! The search with several processes ends its rounds, regardless of what happens to its workers.

use std::path::Path;
use std::time::Duration;

use percale_conformance::process::command_of;
use percale_conformance::watchdog::Watchdog;

/// Runs a round over shared memory with these kinds of events.
fn round(seed: u64, kinds: &str) -> (bool, String) {
    let _watchdog = Watchdog::within("a round of the search", Duration::from_secs(300));
    let mut search = command_of(Path::new(env!("CARGO_BIN_EXE_search-processes")));
    search.args(["--transport", "shm", "--rounds", "1", "--set", "active=4", "--set", "workers=4", "--kinds", kinds]);
    let output = search.args(["--seed", &seed.to_string()]).output().expect("the search runs");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A forked child may hold the output of a worker longer than the round waits, after the worker has executed another
/// program or was killed.
#[test]
fn round_does_not_wait_for_executed_or_killed_workers() {
    let (is_good, printed) = round(1, "exec,fork,kill");
    assert!(is_good, "{printed}");
}

#[test]
fn a_search_reports_its_seed_its_counts_and_its_rates() {
    let (is_good, printed) = round(7, "windows,connected");
    assert!(is_good, "{printed}");
    for word in ["seed 7", "operations/s", "lives/s"] {
        assert!(printed.contains(word), "{word} is missing: {printed}");
    }
}

//! `cargo xtask sanitize`: the tests and the searches under sanitizers.
//!
//! AddressSanitizer works with the stable compiler. ThreadSanitizer needs a standard library that was built with it,
//! and therefore the nightly toolchain with the sources of that library. Miri is a component of that toolchain. A
//! missing one is reported, with the command that installs it.

use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use crate::results::TestEnding;
use crate::sanitizer::{Reports, Sanitizer};
use crate::search::{self, Searcher};
use crate::table::table;
use crate::test::harness;
use crate::toolchain::nightly;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only these
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Tool>,
    /// The duration of each search in minutes
    #[arg(long, default_value_t = 2.0)]
    minutes: f64,
    /// Only tests with this text in their path, and no search
    #[arg(long)]
    filter: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Tool {
    /// Invalid uses of memory
    Address,
    /// Data races
    Thread,
    /// Undefined behavior, in the modules that use no system calls
    Miri,
}

/// Packages with programs that cannot be instrumented, with the reason.
const EXCLUDED: [(&str, &str); 2] = [
    ("xtask", "it runs the other tests"),
    ("percale-ofi", "its tests are C programs, which `cargo xtask walk` runs with the instrumented provider"),
];

/// Tests that cannot run in an instrumented process, by a part of their names, with the reason.
const SKIPPED: [(&str, &str); 21] = [
    ("cache_at_address_space_limit_is_never_stale", LIMITED),
    ("resource_limit_gives_a_result_or_an_error_naming_it", LIMITED),
    ("every_observed_system_call_is_denied_or_exempt", DENIED),
    ("cache_with_denied_call_is_never_stale_and_names_the_call", DENIED),
    ("denied_system_call_gives_a_result_or_an_error_naming_it", DENIED),
    ("sharing_an_endpoint_of_one_owner_is_an_error_that_names_the_shared_one", COMPILED),
    ("programs_that_move_or_share_endpoints_compile", COMPILED),
    ("c_example_registers_once_for_many_transfers", COMPILED),
    ("c_programs_pass_valgrind", COMPILED),
    ("every_function_works_from_c", COMPILED),
    ("every_function_of_the_header_is_exported_and_used", COMPILED),
    ("use_bounded_memory_and_block_no_peer", MEASURED),
    ("endless_and_truncated_input_uses_bounded_memory", MEASURED),
    ("idle_shm_peers_cost_little", MEASURED),
    ("idle_tcp_peers_cost_little", MEASURED),
    ("trusted_peer_has_mapping_or_address", SEARCHED),
    ("an_untrusted_peer_gets_neither_mapping_nor_address", SEARCHED),
    ("another_processs_changes_are_not_reported", CHANGED),
    ("locked_memory_uses_few_mappings_and_releases_them", CHANGED),
    ("hits_while_threads_come_and_go", CHANGED),
    ("realloc_by_mremap_renews_the_registration", "the sanitizer has its own allocator, which makes no mremap"),
];

/// Tests that cannot run with ThreadSanitizer, in addition.
const SKIPPED_WITH_THREADS: [(&str, &str); 4] = [
    ("a_failed_lock_leaves_no_page_locked", NOT_LOCKED),
    ("a_mapping_that_replaces_memory_locked_by_the_program_is_unlocked", NOT_LOCKED),
    ("locks_beside_a_lock_of_the_program_end_with_the_registration", NOT_LOCKED),
    ("memory_that_is_not_kept_because_pages_were_dropped_is_not_locked", NOT_LOCKED),
];

/// Returns the tests that cannot run with a sanitizer.
fn skipped(sanitizer: Sanitizer) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let more: &[_] = if sanitizer == Sanitizer::Thread { &SKIPPED_WITH_THREADS } else { &[] };
    SKIPPED.iter().chain(more)
}

const LIMITED: &str = "the sanitizer itself needs more address space than the test allows";
const DENIED: &str = "the sanitizer itself makes the system calls that the test denies";
const COMPILED: &str = "it compiles programs against the library, without the flags of the sanitizer";
const MEASURED: &str = "it measures memory, and the sanitizer keeps freed memory for a while";
const SEARCHED: &str = "it searches all memory of a process, and that of the sanitizer takes hours";
const NOT_LOCKED: &str = "ThreadSanitizer replaces mlock by a function that does nothing";
const CHANGED: &str = "it expects no changes of its own mappings, and the sanitizer changes some";

/// The tests that Miri can run: those of the modules without system calls.
const MIRI: [(&str, &str); 3] = [("percale-wire", ""), ("percale-memory", "table::"), ("percale", "matching::")];

/// Tests that Miri cannot run, by a part of their names, with the reason.
const SKIPPED_IN_MIRI: [(&str, &str); 2] = [
    ("table_is_full_when_every_wire_number_is_used", "it makes millions of entries, which takes hours in Miri"),
    ("matching::tests::scale", "they match thousands of messages, and did not end in Miri within five minutes"),
];

/// The result of one tool.
struct Row {
    what: String,
    passed: usize,
    failed: usize,
    skipped: usize,
    reports: usize,
    note: String,
}

pub(crate) fn run(place: &Repository, arguments: &Arguments) -> Outcome<bool> {
    let is_wanted = |tool: Tool| arguments.only.is_empty() || arguments.only.contains(&tool);
    let mut rows = Vec::new();
    if is_wanted(Tool::Address) {
        rows.extend(instrumented(place, Sanitizer::Address, arguments)?);
    }
    if is_wanted(Tool::Thread) {
        match Sanitizer::Thread.cargo(place, "test") {
            Ok(_) => rows.extend(instrumented(place, Sanitizer::Thread, arguments)?),
            Err(why) => println!("ThreadSanitizer did not run: {why}"),
        }
    }
    if is_wanted(Tool::Miri) {
        match miri() {
            Ok(()) => rows.push(interpreted(place)?),
            Err(why) => println!("Miri did not run: {why}"),
        }
    }
    let mut shown = table(["what", "passed", "failed", "skipped", "reports", "note"], 1);
    for row in &rows {
        let counts = [row.passed, row.failed, row.skipped, row.reports].map(|count| count.to_string());
        shown.add_row([row.what.clone()].into_iter().chain(counts).chain([row.note.clone()]));
    }
    println!("{shown}");
    for (name, why) in EXCLUDED.iter().chain(&SKIPPED).chain(&SKIPPED_WITH_THREADS).chain(&SKIPPED_IN_MIRI) {
        println!("left out: {name}: {why}");
    }
    Ok(!rows.is_empty() && rows.iter().all(|row| row.failed == 0 && row.reports == 0))
}

fn miri() -> Outcome {
    let found = nightly("cargo").args(["miri", "--version"]).output()?;
    let missing = "it is not installed: rustup component add miri rust-src --toolchain nightly";
    if found.status.success() { Ok(()) } else { Err(Failure::new(missing)) }
}

/// Runs the tests and the searches with a sanitizer.
fn instrumented(place: &Repository, sanitizer: Sanitizer, arguments: &Arguments) -> Outcome<Vec<Row>> {
    let reports = Reports::start(place, sanitizer)?;
    println!("{}: tests", sanitizer.name());
    let excluded = EXCLUDED.iter().flat_map(|(package, _)| ["--exclude", package]);
    let program = sanitizer.cargo(place, "test")?.args(["--workspace", "--tests", "--no-fail-fast"]).args(excluded);
    let skipped = skipped(sanitizer).flat_map(|(name, _)| ["--skip", name]);
    let program = program.args(["--", "--show-output"]).args(skipped).args(&arguments.filter);
    let (found, note) = match harness("sanitize", reports.of(program)) {
        Ok(found) => (found, String::new()),
        Err(failure) => (Vec::new(), failure.to_string()),
    };
    let count = |ending| found.iter().filter(|test| test.ending == ending).count();
    let row = Row {
        what: format!("{}, tests", sanitizer.name()),
        passed: count(TestEnding::Passed),
        failed: count(TestEnding::Failed) + usize::from(!note.is_empty()),
        skipped: count(TestEnding::Skipped),
        reports: reports.found()?.len(),
        note,
    };
    let mut rows = vec![row];
    if arguments.filter.is_none() {
        for searcher in Searcher::ALL {
            println!("{}: {}", sanitizer.name(), searcher.name());
            let reports = Reports::start(place, sanitizer)?;
            let findings = search::instrumented(place, searcher, arguments.minutes, sanitizer, &reports)?;
            rows.push(Row {
                what: format!("{}, {}", sanitizer.name(), searcher.name()),
                passed: findings.passed,
                failed: findings.failed,
                skipped: 0,
                reports: reports.found()?.len(),
                note: findings.note,
            });
        }
    }
    Ok(rows)
}

/// Runs the tests of modules without system calls in Miri.
fn interpreted(place: &Repository) -> Outcome<Row> {
    println!("Miri: tests");
    let mut found = Vec::new();
    for (package, part) in MIRI {
        let program = nightly("cargo").within(&place.root).args(["miri", "test", "-p", package, "--lib"]);
        let program = program.env("CARGO_TARGET_DIR", place.target.join("miri"));
        // The property tests read the working directory. Each of their cases takes much longer than in a program.
        let program = program.env("MIRIFLAGS", "-Zmiri-disable-isolation").env("PROPTEST_CASES", "1");
        let program = program.args(["--", "--show-output", part]);
        let program = program.args(SKIPPED_IN_MIRI.iter().flat_map(|(name, _)| ["--skip", name]));
        found.extend(harness("miri", program)?);
    }
    let count = |ending| found.iter().filter(|test| test.ending == ending).count();
    Ok(Row {
        what: "Miri, tests".to_owned(),
        passed: count(TestEnding::Passed),
        failed: count(TestEnding::Failed),
        skipped: count(TestEnding::Skipped),
        reports: 0,
        note: String::new(),
    })
}

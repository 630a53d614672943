//! The steps that run tests with Rust's harness. The result of each test is stored.

use crate::capabilities;
use crate::failure::{Failure, Outcome};
use crate::libtest::{LibtestLine, Reader};
use crate::place::Repository;
use crate::program::{Program, Stream};
use crate::results::{Results, TestEnding, TestResult};
use crate::steps::Findings;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Runs all tests of the workspace. With a filter, the results are printed but not stored, because they would replace
/// those of all tests.
pub(super) fn tests(place: &Repository, filter: Option<&str>, all: bool) -> Outcome<Findings> {
    let program = place.cargo().args(["test", "--workspace", "--no-fail-fast"]).args(filter);
    let program = program.args(["--", "--show-output"]).env("RUST_TEST_THREADS", threads());
    let found = harness("tests", at_length(program, all))?;
    if filter.is_none() {
        Results::replace(place, "tests", &found)?;
    }
    Ok(findings(&found, "no test matches"))
}

/// Returns the number of tests that run at once: two for each processor, because many tests wait.
pub(super) fn threads() -> String {
    (std::thread::available_parallelism().map_or(1, usize::from) * 2).to_string()
}

/// Selects the long forms of the tests if `all` is set.
pub(super) fn at_length(program: Program, all: bool) -> Program {
    if all { program.env("PERCALE_LONG", "1") } else { program }
}

/// The tests of the libraries that need an RDMA device, and the tests of the suite over verbs.
pub(crate) const VERBS: [&str; 5] =
    ["verbs::", "wrapper_tests::", "layout_tests::", "tests::pairs::", "engine::tests::rdma"];

/// Runs the tests that need an RDMA device on a test double of libibverbs, which emulates a device in software. The
/// step `tests` uses the machine's own devices.
pub(super) fn verbs(place: &Repository, filter: Option<&str>, all: bool) -> Outcome<Findings> {
    place.cargo().args(["build", "--quiet", "--profile", "test", "-p", DOUBLE]).passed()?;
    let double = place.target.join("debug").join("libpercale_verbs_double.so");
    // The whole workspace, as in the step `tests`: fewer packages would be built again, with other features.
    let packages = ["test", "--workspace", "--no-fail-fast", "--tests"];
    let filters = filter.map_or_else(|| VERBS.to_vec(), |one| vec![one]);
    let program = place.cargo().args(packages).arg("--").args(filters);
    let program = program.arg("--show-output").env("PERCALE_VERBS_LIBRARY", &double);
    let program = at_length(program.env("RUST_TEST_THREADS", threads()), all);
    let found = harness("verbs", program)?;
    if filter.is_none() {
        Results::replace(place, "verbs", &found)?;
    }
    Ok(findings(&found, "no test matches"))
}

/// The package of the test double of libibverbs.
pub(crate) const DOUBLE: &str = "percale-verbs-double";

/// The packages with loom models, as arguments of cargo.
pub(crate) const MODELS: [&str; 10] =
    ["-p", "percale", "-p", "percale-memory", "-p", "percale-region", "-p", "percale-transport", "-p", "pindown"];

/// Runs the loom models, which are unit tests of the libraries with `loom_` in their names. They are built separately,
/// with loom's types instead of those of the standard library.
pub(super) fn loom(place: &Repository, all: bool) -> Outcome<Findings> {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default() + " --cfg loom";
    let program = place.cargo().args(["test", "--profile", "loom", "--lib"]).args(MODELS);
    let program = program.arg("--target-dir").arg(place.target.join("loom")).args(["loom_", "--", "--show-output"]);
    let found = harness("loom", at_length(program.env("RUSTFLAGS", flags.trim()), all))?;
    Results::replace(place, "loom", &found)?;
    Ok(findings(&found, "no model ran"))
}

/// Returns the number of tests that ended in this way.
pub(super) fn count(found: &[TestResult], ending: TestEnding) -> usize {
    found.iter().filter(|test| test.ending == ending).count()
}

fn findings(found: &[TestResult], none: &str) -> Findings {
    let count = |ending| count(found, ending);
    let (passed, failed) = (count(TestEnding::Passed), count(TestEnding::Failed));
    if found.is_empty() {
        // A step that ran no checks has not passed.
        return Findings::new(0, 1, none);
    }
    let apart = [(TestEnding::Skipped, "skipped"), (TestEnding::Ignored, "ignored")];
    let apart = apart.map(|(ending, what)| (count(ending), what)).into_iter().filter(|(count, _)| *count > 0);
    let mut note = apart.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ");
    // A machine for CI has certain capabilities, and a test that was skipped because of one of them has failed.
    let refused = if crate::machine::is_ci() { capabilities::refused(found) } else { Vec::new() };
    if !refused.is_empty() {
        refused.iter().for_each(|line| println!("  {line}"));
        note += &format!(", {} of them because of capabilities that CI must have", refused.len());
    }
    Findings::new(passed, failed + refused.len(), note).with_remarks(skips(found))
}

/// Returns the number of skipped tests for each missing capability and reason, in descending order.
pub(super) fn skips(found: &[TestResult]) -> Vec<String> {
    let mut reasons = BTreeMap::<String, usize>::new();
    for test in found.iter().filter(|test| test.ending == TestEnding::Skipped) {
        let because = test.because.as_deref().unwrap_or("no reason given");
        let lacks = test.lacks.as_ref().map(|capability| format!(" ({capability})")).unwrap_or_default();
        *reasons.entry(format!("skipped{lacks}: {because}")).or_default() += 1;
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, count)| Reverse(*count));
    reasons.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect()
}

/// Runs `cargo test` and reads the result of every test. Prints the counts of each program, and all output that does
/// not belong to a passed test.
pub(crate) fn harness(step: &'static str, program: Program) -> Outcome<Vec<TestResult>> {
    let mut reader = Reader::new(step);
    let mut start = Instant::now();
    let mut before = 0;
    let program = program.env("CARGO_TERM_COLOR", "never").limit(Duration::from_secs(90 * 60));
    let read = |reader: &mut Reader, stream, line: &str| match stream {
        Stream::Output => reader.read(line),
        Stream::Error => reader.read_error(line),
    };
    let status = program.streams(|stream, line| match read(&mut reader, stream, line) {
        LibtestLine::Program => (start, before) = (Instant::now(), reader.tests.len()),
        LibtestLine::Totals => {
            let count = |ending| reader.tests[before..].iter().filter(|test| test.ending == ending).count();
            let tests = reader.tests.len() - before - count(TestEnding::Elsewhere);
            let seconds = start.elapsed().as_secs_f64();
            if tests > 0 {
                let skipped = count(TestEnding::Skipped);
                let skipped = if skipped > 0 { format!(", {skipped} of them skipped") } else { String::new() };
                println!("  {:<44} {tests:>5} tests {seconds:>7.1} s{skipped}", reader.program());
            }
        }
        LibtestLine::Test(TestEnding::Passed) | LibtestLine::Output | LibtestLine::Announced => {}
        LibtestLine::Test(_) => println!("  {line}"),
        LibtestLine::Other if is_chatter(line) => {}
        LibtestLine::Other => println!("  {line}"),
    })?;
    reader.close();
    if let Some(what) = reader.unread.first() {
        return Err(Failure::new(format!("{what} ({status})")));
    }
    if !status.success() && reader.count(TestEnding::Failed) == 0 {
        return Err(Failure::new(format!("cargo test ended with {status}")));
    }
    Ok(reader.tests)
}

/// Returns whether a line occurs in every run and contains no information.
fn is_chatter(line: &str) -> bool {
    let line = line.trim_start();
    let begins =
        ["running ", "Finished ", "Compiling ", "Fresh ", "Downloaded ", "Downloading ", "Blocking ", "Locking "];
    line.is_empty() || begins.iter().any(|beginning| line.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::skips;
    use crate::place::Repository;
    use crate::results::{TestEnding, TestResult};

    #[test]
    fn skipped_tests_are_counted_by_reason() {
        let test = |ending, because: Option<&str>| {
            let lacks = because.filter(|&because| because == "no device").map(|_| "RDMA device".to_owned());
            let because = because.map(str::to_owned);
            TestResult { because, lacks, ..TestResult::new("tests", "conformance", "a", ending) }
        };
        let (device, root) = (Some("no device"), Some("not root"));
        let found = [
            test(TestEnding::Skipped, root),
            test(TestEnding::Skipped, device),
            test(TestEnding::Passed, None),
            test(TestEnding::Skipped, device),
            test(TestEnding::Skipped, None),
            test(TestEnding::Elsewhere, Some("in the guest")),
        ];
        let lines = skips(&found);
        assert_eq!(lines[0], "2 skipped (RDMA device): no device");
        assert!(lines.len() == 3 && lines.contains(&"1 skipped: no reason given".to_owned()));
    }

    /// Returns the tests that run a loom model but that the step `loom` does not select, because of their names.
    fn unselected(text: &str) -> Vec<&str> {
        let tests = text.split("#[test]").skip(1).filter(|test| test.contains(" explore("));
        let names = tests.filter_map(|test| test.split_once("fn ")?.1.split('(').next());
        names.filter(|name| !name.starts_with("loom_")).collect()
    }

    #[test]
    fn each_loom_model_is_selected_and_states_its_number_of_executions() {
        let calls = |name: &str| format!("#[test]\nfn {name}() {{\n    explore(None, 9, || {{}});\n}}\n");
        assert_eq!(unselected(&(calls("loom_one") + &calls("two"))), ["two"]);
        let (mut never_run, mut uncounted) = (Vec::new(), Vec::new());
        for path in Repository::find().unwrap().sources(&["rs"]) {
            let text = std::fs::read_to_string(&path).unwrap();
            never_run.extend(unselected(&text).into_iter().map(|name| format!("{}: {name}", path.display())));
            if text.contains("loom::model") && !path.ends_with("src/sync/model.rs") {
                uncounted.push(path);
            }
        }
        assert!(never_run.is_empty(), "these models never run; begin their names with `loom_`: {never_run:#?}");
        assert!(uncounted.is_empty(), "run the models with `sync::explore`, which counts executions: {uncounted:#?}");
    }

    /// Returns the part of a source before its tests and models.
    fn without_tests(text: &str) -> &str {
        let starts = ["#[cfg(test)]", "#[cfg(all(test,", "#[cfg(any(test", "#[cfg(all(any(test"];
        let modules = text.match_indices("#[cfg(").map(|(at, _)| at).filter(|at| {
            let (attribute, item) = text[*at..].split_once('\n').unwrap_or_default();
            starts.iter().any(|start| attribute.starts_with(start)) && item.starts_with("mod ")
        });
        modules.min().map_or(text, |at| &text[..at])
    }

    /// The table in docs/ARCHITECTURE.md names each file of the rings, the rundown, the journal and the modules around
    /// them that has a relaxed access or a fence.
    #[test]
    fn each_relaxed_access_and_fence_is_explained() {
        const MODULES: [&str; 6] = [
            "percale-memory/src/",
            "percale-region/src/",
            "percale-transport/src/shm/",
            "pindown/src/journal/",
            "pindown/src/cache/",
            "pindown/src/monitor/",
        ];
        assert_eq!(without_tests("a\n#[cfg(test)]\nuse b;\n#[cfg(test)]\nmod tests {}"), "a\n#[cfg(test)]\nuse b;\n");
        let place = Repository::find().unwrap();
        let explained = std::fs::read_to_string(place.root.join("docs/ARCHITECTURE.md")).unwrap();
        let (_, explained) = explained.split_once("## Memory order").expect("the section");
        let mut missing = Vec::new();
        for path in place.sources(&["rs"]) {
            let name = path.strip_prefix(place.root.join("crates")).unwrap().to_string_lossy().into_owned();
            let is_test = ["test", "model"].iter().any(|word| name.contains(word));
            if is_test || !MODULES.iter().any(|module| name.starts_with(module)) {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let text = without_tests(&text);
            let has_any = text.contains("Ordering::Relaxed") || text.contains("fence(Ordering::");
            if has_any && !explained.contains(&format!("`{name}`")) {
                missing.push(name);
            }
        }
        assert!(missing.is_empty(), "explain their memory order in docs/ARCHITECTURE.md: {missing:#?}");
    }
}

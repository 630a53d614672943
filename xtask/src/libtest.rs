//! Reads the output of `cargo test -- --show-output`.
//!
//! Two kinds of lines in a test's output are read:
//!
//! * `skipped (CAPABILITY): reason`, also with a text before the colon: the test cannot run on this machine because that
//!   capability is missing. It proves nothing and is counted separately. See [`capabilities`](crate::capabilities).
//! * `proved shm/c: MR-001 MR-002` and `failed shm/c: MR-003`: results of single requirements in a cell. Lines with
//!   `failed` are also read from the output of failed tests.
//!
//! Stable Rust has no machine-readable results, so the text output is parsed. The harness writes its lines to standard
//! output in pieces. The helper processes of tests and Cargo write to standard error. The two streams are read
//! separately, because in a single pipe a helper's warning could appear within a test's line. A test that bypasses the
//! harness can still break a line. Therefore the parsed lines are compared with the totals that the harness prints for
//! each program. A difference is reported as a failure.

use crate::capabilities;
use crate::results::{Claims, TestEnding, TestResult};
use std::collections::VecDeque;

/// Parses the output line by line.
pub(crate) struct Reader {
    step: &'static str,
    /// The programs that Cargo has announced and whose tests have not started.
    announced: VecDeque<String>,
    program: String,
    /// The index in `tests` of the first test of this program.
    first: usize,
    pub(crate) tests: Vec<TestResult>,
    /// Test programs with totals that do not match the parsed lines, and programs that ended without totals.
    pub(crate) unread: Vec<String>,
    is_open: bool,
    /// Set while the lines are the output of passed tests. The list of their names follows. The output may contain
    /// anything, including the output of a test program that a test runs.
    in_output: bool,
    /// Set while the lines are the names of passed tests.
    in_names: bool,
    /// The test whose output is being read.
    speaker: Option<String>,
}

/// The kind of a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LibtestLine {
    /// Cargo is about to start a test program.
    Announced,
    /// A test program starts.
    Program,
    /// One test ended.
    Test(TestEnding),
    /// The totals of a program.
    Totals,
    /// The output of a passed test.
    Output,
    /// Another line, such as a compiler message or the output of a failed test.
    Other,
}

impl Reader {
    pub(crate) fn new(step: &'static str) -> Self {
        Self {
            step,
            announced: VecDeque::new(),
            program: String::new(),
            first: 0,
            tests: Vec::new(),
            unread: Vec::new(),
            is_open: false,
            in_output: false,
            in_names: false,
            speaker: None,
        }
    }

    /// Reads a line of standard error. It must be passed before lines of standard output that were printed later.
    pub(crate) fn read_error(&mut self, line: &str) -> LibtestLine {
        let Some(program) = program_in(line.trim_start()) else { return LibtestLine::Other };
        self.announced.push_back(program);
        LibtestLine::Announced
    }

    /// Reads a line of standard output.
    pub(crate) fn read(&mut self, line: &str) -> LibtestLine {
        if line == "successes:" {
            // This line precedes the output, and occurs again before the names.
            (self.in_output, self.in_names, self.speaker) = (!self.in_output, self.in_output, None);
            return LibtestLine::Output;
        }
        self.in_names &= line.is_empty() || line.starts_with("    ");
        if self.in_names {
            return LibtestLine::Output;
        }
        if self.in_output {
            self.hear(line);
            return LibtestLine::Output;
        }
        // The output of failed tests follows, and is shown.
        if let Some(name) = speaker_in(line) {
            self.speaker = Some(name.to_owned());
        } else if let Some((cell, ids)) = claim_in(line, "failed ") {
            self.claim(cell, ids, |test| &mut test.failed);
        }
        let trimmed = line.trim_start();
        // A program of documentation tests may start several times. In the output of a failed test, this line has no
        // effect.
        if begins(trimmed) && !(self.is_open && self.announced.is_empty()) {
            self.end();
            if let Some(program) = self.announced.pop_front() {
                self.program = program;
            }
            self.first = self.tests.len();
            self.is_open = true;
            return LibtestLine::Program;
        }
        if let Some((passed, failed, ignored)) = totals_in(trimmed) {
            let of = |ending| self.tests[self.first..].iter().filter(|test| test.ending == ending).count();
            let good = of(TestEnding::Passed) + of(TestEnding::Skipped) + of(TestEnding::Elsewhere);
            if (good, of(TestEnding::Failed), of(TestEnding::Ignored)) != (passed, failed, ignored) {
                self.unread.push(format!("{}: the parsed lines do not match \"{trimmed}\"", self.program));
            }
            self.first = self.tests.len();
            self.is_open = false;
            return LibtestLine::Totals;
        }
        let Some((name, ending)) = test_in(line) else { return LibtestLine::Other };
        self.tests.push(TestResult::new(self.step, &self.program, name, ending));
        LibtestLine::Test(ending)
    }

    /// Reads a line of the output of passed tests.
    fn hear(&mut self, line: &str) {
        if let Some(name) = speaker_in(line) {
            self.speaker = Some(name.to_owned());
        } else if let Some((capability, reason)) = skip_in(line) {
            let elsewhere = capability.is_some_and(|name| capabilities::is_elsewhere(name, self.step));
            for test in self.speaking() {
                test.ending = if elsewhere { TestEnding::Elsewhere } else { TestEnding::Skipped };
                test.because.get_or_insert_with(|| reason.to_owned());
                test.lacks = test.lacks.take().or_else(|| capability.map(str::to_owned));
            }
        } else if let Some((cell, ids)) = claim_in(line, "proved ") {
            self.claim(cell, ids, |test| &mut test.proved);
        } else if let Some((cell, ids)) = claim_in(line, "failed ") {
            self.claim(cell, ids, |test| &mut test.failed);
        }
    }

    /// Returns the test whose output is being read.
    fn speaking(&mut self) -> impl Iterator<Item = &mut TestResult> {
        let (tests, speaker) = (&mut self.tests[self.first..], self.speaker.as_ref());
        tests.iter_mut().filter(move |test| Some(&test.name) == speaker)
    }

    fn claim(&mut self, cell: &str, ids: &str, of: impl Fn(&mut TestResult) -> &mut Claims) {
        for test in self.speaking() {
            of(test).entry(cell.to_owned()).or_default().extend(ids.split(' ').map(str::to_owned));
        }
    }

    /// Ends the input. No more lines follow.
    pub(crate) fn close(&mut self) {
        self.end();
        let silent = self.announced.drain(..).map(|program| format!("{program}: its tests did not begin"));
        self.unread.extend(silent);
    }

    /// Ends the running program.
    fn end(&mut self) {
        if std::mem::take(&mut self.is_open) {
            self.unread.push(format!("{}: ended before its tests did", self.program));
        }
    }

    /// Returns the running program.
    pub(crate) fn program(&self) -> &str {
        &self.program
    }

    pub(crate) fn count(&self, ending: TestEnding) -> usize {
        self.tests.iter().filter(|test| test.ending == ending).count()
    }
}

/// Returns the test whose output follows the line "---- a::b stdout ----".
fn speaker_in(line: &str) -> Option<&str> {
    let name = line.strip_prefix("---- ")?.strip_suffix(" stdout ----")?;
    Some(name.strip_suffix(" - should panic").unwrap_or(name))
}

/// Returns the missing capability and the reason, if a test reports in this line that it could not run.
fn skip_in(line: &str) -> Option<(Option<&str>, &str)> {
    let (word, rest) = line.split_at_checked(7)?;
    if !word.eq_ignore_ascii_case("skipped") || !rest.starts_with([':', ' ']) {
        return None;
    }
    let (capability, reason) = match rest.strip_prefix(" (").and_then(|rest| rest.split_once(')')) {
        Some((capability, reason)) => (Some(capability), reason),
        None => (None, rest),
    };
    Some((capability, reason.trim_start_matches([':', ' '])))
}

/// Returns the cell and the IDs in "proved shm/c: MR-001 MR-002".
fn claim_in<'a>(line: &'a str, word: &str) -> Option<(&'a str, &'a str)> {
    let (cell, ids) = line.strip_prefix(word)?.split_once(": ")?;
    let is_id = |id: &str| id.split_once('-').is_some_and(|(_, number)| number.bytes().all(|b| b.is_ascii_digit()));
    (cell.contains('/') && !cell.contains(' ') && ids.split(' ').all(is_id)).then_some((cell, ids))
}

/// Returns the program named in "Running unittests src/lib.rs (target/debug/deps/percale-3f1c)", "Running
/// tests/conformance.rs (...)" or "Doc-tests percale".
fn program_in(line: &str) -> Option<String> {
    if let Some(package) = line.strip_prefix("Doc-tests ") {
        return Some(format!("{package} (documentation)"));
    }
    let (source, file) = line.strip_prefix("Running ")?.split_once(" (")?;
    let file = file.strip_suffix(')')?.rsplit('/').next()?;
    let (name, _hash) = file.rsplit_once('-')?;
    let source = source.strip_prefix("unittests ").unwrap_or(source);
    Some(format!("{name} ({source})"))
}

/// Returns whether this is the first line of a program, "running 3 tests".
fn begins(line: &str) -> bool {
    let mut words = line.split(' ');
    words.next() == Some("running")
        && words.next().is_some_and(|count| count.parse::<usize>().is_ok())
        && matches!((words.next(), words.next()), (Some("test" | "tests"), None))
}

/// Returns the counts in "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in
/// 0.00s".
fn totals_in(line: &str) -> Option<(usize, usize, usize)> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = counts.split("; ").map(|count| count.split(' ').next().unwrap_or_default().parse().ok());
    Some((counts.next()??, counts.next()??, counts.next()??))
}

/// Returns the test and its result in "test a::b ... ok", "... FAILED" or "... ignored, needs root".
fn test_in(line: &str) -> Option<(&str, TestEnding)> {
    let (name, ending) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let ending = match ending {
        "ok" => TestEnding::Passed,
        "FAILED" => TestEnding::Failed,
        other if other.starts_with("ignored") => TestEnding::Ignored,
        _ => return None,
    };
    Some((name.strip_suffix(" - should panic").unwrap_or(name), ending))
}

#[cfg(test)]
mod tests {
    use super::{LibtestLine, Reader};
    use crate::results::{Claims, TestEnding};

    /// Reads lines. Lines that begin with "! " are from standard error.
    fn read(text: &str) -> Reader {
        let mut reader = Reader::new("tests");
        for line in text.lines() {
            match line.strip_prefix("! ") {
                Some(line) => reader.read_error(line),
                None => reader.read(line),
            };
        }
        reader.close();
        reader
    }

    #[test]
    fn tests_are_read_with_their_program() {
        let reader = read(
            "!    Compiling percale v0.1.0
!      Running unittests src/lib.rs (target/debug/deps/percale-0123456789abcdef)
running 3 tests
test ring::wraps ... ok
test ring::overflows - should panic ... ok
test ring::needs_root ... ignored, needs root
test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
!      Running tests/two.rs (target/debug/deps/two-0123456789abcdef)
running 1 test
test shm::rust::arrives ... FAILED
test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
",
        );
        assert_eq!(reader.unread, Vec::<String>::new());
        assert_eq!(reader.tests.len(), 4);
        assert_eq!(reader.tests[0].program, "percale (src/lib.rs)");
        assert_eq!(reader.tests[1].name, "ring::overflows");
        assert_eq!(reader.tests[3].program, "two (tests/two.rs)");
        assert_eq!(reader.count(TestEnding::Failed), 1);
    }

    #[test]
    fn skipped_tests_are_not_passed() {
        let reader = read(
            "! Running tests/two.rs (target/debug/deps/two-0123456789abcdef)
running 3 tests
test verbs::rust::arrives ... ok
test shm::rust::arrives ... ok
test tcp::rust::arrives ... FAILED

successes:

---- verbs::rust::arrives stdout ----
skipped: no verbs here: no device
test shm::rust::arrives ... ok

---- shm::rust::arrives stdout ----
skippedness is no reason
Running tests/life.rs (target/debug/deps/life-0123456789abcdef)
running 1 test
test a ... FAILED
test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 15 filtered out; finished in 0.10s


successes:
    shm::rust::arrives
    verbs::rust::arrives

failures:

---- tcp::rust::arrives stdout ----
skipped: half of it
running 2 tests
test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
",
        );
        assert_eq!(reader.unread, Vec::<String>::new());
        let endings: Vec<_> = reader.tests.iter().map(|test| test.ending).collect();
        assert_eq!(endings, [TestEnding::Skipped, TestEnding::Passed, TestEnding::Failed]);
        assert_eq!(reader.tests[0].because.as_deref(), Some("no verbs here: no device"));
    }

    #[test]
    fn skip_names_its_capability() {
        let reader = read(
            "! Running tests/two.rs (target/debug/deps/two-0123456789abcdef)
running 4 tests
test a ... ok
test b ... ok
test c ... ok
test d ... ok

successes:

---- a stdout ----
skipped (bpf): the kernel refuses the programs
skipped: and more

---- b stdout ----
SKIPPED (root) several users: not root

---- c stdout ----
skipped (guest): devices are made there

---- d stdout ----
skipped (bpf

successes:
    a
    b
    c
    d

test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
",
        );
        assert_eq!(reader.unread, Vec::<String>::new());
        let found: Vec<_> =
            reader.tests.iter().map(|test| (test.ending, test.lacks.as_deref(), test.because.as_deref())).collect();
        assert_eq!(found[0], (TestEnding::Skipped, Some("bpf"), Some("the kernel refuses the programs")));
        assert_eq!(found[1], (TestEnding::Skipped, Some("root"), Some("several users: not root")));
        assert_eq!(found[2], (TestEnding::Elsewhere, Some("guest"), Some("devices are made there")));
        assert_eq!(found[3], (TestEnding::Skipped, None, Some("(bpf")));
    }

    #[test]
    fn printed_requirements_belong_to_their_test() {
        let reader = read(
            "! Running tests/every.rs (target/debug/deps/every-0123456789abcdef)
running 2 tests
test shm::c::regions ... ok
test tcp::c::regions ... FAILED

successes:

---- shm::c::regions stdout ----
proved shm/c: MR-001 MR-002
proved shm/c: MR-003
proved that MR-004: holds
proved shm/c: no IDs

successes:
    shm::c::regions

failures:

---- tcp::c::regions stdout ----
proved tcp/c: MR-001
failed tcp/c: MR-002

failures:
    tcp::c::regions

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
",
        );
        let ids = |claims: &Claims| {
            claims.iter().flat_map(|(cell, ids)| ids.iter().map(move |id| format!("{cell} {id}"))).collect::<Vec<_>>()
        };
        assert_eq!(ids(&reader.tests[0].proved), ["shm/c MR-001", "shm/c MR-002", "shm/c MR-003"]);
        assert!(reader.tests[0].failed.is_empty() && reader.tests[1].proved.is_empty());
        assert_eq!(ids(&reader.tests[1].failed), ["tcp/c MR-002"]);
    }

    #[test]
    fn names_in_the_success_list_are_output_lines() {
        let mut reader = Reader::new("tests");
        let lines = "test a ... ok\n\nsuccesses:\n\nsuccesses:\n    a\n\nfailures:\n";
        let printed: Vec<_> = lines.lines().skip(2).map(|line| reader.read(line)).collect();
        assert_eq!(
            printed,
            [
                LibtestLine::Output,
                LibtestLine::Output,
                LibtestLine::Output,
                LibtestLine::Output,
                LibtestLine::Output,
                LibtestLine::Other
            ]
        );
    }

    #[test]
    fn a_broken_line_is_noticed() {
        let reader = read(
            "! Running unittests src/lib.rs (target/debug/deps/percale-01)
running 1 test
test a ... something printed by a child
ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        );
        assert_eq!(reader.unread.len(), 1);
    }

    #[test]
    fn a_program_that_died_is_noticed() {
        let begun = "! Running unittests src/lib.rs (target/debug/deps/percale-01)\nrunning 2 tests\ntest a ... ok\n";
        let reader = read(begun);
        assert_eq!(reader.unread.len(), 1);
        assert_eq!(reader.count(TestEnding::Passed), 1);
        let next = "! Running tests/two.rs (target/debug/deps/two-01)\nrunning 0 tests
test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";
        assert_eq!(read(&(begun.to_owned() + next)).unread, reader.unread);
        assert_eq!(read("! Running tests/two.rs (target/debug/deps/two-01)").unread.len(), 1);
    }

    #[test]
    fn standard_error_may_be_interleaved() {
        let reader = read(
            "! Running tests/one.rs (target/debug/deps/one-01)
! Running tests/two.rs (target/debug/deps/two-01)
running 1 test
! test a ... ok
! Doc-tests percale
test a ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
running 0 tests
test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
running 1 test
test b ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
running 1 test
test c ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
",
        );
        assert_eq!(reader.unread, Vec::<String>::new());
        let programs: Vec<_> = reader.tests.iter().map(|test| (test.name.as_str(), test.program.as_str())).collect();
        let documentation = "percale (documentation)";
        assert_eq!(programs, [("a", "one (tests/one.rs)"), ("b", documentation), ("c", documentation)]);
    }

    #[test]
    fn other_lines_are_left_alone() {
        let mut reader = Reader::new("tests");
        assert_eq!(reader.read("test this is prose"), LibtestLine::Other);
        assert_eq!(reader.read("warning: unused variable"), LibtestLine::Other);
        assert_eq!(reader.read("running tests is fun"), LibtestLine::Other);
        assert_eq!(reader.read_error("Running `target/debug/thing`"), LibtestLine::Other);
    }
}

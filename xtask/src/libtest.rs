//! Reads the output of `cargo test -- --show-output`.
//!
//! A test that cannot run on a machine passes and prints a line that begins with "skipped". It proves nothing and is
//! counted separately.
//!
//! Stable Rust has no machine-readable results, so the text output is parsed. The harness writes its lines to standard
//! output in pieces. The helper processes of tests and Cargo write to standard error. The two streams are read
//! separately, because in a single pipe a helper's warning could appear within a test's line. A test that bypasses the
//! harness can still break a line. Therefore the parsed lines are compared with the totals that the harness prints for
//! each program. A difference is reported as a failure.

use crate::results::{TestEnding, TestResult};
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
            let good = of(TestEnding::Passed) + of(TestEnding::Skipped);
            if (good, of(TestEnding::Failed), of(TestEnding::Ignored)) != (passed, failed, ignored) {
                self.unread.push(format!("{}: the parsed lines do not match \"{trimmed}\"", self.program));
            }
            self.first = self.tests.len();
            self.is_open = false;
            return LibtestLine::Totals;
        }
        let Some((name, ending)) = test_in(line) else { return LibtestLine::Other };
        let (step, program, name) = (self.step.into(), self.program.clone(), name.into());
        self.tests.push(TestResult { step, program, name, ending, because: None });
        LibtestLine::Test(ending)
    }

    /// Reads a line of the output of passed tests.
    fn hear(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.speaker = Some(name.strip_suffix(" - should panic").unwrap_or(name).to_owned());
        } else if says_skipped(line) {
            let tests = self.tests[self.first..].iter_mut();
            for test in tests.filter(|test| Some(&test.name) == self.speaker.as_ref()) {
                test.ending = TestEnding::Skipped;
                test.because.get_or_insert_with(|| line[7..].trim_start_matches([':', ' ']).to_owned());
            }
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

/// Returns whether a test reports in this line that it could not run.
fn says_skipped(line: &str) -> bool {
    line.get(..7).is_some_and(|word| word.eq_ignore_ascii_case("skipped"))
        && matches!(line.as_bytes().get(7), Some(b':' | b' '))
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
    use crate::results::TestEnding;

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

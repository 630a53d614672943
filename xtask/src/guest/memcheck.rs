//! Tests under valgrind's memcheck: their jobs and the evaluation of their results.

use super::brought::Job;
use super::layer;
use super::row::{ProgramRow, Verdict};
use crate::failure::Outcome;
use crate::place::Repository;

/// The script that runs a program under memcheck.
const SCRIPT: &str = "xtask/src/guest/memcheck.sh";
/// The suppressed reports about correct code, with the reasons. The script finds the file in its own directory.
const SUPPRESSIONS: &str = "xtask/src/guest/memcheck.supp";

/// Returns the same job under memcheck.
pub(super) fn job(place: &Repository, anew: bool, job: Job) -> Outcome<Job> {
    let program = job.program.to_string_lossy().into_owned();
    let arguments = std::iter::once(program).chain(job.arguments).collect();
    let files = job.files.into_iter().chain([job.program, place.root.join(SUPPRESSIONS)]).collect();
    let (program, layer) = (place.root.join(SCRIPT), Some(layer::memcheck(place, anew)?));
    Ok(Job { program, arguments, files, layer, ..job })
}

/// Adds the results of memcheck to the row of the tests. Each error of memcheck is a failure. Missing output of
/// memcheck and tests that could not run are failures too. Such tests are excluded by name.
pub(super) fn judge(tests: ProgramRow, printed: &[String]) -> ProgramRow {
    let mut row = tests;
    let summaries: Vec<(usize, usize)> = printed.iter().filter_map(|line| summary_in(line)).collect();
    let errors: usize = summaries.iter().map(|(errors, _)| errors).sum();
    let places: usize = summaries.iter().map(|(_, places)| places).sum();
    let text = match summaries.len() {
        0 => "memcheck printed nothing".to_owned(),
        // Children that tests fork also run under memcheck.
        processes => format!("memcheck: {errors} errors in {places} places; processes: {processes}"),
    };
    let found = printed.windows(2).filter_map(|lines| heading_in(&lines[0], &lines[1])).map(str::to_owned);
    let skipped = printed.iter().filter(|line| line.starts_with("skipped ")).cloned().collect::<Vec<_>>();
    row.failed += skipped.len();
    let notes = std::iter::once(text).chain(found).chain(skipped).chain(Some(row.note).filter(|note| !note.is_empty()));
    row.note = notes.collect::<Vec<_>>().join("; ");
    row.failed += if summaries.is_empty() { 1 } else { places.max(usize::from(errors > 0)) };
    // Without executed tests, the result proves nothing.
    if row.failed > 0 || row.passed == 0 {
        row.result = Verdict::Failed;
    }
    row
}

/// Returns the errors and places in "==17== ERROR SUMMARY: 3 errors from 2 contexts (suppressed: 0 from 0)".
fn summary_in(line: &str) -> Option<(usize, usize)> {
    let mut words = said_in(line)?.strip_prefix("ERROR SUMMARY: ")?.split(' ');
    let number = |word: Option<&str>| word?.replace(',', "").parse().ok();
    Some((number(words.next())?, number(words.nth(2))?))
}

/// Returns the first line of an error. The next line contains its location.
fn heading_in<'a>(line: &'a str, next: &str) -> Option<&'a str> {
    let is_one = said_in(next)?.trim_start().starts_with("at 0x");
    said_in(line).filter(|text| is_one && !text.starts_with(' '))
}

/// Returns the message in "==17== Invalid read of size 1".
fn said_in(line: &str) -> Option<&str> {
    let (process, text) = line.strip_prefix("==")?.split_once("== ")?;
    process.bytes().all(|byte| byte.is_ascii_digit()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::judge;
    use crate::guest::row::{ProgramRow, Verdict};

    fn judged(passed: usize, printed: &str) -> ProgramRow {
        let lines: Vec<String> = printed.lines().map(str::to_owned).collect();
        judge(ProgramRow::new(passed, 0, 0, String::new()), &lines)
    }

    const CLEAN: &str = "==17== ERROR SUMMARY: 0 errors from 0 contexts (suppressed: 0 from 0)";

    #[test]
    fn memcheck_must_report_no_errors() {
        assert_eq!(judged(3, CLEAN).result, Verdict::Passed);
        let row = judged(3, "test a ... ok");
        assert_eq!((row.result, row.failed), (Verdict::Failed, 1), "memcheck did not run");
        assert_eq!(judged(0, CLEAN).result, Verdict::Failed, "no test ran");
    }

    #[test]
    fn skipped_test_is_a_failure() {
        let row = judged(2, &format!("skipped (RDMA): no verbs here: no device\n{CLEAN}"));
        assert_eq!((row.result, row.failed), (Verdict::Failed, 1));
        assert!(row.note.ends_with("skipped (RDMA): no verbs here: no device"), "{}", row.note);
    }

    #[test]
    fn memcheck_errors_of_any_process_are_named() {
        let found = "==18== Invalid read of size 1\n==18==    at 0x40: f (in /t)\n==18==  Address 0x5 is 0 bytes after a block\n\
                     ==18==    at 0x41: malloc (in /m)\n==18== ERROR SUMMARY: 1,003 errors from 1 contexts (suppressed: 0 from 0)";
        let row = judged(3, &format!("{CLEAN}\n{found}"));
        assert_eq!((row.result, row.passed, row.failed), (Verdict::Failed, 3, 1));
        assert_eq!(row.note, "memcheck: 1003 errors in 1 places; processes: 2; Invalid read of size 1");
    }
}

//! The programs that run in the guest by default, and how the result of each is evaluated.

use super::boot::End;
use super::brought::Job;
use super::built;
use super::clients::Client;
use super::figures;
use super::memcheck;
use super::row::{ProgramRow, Verdict};
use crate::failure::Outcome;
use crate::libtest;
use crate::place::Repository;
use crate::results::TestEnding;
use serde::Deserialize;

/// A program of the list.
pub(super) struct GuestProgram {
    pub(super) name: &'static str,
    about: &'static str,
    what: What,
    arguments: &'static [&'static str],
    /// Tests that cannot produce a result in the guest, with the reasons.
    left_out: &'static [(&'static str, &'static str)],
    /// The time limit of the boot in seconds with KVM. With translation the limit is longer.
    pub(super) limit: u64,
    /// Set if the program is in the short run.
    pub(super) is_quick: bool,
}

#[derive(Clone, Copy)]
enum What {
    /// A test program, named as for `--test`.
    Test(&'static str),
    /// A test program under valgrind's memcheck.
    Memcheck(&'static str),
    /// `percale torture --json` with these arguments, and the expected result.
    Torture(Expected),
    /// A client of the provider.
    Client(Client),
    /// `percale perf --rdma`.
    Figures,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// No registration is stale.
    Sound,
    /// The monitor is broken intentionally, and its errors must be detected.
    Stale,
}

const fn test(
    name: &'static str,
    about: &'static str,
    of: &'static str,
    arguments: &'static [&'static str],
    limit: u64,
) -> GuestProgram {
    GuestProgram { name, about, what: What::Test(of), arguments, left_out: &[], limit, is_quick: false }
}

const fn torture(
    name: &'static str,
    about: &'static str,
    expected: Expected,
    arguments: &'static [&'static str],
) -> GuestProgram {
    GuestProgram { name, about, what: What::Torture(expected), arguments, left_out: &[], limit: 600, is_quick: false }
}

const fn client(name: &'static str, about: &'static str, client: Client, limit: u64) -> GuestProgram {
    GuestProgram { name, about, what: What::Client(client), arguments: &[], left_out: &[], limit, is_quick: false }
}

/// All operations on one kind of memory, and threads. Large memory takes a long time with soft-RoCE.
macro_rules! verbs {
    ($monitor:literal) => {
        &["--device", "verbs", "--monitor", $monitor, "--filter", "private anonymous", "--seconds", "5"]
    };
}

/// The guest has no compiler.
const COMPILER: &str = "compiles a C program";
/// On Linux 6.1, the pages of a fixed buffer remained pinned, and were counted as pinned, for a while after its
/// removal.
const DEFERRED: &str = "io_uring of this kernel unpins memory with a delay";

/// The programs of the default run. It does not contain the tests of pindown-helper, because pindown-helper rejects all
/// clients without SO_PASSPIDFD, which Linux supports since 6.5. It does not contain the tests of limits of pinned
/// memory either, because pages that io_uring has not unpinned yet count towards these limits.
pub(super) const ALL: &[GuestProgram] = &[
    GuestProgram {
        is_quick: true,
        ..test(
            "verbs",
            "libibverbs, effects of stale registrations, and loss of queue pairs",
            "percale-transport",
            &["verbs::", "pairs::"],
            120,
        )
    },
    GuestProgram {
        left_out: &[("abi::layout_tests::", COMPILER)],
        ..test("percale-verbs", "the wrappers of libibverbs", "percale-verbs", &[], 120)
    },
    GuestProgram {
        left_out: &[("capi::tests::layouts_", COMPILER), ("capi::tests::the_header_", COMPILER)],
        ..test("pindown", "the cache and its monitors", "pindown", &[], 300)
    },
    GuestProgram {
        left_out: &[
            ("changes_of_system_v_segments_are_noticed", "io_uring of this kernel does not support such memory"),
            ("pages_are_unpinned_when_a_change_was_taken_in", DEFERRED),
        ],
        ..test("pindown-changes", "all kinds of changes, with the kernel tier", "pindown:changes", &[], 300)
    },
    GuestProgram {
        left_out: &[("fresh_memory_in_each_of_many_iterations", DEFERRED)],
        ..test("pindown-life", "lifecycles of programs, with each tier", "pindown:life", &[], 300)
    },
    test("percale", "the library's own tests", "percale", &[], 600),
    test("percale-device", "the tests of devices that access memory", "percale-device", &[], 300),
    test("percale-transport", "the tests of links and of their set-up", "percale-transport", &[], 600),
    test("percale-region", "the tests of the table of keys", "percale-region", &[], 300),
    test("percale-memory", "the tests of the memory that the library shares", "percale-memory", &[], 300),
    test("shm", "the conformance suite over shared memory", "percale-conformance:conformance", &["shm::"], 300),
    test("tcp", "the conformance suite over TCP", "percale-conformance:conformance", &["tcp::"], 300),
    test(
        "conformance-verbs",
        "the conformance suite over verbs",
        "percale-conformance:conformance",
        &["verbs::"],
        1200,
    ),
    test(
        "processes-verbs",
        "two processes over verbs: peers that are killed, are stopped or disconnect",
        "percale-conformance:processes",
        &["verbs::"],
        300,
    ),
    GuestProgram {
        // The output names the tests that could not run.
        what: What::Memcheck("percale-transport"),
        left_out: &[(
            "verbs::registrar_tests::over_",
            "valgrind does not support the system calls that a monitor needs",
        )],
        ..test(
            "valgrind",
            "the transport verbs under valgrind",
            "percale-transport",
            &["--show-output", "--test-threads=1", "verbs::", "tests::pairs::"],
            600,
        )
    },
    GuestProgram {
        what: What::Memcheck("percale"),
        ..test(
            "valgrind-endpoints",
            "endpoints over verbs under valgrind, which exchange messages, reads and writes",
            "percale",
            &["--show-output", "--test-threads=1", "tests::pairs::", "engine::tests::rdma"],
            600,
        )
    },
    client("provider-pingpong-rdm", "fi_pingpong, datagrams", Client::Pingpong("rdm"), 120),
    client("provider-pingpong-msg", "fi_pingpong, connected endpoints", Client::Pingpong("msg"), 120),
    client("provider-mpi4py", "mpi4py's tests over Open MPI over the provider", Client::Mpi4py, 300),
    GuestProgram {
        name: "figures",
        about: "the cost of registrations and windows, compared with transfers",
        what: What::Figures,
        arguments: &[],
        left_out: &[],
        limit: 120,
        is_quick: false,
    },
    torture("torture-none", "without a monitor", Expected::Sound, &["--monitor", "none"]),
    torture("torture-sealed", "memory that cannot change", Expected::Sound, &["--monitor", "sealed"]),
    torture("torture-bpf", "the kernel tier", Expected::Sound, &["--monitor", "bpf"]),
    torture("torture-plain", "userfaultfd before Linux 6.7", Expected::Sound, &["--monitor", "userfaultfd-plain"]),
    torture("torture-broken", "a monitor that reports nothing", Expected::Stale, &["--monitor", "broken-silent"]),
    torture("torture-verbs-none", "over an RDMA device, without a monitor", Expected::Sound, verbs!("none")),
    torture("torture-verbs-bpf", "over an RDMA device, the kernel tier", Expected::Sound, verbs!("bpf")),
    torture("torture-verbs-plain", "over an RDMA device, userfaultfd", Expected::Sound, verbs!("userfaultfd-plain")),
    torture(
        "torture-verbs-broken",
        "over an RDMA device, a monitor that reports nothing",
        Expected::Stale,
        verbs!("broken-silent"),
    ),
];

impl GuestProgram {
    /// Creates the job. `common` is the part that all programs share. If `anew` is set, files that are built from
    /// packages are built again.
    pub(super) fn job(&self, place: &Repository, anew: bool, common: Job) -> Outcome<Job> {
        let without = self.left_out.iter().flat_map(|(test, _)| ["--skip", test]);
        let own = self.arguments.iter().copied().chain(without).map(str::to_owned);
        match self.what {
            What::Test(name) => {
                let (program, files) = built::test(place, name)?;
                Ok(Job { program, files, arguments: own.collect(), ..common })
            }
            What::Memcheck(name) => {
                let (program, files) = built::test(place, name)?;
                memcheck::job(place, anew, Job { program, files, arguments: own.collect(), ..common })
            }
            What::Torture(_) => {
                let arguments = ["torture", "--json"].map(str::to_owned).into_iter().chain(own).collect();
                Ok(Job { program: built::command(place)?, arguments, ..common })
            }
            What::Client(client) => client.job(place, anew, common),
            What::Figures => {
                let arguments =
                    ["perf", "--rdma", "--json", "--seconds", "4"].map(str::to_owned).into_iter().chain(own).collect();
                Ok(Job { program: built::command(place)?, arguments, ..common })
            }
        }
    }

    /// Returns whether the output is stored for the report.
    pub(super) fn measures(&self) -> bool {
        matches!(self.what, What::Figures)
    }

    /// Returns a description for messages.
    pub(super) fn title(&self) -> String {
        format!("{}: {}", self.name, self.about)
    }

    /// Evaluates the output and the exit status of the program.
    pub(super) fn judge(&self, printed: &[String], ended: &End, seconds: f64) -> ProgramRow {
        let mut row = match self.what {
            What::Test(name) => of_tests(name, printed),
            What::Memcheck(name) => memcheck::judge(of_tests(name, printed), printed),
            What::Torture(expected) => of_torture(printed, expected),
            What::Client(client) => client.judge(printed),
            What::Figures => figures::judge(printed),
        };
        (row.name, row.seconds) = (self.name.to_owned(), seconds);
        if row.note.is_empty() {
            row.note =
                self.left_out.iter().map(|(test, why)| format!("without {test}: {why}")).collect::<Vec<_>>().join("; ");
        }
        match ended {
            End::NoResult { why, .. } => (row.result, row.note) = (Verdict::NoResult, why.clone()),
            End::Exit(code) => {
                let wanted = if matches!(self.what, What::Torture(Expected::Stale)) { *code != 0 } else { *code == 0 };
                if row.result == Verdict::Passed && (row.failed > 0 || !wanted) {
                    row.result = Verdict::Failed;
                }
                if row.result == Verdict::Failed && row.failed == 0 {
                    row.note = format!("exit code {code}; {}", row.note);
                }
            }
        }
        row
    }
}

fn of_tests(name: &str, printed: &[String]) -> ProgramRow {
    let mut reader = libtest::Reader::new("guest");
    // The line that cargo prints before the output.
    reader.read_error(&format!("Running tests ({name}-0)"));
    for line in printed {
        reader.read(line);
    }
    reader.close();
    let mut notes = reader.unread.clone();
    let failed = reader.tests.iter().filter(|test| test.ending == TestEnding::Failed).map(|test| test.name.clone());
    notes.extend(failed);
    let count = |ending| reader.count(ending);
    let mut row = ProgramRow::new(
        count(TestEnding::Passed),
        count(TestEnding::Failed),
        count(TestEnding::Ignored),
        notes.join("; "),
    );
    if !reader.unread.is_empty() {
        row.result = Verdict::Failed;
    }
    row
}

/// A line of `percale torture --json`.
#[derive(Deserialize)]
struct TortureLine {
    is: String,
    result: Option<String>,
    documented: Option<String>,
    available: Option<bool>,
    reason: Option<String>,
    stale: Option<u64>,
    checked: Option<u64>,
}

fn of_torture(printed: &[String], expected: Expected) -> ProgramRow {
    let lines: Vec<TortureLine> = printed.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if let Some(line) = lines.iter().find(|line| line.available == Some(false)) {
        let mut row = ProgramRow::new(0, 0, 0, line.reason.clone().unwrap_or_default());
        row.result = Verdict::Skipped;
        return row;
    }
    let pairs = || lines.iter().filter(|line| line.is == "pair");
    let of = |result: &str| pairs().filter(|pair| pair.result.as_deref() == Some(result)).count();
    let undocumented = |pair: &&TortureLine| {
        let result = pair.result.as_deref().unwrap_or("failed");
        ["stale", "rights", "failed"].contains(&result) && pair.documented.is_none()
    };
    let (all, apart) = (pairs().count(), of("not-applicable"));
    let raced = |count: fn(&TortureLine) -> Option<u64>| lines.iter().filter_map(count).sum::<u64>();
    let (stale, checked) = (raced(|line| line.stale), raced(|line| line.checked));
    let note = format!("pairs; {} stale; threads: {stale} stale of {checked}", of("stale"));
    let wrong = pairs().filter(undocumented).count();
    let failed = match expected {
        Expected::Sound => wrong + usize::from(stale > 0 || all == 0),
        Expected::Stale => usize::from(of("stale") == 0),
    };
    ProgramRow::new(all - apart - wrong, failed, apart, note)
}

#[cfg(test)]
mod tests {
    use super::{ALL, End, Verdict};
    use std::collections::HashSet;

    fn judged(name: &str, printed: &str, ended: &End) -> super::ProgramRow {
        let lines: Vec<String> = printed.lines().map(str::to_owned).collect();
        ALL.iter().find(|case| case.name == name).unwrap().judge(&lines, ended, 1.0)
    }

    #[test]
    fn names_are_unique() {
        assert_eq!(ALL.iter().map(|case| case.name).collect::<HashSet<_>>().len(), ALL.len());
    }

    #[test]
    fn tests_are_counted_and_failures_named() {
        let printed = "running 2 tests\ntest a ... ok\ntest b ... FAILED\ntest result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out";
        let row = judged("shm", printed, &End::Exit(101));
        assert_eq!((row.result, row.passed, row.failed, row.note.as_str()), (Verdict::Failed, 1, 1, "b"));
        let row = judged("shm", "running 2 tests\ntest a ... ok", &End::Exit(0));
        assert_eq!(row.result, Verdict::Failed, "the program ended before its tests");
        let no = End::NoResult { why: "a panic".into(), began: true };
        assert_eq!(judged("shm", printed, &no).result, Verdict::NoResult);
    }

    const PAIR: &str = r#"{"is":"monitor","monitor":"bpf","available":true,"reason":""}
{"is":"pair","result":"stale","documented":null}
{"is":"pair","result":"caught","documented":null}
{"is":"race","stale":0,"checked":7}"#;

    #[test]
    fn sound_monitor_must_have_no_stale_result() {
        assert_eq!(judged("torture-bpf", PAIR, &End::Exit(1)).result, Verdict::Failed);
        let good = PAIR.replace("stale\",", "caught\",");
        let row = judged("torture-bpf", &good, &End::Exit(0));
        assert_eq!((row.result, row.passed), (Verdict::Passed, 2));
        assert_eq!(judged("torture-bpf", "", &End::Exit(0)).result, Verdict::Failed, "nothing ran");
        let absent = r#"{"is":"monitor","monitor":"bpf","available":false,"reason":"no BTF"}"#;
        assert_eq!(judged("torture-bpf", absent, &End::Exit(0)).result, Verdict::Skipped);
    }

    #[test]
    fn broken_monitor_must_be_detected() {
        assert_eq!(judged("torture-broken", PAIR, &End::Exit(1)).result, Verdict::Passed);
        let unseen = PAIR.replace("stale\",", "caught\",");
        assert_eq!(judged("torture-broken", &unseen, &End::Exit(0)).result, Verdict::Failed);
    }
}

//! Tests of `percale torture` on the command line. The monitors must be correct, and the errors of intentionally broken
//! monitors must be detected.

use percale_conformance::long;
use percale_conformance::process::copy_program;
use serde_json::Value;

use crate::common::{children, eventually, is_running, percale, text};

mod common;

/// A sample of kinds of memory that differ sufficiently.
const SOME: [&str; 4] = ["private anonymous", "memfd shared", "System V", "sealed by pindown"];

/// Returns the lines of one run, its exit code, and its error output.
fn torture(arguments: &[&str]) -> (Vec<Value>, Option<i32>, String) {
    let output = percale(&[&["torture", "--json"], arguments].concat());
    let lines = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (lines, output.status.code(), text(&output.stderr))
}

/// Returns whether the first line reports that the monitor is unavailable. The test then checks nothing.
fn unavailable(lines: &[Value]) -> bool {
    let missing = lines[0]["available"] == false;
    if missing {
        let reason = lines[0]["reason"].as_str().unwrap_or_default();
        let capability = match lines[0]["monitor"].as_str() {
            _ if reason.starts_with("verbs: ") => "RDMA device",
            Some(userfaultfd) if userfaultfd.starts_with("userfaultfd") => "userfaultfd",
            Some("sealed") => "mseal",
            _ => "bpf",
        };
        println!("skipped ({capability}): {reason}");
    }
    missing
}

/// Checks pairs of some kinds, and threads. Only errors that the monitor documents are permitted.
fn is_right(monitor: &str) {
    for filter in SOME {
        let (lines, code, error) = torture(&["--monitor", monitor, "--filter", filter, "--seconds", "0"]);
        if unavailable(&lines) {
            return;
        }
        let pairs: Vec<_> = lines.iter().filter(|line| line["is"] == "pair").collect();
        assert!(pairs.len() > 40, "{filter}: {}", pairs.len());
        assert!(pairs.iter().any(|pair| pair["result"] != "not-applicable"), "{filter}");
        let wrong = |pair: &&&Value| {
            ["stale", "rights", "failed"].iter().any(|wrong| pair["result"] == *wrong) && pair["documented"].is_null()
        };
        let wrong: Vec<_> = pairs.iter().filter(wrong).collect();
        assert!(wrong.is_empty() && code == Some(0), "{error}{wrong:#?}");
    }
    let (lines, code, error) = torture(&["--monitor", monitor, "--filter", "dlclose", "--seconds", "4"]);
    let race = &lines[lines.len() - 1];
    assert!(race["is"] == "race" && race["stale"] == 0 && code == Some(0), "{error}{race:#}");
    assert!(race["changes"].as_u64().unwrap() > 0 && race["checked"].as_u64().unwrap() > 0, "{race:#}");
}

/// Requirements: RCACHE-021.
#[test]
fn no_registration_is_stale_without_a_monitor() {
    is_right("none");
}

/// Requirements: RCACHE-021.
#[test]
fn sealed_memory_is_never_stale() {
    is_right("sealed");
}

/// Requirements: RCACHE-021.
#[test]
fn kernel_tier_gives_no_stale_registration() {
    is_right("bpf");
}

/// Requirements: RCACHE-021.
#[test]
fn userfaultfd_gives_no_stale_registration() {
    is_right("userfaultfd");
}

/// Requirements: RCACHE-021.
#[test]
fn userfaultfd_with_kept_promise_gives_no_stale_registration() {
    is_right("userfaultfd-promised");
}

/// Runs a copy of the command as an unprivileged user: all pairs of some kinds, and threads over all kinds.
fn is_right_for_nobody(monitor: &str) {
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        println!("skipped (root): only root can run a process as another user");
        return;
    }
    let place = std::env::temp_dir().join(format!("percale-torture-{}-{monitor}", std::process::id()));
    copy_program(env!("CARGO_BIN_EXE_percale").as_ref(), &place).unwrap();
    let user = 65534;
    let mut command = std::process::Command::new(&place);
    command.args(["torture", "--json", "--monitor", monitor, "--filter", "private anonymous", "--seconds", "4"]);
    let output = command.uid(user).gid(user).output().unwrap();
    std::fs::remove_file(&place).unwrap();
    let lines: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    if unavailable(&lines) {
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let race = &lines[lines.len() - 1];
    assert!(race["is"] == "race" && race["stale"] == 0 && race["failure"].is_null(), "{race:#}");
    assert!(race["changes"].as_u64().unwrap() > 0 && race["checked"].as_u64().unwrap() > 0, "{race:#}");
}

/// Requirements: RCACHE-021.
#[test]
fn unprivileged_userfaultfd_gives_no_stale_registration() {
    is_right_for_nobody("userfaultfd-promised");
}

/// Requirements: RCACHE-021.
#[test]
fn old_unprivileged_userfaultfd_gives_no_stale_registration() {
    is_right_for_nobody("userfaultfd-plain");
}

/// Runs the pairs with operations that have this text in their names, for every kind of memory. Only errors that the
/// monitor documents are permitted.
fn results(monitor: &str, operation: &str) -> Vec<String> {
    let (lines, code, error) = torture(&["--monitor", monitor, "--filter", operation, "--seconds", "0"]);
    if unavailable(&lines) {
        return Vec::new();
    }
    assert_eq!(code, Some(0), "{error}");
    let found = lines[1..].iter().map(|line| line["result"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    assert!(found.len() > 10, "{operation}: {}", found.len());
    found
}

/// Requirements: MON-014.
#[test]
fn lost_rights_are_detected_by_hits_with_userfaultfd() {
    let found = results("userfaultfd-rights", "mprotect");
    assert!(found.iter().all(|result| result != "rights"), "{found:?}");
    assert!(found.is_empty() || found.iter().filter(|result| *result == "caught").count() >= 3, "{found:?}");
}

/// Requirements: MON-012.
#[test]
fn guard_pages_are_refused_by_userfaultfd_with_locked_memory() {
    let found = results("userfaultfd-locked", "GUARD_INSTALL");
    assert!(found.iter().all(|result| result != "stale"), "{found:?}");
}

/// Requirements: RCACHE-021.
#[test]
fn sealed_memory_is_never_stale_without_privileges() {
    is_right_for_nobody("sealed");
}

#[test]
fn silent_monitor_is_detected() {
    let arguments = ["--monitor", "broken-silent", "--filter", "private anonymous", "--seconds", "0"];
    let (lines, code, error) = torture(&arguments);
    if unavailable(&lines) {
        return;
    }
    assert_eq!(code, Some(1), "{error}");
    let result = |operation: &str| {
        let is = |line: &&Value| line["operation"] == operation && line["mapping"] == "private anonymous";
        let line = lines.iter().find(is).unwrap_or_else(|| panic!("no {operation}"));
        (line["result"].as_str().unwrap().to_owned(), line["changed"].as_bool().unwrap())
    };
    for operation in ["munmap all", "munmap middle page", "mremap away", "madvise DONTNEED", "mmap anonymous over all"]
    {
        assert_eq!(result(operation), ("stale".into(), true), "{operation}");
    }
    for operation in ["munmap next page", "mlock", "fork, child writes", "process_vm_writev", "madvise COLD"] {
        assert_eq!(result(operation), ("kept".into(), false), "{operation}");
    }
    for operation in ["mprotect none", "mprotect read-only"] {
        assert_eq!(result(operation), ("rights".into(), false), "{operation}");
    }
}

#[test]
fn early_monitor_is_detected_by_threads() {
    let mut stale = 0;
    for seed in 1..=12 {
        let seed = seed.to_string();
        let arguments = ["--monitor", "broken-early", "--filter", "dlclose", "--seconds", "4", "--seed", &seed];
        let (lines, code, error) = torture(&arguments);
        if unavailable(&lines) {
            return;
        }
        let race = &lines[lines.len() - 1];
        assert!(race["failure"].is_null(), "{error}{race:#}");
        stale = race["stale"].as_u64().unwrap();
        assert_eq!(code, Some(i32::from(stale > 0)), "{error}");
        if stale > 0 {
            assert!(!race["after"].as_object().unwrap().is_empty(), "{race:#}");
            break;
        }
    }
    assert!(stale > 0, "never a stale registration");
}

#[test]
fn rows_contain_trials_and_table_contains_results() {
    let (lines, code, error) = torture(&["--monitor", "none", "--filter", "munmap"]);
    if unavailable(&lines) {
        return;
    }
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(lines[0]["is"], "monitor");
    for line in &lines[1..] {
        assert_eq!((line["is"].as_str(), line["monitor"].as_str()), (Some("pair"), Some("none")), "{line}");
        assert!(line["operation"].as_str().unwrap().contains("munmap") || line["mapping"] == "munmap", "{line}");
        assert!(["refused", "not-applicable"].iter().any(|result| line["result"] == *result), "{line}");
        assert!(line["detail"].is_string() && line["documented"].is_null(), "{line}");
    }
    let table = text(&percale(&["torture", "--monitor", "none", "--filter", "munmap"]).stdout);
    let shown = text(&percale(&["torture", "--monitor", "none", "--filter", "munmap", "--pairs"]).stdout);
    for part in ["munmap middle page", "refused", "changed"] {
        assert!(table.contains(part) && shown.contains(part), "no {part} in\n{table}\n{shown}");
    }
    assert!(shown.contains("transparent huge page") && !table.contains("transparent huge page"), "{shown}");
}

/// Requirements: RCACHE-021.
#[test]
fn rdma_device_is_tested_or_its_absence_explained() {
    let (lines, code, error) =
        torture(&["--device", "verbs", "--monitor", "none", "--filter", "private anonymous, munmap all"]);
    if unavailable(&lines) {
        assert_eq!(code, Some(1), "{error}");
        let reason = lines[0]["reason"].as_str().unwrap();
        assert!(reason.starts_with("verbs: ") && reason.len() > 10, "{reason}");
        return;
    }
    assert_eq!(code, Some(0), "{error}");
    assert!(lines[1]["is"] == "pair" && lines[1]["result"] == "refused" && lines[1]["changed"] == true, "{lines:#?}");
}

#[test]
fn workers_end_with_the_process_that_started_them() {
    let mut torture = std::process::Command::new(env!("CARGO_BIN_EXE_percale"))
        .args(["torture", "--monitor", "sealed", "--filter", "sealed by pindown", "--seconds", "60"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut workers = Vec::new();
    // The worker is in the middle of the long job: its threads change memory for a minute.
    std::thread::sleep(std::time::Duration::from_secs(2));
    eventually("all workers have ended", || {
        workers = children(torture.id());
        !workers.is_empty()
    });
    torture.kill().unwrap();
    torture.wait().unwrap();
    eventually("a worker outlives the process that started it", || workers.iter().all(|worker| !is_running(*worker)));
}

/// Returns the last line of a search of one monitor.
fn searched(monitor: &str, minutes: &str) -> Option<(Value, Option<i32>, String)> {
    let (lines, code, error) = torture(&["--search", minutes, "--monitor", monitor, "--seed", "100"]);
    if unavailable(&lines) {
        return None;
    }
    let last = lines.last().unwrap().clone();
    assert_eq!(last["is"], "search", "{error}{lines:#?}");
    assert!(last["runs"].as_u64().unwrap() > 0 && last["checked"].as_u64().unwrap() > 0, "{last:#}");
    Some((last, code, format!("{error}{lines:#?}")))
}

/// Two runs for each monitor, and four hundred with PERCALE_LONG.
///
/// Requirements: RCACHE-003, RCACHE-021.
#[test]
fn the_search_finds_nothing_stale_and_no_wrong_key() {
    let minutes = if long() { "10" } else { "0.05" };
    for monitor in ["bpf", "userfaultfd-promised", "sealed", "none"] {
        let Some((found, code, error)) = searched(monitor, minutes) else { continue };
        assert!(found["stale"] == 0 && found["wrong_keys"] == 0 && code == Some(0), "{error}");
        assert_eq!(found["hits"].as_u64().unwrap() > 0, monitor != "none", "{found:#}");
    }
}

#[test]
fn silent_monitor_is_detected_by_the_search() {
    let Some((found, code, error)) = searched("broken-silent", "0.03") else { return };
    assert!(found["stale"].as_u64().unwrap() > 0 && code == Some(1), "{error}");
    assert!(error.contains("wrong-run") && error.contains("immediately"), "{error}");
}

#[test]
fn search_checks_its_length_and_rejects_a_filter() {
    let output = percale(&["torture", "--search", "0"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("from 0.01 to 10000"), "{}", text(&output.stderr));
    let output = percale(&["torture", "--search", "1", "--filter", "munmap"]);
    assert_eq!(output.status.code(), Some(2));
}

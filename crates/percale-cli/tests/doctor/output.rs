//! The forms of the output, on this machine.

use std::fs::File;

use crate::common::{percale, text};
use crate::diagnosis::{NOWHERE, PROGRAM, diagnose, doctor};

#[test]
fn this_machine_lacks_nothing_essential() {
    let found = diagnose(&[]);
    assert_eq!(found.code, Some(0), "{found:#?}");
    assert_eq!(found.of_kind("summary")[0]["essential_missing"], serde_json::json!([]));
    for check in ["shared-memory", "tcp"] {
        let line = found.check(check);
        assert!(line["essential"] == true && line["state"] == "works", "{line:#}");
    }
    for line in found.of_kind("check") {
        let state = line["state"].as_str().unwrap();
        assert!(["works", "limited", "missing", "absent"].contains(&state), "{line:#}");
        assert!(!line["detail"].as_str().unwrap().is_empty() && line["area"].is_string(), "{line:#}");
        // A problem has a cause elsewhere, or a remedy with a command.
        let is_problem = ["limited", "missing"].contains(&state);
        let has_command = line["remedy"]["commands"].as_array().is_some_and(|commands| !commands.is_empty());
        assert_eq!(is_problem, line["cause"].is_string() != has_command, "{line:#}");
        assert!(!line["detail"].as_str().unwrap().contains("not checked"), "{line:#}");
    }
}

#[test]
fn the_text_has_a_line_for_each_check() {
    let output = percale(&["doctor", "--libfabric", NOWHERE]);
    let table = text(&output.stdout);
    assert!(output.status.success(), "{table}{}", text(&output.stderr));
    for part in ["shared-memory", "kernel-monitor", "registration cache", "what was found"] {
        assert!(table.contains(part), "no {part} in\n{table}");
    }
    assert!(table.contains("To mend:") || table.contains("Everything that this machine has works."), "{table}");
}

#[test]
fn invalid_usage_exits_with_2() {
    let output = percale(&["doctor", "--lib", "/opt"]);
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(error.contains("--libfabric") && output.stdout.is_empty(), "{error}");
}

/// Opens a file to which nothing can be written.
fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

#[test]
fn results_that_cannot_be_written_exit_with_3() {
    let output = doctor(&[], PROGRAM.as_ref()).stdout(full()).output().unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(error.contains("writing the results: No space left on device"), "{error}");
    let status = doctor(&[], PROGRAM.as_ref()).stdout(full()).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(3));
}

#[test]
fn help_that_cannot_be_written_is_an_error() {
    for arguments in [&["--help"][..], &["--version"], &["doctor", "--help"]] {
        let output = std::process::Command::new(PROGRAM).args(arguments).stdout(full()).output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
        assert!(error.contains("No space left on device"), "{error}");
    }
}

#[test]
fn the_help_and_the_document_have_the_same_facts() {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/doctor.md");
    let document = std::fs::read_to_string(document).unwrap();
    let help = text(&percale(&["doctor", "--help"]).stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    for text in [&help, &document] {
        assert!(text.contains("below /usr/lib, /usr/local and /opt"), "{text}");
    }
    for (status, meaning) in
        [(0, "nothing essential is missing"), (1, ""), (2, ""), (3, "results could not be written")]
    {
        let row = document.lines().find(|line| line.starts_with(&format!("| {status} |"))).unwrap();
        assert!(row.contains(meaning) && help.contains(meaning), "{status}: {help}");
        assert!(help.contains(&format!(" {status} ")), "{status}: {help}");
    }
    for line in diagnose(&[]).of_kind("check") {
        let name = line["check"].as_str().unwrap();
        let is_listed = |row: &str| row.replace("**", "").split(['|', ',']).any(|cell| cell.trim() == name);
        assert!(document.lines().any(is_listed), "{name} is not in docs/doctor.md");
    }
}

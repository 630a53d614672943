//! Tests of `percale perf --triggers` on the command line. They check that results exist, not their values.

use std::ffi::OsStr;
use std::process::{Command, Output};

use percale_conformance::device::{LIBRARY, driver_for};
use serde_json::Value;

use crate::common::text;

#[expect(dead_code, reason = "this test has its own environment and does not wait")]
mod common;

const QUICK: [&str; 8] = ["perf", "--triggers", "--queued", "10,100", "--seconds", "0.01", "--processes", "3"];

/// Runs the command with this library as the CUDA driver.
fn with_driver(library: &OsStr, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_percale")).args(arguments).env(LIBRARY, library).output().unwrap()
}

fn without_driver(arguments: &[&str]) -> Output {
    with_driver(OsStr::new("/nonexistent/libcuda.so.1"), arguments)
}

fn lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn of<'a>(lines: &'a [Value], begins: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["what"].as_str().unwrap().starts_with(begins)).collect()
}

#[test]
fn queueing_chains_and_stores_are_measured_with_their_limits() {
    let lines = lines(&without_driver(&[QUICK.as_slice(), &["--json"]].concat()));
    // Three results for two orders and two counts, five results for sends, two rings, and two writers.
    assert_eq!(lines.len(), 3 * 2 * 2 + 5 + 2 + 2, "{lines:?}");
    for line in &lines {
        let has_limit = line["limit"].is_string();
        assert_eq!(line["limit_p50_ns"].as_f64().is_some_and(|limit| limit > 0.0), has_limit, "{line}");
        assert_eq!(line["p50_ns"].is_number() && line["ratio"].is_number(), has_limit, "{line}");
        assert_eq!(line["count"].as_u64().unwrap() > 0, line["reason"].is_null(), "{line}");
    }
    for (begins, limit) in [("queue", "a push"), ("fire all", "a call"), ("fire one", "a call")] {
        let found = of(&lines, begins);
        let wanted = [("upward", 10), ("random", 10), ("upward", 100), ("random", 100)];
        let rows = found.iter().map(|line| (line["thresholds"].as_str().unwrap(), line["queued"].as_u64().unwrap()));
        assert!(rows.eq(wanted) && found.iter().all(|line| line["limit"] == limit), "{found:?}");
    }
    let processes: Vec<_> = of(&lines, "pass a token").iter().map(|line| line["processes"].as_u64().unwrap()).collect();
    assert_eq!(processes, [2, 3]);
    let sent = [
        ("increment it, until a send is sent", "an ordinary send"),
        ("increment it, until a send arrives", "a cache line, one way"),
        ("post a send, until it arrives", "a cache line, one way"),
        ("a thread's", "a store detected and answered"),
    ];
    for (begins, limit) in sent {
        let found = of(&lines, begins);
        assert!(found.len() == 1 && found[0]["limit"] == limit && found[0]["bytes"] == 8, "{found:?}");
    }
    let stream = of(&lines, "a CUDA stream's");
    assert!(
        stream[0]["p50_ns"].is_null() && stream[0]["reason"].as_str().unwrap().contains("CUDA is not available"),
        "{stream:?}"
    );
}

#[test]
fn device_stream_store_is_measured_if_available() {
    // Use a real device or the test double.
    let library = driver_for(env!("CARGO_TARGET_TMPDIR")).map_or_else(|| "libcuda.so.1".into(), |(_, double)| double);
    let lines = lines(&with_driver(library.as_os_str(), &[QUICK.as_slice(), &["--json"]].concat()));
    let stream = of(&lines, "a CUDA stream's");
    assert!(stream[0]["p50_ns"].as_f64().unwrap() > 0.0 && stream[0]["ratio"].is_number(), "{stream:?}");
}

#[test]
fn the_table_and_the_plot_are_written() {
    let file = std::env::temp_dir().join(format!("percale-triggers-{}.svg", std::process::id()));
    let output = without_driver(&[QUICK.as_slice(), &["--svg", file.to_str().unwrap()]].concat());
    let picture = std::fs::read_to_string(&file);
    let _removed: std::io::Result<()> = std::fs::remove_file(&file);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    for part in ["queue a counter", "random", "100", "a push", "a cache line, one way: 8 bytes", "ratio"] {
        assert!(table.contains(part), "no {part} in\n{table}");
    }
    assert!(
        table.contains("not measured: a CUDA stream's store, until a send arrives: CUDA is not available"),
        "{table}"
    );
    let picture = picture.unwrap();
    assert!(picture.contains("thresholds upward") && picture.contains("queued"), "{picture}");
    // There are two panels of three results and two limits, each with two counts.
    assert_eq!(picture.matches("<circle").count(), 2 * (3 + 2) * 2);
}

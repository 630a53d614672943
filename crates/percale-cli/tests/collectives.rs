//! Tests of `percale perf --collectives` on the command line. They check that results exist, not their values.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{children, eventually, is_running, percale, text};

mod common;

const QUICK: [&str; 6] = ["perf", "--collectives", "--seconds", "0.01", "--processes", "3"];

#[test]
fn collectives_are_measured_beside_their_limits() {
    let output = percale(&[QUICK.as_slice(), &["--json", "--size", "8,64K"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found: Vec<_> = lines
        .iter()
        .map(|line| {
            let what = line["what"].as_str().unwrap().split(',').next().unwrap();
            (what, line["bytes"].as_u64(), line["limit"].as_str().unwrap())
        })
        .collect();
    let wanted = [
        ("barrier", None, "a cache line, there and back"),
        ("broadcast", Some(8), "a cache line, one way"),
        ("allreduce", Some(8), "a cache line, there and back"),
        ("broadcast", Some(64 << 10), "a copy"),
        ("allreduce", Some(64 << 10), "a copy"),
        // The chain of sums.
        ("allreduce", Some(8), "a cache line, there and back"),
    ];
    assert_eq!(found, wanted);
    for line in &lines {
        assert!(["p50_ns", "limit_p50_ns", "ratio"].iter().all(|name| line[name].as_f64().unwrap() > 0.0), "{line}");
        assert!(line["count"].as_u64().unwrap() > 0 && line["processes"] == 3, "{line}");
    }
}

#[test]
fn the_table_and_the_plot_are_written() {
    let file = std::env::temp_dir().join(format!("percale-collectives-{}.svg", std::process::id()));
    let arguments = ["--size", "8,256", "--svg", file.to_str().unwrap()];
    let output = percale(&[QUICK.as_slice(), &arguments].concat());
    let picture = std::fs::read_to_string(&file);
    let _removed: std::io::Result<()> = std::fs::remove_file(&file);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    for part in [
        "barrier",
        "broadcast",
        "allreduce, a chain",
        "256 B",
        "a cache line, there and back",
        "result of each round was checked",
    ] {
        assert!(table.contains(part), "no {part} in\n{table}");
    }
    // Two operations and two limits, at two sizes.
    assert_eq!(picture.unwrap().matches("<circle").count(), (2 + 2) * 2);
}

/// Starts a measurement that runs long enough to be disturbed. Returns it after its first line, with its members.
fn long_measurement() -> (Child, Vec<u32>, BufReader<ChildStdout>) {
    let mut first = Command::new(env!("CARGO_BIN_EXE_percale"))
        .args(["perf", "--collectives", "--json", "--seconds", "1", "--size", "8,16,32,64,128,256,512,1K,2K,4K"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(first.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert!(line.contains("barrier"), "{line}");
    // The second process measures the limit and is not a member.
    let is_member =
        |pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| text(&words).contains("team-part"));
    let members: Vec<u32> = children(first.id()).into_iter().filter(is_member).collect();
    assert_eq!(members.len(), 2);
    (first, members, lines)
}

#[test]
fn member_death_is_an_error_not_a_hang() {
    let (mut first, members, _lines) = long_measurement();
    kill_process(Pid::from_raw(members[1].try_into().unwrap()).unwrap(), Signal::KILL).unwrap();
    let mut error = String::new();
    first.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    assert_eq!(first.wait().unwrap().code(), Some(1), "{error}");
    // The error names the process that died, or the process that detected it.
    assert!(error.starts_with("percale: process "), "{error}");
    eventually("a member is still running", || !members.iter().any(|member| is_running(*member)));
}

#[test]
fn killed_measurement_leaves_no_member_process() {
    let (mut first, members, _lines) = long_measurement();
    assert!(members.iter().all(|member| is_running(*member)));
    first.kill().unwrap();
    first.wait().unwrap();
    eventually("a member is still running", || !members.iter().any(|member| is_running(*member)));
}

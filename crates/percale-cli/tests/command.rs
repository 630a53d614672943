//! Tests of the command line.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{children, eventually, is_running, percale, text};

mod common;

#[test]
fn invalid_usage_exits_with_2_and_names_valid_values() {
    for (arguments, message) in [
        (["perf", "--size", "0"].as_slice(), "from 1 to 64M"),
        (&["perf", "--size", "65M"], "from 1 to 64M"),
        (&["perf", "--op", "latency"], "tagged-latency"),
        (&["perf", "--transport", "verbs"], "shm, tcp"),
        (&["perf", "--memory", "mine"], "ordinary"),
        (&["perf", "--api", "unsafe"], "safe, raw"),
        (&["perf", "--api", "raw", "--limits-only"], "cannot be used with"),
        (&["perf", "--api", "raw", "--windows"], "cannot be used with"),
        (&["perf", "--iterations", "0"], "0"),
        (&["perf", "--seconds", "nan"], "0.01 to 600"),
        (&["perf", "--seconds", "1", "--iterations", "1"], "cannot be used with"),
        (&["perf", "nowhere"], "node7:7471"),
        (&["perf", "--listen", "7471"], "node7:7471"),
        (&["perf", "--limits-only", "node7:7471"], "cannot be used with"),
        (&["perf", "--op", "fetch-add", "--size", "4"], "--op fetch-add --size 4: its size must be 8 bytes"),
        (
            &["perf", "--op", "put,compare-swap", "--size", "64"],
            "--op compare-swap --size 64: its size must be 8 bytes",
        ),
        (&["perf", "--op", "put-latency", "--size", "12"], "a multiple of 8 bytes"),
        (&["perf", "--limits-only", "--op", "bandwidth", "--svg", "never.svg"], "add --op tagged-latency"),
        (&["perf", "--registration", "--op", "put"], "cannot be used with"),
        (&["perf", "--registration", "--monitor", "hooks"], "userfaultfd"),
        (&["perf", "--monitor", "bpf"], "--registration"),
        (&["perf", "--windows", "--addresses", "1000"], "cannot be used with"),
        (&["perf", "--triggers", "--collectives"], "cannot be used with"),
        (&["perf", "--triggers", "--size", "8"], "cannot be used with"),
        (&["perf", "--triggers", "node7:7471"], "cannot be used with"),
        (&["perf", "--triggers", "--queued", "0"], "1..=4000000"),
        (&["perf", "--triggers", "--keys", "1000"], "cannot be used with"),
        (&["perf", "--queued", "1000"], "--triggers"),
        (&["perf", "--processes", "2"], "--triggers|--collectives"),
        (&["perf", "--collectives", "--processes", "1"], "2..=64"),
        (&["perf", "--collectives", "--queued", "1000"], "cannot be used with"),
        (&["perf", "--collectives", "--op", "put"], "cannot be used with"),
        (&["perf", "--collectives", "--size", "12"], "a multiple of 8 bytes"),
        (&["cp", "a", "b"], "neither SRC nor DST"),
        (&["cp", "a:1/b", "[::1]:2/c"], "must be a local file"),
        (&["cp", "a:1/b"], "<DST>"),
        (&["cp", "a:1/b", "c", "--transport", "verbs"], "shm, tcp"),
        (&["serve"], "<DIR>"),
        (&["generate"], "<DIR>"),
        (&["serve", ".", "--listen", "7471"], "node7:7471"),
        (&["torture", "--monitor", "hooks"], "userfaultfd"),
        (&["torture", "--threads", "0"], "1..=64"),
        (&["torture", "--filter", "nothing like that"], "no memory and no operation"),
        (&["torture", "--json", "--pairs"], "cannot be used with"),
        (&["perfect"], "perf"),
        (&[], "Usage"),
    ] {
        let output = percale(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(message), "{arguments:?}: {error}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn unreachable_address_exits_with_1() {
    // No process listens at port 1 of loopback.
    let output = percale(&["perf", "127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("connecting to 127.0.0.1:1"), "{}", text(&output.stderr));
}

/// A panic would exit with 101, and without a message.
#[test]
fn output_that_cannot_be_written_is_an_error() {
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let command = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_percale"));
        command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
        command
    };
    for arguments in [["info"].as_slice(), &["info", "--json"]] {
        let output = command(arguments).stdout(full()).stderr(Stdio::piped()).output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
        assert!(error.contains("writing the results: No space left on device"), "{error}");
    }
    // The message cannot be written either.
    for (arguments, code) in [
        (["perf", "127.0.0.1:1"].as_slice(), 1),
        (&["generate", "/dev/null"], 1),
        (&["cp", "127.0.0.1:1/a", "/dev/null/b"], 1),
        (&["serve", "/dev/null"], 1),
        (&["perf", "--size", "12", "--op", "put-latency"], 2),
    ] {
        let status = command(arguments).stdout(full()).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{arguments:?}");
    }
}

#[test]
fn generated_files_are_listed() {
    let directory = std::env::temp_dir().join(format!("percale-generated-{}", std::process::id()));
    let shown = percale(&["generate", directory.to_str().unwrap()]);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    assert!(text(&shown.stdout).contains("man/man1/percale.1\n"), "{}", text(&shown.stdout));
    let files = rows(&percale(&["generate", directory.to_str().unwrap(), "--json"]));
    assert_eq!(files.len(), text(&shown.stdout).lines().count());
    for file in &files {
        assert!(std::path::Path::new(file["path"].as_str().unwrap()).is_file(), "{file}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
    // A file takes the place of the directory.
    let refused = percale(&["generate", "/dev/null"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("creating /dev/null/"), "{}", text(&refused.stderr));
}

#[test]
fn limits_are_measured_with_one_json_object_per_row() {
    let rows = rows(&percale(&["perf", "--limits-only", "--json", "--seconds", "0.02", "--size", "8,4K,64K"]));
    // Each transport has three sizes for two latencies, the rate at 8 bytes, and the bandwidth at 64 KiB. Among the
    // one-sided operations, three have all sizes and three have one size. Over shm, they are measured with two kinds of
    // memory.
    assert_eq!(rows.len(), 2 * (2 * 3 + 1 + 1) + (2 + 1) * (3 * 3 + 3));
    for row in &rows {
        assert!(row["limit_p50_ns"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["limit_p99_ns"].as_f64().unwrap() >= row["limit_p50_ns"].as_f64().unwrap(), "{row}");
        assert!(row["verified"].as_u64().unwrap() > 0, "{row}");
        assert!(row["p50_ns"].is_null() && row["ratio"].is_null(), "{row}");
        let program = row["limit"].as_str().unwrap();
        let of = |name: &str| row[name].as_str().unwrap();
        let expected = match (of("transport"), of("op"), of("memory"), row["bytes"].as_u64().unwrap()) {
            ("tcp", ..) => "sockets: writes",
            (_, "fetch-add" | "fetch-add-alone" | "compare-swap", "percale", _) => "word",
            (_, "put" | "get" | "put-latency", "ordinary", _) => "kernel",
            (_, "put" | "get", ..) | (.., 65536) => "copy",
            _ => "ring",
        };
        assert!(program.starts_with(expected), "{row}");
    }
}

#[test]
fn the_table_and_the_plot_are_written() {
    let file = std::env::temp_dir().join(format!("percale-command-{}.svg", std::process::id()));
    let size = ["--size", "8,64", "--op", "tagged-latency", "--iterations", "64", "--dirty"];
    let output = percale(&[&["perf", "--limits-only", "--svg", file.to_str().unwrap()], size.as_slice()].concat());
    let picture = std::fs::read_to_string(&file);
    let _removed: std::io::Result<()> = std::fs::remove_file(&file);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    for part in ["tagged-latency", "64 B", "dirty", "ring: ", "sockets: ", "Every byte of"] {
        assert!(table.contains(part), "no {part} in\n{table}");
    }
    let picture = picture.unwrap();
    assert!(picture.contains("limit of the machine") && picture.contains("shared memory"));
    assert_eq!(picture.matches("<circle").count(), 4);
}

#[test]
fn table_states_that_data_was_not_verified() {
    let output = percale(&["perf", "--limits-only", "--no-verify", "--op", "tagged-rate", "--iterations", "800"]);
    assert!(text(&output.stdout).contains("The data was not checked."), "{}", text(&output.stderr));
}

fn rows(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn percale_is_measured_beside_its_limit_on_both_transports() {
    let quick = ["perf", "--seconds", "0.01", "--json"];
    let latency = ["--op", "tagged-latency", "--size", "8,64K"];
    // There are two latencies with two sizes, a rate and a bandwidth. Over shm, the large ones are measured with both
    // kinds of memory. Among the one-sided operations, three have both sizes and three have one size. Over shm, they
    // are measured with two kinds of memory.
    let all = (2 * (1 + 2) + 1 + 2) + (2 * 2 + 1 + 1) + (2 + 1) * (3 * 2 + 3);
    for (more, count) in [
        (["--size", "8,64K"].as_slice(), all),
        (&[latency.as_slice(), &["--dirty"]].concat(), 5),
        (&[latency.as_slice(), &["--no-verify"]].concat(), 5),
    ] {
        let rows = rows(&percale(&[quick.as_slice(), more].concat()));
        assert_eq!(rows.len(), count);
        for row in &rows {
            let raw = ["raw_p50_ns", "raw_p99_ns", "raw_rate", "raw_bytes_per_s", "raw_ratio"];
            let numbers = ["p50_ns", "p99_ns", "rate", "bytes_per_s", "limit_p50_ns", "limit_rate", "ratio"];
            for number in numbers.into_iter().chain(raw) {
                assert!(row[number].as_f64().unwrap() > 0.0, "{number}: {row}");
            }
            assert_eq!(row["api"], "safe", "{row}");
            assert_eq!(row["verified"].as_u64().unwrap() > 0, !more.contains(&"--no-verify"), "{row}");
            assert_eq!(row["dirty"].as_bool().unwrap(), more.contains(&"--dirty"), "{row}");
        }
    }
}

#[test]
fn a_selected_api_is_measured_alone() {
    for api in ["safe", "raw"] {
        let arguments = ["perf", "--json", "--iterations", "64", "--size", "8", "--api", api];
        let rows = rows(&percale(&arguments));
        // There are three kinds of messages, and six of one-sided operations, which have two kinds of memory over shm.
        assert_eq!(rows.len(), 2 * 3 + (2 + 1) * 6);
        for row in &rows {
            assert_eq!(row["api"], api, "{row}");
            assert!(row["p50_ns"].as_f64().unwrap() > 0.0 && row["verified"].as_u64().unwrap() > 0, "{row}");
            assert!(row["raw_p50_ns"].is_null() && row["raw_ratio"].is_null(), "{row}");
        }
    }
}

#[test]
fn one_sided_operations_reach_both_memories_over_both_transports() {
    let ops = ["--op", "put-latency,put,get,fetch-add,fetch-add-alone,compare-swap", "--size", "8"];
    let large = ["--op", "put-latency,put,get", "--size", "4096,300000"];
    for memory in ["percale", "ordinary"] {
        for which in [ops, large] {
            let arguments = [&["perf", "--json", "--iterations", "64", "--memory", memory], which.as_slice()].concat();
            let rows = rows(&percale(&arguments));
            // There are six operations with one size, or three with two sizes, over both transports.
            assert_eq!(rows.len(), 2 * 6);
            for row in &rows {
                assert_eq!(row["memory"], memory, "{row}");
                assert!(row["verified"].as_u64().unwrap() > 0, "{row}");
                for number in ["p50_ns", "p99_ns", "raw_p50_ns", "raw_ratio", "limit_p50_ns", "ratio"] {
                    assert!(row[number].as_f64().unwrap() > 0.0, "{number}: {row}");
                }
            }
        }
    }
}

#[test]
fn a_listening_process_serves_one_measurement_after_another() {
    let mut listening = Command::new(env!("CARGO_BIN_EXE_percale"))
        .args(["perf", "--listen", "127.0.0.1:0"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(listening.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.split_once(';').unwrap().0.rsplit_once(' ').unwrap().1.to_owned();
    for _ in 0..2 {
        let rows = rows(&percale(&["perf", &address, "--size", "8,64K", "--seconds", "0.02", "--json"]));
        assert_eq!(rows.len(), 2 * 2 + 1 + 1 + 3 * 2 + 3);
        for row in &rows {
            assert!(row["p50_ns"].as_f64().unwrap() > 0.0 && row["verified"].as_u64().unwrap() > 0, "{row}");
            assert!(row["limit_p50_ns"].is_null(), "{row}");
        }
    }
    listening.kill().unwrap();
    listening.wait().unwrap();
}

#[test]
fn info_lists_features_with_reasons() {
    let lines = rows(&percale(&["info", "--json"]));
    for kind in ["transport", "device", "limit", "address"] {
        assert!(lines.iter().any(|line| line["is"] == kind), "no {kind}");
    }
    let tcp = lines.iter().find(|line| line["name"] == "tcp").unwrap();
    assert!(tcp["available"].is_boolean() && !tcp["reason"].as_str().unwrap().is_empty(), "{tcp}");
    assert!(text(&percale(&["info"]).stdout).contains("transport"));
}

/// Starts a measurement that runs long enough to be disturbed. Returns it after its first row.
fn long_measurement() -> (std::process::Child, u32, BufReader<std::process::ChildStdout>) {
    let mut first = Command::new(env!("CARGO_BIN_EXE_percale"))
        .args(["perf", "--limits-only", "--json", "--op", "tagged-latency", "--transport", "shm"])
        .args(["--size", "8,16,32,64,128,256,512,1K,2K,4K", "--seconds", "0.5"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut rows = BufReader::new(first.stdout.take().unwrap());
    let mut row = String::new();
    rows.read_line(&mut row).unwrap();
    assert!(row.contains("limit_p50_ns"), "{row}");
    let second = children(first.id());
    assert_eq!(second.len(), 1);
    (first, second[0], rows)
}

#[test]
fn second_process_death_is_an_error_not_a_hang() {
    let (mut first, second, _rows) = long_measurement();
    let second = Pid::from_raw(second.try_into().unwrap()).unwrap();
    kill_process(second, Signal::KILL).unwrap();
    let mut error = String::new();
    first.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    assert_eq!(first.wait().unwrap().code(), Some(1), "{error}");
    assert!(error.contains("the other process exited"), "{error}");
}

#[test]
fn first_process_death_ends_the_second() {
    let (mut first, second, _rows) = long_measurement();
    assert!(is_running(second));
    first.kill().unwrap();
    first.wait().unwrap();
    eventually("the second process is still running", || !is_running(second));
}

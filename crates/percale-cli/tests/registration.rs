//! Tests of `percale perf --registration` on the command line: its lines, tables and plot. They check that results
//! exist and are consistent, not their values. RCACHE-028 and MON-059 to MON-063 must be judged by a person.

use serde_json::Value;

use crate::common::{percale, text};

#[expect(dead_code, reason = "this test does not wait")]
mod common;

const QUICK: [&str; 6] = ["perf", "--registration", "--seconds", "0.02", "--size", "4K,2M"];

/// Returns the lines of one run. Returns `None` if the monitor is not available.
fn lines(monitor: &str) -> Option<Vec<Value>> {
    let output = percale(&[QUICK.as_slice(), &["--json", "--monitor", monitor]].concat());
    let error = text(&output.stderr);
    if error.contains("is not available here") {
        assert_eq!(output.status.code(), Some(1));
        let capability = match monitor {
            "sealed" => "mseal",
            "bpf" => "bpf",
            _ => "userfaultfd",
        };
        println!("skipped ({capability}): {error}");
        return None;
    }
    assert!(output.status.success(), "{error}");
    Some(text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

fn positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number > 0.0)
}

/// Checks the lines of a monitor that keeps registrations. `changes` states whether its memory can change.
fn shows(monitor: &str, changes: bool) {
    let Some(lines) = lines(monitor) else { return };
    let of = |is: &str| Vec::from_iter(lines.iter().filter(|line| line["is"] == is));
    assert!(lines.iter().all(|line| line["monitor"] == monitor));
    assert_eq!(of("monitor").len(), 1);
    let transfers = of("transfer");
    assert_eq!(Vec::from_iter(transfers.iter().map(|line| line["bytes"].as_u64().unwrap())), [4096, 2 << 20]);
    for line in transfers {
        for side in ["in_advance", "each_time", "cached"] {
            let figures = &line[side];
            assert!(positive(&figures["p50_ns"]) && positive(&figures["count"]), "{line}");
            assert!(figures["p99_ns"].as_f64() >= figures["p50_ns"].as_f64(), "{line}");
        }
        let ratio = line["cached"]["p50_ns"].as_f64().unwrap() / line["in_advance"]["p50_ns"].as_f64().unwrap();
        assert!((ratio - line["cached_ratio"].as_f64().unwrap()).abs() < 1e-9, "{line}");
        assert!(positive(&line["verified"]), "{line}");
        // The buffer never changes, so it was registered only once, before the measurement.
        assert!(line["misses"].as_u64().unwrap() < line["cached"]["count"].as_u64().unwrap() / 10 + 2, "{line}");
    }
    assert_eq!(of("registration").len(), 2);
    assert_eq!(of("hit").len(), 4 * 2);
    assert!(of("hit").iter().all(|line| positive(&line["ns"])));
    assert_eq!(of("hit")[0]["ioctl_ns"].is_null(), !monitor.starts_with("userfaultfd"));
    assert!(of("miss").iter().all(|line| positive(&line["ns"]) && positive(&line["query_ns"])));
    assert_eq!((of("miss").len(), of("invalidation").len()), (1, usize::from(changes)));
    let others = of("other");
    assert_eq!(others.len(), 3 * 2);
    assert!(others.iter().all(|line| positive(&line["without"]["p50_ns"]) && positive(&line["ratio"])));
    // These lines are present only on kernels that need more than the records.
    let alone = of("records-alone");
    assert!(alone.is_empty() || alone.len() == 3 * 2 && monitor == "bpf", "{alone:?}");
    assert!(alone.iter().all(|line| positive(&line["with"]["p50_ns"]) && positive(&line["ratio"])));
    // There is one line for 4 KiB for each of the four methods. Larger memory is not mapped repeatedly.
    let ways = Vec::from_iter(of("change").iter().map(|line| line["way"].as_str().unwrap().to_owned()));
    let all = ["explicit", "check", "thread", "thread-on-one-processor"];
    assert_eq!(ways, if changes && monitor != "imported" { all.as_slice() } else { &[] });
}

#[test]
fn imported_monitor_is_measured() {
    shows("imported", true);
}

#[test]
fn the_kernel_tier_is_measured() {
    shows("bpf", true);
}

#[test]
fn userfaultfd_is_measured() {
    shows("userfaultfd-promised", true);
}

#[test]
fn sealed_memory_is_measured() {
    shows("sealed", false);
}

#[test]
fn the_tables_and_the_picture_are_written() {
    let file = std::env::temp_dir().join(format!("percale-registration-{}.svg", std::process::id()));
    let arguments = [QUICK.as_slice(), &["--monitor", "imported", "--svg", file.to_str().unwrap()]].concat();
    let output = percale(&arguments);
    let picture = std::fs::read_to_string(&file);
    let _removed: std::io::Result<()> = std::fs::remove_file(&file);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let tables = text(&output.stdout);
    for part in [
        "Transfers",
        "Registrations",
        "Hits",
        "PROCMAP_QUERY",
        "mmap and munmap of 16 pages",
        "65,536",
        "2 MiB",
        "cached/adv",
    ] {
        assert!(tables.contains(part), "no {part} in\n{tables}");
    }
    let picture = picture.unwrap();
    assert!(picture.contains("through the cache (imported)") && picture.contains("registered in advance"));
    assert_eq!(picture.matches("<circle").count(), 2 * 6);
}

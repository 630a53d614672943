//! Tests of `percale perf --windows` on the command line. They check that results exist, not their values. MW-027 must
//! be judged by a person.

use serde_json::Value;

use crate::common::{percale, text};

#[expect(dead_code, reason = "this test does not wait")]
mod common;

/// Requirements: MW-027.
#[test]
fn window_and_registration_costs_are_printed() {
    let quick = ["perf", "--windows", "--seconds", "0.01", "--keys", "100,3000"];
    let output = percale(&[quick.as_slice(), &["--json"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let pinned = !text(&output.stderr).contains("io_uring fixed buffers");
    // Each check has two additional lines for reading memory.
    assert_eq!(lines.len(), 6 + usize::from(pinned) + 2 * 2, "{lines:?}");
    for line in &lines {
        assert!(line["p50_ns"].as_f64().is_some_and(|time| time > 0.0), "{line}");
        assert!(line["count"].as_u64().is_some_and(|count| count > 0), "{line}");
    }
    for (what, begins) in [
        ("a check", "check an access right"),
        ("the limit of reads", "limit: read"),
        ("the second limit", "limit: the same"),
    ] {
        let rows = lines.iter().filter(|line| line["what"].as_str().is_some_and(|what| what.starts_with(begins)));
        let keys: Vec<_> = rows.filter_map(|line| line["keys"].as_u64()).collect();
        assert_eq!(keys, [100, 3000], "{what}");
    }
    let output = percale(&quick);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(
        table.contains("bind and invalidate a window of type 2") && table.contains("check an access right"),
        "{table}"
    );
    assert_eq!(table.contains("times cheaper"), pinned, "{table}");
}

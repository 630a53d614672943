//! Checks that the list of system calls is complete.

use std::collections::BTreeSet;
use std::process::Command;

use percale_conformance::denial::{CALLS, EXEMPT};
use percale_conformance::process::Helper;
use percale_conformance::skipped;
use percale_conformance::watchdog::Watchdog;

/// Runs two helpers under strace until their exchange ends. Returns the names of the first helper's calls.
fn seen(transport: &str) -> BTreeSet<String> {
    let log = std::env::temp_dir().join(format!("percale-calls-{transport}-{}", std::process::id()));
    let output = log.to_str().expect("a path in UTF-8").to_owned();
    let variables = [("PERCALE_FABRIC", transport)];
    let mut traced =
        Helper::through(&["strace", "-f", "-qq", "-e", "signal=none", "-o", &output], "pair", &variables, |_| {});
    let mut peer = Helper::start("pair", &variables);
    let address = |line: String| line.strip_prefix("address ").expect("an address").to_owned();
    let (one, other) = (address(traced.receive_line()), address(peer.receive_line()));
    traced.send_line(&other);
    peer.send_line(&one);
    for printed in ["half", "works"] {
        for side in [&mut traced, &mut peer] {
            let line = side.receive_line();
            assert!(line.starts_with(printed), "{line}");
            side.send_line("go");
        }
    }
    traced.end();
    peer.end();
    let lines = std::fs::read_to_string(&log).expect("strace wrote it");
    std::fs::remove_file(&log).ok();
    // "1234 openat(AT_FDCWD, ...", or "1234 <... poll resumed>...".
    let name = |line: &str| {
        let call = line.split_whitespace().nth(1)?.split_once('(')?.0;
        call.chars().all(|c| c.is_ascii_alphanumeric() || c == '_').then(|| call.to_owned())
    };
    lines.lines().filter_map(name).collect()
}

#[test]
fn every_observed_system_call_is_denied_or_exempt() {
    let works = Command::new("strace").args(["-o", "/dev/null", "true"]).status().is_ok_and(|status| status.success());
    if !works {
        return skipped("strace", "the list of system calls", "strace is not installed, or not allowed");
    }
    let _watchdog = Watchdog::new("the list of system calls");
    let mut all = seen("any");
    all.extend(seen("tcp"));
    let known = |name: &str| CALLS.iter().any(|call| call.name == name) || EXEMPT.iter().any(|(call, _)| *call == name);
    let missing: Vec<&String> = all.iter().filter(|name| !known(name)).collect();
    println!("{} calls are seen: {all:?}", all.len());
    assert!(all.len() > 20, "strace saw hardly anything");
    assert!(missing.is_empty(), "neither denied nor exempt: {missing:?}");
}

//! The command on a machine with only IPv6 on its loopback interface.

use std::process::Command;

/// Measures all operations over both transports, with the limits of the machine, in a short time.
const PERF: [&str; 5] = ["perf", "--size", "64", "--seconds", "0.02"];

#[test]
fn perf_works_with_ipv6_only_loopback() {
    let script = "ip link set lo up && ip addr del 127.0.0.1/8 dev lo && ip -o addr show dev lo && exec \"$0\" \"$@\"";
    let root = rustix::process::geteuid().is_root();
    let works =
        Command::new("unshare").args(["-n", "ip", "link", "show", "lo"]).output().is_ok_and(|out| out.status.success());
    if !root || !works {
        return eprintln!("SKIPPED (network namespaces) loopback of IPv6: root, unshare and ip are required");
    }
    let output = Command::new("unshare")
        .args(["-n", "sh", "-c", script, env!("CARGO_BIN_EXE_percale")])
        .args(PERF)
        .output()
        .expect("the command");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{out}{err}");
    assert!(out.contains("::1/128") && !out.contains("127.0.0.1/8"), "loopback has other addresses");
    assert!(output.status.success(), "{err}");
}

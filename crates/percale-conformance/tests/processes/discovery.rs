//! Discovery on a host where a feature is missing. It succeeds, reports the missing feature and the reason, and the
//! other features work.

#![expect(unsafe_code, reason = "installs a system call filter in a separate process; each block states its reason")]

use std::process::Command;

use percale::{Info, TransportKind};
use percale_conformance::process::{Helper, print_line, variable};
use percale_conformance::watchdog::Watchdog;

use crate::environment::possible;

/// Runs the helper `info` in a separate network namespace without this feature. Returns its report.
fn found_without(what: &str) -> Option<String> {
    if !possible("a host where something is missing", &["unshare", "ip"]) {
        return None;
    }
    let _watchdog = Watchdog::new(what);
    let mut helper = Helper::through(&["unshare", "-n"], "info", &[("PERCALE_PART", what)], |_| {});
    let answer = helper.receive_line();
    println!("without {what}: {answer}");
    helper.end();
    Some(answer)
}

/// Requirements: CON-011.
#[test]
fn discovery_without_loopback_reports_the_reason() {
    let Some(answer) = found_without("lo") else { return };
    assert!(answer.contains("tcp: false") && answer.contains("lo "), "{answer}");
    assert!(answer.contains("shm: true"), "{answer}");
}

/// Requirements: CON-011.
#[test]
fn discovery_without_ipv6_reports_the_reason() {
    let Some(answer) = found_without("IPv6") else { return };
    assert!(answer.contains("tcp: true (IPv4; ") && answer.contains("IPv6 "), "{answer}");
}

/// Requirements: CON-011.
#[test]
fn discovery_without_cma_reports_the_reason() {
    let _watchdog = Watchdog::new("CMA");
    let mut helper = Helper::start("info", &[("PERCALE_PART", "CMA")]);
    let answer = helper.receive_line();
    println!("without CMA: {answer}");
    helper.end();
    assert!(answer.contains("shm: true") && answer.contains("(process_vm_readv: "), "{answer}");
}

/// The role of a helper that removes the feature named by the test, runs discovery, and uses the remaining transports.
pub(crate) fn info() {
    let part = variable("PERCALE_PART");
    if part == "CMA" {
        forbid_cma();
    } else {
        if let Err(error) = std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1") {
            eprintln!("IPv6 stays: {error}"); // The kernel has no IPv6.
        }
        if part == "IPv6" {
            let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
            assert!(up.is_ok_and(|status| status.success()), "lo is up");
        }
    }
    let info = Info::discover().expect("discovery");
    let mut all = Vec::new();
    for one in info.transports() {
        assert!(!one.reason.is_empty());
        all.push(format!("{}: {} ({})", one.kind, one.available, one.reason));
    }
    for device in info.devices() {
        all.push(format!("{}: {} ({})", device.name, device.available, device.detail));
        assert!(part != "lo" || device.name != "lo" || !device.available, "lo is down");
    }
    for one in info.transports().iter().filter(|one| one.available) {
        // Without IPv6, TCP is bound to IPv4.
        let domain = info.domain().transport(one.kind).open().expect("the available transports work");
        let bind = || {
            let vector = domain.address_vector().build().expect("a vector");
            (domain.endpoint().vector(&vector).bind("127.0.0.1:0").expect("an endpoint"), vector)
        };
        let (from, vector) = bind();
        let (to, _) = bind();
        // If `lo` is down, an endpoint can reach only itself.
        let alone = one.kind == TransportKind::Loopback || part == "lo";
        let to = if alone { &from } else { &to };
        let peer = vector.insert(to.address()).expect("an address");
        for len in [5, 300_000] {
            let sending = from.send(peer, vec![7; len]).start().expect("a send");
            let receiving = to.recv(vec![0; len]).start().expect("a receive");
            while !receiving.is_ready() {
                from.progress();
            }
            assert_eq!(receiving.wait().expect("a message").to_vec(), vec![7; len]);
            sending.wait().expect("the send");
        }
    }
    print_line(&all.join("; "));
}

/// Makes the kernel reject copies between processes, for this thread and its later children.
fn forbid_cma() {
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    // The number of the system call is the first word of the filter's input.
    let mut steps = [
        step(load, 0, 0, 0),
        step(equal, 2, 0, libc::SYS_process_vm_readv as u32),
        step(equal, 1, 0, libc::SYS_process_vm_writev as u32),
        step(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(answer, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    ];
    let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the call takes only integers.
    let promised = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(promised, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the filter points to its steps, which live until the call returns. The kernel copies them.
    let filtered = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
    assert_eq!(filtered, 0, "{}", std::io::Error::last_os_error());
}

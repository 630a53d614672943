//! The checks, as data, and the causes of problems. To add a check, add an entry to [`CHECKS`], and a finding of this
//! name to the lines of a probe.

use super::calls;
use super::finding::{Finding, State};

/// The heading of a check in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Area {
    System,
    SharedMemory,
    Network,
    Cache,
    Devices,
    Libfabric,
}

impl Area {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::SharedMemory => "shared memory",
            Self::Network => "network",
            Self::Cache => "registration cache",
            Self::Devices => "devices",
            Self::Libfabric => "libfabric",
        }
    }
}

/// A check.
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) area: Area,
    /// Whether percale cannot do its work without it.
    pub(super) is_essential: bool,
    /// The system calls without which it fails, by their names in [`super::calls`].
    calls: &'static [&'static str],
    /// Other checks whose problems cause a problem here.
    causes: &'static [&'static str],
}

const fn check(name: &'static str, area: Area) -> Check {
    Check { name, area, is_essential: false, calls: &[], causes: &[] }
}

impl Check {
    const fn essential(self) -> Self {
        Self { is_essential: true, ..self }
    }

    const fn calls(self, calls: &'static [&'static str]) -> Self {
        Self { calls, ..self }
    }

    const fn causes(self, causes: &'static [&'static str]) -> Self {
        Self { causes, ..self }
    }
}

/// The check of the system call filter, which causes problems of all others.
pub(super) const FILTER: &str = "seccomp";

/// The check of /proc.
pub(super) const PROC: &str = "proc";

use Area::{Cache, Devices, Libfabric, Network, SharedMemory, System};

/// The calls of local sockets.
const LOCAL: &[&str] = &["socket(AF_UNIX)", "bind", "listen", "accept4", "connect"];

/// The calls of TCP sockets.
const INTERNET: &[&str] = &["socket(AF_INET)", "setsockopt", "bind", "listen", "connect", "getsockname"];

/// The calls of the transport TCP.
const TCP: &[&str] =
    &["epoll_create1", "epoll_ctl", "socket(AF_INET)", "setsockopt", "bind", "listen", "connect", "getsockname"];

/// The calls of every domain.
const DOMAIN: &[&str] = &["epoll_create1", "epoll_ctl", "getsockname"];

/// All checks, in the order of the table. Causes precede the checks that they affect.
pub(super) const CHECKS: &[Check] = &[
    check("kernel", System),
    check("user", System),
    check("container", System),
    check(PROC, System),
    check(FILTER, System),
    check("user-namespaces", System).calls(&["unshare"]),
    check("open-files", System),
    check("threads", System),
    check("file-size", System),
    check("address-space", System),
    check("data-size", System),
    check("stack-size", System),
    check("locked-memory", System),
    check("dev-shm", System),
    check("memfd", SharedMemory).calls(&["memfd_create", "eventfd2"]).causes(&[
        "open-files",
        "file-size",
        "address-space",
    ]),
    check("eventfd", SharedMemory).calls(&["eventfd2"]).causes(&["open-files"]),
    check("futex", SharedMemory),
    check("unix-sockets", SharedMemory).calls(LOCAL).causes(&["open-files"]),
    check("pidfd", SharedMemory).calls(&["pidfd_open"]).causes(&["unix-sockets"]),
    check("descriptor-passing", SharedMemory).causes(&["memfd", "eventfd", "unix-sockets"]),
    check("cross-memory-attach", SharedMemory).calls(&["process_vm_readv", "process_vm_writev"]),
    check("membarrier", SharedMemory).calls(&["membarrier"]),
    check("shared-memory", SharedMemory).essential().calls(DOMAIN).causes(&[
        "memfd",
        "eventfd",
        "futex",
        "unix-sockets",
        "pidfd",
        "descriptor-passing",
        "open-files",
    ]),
    check("loopback", Network).calls(INTERNET),
    check("interfaces", Network).calls(&["socket(AF_NETLINK)"]).causes(&["loopback"]),
    check("default-route", Network),
    check("tcp", Network).essential().calls(TCP).causes(&["loopback", "open-files"]),
    check("bpf", Cache),
    check("helper", Cache).calls(&["socket(AF_UNIX)", "connect", "setsockopt", "sendmsg", "recvmsg"]).causes(&["bpf"]),
    check("kernel-monitor", Cache).calls(&["bpf"]).causes(&["bpf", "helper"]),
    check("userfaultfd", Cache).calls(&["userfaultfd", "membarrier"]).causes(&["membarrier", "memfd"]),
    check("sealed-memory", Cache).calls(&["mseal", "memfd_create", "membarrier"]).causes(&["membarrier", "memfd"]),
    check("io-uring", Devices).calls(&["io_uring_setup"]).causes(&["locked-memory"]),
    check("rdma", Devices).causes(&["locked-memory"]),
    check("cuda", Devices),
    check("libfabric", Libfabric),
    check("provider", Libfabric),
];

/// Returns the check of this name.
pub(super) fn named(name: &str) -> Option<&'static Check> {
    CHECKS.iter().find(|check| check.name == name)
}

/// Finds the causes of problems: calls that a filter rejects, and then problems of other checks. A problem with a cause
/// elsewhere needs no remedy.
pub(super) fn attribute(findings: &mut [Finding], denied: &[String]) {
    let problems: Vec<String> =
        findings.iter().filter(|found| found.state.is_problem()).map(|found| found.check.clone()).collect();
    // Those with a known cause. They are not the causes of their causes.
    let dependent: Vec<(String, String)> =
        findings.iter().filter_map(|found| Some((found.check.clone(), found.cause.clone()?))).collect();
    let is_filtered = problems.iter().any(|name| name == FILTER);
    for found in findings.iter_mut().filter(|found| found.state.is_problem()) {
        let Some(check) = named(&found.check) else { continue };
        let may_be_rejected = !is_other_error(&found.detail);
        if is_filtered && may_be_rejected && check.calls.iter().any(|call| denied.iter().any(|denied| denied == call)) {
            found.cause = Some(FILTER.into());
        } else if found.cause.is_none() {
            let follows = |name: &str| dependent.iter().any(|(check, cause)| check == name && *cause == found.check);
            let is_problem = |name: &str| problems.iter().any(|problem| problem == name) && !follows(name);
            // Shared memory, the caches and most libraries read /proc.
            let needs_proc = !matches!(check.area, System | Network) || found.state == State::Unknown;
            let needed = (needs_proc && check.name != PROC).then_some(PROC);
            let mut causes = exhausted(&found.detail).chain(needed).chain(check.causes.iter().copied());
            found.cause = causes.find(|cause| is_problem(cause)).map(str::to_owned);
        }
        if is_filtered
            && found.cause.is_none()
            && check.name != FILTER
            && let Some(call) = calls::rejected_in(&found.detail)
            && denied.iter().any(|denied| calls::is_among(denied, call))
        {
            found.cause = Some(FILTER.into());
        }
        if found.cause.is_some() {
            found.remedy = None;
        }
    }
    // A helper would mend the monitor too, but it is not what is wrong.
    let monitor = findings.iter().find(|found| found.check == "kernel-monitor");
    if monitor.is_some_and(|found| found.cause.as_deref() == Some(FILTER))
        && let Some(helper) = findings.iter_mut().find(|found| found.check == "helper" && found.state.is_problem())
    {
        (helper.state, helper.remedy, helper.cause) = (State::Absent, None, None);
    }
}

/// The errors of calls at a limit of the process, and the checks of these limits.
const EXHAUSTED: [(i32, &str); 5] = [
    (libc::EMFILE, "open-files"),
    (libc::EAGAIN, "threads"),
    (libc::ENOMEM, "address-space"),
    (libc::ENOMEM, "data-size"),
    (libc::EFBIG, "file-size"),
];

/// Returns whether a problem's text has the number of a system error with which filters do not reject calls: nothing is
/// there, or an interface is down.
fn is_other_error(detail: &str) -> bool {
    const ERRORS: [i32; 5] = [libc::ENOENT, libc::ECONNREFUSED, libc::EADDRNOTAVAIL, libc::ENETUNREACH, libc::ENETDOWN];
    ERRORS.iter().any(|error| detail.contains(&format!("(os error {error})")))
}

/// Returns the limits that a problem's text names with the number of a system error.
fn exhausted(detail: &str) -> impl Iterator<Item = &'static str> {
    // The standard library has an error of its own, and a process ends if it cannot allocate.
    let is_memory = detail.contains("(out of memory)") || detail.contains("(SIGABRT)");
    let has = move |error| detail.contains(&format!("(os error {error})")) || error == libc::ENOMEM && is_memory;
    EXHAUSTED.iter().filter(move |(error, _)| has(*error)).map(|(_, check)| *check)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Remedy;
    use super::*;

    fn problem(check: &str) -> Finding {
        Finding::missing(check, "", Remedy::new("", ["command".to_owned()]))
    }

    /// Returns each problem with its cause.
    fn causes(problems: &[&str], denied: &[&str]) -> Vec<(String, Option<String>)> {
        let mut findings: Vec<Finding> = problems.iter().map(|name| problem(name)).collect();
        attribute(&mut findings, &denied.iter().map(|&call| call.to_owned()).collect::<Vec<_>>());
        assert!(findings.iter().all(|found| found.cause.is_none() || found.remedy.is_none()));
        findings.into_iter().filter(|found| found.state.is_problem()).map(|found| (found.check, found.cause)).collect()
    }

    fn cause(check: &str, cause: Option<&str>) -> (String, Option<String>) {
        (check.to_owned(), cause.map(str::to_owned))
    }

    #[test]
    fn the_list_of_checks_is_consistent() {
        for (at, check) in CHECKS.iter().enumerate() {
            assert!(CHECKS[..at].iter().all(|other| other.name != check.name), "{} is listed twice", check.name);
            assert!(CHECKS[..at].last().is_none_or(|last| last.area == check.area || !has_area(at, check.area)));
            for cause in check.causes {
                assert!(CHECKS[..at].iter().any(|other| other.name == *cause), "{}: {cause} follows it", check.name);
            }
        }
        let essential: Vec<&str> = CHECKS.iter().filter(|check| check.is_essential).map(|check| check.name).collect();
        assert_eq!(essential, ["shared-memory", "tcp"]);
    }

    /// Returns whether a check before the index has the area.
    fn has_area(at: usize, area: Area) -> bool {
        CHECKS[..at].iter().any(|check| check.area == area)
    }

    #[test]
    fn a_filter_is_the_cause_of_rejected_calls() {
        let found = causes(&["seccomp", "userfaultfd", "dev-shm"], &["userfaultfd"]);
        let expected = [cause("seccomp", None), cause("userfaultfd", Some("seccomp")), cause("dev-shm", None)];
        assert_eq!(found, expected);
        // The calls were rejected for another reason if no filter is active.
        assert_eq!(causes(&["userfaultfd"], &["userfaultfd"]), [cause("userfaultfd", None)]);
    }

    #[test]
    fn causes_lead_to_one_root() {
        let found = causes(&["seccomp", "memfd", "descriptor-passing", "shared-memory"], &["memfd_create"]);
        let expected = [
            cause("seccomp", None),
            cause("memfd", Some("seccomp")),
            cause("descriptor-passing", Some("memfd")),
            cause("shared-memory", Some("memfd")),
        ];
        assert_eq!(found, expected);
        assert_eq!(causes(&["loopback", "tcp"], &[]), [cause("loopback", None), cause("tcp", Some("loopback"))]);
    }

    #[test]
    fn a_check_is_not_the_cause_of_its_cause() {
        let mut findings = vec![problem("loopback").because_of("tcp"), problem("tcp")];
        attribute(&mut findings, &[]);
        assert_eq!((findings[0].cause.as_deref(), findings[1].cause.as_deref()), (Some("tcp"), None));
        assert!(findings[1].remedy.is_some());
    }

    #[test]
    fn a_filter_is_the_cause_of_errors_that_name_a_rejected_call() {
        let failed = |call: &str| {
            let detail = format!("needs memory: {call} failed: Operation not permitted (os error 1)");
            Finding::missing("io-uring", detail, Remedy::new("", ["command".to_owned()]))
        };
        for (call, cause) in [("madvise", Some(FILTER)), ("socket", Some(FILTER)), ("mmap", None)] {
            let mut findings = vec![problem(FILTER), failed(call)];
            attribute(&mut findings, &["madvise".to_owned(), "socket(AF_INET)".to_owned()]);
            assert_eq!(findings[1].cause.as_deref(), cause, "{call}");
        }
    }

    #[test]
    fn a_low_limit_is_the_cause_of_its_error() {
        let unknown =
            |check: &str, detail: &str| Finding::unknown(check, detail, Remedy::new("", ["command".to_owned()]));
        for (error, limit) in EXHAUSTED {
            let detail = std::io::Error::from_raw_os_error(error).to_string();
            let mut findings = vec![problem(limit), unknown("tcp", &detail), unknown("cuda", "killed")];
            attribute(&mut findings, &[]);
            let causes: Vec<_> = findings.iter().map(|found| found.cause.as_deref()).collect();
            assert_eq!(causes, [None, Some(limit), None], "{detail}");
            // The limit of the process is sufficient: it is not the cause.
            let mut findings = vec![unknown("tcp", &detail)];
            attribute(&mut findings, &[]);
            assert!(findings[0].is_root() && findings[0].remedy.is_some(), "{detail}");
        }
    }

    #[test]
    fn a_low_limit_of_memory_is_the_cause_of_processes_that_end() {
        for limit in ["address-space", "data-size"] {
            let ended = Finding::missing("bpf", "its process ended: signal: 6 (SIGABRT)", Remedy::new("", []));
            let mut findings = vec![problem(limit), ended.clone()];
            attribute(&mut findings, &[]);
            assert_eq!(findings[1].cause.as_deref(), Some(limit));
            let mut findings = vec![ended];
            attribute(&mut findings, &[]);
            assert_eq!(findings[0].cause, None);
        }
    }

    #[test]
    fn a_filter_that_does_not_matter_is_not_the_cause() {
        let absent = std::io::Error::from_raw_os_error(libc::ENOENT).to_string();
        let helper = Finding::missing("helper", absent, Remedy::new("", ["command".to_owned()]));
        let mut findings = vec![problem(FILTER), helper];
        attribute(&mut findings, &["setsockopt".to_owned()]);
        assert_eq!(findings[1].cause, None);
    }

    #[test]
    fn without_proc_there_is_one_root() {
        let found = causes(&["proc", "descriptor-passing", "shared-memory", "userfaultfd"], &[]);
        let because = |check| cause(check, Some("proc"));
        let expected = [cause("proc", None), because("descriptor-passing"), because("shared-memory")];
        assert_eq!(found, [expected.as_slice(), &[because("userfaultfd")]].concat());
        // The network does not need it.
        assert_eq!(causes(&["proc", "loopback"], &[]), [cause("proc", None), cause("loopback", None)]);
    }

    #[test]
    fn a_filtered_bpf_call_needs_no_helper() {
        let found = causes(&["seccomp", "helper", "kernel-monitor"], &["bpf"]);
        assert_eq!(found, [cause("seccomp", None), cause("kernel-monitor", Some("seccomp"))]);
        let found = causes(&["helper", "kernel-monitor"], &[]);
        assert_eq!(found, [cause("helper", None), cause("kernel-monitor", Some("helper"))]);
    }
}

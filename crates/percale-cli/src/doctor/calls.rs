//! Check of the system call filter (seccomp): makes each call that a filter may reject, with arguments that the kernel
//! rejects before the call has an effect. An unfiltered kernel returns EINVAL or EFAULT for them.

#![expect(unsafe_code, reason = "system calls with invalid arguments; the block states its own reason")]

use std::fs;
use std::io;

use super::finding::{Finding, ProbeLine, Remedy, Report};
use super::surroundings::{CAP_BPF, CAP_SYS_ADMIN, Surroundings};

/// All bits of an argument.
const ALL: i64 = -1;

/// A call, and arguments that no kernel accepts.
struct InvalidCall {
    name: &'static str,
    number: libc::c_long,
    arguments: [i64; 6],
    /// The first kernel with the call. Older ones return ENOSYS, as filters do.
    since: (u32, u32),
}

const fn call(name: &'static str, number: libc::c_long, arguments: [i64; 6], since: (u32, u32)) -> InvalidCall {
    InvalidCall { name, number, arguments, since }
}

/// A descriptor that does not exist.
const NO_DESCRIPTOR: i64 = -1;

/// Flags of a type of sockets that no kernel has. The filter of systemd's RestrictAddressFamilies= rejects a family
/// before the kernel reads them.
const UNKNOWN_TYPE: i64 = 0xf0;

/// The arguments are unknown flags, commands or clocks, a process ID below 0, a null pointer where the kernel reads
/// first, an address that is not aligned, or a descriptor that does not exist.
const CALLS: [InvalidCall; 38] = [
    call("memfd_create", libc::SYS_memfd_create, [0, ALL, 0, 0, 0, 0], (3, 17)),
    call("eventfd2", libc::SYS_eventfd2, [0, ALL, 0, 0, 0, 0], (2, 6)),
    call("epoll_create1", libc::SYS_epoll_create1, [ALL, 0, 0, 0, 0, 0], (2, 6)),
    call("timerfd_create", libc::SYS_timerfd_create, [ALL, ALL, 0, 0, 0, 0], (2, 6)),
    call("pidfd_open", libc::SYS_pidfd_open, [-1, 0, 0, 0, 0, 0], (5, 3)),
    call("process_vm_readv", libc::SYS_process_vm_readv, [0, 0, 0, 0, 0, 1], (3, 2)),
    call("process_vm_writev", libc::SYS_process_vm_writev, [0, 0, 0, 0, 0, 1], (3, 2)),
    call("membarrier", libc::SYS_membarrier, [ALL, 0, 0, 0, 0, 0], (4, 3)),
    call("userfaultfd", libc::SYS_userfaultfd, [ALL, 0, 0, 0, 0, 0], (4, 3)),
    call("mseal", libc::SYS_mseal, [1, 0, 0, 0, 0, 0], (6, 10)),
    call("madvise", libc::SYS_madvise, [1, 0, 0, 0, 0, 0], (2, 6)),
    call("fallocate", libc::SYS_fallocate, [NO_DESCRIPTOR, 0, 0, 1, 0, 0], (2, 6)),
    call("ftruncate", libc::SYS_ftruncate, [NO_DESCRIPTOR, 0, 0, 0, 0, 0], (2, 6)),
    call("fcntl", libc::SYS_fcntl, [NO_DESCRIPTOR, 0, 0, 0, 0, 0], (2, 6)),
    call("fstatfs", libc::SYS_fstatfs, [NO_DESCRIPTOR, 0, 0, 0, 0, 0], (2, 6)),
    call("futex", libc::SYS_futex, [1, libc::FUTEX_WAKE as i64, 0, 0, 0, 0], (2, 6)),
    call("epoll_ctl", libc::SYS_epoll_ctl, [NO_DESCRIPTOR, libc::EPOLL_CTL_DEL as i64, 0, 0, 0, 0], (2, 6)),
    call("socket(AF_UNIX)", libc::SYS_socket, [libc::AF_UNIX as i64, UNKNOWN_TYPE, 0, 0, 0, 0], (2, 6)),
    call("socket(AF_INET)", libc::SYS_socket, [libc::AF_INET as i64, UNKNOWN_TYPE, 0, 0, 0, 0], (2, 6)),
    call("socket(AF_NETLINK)", libc::SYS_socket, [libc::AF_NETLINK as i64, UNKNOWN_TYPE, 0, 0, 0, 0], (2, 6)),
    call("bind", libc::SYS_bind, [NO_DESCRIPTOR, 0, 0, 0, 0, 0], (2, 6)),
    call("listen", libc::SYS_listen, [NO_DESCRIPTOR, 0, 0, 0, 0, 0], (2, 6)),
    call("connect", libc::SYS_connect, [NO_DESCRIPTOR, 0, 0, 0, 0, 0], (2, 6)),
    call("accept4", libc::SYS_accept4, [NO_DESCRIPTOR, 0, 0, ALL, 0, 0], (2, 6)),
    call("getsockname", libc::SYS_getsockname, [NO_DESCRIPTOR, 0, 0, 0, 0, 0], (2, 6)),
    call("getpeername", libc::SYS_getpeername, [NO_DESCRIPTOR, 0, 0, 0, 0, 0], (2, 6)),
    call("getsockopt", libc::SYS_getsockopt, [NO_DESCRIPTOR, 0, 0, 0, 0, 0], (2, 6)),
    call("setsockopt", libc::SYS_setsockopt, [NO_DESCRIPTOR, 0, 0, 0, 0, 0], (2, 6)),
    call("sendmsg", libc::SYS_sendmsg, [NO_DESCRIPTOR, 0, 0, 0, 0, 0], (2, 6)),
    call("recvmsg", libc::SYS_recvmsg, [NO_DESCRIPTOR, 0, 0, 0, 0, 0], (2, 6)),
    call("sendto", libc::SYS_sendto, [NO_DESCRIPTOR, 0, 0, 0, 0, 0], (2, 6)),
    call("recvfrom", libc::SYS_recvfrom, [NO_DESCRIPTOR, 0, 0, 0, 0, 0], (2, 6)),
    call("pipe2", libc::SYS_pipe2, [0, ALL, 0, 0, 0, 0], (2, 6)),
    call("clone", libc::SYS_clone, [libc::CLONE_SIGHAND as i64, 0, 0, 0, 0, 0], (2, 6)),
    call("clone3", libc::SYS_clone3, [0, 0, 0, 0, 0, 0], (5, 3)),
    call("unshare", libc::SYS_unshare, [ALL, 0, 0, 0, 0, 0], (2, 6)),
    call("io_uring_setup", libc::SYS_io_uring_setup, [0, 0, 0, 0, 0, 0], (5, 1)),
    call("bpf", libc::SYS_bpf, [ALL, 0, 0, 0, 0, 0], (3, 18)),
];

impl InvalidCall {
    /// Returns whether an unfiltered kernel rejects the arguments themselves, and not this process.
    fn reveals_a_filter(&self, surroundings: &Surroundings) -> bool {
        let is_turned_off = |path| fs::read_to_string(path).is_ok_and(|value| value.trim() != "0");
        surroundings.kernel >= self.since
            && match self.name {
                "io_uring_setup" => !is_turned_off("/proc/sys/kernel/io_uring_disabled"),
                // Without the capability the kernel may return EPERM for every command.
                "bpf" => surroundings.has_capability(CAP_BPF) || surroundings.has_capability(CAP_SYS_ADMIN),
                _ => true,
            }
    }

    /// Returns whether a filter rejects the call.
    fn is_denied(&self) -> bool {
        match self.error() {
            // Programs then use the older call, and filters that cannot examine the arguments rely on it.
            libc::ENOSYS if self.name == "clone3" => false,
            error => is_denial(error),
        }
    }

    /// Makes the call. Returns its error number, or 0.
    fn error(&self) -> i32 {
        let [a, b, c, d, e, f] = self.arguments;
        // SAFETY: the kernel rejects these arguments before it accesses memory or changes anything.
        let done = unsafe { libc::syscall(self.number, a, b, c, d, e, f) };
        if done >= 0 { 0 } else { io::Error::last_os_error().raw_os_error().unwrap_or(0) }
    }
}

/// Makes all calls, and reports those that are rejected. Reports also whether memory barriers work.
pub(super) fn probe(surroundings: &Surroundings, report: Report<'_>) -> io::Result<()> {
    for call in CALLS.iter().filter(|call| call.reveals_a_filter(surroundings)) {
        report(ProbeLine::Trying(call.name.into()))?;
        if call.is_denied() {
            report(ProbeLine::Denied(call.name.into()))?;
        }
    }
    report(ProbeLine::Trying("membarrier".into()))?;
    report(ProbeLine::Finding(membarrier(surroundings)))
}

/// Returns whether an error is neither that of the arguments nor that of a limit. Filters choose any error, such as
/// EPERM, ENOSYS, or EAFNOSUPPORT.
fn is_denial(error: i32) -> bool {
    const ARGUMENTS: [i32; 3] = [libc::EINVAL, libc::EFAULT, libc::EBADF];
    const LIMITS: [i32; 5] = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN, libc::EINTR];
    error != 0 && !ARGUMENTS.contains(&error) && !LIMITS.contains(&error)
}

/// The calls that start a process.
const STARTING: [&str; 3] = ["pipe2", "clone", "clone3"];

/// Returns the calls that a filter rejects, of those that start a process. For a process that could not start another
/// one, and that has made these calls before.
pub(super) fn denied_starts() -> Vec<String> {
    let surroundings = Surroundings::here();
    let calls = CALLS.iter().filter(|call| surroundings.is_filtered && STARTING.contains(&call.name));
    calls.filter(|call| call.is_denied()).map(|call| call.name.to_owned()).collect()
}

/// The errors with which sandboxes reject calls.
pub(super) const REJECTIONS: [i32; 6] =
    [libc::EPERM, libc::EACCES, libc::ENOSYS, libc::EOPNOTSUPP, libc::EAFNOSUPPORT, libc::EPROTONOSUPPORT];

/// Returns the calls that an error of percale names, if the error is one with which a sandbox rejects calls. The error
/// has the form `CALL failed: ... (os error NUMBER)`, with `CALL or CALL`, or `what (CALL)`, if one of several failed.
pub(super) fn rejected_in(error: &str) -> Option<&str> {
    let (before, after) = error.rsplit_once(" failed: ")?;
    let is_rejected = REJECTIONS.iter().any(|number| after.contains(&format!("(os error {number})")));
    let clause = before.rsplit([':', ';']).next()?;
    let calls = clause.split_once('(').map_or(clause, |(_, calls)| calls).trim_matches([' ', ')']);
    (is_rejected && !calls.is_empty()).then_some(calls)
}

/// Returns whether a call in the list of rejected ones is one of those that [`rejected_in`] has found. The list states
/// the families of sockets.
pub(super) fn is_among(denied: &str, calls: &str) -> bool {
    let name = denied.split('(').next();
    calls.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').any(|call| Some(call) == name)
}

impl Surroundings {
    /// Returns the remedy for an error of a sandbox: it allows the call that the error names, or those that `usual`
    /// describes.
    pub(super) fn allow_failed_call(&self, error: &str, usual: &str) -> Remedy {
        self.allow_calls(rejected_in(error).unwrap_or(usual))
    }
}

/// Checks the barriers by which a thread executes a fence for all threads of its process.
fn membarrier(surroundings: &Surroundings) -> Finding {
    /// MEMBARRIER_CMD_PRIVATE_EXPEDITED and MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED.
    const PRIVATE: i64 = 1 << 3 | 1 << 4;
    // SAFETY: MEMBARRIER_CMD_QUERY (0) only returns the supported commands.
    let commands = unsafe { libc::syscall(libc::SYS_membarrier, 0, 0, 0) };
    if commands >= 0 && commands & PRIVATE == PRIVATE {
        return Finding::works("membarrier", "a thread can execute a fence for all others");
    }
    let why = if commands < 0 { io::Error::last_os_error().to_string() } else { "the kernel is too old".into() };
    let detail = format!("membarrier: {why}; each send executes a fence, and a cache may keep removed registrations");
    Finding::limited("membarrier", detail, surroundings.allow_calls("membarrier"))
}

/// Judges the filter by the calls that it rejects, and those that ended a process.
pub(super) fn filter(denied: &[String], killing: &[String], surroundings: &Surroundings) -> Finding {
    if !surroundings.has_proc {
        let remedy = Remedy::new("Show whether a filter is active:", ["grep Seccomp /proc/self/status".to_owned()]);
        return Finding::unknown("seccomp", "not checked: /proc/self/status cannot be read", remedy);
    }
    if !surroundings.is_filtered {
        return Finding::works("seccomp", "no system call filter");
    }
    let mut parts = Vec::new();
    if !denied.is_empty() {
        parts.push(format!("rejects {}", denied.join(", ")));
    }
    if !killing.is_empty() {
        parts.push(format!("ends processes that call {}", killing.join(", ")));
    }
    if parts.is_empty() {
        return Finding::works("seccomp", "a system call filter is active; it permits what percale needs");
    }
    let mut calls: Vec<&str> = denied.iter().chain(killing).map(String::as_str).collect();
    calls.sort_unstable();
    calls.dedup();
    let remedy = surroundings.allow_calls(&calls.join(", "));
    Finding::limited("seccomp", format!("a system call filter {}", parts.join(", and ")), remedy)
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    #[test]
    fn the_kernel_rejects_the_arguments_of_every_call() {
        let here = Surroundings::here();
        if here.is_filtered {
            return println!("skipped (seccomp): a system call filter restricts the tests");
        }
        for call in CALLS.iter().filter(|call| call.reveals_a_filter(&here)) {
            let error = call.error();
            assert!(matches!(error, libc::EINVAL | libc::EFAULT | libc::EBADF), "{}: error {error}", call.name);
        }
    }

    #[test]
    fn rejected_calls_are_reported() {
        let mut lines = Vec::new();
        probe(&Surroundings::here(), &mut |line| {
            lines.push(line);
            Ok(())
        })
        .unwrap();
        assert!(lines.contains(&ProbeLine::Trying("memfd_create".into())));
        assert!(matches!(lines.last(), Some(ProbeLine::Finding(found)) if found.check == "membarrier"));
        assert!(is_denial(libc::EPERM) && is_denial(libc::ENOSYS) && !is_denial(libc::EINVAL) && !is_denial(0));
    }

    #[test]
    fn the_call_that_a_sandbox_rejects_is_in_the_error() {
        let rejected = |error: &str| rejected_in(error).map(str::to_owned);
        let of = |call: &str| Some(call.to_owned());
        let found = rejected("needs memory: madvise failed: Operation not permitted (os error 1); allow it there");
        assert_eq!(found, of("madvise"));
        let found = rejected("(IPv4: socket failed: not supported (os error 97); IPv6: socket failed: (os error 97))");
        assert_eq!(found, of("socket"));
        assert_eq!(rejected("memfd_create failed: Too many open files (os error 24)"), None);
        assert_eq!(rejected("a connection failed"), None);
        assert_eq!(rejected("in this process: sendmsg or sendto failed: (os error 1)"), of("sendmsg or sendto"));
        assert_eq!(rejected("the domain: starting a thread (clone3) failed: (os error 1)"), of("clone3"));
        assert!(is_among("socket(AF_INET)", "socket") && is_among("sendto", "sendmsg or sendto"));
        assert!(!is_among("bind", "socket") && !is_among("send", "sendmsg"));
        let here = Surroundings::example();
        let remedy = here.allow_failed_call("fallocate failed: Operation not permitted (os error 1)", "mseal");
        assert!(remedy.advice.contains("fallocate") && !remedy.advice.contains("mseal"), "{remedy:?}");
    }

    #[test]
    fn a_filter_is_named_with_the_calls_that_it_rejects() {
        let user = Surroundings { is_filtered: true, ..Surroundings::example() };
        let calls = ["bpf".to_owned(), "userfaultfd".to_owned()];
        assert_eq!(filter(&[], &[], &Surroundings::example()).state, State::Works);
        assert_eq!(filter(&[], &[], &user).state, State::Works);
        let no_proc = Surroundings { has_proc: false, ..Surroundings::example() };
        assert_eq!(filter(&[], &[], &no_proc).state, State::Unknown);
        let found = filter(&calls, &calls[..1], &user);
        assert_eq!(found.state, State::Limited);
        assert_eq!(found.detail, "a system call filter rejects bpf, userfaultfd, and ends processes that call bpf");
        assert!(found.remedy.unwrap().advice.contains("bpf, userfaultfd"));
    }
}

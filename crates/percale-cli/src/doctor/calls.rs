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

/// The arguments are unknown flags, commands or clocks, a process ID below 0, a null pointer where the kernel reads
/// first, or an address that is not aligned.
const CALLS: [InvalidCall; 13] = [
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
        if is_denial(call.error()) {
            report(ProbeLine::Denied(call.name.into()))?;
        }
    }
    report(ProbeLine::Trying("membarrier".into()))?;
    report(ProbeLine::Finding(membarrier(surroundings)))
}

fn is_denial(error: i32) -> bool {
    matches!(error, libc::EPERM | libc::EACCES | libc::ENOSYS)
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
            assert!(matches!(error, libc::EINVAL | libc::EFAULT), "{}: error {error}", call.name);
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

//! After endpoints were opened, the system runs out of memory for sharing, or denies calls that shared memory needs.

#![expect(
    unsafe_code,
    reason = "installs a filter of system calls, and a timer of signals; each block states its own reason"
)]

use percale_conformance::peers::{open, open_as_told};
use percale_conformance::process::{Helper, ask, print_line, variable};
use percale_conformance::skipped;
use percale_conformance::watchdog::Watchdog;

/// Calls that allocate the memory of a pair of processes, and the errors that they return from a certain time on. EINTR
/// simulates a sandbox that always returns it.
const FAILURES: [(&str, i64, i32); 8] = [
    ("memfd_create", libc::SYS_memfd_create, libc::EPERM),
    ("memfd_create", libc::SYS_memfd_create, libc::ENOMEM),
    ("memfd_create", libc::SYS_memfd_create, libc::EINTR),
    ("fallocate", libc::SYS_fallocate, libc::ENOSPC),
    ("fallocate", libc::SYS_fallocate, libc::EINTR),
    ("fallocate", libc::SYS_fallocate, libc::ENOSYS),
    ("ftruncate", libc::SYS_ftruncate, libc::EFBIG),
    ("ftruncate", libc::SYS_ftruncate, libc::EINTR),
];

/// Lengths of messages: one that fits in a cache line, one that fits in the byte ring, and two that are offered.
const LENGTHS: [usize; 4] = [8, 3000, 200_000, (1 << 20) + 3];

/// Makes this call fail with this error in all threads from now on. Returns false if the system does not permit
/// filters.
fn deny(call: i64, error: i32) -> bool {
    let filter = [
        libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 },
        libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: call as u32 },
        libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x0005_0000 | error as u32 },
        libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 },
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the call changes only this process.
    let privileges = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: the filter is read only during the call. All threads get it (flag 1: TSYNC).
    let done = unsafe { libc::syscall(libc::SYS_seccomp, 1, 1, &raw const program) };
    privileges == 0 && done == 0
}

/// Starts a timer that sends signals at short intervals. Their handler makes calls return EINTR.
fn interrupt() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: all fields of this structure may be zero. Without flags, calls are not restarted.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as *const () as usize;
    // SAFETY: the handler does nothing.
    unsafe { libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()) };
    let interval = libc::timeval { tv_sec: 0, tv_usec: 300 };
    let timer = libc::itimerval { it_interval: interval, it_value: interval };
    // SAFETY: the call changes only the timer of this process.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
}

/// The role of a process in which a call starts to fail before or after its first connection. It continues with the
/// remaining transports.
pub(crate) fn denied() {
    let open = open_as_told();
    open.say_address();
    let peer = open.insert(&ask());
    let [call, error] = ["PERCALE_CALL", "PERCALE_ERROR"].map(|name| variable(name).parse::<i64>().expect("a number"));
    if variable("PERCALE_WHEN") == "connected" {
        open.exchange(peer, 1, 8).expect("an echo");
    }
    if call < 0 {
        interrupt();
    } else if !deny(call, error as i32) {
        return print_line("skipped: no filter of system calls can be installed");
    }
    for round in 0..3 {
        for (number, len) in (0..).zip(LENGTHS) {
            if let Err(error) = open.exchange(peer, 10 + 10 * round + number, len) {
                return print_line(&format!("no echo of {len} bytes: {error}"));
            }
        }
    }
    let (transport, reason) = open.connected();
    print_line(&format!("{transport}: {reason}"));
}

/// Returns the result of such a process. All calls work in its peer. Either of the two connects to the other.
fn found(when: &str, call: i64, error: i32) -> String {
    let open = open("any", "127.0.0.1:0", |domain| domain);
    let (call, error) = (call.to_string(), error.to_string());
    let variables =
        [("PERCALE_FABRIC", "any"), ("PERCALE_WHEN", when), ("PERCALE_CALL", &call), ("PERCALE_ERROR", &error)];
    let mut helper = Helper::start("denied", &variables);
    open.insert(&helper.receive_line());
    helper.send_line(&open.endpoint.address().to_string());
    std::thread::scope(|scope| {
        let answer = scope.spawn(move || helper.receive_line());
        while !answer.is_finished() {
            let mut echoed = open.endpoint.tagged_recv(0, !0, vec![0; 4 << 20]).start().expect("a receive");
            while !echoed.is_ready() && !answer.is_finished() {
                if !open.endpoint.progress() {
                    std::thread::yield_now();
                }
            }
            if !echoed.is_ready() {
                break;
            }
            let Ok(got) = echoed.wait() else { continue };
            let to = got.source.expect("a peer that the vector has");
            let sending = open.endpoint.tagged_send(to, got.tag, got.to_vec()).start().expect("a send");
            while !sending.is_ready() && !answer.is_finished() {
                open.endpoint.progress();
            }
        }
        answer.join().expect("an answer")
    })
}

/// Requirements: CON-008.
#[test]
fn new_connections_use_tcp_without_shared_memory() {
    let _watchdog = Watchdog::new("new connections use tcp without shared memory");
    for (name, call, error) in FAILURES {
        let answer = found("before", call, error);
        println!("{name}, error {error}: {answer}");
        if answer.starts_with("skipped") {
            return skipped("seccomp", "calls that fail", &answer);
        }
        assert!(answer.starts_with("tcp: "), "{name}, error {error}: {answer}");
    }
}

/// Requirements: FLT-009.
#[test]
fn connections_survive_shared_memory_exhaustion() {
    let _watchdog = Watchdog::new("connections survive shared memory exhaustion");
    for (name, call, error) in FAILURES {
        let answer = found("connected", call, error);
        println!("{name}, error {error}: {answer}");
        if answer.starts_with("skipped") {
            return skipped("seccomp", "calls that fail", &answer);
        }
        assert!(answer.starts_with("shm: "), "{name}, error {error}: {answer}");
    }
}

/// Requirements: CON-008.
#[test]
fn interrupted_calls_are_retried() {
    let _watchdog = Watchdog::new("interrupted calls are retried");
    for when in ["before", "connected"] {
        let answer = found(when, -1, 0);
        println!("interrupted, {when}: {answer}");
        assert!(answer.starts_with("shm: "), "{answer}");
    }
}

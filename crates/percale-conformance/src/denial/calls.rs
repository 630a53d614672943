//! The system calls that percale, its provider and pindown make, and the errors of each.
//!
//! Sandboxes return EPERM or ENOSYS, and old kernels return ENOSYS. The other errors are those in the manual page of
//! the call. EINTR is left out where the C library or the standard library retries the call without limit (openat,
//! read, getrandom, sendto and recvmsg): a call that is always interrupted does not exist outside this test. A separate
//! test covers signals that interrupt calls occasionally. Another test compares this list with the output of strace(1).

use libc::{EINTR, EMFILE, ENOMEM, ENOSPC, ENOSYS, EPERM};

/// Selects which of the calls with this number are denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeniedCalls {
    /// All calls.
    All,
    /// Calls on descriptors above 2. The lower descriptors belong to the test itself.
    OwnDescriptors,
    /// Calls that map a descriptor. The other calls are made by memory allocators.
    OfDescriptors,
    /// Calls on words that processes share (FUTEX_WAIT and FUTEX_WAKE without FUTEX_PRIVATE_FLAG). Locks of this
    /// process need the other calls.
    SharedWords,
}

/// A system call.
#[derive(Clone, Copy, Debug)]
pub struct SystemCall {
    /// The name of the call in the output of strace.
    pub name: &'static str,
    /// The number of the call.
    pub number: i64,
    /// Selects which of the calls with this number are denied.
    pub which: DeniedCalls,
    /// The errors that the call can return.
    pub errors: &'static [i32],
}

macro_rules! calls {
    ($($(#[$exists:meta])? $which:ident $name:ident $number:ident: $($error:ident)+;)+) => {
        &[$($(#[$exists])? SystemCall {
            name: stringify!($name),
            number: libc::$number,
            which: DeniedCalls::$which,
            errors: &[$($error),+],
        }),+]
    };
}

/// All denied calls. One is denied at a time.
pub const CALLS: &[SystemCall] = calls! {
    // Memory.
    All memfd_create SYS_memfd_create: EPERM ENOSYS EINTR ENOMEM EMFILE;
    All ftruncate SYS_ftruncate: EPERM EINTR;
    All fallocate SYS_fallocate: EPERM ENOSYS EINTR ENOSPC;
    OfDescriptors mmap SYS_mmap: EPERM ENOMEM;
    All madvise SYS_madvise: EPERM ENOSYS ENOMEM;
    All process_vm_readv SYS_process_vm_readv: EPERM ENOSYS ENOMEM;
    All process_vm_writev SYS_process_vm_writev: EPERM ENOSYS ENOMEM;
    // Descriptors.
    All fcntl SYS_fcntl: EPERM EMFILE;
    All openat SYS_openat: EPERM ENOMEM EMFILE;
    OwnDescriptors read SYS_read: EPERM;
    OwnDescriptors write SYS_write: EPERM EINTR;
    OwnDescriptors pread64 SYS_pread64: EPERM;
    OwnDescriptors preadv SYS_preadv: EPERM ENOSYS;
    OwnDescriptors pwritev SYS_pwritev: EPERM ENOSYS;
    OwnDescriptors preadv2 SYS_preadv2: EPERM ENOSYS;
    OwnDescriptors readv SYS_readv: EPERM;
    #[cfg(target_arch = "x86_64")]
    All open SYS_open: EPERM ENOMEM EMFILE;
    All newfstatat SYS_newfstatat: EPERM ENOMEM;
    OwnDescriptors fstat SYS_fstat: EPERM ENOMEM;
    All fstatfs SYS_fstatfs: EPERM ENOSYS EINTR ENOMEM;
    All statx SYS_statx: EPERM ENOSYS ENOMEM;
    All readlinkat SYS_readlinkat: EPERM ENOMEM;
    All ioctl SYS_ioctl: EPERM;
    All pipe2 SYS_pipe2: EPERM EMFILE;
    // Waiting and waking up.
    All eventfd2 SYS_eventfd2: EPERM ENOSYS ENOMEM EMFILE;
    All epoll_create1 SYS_epoll_create1: EPERM ENOSYS ENOMEM EMFILE;
    All epoll_ctl SYS_epoll_ctl: EPERM ENOMEM ENOSPC;
    All epoll_pwait SYS_epoll_pwait: EPERM ENOSYS EINTR;
    All epoll_pwait2 SYS_epoll_pwait2: EPERM ENOSYS EINTR;
    #[cfg(target_arch = "x86_64")]
    All poll SYS_poll: EPERM ENOSYS EINTR ENOMEM;
    All ppoll SYS_ppoll: EPERM ENOSYS EINTR ENOMEM;
    All timerfd_create SYS_timerfd_create: EPERM ENOSYS ENOMEM EMFILE;
    All timerfd_settime SYS_timerfd_settime: EPERM ENOSYS;
    SharedWords futex SYS_futex: EPERM ENOSYS EINTR;
    All membarrier SYS_membarrier: EPERM ENOSYS;
    All sched_yield SYS_sched_yield: EPERM ENOSYS;
    All clock_nanosleep SYS_clock_nanosleep: EPERM ENOSYS EINTR;
    // Sockets.
    All socket SYS_socket: EPERM ENOMEM EMFILE;
    All bind SYS_bind: EPERM ENOMEM;
    All listen SYS_listen: EPERM;
    All accept4 SYS_accept4: EPERM ENOSYS EINTR ENOMEM EMFILE;
    All connect SYS_connect: EPERM EINTR;
    All getsockname SYS_getsockname: EPERM;
    All getpeername SYS_getpeername: EPERM;
    All getsockopt SYS_getsockopt: EPERM;
    All setsockopt SYS_setsockopt: EPERM;
    All shutdown SYS_shutdown: EPERM;
    OwnDescriptors sendto SYS_sendto: EPERM ENOMEM;
    OwnDescriptors recvfrom SYS_recvfrom: EPERM EINTR ENOMEM;
    OwnDescriptors sendmsg SYS_sendmsg: EPERM EINTR ENOMEM;
    OwnDescriptors recvmsg SYS_recvmsg: EPERM ENOMEM;
    // The monitors of the registration cache.
    All userfaultfd SYS_userfaultfd: EPERM ENOSYS ENOMEM EMFILE;
    All mlock2 SYS_mlock2: EPERM ENOSYS ENOMEM;
    All mseal SYS_mseal: EPERM ENOSYS ENOMEM;
    All bpf SYS_bpf: EPERM ENOSYS ENOMEM EMFILE;
    // Processes and threads.
    All pidfd_open SYS_pidfd_open: EPERM ENOSYS ENOMEM EMFILE;
    All pidfd_send_signal SYS_pidfd_send_signal: EPERM ENOSYS;
    All clone3 SYS_clone3: EPERM ENOSYS ENOMEM;
    All clone SYS_clone: EPERM ENOMEM;
    All prlimit64 SYS_prlimit64: EPERM ENOSYS;
    All getrusage SYS_getrusage: EPERM ENOSYS;
    All sysinfo SYS_sysinfo: EPERM;
    All sched_getaffinity SYS_sched_getaffinity: EPERM ENOSYS;
    All sched_setaffinity SYS_sched_setaffinity: EPERM ENOSYS;
    All sched_setattr SYS_sched_setattr: EPERM ENOSYS;
    All sched_setscheduler SYS_sched_setscheduler: EPERM ENOSYS;
    All sched_getscheduler SYS_sched_getscheduler: EPERM ENOSYS;
    All getcpu SYS_getcpu: EPERM ENOSYS;
    All getrandom SYS_getrandom: EPERM ENOSYS;
};

/// Calls that percale makes but that are not denied, each with the reason.
pub const EXEMPT: &[(&str, &str)] = &[
    ("execve", "the call starts the program"),
    ("exit", "the call cannot fail"),
    ("exit_group", "the call cannot fail"),
    ("restart_syscall", "the call is made by the kernel"),
    ("rt_sigreturn", "the call ends a signal handler"),
    ("brk", "memory allocators make the call; a program without memory ends"),
    ("munmap", "memory allocators make the call; a failure to release memory has no consequence"),
    ("mremap", "memory allocators make the call"),
    ("mprotect", "the C library makes the call for the stacks of threads; a denied clone3 covers this case"),
    ("close", "a failure has no consequence"),
    ("lseek", "the test harness makes the call"),
    ("access", "the program's loader makes the call"),
    ("arch_prctl", "the C library makes the call when a thread starts"),
    ("set_tid_address", "the C library makes the call when a thread starts"),
    ("set_robust_list", "the C library makes the call when a thread starts"),
    ("rseq", "the C library makes the call when a thread starts"),
    ("sigaltstack", "the standard library makes the call when a thread starts"),
    ("rt_sigaction", "the standard library makes the call when the program starts"),
    ("rt_sigprocmask", "the C library makes the call when a thread starts"),
    ("gettid", "the call cannot fail"),
    ("getpid", "the call cannot fail"),
    ("geteuid", "the call cannot fail"),
    ("getuid", "the call cannot fail"),
    ("prctl", "the test makes the call to name threads and to install the filter"),
    ("seccomp", "the test makes the call"),
    ("writev", "the test harness makes the call"),
];

impl SystemCall {
    /// Returns the call of this name.
    ///
    /// # Panics
    /// Panics if the list does not contain it.
    #[must_use]
    pub fn named(name: &str) -> &'static Self {
        CALLS.iter().find(|call| call.name == name).unwrap_or_else(|| panic!("no call is named {name}"))
    }
}

//! Events that a worker causes in its own process.

#![expect(unsafe_code, reason = "forks, executes another program, installs filters and signal handlers")]

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit};

use super::{Open, PART, Worker};
use crate::process::this_program;
use crate::search_processes::ignored;
use crate::search_processes::inherited::Child;

impl<A: Open> Worker<A> {
    /// Occasionally causes a random event.
    pub(super) fn live(&mut self) {
        let rare = self.ledger.random.below(400);
        let has = |worker: &Self, kind| worker.ledger.plan.has(kind);
        if rare < 8 && has(self, "cancel") {
            self.cancel(false);
        }
        if (8..12).contains(&rare) && has(self, "drop") {
            self.cancel(true);
        }
        if self.regions.len() < 2 && !self.stations.is_empty() && rare.is_multiple_of(20) {
            self.register();
        }
        if rare == 13 && has(self, "regions") {
            self.close_region();
        }
        if Instant::now() < self.next_event {
            return;
        }
        let pause = 20 + self.ledger.random.below(600) as u64;
        self.next_event = Instant::now() + Duration::from_millis(pause);
        let is_one_in = |worker: &mut Self, n| worker.ledger.random.below(n) == 0;
        match self.ledger.random.below(19) {
            0..=2 if has(self, "close") && !self.stations.is_empty() => self.reopen(),
            3 if has(self, "exit") && is_one_in(self, 3) => {
                self.happened();
                self.ledger.say_counts();
                self.ledger.print_line("exits");
                std::process::exit(0);
            }
            4 if has(self, "exec") => self.exec(),
            5 | 6 if has(self, "no-copies") => self.forbid_copies(),
            7 if has(self, "eintr") => self.interrupt(),
            8 if has(self, "files") => self.few_files(),
            9 | 10 if has(self, "fork") && self.children.len() < 2 => self.fork(),
            11 | 12 if has(self, "windows") => self.change_windows(),
            13 | 14 if has(self, "reset") => self.break_connection(),
            16..=18 if has(self, "connected") => self.change_connections(),
            15 if has(self, "no-mappings") && is_one_in(self, 4) => self.forbid_mappings(),
            _ => {}
        }
    }

    fn happened(&mut self) {
        self.ledger.counts.lives += 1;
    }

    fn cancel(&mut self, drop_task: bool) {
        if !self.stations.is_empty() {
            let at = self.ledger.random.below(self.stations.len());
            self.stations[at].cancel(&mut self.ledger, drop_task);
        }
    }

    /// Closes an endpoint, and opens another one at the same address or at a different one.
    fn reopen(&mut self) {
        self.happened();
        let at = self.ledger.random.below(self.stations.len());
        let worker_endpoint = self.stations.swap_remove(at);
        let (port, id) = (worker_endpoint.port, worker_endpoint.id);
        self.ledger.note(|| format!("closes port {port}"));
        worker_endpoint.close(&mut self.ledger);
        self.ledger.print_line(&format!("gone {port} {id}"));
        if self.ledger.random.below(2) == 0 {
            self.ports.push(port);
        }
        self.open();
    }

    fn fork(&mut self) {
        if self.stations.is_empty() {
            return;
        }
        let at = self.ledger.random.below(self.stations.len());
        self.happened();
        self.ledger.note(|| "forks".into());
        self.children.extend(Child::start(&mut self.stations[at]));
    }

    /// Executes another program, while a forked child holds the descriptors.
    fn exec(&mut self) {
        self.happened();
        self.ledger.say_counts();
        self.ledger.print_line("execs");
        // SAFETY: the child only sleeps, and the alarm ends it.
        if unsafe { libc::fork() } == 0 {
            // SAFETY: the default action of the alarm ends this process.
            unsafe { libc::alarm(100) };
            loop {
                std::thread::sleep(Duration::from_secs(10));
            }
        }
        let mut command = this_program();
        let failed = std::os::unix::process::CommandExt::exec(command.env(PART, "linger"));
        self.ledger.fault(&format!("cannot execute: {failed}"));
    }

    /// Makes the kernel reject copies between this process and others from now on.
    fn forbid_copies(&mut self) {
        self.happened();
        if self.ledger.random.below(2) == 0 {
            self.ledger.note(|| "is not dumpable".into());
            ignored(rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable));
            return;
        }
        self.ledger.note(|| "forbids process_vm_readv and process_vm_writev".into());
        let [readv, writev] = [libc::SYS_process_vm_readv, libc::SYS_process_vm_writev].map(|call| call as u32);
        self.filter(&mut [
            libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 },
            libc::sock_filter { code: 0x15, jt: 1, jf: 0, k: readv },
            libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: writev },
            libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x0005_0000 | libc::EPERM as u32 },
            libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 },
        ]);
    }

    /// Makes the kernel reject shared mappings and new shared memory in this process from now on. Its heap can still
    /// grow.
    fn forbid_mappings(&mut self) {
        self.happened();
        self.ledger.note(|| "forbids memfd_create and shared mappings".into());
        let [create, map] = [libc::SYS_memfd_create, libc::SYS_mmap].map(|call| call as u32);
        self.filter(&mut [
            libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 },
            libc::sock_filter { code: 0x15, jt: 3, jf: 0, k: create },
            libc::sock_filter { code: 0x15, jt: 0, jf: 3, k: map },
            // Loads the fourth argument. Its lowest bit is MAP_SHARED.
            libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 40 },
            libc::sock_filter { code: 0x45, jt: 0, jf: 1, k: libc::MAP_SHARED as u32 },
            libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x0005_0000 | libc::ENOMEM as u32 },
            libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 },
        ]);
    }

    /// Installs a permanent filter of system calls in all threads.
    fn filter(&mut self, filter: &mut [libc::sock_filter]) {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the call changes only this process.
        let privileges = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        // SAFETY: the filter is read only during the call. All threads get it (flag 1: TSYNC).
        let done = unsafe { libc::syscall(libc::SYS_seccomp, 1, 1, &raw const program) };
        self.ledger.note(|| format!("forbidden: {privileges} {done}"));
    }

    /// Ends one of this process's connections, as a network failure might: by a reset, or by an orderly shutdown.
    fn break_connection(&mut self) {
        let connected = |fd: &i32| {
            // SAFETY: only a property of the descriptor is queried, if a descriptor with this number exists.
            let file = unsafe { BorrowedFd::borrow_raw(*fd) };
            !rustix::net::sockopt::socket_acceptconn(file).unwrap_or(true) && rustix::net::getpeername(file).is_ok()
        };
        let own = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let own = own.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let sockets = own.filter(connected).collect::<Vec<_>>();
        if sockets.is_empty() {
            return;
        }
        let fd = sockets[self.ledger.random.below(sockets.len())];
        let resets = self.ledger.random.below(2) == 0;
        self.happened();
        self.ledger.note(|| format!("ends the connection of descriptor {fd}, by a reset: {resets}"));
        // SAFETY: no descriptor is closed here. A peer or a network failure can affect the connection in the same way.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        if !resets || rustix::net::connect_unspec(file).is_err() {
            // A Unix socket cannot be reset.
            ignored(rustix::net::shutdown(file, rustix::net::Shutdown::Both));
        }
    }

    /// Installs a handler for SIGUSR1 that writes the position of the main thread and ends the process. The supervisor
    /// sends this signal to workers that hang.
    pub(super) fn tell_where() {
        extern "C" fn print_backtrace(_: libc::c_int) {
            eprintln!("does not respond; backtrace:\n{}", std::backtrace::Backtrace::force_capture());
            // SAFETY: the call ends only this process.
            unsafe { libc::_exit(9) };
        }
        // SAFETY: all fields of this structure may be zero.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = print_backtrace as *const () as usize;
        // SAFETY: the handler ends the process, regardless of the code that it interrupts.
        unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) };
    }

    /// Causes frequent signals. Interrupted calls are not restarted.
    fn interrupt(&mut self) {
        extern "C" fn nothing(_: libc::c_int) {}
        self.happened();
        self.ledger.note(|| "handles signals".into());
        // SAFETY: all fields of this structure may be zero.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = nothing as *const () as usize;
        // SAFETY: the handler does nothing.
        unsafe { libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()) };
        interrupt_every(40 << self.ledger.random.below(6));
    }

    fn few_files(&mut self) {
        self.happened();
        let most = rustix::process::getrlimit(Resource::Nofile).maximum;
        let open = crate::measure::descriptors().len() as u64;
        let few = open.saturating_sub(2) + self.ledger.random.below(8) as u64;
        let now = if self.ledger.random.below(2) == 0 { Some(few) } else { most };
        self.ledger.note(|| format!("may have {now:?} descriptors and has {open}"));
        ignored(rustix::process::setrlimit(Resource::Nofile, Rlimit { current: now, maximum: most }));
    }
}

/// Starts a timer that sends a signal at this interval in microseconds. 0 stops it.
pub(super) fn interrupt_every(microseconds: i64) {
    let often = libc::timeval { tv_sec: 0, tv_usec: microseconds };
    let timer = libc::itimerval { it_interval: often, it_value: often };
    // SAFETY: the timer is read only during the call, and nothing is written.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
}

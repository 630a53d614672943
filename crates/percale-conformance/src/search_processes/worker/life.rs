//! What a worker does to itself.

#![expect(unsafe_code, reason = "forks, executes another program, installs filters and signal handlers")]

use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit};

use super::{Open, PART, Worker};
use crate::search_processes::ignored;
use crate::search_processes::inherited::Child;

impl<A: Open> Worker<A> {
    /// Now and then something happens.
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
        match self.ledger.random.below(12) {
            0..=2 if has(self, "close") && !self.stations.is_empty() => self.reopen(),
            9 | 10 if has(self, "fork") && self.children.len() < 2 => self.fork(),
            3 if has(self, "exit") && self.ledger.random.below(3) == 0 => {
                self.ledger.say("exits");
                std::process::exit(0);
            }
            4 if has(self, "exec") && self.ledger.random.below(3) == 0 => self.exec(),
            5 | 6 if has(self, "no-copies") => self.forbid_copies(),
            7 if has(self, "eintr") => self.interrupt(),
            8 if has(self, "files") => self.few_files(),
            _ => {}
        }
    }

    fn cancel(&mut self, drop_task: bool) {
        if !self.stations.is_empty() {
            let at = self.ledger.random.below(self.stations.len());
            self.stations[at].cancel(&mut self.ledger, drop_task);
        }
    }

    /// Closes an endpoint, and opens another at the same or another address.
    fn reopen(&mut self) {
        let at = self.ledger.random.below(self.stations.len());
        let station = self.stations.swap_remove(at);
        let (port, id) = (station.port, station.id);
        self.ledger.note(|| format!("closes port {port}"));
        station.close(&mut self.ledger);
        self.ledger.say(&format!("gone {port} {id}"));
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
        self.ledger.note(|| "forks".into());
        self.children.extend(Child::start(&mut self.stations[at]));
    }

    /// Becomes another program, while a forked child keeps the descriptors.
    fn exec(&mut self) {
        self.ledger.say("execs");
        // SAFETY: the child sleeps, and ends by the alarm.
        if unsafe { libc::fork() } == 0 {
            // SAFETY: the default action of the alarm ends this process.
            unsafe { libc::alarm(100) };
            loop {
                std::thread::sleep(Duration::from_secs(10));
            }
        }
        let mut command = std::process::Command::new("/proc/self/exe");
        let failed = std::os::unix::process::CommandExt::exec(command.env(PART, "linger"));
        self.ledger.fault(&format!("cannot execute: {failed}"));
    }

    /// From now on the kernel copies nothing between this process and others.
    fn forbid_copies(&mut self) {
        if self.ledger.random.below(2) == 0 {
            self.ledger.note(|| "is not dumpable".into());
            ignored(rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable));
            return;
        }
        self.ledger.note(|| "forbids process_vm_readv and process_vm_writev".into());
        let [readv, writev] = [libc::SYS_process_vm_readv, libc::SYS_process_vm_writev].map(|call| call as u32);
        let filter = [
            libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 },
            libc::sock_filter { code: 0x15, jt: 1, jf: 0, k: readv },
            libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: writev },
            libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x0005_0000 | libc::EPERM as u32 },
            libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 },
        ];
        let program = libc::sock_fprog { len: 5, filter: filter.as_ptr().cast_mut() };
        // SAFETY: changes this process only.
        let privileges = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        // SAFETY: the filter is read during the call; all threads get it (flag 1: TSYNC).
        let done = unsafe { libc::syscall(libc::SYS_seccomp, 1, 1, &raw const program) };
        self.ledger.note(|| format!("forbidden: {privileges} {done}"));
    }

    /// On SIGUSR1 the process writes where its main thread is, and ends: the supervisor asks those that hang.
    pub(super) fn tell_where() {
        extern "C" fn tell(_: libc::c_int) {
            eprintln!("does not answer; it is here:\n{}", std::backtrace::Backtrace::force_capture());
            // SAFETY: ends this process only.
            unsafe { libc::_exit(9) };
        }
        // SAFETY: all fields of this structure may be zero.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = tell as *const () as usize;
        // SAFETY: the handler ends the process, whatever it interrupts.
        unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) };
    }

    /// Signals at a high rate, whose handlers do not have calls restarted.
    fn interrupt(&mut self) {
        extern "C" fn nothing(_: libc::c_int) {}
        self.ledger.note(|| "takes signals".into());
        // SAFETY: all fields of this structure may be zero.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = nothing as *const () as usize;
        // SAFETY: the handler does nothing.
        unsafe { libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()) };
        let often = libc::timeval { tv_sec: 0, tv_usec: (40 << self.ledger.random.below(6)) as i64 };
        let timer = libc::itimerval { it_interval: often, it_value: often };
        // SAFETY: as above.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
    }

    fn few_files(&mut self) {
        let most = rustix::process::getrlimit(Resource::Nofile).maximum;
        let open = crate::measure::descriptors().len() as u64;
        let few = open.saturating_sub(2) + self.ledger.random.below(8) as u64;
        let now = if self.ledger.random.below(2) == 0 { Some(few) } else { most };
        self.ledger.note(|| format!("may have {now:?} descriptors and has {open}"));
        ignored(rustix::process::setrlimit(Resource::Nofile, Rlimit { current: now, maximum: most }));
    }
}

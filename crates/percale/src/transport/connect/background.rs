//! What a thread of the library sheds of whoever started it, and a few threads that are there while there is something to do.
//!
//! A thread inherits its starter's processors and scheduling policy. An owner that is pinned and spins, or runs in real time,
//! would leave a thread that sleeps most of the time no turn at all when it is needed.

#![expect(unsafe_code, reason = "rustix has no sched_setscheduler(2); each block states its own reason")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

use rustix::thread::CpuSet;

/// Threads of a crew at most.
const THREADS: usize = 8;

/// What a crew does.
pub(crate) trait Job: Send + 'static {
    /// Does it. It may take seconds.
    fn run(self);
}

impl Job for Box<dyn FnOnce() + Send> {
    fn run(self) {
        self();
    }
}

/// A few threads, as many as there are jobs, which end when nothing is left to do. Jobs beyond those wait.
pub(crate) struct Crew<J> {
    name: &'static str,
    jobs: Mutex<Jobs<J>>,
}

struct Jobs<J> {
    waiting: VecDeque<J>,
    threads: usize,
}

impl<J> fmt::Debug for Crew<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<J: Job> Crew<J> {
    /// One whose threads have this name.
    pub(crate) fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Self { name, jobs: Mutex::new(Jobs { waiting: VecDeque::new(), threads: 0 }) })
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs<J>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many of the jobs that have not begun are such.
    pub(crate) fn waiting(&self, such: impl Fn(&J) -> bool) -> usize {
        self.jobs().waiting.iter().filter(|job| such(job)).count()
    }

    /// Has something done; by the caller, if the system gives no thread.
    pub(crate) fn start(self: &Arc<Self>, job: J) {
        let mut jobs = self.jobs();
        jobs.waiting.push_back(job);
        if jobs.threads == THREADS {
            return;
        }
        jobs.threads += 1;
        drop(jobs);
        let crew = Arc::clone(self);
        let work = move || {
            step_back();
            crew.work();
        };
        if let Err(error) = std::thread::Builder::new().name(self.name.to_owned()).spawn(work) {
            tracing::warn!(%error, name = self.name, "no thread: its work is done by whoever wants it");
            self.work();
        }
    }

    /// Does what there is to do.
    fn work(&self) {
        loop {
            let mut jobs = self.jobs();
            let Some(job) = jobs.waiting.pop_front() else {
                jobs.threads -= 1;
                return;
            };
            drop(jobs);
            job.run();
        }
    }
}

/// Lets the calling thread run on every processor that its process may use (the kernel cuts the set down to the process's
/// cpuset), and takes real-time priority from it.
pub(crate) fn step_back() {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|processor| all.set(processor));
    if let Err(error) = rustix::thread::sched_setaffinity(None, &all) {
        tracing::warn!(%error, "a thread of the library stays on the processors of whoever started it");
    }
    // SAFETY: takes an integer; 0 is the calling thread.
    let policy = unsafe { libc::sched_getscheduler(0) };
    if matches!(policy & !libc::SCHED_RESET_ON_FORK, libc::SCHED_FIFO | libc::SCHED_RR) {
        let usual = libc::sched_param { sched_priority: 0 };
        // SAFETY: the parameters are a valid structure, only read; 0 is the calling thread.
        if unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const usual) } != 0 {
            let error = io::Error::last_os_error();
            tracing::warn!(%error, "a thread of the library keeps its starter's priority");
        }
    }
}

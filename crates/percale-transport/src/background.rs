//! A thread pool for background work of the library, with threads that exist only while there is work, and
//! [`reset_scheduling`], which resets the CPU affinity and the real-time scheduling policy of the calling thread.
//!
//! A thread inherits the CPU affinity and the scheduling policy of the thread that started it. If that thread spins
//! while pinned to a processor, or runs with real-time priority, a library thread with the same settings may get no CPU
//! time, because it sleeps most of the time.

#![expect(unsafe_code, reason = "rustix has no sched_setscheduler(2); each block states its own reason")]

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

use rustix::thread::CpuSet;

use crate::later::later;
use crate::system::thread::start_thread;

/// The maximum number of threads of a pool. `FOR_ONE_PEER` is the maximum number that work for one peer.
const THREADS: usize = 8;
const FOR_ONE_PEER: usize = THREADS / 2;

/// A unit of work for the pool.
pub trait Job: Send + 'static {
    /// Executes the job. It may take seconds.
    fn run(self);

    /// Returns whether the requester still waits for the result. If not, the job is dropped when its turn comes.
    fn is_wanted(&self) -> bool {
        true
    }

    /// Returns the address of the peer that the job is for, as reported by the kernel. One peer cannot occupy all
    /// threads.
    fn peer(&self) -> Option<IpAddr> {
        None
    }
}

/// A thread pool. A queued job gets a new thread if there are fewer threads than the limit, and waits otherwise. A
/// thread ends when there is no job left. The jobs of a peer also wait while half of the threads work for that peer.
pub(crate) struct WorkerPool<J> {
    name: &'static str,
    jobs: Mutex<Jobs<J>>,
}

struct Jobs<J> {
    waiting: VecDeque<J>,
    threads: usize,
    /// The peers of the jobs that are being executed.
    working: Vec<IpAddr>,
}

impl<J> fmt::Debug for WorkerPool<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerPool").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<J: Job> WorkerPool<J> {
    /// Creates a thread pool with this name.
    pub(crate) fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Self { name, jobs: Mutex::new(Jobs { waiting: VecDeque::new(), threads: 0, working: Vec::new() }) })
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs<J>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of jobs that have not started and that satisfy `such`.
    pub(crate) fn waiting(&self, such: impl Fn(&J) -> bool) -> usize {
        self.jobs().waiting.iter().filter(|job| such(job)).count()
    }

    /// Queues a job for execution. If no thread can be created, the calling thread executes it.
    pub(crate) fn start(self: &Arc<Self>, job: J) {
        let mut jobs = self.jobs();
        jobs.waiting.push_back(job);
        if jobs.threads == THREADS {
            return;
        }
        jobs.threads += 1;
        drop(jobs);
        let worker_pool = Arc::clone(self);
        let work = move || {
            reset_scheduling();
            worker_pool.work();
        };
        if let Err(error) = start_thread(self.name, work) {
            later!(warn: %error, name = self.name, "cannot start a background thread; its work is done by the caller");
            self.work();
        }
    }

    /// Executes jobs until none is left that may be executed.
    fn work(&self) {
        let mut peer = None;
        loop {
            let mut jobs = self.jobs();
            if let Some(at) = jobs.working.iter().position(|one| Some(*one) == peer) {
                jobs.working.swap_remove(at);
            }
            let Some(job) = jobs.next() else {
                jobs.threads -= 1;
                return;
            };
            peer = job.peer();
            jobs.working.extend(peer);
            drop(jobs);
            if job.is_wanted() {
                job.run();
            }
        }
    }
}

impl<J: Job> Jobs<J> {
    /// Removes and returns the first job that can leave the queue: a job that is no longer wanted, or a job of a peer
    /// that has not used up its share of the threads.
    fn next(&mut self) -> Option<J> {
        let may = |job: &J| {
            let works = |peer: IpAddr| self.working.iter().filter(|one| **one == peer).count();
            !job.is_wanted() || job.peer().is_none_or(|peer| works(peer) < FOR_ONE_PEER)
        };
        let at = self.waiting.iter().position(may)?;
        self.waiting.remove(at)
    }
}

/// Allows the calling thread to run on every processor that its process may use (the kernel restricts the set to the
/// cpuset of the process), and resets a real-time scheduling policy to the default. Another thread emits the log events
/// of this function.
pub fn reset_scheduling() {
    crate::later::emit_elsewhere();
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|processor| all.set(processor));
    if let Err(error) = rustix::thread::sched_setaffinity(None, &all) {
        later!(warn: %error, "cannot reset the CPU affinity of a library thread");
    }
    // SAFETY: takes an integer; 0 is the calling thread.
    let policy = unsafe { libc::sched_getscheduler(0) };
    if matches!(policy & !libc::SCHED_RESET_ON_FORK, libc::SCHED_FIFO | libc::SCHED_RR) {
        let usual = libc::sched_param { sched_priority: 0 };
        // SAFETY: the pointer refers to a valid structure, which is only read; 0 is the calling thread.
        if unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const usual) } != 0 {
            let error = io::Error::last_os_error();
            later!(warn: %error, "cannot reset the priority of a library thread");
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{FOR_ONE_PEER, Job, THREADS, WorkerPool};
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{Arc, Mutex, Weak};
    use std::time::Duration;

    /// A job that waits for permission to end, and then reports its end.
    struct Waits {
        may_end: Arc<Mutex<Receiver<()>>>,
        ended: Sender<u8>,
        peer: u8,
        wanted: Weak<()>,
    }

    impl Job for Waits {
        fn run(self) {
            if self.peer == 1 {
                self.may_end.lock().unwrap().recv().unwrap();
            }
            self.ended.send(self.peer).unwrap();
        }

        fn is_wanted(&self) -> bool {
            self.wanted.strong_count() > 0
        }

        fn peer(&self) -> Option<IpAddr> {
            Some(Ipv4Addr::new(10, 0, 0, self.peer).into())
        }
    }

    /// Requirements: FLT-007.
    #[test]
    fn long_jobs_of_one_peer_leave_threads_to_others() {
        let (worker_pool, alive) = (WorkerPool::new("percale-test"), Arc::new(()));
        let ((may, may_end), (ended, ends)) = (channel(), channel());
        let may_end = Arc::new(Mutex::new(may_end));
        let job = |peer, wanted| Waits { may_end: Arc::clone(&may_end), ended: ended.clone(), peer, wanted };
        (0..2 * THREADS).for_each(|_| worker_pool.start(job(1, Arc::downgrade(&alive))));
        // Jobs that are no longer wanted are not run.
        let gone = Arc::new(());
        (0..THREADS).for_each(|_| worker_pool.start(job(1, Arc::downgrade(&gone))));
        drop(gone);
        (2..10).for_each(|peer| worker_pool.start(job(peer, Arc::downgrade(&alive))));
        let mut others: Vec<u8> =
            (2..10).map(|_| ends.recv_timeout(Duration::from_secs(30)).expect("a thread")).collect();
        others.sort_unstable();
        assert_eq!(others, (2..10).collect::<Vec<_>>());
        let first = IpAddr::from(Ipv4Addr::new(10, 0, 0, 1));
        let working = loop {
            let jobs = worker_pool.jobs();
            if jobs.threads == jobs.working.len() && jobs.working.iter().all(|peer| *peer == first) {
                break jobs.threads;
            }
            drop(jobs);
            std::thread::yield_now();
        };
        assert_eq!(working, FOR_ONE_PEER, "the number of threads that work for one peer");
        (0..3 * THREADS).for_each(|_| may.send(()).unwrap());
        (0..2 * THREADS).for_each(|_| assert_eq!(ends.recv_timeout(Duration::from_secs(30)), Ok(1)));
        assert!(ends.recv_timeout(Duration::from_millis(50)).is_err(), "an unrequested job was executed");
    }
}

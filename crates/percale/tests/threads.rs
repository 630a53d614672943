//! Tests that the library's threads inherit neither the CPU affinity nor the priority of the thread that starts them.
//! This is a separate program, because it checks all threads of the process.

#![expect(unsafe_code, reason = "real-time priority has no safe wrapper; the block states its reason")]

use std::fs;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns a thread's processors and its scheduling policy, if it exists and has this name.
fn state(task: &fs::DirEntry, name: &str) -> Option<(String, String)> {
    let file = |file| fs::read_to_string(task.path().join(file)).ok();
    let status = file("status")?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    // After the name, which may contain any characters, the policy is field 41 of proc_pid_stat(5).
    let stat = file("stat")?;
    let policy = stat.rsplit(") ").next()?.split(' ').nth(41 - 3)?;
    (file("comm")?.trim() == name).then(|| (allowed.trim().to_owned(), policy.to_owned()))
}

/// Returns the states of the threads with this name.
fn states(name: &str) -> Vec<(String, String)> {
    let tasks = fs::read_dir("/proc/self/task").expect("/proc is mounted");
    tasks.flatten().filter_map(|task| state(&task, name)).collect()
}

/// Returns the processors that the calling thread may use, in the kernel's format.
fn allowed_here() -> String {
    let status = fs::read_to_string("/proc/thread-self/status").expect("/proc is mounted");
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("processors").trim().to_owned()
}

#[test]
fn service_thread_does_not_inherit_affinity_or_scheduling() {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|processor| all.set(processor));
    sched_setaffinity(None, &all).expect("an affinity");
    let everything = allowed_here();
    let here = sched_getaffinity(None).expect("an affinity");
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|&processor| here.is_set(processor)).expect("a processor"));
    sched_setaffinity(None, &one).expect("an affinity");
    if here.count() == 1 {
        eprintln!("SKIPPED (two processors) processors of the service thread: only one is available");
    } else {
        assert_ne!(allowed_here(), everything, "this thread is pinned");
    }
    let urgent = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameters are a valid structure that is only read, and 0 denotes the calling thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const urgent) } != 0 {
        eprintln!("SKIPPED (real-time priority) priority of the service thread: {}", std::io::Error::last_os_error());
    }
    let domain = percale::Info::discover().expect("discovery").domain().open().expect("a domain");
    let wanted = (everything, libc::SCHED_OTHER.to_string());
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let found = states("percale-connect");
        if found == [wanted.clone()] {
            break;
        }
        assert!(Instant::now() < until, "found {found:?}, but expected only {wanted:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_ne!(sched_getaffinity(None).expect("an affinity"), all, "the affinity of this thread is unchanged");
    drop(domain);
}

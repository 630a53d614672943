//! The process to which a monitor belongs, and the behaviour when the program closes the monitor's descriptors. Each
//! case runs in a separate process.
#![expect(unsafe_code, reason = "fork, name spaces and closing; each block states its own reason")]

use pindown::monitor::Choice;
use pindown::monitor::userfaultfd::{Settings, Unseen};
use pindown::{Access, Cache, Lane, Range};

use oracle::{Memory, Oracle, PAGE, in_child, load, map_anew, must, pattern, store, unmap};

mod oracle;

/// Opens a cache with the monitor of the case, if it is available.
fn open(oracle: &Oracle) -> Option<Cache<Oracle>> {
    let (capability, choice) = match std::env::var("PINDOWN_MONITOR").as_deref() {
        Ok("bpf") => ("bpf", Choice::Bpf),
        _ => ("userfaultfd", Choice::Userfaultfd(Settings::new(Unseen::NeverMade))),
    };
    let opened = Cache::builder(oracle.clone()).monitor(choice).open();
    opened.map_err(|why| eprintln!("skipped ({capability}): {why}")).ok()
}

fn each_monitor(case: &str) {
    for monitor in ["bpf", "userfaultfd"] {
        println!("{}", in_child(case, &[("PINDOWN_MONITOR", monitor)]));
    }
}

/// Returns the key of the registration that serves a page, and whether it is kept.
fn key(lane: &Lane<Oracle>, at: u64) -> (u64, bool) {
    let used =
        lane.get(Range::new(at, PAGE).expect("a range"), Access::LOCAL_WRITE).expect("the memory can be registered");
    let found = (used.local_key(), !used.is_single());
    lane.end(used);
    found
}

/// Checks that the page's registration is kept and found again. Returns its key.
fn keep(lane: &Lane<Oracle>, at: u64) -> u64 {
    for _ in 0..1000 {
        let first = key(lane, at);
        if first.1 && key(lane, at) == first {
            return first.0;
        }
        std::thread::yield_now();
    }
    panic!("{at:#x} is not kept");
}

/// Checks that a transfer from the page sends its current bytes.
fn transfers(oracle: &Oracle, lane: &Lane<Oracle>, at: u64, seed: u8) {
    store(at, &pattern(PAGE, seed));
    let used =
        lane.get(Range::new(at, PAGE).expect("a range"), Access::LOCAL_WRITE).expect("the memory can be registered");
    let sent = oracle.carry(used.local_key(), at, PAGE);
    lane.end(used);
    assert!(sent == load(at, PAGE), "stale: sent other bytes than those at {at:#x}");
}

/// Runs `child` in a fork, and waits until it has ended successfully.
fn fork(child: impl FnOnce()) {
    // SAFETY: the child has only this thread. It does not wait for other threads, and ends without running destructors.
    let process = unsafe { libc::fork() };
    assert!(process >= 0, "no child");
    if process == 0 {
        let well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).is_ok();
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(!well)) };
    }
    let mut status = 0;
    // SAFETY: the status lives through the call.
    assert_eq!(unsafe { libc::waitpid(process, &raw mut status, 0) }, process);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the child ended with {status:#x}");
}

/// Makes later children start in a new PID namespace. Returns whether this succeeded.
fn new_namespace() -> bool {
    // SAFETY: the call accesses no memory.
    unsafe { libc::unshare(libc::CLONE_NEWPID) == 0 }
}

/// Requirements: MON-019.
#[test]
fn descendant_with_reused_process_id_has_a_separate_monitor() {
    each_monitor("same_number_process");
}

#[test]
#[ignore = "started by the other tests, in a process of its own"]
fn same_number_process() {
    if !new_namespace() {
        return eprintln!("skipped (root): only root has PID namespaces");
    }
    let memory = Memory::new(1);
    fork(|| {
        assert_eq!(std::process::id(), 1);
        let Some(cache) = open(&Oracle::new()) else { return };
        drop(cache);
        assert!(new_namespace());
        fork(|| {
            assert_eq!(std::process::id(), 1, "the process ID of an ancestor");
            let oracle = Oracle::new();
            let cache = open(&oracle).expect("the parent could open a cache");
            let lane = cache.lane();
            let before = keep(&lane, memory.start);
            unmap(memory.start, PAGE);
            map_anew(memory.start, PAGE);
            transfers(&oracle, &lane, memory.start, 2);
            assert_ne!(key(&lane, memory.start).0, before);
        });
    });
    std::mem::forget(memory);
}

/// Closes descriptors that the libraries of this process have open, like a program that keeps none of its parent's
/// descriptors.
fn close_all_but(kept: &[u64]) {
    for number in (3..=1023).filter(|number| !kept.contains(number)) {
        oracle::call(libc::SYS_close, [number, 0, 0, 0, 0, 0]).ok();
    }
}

/// Returns the open descriptors.
fn descriptors() -> Vec<u64> {
    let names = std::fs::read_dir("/proc/self/fd").expect("/proc").map(|entry| entry.expect("an entry").file_name());
    names.filter_map(|name| name.to_str().and_then(|name| name.parse().ok())).collect()
}

/// Requirements: MON-035.
#[test]
fn application_may_close_monitor_descriptors() {
    each_monitor("closing_process");
}

#[test]
#[ignore = "started by the other tests, in a process of its own"]
fn closing_process() {
    let (oracle, other) = (Oracle::new(), Oracle::new());
    let memory = [Memory::new(1), Memory::new(1)];
    // Descriptors of the oracles and of the harness stay open.
    let kept = descriptors();
    let (Some(cache), Some(second)) = (open(&oracle), open(&other)) else { return };
    let lanes = [cache.lane(), second.lane()];
    let before: Vec<_> = lanes.iter().zip(&memory).map(|(lane, memory)| keep(lane, memory.start)).collect();
    close_all_but(&kept);
    for ((oracle, lane), memory) in [&oracle, &other].into_iter().zip(&lanes).zip(&memory) {
        // Threads do not wait forever.
        unmap(memory.start, PAGE);
        map_anew(memory.start, PAGE);
        transfers(oracle, lane, memory.start, 2);
        unmap(memory.start, PAGE);
        map_anew(memory.start, PAGE);
        transfers(oracle, lane, memory.start, 3);
    }
    // A forked child that has copies of the descriptors does not change this.
    fork(|| assert!(lanes.iter().all(Lane::forked)));
    // There are enough look-ups for the monitor's periodic check.
    let many = Memory::new(600);
    for page in 0..600 {
        key(&lanes[0], many.page(page));
    }
    for ((lane, memory), before) in lanes.iter().zip(&memory).zip(before) {
        let (now, is_kept) = key(lane, memory.start);
        assert!(!is_kept, "registration {now} is kept, as {before} was");
    }
    // Their descriptors are closed already, and the standard library aborts if they are closed again.
    std::mem::forget((lanes, cache, second));
}

/// Requirements: MON-019.
#[test]
fn child_does_not_inherit_bpf_attachment_descriptors() {
    println!("{}", in_child("attached_process", &[("PINDOWN_MONITOR", "bpf")]));
}

#[test]
#[ignore = "started by the other tests, in a process of its own"]
fn attached_process() {
    let Some(_cache) = open(&Oracle::new()) else { return };
    let links = |number: &u64| {
        let name = std::fs::read_link(format!("/proc/self/fd/{number}"));
        name.is_ok_and(|name| {
            name.to_string_lossy().contains("bpf_link") || name.to_string_lossy().contains("bpf-link")
        })
    };
    assert_eq!(descriptors().iter().filter(|number| links(number)).count(), 0);
    fork(|| assert_eq!(descriptors().iter().filter(|number| links(number)).count(), 0));
    assert!(must(libc::SYS_getpid, [0; 6]) > 0);
}

//! io_uring requests that were submitted before the monitor was opened, and that run afterwards. This needs a separate
//! process, because a worker that removes pages ends all caching.
#![expect(unsafe_code, reason = "io_uring and mappings; each block states its own reason")]

use io_uring::squeue::{Entry, Flags};
use io_uring::{IoUring, opcode, types};
use pindown::monitor::bpf::{Change, Monitor};

use oracle::{ANONYMOUS, Memory, PAGE, memfd, must};

mod oracle;

/// Runs one test at a time, because the monitors of other tests report the changes by the workers of one.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn monitor() -> Option<Monitor> {
    Monitor::in_process().map_err(|why| eprintln!("skipped (bpf): {why}")).ok()
}

fn submit(ring: &mut IoUring, entries: &[Entry]) {
    // SAFETY: the memory that the entries point to lives until they have completed, for which the tests wait.
    unsafe { ring.submission().push_multiple(entries) }.expect("there is room");
    assert_eq!(ring.submit().expect("the request is submitted"), entries.len());
}

/// Returns the results of `count` requests.
fn completed(ring: &mut IoUring, count: usize) -> Vec<i32> {
    let mut results = Vec::new();
    while results.len() < count {
        ring.submit_and_wait(1).expect("the wait succeeds");
        results.extend(ring.completion().map(|done| done.result()));
    }
    results
}

/// Returns a request that waits until the event is written to, and that is not assigned to a worker until then.
fn waits(event: u64) -> Entry {
    opcode::PollAdd::new(types::Fd(event as i32), libc::POLLIN as u32).build().flags(Flags::IO_HARDLINK)
}

fn event() -> u64 {
    must(libc::SYS_eventfd2, [0, 0, 0, 0, 0, 0])
}

fn happens(event: u64) {
    must(libc::SYS_write, [event, 1_u64.to_ne_bytes().as_ptr() as u64, 8, 0, 0, 0]);
}

fn reported(monitor: &Monitor, seen: u64, memory: &Memory) -> bool {
    monitor.page().drain(seen).any(|change| match change {
        Change::Everything => true,
        Change::Range(changed) => changed.start < memory.start + memory.len && memory.start < changed.end,
    })
}

/// Requirements: MON-012, MON-029.
#[test]
fn advice_submitted_before_monitoring_is_reported() {
    let _alone = alone();
    let (mut ring, event, memory) = (IoUring::new(8).expect("io_uring is available"), event(), Memory::new(1));
    let at = std::ptr::with_exposed_provenance::<libc::c_void>(memory.start as usize);
    let advice = opcode::Madvise::new(at, PAGE as i64, libc::MADV_DONTNEED).build();
    submit(&mut ring, &[waits(event), advice]);
    let Some(monitor) = monitor() else { return };
    assert!(!monitor.page().busy(), "no request is in progress");
    let seen = monitor.page().head();
    happens(event);
    assert_eq!(completed(&mut ring, 2)[1], 0);
    assert!(reported(&monitor, seen, &memory));
    assert!(monitor.page().busy(), "the kernel does not report the end of workers");
}

/// Requirements: MON-012, MON-018, MON-029.
#[test]
fn truncation_submitted_before_monitoring_is_reported() {
    let _alone = alone();
    let (mut ring, event, file) = (IoUring::new(8).expect("io_uring is available"), event(), memfd(PAGE));
    let memory = Memory::of(1, libc::MAP_PRIVATE, file);
    oracle::store(memory.start, &[7; PAGE as usize]);
    let cut = opcode::Ftruncate::new(types::Fd(file as i32), 0).build();
    submit(&mut ring, &[waits(event), cut]);
    let Some(monitor) = monitor() else { return };
    let seen = monitor.page().head();
    happens(event);
    match completed(&mut ring, 2)[1] {
        0 => assert!(reported(&monitor, seen, &memory)),
        error => eprintln!("skipped (newer kernel): this kernel's io_uring does not truncate ({error})"),
    }
}

/// Requirements: MON-012, MON-029.
#[test]
fn pending_io_worker_requests_are_reported() {
    let _alone = alone();
    let (mut ring, memory) = (IoUring::new(8).expect("io_uring is available"), Memory::new(1));
    let at = std::ptr::with_exposed_provenance::<libc::c_void>(memory.start as usize);
    let path = std::env::temp_dir().join(format!("pindown-fifo-{}", std::process::id()));
    let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
    let here = libc::AT_FDCWD as u64;
    must(libc::SYS_mknodat, [here, name.as_ptr() as u64, u64::from(libc::S_IFIFO | 0o600), 0, 0, 0]);
    // A worker waits for the other end of the pipe, and afterwards removes pages, which no tracepoint reports.
    let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), name.as_ptr()).flags(libc::O_RDONLY);
    let open = open.build().flags(Flags::ASYNC | Flags::IO_LINK);
    let advice = opcode::Madvise::new(at, PAGE as i64, libc::MADV_DONTNEED).build();
    submit(&mut ring, &[open, advice]);
    oracle::store(memory.start, &[7; PAGE as usize]);
    let Some(monitor) = monitor() else { return };
    let seen = monitor.page().head();
    let early = pindown::monitor::bpf::reports_beginnings().expect("the programs are loaded");
    assert_eq!(monitor.page().busy(), early, "nothing may be kept if page tables are freed early");
    let other = must(libc::SYS_openat, [here, name.as_ptr() as u64, libc::O_WRONLY as u64, 0, 0, 0]);
    let results = completed(&mut ring, 2);
    assert!(results[0] >= 0 && results[1] == 0, "{results:?}");
    for fd in [other, results[0] as u64] {
        must(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
    }
    must(libc::SYS_unlinkat, [here, name.as_ptr() as u64, 0, 0, 0, 0]);
    assert!(reported(&monitor, seen, &memory));
}

/// Requirements: MON-029.
#[test]
fn idle_io_workers_do_not_mark_the_page_busy() {
    let _alone = alone();
    let (mut ring, file) = (IoUring::new(8).expect("io_uring is available"), memfd(PAGE));
    let page = must(libc::SYS_mmap, [0, 2 * PAGE, oracle::READ_WRITE, ANONYMOUS as u64, u64::MAX, 0]);
    let read = |at: u64| {
        let buffer = std::ptr::with_exposed_provenance_mut(at as usize);
        opcode::Read::new(types::Fd(file as i32), buffer, PAGE as u32).build().flags(Flags::ASYNC)
    };
    submit(&mut ring, &[read(page)]);
    assert_eq!(completed(&mut ring, 1), [PAGE as i32]);
    let Some(monitor) = monitor() else { return };
    assert!(!monitor.page().busy());
    let seen = monitor.page().head();
    submit(&mut ring, &[read(page + PAGE)]);
    assert_eq!(completed(&mut ring, 1), [PAGE as i32]);
    assert!(!monitor.page().drain(seen).any(|change| change == Change::Everything));
    must(libc::SYS_munmap, [page, 2 * PAGE, 0, 0, 0, 0]);
}

//! io_uring workers remove pages. This needs a separate process: the kernel does not report when a worker has finished,
//! so no registration may be kept in this process from then on.
#![expect(unsafe_code, reason = "io_uring and mappings; each block states its own reason")]

use io_uring::{IoUring, opcode};
use pindown::monitor::bpf::{Change, Monitor};

/// The page size of the systems on which the kernel programs can be loaded.
const PAGE: usize = 4096;

/// Requirements: MON-012, MON-029.
#[test]
fn advice_by_an_io_worker_is_reported() {
    let monitor = match Monitor::in_process() {
        Ok(monitor) => monitor,
        Err(why) => return eprintln!("skipped (bpf): {why}"),
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), 4 * PAGE, 3, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    // SAFETY: the address is within the mapping.
    let second = unsafe { start.cast::<u8>().add(PAGE) };
    let store = |value: u8| {
        // SAFETY: the address is within the mapping, which no other code uses.
        unsafe { second.write_volatile(value) }
    };
    // SAFETY: the address is within the mapping.
    let load = || unsafe { second.read_volatile() };
    let range = second as u64..second as u64 + PAGE as u64;
    let mut ring = IoUring::new(8).expect("io_uring is available");
    let mut advise = |advice: i32| {
        let seen = monitor.page().head();
        let entry = opcode::Madvise::new(second.cast(), PAGE as i64, advice).build();
        // SAFETY: the mapping is not removed.
        unsafe { ring.submission().push(&entry) }.expect("there is room");
        ring.submit_and_wait(1).expect("the request is submitted");
        assert_eq!(ring.completion().next().expect("a completion").result(), 0);
        monitor.page().drain(seen).any(|change| match change {
            Change::Everything => true,
            Change::Range(changed) => changed.start < range.end && range.start < changed.end,
        })
    };
    store(7);
    assert!(!advise(libc::MADV_COLD));
    assert!(!monitor.page().busy());
    assert_eq!(load(), 7);
    assert!(advise(libc::MADV_DONTNEED));
    assert_eq!(load(), 0, "the page is a new one");
    assert!(monitor.page().busy());
    monitor.check().expect("no program was skipped");
}

//! The programs on the running kernel. Without privileges, each test prints the reason why it is skipped.
#![expect(unsafe_code, reason = "the tests make the memory changes that are to be reported")]

mod aside;
mod quiet;
mod reported;
mod stress;
mod woken;

use std::ffi::c_long;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::{Change, Monitor, Source, page, sys};

/// The page size in bytes.
const PAGE: u64 = 4096;

/// Runs one test at a time, because all share the address space.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the process's monitor, or prints the reason why there is none.
fn monitor() -> Option<&'static Monitor> {
    static MONITOR: OnceLock<Result<Monitor, String>> = OnceLock::new();
    let made = || Monitor::in_process().map_err(|why| why.to_string());
    MONITOR.get_or_init(made).as_ref().map_err(|why| eprintln!("skipped (bpf): {why}")).ok()
}

/// Makes a raw system call, without the C library's wrapper. Returns its result or its errno.
fn call(number: c_long, arguments: [u64; 6]) -> Result<u64, i32> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the tests pass memory that they made for this, and calls that the program survives.
    let answer = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if answer == -1 { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(answer as u64) }
}

/// Like [`call`], but the call must succeed.
fn must(number: c_long, arguments: [u64; 6]) -> u64 {
    call(number, arguments).unwrap_or_else(|error| panic!("system call {number} failed with {error}"))
}

/// Like [`must`], but discards the result.
fn done(number: c_long, arguments: [u64; 6]) {
    must(number, arguments);
}

/// Makes a system call that some kernels reject, in which case nothing has changed.
fn attempt(number: c_long, arguments: [u64; 6]) {
    call(number, arguments).ok();
}

/// Returns addresses that were never used before, far from those that the kernel chooses. So memory that other threads of
/// the harness map at the same time is never in a hole that a test makes there and closes again.
fn far_addresses(len: u64) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0x58 << 40);
    NEXT.fetch_add(len, Ordering::Relaxed)
}

/// A mapping of some pages between unmapped pages. It is unmapped when the value is dropped.
struct Memory {
    start: u64,
    pages: u64,
}

const READ_WRITE: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

impl Memory {
    fn new(pages: u64, flags: i32, fd: i64) -> Self {
        // An unmapped page before and after, so that the mappings of two tests never merge.
        let hole = far_addresses((pages + 2) * PAGE);
        let nothing = (ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
        must(libc::SYS_mmap, [hole, (pages + 2) * PAGE, 0, nothing, u64::MAX, 0]);
        let start = hole + PAGE;
        let flags = (flags | libc::MAP_FIXED) as u64;
        must(libc::SYS_mmap, [start, pages * PAGE, READ_WRITE, flags, fd as u64, 0]);
        let memory = Self { start, pages };
        memory.touch();
        memory
    }

    /// Maps a few pages where no huge page can begin: the kernel extends ranges that touch a huge page to its end.
    fn anonymous(pages: u64) -> Self {
        let mut elsewhere = Vec::new();
        loop {
            let memory = Self::new(pages, ANONYMOUS, -1);
            if pages > 16 || (0..pages).all(|page| !memory.at(page).is_multiple_of(2 << 20)) {
                return memory;
            }
            elsewhere.push(memory);
        }
    }

    fn shared(pages: u64) -> (Self, i64) {
        let fd = must(libc::SYS_memfd_create, [c"pindown".as_ptr() as u64, 0, 0, 0, 0, 0]);
        must(libc::SYS_ftruncate, [fd, pages * PAGE, 0, 0, 0, 0]);
        (Self::new(pages, libc::MAP_SHARED, fd as i64), fd as i64)
    }

    fn touch(&self) {
        for page in 0..self.pages {
            // SAFETY: within the mapping, which no other code uses.
            unsafe { std::ptr::with_exposed_provenance_mut::<u64>(self.at(page) as usize).write_volatile(page + 1) };
        }
    }

    fn at(&self, page: u64) -> u64 {
        self.start + page * PAGE
    }

    fn part(&self, pages: Range<u64>) -> Range<u64> {
        self.at(pages.start)..self.at(pages.end)
    }

    fn all(&self) -> Range<u64> {
        self.part(0..self.pages)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        call(libc::SYS_munmap, [self.start - PAGE, (self.pages + 2) * PAGE, 0, 0, 0, 0]).ok();
    }
}

/// Returns the changes that were reported while `work` ran.
fn during(monitor: &Monitor, work: impl FnOnce()) -> Vec<Change> {
    let seen = monitor.page().head();
    work();
    let changes: Vec<Change> = monitor.page().drain(seen).collect();
    monitor.check().expect("no program was skipped");
    changes
}

/// Returns whether `range` may have changed.
fn touched(changes: &[Change], range: &Range<u64>) -> bool {
    changes.iter().any(|change| match change {
        Change::Everything => true,
        Change::Range(changed) => changed.start < range.end && range.start < changed.end,
    })
}

/// Requirements: MON-034.
#[test]
fn only_the_kernel_can_write_to_a_page() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    let source = monitor.source();
    let Source::Here { kernel, space, .. } = &*source else { panic!("the programs were not loaded by this process") };
    let (_, map) = kernel.page(*space).expect("this process has a page");
    let fd = map.as_raw_fd() as u64;
    let shared = libc::MAP_SHARED as u64;
    // Even root cannot write through the descriptor that clients get.
    assert_eq!(call(libc::SYS_mmap, [0, PAGE, READ_WRITE, shared, fd, 0]), Err(libc::EPERM));
    let value = vec![0; page::SIZE];
    let error = sys::update(map, &0_u32.to_ne_bytes(), &value, false).expect_err("the map is frozen");
    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    let at = must(libc::SYS_mmap, [0, PAGE, libc::PROT_READ as u64, shared, fd, 0]);
    assert_eq!(call(libc::SYS_mprotect, [at, PAGE, READ_WRITE, 0, 0, 0]), Err(libc::EACCES));
    done(libc::SYS_munmap, [at, PAGE, 0, 0, 0, 0]);
}

/// Requirements: MON-043.
#[test]
fn no_report_without_a_change() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    let head = monitor.page().head();
    let mut drain = monitor.page().drain(head);
    assert_eq!(drain.next(), None);
    assert_eq!(drain.head(), head);
}

/// Requirements: MON-045.
#[test]
fn a_monitor_opens_while_memory_changes() {
    let _alone = alone();
    if monitor().is_none() {
        return;
    }
    let memory = Memory::anonymous(64);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                done(libc::SYS_madvise, [memory.start, 64 * PAGE, libc::MADV_DONTNEED as u64, 0, 0, 0]);
                memory.touch();
            }
        });
        let opened = Monitor::in_process();
        stop.store(true, Ordering::Relaxed);
        let opened = opened.expect("opening succeeds between two calls");
        let changes = during(&opened, || {
            done(libc::SYS_madvise, [memory.start, PAGE, libc::MADV_DONTNEED as u64, 0, 0, 0]);
        });
        assert!(touched(&changes, &memory.part(0..1)), "{changes:x?}");
    });
}

/// Requirements: MON-047.
#[test]
fn a_burst_beyond_the_ring_is_reported_as_everything() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    let memory = Memory::anonymous(1);
    let burst = |times: usize| {
        during(monitor, || {
            for _ in 0..times {
                must(libc::SYS_madvise, [memory.start, PAGE, libc::MADV_DONTNEED as u64, 0, 0, 0]);
                memory.touch();
            }
        })
    };
    let few = burst(10);
    let ours = few.iter().filter(|&change| *change == Change::Range(memory.all())).count();
    assert!(ours >= 10 && !few.contains(&Change::Everything), "{few:?}");
    assert_eq!(burst(super::RECORDS + 1), [Change::Everything]);
}

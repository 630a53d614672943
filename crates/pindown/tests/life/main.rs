//! Tests with threads, forks, libraries, allocators and other processes. No transfer uses old pages, and the parent's
//! cache continues to work. The tests are skipped, with the reason, if the programs cannot be loaded.
#![expect(unsafe_code, reason = "forks; each block states its own reason")]

mod allocators;
#[path = "../oracle/mod.rs"]
mod oracle;
mod others;
mod programs;
mod threads;

use pindown::Range;

use oracle::PAGE;

fn range(at: u64, len: u64) -> Range {
    Range::new(at, len).expect("a range")
}

/// Returns the whole pages within a range of bytes.
fn inner_pages(at: u64, len: u64) -> (u64, u64) {
    let start = at.next_multiple_of(PAGE);
    (start, (at + len - start) / PAGE * PAGE)
}

/// Runs `work` in a forked child, and returns its result, or 101 if it panics.
fn forked(work: impl FnOnce() -> u8) -> u8 {
    // SAFETY: the child makes only calls that take no lock which another thread of the test may hold.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // A panic that left this function would end one thread, and the child would stay.
        let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(101);
        // SAFETY: the child ends without running the parent's destructors.
        unsafe { libc::_exit(answer.into()) };
    }
    assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: the child belongs to this test.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child was killed: {status:#x}");
    libc::WEXITSTATUS(status) as u8
}

//! What programs also do: threads, forks, libraries, allocators, other processes. No transfer uses old pages, and the
//! parent's cache goes on. Skipped with the reason where the programs cannot be loaded.
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

/// Whole pages of some bytes.
fn inner_pages(at: u64, len: u64) -> (u64, u64) {
    let start = at.next_multiple_of(PAGE);
    (start, (at + len - start) / PAGE * PAGE)
}

/// Runs `work` in a forked child, and returns its answer.
fn forked(work: impl FnOnce() -> u8) -> u8 {
    // SAFETY: the child calls only what takes no lock that another thread of the test may have.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let answer = work();
        // SAFETY: the child ends without running anything of the parent's.
        unsafe { libc::_exit(answer.into()) };
    }
    assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: the child is this test's own.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child was killed: {status:#x}");
    libc::WEXITSTATUS(status) as u8
}

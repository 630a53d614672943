//! Calls that do not move pinned pages are not reported, so that an ordinary program does not empty its cache.

use std::hint::black_box;
use std::process::Command;

use super::super::Change;
use super::{ANONYMOUS, Memory, PAGE, READ_WRITE, alone, attempt, call, done, during, monitor, must, touched};

/// Runs `work` and checks that no change of `memory` was reported.
fn quiet(what: &str, memory: &Memory, work: impl FnOnce()) {
    let Some(monitor) = monitor() else { return };
    let changes = during(monitor, work);
    assert!(!touched(&changes, &memory.all()), "{what}: {changes:x?}");
}

/// Requirements: MON-006, MON-007.
#[test]
fn unmap_of_neighbours_is_not_reported() {
    let _alone = alone();
    let memory = Memory::anonymous(8);
    let other = Memory { start: memory.at(3), pages: 1 };
    quiet("munmap around it", &other, || {
        must(libc::SYS_munmap, [memory.start, 3 * PAGE, 0, 0, 0, 0]);
        must(libc::SYS_munmap, [memory.at(4), 4 * PAGE, 0, 0, 0, 0]);
    });
    std::mem::forget(other);
}

/// Requirements: MON-008.
#[test]
fn in_place_growth_is_not_reported() {
    let _alone = alone();
    // The monitor is opened before, because its mappings might otherwise be placed in the hole.
    if monitor().is_none() {
        return;
    }
    let memory = Memory::anonymous(2);
    must(libc::SYS_munmap, [memory.at(2), PAGE, 0, 0, 0, 0]);
    quiet("mremap", &memory, || {
        assert_eq!(must(libc::SYS_mremap, [memory.start, 2 * PAGE, 3 * PAGE, 0, 0, 0]), memory.start)
    });
}

/// Requirements: MON-012.
#[test]
fn advice_that_keeps_pages_is_not_reported() {
    let _alone = alone();
    let memory = Memory::anonymous(512);
    // NORMAL RANDOM SEQUENTIAL WILLNEED FREE DONTFORK DOFORK MERGEABLE UNMERGEABLE HUGEPAGE NOHUGEPAGE DONTDUMP
    // DODUMP WIPEONFORK KEEPONFORK COLD PAGEOUT POPULATE_READ POPULATE_WRITE COLLAPSE GUARD_REMOVE
    for advice in [0, 1, 2, 3, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 25, 103] {
        memory.touch();
        // Some kernels reject some of these, in which case nothing has changed.
        quiet(&format!("advice {advice}"), &memory, || {
            call(libc::SYS_madvise, [memory.start, 512 * PAGE, advice, 0, 0, 0]).ok();
        });
    }
}

/// Requirements: MON-014, MON-017.
#[test]
fn added_permissions_and_locking_are_not_reported() {
    let _alone = alone();
    let memory = Memory::anonymous(4);
    quiet("mprotect", &memory, || done(libc::SYS_mprotect, [memory.start, 4 * PAGE, READ_WRITE, 0, 0, 0]));
    quiet("mlock", &memory, || done(libc::SYS_mlock, [memory.start, 4 * PAGE, 0, 0, 0, 0]));
    quiet("munlock", &memory, || done(libc::SYS_munlock, [memory.start, 4 * PAGE, 0, 0, 0, 0]));
    quiet("mlock2", &memory, || done(libc::SYS_mlock2, [memory.start, 4 * PAGE, 1, 0, 0, 0]));
    quiet("mbind", &memory, || attempt(libc::SYS_mbind, [memory.start, 4 * PAGE, 0, 0, 0, 0]));
}

/// Requirements: MON-021, MON-024, MON-025.
#[test]
fn ordinary_program_activity_is_not_reported() {
    let _alone = alone();
    let memory = Memory::anonymous(16);
    quiet("new mapping", &memory, || {
        let new = must(libc::SYS_mmap, [0, 16 * PAGE, READ_WRITE, ANONYMOUS as u64, u64::MAX, 0]);
        must(libc::SYS_munmap, [new, 16 * PAGE, 0, 0, 0, 0]);
    });
    quiet("a mapping where there is one", &memory, || {
        let flags = (ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
        assert_eq!(call(libc::SYS_mmap, [memory.start, PAGE, READ_WRITE, flags, u64::MAX, 0]), Err(libc::EEXIST));
    });
    quiet("malloc and free, small and large", &memory, || {
        for round in 0..64_usize {
            drop(black_box(vec![1_u8; 100 + round]));
            drop(black_box(vec![1_u8; (round + 1) << 14]));
        }
    });
    quiet("heap growth", &memory, || {
        let kept: Vec<Vec<u8>> = (0..1000).map(|i| vec![0; 100 + i]).collect();
        drop(black_box(kept));
    });
    quiet("threads", &memory, || {
        for _ in 0..16 {
            std::thread::spawn(|| drop(black_box(vec![1_u8; 100_000]))).join().expect("the thread ends");
        }
    });
    quiet("its own pages", &memory, || memory.touch());
}

/// Requirements: MON-019, MON-020.
#[test]
fn fork_and_exec_are_not_reported() {
    let _alone = alone();
    let memory = Memory::anonymous(4);
    quiet("vfork and exec", &memory, || assert!(Command::new("true").status().expect("the program runs").success()));
    quiet("fork", &memory, || {
        let child = must(libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0, 0, 0, 0]);
        if child == 0 {
            call(libc::SYS_exit_group, [0; 6]).ok();
        }
        assert_eq!(must(libc::SYS_wait4, [child, 0, 0, 0, 0, 0]), child);
        memory.touch();
    });
}

/// Maps memory that has no page yet.
fn untouched(pages: u64) -> u64 {
    let start = must(libc::SYS_mmap, [0, pages * PAGE, READ_WRITE, ANONYMOUS as u64, u64::MAX, 0]);
    attempt(libc::SYS_madvise, [start, pages * PAGE, libc::MADV_NOHUGEPAGE as u64, 0, 0, 0]);
    start
}

/// Requirements: MON-021.
#[test]
fn page_in_calls_are_not_reported() {
    let _alone = alone();
    if monitor().is_none() {
        return;
    }
    let memory = Memory::anonymous(4);
    let len = 8 * PAGE;
    let file = must(libc::SYS_memfd_create, [c"pindown".as_ptr() as u64, 0, 0, 0, 0, 0]);
    must(libc::SYS_ftruncate, [file, len, 0, 0, 0, 0]);
    let mut pair = [0_i32; 2];
    let kind = [libc::AF_UNIX, libc::SOCK_STREAM, 0].map(|word| word as u64);
    must(libc::SYS_socketpair, [kind[0], kind[1], kind[2], pair.as_mut_ptr() as u64, 0, 0]);
    let [one, other] = pair.map(|fd| fd as u64);
    let at = untouched(8);
    quiet("pread", &memory, || assert_eq!(must(libc::SYS_pread64, [file, at, len, 0, 0, 0]), len));
    let from = untouched(8);
    quiet("send", &memory, || assert_eq!(must(libc::SYS_sendto, [one, from, len, 0, 0, 0]), len));
    let to = untouched(8);
    quiet("recv", &memory, || assert_eq!(must(libc::SYS_recvfrom, [other, to, len, 0, 0, 0]), len));
    let random = untouched(8);
    quiet("getrandom", &memory, || assert_eq!(must(libc::SYS_getrandom, [random, len, 0, 0, 0, 0]), len));
    let mut ring = io_uring::IoUring::new(4).expect("io_uring is available");
    for worker in [false, true] {
        let pages = untouched(8);
        let buffer = std::ptr::with_exposed_provenance_mut(pages as usize);
        let read = io_uring::opcode::Read::new(io_uring::types::Fd(file as i32), buffer, len as u32).build();
        let read = if worker { read.flags(io_uring::squeue::Flags::ASYNC) } else { read };
        quiet("io_uring", &memory, || {
            // SAFETY: the buffer is mapped, and no other code uses it.
            unsafe { ring.submission().push(&read) }.expect("there is room");
            ring.submit_and_wait(1).expect("the request is submitted");
            assert_eq!(ring.completion().next().map(|done| done.result()), Some(len as i32));
        });
        must(libc::SYS_munmap, [pages, len, 0, 0, 0, 0]);
    }
    for start in [at, from, to, random] {
        must(libc::SYS_munmap, [start, len, 0, 0, 0, 0]);
    }
    for fd in [file, one, other] {
        must(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
    }
}

/// Requirements: MON-022.
#[test]
fn stack_growth_is_not_reported() {
    fn deep(left: usize) -> u8 {
        let room = black_box([1_u8; 4096]);
        if left == 0 { room[0] } else { deep(left - 1).wrapping_add(black_box(room)[1]) }
    }
    let _alone = alone();
    let memory = Memory::anonymous(4);
    quiet("stack", &memory, || {
        black_box(deep(200));
    });
}

/// Requirements: MON-034.
#[test]
fn another_processs_changes_are_not_reported() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    let mut child =
        Command::new("sh").args(["-c", "for i in 1 2 3 4 5 6 7 8 9; do $(true); done"]).spawn().expect("sh runs");
    let changes = during(monitor, || assert!(child.wait().expect("the child ends").success()));
    assert!(changes.iter().all(|change| matches!(change, Change::Range(_))), "{changes:x?}");
    assert!(changes.len() < 9, "changes of the child are reported: {changes:x?}");
}

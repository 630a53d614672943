//! Another process, or io_uring, changes the memory.
#![expect(unsafe_code, reason = "io_uring; each block states its own reason")]

use crate::forked;
use crate::oracle::{Memory, Outcome, PAGE, World, call, in_child};

/// Requirements: MON-012, MON-028.
#[test]
fn truncation_by_another_process_renews_the_registration() {
    let Some(world) = World::open() else { return };
    let (memory, fd) = Memory::shared(4);
    let in_other = |number: libc::c_long, arguments: [u64; 3]| {
        let [a, b, c] = arguments;
        assert_eq!(forked(|| u8::from(call(number, [fd, a, b, c, 0, 0]).is_ok())), 1);
    };
    let cut = world.across(memory.start, memory.len, || {
        in_other(libc::SYS_ftruncate, [PAGE, 0, 0]);
        in_other(libc::SYS_ftruncate, [4 * PAGE, 0, 0]);
    });
    assert_eq!(cut, Outcome::Renewed);
    let punched = world.across(memory.start, memory.len, || in_other(libc::SYS_fallocate, [3, PAGE, PAGE]));
    assert_eq!(punched, Outcome::Renewed);
    let written = world.across(memory.start, memory.len, || in_other(libc::SYS_pwrite64, [memory.start, 1, 0]));
    assert_eq!(written, Outcome::Kept, "writing replaces no page");
}

/// Requirements: MON-019.
#[test]
fn child_gets_no_sealed_memory_of_its_parent() {
    use pindown::monitor::sealed::Sealed;
    let sealed = || match Sealed::new(3 * PAGE as usize) {
        Ok(sealed) => Some(sealed),
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::Unsupported, "{error}");
            None
        }
    };
    let (Some(mut memory), Some(dropped)) = (sealed(), sealed()) else {
        eprintln!("skipped (mseal): the kernel cannot seal mappings");
        return;
    };
    memory.fill(7);
    let free = dropped.range();
    drop(dropped);
    let parents = memory.range();
    let mut inherited = Some(memory);
    let answer = forked(|| {
        // Dropping the value has no effect here.
        drop(inherited.take());
        let Some(mut own) = sealed() else { return 1 };
        own.fill(9);
        if own.range().overlaps(parents) { 2 } else { u8::from(own.range().overlaps(free)) * 3 }
    });
    assert_eq!(answer, 0);
    let memory = inherited.expect("the parent still has the memory");
    assert!(memory.iter().all(|byte| *byte == 7));
    let again = sealed().expect("memory");
    assert_eq!(again.range(), free, "the parent still has the pool");
    assert!(again.iter().all(|byte| *byte == 0));
}

#[test]
#[ignore = "started by another test: it ends caching in its process"]
fn io_uring_process() {
    use io_uring::{IoUring, opcode, types};
    let Some(world) = World::open() else { return };
    let mut ring = IoUring::new(4).expect("io_uring is available");
    let mut submit = |entry: io_uring::squeue::Entry| {
        // SAFETY: the memory that entries refer to belongs to the test.
        unsafe { ring.submission().push(&entry) }.expect("there is room");
        ring.submit_and_wait(1).expect("the request is submitted");
        assert_eq!(ring.completion().next().expect("a completion").result(), 0);
    };
    // A worker punches the hole: the change is reported, and caching continues.
    let (shared, fd) = Memory::shared(4);
    let hole = || opcode::Fallocate::new(types::Fd(fd as i32), PAGE).offset(PAGE).mode(3).build();
    let outcome = world.across(shared.start, shared.len, || submit(hole()));
    assert_eq!(outcome, Outcome::Renewed);
    assert_eq!(world.across(shared.start, shared.len, || submit(hole())), Outcome::Renewed);
    // The kernel does not report when a worker has finished, so no more registrations are kept, and every transfer is
    // correct.
    let memory = Memory::new(4);
    let advice = || opcode::Madvise::new(address(memory.page(1)), PAGE as i64, libc::MADV_DONTNEED).build();
    assert_eq!(world.across(memory.start, memory.len, || submit(advice())), Outcome::Renewed);
    for seed in 0..20 {
        submit(advice());
        world.transfers(memory.start, memory.len, seed);
        let used = world.get(memory.start, memory.len);
        assert!(used.is_single());
        world.lane.end(used);
    }
    assert_eq!((world.cache.stats().entries, world.oracle.registered()), (0, 0));
}

fn address(at: u64) -> *mut libc::c_void {
    std::ptr::with_exposed_provenance_mut(at as usize)
}

/// Requirements: MON-012, MON-029.
#[test]
fn io_uring_changes_memory() {
    println!("{}", in_child("others::io_uring_process", &[]));
}

//! Mappings are unmapped, moved, replaced, protected and advised.

use std::ffi::c_long;

use pindown::Access;

use crate::oracle::{
    ANONYMOUS, Memory, Outcome, PAGE, READ_WRITE, World, advise, call, done, load, map_anew, must, pattern, store,
    unmap,
};
use crate::range;

/// Requirements: MON-001, MON-002, MON-013, RCACHE-021.
#[test]
fn munmap_of_at_least_the_range_renews_the_registration() {
    let Some(world) = World::open() else { return };
    let memory = Memory::new(8);
    let (at, len) = (memory.page(2), 4 * PAGE);
    for (from, pages) in [(2, 4), (0, 8), (1, 5), (2, 6)] {
        let outcome = world.across(at, len, || {
            unmap(memory.page(from), pages * PAGE);
            map_anew(memory.page(from), pages * PAGE);
        });
        assert_eq!(outcome, Outcome::Renewed, "{pages} pages from page {from}");
    }
}

/// Requirements: MON-003.
#[test]
fn munmap_of_a_part_renews_the_registration() {
    let Some(world) = World::open() else { return };
    let memory = Memory::new(5);
    for page in 0..5 {
        let outcome = world.across(memory.start, memory.len, || {
            unmap(memory.page(page), PAGE);
            map_anew(memory.page(page), PAGE);
        });
        assert_eq!(outcome, Outcome::Renewed, "page {page}");
    }
}

/// Requirements: MON-006, MON-007, MON-008.
#[test]
fn changes_of_neighbours_keep_the_registration() {
    let Some(world) = World::open() else { return };
    let memory = Memory::new(8);
    // Changes a neighbour in the same mapping, then its middle, then extends it in place. This is done twice, so that a
    // split mapping is also watched.
    for _ in 0..2 {
        let outcome = world.across(memory.page(2), PAGE, || unmap(memory.page(4), PAGE));
        assert_eq!(outcome, Outcome::Kept);
        assert_eq!(world.across(memory.page(6), PAGE, || unmap(memory.page(3), PAGE)), Outcome::Kept);
        let outcome = world.across(memory.page(2), PAGE, || {
            unmap(memory.page(2), PAGE);
            map_anew(memory.page(2), 3 * PAGE);
        });
        assert_eq!(outcome, Outcome::Renewed);
    }
    unmap(memory.page(4), 4 * PAGE);
    let grown = world.across(memory.page(2), 2 * PAGE, || {
        let grow = [memory.page(2), 2 * PAGE, 4 * PAGE, 0, 0, 0];
        assert_eq!(must(libc::SYS_mremap, grow), memory.page(2));
    });
    // The report of mremap contains the old range, but not whether the memory was moved. An unnecessary new
    // registration is correct.
    assert_ne!(grown, Outcome::Renewed);
    world.transfers(memory.page(2), 4 * PAGE, 9);
}

/// Requirements: MON-009, MON-010.
#[test]
fn mremap_renews_the_registration() {
    let Some(world) = World::open() else { return };
    let fixed = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    let keeping = fixed | libc::MREMAP_DONTUNMAP as u64;
    let (memory, other) = (Memory::new(4), Memory::new(4));
    let remap = |from: u64, to: u64, flags: u64| done(libc::SYS_mremap, [from, 4 * PAGE, 4 * PAGE, flags, to, 0]);
    // Uses the old address, which is mapped again.
    let away = world.across(memory.start, memory.len, || {
        remap(memory.start, other.start, fixed);
        world.transfers(other.start, other.len, 7);
        map_anew(memory.start, memory.len);
    });
    assert_eq!(away, Outcome::Renewed);
    let left = world.across(memory.start, memory.len, || remap(memory.start, other.start, keeping));
    assert_eq!(left, Outcome::Renewed, "MREMAP_DONTUNMAP");
    let onto = world.across(other.start, other.len, || remap(memory.start, other.start, fixed));
    assert_eq!(onto, Outcome::Renewed, "another mapping moved there");
    map_anew(memory.start, memory.len);
    let shrink = || done(libc::SYS_mremap, [memory.start, 4 * PAGE, 2 * PAGE, 0, 0, 0]);
    let tail = world.across(memory.start, memory.len, || {
        shrink();
        map_anew(memory.page(2), 2 * PAGE);
    });
    assert_eq!(tail, Outcome::Renewed, "the tail was unmapped");
    map_anew(memory.start, memory.len);
    assert_eq!(world.across(memory.start, 2 * PAGE, shrink), Outcome::Kept, "the part before the tail");
}

/// Requirements: MON-011.
#[test]
fn mmap_over_the_range_renews_the_registration() {
    let Some(world) = World::open() else { return };
    let memory = Memory::new(4);
    let over =
        |page: u64, pages: u64| world.across(memory.start, memory.len, || map_anew(memory.page(page), pages * PAGE));
    assert_eq!([over(0, 4), over(0, 1), over(3, 1)], [Outcome::Renewed; 3]);
    let beside = world.across(memory.start, 2 * PAGE, || map_anew(memory.page(2), 2 * PAGE));
    assert_eq!(beside, Outcome::Kept);
}

/// Requirements: MON-012.
#[test]
fn advice_that_drops_pages_renews_the_registration() {
    let Some(world) = World::open() else { return };
    const DONTNEED_LOCKED: i32 = 24;
    const GUARD_INSTALL: i32 = 102;
    const GUARD_REMOVE: i32 = 103;
    let memory = Memory::new(4);
    let dropped = |advice| world.across(memory.start, memory.len, || advise(memory.page(1), PAGE, advice));
    assert_eq!(dropped(libc::MADV_DONTNEED), Outcome::Renewed);
    assert_eq!(dropped(DONTNEED_LOCKED), Outcome::Renewed);
    // A pinned page is not freed.
    assert_ne!(dropped(libc::MADV_FREE), Outcome::Renewed);
    if call(libc::SYS_madvise, [memory.start, PAGE, GUARD_REMOVE as u64, 0, 0, 0]).is_ok() {
        let guarded = world.across(memory.start, memory.len, || {
            advise(memory.page(1), PAGE, GUARD_INSTALL);
            advise(memory.page(1), PAGE, GUARD_REMOVE);
        });
        assert_eq!(guarded, Outcome::Renewed);
    }
    let (shared, _) = Memory::shared(4);
    let removed = world.across(shared.start, shared.len, || advise(shared.page(1), PAGE, libc::MADV_REMOVE));
    assert_eq!(removed, Outcome::Renewed);
    let process = must(libc::SYS_pidfd_open, [u64::from(std::process::id()), 0, 0, 0, 0, 0]);
    let vector = [memory.page(1), PAGE];
    let advice = [process, vector.as_ptr() as u64, 1, libc::MADV_DONTNEED as u64, 0, 0];
    if call(libc::SYS_process_madvise, advice).is_ok() {
        let dropped = world.across(memory.start, memory.len, || done(libc::SYS_process_madvise, advice));
        assert_eq!(dropped, Outcome::Renewed);
    }
    done(libc::SYS_close, [process, 0, 0, 0, 0, 0]);
}

/// Requirements: MON-014, MON-055.
#[test]
fn protection() {
    let Some(world) = World::open() else { return };
    let memory = Memory::new(4);
    let protect = |page: u64, pages: u64, rights: u64| {
        done(libc::SYS_mprotect, [memory.page(page), pages * PAGE, rights, 0, 0, 0]);
    };
    let before = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    let used = world.kept(memory.start, memory.len);
    let key = used.local_key();
    let after = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    let line =
        |maps: &str| maps.lines().find(|line| line.starts_with(&format!("{:x}-", memory.start))).map(String::from);
    assert_eq!(line(&before), line(&after), "registering changes no protection");
    assert!(line(&after).is_some_and(|line| line.contains("rw-p")));
    world.lane.end(used);
    assert!(load(memory.start, memory.len).iter().all(|&byte| byte == 0), "registering does not change the contents");
    // The process has lost the right to write, so the device must not write there on behalf of the process.
    protect(1, 1, libc::PROT_READ as u64);
    let whole = range(memory.start, memory.len);
    assert!(world.lane.get(whole, Access::LOCAL_WRITE).is_err(), "io_uring does not pin read-only memory");
    protect(1, 1, READ_WRITE);
    assert_eq!(world.cache.stats().invalidations, 1, "registration {key} was taken out");
    world.transfers(memory.start, memory.len, 6);
    world.cache.flush();
    // Neighbours of the changed page are unchanged.
    assert_eq!(world.across(memory.page(2), 2 * PAGE, || protect(0, 1, 0)), Outcome::Kept);
    // No right is removed.
    assert_eq!(world.across(memory.page(2), 2 * PAGE, || protect(2, 1, READ_WRITE)), Outcome::Kept);
}

/// Requirements: MON-017, MON-052.
#[test]
fn locking_and_paging_keep_the_registration() {
    let Some(world) = World::open() else { return };
    let memory = Memory::new(4);
    let lock = |number| done(number, [memory.start, memory.len, 0, 0, 0, 0]);
    assert_eq!(world.across(memory.start, memory.len, || lock(libc::SYS_mlock)), Outcome::Kept);
    let locked = || {
        let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
        status.lines().find(|line| line.starts_with("VmLck:")).map(String::from)
    };
    let before = locked();
    world.transfers(memory.start, memory.len, 3);
    world.cache.flush();
    assert_eq!(world.oracle.registered(), 0);
    assert_eq!(locked(), before, "the program's own lock stays");
    assert_eq!(world.across(memory.start, memory.len, || lock(libc::SYS_munlock)), Outcome::Kept);
    // Requests the kernel to swap the pages out, and to move them.
    for advice in [libc::MADV_PAGEOUT, libc::MADV_COLD, libc::MADV_WILLNEED] {
        assert_eq!(world.across(memory.start, memory.len, || advise(memory.start, memory.len, advice)), Outcome::Kept);
    }
    store(memory.start, &pattern(memory.len, 8));
    let used = world.kept(memory.start, memory.len);
    advise(memory.start, memory.len, libc::MADV_PAGEOUT);
    std::fs::write("/proc/sys/vm/compact_memory", "1").ok();
    let mut resident = [0_u8; 4];
    done(libc::SYS_mincore, [memory.start, memory.len, resident.as_mut_ptr() as u64, 0, 0, 0]);
    assert_eq!(resident.map(|page| page & 1), [1; 4]);
    assert!(world.oracle.carry(used.local_key(), memory.start, memory.len) == pattern(memory.len, 8));
    world.lane.end(used);
}

/// Requirements: MON-031.
#[test]
fn system_calls_return_the_same_results_as_without_a_cache() {
    let Some(world) = World::open() else { return };
    let answers = |registered: bool| {
        let memory = Memory::new(8);
        let mut resident = [0_u8; 8];
        let (at, len, seen) = (memory.start, memory.len, resident.as_mut_ptr() as u64);
        let hole = Memory::new(1);
        unmap(hole.start, PAGE);
        store(at, &pattern(len, 5));
        let calls: [(c_long, [u64; 6]); 17] = [
            (libc::SYS_mincore, [at, len, seen, 0, 0, 0]),
            (libc::SYS_msync, [at, len, libc::MS_SYNC as u64, 0, 0, 0]),
            (libc::SYS_madvise, [at, PAGE, libc::MADV_DONTNEED as u64, 0, 0, 0]),
            (libc::SYS_madvise, [at + 1, PAGE, libc::MADV_DONTNEED as u64, 0, 0, 0]),
            (libc::SYS_madvise, [at, PAGE, libc::MADV_REMOVE as u64, 0, 0, 0]),
            (libc::SYS_madvise, [hole.start, PAGE, libc::MADV_DONTNEED as u64, 0, 0, 0]),
            (libc::SYS_madvise, [at, PAGE, 9999, 0, 0, 0]),
            (libc::SYS_mlock, [at, len, 0, 0, 0, 0]),
            (libc::SYS_madvise, [at, PAGE, libc::MADV_DONTNEED as u64, 0, 0, 0]),
            (libc::SYS_munlock, [at, len, 0, 0, 0, 0]),
            (libc::SYS_mprotect, [at, PAGE, libc::PROT_READ as u64, 0, 0, 0]),
            (libc::SYS_mprotect, [hole.start, PAGE, READ_WRITE, 0, 0, 0]),
            (libc::SYS_mremap, [at + PAGE, PAGE, 2 * PAGE, 0, 0, 0]),
            (libc::SYS_mremap, [hole.start, PAGE, PAGE, libc::MREMAP_MAYMOVE as u64, 0, 0]),
            (libc::SYS_munmap, [at + 2 * PAGE, PAGE, 0, 0, 0, 0]),
            (libc::SYS_munmap, [at + 1, PAGE, 0, 0, 0, 0]),
            (libc::SYS_mmap, [at, PAGE, READ_WRITE, (ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64, u64::MAX, 0]),
        ];
        let answers = calls.map(|(number, arguments)| {
            // Uses the whole range if it is still mapped, and otherwise the rest of it.
            if registered && let Ok(used) = world.lane.get(range(at, len), Access::LOCAL_WRITE) {
                world.lane.end(used);
            }
            let used = registered.then(|| world.get(at + 4 * PAGE, 4 * PAGE));
            let answer = call(number, arguments);
            used.into_iter().for_each(|used| world.lane.end(used));
            answer
        });
        (answers, load(at + 3 * PAGE, 5 * PAGE))
    };
    let (with, without) = (answers(true), answers(false));
    assert_eq!(with.0, without.0);
    assert!(with.1 == without.1);
    assert!(with.0.iter().any(Result::is_err) && with.0[0] == Ok(0));
}

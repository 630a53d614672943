//! Every kind of change, made under a cache over the kernel tier by system calls of this process: no transfer uses the
//! old pages. Skipped with the reason where the programs cannot be loaded.

mod oracle;

use std::ffi::c_long;

use oracle::{
    ANONYMOUS, Memory, Outcome, PAGE, READ_WRITE, World, advise, call, done, load, map_anew, map_at, must, pattern,
    store, unmap,
};
use pindown::{Access, Range};

fn range(at: u64, len: u64) -> Range {
    Range::new(at, len).expect("a range")
}

#[test]
fn mon_001_002_013_rcache_021_munmap_of_the_range_or_more() {
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

#[test]
fn mon_003_munmap_of_a_part() {
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

#[test]
fn mon_004_of_three_registrations_those_on_the_page_go() {
    let Some(world) = World::open() else { return };
    // Pages A, B, C; A+B and B+C overlap B.
    let memory = Memory::new(3);
    let [ab, bc, c] = [(0, 2), (1, 2), (2, 1)].map(|(page, pages)| range(memory.page(page), pages * PAGE));
    let [first, second, third] = [ab, bc, c].map(|part| world.cache.register(part, Access::LOCAL_WRITE));
    let [first, second, third] = [first, second, third].map(|made| made.expect("registered"));
    assert_eq!([first, second, third].map(|made| made.unwatched), [None; 3]);
    assert_eq!(world.cache.check(), None);
    unmap(memory.page(1), PAGE);
    let mut told = Vec::from_iter(std::iter::from_fn(|| world.cache.check()));
    told.sort_by_key(|handle| [first.handle, second.handle].iter().position(|one| one == handle));
    assert_eq!(told, [first.handle, second.handle]);
    store(memory.page(2), &pattern(PAGE, 4));
    assert!(world.oracle.carry(third.local_key, memory.page(2), PAGE) == pattern(PAGE, 4));
    for made in [first, second, third] {
        world.cache.deregister(made.handle).expect("it is there");
    }
    assert_eq!(world.oracle.registered(), 0);
}

#[test]
fn mon_005_two_registrations_of_one_page_are_both_told() {
    let Some(world) = World::open() else { return };
    let memory = Memory::new(1);
    let [low, high] = [range(memory.start, 100), range(memory.start + 2000, 100)]
        .map(|part| world.cache.register(part, Access::empty()).expect("registered"));
    unmap(memory.start, PAGE);
    let told = [world.cache.check(), world.cache.check()];
    assert!(told.contains(&Some(low.handle)) && told.contains(&Some(high.handle)), "{told:?}");
    assert_eq!(world.cache.check(), None);
    for made in [low, high] {
        world.cache.deregister(made.handle).expect("it is there");
    }
}

#[test]
fn mon_006_007_008_neighbours_are_left_alone() {
    let Some(world) = World::open() else { return };
    let memory = Memory::new(8);
    // A neighbour in the same mapping; its middle; growth in place. Twice, so that a split mapping is watched as well.
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
    // mremap names the old range and does not say whether it stayed: a needless renewal is no harm.
    assert_ne!(grown, Outcome::Renewed);
    world.transfers(memory.page(2), 4 * PAGE, 9);
}

#[test]
fn mon_009_010_mremap_moves_shrinks_and_replaces() {
    let Some(world) = World::open() else { return };
    let fixed = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    let keeping = fixed | libc::MREMAP_DONTUNMAP as u64;
    let (memory, other) = (Memory::new(4), Memory::new(4));
    let remap = |from: u64, to: u64, flags: u64| done(libc::SYS_mremap, [from, 4 * PAGE, 4 * PAGE, flags, to, 0]);
    // The old address, mapped anew.
    let away = world.across(memory.start, memory.len, || {
        remap(memory.start, other.start, fixed);
        world.transfers(other.start, other.len, 7);
        map_anew(memory.start, memory.len);
    });
    assert_eq!(away, Outcome::Renewed);
    let left = world.across(memory.start, memory.len, || remap(memory.start, other.start, keeping));
    assert_eq!(left, Outcome::Renewed, "MREMAP_DONTUNMAP");
    let onto = world.across(other.start, other.len, || remap(memory.start, other.start, fixed));
    assert_eq!(onto, Outcome::Renewed, "something else moved there");
    map_anew(memory.start, memory.len);
    let shrink = || done(libc::SYS_mremap, [memory.start, 4 * PAGE, 2 * PAGE, 0, 0, 0]);
    let tail = world.across(memory.start, memory.len, || {
        shrink();
        map_anew(memory.page(2), 2 * PAGE);
    });
    assert_eq!(tail, Outcome::Renewed, "its tail was cut off");
    map_anew(memory.start, memory.len);
    assert_eq!(world.across(memory.start, 2 * PAGE, shrink), Outcome::Kept, "what is before the tail");
}

#[test]
fn mon_011_mmap_over_it() {
    let Some(world) = World::open() else { return };
    let memory = Memory::new(4);
    let over =
        |page: u64, pages: u64| world.across(memory.start, memory.len, || map_anew(memory.page(page), pages * PAGE));
    assert_eq!([over(0, 4), over(0, 1), over(3, 1)], [Outcome::Renewed; 3]);
    let beside = world.across(memory.start, 2 * PAGE, || map_anew(memory.page(2), 2 * PAGE));
    assert_eq!(beside, Outcome::Kept);
}

#[test]
fn mon_012_advice_that_drops_pages() {
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

#[test]
fn mon_012_018_023_files_are_truncated_and_punched() {
    let Some(world) = World::open() else { return };
    let name = c"/pindown-changes";
    // Any name will do for a shared memory object; an old one of a killed test is as good.
    let path = std::path::Path::new("/dev/shm").join(name.to_str().expect("a name").trim_start_matches('/'));
    let object = std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
    let object = object.expect("a shared memory object");
    std::fs::remove_file(&path).expect("its name is not needed");
    object.set_len(4 * PAGE).expect("it grows");
    let object_fd = std::os::fd::AsRawFd::as_raw_fd(&object) as u64;
    for fd in [oracle::memfd(4 * PAGE), object_fd] {
        let memory = Memory::of(4, libc::MAP_SHARED, fd);
        let calls: [&[(c_long, [u64; 3])]; 3] = [
            &[(libc::SYS_ftruncate, [PAGE, 0, 0]), (libc::SYS_ftruncate, [4 * PAGE, 0, 0])],
            // FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
            &[(libc::SYS_fallocate, [3, PAGE, PAGE])],
            &[(libc::SYS_ftruncate, [0, 0, 0]), (libc::SYS_ftruncate, [4 * PAGE, 0, 0])],
        ];
        for calls in calls {
            let outcome = world.across(memory.start, memory.len, || {
                for (number, [a, b, c]) in calls {
                    done(*number, [fd, *a, *b, *c, 0, 0]);
                }
            });
            assert_eq!(outcome, Outcome::Renewed, "{calls:?}");
        }
        let again = world.across(memory.start, memory.len, || {
            unmap(memory.start, memory.len);
            map_at(memory.start, memory.len, libc::MAP_SHARED, fd, 0);
        });
        assert_eq!(again, Outcome::Needlessly, "the same pages of the same object");
        let else_ = world.across(memory.start, memory.len, || {
            unmap(memory.start, memory.len);
            map_anew(memory.start, memory.len);
        });
        assert_eq!(else_, Outcome::Renewed);
    }
}

#[test]
fn mon_018_private_mappings_of_a_file() {
    let Some(world) = World::open() else { return };
    let path = std::env::temp_dir().join(format!("pindown-changes-{}", std::process::id()));
    let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("a new file");
    std::fs::remove_file(&path).expect("its name is not needed");
    file.set_len(4 * PAGE).expect("it grows");
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file) as u64;
    let memory = Memory::of(4, libc::MAP_PRIVATE, fd);
    let used = world.get(memory.start, memory.len);
    let kept = !used.is_single();
    world.lane.end(used);
    if !kept {
        return eprintln!("skipped: files of {} are not watched", path.display());
    }
    let cut = world.across(memory.start, memory.len, || {
        file.set_len(0).expect("it shrinks");
        file.set_len(4 * PAGE).expect("it grows");
    });
    assert_eq!(cut, Outcome::Renewed);
    let again = world.across(memory.start, memory.len, || map_at(memory.start, memory.len, libc::MAP_PRIVATE, fd, 0));
    assert_eq!(again, Outcome::Renewed);
    let dropped = world.across(memory.start, memory.len, || advise(memory.start, PAGE, libc::MADV_DONTNEED));
    assert_eq!(dropped, Outcome::Renewed);
}

#[test]
fn mon_014_055_protection() {
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
    assert!(load(memory.start, memory.len).iter().all(|&byte| byte == 0), "nor contents");
    // The right to write is gone: the device must not write there on the process' behalf.
    protect(1, 1, libc::PROT_READ as u64);
    let whole = range(memory.start, memory.len);
    assert!(world.lane.get(whole, Access::LOCAL_WRITE).is_err(), "io_uring pins nothing that cannot be written");
    protect(1, 1, READ_WRITE);
    assert_eq!(world.cache.stats().invalidations, 1, "registration {key} was taken out");
    world.transfers(memory.start, memory.len, 6);
    world.cache.flush();
    // Neighbours of the changed page stay as they were.
    assert_eq!(world.across(memory.page(2), 2 * PAGE, || protect(0, 1, 0)), Outcome::Kept);
    // No right is lost.
    assert_eq!(world.across(memory.page(2), 2 * PAGE, || protect(2, 1, READ_WRITE)), Outcome::Kept);
}

#[test]
fn mon_016_057_system_v_segments() {
    let Some(world) = World::open() else { return };
    let segment = || must(libc::SYS_shmget, [libc::IPC_PRIVATE as u64, 4 * PAGE, 0o1600, 0, 0, 0]);
    let (first, second) = (segment(), segment());
    let attach = |id: u64, at: u64, flags: i32| must(libc::SYS_shmat, [id, at, flags as u64, 0, 0, 0]);
    let at = attach(first, 0, 0);
    let replaced = world.across(at, 4 * PAGE, || {
        done(libc::SYS_shmdt, [at, 0, 0, 0, 0, 0]);
        assert_eq!(attach(second, at, 0), at);
    });
    assert_eq!(replaced, Outcome::Renewed);
    let replaced = world.across(at, 4 * PAGE, || assert_eq!(attach(first, at, libc::SHM_REMAP), at));
    assert_eq!(replaced, Outcome::Renewed, "SHM_REMAP");
    let holed = world.across(at, 4 * PAGE, || advise(at + PAGE, PAGE, libc::MADV_REMOVE));
    assert_eq!(holed, Outcome::Renewed);
    done(libc::SYS_shmdt, [at, 0, 0, 0, 0, 0]);
    for id in [first, second] {
        done(libc::SYS_shmctl, [id, libc::IPC_RMID as u64, 0, 0, 0, 0]);
    }
}

#[test]
fn mon_012_remap_file_pages() {
    let Some(world) = World::open() else { return };
    let (memory, _) = Memory::shared(4);
    // Its first page shows what the second does from then on.
    let first = world.across(memory.start, PAGE, || done(libc::SYS_remap_file_pages, [memory.start, PAGE, 0, 1, 0, 0]));
    assert_eq!(first, Outcome::Renewed);
}

#[test]
fn mon_017_052_locking_and_paging_change_nothing() {
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
    // The kernel is asked to swap the pages out, and to move them.
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

#[test]
fn mon_031_calls_answer_as_without_a_cache() {
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
            // The whole, if it is still there; else what is left of it.
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

#[test]
fn mon_035_two_caches_are_both_told() {
    let Some(world) = World::open() else { return };
    let other_oracle = oracle::Oracle::new();
    let builder = pindown::Cache::builder(other_oracle.clone()).monitor(pindown::monitor::Choice::Bpf);
    let other = builder.open().expect("the first one opened");
    let lane = other.lane();
    let memory = Memory::new(2);
    let send = || {
        let used = lane.get(range(memory.start, memory.len), Access::empty()).expect("registered");
        let sent = other_oracle.carry(used.local_key(), memory.start, memory.len);
        lane.end(used);
        sent
    };
    store(memory.start, &pattern(memory.len, 1));
    assert!(send() == pattern(memory.len, 1) && world.send(memory.start, memory.len) == pattern(memory.len, 1));
    // What one has taken in is still news to the other.
    advise(memory.start, PAGE, libc::MADV_DONTNEED);
    world.transfers(memory.start, memory.len, 2);
    world.cache.sweep();
    store(memory.start, &pattern(memory.len, 3));
    assert!(send() == pattern(memory.len, 3));
    assert_eq!((world.cache.stats().invalidations, other.stats().invalidations), (1, 1));
}

#[test]
fn mon_045_046_047_a_check_sees_what_happened_before_it() {
    let Some(world) = World::open() else { return };
    let memory = Memory::new(64);
    let registered = Vec::from_iter((0..64).map(|page| {
        let made = world.cache.register(range(memory.page(page), PAGE), Access::empty()).expect("registered");
        assert_eq!(made.unwatched, None);
        made.handle
    }));
    assert_eq!(world.cache.check(), None);
    for (page, handle) in registered.iter().enumerate().take(8) {
        unmap(memory.page(page as u64), PAGE);
        assert_eq!(world.cache.check(), Some(*handle));
        assert_eq!(world.cache.check(), None);
    }
    // More than the ring of records holds.
    let burst = Memory::new(1);
    for _ in 0..5000 {
        map_anew(burst.start, PAGE);
    }
    for page in 8..64 {
        unmap(memory.page(page), PAGE);
    }
    let mut told = Vec::from_iter(std::iter::from_fn(|| world.cache.check()));
    told.sort_by_key(|handle| registered.iter().position(|one| one == handle));
    assert_eq!(told, registered[8..]);
    registered.iter().for_each(|handle| world.cache.deregister(*handle).expect("it is there"));
}

#[test]
fn mon_054_pages_are_unpinned_when_a_change_was_taken_in() {
    let Some(world) = World::open() else { return };
    let memory = Memory::new(256);
    let before = oracle::pinned_kilobytes();
    world.lane.end(world.kept(memory.start, memory.len));
    assert_eq!(oracle::pinned_kilobytes(), before + 1024);
    unmap(memory.start, PAGE);
    world.cache.sweep();
    assert_eq!(oracle::pinned_kilobytes(), before);
}

//! Files and segments are truncated, punched, detached and remapped.

use std::ffi::c_long;

use crate::oracle::{Memory, Outcome, PAGE, World, advise, done, far_addresses, map_anew, map_at, memfd, must, unmap};

/// Requirements: MON-012, MON-018, MON-023.
#[test]
fn truncation_and_hole_punching_renew_the_registration() {
    let Some(world) = World::open() else { return };
    let name = c"/pindown-changes";
    // Any name is suitable for a shared memory object, including that of an object of a killed test.
    let path = std::path::Path::new("/dev/shm").join(name.to_str().expect("a name").trim_start_matches('/'));
    let object = std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
    let object = object.expect("a shared memory object");
    std::fs::remove_file(&path).expect("the file exists");
    object.set_len(4 * PAGE).expect("the file can be extended");
    let object_fd = std::os::fd::AsRawFd::as_raw_fd(&object) as u64;
    for fd in [memfd(4 * PAGE), object_fd] {
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

/// Requirements: MON-018.
#[test]
fn truncation_renews_registration_of_private_file_mapping() {
    let Some(world) = World::open() else { return };
    let path = std::env::temp_dir().join(format!("pindown-changes-{}", std::process::id()));
    let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("a new file");
    std::fs::remove_file(&path).expect("the file exists");
    file.set_len(4 * PAGE).expect("the file can be extended");
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file) as u64;
    let memory = Memory::of(4, libc::MAP_PRIVATE, fd);
    let used = world.get(memory.start, memory.len);
    let kept = !used.is_single();
    world.lane.end(used);
    if !kept {
        return eprintln!("skipped (watched file system): files of {} are not watched", path.display());
    }
    let cut = world.across(memory.start, memory.len, || {
        file.set_len(0).expect("the file can be truncated");
        file.set_len(4 * PAGE).expect("the file can be extended");
    });
    assert_eq!(cut, Outcome::Renewed);
    let again = world.across(memory.start, memory.len, || map_at(memory.start, memory.len, libc::MAP_PRIVATE, fd, 0));
    assert_eq!(again, Outcome::Renewed);
    let dropped = world.across(memory.start, memory.len, || advise(memory.start, PAGE, libc::MADV_DONTNEED));
    assert_eq!(dropped, Outcome::Renewed);
}

/// Requirements: MON-016, MON-057.
#[test]
fn changes_of_system_v_segments_are_noticed() {
    let Some(world) = World::open() else { return };
    let segment = || must(libc::SYS_shmget, [libc::IPC_PRIVATE as u64, 4 * PAGE, 0o1600, 0, 0, 0]);
    let (first, second) = (segment(), segment());
    let attach = |id: u64, at: u64, flags: i32| must(libc::SYS_shmat, [id, at, flags as u64, 0, 0, 0]);
    let at = attach(first, far_addresses(4 * PAGE), 0);
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

/// Requirements: MON-012.
#[test]
fn remapped_pages_of_a_file_are_noticed() {
    let Some(world) = World::open() else { return };
    let (memory, _) = Memory::shared(4);
    // From then on the second page of the file is mapped at the first page.
    let first = world.across(memory.start, PAGE, || done(libc::SYS_remap_file_pages, [memory.start, PAGE, 0, 1, 0, 0]));
    assert_eq!(first, Outcome::Renewed);
}

//! Calls that remove pages are reported, with the range if the call specifies one.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};

use super::super::{Change, Monitor, Unwatchable, Watch};
use super::{ANONYMOUS, HERE, Memory, PAGE, READ_WRITE, alone, attempt, call, done, during, monitor, must, touched};

const MAYMOVE: u64 = libc::MREMAP_MAYMOVE as u64;
const FIXED: u64 = libc::MREMAP_FIXED as u64;
const DONTUNMAP: u64 = libc::MREMAP_DONTUNMAP as u64;

/// Checks that exactly these ranges were reported, each at least once, and nothing else around them. (The threads of
/// the test harness make changes elsewhere.)
fn exactly(changes: &[Change], expected: &[std::ops::Range<u64>]) {
    for range in expected {
        assert!(changes.contains(&Change::Range(range.clone())), "{range:x?} is missing in {changes:x?}");
        let around = range.start - 16 * PAGE..range.end + 16 * PAGE;
        for change in changes.iter().filter(|&change| touched(std::slice::from_ref(change), &around)) {
            assert!(expected.iter().any(|range| *change == Change::Range(range.clone())), "{change:x?} is unexpected");
        }
    }
}

/// Requirements: MON-001, MON-002, MON-003, MON-004.
#[test]
fn munmap_of_all_or_part_is_reported() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    for (len, part) in [(4, 0..4), (4, 0..1), (4, 3..4), (3, 1..2)] {
        let memory = Memory::anonymous(len);
        let (start, bytes) = (memory.at(part.start), (part.end - part.start) * PAGE);
        let changes = during(monitor, || done(libc::SYS_munmap, [start, bytes, 0, 0, 0, 0]));
        exactly(&changes, &[memory.part(part)]);
    }
}

/// Requirements: MON-011.
#[test]
fn mmap_over_existing_memory_is_reported() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    let memory = Memory::anonymous(4);
    let flags = (ANONYMOUS | libc::MAP_FIXED) as u64;
    let over = [memory.at(1), 2 * PAGE, READ_WRITE, flags, u64::MAX, 0];
    let changes = during(monitor, || done(libc::SYS_mmap, over));
    exactly(&changes, &[memory.part(1..3)]);
}

/// Requirements: MON-009, MON-010.
#[test]
fn every_form_of_mremap_is_reported() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    let remap = |from: u64, old: u64, new: u64, flags: u64, to: u64| {
        during(monitor, || done(libc::SYS_mremap, [from, old * PAGE, new * PAGE, flags, to, 0]))
    };
    // Shrinking: only the tail is removed.
    let memory = Memory::anonymous(4);
    exactly(&remap(memory.start, 4, 2, 0, 0), &[memory.part(2..4)]);
    // Moving onto another mapping.
    let (memory, other) = (Memory::anonymous(2), Memory::anonymous(2));
    exactly(&remap(memory.start, 2, 2, MAYMOVE | FIXED, other.start), &[memory.all(), other.all()]);
    // Moving while leaving the addresses mapped.
    let memory = Memory::anonymous(2);
    let other = Memory::anonymous(2);
    exactly(&remap(memory.start, 2, 2, MAYMOVE | FIXED | DONTUNMAP, other.start), &[memory.all(), other.all()]);
    // Growing that has to move, because the next page is mapped.
    let memory = Memory::anonymous(2);
    let seen = monitor.page().head();
    let moved = must(libc::SYS_mremap, [memory.at(1), PAGE, 3 * PAGE, MAYMOVE, 0, 0]);
    let changes: Vec<Change> = monitor.page().drain(seen).collect();
    assert_ne!(moved, memory.at(1));
    exactly(&changes, &[memory.part(1..2)]);
    must(libc::SYS_munmap, [moved, 3 * PAGE, 0, 0, 0, 0]);
}

/// Requirements: MON-015.
#[test]
fn lowered_break_is_reported() {
    // The C library's part of the heap must neither grow nor shrink during the test, because the test changes its end.
    // So it is large from the beginning, and the test runs in a separate process, where no thread of another test uses
    // it.
    let tunables = "glibc.malloc.top_pad=67108864:glibc.malloc.trim_threshold=1073741824";
    let mut process = std::process::Command::new(std::env::current_exe().expect("this program"));
    process.args(["monitor::bpf::tests::reported::lowered_break_process", "--exact", "--ignored", "--nocapture"]);
    let output = process.arg("--test-threads=1").env("GLIBC_TUNABLES", tunables).output().expect("the process starts");
    let printed = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text)).concat();
    printed.lines().filter(|line| line.starts_with("skipped")).for_each(|line| println!("{line}"));
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
}

#[test]
#[ignore = "started by another test, with a heap that stays as it is"]
fn lowered_break_process() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    let now = must(libc::SYS_brk, [0; 6]).next_multiple_of(PAGE);
    // The C library owns the heap, so the test grows the heap above it and shrinks it back to the old break.
    let before = must(libc::SYS_brk, [0; 6]);
    assert_eq!(must(libc::SYS_brk, [now + 4 * PAGE, 0, 0, 0, 0, 0]), now + 4 * PAGE);
    let changes = during(monitor, || done(libc::SYS_brk, [before, 0, 0, 0, 0, 0]));
    assert!(touched(&changes, &(now..now + 4 * PAGE)), "{changes:x?}");
    assert!(!changes.contains(&Change::Everything), "{changes:x?}");
}

/// Requirements: MON-012.
#[test]
fn advice_that_drops_pages_is_reported() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    const GUARD_INSTALL: i32 = 102;
    const DONTNEED_LOCKED: i32 = 24;
    for advice in [libc::MADV_DONTNEED, DONTNEED_LOCKED, GUARD_INSTALL] {
        let memory = Memory::anonymous(4);
        let arguments = [memory.at(1), 2 * PAGE, advice as u64, 0, 0, 0];
        let mut answer = Ok(0);
        let changes = during(monitor, || answer = call(libc::SYS_madvise, arguments));
        if answer == Err(libc::EINVAL) {
            eprintln!("skipped (newer kernel): this kernel does not support advice {advice}");
            continue;
        }
        exactly(&changes, &[memory.part(1..3)]);
        assert!(!monitor.page().busy(), "the call has ended");
    }
    // The same with a descriptor of this process. The ranges are in memory that may change, so everything is reported.
    let memory = Memory::anonymous(4);
    let me = must(libc::SYS_pidfd_open, [u64::from(std::process::id()), 0, 0, 0, 0, 0]);
    let vector = [memory.at(1), 2 * PAGE];
    let arguments = [me, vector.as_ptr() as u64, 1, libc::MADV_DONTNEED as u64, 0, 0];
    let mut answer = Ok(0);
    let changes = during(monitor, || answer = call(libc::SYS_process_madvise, arguments));
    must(libc::SYS_close, [me, 0, 0, 0, 0, 0]);
    match answer {
        Ok(_) => assert!(changes.contains(&Change::Everything), "{changes:x?}"),
        Err(error) => eprintln!("skipped (newer kernel): process_madvise(MADV_DONTNEED) returns {error} here"),
    }
}

/// Returns the slot that watches `memory`, and its count before and after `work`.
fn watched(monitor: &Monitor, memory: &Memory, work: impl FnOnce()) -> (u64, u64) {
    let watch = monitor.watch(memory.all());
    let Ok(Watch::Inode(slot)) = watch else { panic!("a shared mapping has an inode: {watch:?}") };
    let before = monitor.page().inode(slot);
    work();
    let after = monitor.page().inode(slot);
    monitor.unwatch(slot);
    (before, after)
}

/// Requirements: MON-012, MON-018, MON-023.
#[test]
fn pages_dropped_from_a_shared_file_are_reported() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    const PUNCH: u64 = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u64;
    let (memory, fd) = Memory::shared(4);
    let path = format!("/proc/{}/fd/{fd}", std::process::id());
    let (before, after) = watched(monitor, &memory, || done(libc::SYS_ftruncate, [fd as u64, 0, 0, 0, 0, 0]));
    assert_eq!(after, before + 4, "four pages left");
    must(libc::SYS_ftruncate, [fd as u64, 4 * PAGE, 0, 0, 0, 0]);
    memory.touch();
    let punch = [fd as u64, PUNCH, PAGE, PAGE, 0, 0];
    let (before, after) = watched(monitor, &memory, || done(libc::SYS_fallocate, punch));
    assert_eq!(after, before + 1, "one page left");
    memory.touch();
    let remove = [memory.at(1), 2 * PAGE, libc::MADV_REMOVE as u64, 0, 0, 0];
    let (before, after) = watched(monitor, &memory, || done(libc::SYS_madvise, remove));
    assert_eq!(after, before + 2, "two pages left");
    memory.touch();
    // Another process makes the change.
    let shorten = || {
        let status = Command::new("truncate").args(["-s", "0", &path]).status().expect("truncate runs");
        assert!(status.success());
    };
    let (before, after) = watched(monitor, &memory, shorten);
    assert_eq!(after, before + 4, "four pages left");
    must(libc::SYS_ftruncate, [fd as u64, 4 * PAGE, 0, 0, 0, 0]);
    memory.touch();
    let open = || drop(std::fs::File::create(&path).expect("the file can be opened again"));
    let (before, after) = watched(monitor, &memory, open);
    assert_eq!(after, before + 4, "O_TRUNC: four pages left");
    must(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0]);
}

/// Requirements: MON-012, MON-018.
#[test]
fn truncation_under_a_private_mapping_is_reported() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    let fd = must(libc::SYS_memfd_create, [c"pindown".as_ptr() as u64, 0, 0, 0, 0, 0]);
    must(libc::SYS_ftruncate, [fd, 4 * PAGE, 0, 0, 0, 0]);
    let memory = Memory::new(4, libc::MAP_PRIVATE, fd as i64);
    assert_eq!(monitor.watch(memory.all()), Ok(Watch::Records));
    let changes = during(monitor, || done(libc::SYS_ftruncate, [fd, PAGE, 0, 0, 0, 0]));
    assert!(touched(&changes, &memory.part(1..4)), "by this process: {changes:x?}");
    must(libc::SYS_ftruncate, [fd, 4 * PAGE, 0, 0, 0, 0]);
    memory.touch();
    let path = format!("/proc/{}/fd/{fd}", std::process::id());
    let changes = during(monitor, || {
        let status = Command::new("truncate").args(["-s", "0", &path]).status().expect("truncate runs");
        assert!(status.success());
    });
    assert!(touched(&changes, &memory.all()), "by another: {changes:x?}");
    must(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
}

/// Requirements: MON-016.
#[test]
fn system_v_segments_are_reported() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    let id = must(libc::SYS_shmget, [0, 4 * PAGE, 0o600, 0, 0, 0]);
    let at = must(libc::SYS_shmat, [id, 0, 0, 0, 0, 0]);
    assert!(matches!(monitor.watch(at..at + 4 * PAGE), Ok(Watch::Inode(slot)) if { monitor.unwatch(slot); true }));
    let changes = during(monitor, || done(libc::SYS_shmdt, [at, 0, 0, 0, 0, 0]));
    assert!(touched(&changes, &(at..at + 4 * PAGE)), "{changes:x?}");
    let memory = Memory::anonymous(4);
    let changes = during(monitor, || {
        must(libc::SYS_shmat, [id, memory.start, libc::SHM_REMAP as u64, 0, 0, 0]);
    });
    assert!(touched(&changes, &memory.all()), "{changes:x?}");
    must(libc::SYS_shmctl, [id, libc::IPC_RMID as u64, 0, 0, 0, 0]);
}

/// Requirements: MON-012.
#[test]
fn remapped_pages_of_a_file_are_reported() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    let (memory, fd) = Memory::shared(4);
    let changes = during(monitor, || {
        must(libc::SYS_remap_file_pages, [memory.start, PAGE, 0, 2, 0, 0]);
    });
    assert!(touched(&changes, &memory.part(0..1)), "{changes:x?}");
    must(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0]);
}

/// Requirements: MON-014.
#[test]
fn removed_permission_is_reported() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    for protection in [libc::PROT_READ, libc::PROT_NONE, libc::PROT_WRITE] {
        let memory = Memory::anonymous(4);
        for number in [libc::SYS_mprotect, libc::SYS_pkey_mprotect] {
            let arguments = [memory.at(1), PAGE, protection as u64, u64::MAX, 0, 0];
            let changes = during(monitor, || done(number, arguments));
            exactly(&changes, &[memory.part(1..2)]);
        }
    }
}

/// Requirements: MON-012, MON-029.
#[test]
fn hole_punched_by_io_uring_worker_is_reported() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    let mut ring = IoUring::new(8).expect("io_uring is available");
    let mut submit = |entry: io_uring::squeue::Entry| {
        // SAFETY: the memory that the entry points to lives until the completion, for which this function waits.
        unsafe { ring.submission().push(&entry) }.expect("there is room");
        ring.submit_and_wait(1).expect("the request is submitted");
        ring.completion().next().expect("one completion").result()
    };
    let (memory, fd) = Memory::shared(4);
    let hole = opcode::Fallocate::new(types::Fd(fd as i32), PAGE).offset(PAGE).mode(3).build();
    let (before, after) = watched(monitor, &memory, || assert_eq!(submit(hole), 0));
    assert_eq!(after, before + 1, "one page left");
    // The worker announces the completion before it has left the call.
    let deadline = Instant::now() + Duration::from_secs(60);
    while monitor.page().busy() {
        assert!(Instant::now() < deadline, "the change never ends");
        thread::yield_now();
    }
    must(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0]);
}

/// Requirements: MON-012.
#[test]
fn unwatchable_ranges_are_rejected_with_a_reason() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    let memory = Memory::anonymous(2);
    assert_eq!(monitor.watch(memory.all()), Ok(Watch::Records));
    assert_eq!(monitor.watch(memory.start..memory.at(2) + 1), Err(Unwatchable::SeveralMappings));
    must(libc::SYS_munmap, [memory.at(1), PAGE, 0, 0, 0, 0]);
    assert_eq!(monitor.watch(memory.at(1)..memory.at(2)), Err(Unwatchable::Unmapped));
    assert_eq!(monitor.watch(memory.all()), Err(Unwatchable::SeveralMappings));
    let (shared, fd) = Memory::shared(2);
    must(libc::SYS_munmap, [shared.start, PAGE, 0, 0, 0, 0]);
    let path = format!("/proc/self/fd/{fd}\0");
    let again = must(libc::SYS_openat, [HERE, path.as_ptr() as u64, libc::O_RDONLY as u64, 0, 0, 0]);
    // SAFETY: the descriptor was opened above, only for this value.
    let again = unsafe { OwnedFd::from_raw_fd(again as i32) };
    let read_only = [shared.start, PAGE, 1, (libc::MAP_SHARED | libc::MAP_FIXED) as u64, again.as_raw_fd() as u64, 0];
    must(libc::SYS_mmap, read_only);
    assert_eq!(monitor.watch(shared.part(0..1)), Err(Unwatchable::ReadOnlyShared));
    must(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0]);
}

/// Requirements: MON-012.
#[test]
fn more_files_than_slots_are_refused() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    let files: Vec<(Memory, i64)> = (0..=super::super::SLOTS).map(|_| Memory::shared(1)).collect();
    let slots: Vec<_> = files.iter().map(|(memory, _)| monitor.watch(memory.all())).collect();
    let (last, first) = slots.split_last().expect("at least one slot");
    assert_eq!(*last, Err(Unwatchable::Full));
    for slot in first {
        let Ok(Watch::Inode(slot)) = slot else { panic!("{slot:?}") };
        monitor.unwatch(*slot);
    }
    let (memory, fd) = &files[super::super::SLOTS];
    let (before, after) = watched(monitor, memory, || done(libc::SYS_ftruncate, [*fd as u64, 0, 0, 0, 0, 0]));
    assert_eq!(after, before + 1, "a released slot is reused");
    for (_, fd) in &files {
        must(libc::SYS_close, [*fd as u64, 0, 0, 0, 0, 0]);
    }
}

/// A file handle, as passed to open_by_handle_at(2).
#[repr(C, align(8))]
struct FileHandle {
    bytes: u32,
    kind: i32,
    handle: [u8; 128],
}

/// Requirements: MON-012, MON-018.
#[test]
fn truncation_by_file_handle_is_reported() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    let directory = must(libc::SYS_openat, [HERE, c"/dev/shm".as_ptr() as u64, libc::O_RDONLY as u64, 0, 0, 0]);
    let name = format!("/dev/shm/pindown-handle-{}\0", std::process::id());
    let flags = (libc::O_RDWR | libc::O_CREAT | libc::O_EXCL) as u64;
    let fd = must(libc::SYS_openat, [HERE, name.as_ptr() as u64, flags, 0o600, 0, 0]);
    must(libc::SYS_ftruncate, [fd, 2 * PAGE, 0, 0, 0, 0]);
    let memory = Memory::new(2, libc::MAP_PRIVATE, fd as i64);
    assert_eq!(monitor.watch(memory.all()), Ok(Watch::Records));
    let mut handle = FileHandle { bytes: 128, kind: 0, handle: [0; 128] };
    let (at, mut mount) = ((&raw mut handle).addr() as u64, 0_i32);
    let named = [fd, c"".as_ptr() as u64, at, (&raw mut mount).addr() as u64, libc::AT_EMPTY_PATH as u64, 0];
    must(libc::SYS_name_to_handle_at, named);
    let open = |flags: i32| {
        let mut opened = Err(0);
        let arguments = [directory, at, flags as u64, 0, 0, 0];
        let changes = during(monitor, || opened = call(libc::SYS_open_by_handle_at, arguments));
        must(libc::SYS_close, [opened.expect("the file exists"), 0, 0, 0, 0, 0]);
        changes
    };
    assert!(!touched(&open(libc::O_RDWR), &memory.all()), "opening without O_TRUNC changes nothing");
    let changes = open(libc::O_RDWR | libc::O_TRUNC);
    assert!(touched(&changes, &memory.all()), "{changes:x?}");
    must(libc::SYS_unlinkat, [HERE, name.as_ptr() as u64, 0, 0, 0, 0]);
    for fd in [fd, directory] {
        must(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
    }
}

/// Requirements: MON-012.
#[test]
fn unknown_call_is_reported_as_everything() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    let watched = Memory::anonymous(1);
    let fresh = || {
        let at = must(libc::SYS_mmap, [0, PAGE, READ_WRITE, ANONYMOUS as u64, u64::MAX, 0]);
        must(libc::SYS_madvise, [at, PAGE, libc::MADV_NOHUGEPAGE as u64, 0, 0, 0]);
        at
    };
    let mut pipe = [0_i32; 2];
    must(libc::SYS_pipe2, [pipe.as_mut_ptr() as u64, 0, 0, 0, 0, 0]);
    let [reader, writer] = pipe.map(|fd| fd as u64);
    let file = c"/proc/self/exe".as_ptr() as u64;
    let file = must(libc::SYS_openat, [HERE, file, libc::O_RDONLY as u64, 0, 0, 0]);
    // Each call reads or writes a new page, `AT`, and has almost no other effect.
    const AT: u64 = u64::MAX;
    const FIGETBSZ: u64 = 2;
    let calls: [(&str, i64, [u64; 6], bool); 6] = [
        ("openat2", libc::SYS_openat2, [AT, AT, AT, 24, 0, 0], true),
        ("a clock is adjusted", libc::SYS_clock_adjtime, [0, AT, 0, 0, 0, 0], true),
        ("a command for file systems", libc::SYS_ioctl, [file, FIGETBSZ, AT, 0, 0, 0], true),
        ("the number of readable bytes", libc::SYS_ioctl, [reader, libc::FIONREAD, AT, 0, 0, 0], false),
        ("the time", libc::SYS_clock_gettime, [0, AT, 0, 0, 0, 0], false),
        ("a file's attributes", libc::SYS_fstat, [file, AT, 0, 0, 0, 0], false),
    ];
    for (what, number, arguments, counts) in calls {
        let at = fresh();
        let arguments = arguments.map(|argument| if argument == AT { at } else { argument });
        let changes = during(monitor, || {
            attempt(number, arguments);
        });
        assert_eq!(touched(&changes, &watched.all()), counts, "{what}: {changes:x?}");
        must(libc::SYS_munmap, [at, PAGE, 0, 0, 0, 0]);
    }
    must(libc::SYS_close, [file, 0, 0, 0, 0, 0]);
    for fd in [reader, writer] {
        must(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
    }
}

/// Requirements: MON-012.
#[test]
fn device_mapping_is_not_watched_as_a_memory_file() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    let read_write = libc::O_RDWR as u64;
    let open = |path: &std::ffi::CStr| call(libc::SYS_openat, [HERE, path.as_ptr() as u64, read_write, 0, 0, 0]);
    let zero = open(c"/dev/zero").expect("the device file exists");
    let private = Memory::new(1, libc::MAP_PRIVATE, zero as i64);
    assert_eq!(monitor.watch(private.all()), Ok(Watch::Records), "anonymous memory");
    let shared = Memory::new(1, libc::MAP_SHARED, zero as i64);
    assert!(matches!(monitor.watch(shared.all()), Ok(Watch::Inode(slot)) if { monitor.unwatch(slot); true }));
    must(libc::SYS_close, [zero, 0, 0, 0, 0, 0]);
    let Ok(memory) = open(c"/dev/mem") else { return eprintln!("skipped (/dev/mem): it cannot be opened") };
    // Memory of the firmware, which every kernel allows root to read.
    let arguments = [0, PAGE, READ_WRITE, libc::MAP_SHARED as u64, memory, 0xf_0000];
    match call(libc::SYS_mmap, arguments) {
        Ok(at) => {
            assert_eq!(monitor.watch(at..at + PAGE), Err(Unwatchable::FileSystem));
            must(libc::SYS_munmap, [at, PAGE, 0, 0, 0, 0]);
        }
        Err(error) => eprintln!("skipped (/dev/mem): it cannot be mapped ({error})"),
    }
    must(libc::SYS_close, [memory, 0, 0, 0, 0, 0]);
}

/// Requirements: MON-012.
#[test]
fn unnamed_private_huge_pages_are_rejected() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    const HUGE: u64 = 2 << 20;
    for (flags, expected) in [(libc::MAP_PRIVATE, Err(Unwatchable::PrivateHuge)), (libc::MAP_SHARED, Ok(()))] {
        let flags = (flags | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB) as u64;
        match call(libc::SYS_mmap, [0, HUGE, READ_WRITE, flags, u64::MAX, 0]) {
            Ok(at) => {
                let watched = monitor.watch(at..at + HUGE).map(|watch| {
                    if let Watch::Inode(slot) = watch {
                        monitor.unwatch(slot);
                    }
                });
                assert_eq!(watched, expected);
                must(libc::SYS_munmap, [at, HUGE, 0, 0, 0, 0]);
            }
            Err(error) => eprintln!("skipped (huge pages): none are free ({error})"),
        }
    }
}

//! Ordinary activity does not empty a cache: hits are counted while other threads map, unmap and allocate, and while
//! the kernel drops pages of files. Also checks that no thread of a monitor allocates. The tests are skipped, with the
//! reason, if the programs cannot be loaded.
#![expect(unsafe_code, reason = "an allocator that counts, and system calls; each block states its own reason")]

mod oracle;

use std::alloc::{GlobalAlloc, Layout, System};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use oracle::{ANONYMOUS, Memory, PAGE, READ_WRITE, World, advise, map_anew, must, pattern, store, unmap};
use pindown::monitor::{Choice, Refusal, userfaultfd};
use pindown::{Access, Cache, Range};

/// The C library's allocator, which counts the calls of one thread.
struct Counting;

/// The kernel's ID of that thread; 0 for none.
static WATCHED: AtomicU64 = AtomicU64::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);

fn count() {
    let watched = WATCHED.load(Ordering::Relaxed);
    if watched != 0 && thread_id() == watched {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

fn thread_id() -> u64 {
    // SAFETY: the call takes no arguments.
    unsafe { libc::syscall(libc::SYS_gettid) as u64 }
}

// SAFETY: every call is forwarded to the C library's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller meets the requirements.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller meets the requirements.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller meets the requirements.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BUFFERS: u64 = 1000;

/// Stops another thread when it is dropped, also if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Makes at least `least` rounds of look-ups over a thousand buffers, while `life` runs in another thread until it has
/// done the requested amount. Checks that at least 99 of 100 look-ups are hits, and that all are correct.
fn hits_during(world: &World, least: u64, life: impl Fn(u64) + Sync) {
    let memory = Memory::new(2 * BUFFERS);
    let buffers = Vec::from_iter((0..BUFFERS).map(|number| memory.page(2 * number)));
    for (number, at) in buffers.iter().enumerate() {
        store(*at, &number.to_ne_bytes());
        world.lane.end(world.kept(*at, PAGE));
    }
    let (stop, lived) = (AtomicBool::new(false), AtomicU64::new(0));
    let before = world.cache.stats();
    let mut rounds = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The rounds are made ten at a time, ten thousand in a second.
            let begin = Instant::now();
            for number in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                life(number);
                lived.store(number + 1, Ordering::Relaxed);
                if number % 10 == 9 {
                    let due = Duration::from_micros(100) * number as u32;
                    std::thread::sleep(due.saturating_sub(begin.elapsed()));
                }
            }
        });
        let _stop = Stop(&stop);
        let deadline = Instant::now() + Duration::from_secs(600);
        while lived.load(Ordering::Relaxed) < least || rounds < 50 {
            assert!(Instant::now() < deadline, "{} of {least} in ten minutes", lived.load(Ordering::Relaxed));
            for (number, at) in buffers.iter().enumerate() {
                let used = world.get(*at, PAGE);
                if number as u64 % 64 == rounds % 64 {
                    assert_eq!(world.oracle.carry(used.local_key(), *at, 8), number.to_ne_bytes());
                }
                world.lane.end(used);
            }
            rounds += 1;
        }
    });
    let after = world.cache.stats();
    let (all, changes) = (rounds * BUFFERS, lived.load(Ordering::Relaxed));
    let hits = after.hits + after.slow_hits - before.hits - before.slow_hits;
    let quick = after.hits - before.hits;
    println!(
        "{all} look-ups during {changes} changes: {quick} hits without a lock, {} with a lock; {after:?}",
        hits - quick
    );
    assert!(hits * 100 >= all * 99, "{hits} hits of {all} look-ups: {after:?}");
    // The hit rate could be high although changes remove registrations, so the number of lost registrations is also
    // checked.
    let lost = after.misses + after.single_uses_for(Refusal::Changed)
        - before.misses
        - before.single_uses_for(Refusal::Changed);
    assert!(lost * 5 <= changes, "{lost} registrations were made again for {changes} changes: {after:?}");
}

/// Requirements: RCACHE-004.
#[test]
fn hits_while_unrelated_memory_is_unmapped() {
    let Some(world) = World::open() else { return };
    hits_during(&world, 20_000, |_| {
        let at = must(libc::SYS_mmap, [0, 4 * PAGE, READ_WRITE, ANONYMOUS as u64, u64::MAX, 0]);
        store(at, &[1]);
        unmap(at, 4 * PAGE);
    });
}

/// Requirements: RCACHE-004.
#[test]
fn hits_beside_a_thread_that_allocates() {
    let Some(world) = World::open() else { return };
    hits_during(&world, 20_000, |number| {
        let mut blocks = Vec::from_iter((1..8).map(|n| vec![1_u8; (number * n % 40 + 1) as usize * 8000]));
        blocks.reverse();
        std::hint::black_box(blocks);
        if number % 64 == 0 {
            // SAFETY: the C library may return any of its memory.
            unsafe { libc::malloc_trim(0) };
        }
    });
}

/// Requirements: RCACHE-004.
#[test]
fn hits_while_a_files_pages_are_dropped() {
    let Some(world) = World::open() else { return };
    let path = std::env::temp_dir().join(format!("pindown-quiet-{}", std::process::id()));
    let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("a new file");
    std::fs::remove_file(&path).expect("the file exists");
    std::os::unix::fs::FileExt::write_all_at(&file, &pattern(256 * PAGE, 1), 0).expect("written");
    file.sync_all().expect("on the disk");
    let fd = file.as_raw_fd();
    let mapped = Memory::of(256, libc::MAP_SHARED, fd as u64);
    hits_during(&world, 2_000, |number| {
        let mut bytes = [0; 4096];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, number % 256 * PAGE).expect("read");
        if number % 16 == 0 {
            // Mapped pages stay until they are removed from the mapping.
            advise(mapped.start, mapped.len, libc::MADV_PAGEOUT);
            // SAFETY: the call takes no pointers.
            assert_eq!(unsafe { libc::posix_fadvise(fd, 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
        }
    });
}

/// Requirements: RCACHE-004.
#[test]
fn hits_while_threads_come_and_go() {
    let Some(world) = World::open() else { return };
    hits_during(&world, 10_000, |number| {
        std::thread::spawn(move || std::hint::black_box(vec![1_u8; 1000 * (1 + number as usize % 50)]).len());
    });
}

/// Returns the IDs of the threads of this process.
fn threads() -> Vec<u64> {
    let entries = std::fs::read_dir("/proc/self/task").expect("/proc");
    Vec::from_iter(
        entries.map(|entry| entry.expect("a thread").file_name().to_string_lossy().parse().expect("a number")),
    )
}

#[test]
#[ignore = "started alone by another test: it distinguishes threads by when they were started"]
fn monitor_thread_process() {
    let before = threads();
    let settings = userfaultfd::Settings::new(userfaultfd::Unseen::NeverMade);
    let plain = std::env::var_os("PINDOWN_PLAIN").is_some();
    let monitor = Choice::Userfaultfd(if plain { settings.plain() } else { settings });
    let cache = match Cache::builder(oracle::Oracle::new()).monitor(monitor).open() {
        Ok(cache) => cache,
        Err(why) => return eprintln!("skipped (userfaultfd): {why}"),
    };
    let after = threads();
    let [watching] = Vec::from_iter(after.into_iter().filter(|id| !before.contains(id)))[..] else {
        panic!("expected exactly one new thread")
    };
    WATCHED.store(watching, Ordering::Relaxed);
    let line = |field: &str| {
        let status = std::fs::read_to_string(format!("/proc/self/task/{watching}/status")).expect("the thread exists");
        String::from(status.lines().find_map(|line| line.strip_prefix(field)).expect("the status has this line").trim())
    };
    let status = |field: &str| line(field).parse::<u64>().expect("a number");
    // The program's signal handlers may execute any code, so they must run on other threads.
    let blocked = u64::from_str_radix(&line("SigBlk:"), 16).expect("a number");
    for signal in [libc::SIGALRM, libc::SIGCHLD, libc::SIGINT, libc::SIGPROF, libc::SIGTERM, libc::SIGUSR1] {
        assert!(blocked & 1 << (signal - 1) != 0, "signal {signal} runs a handler there: {blocked:#x}");
    }
    let (lane, woken) = (cache.lane(), status("voluntary_ctxt_switches:"));
    let memory = Memory::new(64);
    for round in 0..500_u64 {
        let range = Range::new(memory.start, memory.len).expect("a range");
        let used = lane.get(range, Access::LOCAL_WRITE).expect("registered");
        lane.end(used);
        match round % 4 {
            // This is done last, because this monitor does not keep memory that was dropped once.
            0 if round > 400 => advise(memory.page(round % 64), PAGE, libc::MADV_DONTNEED),
            0 | 1 => oracle::map_anew(memory.start, memory.len),
            2 => {
                unmap(memory.page(1), PAGE);
                oracle::map_anew(memory.page(1), PAGE);
            }
            _ => {
                let moved = [
                    memory.start,
                    memory.len,
                    memory.len,
                    (libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP) as u64,
                    0,
                    0,
                ];
                let to = must(libc::SYS_mremap, moved);
                unmap(to, memory.len);
            }
        }
        // Blocks are also allocated and freed in registered arenas of the allocator.
        std::hint::black_box(vec![0_u8; 300_000]);
    }
    assert!(status("voluntary_ctxt_switches:") > woken, "the changes woke the thread");
    assert!(cache.stats().invalidations > 200, "{:?}", cache.stats());
    assert_eq!(CALLS.load(Ordering::Relaxed), 0, "calls of the allocator by the monitor's thread");
    // Checks that the counter works.
    WATCHED.store(thread_id(), Ordering::Relaxed);
    std::hint::black_box(Box::new(1_u8));
    assert_ne!(CALLS.load(Ordering::Relaxed), 0);
    println!("{:?}", cache.stats());
}

/// Requirements: MON-050.
#[test]
fn the_monitors_thread_allocates_nothing() {
    for environment in [&[][..], &[("PINDOWN_PLAIN", "1")]] {
        println!("{}", oracle::in_child("monitor_thread_process", environment));
    }
}

/// Requirements: MON-050.
#[test]
fn kernel_tier_thread_only_holds_descriptors() {
    let Some(world) = World::open() else { return };
    let memory = Memory::new(1);
    let of = |id: &u64, file: &str| std::fs::read_to_string(format!("/proc/self/task/{id}/{file}")).unwrap_or_default();
    // Threads of the test harness start and end at any time.
    let ours: Vec<u64> = threads().into_iter().filter(|id| of(id, "comm").contains("pindown-keeper")).collect();
    let switches = |id: &u64| {
        let status = of(id, "status");
        status.lines().filter(|line| line.contains("ctxt_switches")).map(str::to_owned).collect::<Vec<_>>()
    };
    while ours.iter().any(|id| !of(id, "stat").contains(") S")) {
        std::thread::yield_now();
    }
    let before: Vec<_> = ours.iter().map(switches).collect();
    assert!(!before.is_empty() && before.iter().all(|lines| lines.len() == 2), "{before:?}");
    for seed in 0..20 {
        world.across(memory.start, PAGE, || map_anew(memory.start, PAGE));
        world.transfers(memory.start, PAGE, seed);
    }
    assert_eq!(ours.iter().map(switches).collect::<Vec<_>>(), before, "the thread did not run");
}

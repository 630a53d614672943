//! Threads and forks.
#![expect(unsafe_code, reason = "forks; each block states its own reason")]

use std::io;
use std::time::Duration;

use pindown::monitor::Choice;
use pindown::monitor::imported::Notifier;
use pindown::monitor::userfaultfd::{Settings, Unseen};
use pindown::{Access, Cache, Lane, LookupError, Pinned, Range, Registrar, Waited};

use crate::oracle::{Memory, Oracle, Outcome, PAGE, World, advise, call, done, map_anew, pattern, store, unmap};
use crate::{forked, inner_pages, range};

/// Requirements: MON-019, MON-034.
#[test]
fn fork_keeps_registrations_of_the_parent() {
    let Some(world) = World::open() else { return };
    let memory = Memory::new(4);
    let child = |lane: &Lane<Oracle>| {
        let answer = lane.get(range(memory.start, memory.len), Access::LOCAL_WRITE);
        let refused = matches!(answer, Err(LookupError::Forked));
        let same = load_byte(memory.start) == pattern(1, 1)[0];
        // Changes that the child makes to its copy do not affect the parent.
        call(libc::SYS_munmap, [memory.start, memory.len, 0, 0, 0, 0]).ok();
        u8::from(refused) | u8::from(same) << 1
    };
    let outcome = world.across(memory.start, memory.len, || assert_eq!(forked(|| child(&world.lane)), 3));
    assert_eq!(outcome, Outcome::Kept);
    // The parent writes while the child lives, so the child gets a copy of the page.
    let used = world.kept(memory.start, memory.len);
    let (gate, other) = pipe();
    // SAFETY: the child only reads a byte from the pipe.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut byte = 0_u8;
        call(libc::SYS_read, [gate, (&raw mut byte) as u64, 1, 0, 0, 0]).ok();
        // SAFETY: as in `forked`.
        unsafe { libc::_exit(0) };
    }
    store(memory.start, &pattern(memory.len, 9));
    assert!(world.oracle.carry(used.local_key(), memory.start, memory.len) == pattern(memory.len, 9));
    world.transfers(memory.start, memory.len, 10);
    done(libc::SYS_write, [other, c"x".as_ptr() as u64, 1, 0, 0, 0]);
    // SAFETY: the child belongs to this test.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    world.lane.end(used);
    for fd in [gate, other] {
        done(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
    }
}

/// A registrar that pins nothing.
struct Nothing;

impl Registrar for Nothing {
    type Pin = ();

    fn pin(&self, _range: Range, _access: Access) -> io::Result<Pinned<()>> {
        Ok(Pinned { pin: (), local_key: 0, remote_key: 0 })
    }

    fn unpin(&self, _pin: ()) {}
}

/// Returns the descriptors of this process that have `name` in their names in /proc.
fn descriptors(name: &str) -> Vec<i32> {
    let all = std::fs::read_dir("/proc/self/fd").expect("is there").flatten();
    let named =
        all.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().contains(name)));
    let numbers = named.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers.collect()
}

/// Closes the descriptors of this process that have `name` in their names in /proc. Returns their number.
fn close_all(name: &str) -> usize {
    let numbers = descriptors(name);
    for number in &numbers {
        // SAFETY: the child ends soon. The test only checks whether the owners of the descriptors detect this.
        unsafe { libc::close(*number) };
    }
    numbers.len()
}

/// The application has closed a descriptor that the monitor, or the wait, needs: a wait still ends when its timeout
/// expires.
///
/// Requirements: MON-048.
#[test]
fn wait_times_out_if_its_descriptors_were_closed() {
    for name in ["userfaultfd", "eventfd"] {
        let ended = forked(|| {
            // SAFETY: the call takes a number. It ends a child that would wait forever.
            unsafe { libc::alarm(60) };
            let (notifier, imported) = Notifier::new(|_, _| true).expect("a descriptor");
            let userfaultfd = Choice::Userfaultfd(Settings::new(Unseen::NeverMade));
            let choice = if name == "eventfd" { Choice::Imported(imported) } else { userfaultfd };
            let Ok(cache) = Cache::builder(Nothing).monitor(choice).open() else { return 2 };
            assert!(close_all(name) > 0);
            let ended =
                matches!(cache.wait(Some(Duration::from_millis(300))), Ok(Waited::TimedOut | Waited::Changed(_)));
            // The descriptors of these values are closed.
            std::mem::forget((cache, notifier));
            ended.into()
        });
        if ended == 2 {
            eprintln!("skipped (userfaultfd): this system has no userfaultfd");
        } else {
            assert_eq!(ended, 1, "{name}");
        }
    }
}

/// Looks memory up and ends the use. Returns whether the registration was made for this use only.
fn is_single_use(lane: &Lane<Nothing>, memory: &Memory) -> bool {
    let used = lane.get(range(memory.start, memory.len), Access::LOCAL_WRITE).expect("registered");
    let is_single = used.is_single();
    lane.end(used);
    is_single
}

/// The application has closed the monitor's descriptor, and opened a file with the same number: the file stays open.
///
/// Requirements: MON-031.
#[test]
fn file_at_the_number_of_a_closed_descriptor_is_left_alone() {
    let kept = forked(|| {
        // SAFETY: the call takes a number. It ends a child that would wait forever.
        unsafe { libc::alarm(60) };
        let userfaultfd = Choice::Userfaultfd(Settings::new(Unseen::NeverMade));
        let Ok(cache) = Cache::builder(Nothing).monitor(userfaultfd).open() else { return 2 };
        let lane = cache.lane();
        let memory = Memory::new(4);
        let look_up = || is_single_use(&lane, &memory);
        look_up();
        let number = descriptors("userfaultfd")[0] as u64;
        let (reader, _writer) = pipe();
        done(libc::SYS_dup3, [reader, number, 0, 0, 0, 0]);
        let all_single = (0..3).all(|_| look_up());
        let registered = cache.register(range(memory.start, memory.len), Access::LOCAL_WRITE);
        let name = std::fs::read_link(format!("/proc/self/fd/{number}")).expect("is open");
        u8::from(all_single && registered.is_ok() && name.to_string_lossy().starts_with("pipe:"))
    });
    if kept == 2 {
        eprintln!("skipped (userfaultfd): this system has no userfaultfd");
    } else {
        assert_eq!(kept, 1);
    }
}

/// Makes the kernel reject read(2) and readv(2) of a descriptor from every thread of the process from now on.
fn refuse_reading(descriptor: u32) {
    let op = |code: u32, k: u32, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        // The number of the system call is the first field, and the first argument is at byte 16.
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_read as u32, 1, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_readv as u32, 0, 3),
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 16, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, descriptor, 0, 1),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the call takes numbers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    let (mode, all) = (libc::SECCOMP_SET_MODE_FILTER.into(), libc::SECCOMP_FILTER_FLAG_TSYNC);
    done(libc::SYS_seccomp, [mode, all, (&raw const program) as u64, 0, 0, 0]);
}

/// A filter denies the monitor to read its descriptor. The next look-up lets the thread continue that waits for this.
///
/// Requirements: MON-031.
#[test]
fn look_up_releases_a_thread_that_waits_for_a_denied_read() {
    let released = forked(|| {
        // SAFETY: the call takes a number. It ends a child that would wait forever.
        unsafe { libc::alarm(60) };
        let userfaultfd = Choice::Userfaultfd(Settings::new(Unseen::NeverMade));
        let Ok(cache) = Cache::builder(Nothing).monitor(userfaultfd).open() else { return 2 };
        let lane = cache.lane();
        let [changed, other] = [Memory::new(4), Memory::new(4)];
        let look_up = |memory: &Memory| is_single_use(&lane, memory);
        if [&changed, &other].into_iter().any(look_up) {
            return 3;
        }
        refuse_reading(descriptors("userfaultfd")[0] as u32);
        let (start, len) = (changed.start, changed.len);
        let thread = std::thread::spawn(move || call(libc::SYS_munmap, [start, len, 0, 0, 0, 0]).is_ok());
        for _ in 0..2000 {
            look_up(&other);
            if thread.is_finished() {
                return u8::from(look_up(&other) && thread.join().is_ok_and(|unmapped| unmapped));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        0
    });
    if released == 2 {
        eprintln!("skipped (userfaultfd): this system has no userfaultfd");
    } else {
        assert_eq!(released, 1);
    }
}

/// A child that is forked while another thread opens the first cache of a monitor opens its own cache. It does not wait
/// for a lock that the thread holds.
///
/// Requirements: MON-019, MON-034.
#[test]
fn child_forked_during_another_open_can_open_a_cache() {
    const ROUNDS: usize = 60;
    let open = |choice: Choice| Cache::builder(Nothing).monitor_or_none(choice).open().map(drop).is_ok();
    let userfaultfd = || Choice::Userfaultfd(Settings::new(Unseen::NeverMade));
    // A monitor is started once in a process, so each round has a separate process.
    for _ in 0..ROUNDS {
        let all_opened = forked(|| {
            let thread = std::thread::spawn(move || open(userfaultfd()) && open(Choice::Sealed));
            let children: Vec<bool> = (0..8)
                .map(|_| {
                    forked(|| {
                        // SAFETY: the call takes a number. It ends a child that would wait forever.
                        unsafe { libc::alarm(60) };
                        u8::from(open(userfaultfd()) && open(Choice::Sealed) && open(Choice::None))
                    }) == 1
                })
                .collect();
            u8::from(thread.join().is_ok_and(|opened| opened) && children.iter().all(|opened| *opened))
        });
        assert_eq!(all_opened, 1);
    }
}

/// Loads a byte without an allocation.
fn load_byte(at: u64) -> u8 {
    // SAFETY: the tests pass their own memory.
    unsafe { std::ptr::with_exposed_provenance::<u8>(at as usize).read_volatile() }
}

fn pipe() -> (u64, u64) {
    let mut ends = [0_i32; 2];
    done(libc::SYS_pipe2, [ends.as_mut_ptr() as u64, libc::O_CLOEXEC as u64, 0, 0, 0, 0]);
    (ends[0] as u64, ends[1] as u64)
}

/// Requirements: MON-020.
#[test]
fn vfork_and_exec_keep_the_registration() {
    let Some(world) = World::open() else { return };
    let memory = Memory::new(4);
    let outcome = world.across(memory.start, memory.len, || {
        // The library starts it with clone(CLONE_VM | CLONE_VFORK), which is equivalent to vfork(2).
        let (program, mut child) = (c"/bin/true".as_ptr(), 0);
        let arguments = [program.cast_mut(), std::ptr::null_mut()];
        let (actions, attributes) = (std::ptr::null(), std::ptr::null());
        // SAFETY: the path and both lists end with zeros and live through the call.
        let answer = unsafe {
            let environment = arguments[1..].as_ptr();
            libc::posix_spawn(&raw mut child, program, actions, attributes, arguments.as_ptr(), environment)
        };
        assert_eq!(answer, 0);
        let mut status = 0;
        // SAFETY: the child belongs to this test.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child succeeded");
    });
    assert_eq!(outcome, Outcome::Kept);
    assert_eq!(world.cache.stats().flushes, 0);
}

/// Requirements: MON-021, MON-029.
#[test]
fn unmapped_thread_stack_is_registered_again() {
    let Some(world) = World::open() else { return };
    // More than the C library keeps for the next thread (40 MiB), so these stacks are unmapped.
    const LARGE: usize = 64 << 20;
    let mut places = std::collections::HashMap::new();
    for round in 0..16_u8 {
        let (ready, receiver) = std::sync::mpsc::channel();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().stack_size(if round < 8 { LARGE } else { 256 << 10 });
        let thread = thread.spawn(move || {
            let mut here = [0_u8; 4 * PAGE as usize];
            store(here.as_mut_ptr().expose_provenance() as u64, &pattern(4 * PAGE, round));
            ready.send(here.as_ptr() as u64).expect("the test listens");
            wait.recv().ok();
            std::hint::black_box(&here);
        });
        let thread = thread.expect("a thread");
        let at = receiver.recv().expect("the address in the thread's stack");
        assert!(world.send(at, 4 * PAGE) == pattern(4 * PAGE, round), "stale: thread {round}");
        go.send(()).expect("the thread waits");
        thread.join().expect("the thread ends");
        *places.entry(at).or_insert(0) += 1;
    }
    let stats = world.cache.stats();
    assert!(stats.invalidations >= 7, "large stacks are unmapped: {stats:?}");
    assert!(places.values().any(|&times| times > 1), "an address was used again: {places:x?}");
}

/// Requirements: MON-029.
#[test]
fn unmap_by_another_thread_renews_the_registration() {
    let Some(world) = World::open() else { return };
    let memory = Memory::new(4);
    let outcome = world.across(memory.start, memory.len, || {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                unmap(memory.start, memory.len);
                map_anew(memory.start, memory.len);
            });
        });
    });
    assert_eq!(outcome, Outcome::Renewed);
}

/// Requirements: MON-022.
#[test]
fn reused_stack_memory_is_registered_again() {
    let Some(world) = World::open() else { return };
    #[inline(never)]
    fn deeper(world: &World, seed: u8) -> u64 {
        let mut here = [0_u8; 16 * PAGE as usize];
        let (at, len) = inner_pages(here.as_mut_ptr().expose_provenance() as u64, 16 * PAGE);
        world.transfers(at, len, seed);
        std::hint::black_box(&here);
        at
    }
    let first = deeper(&world, 1);
    let used = world.cache.stats().misses;
    // The memory below the stack pointer is returned, except the part that the call itself uses.
    advise(first, 12 * PAGE, libc::MADV_DONTNEED);
    assert_eq!(deeper(&world, 2), first);
    assert!(world.cache.stats().misses > used, "memory was registered again");
}

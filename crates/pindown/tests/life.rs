//! What programs do by the way: threads, forks, libraries, allocators, other processes. No transfer uses old pages, and
//! the parent's cache goes on. Skipped with the reason where the programs cannot be loaded.
#![expect(unsafe_code, reason = "forks, dlopen and the C library's allocator; each block states its own reason")]

mod oracle;

use std::alloc::{Layout, alloc, dealloc, realloc};
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::process::Command;

use oracle::{
    Memory, Outcome, PAGE, World, advise, call, done, in_child, load, map_anew, must, pattern, pinned_kilobytes, store,
    unmap,
};
use pindown::{Access, LookupError, Range};

fn range(at: u64, len: u64) -> Range {
    Range::new(at, len).expect("a range")
}

/// Whole pages of some bytes.
fn inner_pages(at: u64, len: u64) -> (u64, u64) {
    let start = at.next_multiple_of(PAGE);
    (start, (at + len - start) / PAGE * PAGE)
}

/// Runs `work` in a forked child, and says what it answered.
fn forked(work: impl FnOnce() -> u8) -> u8 {
    // SAFETY: the child calls only what takes no lock of another thread's and allocates nothing.
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

#[test]
fn mon_019_034_fork_leaves_the_parent_its_registrations() {
    let Some(world) = World::open() else { return };
    let memory = Memory::new(4);
    let child = |lane: &pindown::Lane<oracle::Oracle>| {
        let answer = lane.get(range(memory.start, memory.len), Access::LOCAL_WRITE);
        let refused = matches!(answer, Err(LookupError::Forked));
        let same = load_byte(memory.start) == pattern(1, 1)[0];
        // What the child does to its own copy is not the parent's business.
        call(libc::SYS_munmap, [memory.start, memory.len, 0, 0, 0, 0]).ok();
        u8::from(refused) | u8::from(same) << 1
    };
    let outcome = world.across(memory.start, memory.len, || assert_eq!(forked(|| child(&world.lane)), 3));
    assert_eq!(outcome, Outcome::Kept);
    // The parent writes while the child lives: the copy is the child's.
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
    // SAFETY: the child is this test's own.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    world.lane.end(used);
    for fd in [gate, other] {
        done(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
    }
}

/// Without an allocation.
fn load_byte(at: u64) -> u8 {
    // SAFETY: the tests name memory of their own.
    unsafe { std::ptr::with_exposed_provenance::<u8>(at as usize).read_volatile() }
}

fn pipe() -> (u64, u64) {
    let mut ends = [0_i32; 2];
    done(libc::SYS_pipe2, [ends.as_mut_ptr() as u64, libc::O_CLOEXEC as u64, 0, 0, 0, 0]);
    (ends[0] as u64, ends[1] as u64)
}

#[test]
fn mon_020_vfork_and_exec() {
    let Some(world) = World::open() else { return };
    let memory = Memory::new(4);
    let outcome = world.across(memory.start, memory.len, || {
        // The library starts it by clone(CLONE_VM | CLONE_VFORK).
        assert!(Command::new("true").status().expect("it starts").success());
        let program = c"/bin/true".as_ptr();
        let arguments = [program, std::ptr::null()];
        // SAFETY: the child does nothing but call execve and _exit.
        let child = unsafe { libc::vfork() };
        if child == 0 {
            // SAFETY: the path and both lists end with zeros and live through the call.
            unsafe { libc::execve(program, arguments.as_ptr(), arguments[1..].as_ptr()) };
            // SAFETY: as above.
            unsafe { libc::_exit(1) };
        }
        // SAFETY: the child is this test's own.
        assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    });
    assert_eq!(outcome, Outcome::Kept);
    assert_eq!(world.cache.stats().flushes, 0);
}

#[test]
fn mon_021_029_a_thread_ends_and_its_stack_goes() {
    let Some(world) = World::open() else { return };
    // More than the C library keeps for the next thread (40 MiB): these are unmapped.
    const LARGE: usize = 64 << 20;
    let mut places = std::collections::HashMap::new();
    for round in 0..16_u8 {
        let (ready, told) = std::sync::mpsc::channel();
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
        let at = told.recv().expect("it says where");
        assert!(world.send(at, 4 * PAGE) == pattern(4 * PAGE, round), "stale: thread {round}");
        go.send(()).expect("it waits");
        thread.join().expect("it ends");
        *places.entry(at).or_insert(0) += 1;
    }
    let stats = world.cache.stats();
    assert!(stats.invalidations >= 7, "large stacks are unmapped: {stats:?}");
    assert!(places.values().any(|&times| times > 1), "an address was used again: {places:x?}");
}

#[test]
fn mon_029_another_thread_unmaps() {
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

#[test]
fn mon_022_the_stack_is_used_again() {
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
    // What lies below the stack pointer is given back, but for what the call itself uses.
    advise(first, 12 * PAGE, libc::MADV_DONTNEED);
    assert_eq!(deeper(&world, 2), first);
    assert!(world.cache.stats().misses > used, "registered anew");
}

#[test]
fn mon_012_028_another_process_truncates_the_file() {
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

#[test]
fn mon_024_053_rcache_022_fresh_memory_in_each_of_many_iterations() {
    let Some(world) = World::open() else { return };
    let before = pinned_kilobytes();
    let mut most = 0;
    for round in 0..10_000_u64 {
        let len = (1 + round % 16) * PAGE;
        let at = must(libc::SYS_mmap, [0, len, oracle::READ_WRITE, oracle::ANONYMOUS as u64, u64::MAX, 0]);
        store(at, &round.to_ne_bytes());
        assert_eq!(world.send(at, len)[..8], round.to_ne_bytes(), "round {round}");
        unmap(at, len);
        if round % 100 == 99 {
            most = most.max(pinned_kilobytes() - before);
        }
    }
    let stats = world.cache.stats();
    // A fence of all threads is paid for 64 that have gone together. All of them would have been 340,000 kB.
    assert!(most <= 66 * 64, "up to {most} kB were pinned, of buffers of at most 64: {stats:?}");
    assert!(stats.misses >= 9_900, "each was registered and kept: {stats:?}");
    world.cache.sweep();
    assert_eq!((pinned_kilobytes(), world.oracle.registered()), (before, 0));
}

/// Sends from blocks of all sizes that the allocator gives, gives back and gives again; returns addresses that came twice.
fn allocate_and_send(world: &World) -> usize {
    let mut known = std::collections::HashSet::new();
    let mut again = 0;
    for round in 0..40_u64 {
        for len in [3_000, 40 << 10, 200 << 10, 3 << 20, 40 << 20] {
            let layout = Layout::from_size_align(len as usize, 64).expect("a layout");
            // SAFETY: the layout has a size.
            let block = unsafe { alloc(layout) };
            assert!(!block.is_null());
            let at = block.expose_provenance() as u64;
            again += usize::from(!known.insert(at));
            let seed = (round * 5 + len % 7) as u8;
            // Of the largest, the end, where an allocator cuts first.
            let (from, part) = if len > 1 << 20 { (at + len - (256 << 10), 256 << 10) } else { (at, len) };
            world.transfers(from, part, seed);
            // SAFETY: allocated with this layout.
            unsafe { dealloc(block, layout) };
            if round % 3 == 0 {
                // SAFETY: the C library may give back what it likes.
                unsafe { libc::malloc_trim(0) };
            }
        }
    }
    again
}

#[test]
fn mon_025_030_056_rcache_024_memory_of_the_allocator() {
    let Some(world) = World::open() else { return };
    let again = allocate_and_send(&world);
    assert!(again > 50, "addresses were used again {again} times");
    assert!(world.cache.stats().invalidations > 0, "memory was given back: {:?}", world.cache.stats());
}

#[test]
fn mon_015_025_the_allocator_lowers_the_break() {
    let Some(world) = World::open() else { return };
    let now = must(libc::SYS_brk, [0; 6]);
    let start = now.next_multiple_of(PAGE);
    let set = |to: u64| assert_eq!(must(libc::SYS_brk, [to, 0, 0, 0, 0, 0]), to);
    // Above what the C library has, and back before it looks again.
    set(start + 8 * PAGE);
    let outcome = world.across(start, 8 * PAGE, || {
        set(start + 2 * PAGE);
        set(start + 8 * PAGE);
    });
    assert_eq!(outcome, Outcome::Renewed);
    let outcome = world.across(start, 2 * PAGE, || {
        set(start + 4 * PAGE);
        set(start + 8 * PAGE);
    });
    assert_eq!(outcome, Outcome::Kept);
    set(now);
}

#[test]
fn mon_026_realloc_moves_by_mremap() {
    let Some(world) = World::open() else { return };
    let layout = |pages: u64| Layout::from_size_align((pages * PAGE) as usize, 16).expect("a layout");
    // SAFETY: the layout has a size.
    let mut block = unsafe { alloc(layout(1024)) };
    let (mut len, mut moved) = (1024, 0);
    for _ in 0..12 {
        let at = block.expose_provenance() as u64;
        world.transfers(at, len * PAGE, 3);
        // What follows it is taken, so that it cannot grow where it is.
        let next = (at + len * PAGE).next_multiple_of(PAGE);
        let flags = (oracle::ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
        let taken = call(libc::SYS_mmap, [next, PAGE, 0, flags, u64::MAX, 0]);
        // SAFETY: allocated with this layout.
        block = unsafe { realloc(block, layout(len), ((len + 512) * PAGE) as usize) };
        let now = block.expose_provenance() as u64;
        moved += u32::from(now != at);
        assert!(world.send(now, len * PAGE) == pattern(len * PAGE, 3 ^ 0x55), "what it held moved with it");
        if now != at {
            // Somebody else's memory at the old address.
            let flags = (oracle::ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
            let old = at.next_multiple_of(PAGE);
            if call(libc::SYS_mmap, [old, 16 * PAGE, oracle::READ_WRITE, flags, u64::MAX, 0]).is_ok() {
                world.transfers(old, 16 * PAGE, 4);
                unmap(old, 16 * PAGE);
            }
        }
        taken.into_iter().for_each(|page| unmap(page, PAGE));
        len += 512;
    }
    // SAFETY: as above.
    unsafe { dealloc(block, layout(len)) };
    assert!(moved > 0, "it never moved");
}

#[test]
#[ignore = "started by another test, with another allocator"]
fn allocator_process() {
    let Some(world) = World::open() else { return };
    let again = allocate_and_send(&world);
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    let library = std::env::var("LD_PRELOAD").expect("the test sets it");
    let name = Path::new(&library).file_name().and_then(|name| name.to_str()).expect("a name");
    assert!(maps.contains(name.split(".so").next().expect("a name")), "{library} is not loaded");
    println!("{library}: {again} addresses again, {:?}", world.cache.stats());
    assert!(again > 0);
}

#[test]
fn mon_027_other_allocators() {
    let mut tried = 0;
    for name in ["libjemalloc.so.2", "libmimalloc.so.2", "libtcmalloc_minimal.so.4"] {
        let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
        let found = places.iter().map(|place| Path::new(place).join(name)).find(|path| path.exists());
        let Some(library) = found else {
            eprintln!("skipped: {name} is not installed");
            continue;
        };
        let library = library.to_str().expect("a path").to_owned();
        // Give memory back at once, as far as they can be asked to.
        let at_once = [("MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0"), ("MIMALLOC_RESET_DELAY", "0")];
        println!("{}", in_child("allocator_process", &[("LD_PRELOAD", &library), at_once[0], at_once[1]]));
        tried += 1;
    }
    println!("{tried} allocators");
}

/// A directory that is removed at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let place = std::env::temp_dir().join(format!("pindown-{name}-{}", std::process::id()));
        std::fs::create_dir(&place).expect("the place is new");
        Self(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// A library with memory of its own, that unmaps by system calls.
const LIBRARY: &str = "
long drop(void *at, long len) {
    long answer;
    __asm__ volatile(\"syscall\" : \"=a\"(answer) : \"a\"(11), \"D\"(at), \"S\"(len) : \"rcx\", \"r11\", \"memory\");
    return answer;
}
char memory[65536] __attribute__((aligned(4096))) = {1};
";

#[test]
fn mon_028_libraries_come_and_go() {
    let Some(world) = World::open() else { return };
    let place = Place::new("library");
    let (source, library) = (place.0.join("library.c"), place.0.join("library.so"));
    std::fs::write(&source, LIBRARY).expect("written");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    if !compiled.as_ref().is_ok_and(std::process::ExitStatus::success) {
        return eprintln!("skipped: cc: {compiled:?}");
    }
    let path = CString::new(library.to_str().expect("a path")).expect("no zero");
    let open = || {
        // SAFETY: the library's beginning does nothing.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null());
        handle
    };
    let symbol = |handle: *mut libc::c_void, name: &CStr| {
        // SAFETY: the handle is open.
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        assert!(!found.is_null());
        found
    };
    let handle = open();
    let at = symbol(handle, c"memory").expose_provenance() as u64;
    let memory = Memory::new(4);
    let function = symbol(handle, c"drop");
    // SAFETY: the library defines it so.
    let drop_pages: extern "C" fn(u64, u64) -> i64 = unsafe { std::mem::transmute(function) };
    let outcome = world.across(memory.start, memory.len, || {
        assert_eq!(drop_pages(memory.start, memory.len), 0);
        map_anew(memory.start, memory.len);
    });
    assert_eq!(outcome, Outcome::Renewed);
    let outcome = world.across(at, 16 * PAGE, || {
        // SAFETY: nothing of it is used any more.
        assert_eq!(unsafe { libc::dlclose(handle) }, 0);
        map_anew(at, 16 * PAGE);
    });
    assert_eq!(outcome, Outcome::Renewed);
    unmap(at, 16 * PAGE);
}

#[test]
#[ignore = "started by another test: it ends caching in its process"]
fn io_uring_process() {
    use io_uring::{IoUring, opcode, types};
    let Some(world) = World::open() else { return };
    let mut ring = IoUring::new(4).expect("io_uring is there");
    let mut submit = |entry: io_uring::squeue::Entry| {
        // SAFETY: the memory that entries name is the test's own.
        unsafe { ring.submission().push(&entry) }.expect("there is room");
        ring.submit_and_wait(1).expect("it is submitted");
        assert_eq!(ring.completion().next().expect("it has completed").result(), 0);
    };
    // By a worker: the hole is seen, and caching goes on.
    let (shared, fd) = Memory::shared(4);
    let hole = || opcode::Fallocate::new(types::Fd(fd as i32), PAGE).offset(PAGE).mode(3).build();
    let outcome = world.across(shared.start, shared.len, || submit(hole()));
    assert_eq!(outcome, Outcome::Renewed);
    assert_eq!(world.across(shared.start, shared.len, || submit(hole())), Outcome::Renewed);
    // Nobody says when a worker has ended: nothing is kept any more, and every transfer is right.
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

#[test]
fn mon_012_029_io_uring_changes_memory() {
    println!("{}", in_child("io_uring_process", &[]));
}

/// The smallest program that caches: linked to nothing that could be interposed.
const STATIC: &str = include_str!("oracle/static_program.rs");

#[test]
fn mon_032_a_statically_linked_program() {
    if let Err(why) = pindown::monitor::bpf::loadable() {
        return eprintln!("skipped: {why}");
    }
    let place = Place::new("static");
    let (source, program) = (place.0.join("program.rs"), place.0.join("program"));
    std::fs::write(&source, STATIC).expect("written");
    // The libraries lie beside this program.
    let here = std::env::current_exe().expect("this program");
    let here = here.parent().expect("a directory");
    let mut libraries = Vec::from_iter(std::fs::read_dir(here).expect("it can be read").filter_map(|entry| {
        let path = entry.ok()?.path();
        let name = path.file_name()?.to_str()?;
        (name.starts_with("libpindown-") && name.ends_with(".rlib")).then(|| path.clone())
    }));
    libraries.sort_by_key(|path| std::fs::metadata(path).and_then(|data| data.modified()).ok());
    let mut said = String::from("no library was found");
    let built = libraries.iter().rev().any(|library| {
        let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()));
        rustc.args(["--edition=2024", "-Ctarget-feature=+crt-static", "-L"]).arg(here).arg("--extern");
        rustc.arg(format!("pindown={}", library.display())).arg(&source).arg("-o").arg(&program);
        rustc.current_dir(env!("CARGO_MANIFEST_DIR")).output().is_ok_and(|output| {
            said = String::from_utf8_lossy(&output.stderr).into_owned();
            output.status.success()
        })
    });
    if !built {
        return eprintln!("skipped: a static program cannot be linked here: {said}");
    }
    let output = Command::new(&program).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said} {}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("static: kept, changed, renewed"), "{said}");
}

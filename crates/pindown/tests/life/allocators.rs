//! Memory that an allocator allocates, frees, moves and allocates again.
#![expect(unsafe_code, reason = "the allocators; each block states its own reason")]

use std::alloc::{Layout, alloc, dealloc, realloc};
use std::path::Path;

use crate::oracle::{
    ANONYMOUS, Outcome, PAGE, READ_WRITE, World, call, in_child, must, pattern, pinned_kilobytes, store, unmap,
};

/// Requirements: MON-024, MON-053, RCACHE-022.
#[test]
fn fresh_memory_in_each_of_many_iterations() {
    let Some(world) = World::open() else { return };
    let before = pinned_kilobytes();
    let mut most = 0;
    for round in 0..10_000_u64 {
        let len = (1 + round % 16) * PAGE;
        let at = must(libc::SYS_mmap, [0, len, READ_WRITE, ANONYMOUS as u64, u64::MAX, 0]);
        store(at, &round.to_ne_bytes());
        assert_eq!(world.send(at, len)[..8], round.to_ne_bytes(), "round {round}");
        unmap(at, len);
        if round % 100 == 99 {
            most = most.max(pinned_kilobytes() - before);
        }
    }
    let stats = world.cache.stats();
    // A fence of all threads is executed for each 64 removed registrations. All registrations together would pin
    // 340,000 kB.
    assert!(most <= 66 * 64, "up to {most} kB were pinned, of buffers of at most 64: {stats:?}");
    assert!(stats.misses >= 9_900, "each buffer was registered and kept: {stats:?}");
    world.cache.sweep();
    assert_eq!((pinned_kilobytes(), world.oracle.registered()), (before, 0));
}

/// Sends from blocks of all sizes that the allocator allocates, frees and allocates again. Returns the number of
/// addresses that were returned twice.
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
            // For the largest blocks only the end is sent, which an allocator trims first.
            let (from, part) = if len > 1 << 20 { (at + len - (256 << 10), 256 << 10) } else { (at, len) };
            world.transfers(from, part, seed);
            // SAFETY: allocated with this layout.
            unsafe { dealloc(block, layout) };
            if round % 3 == 0 {
                // SAFETY: the C library may return any of its memory.
                unsafe { libc::malloc_trim(0) };
            }
        }
    }
    again
}

/// Requirements: MON-025, MON-030, MON-056, RCACHE-024.
#[test]
fn reused_allocator_memory_is_registered_again() {
    let Some(world) = World::open() else { return };
    let again = allocate_and_send(&world);
    assert!(again > 50, "addresses were reused {again} times");
    assert!(world.cache.stats().invalidations > 0, "memory was released: {:?}", world.cache.stats());
}

/// Requirements: MON-015, MON-025.
#[test]
fn break_lowered_by_the_allocator_renews_the_registration() {
    // The C library's part of the heap must neither grow nor shrink during the test, because the test changes its end.
    // So it is large from the beginning, and the test runs in a separate process, where no thread of another test uses
    // it.
    let tunables = "glibc.malloc.top_pad=67108864:glibc.malloc.trim_threshold=1073741824";
    println!("{}", in_child("allocators::lowered_break_process", &[("GLIBC_TUNABLES", tunables)]));
}

#[test]
#[ignore = "started by another test, with a heap that stays as it is"]
fn lowered_break_process() {
    let Some(world) = World::open() else { return };
    let now = must(libc::SYS_brk, [0; 6]);
    let start = now.next_multiple_of(PAGE);
    let set = |to: u64| assert_eq!(must(libc::SYS_brk, [to, 0, 0, 0, 0, 0]), to);
    // Moves the break above the C library's part of the heap, and back before the C library can detect it.
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

/// Requirements: MON-026.
#[test]
fn realloc_by_mremap_renews_the_registration() {
    let Some(world) = World::open() else { return };
    // Otherwise earlier frees determine whether blocks of this size have separate mappings. SAFETY: the call only
    // changes the source of the allocator's memory.
    assert_eq!(unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10) }, 1);
    let layout = |pages: u64| Layout::from_size_align((pages * PAGE) as usize, 16).expect("a layout");
    // SAFETY: the layout has a size.
    let mut block = unsafe { alloc(layout(1024)) };
    let (mut len, mut moved) = (1024, 0);
    for _ in 0..12 {
        let at = block.expose_provenance() as u64;
        world.transfers(at, len * PAGE, 3);
        // The memory that follows is mapped, so that the block cannot grow in place.
        let next = (at + len * PAGE).next_multiple_of(PAGE);
        let flags = (ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
        let taken = call(libc::SYS_mmap, [next, PAGE, 0, flags, u64::MAX, 0]);
        // SAFETY: allocated with this layout.
        block = unsafe { realloc(block, layout(len), ((len + 512) * PAGE) as usize) };
        let now = block.expose_provenance() as u64;
        moved += u32::from(now != at);
        assert!(world.send(now, len * PAGE) == pattern(len * PAGE, 3 ^ 0x55), "the contents moved with the block");
        if now != at {
            // Other memory is mapped at the old address.
            let flags = (ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
            let old = at.next_multiple_of(PAGE);
            if call(libc::SYS_mmap, [old, 16 * PAGE, READ_WRITE, flags, u64::MAX, 0]).is_ok() {
                world.transfers(old, 16 * PAGE, 4);
                unmap(old, 16 * PAGE);
            }
        }
        taken.into_iter().for_each(|page| unmap(page, PAGE));
        len += 512;
    }
    // SAFETY: as above.
    unsafe { dealloc(block, layout(len)) };
    assert!(moved > 0, "the block never moved");
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
    println!("{library}: {again} addresses reused, {:?}", world.cache.stats());
    assert!(again > 0);
}

/// Requirements: MON-027.
#[test]
fn other_allocators_work_with_the_cache() {
    let mut tried = 0;
    for name in ["libjemalloc.so.2", "libmimalloc.so.2", "libtcmalloc_minimal.so.4"] {
        let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
        let found = places.iter().map(|place| Path::new(place).join(name)).find(|path| path.exists());
        let Some(library) = found else {
            eprintln!("not tried: {name} is not installed");
            continue;
        };
        let library = library.to_str().expect("a path").to_owned();
        // Allocators return memory at once, if they can be configured to do so.
        let at_once = [("MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0"), ("MIMALLOC_RESET_DELAY", "0")];
        println!("{}", in_child("allocators::allocator_process", &[("LD_PRELOAD", &library), at_once[0], at_once[1]]));
        tried += 1;
    }
    if tried == 0 {
        println!("skipped (allocators): no other allocator is installed");
    }
    println!("{tried} allocators");
}

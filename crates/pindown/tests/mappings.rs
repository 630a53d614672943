//! The number of a process's mappings (vm.max_map_count) that the cache uses.

#![cfg(not(loom))]
#![expect(unsafe_code, reason = "maps memory and touches its own pages; each block states its own reason")]

use std::io;

use pindown::monitor::Choice;
use pindown::monitor::userfaultfd::{Settings, Unseen};
use pindown::{Access, Cache, Pinned, Range, Registrar, page_size};
use rustix::mm::{MapFlags, ProtFlags, mlock, mmap_anonymous, munlock};

struct Device;

impl Registrar for Device {
    type Pin = ();

    fn pin(&self, _range: Range, _access: Access) -> io::Result<Pinned<()>> {
        Ok(Pinned { pin: (), local_key: 0, remote_key: 0 })
    }

    fn unpin(&self, (): ()) {}
}

fn maps() -> String {
    std::fs::read_to_string("/proc/self/maps").unwrap()
}

/// Returns whether the page at this address is in locked memory, according to the flags in smaps.
fn is_locked(address: usize) -> bool {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in smaps.lines() {
        if let Some((start, end)) = line.split_once(' ').and_then(|(range, _)| range.split_once('-'))
            && let (Ok(start), Ok(end)) = (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16))
        {
            inside = (start..end).contains(&address);
        } else if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
            return flags.split_whitespace().any(|flag| flag == "lo");
        }
    }
    false
}

/// Requirements: MON-012.
#[test]
fn locked_memory_uses_few_mappings_and_releases_them() {
    const PAGES: usize = 20_000;
    let page = page_size() as usize;
    let choice = Choice::Userfaultfd(Settings::new(Unseen::GuardsRefused));
    let cache = match Cache::builder(Device).max_count(8192).monitor(choice).open() {
        Ok(cache) => cache,
        Err(why) => return println!("skipped (userfaultfd): {why}"),
    };
    let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), 2 * PAGES * page, rights, flags) }.unwrap().cast::<u8>();
    // The program itself locks the last page.
    let own = start.wrapping_add(2 * (PAGES - 1) * page);
    // SAFETY: a page of the mapping.
    unsafe { mlock(own.cast(), page) }.unwrap();
    let lane = cache.lane();
    let before = maps().lines().count();
    let get = |number: usize| {
        let at = start.wrapping_add(2 * number * page);
        // SAFETY: a page of the mapping.
        unsafe { at.write_volatile(1) };
        let used = lane.get(Range::new(at.addr() as u64, page as u64).unwrap(), Access::empty()).unwrap();
        lane.end(used);
    };
    (0..PAGES).for_each(get);
    get(PAGES - 1);
    let after = maps().lines().count();
    let limit: usize = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
    println!("{before} mappings before, {after} after {PAGES} pages, {limit} allowed; {:?}", cache.stats());
    assert!(cache.stats().entries > 0, "nothing was kept, so nothing was shown");
    assert!(after - before < limit / 4, "{before} mappings before, {after} after");
    assert!(is_locked(own.addr()));
    cache.flush();
    cache.sweep();
    let flushed = maps().lines().count();
    assert!(flushed <= before + 8, "{before} mappings before, {flushed} after the flush");
    assert!(is_locked(own.addr()), "the program's own lock is gone");
    // SAFETY: a page of the mapping.
    unsafe { munlock(own.cast(), page) }.unwrap();
    (0..100).for_each(get);
    assert!(is_locked(start.addr()), "kept registrations are locked");
    drop((lane, cache));
    let closed = maps().lines().count();
    assert!(closed <= before + 8, "{before} mappings before, {closed} after the cache was closed");
    assert!(!is_locked(start.addr()));
}

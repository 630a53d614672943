//! Tests of the monitor's reports, with real changes of memory. Tests that compare with the kernel's io_uring pins are
//! in tests/.
//!
//! If userfaultfd is forbidden or too old, every test prints that it is skipped, with the reason.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::MutexGuard;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

use super::*;
use crate::journal::{Drained, Journal};
use crate::monitor::Choice;
use crate::{Cache, Lane, Pinned, Registrar, Stats};

/// A registrar that counts.
#[derive(Debug, Default)]
struct Counting {
    pinned: AtomicU64,
}

impl Registrar for Counting {
    type Pin = ();

    fn pin(&self, _range: Range, _access: Access) -> io::Result<Pinned<()>> {
        let key = self.pinned.fetch_add(1, Ordering::Relaxed);
        Ok(Pinned { pin: (), local_key: key, remote_key: 0 })
    }

    fn unpin(&self, _pin: ()) {}
}

/// Both modes.
const BOTH: [Settings; 2] = [Settings::new(Unseen::NeverMade), Settings::new(Unseen::NeverMade).plain()];

/// Runs one test at a time, because changes of one test's memory would delay the registrations of another.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cache(settings: impl Into<Settings>) -> Option<Cache<Counting>> {
    match Cache::builder(Counting::default()).monitor(Choice::Userfaultfd(settings.into())).open() {
        Ok(cache) => Some(cache),
        Err(error) => {
            println!("skipped (userfaultfd): {error}");
            None
        }
    }
}

fn key(lane: &Lane<Counting>, range: Range) -> (u64, bool) {
    let used = lane.get(range, Access::LOCAL_WRITE).expect("registered");
    let found = (used.local_key(), used.is_single());
    lane.end(used);
    found
}

/// A number of pages of anonymous memory.
struct Pages(*mut libc::c_void, usize);

impl Pages {
    fn map(pages: usize) -> Self {
        Self::map_at(std::ptr::null_mut(), pages).expect("memory")
    }

    /// Maps pages at an address. Returns `None` if another thread has mapped memory there in the meantime.
    fn map_at(at: *mut libc::c_void, pages: usize) -> Option<Self> {
        let len = pages * page_size() as usize;
        let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED_NOREPLACE };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
        // SAFETY: the mapping replaces no other.
        let at = unsafe { libc::mmap(at, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        (at != libc::MAP_FAILED).then_some(Self(at, len))
    }

    /// Registers pages that are kept, and returns them with their key. Avoids addresses at which another test has
    /// dropped pages.
    fn kept(lane: &Lane<Counting>, pages: usize) -> (Self, u64) {
        let mut passed = Vec::new();
        let found = loop {
            let pages = Self::map(pages);
            match key(lane, pages.range()) {
                (kept, false) => break (pages, kept),
                _ => passed.push(pages),
            }
            assert!(passed.len() < 100, "nothing is kept");
        };
        passed.iter().for_each(Self::unmap);
        found
    }

    fn range(&self) -> Range {
        Range::new(self.0.addr() as u64, self.1 as u64).expect("a range")
    }

    fn unmap(&self) {
        // SAFETY: no code uses the memory.
        assert_eq!(unsafe { libc::munmap(self.0, self.1) }, 0);
    }
}

/// Requirements: MON-001, MON-013.
#[test]
fn remapped_memory_is_registered_again() {
    let _alone = alone();
    for settings in BOTH {
        let Some(cache) = cache(settings) else { continue };
        let lane = cache.lane();
        // The pages are not at addresses at which another test's thread has dropped pages, because such memory is
        // registered for each use.
        let (mut pages, kept) = Pages::kept(&lane, 4);
        let mut last = (kept, false);
        let before = cache.stats();
        assert_eq!(key(&lane, pages.range()), last);
        let mut rounds = 0;
        for _ in 0..500 {
            pages.unmap();
            match Pages::map_at(pages.0, 4) {
                Some(_) => rounds += 1,
                None => pages = Pages::map(4),
            }
            let again = key(&lane, pages.range());
            assert!(again.0 > last.0, "new memory gets a new registration");
            last = again;
        }
        assert!(rounds >= 100, "the same address was reused only {rounds} times");
        let after = cache.stats();
        let registered = |stats: &Stats| stats.misses + stats.single_uses.iter().sum::<u64>();
        let hits = |stats: &Stats| stats.hits + stats.slow_hits;
        let counted = (hits(&after) - hits(&before), registered(&after) - registered(&before));
        assert_eq!(counted, (1, 500), "{before:?}, {after:?}");
        pages.unmap();
    }
}

/// Requirements: MON-009, MON-010.
#[test]
fn moved_memory_is_invalidated_and_the_rest_is_kept() {
    let _alone = alone();
    for settings in BOTH {
        let Some(cache) = cache(settings) else { continue };
        let lane = cache.lane();
        let (pages, _) = Pages::kept(&lane, 8);
        cache.flush();
        let page = page_size();
        let part =
            |first: u64, count: u64| Range::new(pages.range().start() + first * page, count * page).expect("a range");
        let (head, tail) = (key(&lane, part(0, 2)), key(&lane, part(6, 2)));
        // SAFETY: shrinks memory that no code uses.
        let shrunk = unsafe { libc::mremap(pages.0, pages.1, 4 * page as usize, 0) };
        assert_eq!(shrunk, pages.0);
        assert_eq!(key(&lane, part(0, 2)), head);
        // SAFETY: moves memory that no code uses.
        let moved = unsafe { libc::mremap(pages.0, 4 * page as usize, 64 * page as usize, libc::MREMAP_MAYMOVE) };
        assert_ne!(moved, libc::MAP_FAILED);
        let moved = Pages(moved, 64 * page as usize);
        let (at_new, single) = key(&lane, Range::new(moved.range().start(), 2 * page).expect("a range"));
        assert!(!single && at_new != head.0 && at_new != tail.0);
        moved.unmap();
    }
}

/// Requirements: MON-012.
#[test]
fn dropped_pages_are_not_kept_afterwards() {
    let _alone = alone();
    for settings in BOTH {
        let Some(cache) = cache(settings) else { continue };
        let lane = cache.lane();
        let (pages, first) = Pages::kept(&lane, 4);
        // SAFETY: drops the contents of memory that no code uses.
        assert_eq!(unsafe { libc::madvise(pages.0, pages.1, libc::MADV_DONTNEED) }, 0);
        let (second, single) = key(&lane, pages.range());
        assert!(single && second != first, "the time at which the pages are removed is unknown");
        pages.unmap();
    }
}

#[test]
fn unwatchable_memory_is_not_kept() {
    let _alone = alone();
    for settings in BOTH {
        let Some(cache) = cache(settings) else { continue };
        let lane = cache.lane();
        let map = |len: usize, flags: libc::c_int, file: RawFd| {
            // SAFETY: the mapping replaces no other.
            let start =
                unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, file, 0) };
            (start != libc::MAP_FAILED).then_some(Pages(start, len))
        };
        let page = page_size() as usize;
        let file = rustix::fs::memfd_create("pindown-test", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
        rustix::fs::ftruncate(&file, page_size()).expect("memory");
        let shared = map(page, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1).expect("memory");
        let of_file = map(page, libc::MAP_PRIVATE, file.as_raw_fd()).expect("memory");
        assert!(key(&lane, shared.range()).1);
        assert!(key(&lane, of_file.range()).1, "a private mapping of a file, which can be truncated");
        assert!(key(&lane, Range::of(include_bytes!("mod.rs")).expect("a range")).1, "a file");
        assert_eq!(cache.stats().single_uses_for(Refusal::NotWatchable), 3);
        // Without a reservation, the mapping succeeds although there are no huge pages.
        let huge = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_NORESERVE;
        match map(2 << 20, huge | libc::MAP_HUGE_2MB, -1) {
            Some(huge) => {
                assert!(key(&lane, huge.range()).1, "huge pages");
                huge.unmap();
            }
            None => println!("skipped (huge pages): {}", io::Error::last_os_error()),
        }
        [shared, of_file].iter().for_each(Pages::unmap);
    }
}

#[test]
fn without_a_promise_only_sealed_memory_is_kept() {
    let _alone = alone();
    let Some(cache) = cache(Unseen::Possible) else { return };
    let lane = cache.lane();
    let pages = Pages::map(1);
    assert!(key(&lane, pages.range()).1);
    if let Ok(sealed) = crate::monitor::sealed::Sealed::new(100) {
        let first = key(&lane, sealed.range());
        assert!(!first.1);
        assert_eq!(key(&lane, sealed.range()), first);
    }
    pages.unmap();
}

/// Changes the rights of pages that no code uses.
fn protect(range: Range, rights: libc::c_int) {
    let start = std::ptr::without_provenance_mut(range.start() as usize);
    // SAFETY: no code reads or writes the memory.
    assert_eq!(unsafe { libc::mprotect(start, range.len() as usize, rights) }, 0);
}

/// Requirements: MON-014.
#[test]
fn lost_right_is_detected_by_checking_hits() {
    let _alone = alone();
    for settings in BOTH.map(Settings::check_rights) {
        let Some(cache) = cache(settings) else { continue };
        let lane = cache.lane();
        let (pages, whole) = Pages::kept(&lane, 6);
        cache.flush();
        let part = |first: u64, count: u64| {
            Range::new(pages.range().start() + first * page_size(), count * page_size()).expect("a range")
        };
        let [head, tail] = [part(0, 3), part(3, 3)].map(|range| {
            let (kept, single) = key(&lane, range);
            assert!(!single && kept != whole);
            assert_eq!(key(&lane, range), (kept, false), "kept while the access rights exist");
            kept
        });
        protect(part(1, 1), libc::PROT_READ);
        // Reading would still be allowed, but no registration for writing can be made for the memory.
        let used = lane.get(part(0, 1), Access::empty()).expect("registered");
        assert_ne!(used.local_key(), head, "a page of the registration is read-only");
        lane.end(used);
        let other = [key(&lane, part(1, 1)).0, key(&lane, part(1, 1)).0];
        assert!(
            other[0] > head && other[1] > other[0],
            "a registration of read-only memory must not be a hit for writes"
        );
        assert_eq!(key(&lane, part(3, 3)), (tail, false), "the adjacent registration is kept");
        protect(part(1, 1), libc::PROT_READ | libc::PROT_WRITE);
        assert_ne!(key(&lane, part(0, 3)).0, head, "a dropped registration is not returned again");
        protect(part(5, 1), libc::PROT_NONE);
        assert_ne!(key(&lane, part(4, 1)).0, tail, "a change of any page drops the registration");
        pages.unmap();
    }
}

/// Requirements: MON-014.
#[test]
fn read_only_remap_is_not_written_through_old_registration() {
    let _alone = alone();
    for settings in BOTH.into_iter().chain(BOTH.map(Settings::check_rights)) {
        let Some(cache) = cache(settings) else { continue };
        let lane = cache.lane();
        let (pages, kept) = Pages::kept(&lane, 2);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the mapping replaces memory of this test, which no code uses.
        let again = unsafe { libc::mmap(pages.0, pages.1, libc::PROT_READ, flags, -1, 0) };
        assert_eq!(again, pages.0);
        let (other, single) = key(&lane, pages.range());
        assert!(single && other != kept);
        pages.unmap();
    }
}

/// Requirements: RCACHE-011.
#[test]
fn plain_userfaultfd_is_named_and_keeps_registrations() {
    let _alone = alone();
    for (settings, name) in BOTH.into_iter().zip(["userfaultfd", "userfaultfd-plain"]) {
        let Some(cache) = cache(settings) else { continue };
        // On a kernel without the newer mode the older one is used.
        assert!(cache.monitor() == name || cache.monitor() == "userfaultfd-plain", "{}", cache.monitor());
        let (lane, other) = (cache.lane(), cache.lane());
        let (pages, kept) = Pages::kept(&lane, 4);
        assert_eq!(key(&other, pages.range()), (kept, false));
        pages.unmap();
    }
}

/// Marks pages so that a write to them faults, as PAGEMAP_SCAN can.
fn write_protect(shared: &Shared, range: Range) {
    let argument = [range.start(), range.len(), 1_u64];
    let opcode = rustix::ioctl::opcode::read_write::<[u64; 3]>(0xAA, 6);
    let fd = shared.uffd.as_fd().as_raw_fd();
    // SAFETY: UFFDIO_WRITEPROTECT takes a range and a mode; the pages belong to this test.
    while unsafe { libc::ioctl(fd, opcode as libc::c_ulong, &raw const argument) } != 0 {
        // The call is refused while the report of another change is being read.
        let error = io::Error::last_os_error();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
        std::thread::yield_now();
    }
}

/// Requirements: MON-031.
#[test]
fn foreign_write_protection_is_removed_on_fault() {
    let _alone = alone();
    for settings in BOTH {
        let monitor = match UserfaultfdMonitor::open(settings) {
            Ok(monitor) => monitor,
            Err(why) => return println!("skipped (userfaultfd): {why}"),
        };
        let pages = Pages::map(3);
        let range = pages.range();
        // SAFETY: the pages belong to this test.
        unsafe { std::ptr::write_bytes(pages.0.cast::<u8>(), 1, pages.1) };
        monitor.shared.watch(range).expect("memory that can be watched");
        write_protect(monitor.shared, range);
        let (written, wait) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let start = std::ptr::without_provenance_mut::<u8>(range.start() as usize + 1);
            for page in 0..3 {
                // SAFETY: within the pages, which only this thread uses now.
                unsafe { start.wrapping_add(page * page_size() as usize).write_volatile(2) };
            }
            written.send(()).ok();
        });
        wait.recv_timeout(std::time::Duration::from_secs(20)).expect("the writes do not block");
        // SAFETY: within the pages, which other code no longer uses.
        assert_eq!(unsafe { pages.0.cast::<u8>().wrapping_add(1).read() }, 2);
        pages.unmap();
    }
}

/// Returns the result of madvise(2): 0, or an errno.
fn advise(range: Range, advice: libc::c_int) -> i32 {
    let start = std::ptr::without_provenance_mut(range.start() as usize);
    // SAFETY: no code uses the memory, or it is locked, so that the advice is rejected.
    match unsafe { libc::madvise(start, range.len() as usize, advice) } {
        0 => 0,
        _ => io::Error::last_os_error().raw_os_error().unwrap_or(0),
    }
}

/// Requirements: MON-012.
#[test]
fn guard_pages_are_refused_where_memory_is_locked() {
    const MADV_GUARD_INSTALL: libc::c_int = 102;
    let _alone = alone();
    for settings in [Settings::new(Unseen::GuardsRefused), Settings::new(Unseen::GuardsRefused).plain()] {
        let Some(cache) = cache(settings) else { continue };
        let lane = cache.lane();
        let (pages, kept) = Pages::kept(&lane, 4);
        for advice in [MADV_GUARD_INSTALL, libc::MADV_DONTNEED, libc::MADV_FREE] {
            assert_eq!(advise(pages.range(), advice), libc::EINVAL, "advice {advice}");
        }
        assert_eq!(key(&lane, pages.range()), (kept, false));
        // Unmapping is reported as always.
        pages.unmap();
        let Some(again) = Pages::map_at(pages.0, 4) else { continue };
        let (other, single) = key(&lane, again.range());
        assert!(!single && other != kept, "a new mapping is registered again: {other}, {kept}, {single}");
        assert_eq!(advise(again.range(), MADV_GUARD_INSTALL), libc::EINVAL);
        // SAFETY: the memory belongs to this test.
        assert_eq!(unsafe { libc::mremap(again.0, again.1, again.1 / 2, 0) }, again.0);
        let first = Range::new(again.range().start(), page_size()).expect("a range");
        assert_ne!(key(&lane, first).0, kept);
        assert_eq!(advise(first, libc::MADV_DONTNEED_LOCKED), 0);
        Pages(again.0, again.1 / 2).unmap();
    }
}

/// Maps pages at addresses that the kernel does not choose itself, so no other thread maps memory next to them or in
/// their gaps. Returns `None`, with a message, if the state of locks cannot be queried here.
fn apart(pages: usize) -> Option<Pages> {
    apart_at(0x5757 << 32, pages)
}

/// Like [`apart`], at this address. For tests that drop pages: the monitor keeps no memory there afterwards.
fn apart_at(start: usize, pages: usize) -> Option<Pages> {
    let pages = Pages::map_at(std::ptr::without_provenance_mut(start), pages).expect("free addresses");
    if sys::is_locked(pages.range()) {
        println!("skipped (unlocked memory): the kernel has no MADV_COLD, or locks all memory of the process");
        pages.unmap();
        return None;
    }
    Some(pages)
}

impl Pages {
    /// Returns one of the pages.
    fn page(&self, number: u64) -> Range {
        Range::new(self.range().start() + number * page_size(), page_size()).expect("a range")
    }

    /// Returns whether each of the pages is locked.
    fn locked<const N: usize>(&self) -> [bool; N] {
        std::array::from_fn(|number| sys::is_locked(self.page(number as u64)))
    }
}

/// Pages that were dropped are recorded only if they were not locked at that time.
#[test]
fn memory_that_is_not_kept_because_pages_were_dropped_is_not_locked() {
    let _alone = alone();
    for plain in [false, true] {
        let of = |unseen| if plain { Settings::new(unseen).plain() } else { Settings::new(unseen) };
        let [Some(promised), Some(locking)] =
            [Unseen::NeverMade, Unseen::GuardsRefused].map(|unseen| cache(of(unseen)))
        else {
            continue;
        };
        let Some(pages) = apart_at(0x5758 << 32, 4) else { return };
        key(&promised.lane(), pages.range());
        assert_eq!(advise(pages.page(1), libc::MADV_DONTNEED), 0);
        let lane = locking.lane();
        assert!(key(&lane, pages.range()).1, "the time at which the pages are removed is unknown");
        assert_eq!(pages.locked(), [false; 4], "pages without a registration are locked");
        pages.unmap();
    }
}

/// The number of times that a mapping is replaced during its watch.
const ROUNDS: u64 = 10;

/// The number of mappings in the watched range.
const PIECES: usize = 4096;

/// Maps private memory with these rights over the range, which no code uses.
fn map_over(range: Range, rights: libc::c_int) {
    let start = std::ptr::without_provenance_mut(range.start() as usize);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the mapping replaces memory of the test, which no code uses.
    assert_eq!(unsafe { libc::mmap(start, range.len() as usize, rights, flags, -1, 0) }, start);
}

fn wait_for(word: &AtomicU64, value: u64) {
    for look in 0_u64.. {
        if word.load(Ordering::Acquire) == value {
            return;
        }
        if look < 1000 { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
}

/// Waits until the monitor has read all changes. Returns whether one of the range was reported since the last call.
fn is_reported(journal: &Journal, range: Range) -> bool {
    let mut is_found = false;
    let mut note = |change| {
        is_found |= match change {
            ChangedAddresses::Of(changed) => changed.overlaps(range),
            ChangedAddresses::Everything => true,
        };
    };
    while journal.drain(&mut note) != Drained::Settled {
        std::thread::yield_now();
    }
    is_found
}

/// A thread replaces a mapping by one that is not kept, at different moments of the watch. The watch finds the new
/// mapping and fails, or the change is reported.
#[test]
fn a_mapping_that_is_replaced_during_its_watch_is_found_or_reported() {
    let _alone = alone();
    for settings in BOTH {
        let monitor = match UserfaultfdMonitor::open(settings) {
            Ok(monitor) => monitor,
            Err(why) => return println!("skipped (userfaultfd): {why}"),
        };
        let shared = monitor.shared;
        let journal = Journal::new(Some(shared.page), true, Some(shared.uffd.as_fd())).expect("memory");
        let start = std::ptr::without_provenance_mut(0x5759 << 32);
        let pages = Pages::map_at(start, PIECES).expect("free addresses");
        // Each page is a mapping of its own, so some milliseconds pass between the query of one and its registration.
        (1..PIECES as u64).step_by(2).for_each(|number| assert_eq!(advise(pages.page(number), libc::MADV_DONTDUMP), 0));
        let (all, first) = (pages.range(), pages.page(0));
        let (begun, replaced) = (AtomicU64::new(0), AtomicU64::new(0));
        let mut missed = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    wait_for(&begun, round);
                    (0..round * 1000).for_each(|_| std::hint::spin_loop());
                    map_over(first, libc::PROT_READ);
                    replaced.store(round, Ordering::Release);
                }
            });
            for round in 1..=ROUNDS {
                begun.store(round, Ordering::Release);
                let watched = shared.watch(all);
                wait_for(&replaced, round);
                let reported = is_reported(&journal, first);
                missed += u32::from(watched.is_ok() && !reported);
                map_over(first, libc::PROT_READ | libc::PROT_WRITE);
                is_reported(&journal, first);
            }
        });
        assert_eq!(missed, 0, "of {ROUNDS} mappings that were replaced, these are kept and their end is not reported");
        pages.unmap();
    }
}

#[test]
fn a_failed_lock_leaves_no_page_locked() {
    let _alone = alone();
    let Some(pages) = apart(4) else { return };
    let mappings = Mappings::open().expect("/proc");
    Pages(std::ptr::without_provenance_mut(pages.page(2).start() as usize), page_size() as usize).unmap();
    // mlock2(2) locks the pages before it finds the gap.
    assert_eq!(Locked::new().add(pages.range(), &mappings), Err(rustix::io::Errno::NOMEM));
    assert_eq!(pages.locked(), [false, false], "a page without a registration is locked");
    sys::lock(pages.page(0)).expect("a page may be locked");
    assert_eq!(Locked::new().add(pages.range(), &mappings), Err(rustix::io::Errno::NOMEM));
    assert_eq!(pages.locked(), [true, false], "only the lock of the program remains");
    pages.unmap();
}

#[test]
fn locks_beside_a_lock_of_the_program_end_with_the_registration() {
    let _alone = alone();
    for mappings in [Mappings::open(), Mappings::open_to_read()].map(|mappings| mappings.expect("/proc")) {
        let Some(pages) = apart(4) else { return };
        sys::lock(pages.page(1)).expect("a page may be locked");
        let locked = Locked::new();
        locked.add(pages.range(), &mappings).expect("pages may be locked");
        assert_eq!(pages.locked(), [true; 4]);
        locked.remove(pages.range());
        assert_eq!(pages.locked(), [false, true, false, false], "only the lock of the program remains");
        pages.unmap();
    }
}

#[test]
fn a_mapping_that_replaces_memory_locked_by_the_program_is_unlocked() {
    let _alone = alone();
    let Some(pages) = apart(2) else { return };
    let mappings = Mappings::open().expect("/proc");
    sys::lock(pages.range()).expect("pages may be locked");
    let locked = Locked::new();
    locked.add(pages.range(), &mappings).expect("pages may be locked");
    pages.unmap();
    let again = apart(2).expect("not locked");
    locked.add(again.page(0), &mappings).expect("a page may be locked");
    assert_eq!(again.locked(), [true, false]);
    // Both registrations end, the first one late.
    locked.remove(again.page(0));
    locked.remove(again.range());
    assert_eq!(again.locked(), [false, false], "a page without a registration is locked");
    again.unmap();
}

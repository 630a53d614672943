//! Real changes of real memory, with the kernel's io_uring pins as the judge in tests/; here what is reported.
//!
//! Every test prints why it shows nothing where userfaultfd is forbidden or too old.

use std::sync::atomic::AtomicU64;

use super::*;
use crate::monitor::Choice;
use crate::{Cache, Lane, Pinned, Registrar};

/// Counts.
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

fn cache(unseen: Unseen) -> Option<Cache<Counting>> {
    match Cache::builder(Counting::default()).monitor(Choice::Userfaultfd(unseen)).open() {
        Ok(cache) => Some(cache),
        Err(error) => {
            println!("skipped: {error}");
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

/// Pages of anonymous memory.
struct Pages(*mut libc::c_void, usize);

impl Pages {
    fn map(pages: usize) -> Self {
        Self::map_at(std::ptr::null_mut(), pages).expect("memory")
    }

    /// `None` if another thread has mapped something there meanwhile.
    fn map_at(at: *mut libc::c_void, pages: usize) -> Option<Self> {
        let len = pages * page_size() as usize;
        let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED_NOREPLACE };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
        // SAFETY: a mapping where nothing is.
        let at = unsafe { libc::mmap(at, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        (at != libc::MAP_FAILED).then_some(Self(at, len))
    }

    fn range(&self) -> Range {
        Range::new(self.0.addr() as u64, self.1 as u64).expect("a range")
    }

    fn unmap(&self) {
        // SAFETY: nobody uses the memory.
        assert_eq!(unsafe { libc::munmap(self.0, self.1) }, 0);
    }
}

#[test]
fn mon_001_mon_013_unmapped_and_mapped_again_is_registered_again() {
    let Some(cache) = cache(Unseen::NeverMade) else { return };
    let lane = cache.lane();
    let mut pages = Pages::map(4);
    let mut last = key(&lane, pages.range());
    assert_eq!(key(&lane, pages.range()), last);
    assert!(!last.1);
    let mut rounds = 0;
    for _ in 0..500 {
        pages.unmap();
        match Pages::map_at(pages.0, 4) {
            Some(_) => rounds += 1,
            None => pages = Pages::map(4),
        }
        let again = key(&lane, pages.range());
        assert!(again.0 > last.0, "the memory is another");
        last = again;
    }
    assert!(rounds >= 100, "the same address came again {rounds} times only");
    // Kept, but at addresses whose pages another test's thread has dropped.
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses + stats.single_uses.iter().sum::<u64>()), (1, 501), "{stats:?}");
    assert!(stats.misses > 0, "{stats:?}");
    pages.unmap();
}

#[test]
fn mon_009_mon_010_what_moves_is_invalidated_and_the_rest_stays() {
    let Some(cache) = cache(Unseen::NeverMade) else { return };
    let lane = cache.lane();
    let pages = Pages::map(8);
    let page = page_size();
    let part =
        |first: u64, count: u64| Range::new(pages.range().start() + first * page, count * page).expect("a range");
    let (head, tail) = (key(&lane, part(0, 2)), key(&lane, part(6, 2)));
    // SAFETY: shrinks memory that nobody uses.
    let shrunk = unsafe { libc::mremap(pages.0, pages.1, 4 * page as usize, 0) };
    assert_eq!(shrunk, pages.0);
    assert_eq!(key(&lane, part(0, 2)), head);
    // SAFETY: moves memory that nobody uses.
    let moved = unsafe { libc::mremap(pages.0, 4 * page as usize, 64 * page as usize, libc::MREMAP_MAYMOVE) };
    assert_ne!(moved, libc::MAP_FAILED);
    let moved = Pages(moved, 64 * page as usize);
    let (at_new, single) = key(&lane, Range::new(moved.range().start(), 2 * page).expect("a range"));
    assert!(!single && at_new != head.0 && at_new != tail.0);
    moved.unmap();
}

#[test]
fn mon_012_dropped_pages_are_used_once_from_then_on() {
    let Some(cache) = cache(Unseen::NeverMade) else { return };
    let lane = cache.lane();
    let pages = Pages::map(4);
    let (first, single) = key(&lane, pages.range());
    assert!(!single);
    // SAFETY: drops the contents of memory that nobody uses.
    assert_eq!(unsafe { libc::madvise(pages.0, pages.1, libc::MADV_DONTNEED) }, 0);
    let (second, single) = key(&lane, pages.range());
    assert!(single && second != first, "when the pages are gone for good cannot be known");
    pages.unmap();
}

#[test]
fn what_it_cannot_watch_is_not_kept() {
    let Some(cache) = cache(Unseen::NeverMade) else { return };
    let lane = cache.lane();
    // SAFETY: a shared mapping where nothing is.
    let shared = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            page_size() as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    let shared = Pages(shared, page_size() as usize);
    assert!(key(&lane, shared.range()).1);
    assert!(key(&lane, Range::of(include_bytes!("mod.rs")).expect("a range")).1, "a file");
    assert!(cache.stats().single_uses_for(Refusal::NotWatchable) == 2);
    shared.unmap();
}

#[test]
fn without_a_promise_only_sealed_memory_is_kept() {
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

//! The cache with a registrar that counts, and a monitor that reports the changes that the test requests.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;
mod fences;
mod handles;
mod held;
mod lost_changes;
mod merging;
mod registrars;
mod watches;
use crate::Pinned;
use crate::journal::{ChangedAddresses, JournalPage};
use crate::monitor::imported::Notifier;
use crate::monitor::{Choice, Refusal};
use crate::range::page_size;

/// A model of memory: every page has a generation, and a pin records the generations of its pages.
#[derive(Debug, Default)]
pub(super) struct ModelMemory {
    generations: Mutex<HashMap<u64, u64>>,
    pins: Mutex<HashMap<u64, (Range, u64)>>,
    next: AtomicU64,
    /// The maximum number of pins at a time.
    limit: Option<usize>,
    pub(super) pinned: AtomicU64,
    /// The number of bytes pinned so far; bytes that are pinned again count again.
    registered: AtomicU64,
    pub(super) unpinned: AtomicU64,
}

impl ModelMemory {
    fn generation(&self, range: Range) -> u64 {
        let generations = self.generations.lock().expect("no panic");
        // Few pages are ever changed, and ranges may be large.
        let pages = (range.start()..range.end()).step_by(page_size() as usize);
        if (generations.len() as u64) < range.len() / page_size() {
            let there = |page: &u64| *page >= range.start() && *page < range.end();
            return generations.iter().filter(|(page, _)| there(page)).map(|(_, generation)| generation).sum();
        }
        pages.map(|page| generations.get(&page).copied().unwrap_or(0)).sum()
    }

    /// Assigns new generations to the pages of the range.
    fn change(&self, range: Range) {
        let mut generations = self.generations.lock().expect("no panic");
        for page in (range.pages().start()..range.pages().end()).step_by(page_size() as usize) {
            *generations.entry(page).or_default() += 1;
        }
    }

    /// Returns whether the pinned pages are those that are mapped at the address now.
    fn is_current(&self, local_key: u64) -> bool {
        let (range, generation) = self.pins.lock().expect("no panic")[&local_key];
        self.generation(range) == generation
    }
}

/// Ends the process unless `holds`: the cache catches panics of registrars.
fn must(holds: bool, what: &str) {
    if !holds {
        eprintln!("{what}");
        std::process::abort();
    }
}

impl Registrar for Arc<ModelMemory> {
    type Pin = u64;

    fn pin(&self, range: Range, _access: Access) -> io::Result<Pinned<u64>> {
        let mut pins = self.pins.lock().expect("no panic");
        if self.limit.is_some_and(|limit| pins.len() >= limit) {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        assert_eq!(range, range.pages(), "whole pages are pinned");
        let pin = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        pins.insert(pin, (range, self.generation(range)));
        self.pinned.fetch_add(1, Ordering::Relaxed);
        self.registered.fetch_add(range.len(), Ordering::Relaxed);
        Ok(Pinned { pin, local_key: pin, remote_key: pin + 1000 })
    }

    fn unpin(&self, pin: u64) {
        must(self.pins.lock().expect("no panic").remove(&pin).is_some(), "a pin is undone twice");
        self.unpinned.fetch_add(1, Ordering::Relaxed);
    }
}

fn open(memory: &Arc<ModelMemory>, count: u32, bytes: u64) -> (Cache<Arc<ModelMemory>>, Notifier) {
    let (notifier, imported) = Notifier::new(|_, _| true).expect("a descriptor");
    let builder = Cache::builder(Arc::clone(memory)).monitor(Choice::Imported(imported));
    (builder.max_count(count).max_bytes(bytes).open().expect("opens"), notifier)
}

fn cache() -> (Arc<ModelMemory>, Cache<Arc<ModelMemory>>, Notifier) {
    let memory = Arc::new(ModelMemory::default());
    let (cache, notifier) = open(&memory, 64, u64::MAX);
    (memory, cache, notifier)
}

fn bytes(start: u64, len: u64) -> Range {
    Range::new(start, len).expect("a range")
}

/// Returns a range of `count` pages from page number `start`.
fn pages(start: u64, count: u64) -> Range {
    bytes(start * page_size(), count * page_size())
}

const READ: Access = Access::empty();

/// Looks up a range, ends the use, and returns its key.
fn key(lane: &Lane<Arc<ModelMemory>>, range: Range, access: Access) -> u64 {
    let used = lane.get(range, access).expect("registered");
    let key = used.local_key();
    assert_eq!(used.remote_key(), key + 1000);
    lane.end(used);
    key
}

/// Requirements: RCACHE-001, RCACHE-003, RCACHE-004.
#[test]
fn transfers_of_a_range_and_its_parts_share_a_registration() {
    let (memory, cache, _notifier) = cache();
    let lane = cache.lane();
    let whole = key(&lane, bytes(0x1_0010, 3 * page_size()), READ);
    assert_eq!(key(&lane, bytes(0x1_0010, 3 * page_size()), READ), whole);
    assert_eq!(key(&lane, bytes(0x1_0010, 1), READ), whole);
    assert_eq!(key(&lane, bytes(0x1_0000, 16), READ), whole, "the page is pinned from its beginning");
    assert_eq!(key(&lane, bytes(0x1_0000 + page_size(), 8), READ), whole, "an interior address");
    assert_eq!(memory.pinned.load(Ordering::Relaxed), 1);
    assert_eq!(memory.unpinned.load(Ordering::Relaxed), 0, "the registration stays pinned");
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.slow_hits, stats.misses, stats.entries), (3, 1, 1, 1), "{stats:?}");
    assert_eq!(stats.bytes, 4 * page_size());
}

#[test]
fn missing_rights_require_another_registration() {
    let (memory, cache, _notifier) = cache();
    let lane = cache.lane();
    let read = key(&lane, pages(1, 1), READ);
    let write = key(&lane, pages(1, 1), Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    assert_ne!(read, write);
    assert_eq!(key(&lane, pages(1, 1), Access::LOCAL_WRITE), write);
    let any = key(&lane, pages(1, 1), READ);
    assert!(any == read || any == write);
    assert_eq!(memory.pinned.load(Ordering::Relaxed), 2);
}

/// Requirements: MON-004, RCACHE-021.
#[test]
fn change_evicts_exactly_the_overlapping_entries() {
    let (memory, cache, notifier) = cache();
    let lane = cache.lane();
    let ranges = [pages(10, 2), pages(11, 2), pages(12, 1), pages(10, 1)];
    let before = ranges.map(|range| key(&lane, range, READ));
    memory.change(pages(11, 1));
    notifier.changed(pages(11, 1));
    let after = ranges.map(|range| key(&lane, range, READ));
    assert_ne!(before[0], after[0]);
    assert_ne!(before[1], after[1]);
    assert_eq!(cache.stats().invalidations, 2);
    // A registration that contains the pages may also be returned; none of the returned ones is stale.
    assert!(after.iter().all(|key| memory.is_current(*key)));
    assert_eq!(memory.unpinned.load(Ordering::Relaxed), 0, "removals wait for a batch");
    cache.sweep();
    assert_eq!(memory.unpinned.load(Ordering::Relaxed), 2);
}

/// Requirements: RCACHE-020, RCACHE-021.
#[test]
fn change_of_an_invalid_range_invalidates_everything() {
    let (_memory, cache, notifier) = cache();
    let lane = cache.lane();
    let own = cache.register(pages(40, 1), READ).expect("registered");
    for (address, length) in [(0x1_0000, 0), (u64::MAX, 1), (0x1_0000, u64::MAX), (u64::MAX, u64::MAX), (0, 0)] {
        let before = [pages(10, 2), pages(30, 1)].map(|range| key(&lane, range, READ));
        assert!(notifier.changed_at(address, length).is_err(), "{length} bytes at {address:#x}");
        let after = [pages(10, 2), pages(30, 1)].map(|range| key(&lane, range, READ));
        assert!(before.iter().all(|key| !after.contains(key)), "{length} bytes at {address:#x}");
    }
    assert_eq!((cache.check(), cache.check()), (Some(own.handle), None));
    let before = [pages(10, 2), pages(30, 1)].map(|range| key(&lane, range, READ));
    notifier.changed_at(30 * page_size(), 1).expect("a range");
    let after = [pages(10, 2), pages(30, 1)].map(|range| key(&lane, range, READ));
    assert!(before[0] == after[0] && before[1] != after[1]);
}

/// Requirements: RCACHE-026, MON-050.
#[test]
fn used_registration_stays_pinned_until_its_use_ends() {
    let (memory, cache, notifier) = cache();
    let (one, other) = (cache.lane(), cache.lane());
    let used = one.get(pages(5, 1), READ).expect("registered");
    let key_before = key(&other, pages(5, 1), READ);
    assert_eq!(used.local_key(), key_before);
    notifier.changed(pages(5, 1));
    let again = key(&other, pages(5, 1), READ);
    assert_ne!(again, key_before);
    for _ in 0..3 {
        cache.sweep();
    }
    assert_eq!(memory.unpinned.load(Ordering::Relaxed), 0, "the device may still be writing");
    one.end(used);
    cache.sweep();
    assert_eq!(memory.unpinned.load(Ordering::Relaxed), 1);
    assert_eq!(key(&one, pages(5, 1), READ), again);
}

#[test]
fn never_idle_lane_does_not_block_unpinning() {
    let (memory, cache, notifier) = cache();
    let lane = cache.lane();
    let mut under_way = lane.get(pages(1, 1), READ).expect("registered");
    for round in 0..50 {
        let next = lane.get(pages(100 + round, 1), READ).expect("registered");
        lane.end(under_way);
        under_way = next;
        notifier.changed(pages(99 + round, 1));
        cache.sweep();
    }
    let unpinned = memory.unpinned.load(Ordering::Relaxed);
    assert!(unpinned >= 40, "{unpinned} of 50, although the lane had a use in progress at every moment");
    lane.end(under_way);
}

/// Requirements: RCACHE-005, RCACHE-010.
#[test]
fn retired_entries_are_unpinned_at_the_next_miss() {
    let memory = Arc::new(ModelMemory::default());
    let (cache, _notifier) = open(&memory, 64, 4 * page_size());
    let (one, other) = (cache.lane(), cache.lane());
    let used = one.get(pages(5, 1), READ).expect("registered");
    for n in 0..20 {
        let _ = key(&other, pages(100 + 10 * n, 1), READ);
    }
    assert!(cache.stats().retired > 10, "the long use may refer to any of them: {:?}", cache.stats());
    one.end(used);
    let _ = key(&other, pages(1000, 1), READ);
    let stats = cache.stats();
    assert!(stats.bytes + stats.retired_bytes <= 4 * page_size(), "{stats:?}");
}

/// Requirements: RCACHE-005, RCACHE-007, RCACHE-022.
#[test]
fn limits_include_pinned_entries_and_evict_the_lru_entry() {
    let memory = Arc::new(ModelMemory::default());
    let (cache, _notifier) = open(&memory, 16, 40 * page_size());
    let lane = cache.lane();
    for n in 0..1000 {
        let _ = key(&lane, pages(1, 1), READ);
        let _ = key(&lane, pages(100 + 10 * n, 1 + n % 5), READ);
        let stats = cache.stats();
        assert!(stats.entries + stats.retired <= 16, "{stats:?}");
        assert!(stats.bytes + stats.retired_bytes <= 40 * page_size(), "{stats:?}");
        let held = memory.pins.lock().expect("no panic").len();
        assert_eq!(held as u64, stats.entries + stats.retired);
    }
    assert_eq!(memory.pins.lock().expect("no panic").values().filter(|pin| pin.0 == pages(1, 1)).count(), 1);
    assert_eq!(memory.pinned.load(Ordering::Relaxed), 1001, "a registration in constant use is never dropped");
    let large = lane.get(pages(5000, 41), READ).expect("registered");
    assert!(large.is_single(), "does not fit: for this use only");
    lane.end(large);
    assert_eq!(cache.stats().single_uses_for(Refusal::TooLarge), 1);
    assert_eq!(memory.pins.lock().expect("no panic").len() as u64, cache.stats().entries + cache.stats().retired);
}

/// Requirements: RCACHE-005.
#[test]
fn a_range_of_exactly_the_limit_of_bytes_is_kept() {
    let memory = Arc::new(ModelMemory::default());
    let (cache, _notifier) = open(&memory, 16, 8 * page_size());
    let lane = cache.lane();
    let _ = key(&lane, pages(100, 2), READ);
    let whole = lane.get(pages(1, 8), READ).expect("registered");
    assert!(!whole.is_single(), "fits if nothing else is kept");
    assert_eq!(key(&lane, pages(1, 8), READ), whole.local_key());
    lane.end(whole);
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.bytes, stats.evictions), (1, 8 * page_size(), 1), "{stats:?}");
}

/// Requirements: RCACHE-005, RCACHE-007.
#[test]
fn an_entry_that_is_no_longer_used_is_evicted_although_it_was_spared_before() {
    let memory = Arc::new(ModelMemory::default());
    let (cache, _notifier) = open(&memory, 16, u64::MAX);
    let lane = cache.lane();
    let is_pinned = || memory.pins.lock().expect("no panic").values().any(|pin| pin.0 == pages(1, 1));
    for n in 0..80 {
        // The first half of the evictions finds that the entry was used again.
        if n < 40 {
            let _ = key(&lane, pages(1, 1), READ);
        }
        let _ = key(&lane, pages(100 + 10 * n, 1), READ);
        assert!(is_pinned() || n >= 40, "an entry in constant use was evicted");
    }
    cache.sweep();
    assert!(!is_pinned(), "an entry that is not used stays");
    let stats = cache.stats();
    assert_eq!((stats.single_uses, stats.misses), ([0; 6], 81), "{stats:?}");
}

/// Requirements: RCACHE-006.
#[test]
fn without_a_limit_of_bytes_everything_is_kept() {
    let memory = Arc::new(ModelMemory::default());
    let (_notifier, imported) = Notifier::new(|_, _| true).expect("a descriptor");
    let builder = Cache::builder(Arc::clone(&memory)).monitor(Choice::Imported(imported));
    let cache = builder.open().expect("opens");
    let lane = cache.lane();
    // Each range is a terabyte.
    let len = (1 << 40) / page_size();
    for n in 0..100 {
        let _ = key(&lane, pages(n * len, len), READ);
    }
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.bytes, stats.evictions), (100, 100 << 40, 0));
    assert_eq!(memory.unpinned.load(Ordering::Relaxed), 0);
}

/// Requirements: MON-058.
#[test]
fn imported_monitor_without_reports_never_deregisters() {
    // If the application's callback accepts all memory and the application then reports nothing, the cache never
    // deregisters. This mode is never the default.
    let (memory, cache, _notifier) = cache();
    let lane = cache.lane();
    let keys = Vec::from_iter((0..50).map(|n| key(&lane, pages(10 * n, 2), READ)));
    for _ in 0..3 {
        assert_eq!(Vec::from_iter((0..50).map(|n| key(&lane, pages(10 * n, 2), READ))), keys);
        assert_eq!(cache.check(), None);
        cache.sweep();
    }
    assert_eq!((memory.pinned.load(Ordering::Relaxed), memory.unpinned.load(Ordering::Relaxed)), (50, 0));
    let unasked = Cache::builder(Arc::new(ModelMemory::default())).open().expect("opens");
    assert_ne!(unasked.monitor(), cache.monitor());
}

/// Requirements: RCACHE-008, RCACHE-009.
#[test]
fn zero_limit_registers_each_time() {
    let memory = Arc::new(ModelMemory::default());
    let (cache, _notifier) = open(&memory, 0, u64::MAX);
    let lane = cache.lane();
    for round in 1..=5 {
        let _ = key(&lane, pages(1, 1), READ);
        assert_eq!(memory.pinned.load(Ordering::Relaxed), round);
        assert_eq!(memory.unpinned.load(Ordering::Relaxed), round);
    }
    assert_eq!(cache.stats().single_uses_for(Refusal::NotCaching), 5);
}

/// Requirements: RCACHE-010, RCACHE-023.
#[test]
fn registrar_limit_evicts_idle_and_keeps_used_registrations() {
    let memory = Arc::new(ModelMemory { limit: Some(8), ..ModelMemory::default() });
    let (cache, _notifier) = open(&memory, 64, u64::MAX);
    let lane = cache.lane();
    for n in 0..40 {
        let _ = key(&lane, pages(10 * n, 1), READ);
    }
    assert_eq!(memory.pinned.load(Ordering::Relaxed), 40);
    cache.flush();
    let used: Vec<_> = (0..8).map(|n| lane.get(pages(10 * n, 1), READ).expect("registered")).collect();
    let error = lane.get(pages(2000, 1), READ).expect_err("all eight are in use");
    assert!(error.to_string().contains("cannot register"), "{error}");
    assert!(used.iter().all(|used| memory.is_current(used.local_key())));
    used.into_iter().for_each(|used| lane.end(used));
    let _ = key(&lane, pages(2000, 1), READ);
}

#[test]
fn the_last_page_of_the_address_space_is_not_kept() {
    let (memory, cache, _notifier) = cache();
    let lane = cache.lane();
    let last = Range::new(u64::MAX - 8, 8).expect("a range");
    for round in 1..=3 {
        let used = lane.get(last, READ).expect("registered");
        assert!(used.is_single());
        lane.end(used);
        assert_eq!(memory.unpinned.load(Ordering::Relaxed), round);
    }
    assert_eq!(cache.stats().single_uses_for(Refusal::TooLarge), 3);
}

/// Requirements: MON-041.
#[test]
fn closing_unpins_everything_once() {
    let (memory, cache, notifier) = cache();
    let lane = cache.lane();
    for n in 0..20 {
        let _ = key(&lane, pages(10 * n, 2), READ);
        notifier.changed(pages(10 * (n / 2), 1));
    }
    drop(lane);
    drop(cache);
    assert_eq!(memory.pinned.load(Ordering::Relaxed), memory.unpinned.load(Ordering::Relaxed));
}

/// A change of other memory, before or after that of the range, makes no difference.
#[test]
fn a_range_that_changes_while_it_is_registered_is_used_once() {
    /// A registrar that reports changes while it pins. The list is empty after the first pin.
    struct Late(Arc<ModelMemory>, Notifier, Mutex<Vec<Range>>);
    impl Registrar for Late {
        type Pin = u64;
        fn pin(&self, range: Range, access: Access) -> io::Result<Pinned<u64>> {
            let pinned = self.0.pin(range, access)?;
            self.2.lock().expect("no panic").drain(..).for_each(|change| self.1.changed(change));
            Ok(pinned)
        }
        fn unpin(&self, pin: u64) {
            self.0.unpin(pin);
        }
    }
    let memory = Arc::new(ModelMemory::default());
    let open = |changes: &[Range]| {
        let (notifier, imported) = Notifier::new(|_, _| true).expect("a descriptor");
        let registrar = Late(Arc::clone(&memory), notifier, Mutex::new(changes.to_vec()));
        Cache::builder(registrar).monitor(Choice::Imported(imported)).open().expect("opens")
    };
    let range = pages(3, 4);
    let (inside, below, above) = (bytes(range.end() - 1, 1), pages(2, 1), pages(7, 1));
    for changes in [&[inside][..], &[inside, above], &[below, inside], &[below, inside, above], &[below, above]] {
        let changed = changes.contains(&inside);
        let before = memory.pinned.load(Ordering::Relaxed) - memory.unpinned.load(Ordering::Relaxed);
        let cache = open(changes);
        let lane = cache.lane();
        for single in [changed, false] {
            let used = lane.get(range, READ).expect("registered");
            assert_eq!(used.is_single(), single, "{changes:?}");
            lane.end(used);
        }
        assert_eq!(cache.stats().single_uses_for(Refusal::Changed), u64::from(changed), "{changes:?}");
        let pinned = memory.pinned.load(Ordering::Relaxed) - memory.unpinned.load(Ordering::Relaxed);
        assert_eq!(pinned - before, 1, "{changes:?}");
        // A registration that the application makes itself is reported instead.
        let cache = open(changes);
        let own = cache.register(range, READ).expect("registered");
        assert_eq!(cache.check(), changed.then_some(own.handle), "{changes:?}");
        // A change after the registration reports it only if it was not reported yet.
        cache.0.registrar.1.changed(inside);
        assert_eq!(cache.check(), (!changed).then_some(own.handle), "{changes:?}");
        assert_eq!(cache.check(), None, "{changes:?}");
    }
}

/// The monitor has begun a report, but has not reported yet which memory changed.
///
/// Requirements: RCACHE-021.
#[test]
fn a_look_up_during_an_unfinished_report_is_not_served_by_an_old_registration() {
    let (memory, mut cache, _notifier) = cache();
    let page: &'static JournalPage = Box::leak(JournalPage::boxed());
    let shared = Arc::get_mut(&mut cache.0).expect("the cache has no lane");
    shared.journal = Journal::new(Some(page), true, None).expect("memory");
    let lane = cache.lane();
    let range = pages(3, 4);
    let before = key(&lane, range, READ);
    memory.change(range);
    page.busy.store(1, Ordering::Release);
    page.emit(ChangedAddresses::Of(pages(0, 1)));
    let used = lane.get(range, READ).expect("registered");
    assert!(used.local_key() != before && memory.is_current(used.local_key()), "a registration of the old pages");
    assert!(used.is_single(), "the change may not be over");
    lane.end(used);
    page.emit(ChangedAddresses::Of(range));
    page.busy.store(0, Ordering::Release);
    let used = lane.get(range, READ).expect("registered");
    assert!(used.local_key() != before && memory.is_current(used.local_key()), "a registration of the old pages");
    assert!(!used.is_single(), "the change is over");
    lane.end(used);
    assert_eq!(cache.stats().single_uses_for(Refusal::Changed), 1);
}

#[test]
fn unwatched_memory_is_not_kept() {
    let memory = Arc::new(ModelMemory::default());
    let (_notifier, imported) = Notifier::new(|range, _| range.start() < 0x10_0000).expect("a descriptor");
    let cache = Cache::builder(Arc::clone(&memory)).monitor(Choice::Imported(imported)).open().expect("opens");
    let lane = cache.lane();
    for range in [bytes(0x1000, 8), bytes(0x20_0000, 8), bytes(0x1000, 8), bytes(0x20_0000, 8)] {
        let _ = key(&lane, range, READ);
    }
    assert_eq!(memory.pinned.load(Ordering::Relaxed), 3);
    assert_eq!(cache.stats().single_uses_for(Refusal::NotWatchable), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Compares the cache with the model of memory: no returned registration is stale, the limits are respected, and at
    /// the end nothing remains pinned.
    ///
    /// Requirements: RCACHE-021.
    #[test]
    fn cache_never_serves_a_stale_entry(
        steps in prop::collection::vec((0..7_u8, 0..60_u64, 1..6_u64, any::<bool>()), 1..400),
        count in 1..24_u32,
        merges in any::<bool>(),
    ) {
        let memory = Arc::new(ModelMemory::default());
        let open = if merges { merging::merging } else { open };
        let (cache, notifier) = open(&memory, count, 64 * page_size());
        let lanes = [cache.lane(), cache.lane()];
        let mut under_way: Vec<(usize, Use)> = Vec::new();
        for (step, start, len, flag) in steps {
            let range = bytes(start * 0x1000 + 17, len * 0x1000);
            match step {
                0..=2 => {
                    let access = if flag { Access::LOCAL_WRITE } else { READ };
                    let used = lanes[usize::from(flag)].get(range, access).expect("registered");
                    prop_assert!(memory.is_current(used.local_key()), "{range}");
                    under_way.push((usize::from(flag), used));
                }
                3 if !under_way.is_empty() => {
                    let (lane, used) = under_way.swap_remove(start as usize % under_way.len());
                    prop_assert!(memory.pins.lock().expect("no panic").contains_key(&used.local_key()));
                    lanes[lane].end(used);
                }
                4 if start == 0 => notifier.changed_everything(),
                4 => {
                    memory.change(range);
                    notifier.changed(range.pages());
                }
                5 if !under_way.is_empty() => {
                    let (lane, used) = under_way.swap_remove(start as usize % under_way.len());
                    under_way.push((lane, lanes[lane].hold(used)));
                }
                _ => cache.sweep(),
            }
            for (_, used) in &under_way {
                prop_assert!(memory.pins.lock().expect("no panic").contains_key(&used.local_key()));
            }
            prop_assert!(cache.stats().entries <= u64::from(count));
        }
        for (lane, used) in under_way {
            lanes[lane].end(used);
        }
        drop(lanes);
        drop(cache);
        prop_assert_eq!(memory.pins.lock().expect("no panic").len(), 0);
    }
}

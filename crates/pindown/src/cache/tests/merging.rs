//! Merging of registrations, compared with a list that follows the documented rules literally.

use super::*;

pub(super) fn merging(memory: &Arc<ModelMemory>, count: u32, bytes: u64) -> (Cache<Arc<ModelMemory>>, Notifier) {
    let (notifier, imported) = Notifier::new(|_, _| true).expect("a descriptor");
    let builder = Cache::builder(Arc::clone(memory)).monitor(Choice::Imported(imported)).merging(true);
    (builder.max_count(count).max_bytes(bytes).open().expect("opens"), notifier)
}

/// Returns the ranges that are pinned now, in order.
fn pinned(memory: &ModelMemory) -> Vec<Range> {
    let mut all = Vec::from_iter(memory.pins.lock().expect("no panic").values().map(|(range, _)| *range));
    all.sort();
    all
}

/// Requirements: RCACHE-003.
#[test]
fn neighbours_are_merged_only_if_enabled() {
    let (memory, cache, _notifier) = cache();
    let lane = cache.lane();
    let apart = [pages(10, 1), pages(11, 1)].map(|range| key(&lane, range, READ));
    cache.sweep();
    assert!(apart[0] != apart[1] && pinned(&memory) == [pages(10, 1), pages(11, 1)]);

    let memory = Arc::new(ModelMemory::default());
    let (cache, _notifier) = merging(&memory, 64, u64::MAX);
    let lane = cache.lane();
    let first = key(&lane, pages(10, 1), READ);
    let both = key(&lane, pages(11, 1), READ);
    assert_ne!(first, both);
    assert_eq!(key(&lane, pages(10, 2), READ), both);
    assert_eq!(key(&lane, pages(10, 1), READ), both);
    let writing = key(&lane, pages(12, 1), Access::LOCAL_WRITE);
    cache.sweep();
    assert_eq!(pinned(&memory), [pages(10, 2), pages(12, 1)], "registrations with other rights are not merged");
    // A page between two registrations, and one with no neighbour.
    let _ = key(&lane, pages(14, 2), READ);
    let _ = key(&lane, pages(20, 1), READ);
    assert_eq!(key(&lane, pages(12, 1), Access::LOCAL_WRITE), writing);
    let all = key(&lane, pages(12, 2), READ);
    cache.sweep();
    assert_eq!(pinned(&memory), [pages(10, 6), pages(12, 1), pages(20, 1)]);
    assert_eq!(key(&lane, pages(10, 6), READ), all);
    assert_eq!(cache.stats().merged, 3);
}

/// Requirements: RCACHE-026.
#[test]
fn merged_registration_stays_pinned_until_last_use_ends() {
    let memory = Arc::new(ModelMemory::default());
    let (cache, notifier) = merging(&memory, 64, u64::MAX);
    let (one, other) = (cache.lane(), cache.lane());
    let used = one.get(pages(10, 1), READ).expect("registered");
    let both = other.get(pages(11, 1), READ).expect("registered");
    for _ in 0..3 {
        cache.sweep();
    }
    assert_eq!(pinned(&memory), [pages(10, 1), pages(10, 2)], "the device may still be writing");
    let again = one.get(pages(10, 1), READ).expect("registered");
    assert_eq!(again.local_key(), both.local_key());
    one.end(again);
    notifier.changed(pages(11, 1));
    for _ in 0..3 {
        cache.sweep();
    }
    assert_eq!(pinned(&memory), [pages(10, 1), pages(10, 2)], "both are in use, and out of the cache");
    other.end(both);
    cache.sweep();
    assert!(pinned(&memory).contains(&pages(10, 1)), "one registration is still in use");
    one.end(used);
    cache.sweep();
    cache.sweep();
    assert!(pinned(&memory).is_empty());
}

/// Requirements: RCACHE-022.
#[test]
fn a_buffer_sent_from_page_by_page_is_not_registered_quadratically() {
    for order in [0_u64, 1] {
        let memory = Arc::new(ModelMemory::default());
        let (cache, _notifier) = merging(&memory, 1024, u64::MAX);
        let lane = cache.lane();
        let count = 1024;
        for n in 0..count {
            let n = if order == 0 { n } else { count - 1 - n };
            let _ = key(&lane, pages(5000 + n, 1), READ);
        }
        let registered = memory.registered.load(Ordering::Relaxed) / page_size();
        assert!(registered <= count * 11, "{registered} pages for {count}");
        cache.sweep();
        assert_eq!(pinned(&memory), [pages(5000, count)]);
    }
}

#[test]
fn failed_merge_keeps_single_page_registrations() {
    struct Small(Arc<ModelMemory>);
    impl Registrar for Small {
        type Pin = u64;
        fn pin(&self, range: Range, access: Access) -> io::Result<Pinned<u64>> {
            if range.len() > 2 * page_size() {
                Err(io::ErrorKind::InvalidInput.into())
            } else {
                self.0.pin(range, access)
            }
        }
        fn unpin(&self, pin: u64) {
            self.0.unpin(pin);
        }
    }
    let memory = Arc::new(ModelMemory::default());
    let (_notifier, imported) = Notifier::new(|range, _| !range.contains(pages(20, 2))).expect("a descriptor");
    let builder = Cache::builder(Small(Arc::clone(&memory))).monitor(Choice::Imported(imported)).merging(true);
    let cache = builder.open().expect("opens");
    let lane = cache.lane();
    for start in [10, 11, 12, 13, 20, 21] {
        let used = lane.get(pages(start, 1), READ).expect("registered");
        assert!(!used.is_single(), "page {start}");
        lane.end(used);
    }
    cache.sweep();
    // All four merged would be too large, so the last stays alone.
    assert_eq!(pinned(&memory), [pages(10, 2), pages(12, 1), pages(13, 1), pages(20, 1), pages(21, 1)]);
    assert_eq!(cache.stats().failures, 0);
}

/// Requirements: RCACHE-005.
#[test]
fn merging_keeps_to_the_limits() {
    let memory = Arc::new(ModelMemory::default());
    let (cache, _notifier) = merging(&memory, 8, 32 * page_size());
    let lane = cache.lane();
    for n in 0..300 {
        let _ = key(&lane, pages(100 + n * 7 % 60, 1 + n % 3), READ);
        let stats = cache.stats();
        assert!(stats.entries + stats.retired <= 8, "{stats:?}");
        assert!(stats.bytes + stats.retired_bytes <= 32 * page_size(), "{stats:?}");
        assert!(pinned(&memory).iter().all(|range| range.len() <= 8 * page_size()), "a quarter at most");
    }
    // A buffer that is sent page by page, with room for all its registrations.
    let memory = Arc::new(ModelMemory::default());
    let (cache, _notifier) = merging(&memory, 64, 32 * page_size());
    let lane = cache.lane();
    for n in 0..16 {
        let _ = key(&lane, pages(100 + n, 1), READ);
    }
    cache.sweep();
    assert_eq!(pinned(&memory), [pages(100, 8), pages(108, 8)], "a quarter of the limit at most");
}

/// The documented rules, applied to a list.
#[derive(Default)]
struct List(Vec<(Range, Access)>);

impl List {
    fn get(&mut self, pages: Range, access: Access) -> Option<Range> {
        if self.0.iter().any(|(range, rights)| range.contains(pages) && rights.contains(access)) {
            return None;
        }
        let touches = |one: Range, other: Range| one.start() <= other.end() && other.start() <= one.end();
        let beside = |one: Range, other: Range| one.len() - Self::shared(one, other);
        let mut wide = pages;
        loop {
            let goes = |(range, rights): &&(Range, Access)| {
                *rights == access && touches(*range, wide) && beside(wide, *range) >= range.len()
            };
            let next = self.0.iter().filter(goes).fold(wide, |all, (range, _)| all.union(*range));
            if next == wide {
                break;
            }
            wide = next;
        }
        self.0.retain(|(range, rights)| *rights != access || !wide.contains(*range));
        self.0.push((wide, access));
        Some(wide)
    }

    fn shared(one: Range, other: Range) -> u64 {
        one.end().min(other.end()).saturating_sub(one.start().max(other.start()))
    }

    fn change(&mut self, changed: Range) {
        self.0.retain(|(range, _)| !range.overlaps(changed));
    }

    fn ranges(&self) -> Vec<Range> {
        let mut all = Vec::from_iter(self.0.iter().map(|(range, _)| *range));
        all.sort();
        all
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Requirements: RCACHE-003, RCACHE-021.
    #[test]
    fn merging_matches_the_model(
        steps in prop::collection::vec((0..5_u8, 0..80_u64, 1..9_u64, any::<bool>()), 1..200),
    ) {
        let memory = Arc::new(ModelMemory::default());
        let (cache, notifier) = merging(&memory, 1024, u64::MAX);
        let (lane, mut list) = (cache.lane(), List::default());
        for (step, start, len, flag) in steps {
            let range = pages(1000 + start, len);
            if step == 0 {
                memory.change(range);
                notifier.changed(range);
                list.change(range);
            } else {
                let access = if flag { Access::LOCAL_WRITE } else { READ };
                let before = memory.pinned.load(Ordering::Relaxed);
                let used = lane.get(range, access).expect("registered");
                prop_assert!(memory.is_current(used.local_key()) && !used.is_single());
                let made = memory.pinned.load(Ordering::Relaxed) - before;
                prop_assert_eq!(made, u64::from(list.get(range, access).is_some()));
                lane.end(used);
            }
            cache.sweep();
            prop_assert_eq!(pinned(&memory), list.ranges());
        }
    }
}

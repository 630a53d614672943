//! Tests of held uses.

use super::*;

/// Requirements: RCACHE-023.
#[test]
fn idle_registrations_are_evicted_while_others_are_held() {
    let memory = Arc::new(ModelMemory { limit: Some(8), ..ModelMemory::default() });
    let (cache, _notifier) = open(&memory, 64, u64::MAX);
    let lane = cache.lane();
    let mut held: Vec<_> = (0..3).map(|n| lane.hold(lane.get(pages(10 * n, 1), READ).expect("registered"))).collect();
    for n in 3..40 {
        let _ = key(&lane, pages(10 * n, 1), READ);
    }
    assert_eq!(cache.stats().failures, 0);
    held.extend((100..105).map(|n| lane.hold(lane.get(pages(10 * n, 1), READ).expect("five are idle"))));
    let error = lane.get(pages(2000, 1), READ).expect_err("all eight are held");
    assert!(error.to_string().contains("cannot register"), "{error}");
    assert!(held.iter().all(|used| used.is_held() && memory.is_current(used.local_key())));
    held.into_iter().for_each(|used| lane.end(used));
    let _ = key(&lane, pages(2000, 1), READ);
}

/// Requirements: RCACHE-010.
#[test]
fn held_use_stays_pinned_and_blocks_nothing_else() {
    let (memory, cache, notifier) = cache();
    let lane = cache.lane();
    let is_pinned = |used: &Use| memory.pins.lock().expect("no panic").contains_key(&used.local_key());
    let used = lane.get(pages(0, 1), READ).expect("registered");
    let held = [(); 2].map(|()| lane.hold(lane.get(pages(0, 1), READ).expect("registered")));
    assert!(!used.is_held() && held.iter().all(Use::is_held));
    lane.end(used);
    for n in 1..200 {
        let _ = key(&lane, pages(10 * n, 1), READ);
        notifier.changed(pages(10 * n, 1));
    }
    notifier.changed(pages(0, 1));
    cache.sweep();
    assert_eq!((cache.stats().retired, cache.stats().entries), (1, 0), "only the held registration");
    // The memory that is now at the address has another registration.
    let now = lane.get(pages(0, 1), READ).expect("registered");
    assert!(now.local_key() != held[0].local_key() && is_pinned(&now) && is_pinned(&held[0]));
    lane.end(now);
    let [first, last] = held;
    lane.end(first);
    cache.sweep();
    assert!(is_pinned(&last) && !lane.is_idle(), "the second use still holds the registration");
    lane.end(last);
    assert!(lane.is_idle());
    // A miss also unpins the registration.
    let _ = key(&lane, pages(5000, 1), READ);
    assert_eq!(cache.stats().retired, 0);
}

/// Requirements: RCACHE-008, RCACHE-009.
#[test]
fn held_use_is_counted_and_not_evicted() {
    let memory = Arc::new(ModelMemory::default());
    let (cache, _notifier) = open(&memory, 32, 64 * page_size());
    let lane = cache.lane();
    let held: Vec<_> = (0..8).map(|n| lane.hold(lane.get(pages(10 * n, 4), READ).expect("registered"))).collect();
    for n in 100..300 {
        let _ = key(&lane, pages(10 * n, 4), READ);
        let stats = cache.stats();
        assert!(stats.bytes + stats.retired_bytes <= 64 * page_size(), "{stats:?}");
    }
    for (n, used) in (0..).zip(&held) {
        assert_eq!(key(&lane, pages(10 * n, 4), READ), used.local_key(), "a held registration is kept");
    }
    cache.flush();
    for n in 300..500 {
        let _ = key(&lane, pages(10 * n, 4), READ);
        let stats = cache.stats();
        assert!(stats.bytes + stats.retired_bytes <= 64 * page_size(), "{stats:?}");
    }
    assert_eq!(cache.stats().retired, 8);
    held.into_iter().for_each(|used| lane.end(used));
}

#[test]
fn dropped_lane_keeps_only_its_held_use_pinned() {
    let (memory, cache, _notifier) = cache();
    let lane = cache.lane();
    let _lost = lane.hold(lane.get(pages(0, 1), READ).expect("registered"));
    let _ = key(&lane, pages(10, 1), READ);
    drop(lane);
    cache.flush();
    assert_eq!((cache.stats().retired, memory.pins.lock().expect("no panic").len()), (1, 1));
    drop(cache);
    assert_eq!(memory.pins.lock().expect("no panic").len(), 1, "closing the cache unpins memory in use");
}

#[test]
fn use_can_end_only_at_its_lane() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let (memory, cache, notifier) = cache();
    let (other_memory, other_cache, _other_notifier) = self::cache();
    let (lane, others) = (cache.lane(), [cache.lane(), other_cache.lane()]);
    let is_pinned = |key: u64| memory.pins.lock().expect("no panic").contains_key(&key);
    for (other, holds, ends_held) in
        [(0, false, false), (0, true, false), (0, false, true), (1, false, false), (1, false, true)]
    {
        let other = &others[other];
        // The other lane has its own use under way: if it counted the end of the foreign use, it would appear idle.
        let own = other.get(pages(900, 1), READ).expect("registered");
        let used = lane.get(pages(0, 1), READ).expect("registered");
        let used = if ends_held { lane.hold(used) } else { used };
        let key = used.local_key();
        let refused = if holds { other.try_hold(used).map(drop) } else { other.try_end(used) };
        let used = refused.expect_err("another lane took the use").used;
        assert!(!lane.is_idle() && used.local_key() == key && used.is_held() == ends_held);
        let wrong = catch_unwind(AssertUnwindSafe(|| if holds { drop(other.hold(used)) } else { other.end(used) }));
        assert!(wrong.is_err(), "another lane took the use");
        assert!(!lane.is_idle() && !other.is_idle());
        other.end(own);
        assert!(other.is_idle(), "the lane counts uses of another lane");
        notifier.changed(pages(0, 1));
        cache.flush();
        other_cache.flush();
        assert!(is_pinned(key), "unpinned although its use has not ended");
    }
    assert!(other_memory.pins.lock().expect("no panic").is_empty());
}

#[test]
fn use_rejected_by_another_lane_ends_at_its_lane() {
    let (memory, cache, notifier) = cache();
    let lanes = [cache.lane(), cache.lane()];
    let [lane, other] = &lanes;
    for held in [false, true] {
        let used = lane.get(pages(0, 1), READ).expect("registered");
        let used = if held { lane.try_hold(used).expect("a use of this lane") } else { used };
        let refused = other.try_end(used).expect_err("another lane took the use");
        lane.try_end(refused.used).expect("a use of this lane");
        assert!(lane.is_idle() && other.is_idle());
        notifier.changed(pages(0, 1));
        cache.flush();
        assert!(memory.pins.lock().expect("no panic").is_empty(), "no registration is in use");
    }
}

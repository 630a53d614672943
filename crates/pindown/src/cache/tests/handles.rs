//! Registrations that the application makes itself.

use std::time::Duration;

use super::*;

const SOON: Option<Duration> = Some(Duration::from_secs(20));

fn register(cache: &Cache<Arc<ModelMemory>>, range: Range) -> Registration {
    let registration = cache.register(range, READ).expect("registered");
    assert_eq!(registration.unwatched, None);
    registration
}

/// Requirements: MON-036, MON-038, MON-039.
#[test]
fn register_returns_separate_handles_for_overlapping_ranges() {
    let (memory, cache, notifier) = cache();
    let start = 16 * page_size();
    let one = register(&cache, bytes(start, 100));
    let other = register(&cache, bytes(start + 16, 2 * page_size() - 192));
    assert_ne!(one.handle, other.handle);
    assert_eq!(one.remote_key, one.local_key + 1000);
    cache.deregister(one.handle).expect("known");
    assert_eq!(cache.deregister(one.handle), Err(UnknownHandle(one.handle)), "once");
    assert!(memory.is_current(other.local_key), "still pinned");
    notifier.changed(pages(16, 1));
    assert_eq!(cache.check(), Some(other.handle));
    cache.deregister(other.handle).expect("a changed registration is still known");
    assert_eq!(memory.unpinned.load(Ordering::Relaxed), 2);
    let again = register(&cache, bytes(start, 100));
    assert!(again.handle != one.handle && again.handle != other.handle, "no handle is used twice");
}

/// Requirements: MON-004, MON-005, MON-043, MON-044.
#[test]
fn each_changed_registration_is_reported_once() {
    let (_memory, cache, notifier) = cache();
    // Figure 4: three registrations of three pages. Two of them contain the middle page.
    let figure_4 = [pages(10, 2), pages(11, 2), pages(12, 1)].map(|range| register(&cache, range));
    // Figure 3: two registrations of one page.
    let figure_3 = [0, page_size() / 2].map(|at| register(&cache, bytes(0x90 * page_size() + at, 8)));
    assert_eq!(cache.check(), None, "no change is reported");
    notifier.changed(pages(11, 1));
    let reported = [cache.check(), cache.check(), cache.check()];
    assert_eq!(reported, [Some(figure_4[0].handle), Some(figure_4[1].handle), None]);
    notifier.changed(pages(11, 1));
    assert_eq!(cache.check(), None, "both handles were reported before");
    notifier.changed(pages(0x90, 1));
    let mut reported = [cache.check(), cache.check()];
    reported.sort_by_key(|handle| *handle != Some(figure_3[0].handle));
    assert_eq!(reported, figure_3.map(|registration| Some(registration.handle)));
    notifier.changed(pages(13, 1));
    notifier.changed(pages(9, 1));
    assert_eq!(cache.check(), None, "neighbours");
}

/// Requirements: MON-044.
#[test]
fn a_handle_that_was_deregistered_after_a_change_is_not_reported() {
    let (memory, cache, notifier) = cache();
    let [gone, kept] = [pages(1, 2), pages(2, 2)].map(|range| register(&cache, range).handle);
    notifier.changed(pages(2, 1));
    // The cache processes the change, which queues both handles.
    cache.sweep();
    cache.deregister(gone).expect("a changed registration is still known");
    assert_eq!([cache.check(), cache.check()], [Some(kept), None]);
    assert_eq!(memory.unpinned.load(Ordering::Relaxed), 1);
}

/// Requirements: MON-047.
#[test]
fn burst_of_changes_loses_no_handle() {
    let (_memory, cache, notifier) = cache();
    let all: Vec<_> = (0..3000).map(|n| register(&cache, pages(10 * n, 1)).handle).collect();
    for n in 0..3000 {
        notifier.changed(pages(10 * n, 1));
    }
    let mut reported: Vec<_> = std::iter::from_fn(|| cache.check()).collect();
    assert_eq!(reported.len(), 3000);
    reported.sort_by_key(|handle| all.iter().position(|known| known == handle));
    assert_eq!(reported, all);
}

/// Requirements: MON-048, MON-049.
#[test]
fn wait_is_woken_by_changes_and_finds_earlier_ones() {
    let (_memory, cache, notifier) = cache();
    let registrations = [pages(1, 1), pages(5, 1)].map(|range| register(&cache, range));
    notifier.changed(pages(1, 1));
    assert_eq!(cache.wait(SOON).expect("waited"), Waited::Changed(registrations[0].handle));
    assert_eq!(cache.wait(Some(Duration::from_millis(1))).expect("waited"), Waited::TimedOut);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| cache.wait(SOON).expect("waited"));
        // Changes of other memory also wake the waiting thread, which sleeps again.
        notifier.changed(pages(100, 1));
        std::thread::sleep(Duration::from_millis(20));
        notifier.changed(pages(5, 1));
        assert_eq!(waiter.join().expect("no panic"), Waited::Changed(registrations[1].handle));
    });
}

/// Requirements: MON-051.
#[test]
fn a_wait_can_be_interrupted() {
    let (_memory, cache, _notifier) = cache();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| cache.wait(SOON).expect("waited"));
        cache.interrupt();
        assert_eq!(waiter.join().expect("no panic"), Waited::Interrupted);
    });
}

/// Requirements: MON-051.
#[test]
fn each_interrupt_ends_one_wait() {
    let (_memory, cache, _notifier) = cache();
    (0..2).for_each(|_| cache.interrupt());
    let now = Some(Duration::ZERO);
    assert_eq!(
        [(); 3].map(|()| cache.wait(now).expect("waited")),
        [Waited::Interrupted, Waited::Interrupted, Waited::TimedOut]
    );
    std::thread::scope(|scope| {
        let waiters = [(); 2].map(|()| scope.spawn(|| cache.wait(SOON).expect("waited")));
        (0..2).for_each(|_| cache.interrupt());
        assert_eq!(waiters.map(|waiter| waiter.join().expect("no panic")), [Waited::Interrupted; 2]);
    });
}

/// Requirements: RCACHE-027, MON-040, MON-041.
#[test]
fn application_registrations_are_kept_until_deregistered() {
    let memory = Arc::new(ModelMemory { limit: Some(2), ..ModelMemory::default() });
    let (cache, notifier) = open(&memory, 64, u64::MAX);
    let one = register(&cache, pages(1, 1));
    let lane = cache.lane();
    let _ = key(&lane, pages(1, 1), READ);
    notifier.changed_everything();
    cache.flush();
    assert_eq!(memory.unpinned.load(Ordering::Relaxed), 1, "only the cached registration");
    assert!(memory.is_current(one.local_key));
    let _other = register(&cache, pages(2, 1));
    let refused = cache.register(pages(3, 1), READ).expect_err("the registrar's limit");
    assert!(matches!(refused, LookupError::Registrar { .. }), "{refused}");
    assert_eq!(cache.stats().own, 2, "nothing remains of what was refused");
    drop(lane);
    drop(cache);
    assert_eq!(memory.unpinned.load(Ordering::Relaxed), memory.pinned.load(Ordering::Relaxed));
}

/// A registrar with keys that use all 64 bits.
struct Wide;

impl Wide {
    fn keys(range: Range) -> (u64, u64) {
        (0x8765_4321_0000_0001 ^ range.start(), 0xfedc_ba98_7654_3210 ^ range.start() << 32)
    }
}

impl Registrar for Wide {
    type Pin = ();

    fn pin(&self, range: Range, _access: Access) -> io::Result<Pinned<()>> {
        let (local_key, remote_key) = Self::keys(range);
        Ok(Pinned { pin: (), local_key, remote_key })
    }

    fn unpin(&self, (): ()) {}
}

/// Requirements: MON-065.
#[test]
fn keys_and_handles_are_64_bits_and_handles_are_not_reused() {
    let (_notifier, imported) = Notifier::new(|_, _| true).expect("a descriptor");
    let cache = Cache::builder(Wide).monitor(Choice::Imported(imported)).open().expect("opens");
    let lane = cache.lane();
    for number in 1..100 {
        let range = pages(10 * number, 1);
        // The keys come from a look-up that registers, a look-up that hits, and the application's own registration.
        for _ in 0..2 {
            let used = lane.get(range, READ).expect("registered");
            assert_eq!((used.local_key(), used.remote_key()), Wide::keys(range));
            lane.end(used);
        }
        let own = cache.register(range, READ).expect("registered");
        assert_eq!((own.local_key, own.remote_key), Wide::keys(range));
        cache.deregister(own.handle).expect("known");
    }
    let mut known = std::collections::HashSet::new();
    for _ in 0..10_000 {
        let handle = cache.register(pages(5, 1), READ).expect("registered").handle;
        assert!(known.insert(handle.to_bits()), "{handle:?} was reused");
        assert_eq!(Handle::from_bits(handle.to_bits()), handle);
        cache.deregister(handle).expect("known");
        assert_eq!(cache.deregister(handle), Err(UnknownHandle(handle)));
    }
    assert!(known.iter().any(|bits| *bits > u64::from(u32::MAX)), "handles have more than 32 bits");
}

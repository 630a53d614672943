//! Registrars that panic, fail, block, and call the cache.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::sync::{Barrier, OnceLock};

use super::*;

/// An additional action that a registrar performs in a call.
type RegistrarAction = Box<dyn Fn(Range) + Send + Sync>;

/// A registrar that pins in a [`ModelMemory`] and runs an additional action in each call.
#[derive(Default)]
struct Twisted {
    memory: Arc<ModelMemory>,
    pin: OnceLock<RegistrarAction>,
    unpin: OnceLock<RegistrarAction>,
}

impl Registrar for Arc<Twisted> {
    type Pin = (u64, Range);

    fn pin(&self, range: Range, access: Access) -> io::Result<Pinned<Self::Pin>> {
        self.pin.get().into_iter().for_each(|action| action(range));
        let Pinned { pin, local_key, remote_key } = self.memory.pin(range, access)?;
        Ok(Pinned { pin: (pin, range), local_key, remote_key })
    }

    fn unpin(&self, (pin, range): Self::Pin) {
        self.memory.unpin(pin);
        self.unpin.get().into_iter().for_each(|action| action(range));
    }
}

fn twisted() -> (Arc<Twisted>, Cache<Arc<Twisted>>, Notifier) {
    let (notifier, imported) = Notifier::new(|_, _| true).expect("a descriptor");
    let registrar = Arc::new(Twisted::default());
    let cache = Cache::builder(Arc::clone(&registrar)).monitor(Choice::Imported(imported)).max_count(64);
    (registrar, cache.open().expect("opens"), notifier)
}

impl Twisted {
    fn at_pin(&self, action: impl Fn(Range) + Send + Sync + 'static) {
        assert!(self.pin.set(Box::new(action)).is_ok(), "once");
    }

    fn at_unpin(&self, action: impl Fn(Range) + Send + Sync + 'static) {
        assert!(self.unpin.set(Box::new(action)).is_ok(), "once");
    }

    /// Returns the number of current pins.
    fn pinned(&self) -> u64 {
        self.memory.pinned.load(Ordering::Relaxed) - self.memory.unpinned.load(Ordering::Relaxed)
    }
}

fn transfer(lane: &Lane<Arc<Twisted>>, range: Range) {
    lane.end(lane.get(range, READ).expect("registered"));
}

/// Requirements: RCACHE-021.
#[test]
fn an_unpin_that_panics_leaves_no_other_registration_pinned() {
    let (registrar, cache, _notifier) = twisted();
    registrar.at_unpin(|_| panic!("a registrar that always panics"));
    let lane = cache.lane();
    (0..8).for_each(|n| transfer(&lane, pages(10 * n, 1)));
    cache.flush();
    assert_eq!((registrar.pinned(), cache.stats().retired), (0, 0), "by a flush");
    // The look-ups succeed although the registrar panics.
    for n in 0..1000 {
        transfer(&lane, pages(10 * n, 1));
    }
    assert!(lane.is_idle() && registrar.pinned() <= 64);
    let own = cache.register(pages(0, 1), READ).expect("registered");
    let before = registrar.pinned();
    cache.deregister(own.handle).expect("is there");
    assert_eq!(registrar.pinned(), before - 1);
    drop((lane, cache));
    assert_eq!(registrar.pinned(), 0, "by the end of the cache");
}

/// Requirements: RCACHE-021.
#[test]
fn an_unpin_of_one_use_that_panics_ends_the_use() {
    let registrar = Arc::new(Twisted::default());
    registrar.at_unpin(|_| panic!("a registrar that always panics"));
    let cache = Cache::builder(Arc::clone(&registrar)).monitor(Choice::None).open().expect("opens");
    let lane = cache.lane();
    (0..8).for_each(|n| transfer(&lane, pages(n, 1)));
    assert_eq!((registrar.pinned(), cache.stats().failures), (0, 0));
}

/// Requirements: RCACHE-021.
#[test]
fn panicking_pin_unwinds_to_the_caller_and_leaves_no_state() {
    let (registrar, cache, notifier) = twisted();
    registrar.at_pin(|range| assert!(range.start() != 0, "a registrar that panics at one address"));
    let lane = cache.lane();
    for _ in 0..3 {
        catch_unwind(AssertUnwindSafe(|| transfer(&lane, pages(0, 1)))).expect_err("the registrar's panic");
        catch_unwind(AssertUnwindSafe(|| cache.register(pages(0, 1), READ))).expect_err("the registrar's panic");
    }
    assert_eq!(cache.0.table().registering(), 0, "no registration has begun");
    transfer(&lane, pages(1, 1));
    transfer(&lane, pages(1, 1));
    notifier.changed(pages(1, 1));
    cache.sweep();
    let stats = cache.stats();
    assert_eq!((stats.misses, stats.hits, stats.failures, stats.retired, stats.own), (1, 1, 3, 0, 0), "{stats:?}");
    assert!(lane.is_idle() && registrar.pinned() == 0);
}

/// Requirements: MON-004.
#[test]
fn panicking_watch_callback_leaves_no_state() {
    let (_notifier, imported) = Notifier::new(|range, _| range.start() != 0 || panic!("asked")).expect("a descriptor");
    let memory = Arc::new(ModelMemory::default());
    let cache = Cache::builder(Arc::clone(&memory)).monitor(Choice::Imported(imported)).open().expect("opens");
    let lane = cache.lane();
    catch_unwind(AssertUnwindSafe(|| lane.get(pages(0, 1), READ).map(|used| lane.end(used))))
        .expect_err("the registrar's panic");
    assert_eq!(cache.0.table().registering(), 0, "no registration has begun");
    let _ = key(&lane, pages(1, 1), READ);
    assert_eq!(cache.stats().entries, 1);
}

/// The old pages may be pinned before the change is over, although no change is reported in the meantime.
///
/// Requirements: RCACHE-021.
#[test]
fn a_registration_that_begins_during_a_change_is_used_once() {
    let (registrar, cache, _notifier) = twisted();
    let page = cache.0.monitor.page().expect("the monitor reports changes");
    page.busy.store(1, Ordering::Release);
    // The change ends after the pages were pinned.
    registrar.at_pin(move |_| page.busy.store(0, Ordering::Release));
    let lane = cache.lane();
    for single in [true, false] {
        let used = lane.get(pages(3, 4), READ).expect("registered");
        assert_eq!(used.is_single(), single);
        lane.end(used);
    }
    assert_eq!(cache.stats().single_uses_for(Refusal::Changed), 1);
    assert_eq!(registrar.pinned(), 1, "the registration of the second look-up is kept");
}

/// Requirements: RCACHE-023.
#[test]
fn failed_pin_leaves_nothing_pinned_and_is_retried() {
    let memory = Arc::new(ModelMemory { limit: Some(0), ..ModelMemory::default() });
    let (cache, _notifier) = open(&memory, 64, u64::MAX);
    let lane = cache.lane();
    for _ in 0..3 {
        let error = lane.get(pages(0, 1), READ).expect_err("no pin is allowed");
        assert_eq!(error.errno(), libc::ENOMEM);
        cache.register(pages(0, 1), READ).expect_err("no pin is allowed");
    }
    let stats = cache.stats();
    assert_eq!((stats.failures, stats.entries, stats.own, cache.0.table().registering()), (3, 0, 0, 0), "{stats:?}");
    assert!(lane.is_idle());
}

/// Requirements: RCACHE-010.
#[test]
fn blocking_registrar_does_not_block_other_lanes() {
    let (registrar, cache, notifier) = twisted();
    // The registrar blocks at two addresses: when it pins one, and when it unpins the other.
    let (in_call, go_on) = (Arc::new(Barrier::new(3)), Arc::new(Barrier::new(3)));
    let block = |at: Range| {
        let (in_call, go_on) = (Arc::clone(&in_call), Arc::clone(&go_on));
        move |range: Range| {
            if range == at {
                in_call.wait();
                go_on.wait();
            }
        }
    };
    registrar.at_pin(block(pages(1, 1)));
    registrar.at_unpin(block(pages(2, 1)));
    let lane = cache.lane();
    let own = cache.register(pages(2, 1), READ).expect("registered");
    std::thread::scope(|scope| {
        scope.spawn(|| transfer(&cache.lane(), pages(1, 1)));
        scope.spawn(|| cache.deregister(own.handle));
        in_call.wait();
        for n in 10..100 {
            transfer(&lane, pages(n, 1));
            transfer(&lane, pages(n, 1));
        }
        notifier.changed(pages(50, 60));
        cache.sweep();
        cache.flush();
        assert_eq!((cache.check(), cache.stats().failures), (None, 0));
        let lane = cache.lane();
        transfer(&lane, pages(10, 1));
        go_on.wait();
    });
    transfer(&lane, pages(1, 1));
    drop((lane, cache));
    assert_eq!(registrar.pinned(), 0);
}

/// Requirements: RCACHE-010.
#[test]
fn registrars_may_call_the_cache() {
    let (registrar, cache, notifier) = twisted();
    let (calls, called) = mpsc::channel();
    let reaches = |cache: &Cache<Arc<Twisted>>, calls: &mpsc::Sender<u64>, range: Range| {
        // For an odd page it looks up the page before, so the recursion ends.
        if range.start() / page_size() % 2 == 1 {
            let lane = cache.lane();
            transfer(&lane, pages(range.start() / page_size() - 1, 1));
            cache.sweep();
            cache.flush();
            let own = cache.register(pages(1000, 1), READ).expect("registered");
            cache.deregister(own.handle).expect("is there");
            calls.send(cache.stats().misses).expect("is there");
        }
    };
    registrar.at_pin({
        let (cache, calls) = (cache.clone(), calls.clone());
        move |range| reaches(&cache, &calls, range)
    });
    registrar.at_unpin({
        let cache = cache.clone();
        move |range| reaches(&cache, &calls, range)
    });
    let lane = cache.lane();
    for n in 0..40 {
        transfer(&lane, pages(n, 1));
        notifier.changed(pages(n, 1));
        cache.sweep();
    }
    cache.flush();
    assert!(called.try_iter().count() >= 40, "pinned and unpinned");
    assert!(lane.is_idle() && cache.stats().entries + cache.stats().retired == registrar.pinned());
}

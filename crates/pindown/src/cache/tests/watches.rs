//! The locks of a monitor and its watches of files: each ends once, after the memory was unpinned.

use super::*;
use crate::journal::MonitorDoorbell;
use crate::monitor::WatchedInode;
use crate::monitor::imported::Imported;

/// A call of the monitor or of the registrar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Watch(Range),
    Pin(Range),
    Unpin(Range),
    Unlock(Range),
    Unwatch(u32),
}

/// The calls so far.
#[derive(Debug, Default)]
struct Calls(Mutex<Vec<Call>>);

impl Calls {
    fn add(&self, call: Call) {
        self.0.lock().expect("no panic").push(call);
    }

    /// Returns the calls since the last call of this function.
    fn take(&self) -> Vec<Call> {
        std::mem::take(&mut *self.0.lock().expect("no panic"))
    }
}

/// A monitor that locks all memory, and also watches a file for it if `slot` is not `None`.
#[derive(Debug)]
struct Locking {
    imported: Imported,
    slot: Option<u32>,
    calls: Arc<Calls>,
}

impl MonitorBackend for Locking {
    fn name(&self) -> &'static str {
        "locking"
    }

    fn page(&self) -> Option<&'static JournalPage> {
        self.imported.page()
    }

    fn doorbell(&self) -> Option<&dyn MonitorDoorbell> {
        self.imported.doorbell()
    }

    fn watch(&self, range: Range, _access: Access) -> Result<Watched, Refusal> {
        self.calls.add(Call::Watch(range));
        Ok(Watched { inode: self.slot.map(|slot| WatchedInode { slot, count: 0 }), locked: Some(range) })
    }

    fn unwatch(&self, inode: u32) {
        self.calls.add(Call::Unwatch(inode));
    }

    fn unlock(&self, range: Range) {
        self.calls.add(Call::Unlock(range));
    }
}

/// A registrar that rejects large ranges, and reports a change of the range during a pin.
struct Disturbed {
    calls: Arc<Calls>,
    notifier: Notifier,
    /// The largest size in bytes of a range that can be pinned.
    most: AtomicU64,
    /// The number of the next pins during which a change is reported.
    changes: AtomicU64,
}

impl Registrar for Disturbed {
    type Pin = Range;

    fn pin(&self, range: Range, _access: Access) -> io::Result<Pinned<Range>> {
        self.calls.add(Call::Pin(range));
        if range.len() > self.most.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let left = self.changes.load(Ordering::Relaxed);
        if left > 0 {
            self.changes.store(left - 1, Ordering::Relaxed);
            self.notifier.changed(range);
        }
        Ok(Pinned { pin: range, local_key: 0, remote_key: 0 })
    }

    fn unpin(&self, range: Range) {
        self.calls.add(Call::Unpin(range));
    }
}

fn locking(slot: Option<u32>, merging: bool) -> (Arc<Calls>, Cache<Disturbed>) {
    let (notifier, imported) = Notifier::new(|_, _| true).expect("a descriptor");
    let calls = Arc::new(Calls::default());
    let (most, changes) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
    let registrar = Disturbed { calls: Arc::clone(&calls), notifier, most, changes };
    let builder = Cache::builder(registrar).monitor(Choice::Imported(imported.clone())).merging(merging);
    let mut cache = builder.open().expect("opens");
    let shared = Arc::get_mut(&mut cache.0).expect("the cache has no lane");
    shared.monitor = Box::new(Locking { imported, slot, calls: Arc::clone(&calls) });
    (calls, cache)
}

/// Returns the calls that make a registration.
fn begin(range: Range) -> Vec<Call> {
    vec![Call::Watch(range), Call::Pin(range)]
}

/// Returns the calls that revert [`Call::Watch`].
fn unwatch(range: Range, slot: Option<u32>) -> Vec<Call> {
    [Call::Unlock(range)].into_iter().chain(slot.map(Call::Unwatch)).collect()
}

/// Returns the calls that end a kept registration.
fn end(range: Range, slot: Option<u32>) -> Vec<Call> {
    [vec![Call::Unpin(range)], unwatch(range, slot)].concat()
}

#[test]
fn memory_is_unlocked_after_it_was_unpinned() {
    let (range, other) = (pages(10, 2), pages(20, 1));
    for slot in [None, Some(5)] {
        let (calls, cache) = locking(slot, false);
        let lane = cache.lane();
        lane.end(lane.get(range, READ).expect("registered"));
        assert_eq!(calls.take(), begin(range));
        cache.flush();
        assert_eq!(calls.take(), end(range, slot), "a kept registration");
        let own = cache.register(range, READ).expect("registered");
        assert_eq!(calls.take(), begin(range));
        cache.deregister(own.handle).expect("known");
        assert_eq!(calls.take(), end(range, slot), "a registration of the application");
        lane.end(lane.get(range, READ).expect("registered"));
        cache.register(other, READ).expect("registered");
        assert_eq!(calls.take(), [begin(range), begin(other)].concat());
        drop((lane, cache));
        assert_eq!(calls.take(), [end(range, slot), end(other, slot)].concat(), "the end of the cache");
    }
}

#[test]
fn a_registration_that_fails_or_is_not_kept_leaves_no_memory_locked() {
    let range = pages(10, 2);
    for slot in [None, Some(5)] {
        let (calls, cache) = locking(slot, false);
        let registrar = &cache.0.registrar;
        let lane = cache.lane();
        registrar.most.store(page_size(), Ordering::Relaxed);
        lane.get(range, READ).expect_err("too large for the registrar");
        assert_eq!(calls.take(), [begin(range), unwatch(range, slot)].concat(), "a look-up that failed");
        cache.register(range, READ).expect_err("too large for the registrar");
        assert_eq!(calls.take(), [begin(range), unwatch(range, slot)].concat(), "a registration of the application");
        registrar.most.store(u64::MAX, Ordering::Relaxed);
        registrar.changes.store(1, Ordering::Relaxed);
        let used = lane.get(range, READ).expect("registered");
        assert!(used.is_single(), "the memory changed");
        assert_eq!(calls.take(), [begin(range), unwatch(range, slot)].concat(), "a registration for one use");
        lane.end(used);
        assert_eq!(calls.take(), [Call::Unpin(range)]);
        drop((lane, cache));
        assert_eq!(calls.take(), [], "nothing was kept");
    }
}

#[test]
fn a_merged_registration_that_fails_leaves_no_memory_locked() {
    let [one, other, both] = [pages(10, 1), pages(11, 1), pages(10, 2)];
    let (calls, cache) = locking(None, true);
    cache.0.registrar.most.store(page_size(), Ordering::Relaxed);
    let lane = cache.lane();
    for range in [one, other] {
        let used = lane.get(range, READ).expect("registered");
        assert!(!used.is_single());
        lane.end(used);
    }
    assert_eq!(calls.take(), [begin(one), begin(both), unwatch(both, None), begin(other)].concat());
    drop((lane, cache));
    assert_eq!(calls.take(), [end(one, None), end(other, None)].concat());
}

//! Loom models of hits, invalidation and repeated registration, in all interleavings (in most models, in those with at
//! most two to four preemptions).
//!
//! The registrar pins a number that stands for the pages at the address. A thread that changes the pages reports the
//! change to the journal after it has removed the old pages and before it maps new ones, as a monitor does. The models
//! check that a look-up that begins after a change was reported never returns the old pages, that the keys it returns
//! belong to one registration, and that pages are unpinned only when they have no users.

use std::io;
use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::entry::Age;
use super::*;
use crate::monitor::Choice;
use crate::monitor::imported::Notifier;
use crate::registrar::Pinned;
use crate::sync::explore;

/// The maximum number of pins that a model makes.
const PINS: usize = 8;

/// Two ranges with the same first page, of different length.
fn ranges() -> [Range; 2] {
    [0x1_0000, 0x1000].map(|len| Range::new(0x10_0000, len).expect("a range"))
}

struct World {
    /// The version of the pages at the address.
    version: AtomicU64,
    /// The version of the last change that has been reported in full.
    reported: AtomicU64,
    /// The number of pins made so far.
    pins: AtomicU64,
    /// The version that each pin pinned.
    pinned: [AtomicU64; PINS],
    /// Whether each pin has been unpinned.
    unpinned: [AtomicBool; PINS],
}

impl Registrar for Arc<World> {
    type Pin = u64;

    fn pin(&self, _range: Range, _access: Access) -> io::Result<Pinned<u64>> {
        let pin = self.pins.fetch_add(1, Ordering::SeqCst);
        let version = self.version.load(Ordering::SeqCst);
        self.pinned[pin as usize].store(version, Ordering::SeqCst);
        Ok(Pinned { pin, local_key: pin, remote_key: version })
    }

    fn unpin(&self, pin: u64) {
        assert!(!self.unpinned[pin as usize].swap(true, Ordering::SeqCst), "unpinned twice");
    }
}

fn world() -> (Arc<World>, Cache<Arc<World>>, Notifier) {
    let world = Arc::new(World {
        version: AtomicU64::new(0),
        reported: AtomicU64::new(0),
        pins: AtomicU64::new(0),
        pinned: std::array::from_fn(|_| AtomicU64::new(0)),
        unpinned: std::array::from_fn(|_| AtomicBool::new(false)),
    });
    let (notifier, imported) = Notifier::new(|_, _| true).expect("a descriptor");
    let cache = Cache::builder(Arc::clone(&world)).monitor(Choice::Imported(imported)).max_count(4).open();
    (world, cache.expect("opens"), notifier)
}

fn page() -> Range {
    Range::new(0x1000, 8).expect("a range")
}

/// Starts a thread that changes the pages, and then calls `then` with the cache.
fn start_changer(
    world: &Arc<World>,
    cache: &Cache<Arc<World>>,
    notifier: Notifier,
    then: impl FnOnce(&Cache<Arc<World>>) + 'static,
) -> loom::thread::JoinHandle<()> {
    let (world, cache) = (Arc::clone(world), cache.clone());
    loom::thread::spawn(move || {
        world.change(&notifier);
        then(&cache);
    })
}

fn sweep_twice(cache: &Cache<Arc<World>>) {
    cache.sweep();
    cache.sweep();
}

/// Checks a model in which the pages are changed during a look-up, before which `before` look-ups were made.
fn changed_during_a_look_up(before: usize, expected: usize) {
    explore(None, expected, move || {
        let (world, cache, notifier) = world();
        let lane = cache.lane();
        (0..before).for_each(|_| world.transfer(&lane));
        let changer = loom::thread::spawn({
            let world = Arc::clone(&world);
            move || world.change(&notifier)
        });
        world.transfer(&lane);
        changer.join().expect("no panic");
        world.transfer(&lane);
    });
}

impl World {
    /// Maps new pages at the address and reports the change, in the order that a monitor guarantees.
    fn change(&self, notifier: &Notifier) {
        let next = self.version.load(Ordering::SeqCst) + 1;
        self.version.store(next, Ordering::SeqCst);
        notifier.changed(page().pages());
        self.reported.store(next, Ordering::SeqCst);
    }

    /// Makes one transfer. Checks that it never uses pages older than the changes reported before it began, and never
    /// unpinned pages.
    fn transfer(&self, lane: &Lane<Arc<World>>) {
        let reported = self.reported.load(Ordering::SeqCst);
        let used = lane.get(page(), Access::empty()).expect("registered");
        assert!(used.remote_key() >= reported, "stale: pages {} after {reported} were reported", used.remote_key());
        let pinned = self.pinned[used.local_key() as usize].load(Ordering::SeqCst);
        assert_eq!(used.remote_key(), pinned, "the keys belong to different registrations");
        loom::thread::yield_now();
        assert!(!self.unpinned[used.local_key() as usize].load(Ordering::SeqCst), "unpinned while in use");
        lane.end(used);
    }

    /// Checks that a held registration is still pinned.
    fn check_held(&self, pin: usize) {
        assert!(!self.unpinned[pin].load(Ordering::SeqCst), "unpinned while held");
    }

    /// Waits for the other user of a registration, and checks that the next sweep unpins it.
    fn check_let_go(&self, pin: usize, cache: &Cache<Arc<Self>>, other: loom::thread::JoinHandle<()>) {
        other.join().expect("no panic");
        cache.sweep();
        assert!(self.unpinned[pin].load(Ordering::SeqCst), "the unused registration was not unpinned");
    }
}

/// A use is held while its registration is removed from the cache. The registration is unpinned after the use ends, not
/// before.
#[test]
fn loom_a_held_use_against_the_unpinning_of_its_evicted_entry() {
    explore(Some(3), 80, || {
        let (world, cache, notifier) = world();
        let lane = cache.lane();
        let used = lane.get(page(), Access::empty()).expect("registered");
        let pin = used.local_key() as usize;
        let sweeper = start_changer(&world, &cache, notifier, sweep_twice);
        let held = lane.hold(used);
        world.check_held(pin);
        loom::thread::yield_now();
        world.check_held(pin);
        lane.end(held);
        world.check_let_go(pin, &cache, sweeper);
    });
}

/// Like the test above, but two threads hold the registration, and one of them ends its use while the registration is
/// removed.
#[test]
fn loom_two_holders_and_a_sweep() {
    explore(Some(3), 20, || {
        let (world, cache, notifier) = world();
        let lane = cache.lane();
        let held = lane.hold(lane.get(page(), Access::empty()).expect("registered"));
        let pin = held.local_key() as usize;
        let other = loom::thread::spawn({
            let (world, lane) = (Arc::clone(&world), cache.lane());
            let held = lane.hold(lane.get(page(), Access::empty()).expect("registered"));
            assert_eq!(held.local_key() as usize, pin);
            move || {
                world.check_held(pin);
                lane.end(held);
            }
        });
        world.change(&notifier);
        cache.sweep();
        world.check_held(pin);
        lane.end(held);
        world.check_let_go(pin, &cache, other);
    });
}

#[test]
fn loom_a_hit_against_a_change() {
    changed_during_a_look_up(1, 20);
}

#[test]
fn loom_a_use_against_the_unpinning_of_its_evicted_entry() {
    explore(Some(3), 600, || {
        let (world, cache, notifier) = world();
        let lane = cache.lane();
        world.transfer(&lane);
        let sweeper = start_changer(&world, &cache, notifier, sweep_twice);
        world.transfer(&lane);
        world.transfer(&lane);
        sweeper.join().expect("no panic");
    });
}

#[test]
fn loom_two_lanes_and_a_flush() {
    explore(Some(2), 6000, || {
        let (world, cache, notifier) = world();
        let lane = cache.lane();
        world.transfer(&lane);
        let other = loom::thread::spawn({
            let (world, cache) = (Arc::clone(&world), cache.clone());
            move || {
                let lane = cache.lane();
                world.transfer(&lane);
            }
        });
        let changer = start_changer(&world, &cache, notifier, Cache::flush);
        world.transfer(&lane);
        other.join().expect("no panic");
        changer.join().expect("no panic");
    });
}

#[test]
fn loom_a_registration_against_a_change() {
    changed_during_a_look_up(0, 500);
}

/// The grace period alone: two entries are published and retired in turn while a reader, which may have loaded an old
/// epoch, uses the entry that it finds.
#[test]
fn loom_a_late_reader_against_two_graces() {
    explore(Some(4), 35, || {
        let epoch = Arc::new(AtomicU64::new(0));
        let found = Arc::new(AtomicU64::new(1));
        let freed: Arc<[AtomicBool; 4]> = Arc::new(std::array::from_fn(|_| AtomicBool::new(false)));
        let mut grace = grace::Grace::new();
        let counts = grace.join();
        let reader = loom::thread::spawn({
            let (epoch, found, freed) = (Arc::clone(&epoch), Arc::clone(&found), Arc::clone(&freed));
            move || {
                let parity = Parity::of(epoch.load(Ordering::Relaxed));
                counts.begin(parity);
                let entry = found.load(Ordering::Relaxed) as usize;
                assert!(!freed[entry].load(Ordering::Relaxed), "an entry was found after it was freed");
                loom::thread::yield_now();
                assert!(!freed[entry].load(Ordering::Relaxed), "an entry was freed while in use");
                counts.end(parity);
            }
        });
        for entry in 1..=2 {
            found.store(entry + 1, Ordering::Relaxed);
            grace.retire(entry as u32);
            for _ in 0..2 {
                grace.pass(&epoch, |ended| freed[ended as usize].store(true, Ordering::Relaxed));
            }
        }
        reader.join().expect("no panic");
    });
}

/// An entry is removed and filled with another registration while a reader, which may announce itself at any moment,
/// reads it and marks it as used.
fn filled_again(
    expected: usize,
    first: (Range, Access),
    second: (Range, Access),
    asks: (Range, Access),
    allowed: &'static [u64],
) {
    explore(Some(4), expected, move || {
        let epoch = Arc::new(AtomicU64::new(0));
        let entry = Arc::new(Entry::zero());
        let fill = |key, (range, access): (Range, Access)| {
            entry.fill(range, access, &Pinned { pin: (), local_key: key, remote_key: key + 10 }, false);
            entry.publish(Age::of(key));
        };
        let mut grace = grace::Grace::new();
        let counts = grace.join();
        let reader = loom::thread::spawn({
            let (epoch, entry) = (Arc::clone(&epoch), Arc::clone(&entry));
            move || {
                let parity = Parity::of(epoch.load(Ordering::Relaxed));
                counts.begin(parity);
                if let Some(serves) = entry.how_serves(asks.0, asks.1) {
                    entry.touch(serves, Age::of(9));
                    let (local, remote) = entry.keys();
                    assert!(allowed.contains(&local), "the key of another registration: {local}");
                    assert_eq!(remote, local + 10, "the keys belong to different registrations");
                }
                counts.end(parity);
            }
        });
        fill(1, first);
        entry.kill();
        grace.retire(0);
        let mut is_free = false;
        for _ in 0..2 {
            grace.pass(&epoch, |_| is_free = true);
        }
        if is_free {
            entry.vacate();
            fill(2, second);
        }
        reader.join().expect("no panic");
        let (range, access) = if is_free { second } else { first };
        assert_eq!((entry.range(), entry.rights(), entry.is_live()), (range, access, is_free));
    });
}

#[test]
fn loom_a_reader_against_an_entry_that_is_filled_again_with_a_shorter_range() {
    let [long, short] = ranges();
    filled_again(200, (long, Access::empty()), (short, Access::empty()), (long, Access::empty()), &[1]);
}

#[test]
fn loom_a_reader_against_an_entry_that_is_filled_again_with_a_longer_range() {
    let [long, short] = ranges();
    filled_again(200, (short, Access::empty()), (long, Access::empty()), (long, Access::empty()), &[2]);
}

#[test]
fn loom_a_reader_against_an_entry_that_is_filled_again_with_other_rights() {
    let [long, short] = ranges();
    filled_again(200, (long, Access::empty()), (short, Access::LOCAL_WRITE), (short, Access::LOCAL_WRITE), &[2]);
}

/// A registrar that records the range of each pin, and whether it was unpinned.
#[derive(Default)]
struct Ledger {
    pins: AtomicU64,
    ranges: [[AtomicU64; 2]; PINS],
    unpinned: [AtomicBool; PINS],
}

impl Registrar for Arc<Ledger> {
    type Pin = usize;

    fn pin(&self, range: Range, _access: Access) -> io::Result<Pinned<usize>> {
        let pin = self.pins.fetch_add(1, Ordering::SeqCst) as usize;
        self.ranges[pin][0].store(range.start(), Ordering::SeqCst);
        self.ranges[pin][1].store(range.end(), Ordering::SeqCst);
        Ok(Pinned { pin, local_key: pin as u64, remote_key: pin as u64 + 100 })
    }

    fn unpin(&self, pin: usize) {
        assert!(!self.unpinned[pin].swap(true, Ordering::SeqCst), "unpinned twice");
    }
}

impl Ledger {
    /// Opens a cache that keeps at most `count` registrations.
    fn cache(count: u32, merging: bool) -> (Arc<Self>, Cache<Arc<Self>>, Notifier) {
        let ledger = Arc::new(Self::default());
        let (notifier, imported) = Notifier::new(|_, _| true).expect("a descriptor");
        let cache = Cache::builder(Arc::clone(&ledger)).monitor(Choice::Imported(imported)).max_count(count);
        (ledger, cache.merging(merging).open().expect("opens"), notifier)
    }

    /// Makes one transfer. Checks that its key belongs to one registration that contains all its bytes and stays pinned
    /// while it is used.
    fn transfer(&self, lane: &Lane<Arc<Self>>, range: Range) {
        let used = lane.get(range, Access::empty()).expect("registered");
        let pin = used.local_key() as usize;
        assert_eq!(used.remote_key(), pin as u64 + 100, "the keys belong to different registrations");
        let [start, end] = [0, 1].map(|word| self.ranges[pin][word].load(Ordering::SeqCst));
        let pinned = Range::between(start, end).expect("was pinned");
        assert!(pinned.contains(range), "the key for {range} belongs to {pinned}");
        assert!(!self.unpinned[pin].load(Ordering::SeqCst), "unpinned while in use");
        lane.end(used);
    }
}

/// The cache has room for one of the two ranges: each registration takes the place, and possibly the entry, of the
/// other.
#[test]
fn loom_two_ranges_that_evict_each_other() {
    explore(Some(2), 60, || {
        let (ledger, cache, _notifier) = Ledger::cache(1, false);
        let lane = cache.lane();
        let [long, short] = ranges();
        ledger.transfer(&lane, long);
        let other = loom::thread::spawn({
            let (ledger, cache) = (Arc::clone(&ledger), cache.clone());
            move || {
                let lane = cache.lane();
                cache.flush();
                cache.sweep();
                ledger.transfer(&lane, short);
            }
        });
        ledger.transfer(&lane, long);
        other.join().expect("no panic");
    });
}

/// Like the test above, but the cache has room for both ranges, and their common first page changes.
#[test]
fn loom_two_ranges_and_a_change() {
    explore(Some(2), 180, || {
        let (ledger, cache, notifier) = Ledger::cache(2, false);
        let lane = cache.lane();
        let [long, short] = ranges();
        ledger.transfer(&lane, long);
        let other = loom::thread::spawn({
            let (ledger, cache) = (Arc::clone(&ledger), cache.clone());
            move || {
                notifier.changed(short);
                cache.sweep();
                let lane = cache.lane();
                ledger.transfer(&lane, short);
            }
        });
        ledger.transfer(&lane, long);
        other.join().expect("no panic");
        ledger.transfer(&lane, long);
    });
}

/// A registration is merged with its neighbour while two threads look up both.
#[test]
fn loom_look_ups_against_a_merge() {
    explore(Some(2), 800, || {
        let (ledger, cache, _notifier) = Ledger::cache(2, true);
        let lane = cache.lane();
        let [first, second] = [0x10_0000, 0x10_1000].map(|start| Range::new(start, 0x1000).expect("a range"));
        ledger.transfer(&lane, first);
        let other = loom::thread::spawn({
            let (ledger, cache) = (Arc::clone(&ledger), cache.clone());
            move || {
                let lane = cache.lane();
                ledger.transfer(&lane, second);
                cache.sweep();
            }
        });
        ledger.transfer(&lane, first);
        ledger.transfer(&lane, second);
        other.join().expect("no panic");
    });
}

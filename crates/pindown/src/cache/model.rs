//! Loom: hits, invalidation and registration anew, in every interleaving.
//!
//! The registrar pins a number that stands for the pages which are at the address; whoever changes them tells the journal
//! between taking the old away and putting the new there, as a monitor does. Checked: a look-up that begins after a
//! change was told never gets the old pages, what it gets is of one registration, and pages are unpinned only when nobody uses them.

use std::io;
use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;
use crate::monitor::Choice;
use crate::monitor::imported::Notifier;
use crate::registrar::Pinned;

/// Pins that a model makes at most.
const PINS: usize = 8;

struct World {
    /// Which pages are at the address.
    version: AtomicU64,
    /// Which changes have been told in full.
    told: AtomicU64,
    /// Pins made so far.
    pins: AtomicU64,
    /// What each of them pinned.
    pinned: [AtomicU64; PINS],
    /// Which of them have been undone.
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
        told: AtomicU64::new(0),
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

impl World {
    /// Other pages, in the order that a monitor promises.
    fn change(&self, notifier: &Notifier) {
        let next = self.version.load(Ordering::SeqCst) + 1;
        self.version.store(next, Ordering::SeqCst);
        notifier.changed(page().pages());
        self.told.store(next, Ordering::SeqCst);
    }

    /// One transfer: never through pages older than what was told before it began, never through pages let go.
    fn transfer(&self, lane: &Lane<Arc<World>>) {
        let told = self.told.load(Ordering::SeqCst);
        let used = lane.get(page(), Access::empty()).expect("registered");
        assert!(used.remote_key() >= told, "stale: pages {} after {told} were told", used.remote_key());
        let pinned = self.pinned[used.local_key() as usize].load(Ordering::SeqCst);
        assert_eq!(used.remote_key(), pinned, "keys of two registrations");
        loom::thread::yield_now();
        assert!(!self.unpinned[used.local_key() as usize].load(Ordering::SeqCst), "unpinned while in use");
        lane.end(used);
    }
}

/// A use that is held while its registration leaves the cache: not unpinned before it ends, and unpinned after.
#[test]
fn loom_a_held_use_against_the_unpinning_of_what_was_taken_out() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (world, cache, notifier) = world();
        let lane = cache.lane();
        let used = lane.get(page(), Access::empty()).expect("registered");
        let pin = used.local_key() as usize;
        let sweeper = loom::thread::spawn({
            let (world, cache) = (Arc::clone(&world), cache.clone());
            move || {
                world.change(&notifier);
                cache.sweep();
                cache.sweep();
            }
        });
        let held = lane.hold(used);
        assert!(!world.unpinned[pin].load(Ordering::SeqCst), "unpinned while held");
        loom::thread::yield_now();
        assert!(!world.unpinned[pin].load(Ordering::SeqCst), "unpinned while held");
        lane.end(held);
        sweeper.join().expect("no panic");
        cache.sweep();
        assert!(world.unpinned[pin].load(Ordering::SeqCst), "nobody uses it, and it is not let go");
    });
}

/// The same of a registration that two threads hold, one of which ends while it is taken out.
#[test]
fn loom_two_holders_and_a_sweep() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (world, cache, notifier) = world();
        let lane = cache.lane();
        let held = lane.hold(lane.get(page(), Access::empty()).expect("registered"));
        let pin = held.local_key() as usize;
        let other = loom::thread::spawn({
            let (world, lane) = (Arc::clone(&world), cache.lane());
            let held = lane.hold(lane.get(page(), Access::empty()).expect("registered"));
            assert_eq!(held.local_key() as usize, pin);
            move || {
                assert!(!world.unpinned[pin].load(Ordering::SeqCst), "unpinned while held");
                lane.end(held);
            }
        });
        world.change(&notifier);
        cache.sweep();
        assert!(!world.unpinned[pin].load(Ordering::SeqCst), "unpinned while held");
        lane.end(held);
        other.join().expect("no panic");
        cache.sweep();
        assert!(world.unpinned[pin].load(Ordering::SeqCst), "nobody uses it, and it is not let go");
    });
}

#[test]
fn loom_a_hit_against_a_change() {
    loom::model(|| {
        let (world, cache, notifier) = world();
        let lane = cache.lane();
        world.transfer(&lane);
        let changer = loom::thread::spawn({
            let world = Arc::clone(&world);
            move || world.change(&notifier)
        });
        world.transfer(&lane);
        changer.join().expect("no panic");
        world.transfer(&lane);
    });
}

#[test]
fn loom_a_use_against_the_unpinning_of_what_was_taken_out() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (world, cache, notifier) = world();
        let lane = cache.lane();
        world.transfer(&lane);
        let sweeper = loom::thread::spawn({
            let (world, cache) = (Arc::clone(&world), cache.clone());
            move || {
                world.change(&notifier);
                cache.sweep();
                cache.sweep();
            }
        });
        world.transfer(&lane);
        world.transfer(&lane);
        sweeper.join().expect("no panic");
    });
}

#[test]
fn loom_two_lanes_and_a_flush() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
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
        let changer = loom::thread::spawn({
            let (world, cache) = (Arc::clone(&world), cache.clone());
            move || {
                world.change(&notifier);
                cache.flush();
            }
        });
        world.transfer(&lane);
        other.join().expect("no panic");
        changer.join().expect("no panic");
    });
}

#[test]
fn loom_a_registration_against_a_change() {
    loom::model(|| {
        let (world, cache, notifier) = world();
        let lane = cache.lane();
        let changer = loom::thread::spawn({
            let world = Arc::clone(&world);
            move || world.change(&notifier)
        });
        world.transfer(&lane);
        changer.join().expect("no panic");
        world.transfer(&lane);
    });
}

/// The grace period alone: two entries are published and retired in turn while a reader, whose epoch may be an old one,
/// uses what it finds.
#[test]
fn loom_a_late_reader_against_two_graces() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(4);
    model.check(|| {
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
                assert!(!freed[entry].load(Ordering::Relaxed), "found after it was freed");
                loom::thread::yield_now();
                assert!(!freed[entry].load(Ordering::Relaxed), "freed in use");
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

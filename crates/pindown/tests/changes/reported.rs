//! The reports of a cache about changes: checks, waits, and the limits of pinned memory.

use std::time::Duration;

use pindown::{Access, Waited};

use crate::oracle::{Memory, Oracle, PAGE, World, advise, done, map_anew, pattern, pinned_kilobytes, store, unmap};
use crate::range;

/// Requirements: MON-004.
#[test]
fn changed_page_invalidates_only_its_registrations() {
    let Some(world) = World::open() else { return };
    // There are three pages A, B and C. The registrations A+B and B+C both contain B.
    let memory = Memory::new(3);
    let [ab, bc, c] = [(0, 2), (1, 2), (2, 1)].map(|(page, pages)| range(memory.page(page), pages * PAGE));
    let [first, second, third] = [ab, bc, c].map(|part| world.cache.register(part, Access::LOCAL_WRITE));
    let [first, second, third] = [first, second, third].map(|made| made.expect("registered"));
    assert_eq!([first, second, third].map(|made| made.unwatched), [None; 3]);
    assert_eq!(world.cache.check(), None);
    unmap(memory.page(1), PAGE);
    let mut reported = Vec::from_iter(std::iter::from_fn(|| world.cache.check()));
    reported.sort_by_key(|handle| [first.handle, second.handle].iter().position(|one| one == handle));
    assert_eq!(reported, [first.handle, second.handle]);
    store(memory.page(2), &pattern(PAGE, 4));
    assert!(world.oracle.carry(third.local_key, memory.page(2), PAGE) == pattern(PAGE, 4));
    for made in [first, second, third] {
        world.cache.deregister(made.handle).expect("the registration exists");
    }
    assert_eq!(world.oracle.registered(), 0);
}

/// Requirements: MON-005.
#[test]
fn change_is_reported_for_both_registrations_of_a_page() {
    let Some(world) = World::open() else { return };
    let memory = Memory::new(1);
    let [low, high] = [range(memory.start, 100), range(memory.start + 2000, 100)]
        .map(|part| world.cache.register(part, Access::empty()).expect("registered"));
    unmap(memory.start, PAGE);
    let reported = [world.cache.check(), world.cache.check()];
    assert!(reported.contains(&Some(low.handle)) && reported.contains(&Some(high.handle)), "{reported:?}");
    assert_eq!(world.cache.check(), None);
    for made in [low, high] {
        world.cache.deregister(made.handle).expect("the registration exists");
    }
}

/// Requirements: MON-035.
#[test]
fn change_is_reported_to_both_caches() {
    let Some(world) = World::open() else { return };
    let other_oracle = Oracle::new();
    let builder = pindown::Cache::builder(other_oracle.clone()).monitor(pindown::monitor::Choice::Bpf);
    let other = builder.open().expect("the first cache could be opened");
    let lane = other.lane();
    let memory = Memory::new(2);
    let send = || {
        let used = lane.get(range(memory.start, memory.len), Access::empty()).expect("registered");
        let sent = other_oracle.carry(used.local_key(), memory.start, memory.len);
        lane.end(used);
        sent
    };
    store(memory.start, &pattern(memory.len, 1));
    assert!(send() == pattern(memory.len, 1) && world.send(memory.start, memory.len) == pattern(memory.len, 1));
    // A change that one cache has processed must still be processed by the other.
    advise(memory.start, PAGE, libc::MADV_DONTNEED);
    world.transfers(memory.start, memory.len, 2);
    world.cache.sweep();
    store(memory.start, &pattern(memory.len, 3));
    assert!(send() == pattern(memory.len, 3));
    assert_eq!((world.cache.stats().invalidations, other.stats().invalidations), (1, 1));
}

/// Requirements: MON-045, MON-046, MON-047.
#[test]
fn check_detects_all_earlier_changes() {
    let Some(world) = World::open() else { return };
    let memory = Memory::new(64);
    let registered = Vec::from_iter((0..64).map(|page| {
        let made = world.cache.register(range(memory.page(page), PAGE), Access::empty()).expect("registered");
        assert_eq!(made.unwatched, None);
        made.handle
    }));
    assert_eq!(world.cache.check(), None);
    for (page, handle) in registered.iter().enumerate().take(8) {
        unmap(memory.page(page as u64), PAGE);
        assert_eq!(world.cache.check(), Some(*handle));
        assert_eq!(world.cache.check(), None);
    }
    // Makes more changes than the ring of records can hold.
    let burst = Memory::new(1);
    for _ in 0..5000 {
        map_anew(burst.start, PAGE);
    }
    for page in 8..64 {
        unmap(memory.page(page), PAGE);
    }
    let mut reported = Vec::from_iter(std::iter::from_fn(|| world.cache.check()));
    reported.sort_by_key(|handle| registered.iter().position(|one| one == handle));
    assert_eq!(reported, registered[8..]);
    registered.iter().for_each(|handle| world.cache.deregister(*handle).expect("the registration exists"));
}

/// Requirements: MON-048, MON-051.
#[test]
fn a_wait_ends_with_a_change_or_an_interruption() {
    let Some(world) = World::open() else { return };
    let (memory, fd) = Memory::shared(4);
    let private = Memory::new(4);
    let register = |memory: &Memory| {
        let made = world.cache.register(range(memory.start, memory.len), Access::LOCAL_WRITE).expect("registered");
        assert_eq!(made.unwatched, None);
        made.handle
    };
    let changes: [(&Memory, &(dyn Fn() + Sync)); 3] = [
        (&private, &|| unmap(private.page(1), PAGE)),
        (&memory, &|| done(libc::SYS_fallocate, [fd, 3, PAGE, PAGE, 0, 0])),
        (&memory, &|| map_anew(memory.page(3), PAGE)),
    ];
    for (memory, change) in changes {
        let handle = register(memory);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| world.cache.wait(Some(Duration::from_secs(30))).expect("the wait succeeds"));
            change();
            assert_eq!(waiter.join().expect("the thread ends"), Waited::Changed(handle));
        });
        world.cache.deregister(handle).expect("the registration exists");
    }
    let first = world.cache.clone();
    let waiter = std::thread::spawn(move || first.wait(None).expect("the wait succeeds"));
    world.cache.interrupt();
    assert_eq!(waiter.join().expect("the thread ends"), Waited::Interrupted);
    assert_eq!(world.cache.wait(Some(Duration::from_millis(1))).expect("the wait succeeds"), Waited::TimedOut);
}

/// Requirements: MON-054.
#[test]
fn pages_are_unpinned_when_a_change_was_taken_in() {
    let Some(world) = World::open() else { return };
    let memory = Memory::new(256);
    let before = pinned_kilobytes();
    world.lane.end(world.kept(memory.start, memory.len));
    assert_eq!(pinned_kilobytes(), before + 1024);
    unmap(memory.start, PAGE);
    world.cache.sweep();
    assert_eq!(pinned_kilobytes(), before);
}

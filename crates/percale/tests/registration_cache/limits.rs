//! The limits on the registrations that are kept.

use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use percale::CacheSettings;
use percale::pindown::monitor;

use crate::memory::{Memory, filled, page};
use crate::world::World;

fn memories(count: usize, pages: usize) -> Vec<Memory> {
    (0..count).map(|_| Memory::new(pages)).collect()
}

/// Requirements: RCACHE-005.
#[test]
fn bytes_stay_within_their_limit() {
    let limit = 8 * page() as u64;
    let Some(world) = World::open(CacheSettings::default().max_bytes(limit), 64) else { return };
    let memories = memories(6, 3);
    for memory in memories.iter().chain(&memories) {
        world.save(memory.bytes());
        assert!(world.stats().bytes <= limit && world.pinned() <= 8, "{:?}", world.stats());
    }
    assert_eq!(world.pinned(), 6, "two registrations fit");
    assert_eq!(world.made(), 12, "older registrations are removed");
    let kept = world.made();
    world.save(memories[5].bytes());
    assert_eq!(world.made(), kept, "the latest is kept");
    let large = Memory::new(9);
    world.save(large.bytes());
    world.save(large.bytes());
    assert_eq!(world.made(), kept + 2, "memory that exceeds the limit is registered for its transfer only");
    assert_eq!(world.pinned(), 6, "no registration was evicted");
    assert_eq!(world.stats().single_uses_for(monitor::Refusal::TooLarge), 2);
}

/// Requirements: RCACHE-006.
#[test]
fn all_registrations_are_kept_without_a_byte_limit() {
    for settings in [CacheSettings::default(), CacheSettings::default().max_bytes(page() as u64).max_bytes(0)] {
        let Some(world) = World::open(settings, 64) else { return };
        let memories = memories(40, 24);
        for memory in memories.iter().chain(&memories) {
            world.save(memory.bytes());
        }
        assert_eq!((world.made(), world.pinned()), (40, 40 * 24));
    }
}

/// Requirements: RCACHE-007, RCACHE-022.
#[test]
fn registration_count_stays_within_the_limit() {
    let Some(world) = World::open(CacheSettings::default().max_count(4), 64) else { return };
    for round in 0..500 {
        let mut memory = Memory::new(1 + round % 5);
        memory.fill(round as u8);
        world.save(memory.bytes());
        assert!(world.stats().entries <= 4 && world.registered() <= 4, "{:?}", world.stats());
        assert!(world.pinned() <= 4 * 5);
        // The program releases this memory.
        world.notifier.changed(memory.range());
    }
    let memories = memories(10, 2);
    for memory in memories.iter().cycle().take(100) {
        world.save(memory.bytes());
        assert!(world.registered() <= 4);
    }
    assert_eq!((world.registered(), world.pinned()), (4, 8));
}

/// Requirements: RCACHE-008.
#[test]
fn there_is_a_limit_by_default() {
    let Some(world) = World::open(CacheSettings::default(), 2048) else { return };
    let memory = Memory::new(1100);
    for (number, bytes) in memory.bytes().chunks(page()).enumerate() {
        assert_eq!(world.lane.write(bytes, &world.file, 0).expect("written"), bytes.len());
        if number == 1023 {
            assert_eq!((world.stats().entries, world.pinned()), (1024, 1024), "as many as libfabric keeps");
        }
    }
    assert_eq!(world.made(), 1100);
    let entries = world.stats().entries;
    assert!((512..=1024).contains(&entries), "{:?}", world.stats());
    assert_eq!(world.pinned() as u64, entries);
}

/// Requirements: RCACHE-009.
#[test]
fn zero_limit_registers_and_deregisters_each_time() {
    let Some(world) = World::open(CacheSettings::default().max_count(0), 16) else { return };
    let mut memory = Memory::new(4);
    for round in 1..=20 {
        memory.fill(round);
        world.save(memory.bytes());
        assert_eq!(world.made(), u64::from(round));
        assert_eq!((world.registered(), world.pinned()), (0, 0));
    }
    assert_eq!(world.buffers.ordinary_transfers(), 0);
}

/// Waits until a condition holds.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Requirements: RCACHE-010.
#[test]
fn registration_in_use_is_not_evicted() {
    for settings in [CacheSettings::default().max_count(2), CacheSettings::default().max_bytes(8 * page() as u64)] {
        let Some(world) = World::open(settings, 64) else { return };
        let (near, far) = UnixStream::pair().expect("a pair");
        let mut into = Memory::new(7);
        let lane = world.buffers.lane();
        thread::scope(|scope| {
            let (into, far) = (&mut into, &far);
            let receiver = scope.spawn(move || lane.receive(into.bytes_mut(), far).expect("received"));
            until("the receive is registered", || world.made() == 1);
            let memories = memories(20, 2);
            for memory in memories.iter().cycle().take(60) {
                world.save(memory.bytes());
                assert!(world.pinned() >= 7, "the receive's pages were unpinned");
                assert!(
                    world.pinned() <= 9 && world.registered() <= 2,
                    "the receive prevents the removal of other registrations"
                );
            }
            assert!(!receiver.is_finished());
            // This write uses memory other than the tested memory, so it does not count toward the limits.
            rustix::io::write(&near, &filled(5 * page(), 77)).expect("room");
            assert_eq!(receiver.join().expect("no panic"), 5 * page());
        });
        assert!(into.bytes()[..5 * page()] == filled(5 * page(), 77), "the bytes are in the memory");
        world.save(Memory::new(1).bytes());
        world.buffers.flush();
        assert_eq!((world.registered(), world.pinned()), (0, 0));
    }
}

/// Requirements: RCACHE-023.
#[test]
fn idle_registrations_are_evicted_at_the_device_limit() {
    let Some(world) = World::open(CacheSettings::default(), 4) else { return };
    let memories = memories(20, 3);
    for memory in memories.iter().chain(&memories) {
        world.save(memory.bytes());
        assert!(world.registered() <= 4);
    }
    assert_eq!(world.buffers.ordinary_transfers(), 0, "all transfers used registered memory");
    assert!(world.stats().evictions >= 30, "{:?}", world.stats());
}

/// Requirements: RCACHE-023.
#[test]
fn idle_registrations_are_evicted_beside_a_pending_receive() {
    let Some(world) = World::open(CacheSettings::default(), 4) else { return };
    let (near, far) = UnixStream::pair().expect("a pair");
    let mut into = Memory::new(2);
    let lane = world.buffers.lane();
    thread::scope(|scope| {
        let (into, far) = (&mut into, &far);
        let receiver = scope.spawn(move || lane.receive(into.bytes_mut(), far).expect("received"));
        until("the receive is registered", || world.made() == 1);
        let memories = memories(20, 3);
        for memory in memories.iter().chain(&memories) {
            world.save(memory.bytes());
        }
        assert_eq!(world.buffers.ordinary_transfers(), 0, "all transfers used registered memory");
        rustix::io::write(&near, &filled(5, 77)).expect("room");
        assert_eq!(receiver.join().expect("no panic"), 5);
    });
}

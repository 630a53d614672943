//! Tests of a registration cache with a device. They check which registrations it keeps and drops. Without a device
//! each test prints the reason and is skipped. The calls to the device are counted, and each transfer uses the device.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use pindown::monitor::Refusal;
use pindown::monitor::imported::Notifier;
use pindown::{Access, Builder, Cache, Lane, Pinned, Range, Registrar};

use rustix::process::{Resource, Rlimit};
use rustix::thread::CapabilitySet;

use super::registrar_tests::{ACCESS, LEN, registrar};
use super::testing::Memory;
use super::tests::adapter;
use super::{Adapter, LoopbackPair, Registration, VerbsRegistrar};

/// A device's registrar that counts its registrations.
#[derive(Clone)]
struct Counted {
    registrar: VerbsRegistrar,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    made: AtomicU64,
    /// The lengths of the existing registrations, indexed by remote key.
    held: Mutex<HashMap<u32, u64>>,
}

impl Counts {
    fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// Returns the number of existing registrations, and their total number of bytes.
    fn held(&self) -> (u64, u64) {
        let held = self.held.lock().expect("no panic");
        (held.len() as u64, held.values().sum())
    }
}

impl Registrar for Counted {
    type Pin = Registration;

    fn pin(&self, range: Range, access: Access) -> io::Result<Pinned<Registration>> {
        let pinned = self.registrar.pin(range, access)?;
        self.counts.made.fetch_add(1, Ordering::Relaxed);
        self.counts.held.lock().expect("no panic").insert(pinned.pin.keys().1, range.len());
        Ok(pinned)
    }

    fn unpin(&self, pin: Registration) {
        // The device may reuse the key as soon as it is free.
        let known = self.counts.held.lock().expect("no panic").remove(&pin.keys().1);
        assert!(known.is_some(), "a registration that was never made, or ended twice");
        self.registrar.unpin(pin);
    }
}

/// A cache for a device, the notifier of its monitor, and a peer of the device.
struct World {
    cache: Cache<Counted>,
    lane: Lane<Counted>,
    counts: Arc<Counts>,
    notifier: Notifier,
    adapter: Arc<Adapter>,
    peer: LoopbackPair,
}

impl World {
    fn open(settings: impl FnOnce(Builder<Counted>) -> Builder<Counted>) -> Option<Self> {
        let adapter = adapter()?;
        let counts = Arc::<Counts>::default();
        let registrar = Counted { registrar: registrar(&adapter), counts: Arc::clone(&counts) };
        let (notifier, imported) = Notifier::new(|_, _| true).expect("a descriptor");
        let builder = Cache::builder(registrar).monitor(pindown::monitor::Choice::Imported(imported));
        let cache = settings(builder).open().expect("a cache");
        let peer = LoopbackPair::new(&adapter, LEN).expect("a device that works");
        Some(Self { lane: cache.lane(), cache, counts, notifier, adapter, peer })
    }

    /// Lets a peer write to the memory, and checks that the application reads the new content.
    fn transfer(&mut self, memory: &Memory, byte: u8) {
        let used = self.lane.get(memory.range(), ACCESS).expect("a registration");
        let key = used.remote_key() as u32;
        self.peer.write(&vec![byte; memory.len()], memory.start(), key).expect("a write");
        assert_eq!((memory.byte(0), memory.byte(memory.len() - 1)), (byte, byte), "the write went to other pages");
        self.lane.end(used);
    }

    /// Unmaps memory and maps other memory at its address. The cache is notified in between.
    fn change(&self, memory: &Memory) {
        memory.change(|range| self.notifier.changed(range));
    }
}

fn memories(count: usize, len: usize) -> Vec<Memory> {
    (0..count).map(|_| Memory::new(len)).collect()
}

/// Requirements: RCACHE-001.
#[test]
fn two_device_transfers_share_a_registration() {
    let Some(mut world) = World::open(|builder| builder) else { return };
    let memory = Memory::new(LEN);
    for round in 0..20 {
        world.transfer(&memory, round);
    }
    assert_eq!((world.counts.made(), world.counts.held()), (1, (1, LEN as u64)));
    world.change(&memory);
    world.transfer(&memory, 99);
    assert_eq!(world.counts.made(), 2, "changed memory is registered again");
}

/// Requirements: RCACHE-005.
#[test]
fn registered_bytes_stay_within_their_limit() {
    let limit = 8 * 4096;
    let Some(mut world) = World::open(|builder| builder.max_bytes(limit)) else { return };
    let memories = memories(6, 3 * 4096);
    for (number, memory) in (0..).zip(memories.iter().chain(&memories)) {
        world.transfer(memory, number);
        assert!(world.counts.held().1 <= limit, "{:?}", world.counts.held());
    }
    assert_eq!((world.counts.made(), world.counts.held().0), (12, 2), "older registrations are removed");
    world.transfer(&memories[5], 77);
    assert_eq!(world.counts.made(), 12, "the latest is kept");
    let large = Memory::new(9 * 4096);
    // This test uses a separate peer that writes more at a time.
    world.peer = LoopbackPair::new(&world.adapter, large.len()).expect("a device that works");
    world.transfer(&large, 1);
    world.transfer(&large, 2);
    assert_eq!(
        (world.counts.made(), world.counts.held().0),
        (14, 2),
        "memory that exceeds the limit is registered for its transfer only"
    );
    assert_eq!(world.cache.stats().single_uses_for(Refusal::TooLarge), 2);
}

/// Requirements: RCACHE-006.
#[test]
fn without_byte_limit_all_registrations_are_kept() {
    let Some(mut world) = World::open(|builder| builder) else { return };
    let memories = memories(100, LEN);
    for (number, memory) in (0..).zip(memories.iter().chain(&memories)) {
        world.transfer(memory, number);
    }
    assert_eq!((world.counts.made(), world.counts.held()), (100, (100, 100 * LEN as u64)));
}

/// Requirements: RCACHE-007, RCACHE-022.
#[test]
fn registration_count_stays_limited_with_new_buffers() {
    let Some(mut world) = World::open(|builder| builder.max_count(4)) else { return };
    for round in 0..200 {
        let memory = Memory::new(4096 * (1 + usize::from(round) % 4));
        world.transfer(&memory, round);
        let (count, bytes) = world.counts.held();
        assert!(count <= 4 && bytes <= 4 * 4 * 4096, "{count} of {bytes} bytes in round {round}");
        // The memory is dropped, and its registration with it.
        let range = memory.range();
        drop(memory);
        world.notifier.changed(range);
    }
    let memories = memories(10, LEN);
    for (number, memory) in (0..100).zip(memories.iter().cycle()) {
        world.transfer(memory, number);
        assert!(world.counts.held().0 <= 4);
    }
    assert_eq!(world.counts.held().0, 4);
}

/// Requirements: RCACHE-008.
#[test]
fn default_registration_count_is_limited() {
    let Some(mut world) = World::open(|builder| builder) else { return };
    let memories = memories(1100, 4096);
    for (number, memory) in memories.iter().enumerate() {
        world.transfer(memory, number as u8);
        assert!(world.counts.held().0 <= 1024, "{}", world.counts.held().0);
    }
    let (count, _) = world.counts.held();
    assert!((512..=1024).contains(&count), "{count}");
    assert_eq!(world.counts.made(), 1100);
}

/// Requirements: RCACHE-009.
#[test]
fn zero_limit_registers_with_the_device_each_time() {
    let Some(mut world) = World::open(|builder| builder.max_count(0)) else { return };
    let memory = Memory::new(LEN);
    for round in 1..=20 {
        world.transfer(&memory, round);
        assert_eq!((world.counts.made(), world.counts.held()), (u64::from(round), (0, 0)));
        memory.change(|_| {});
    }
}

/// Requirements: RCACHE-010.
#[test]
fn memory_of_a_transfer_stays_registered() {
    for (most, bytes) in [(2, u64::MAX), (1024, 8 * 4096)] {
        let Some(mut world) = World::open(|builder| builder.max_count(most).max_bytes(bytes)) else { return };
        let used = Memory::new(LEN);
        // Keep a transfer in progress.
        let kept = world.lane.get(used.range(), ACCESS).expect("a registration");
        let key = kept.remote_key() as u32;
        let memories = memories(20, 2 * 4096);
        for (number, memory) in (0..60).zip(memories.iter().cycle()) {
            world.transfer(memory, number);
            world.peer.write(&[number; LEN], used.start(), key).expect("the memory is still registered");
            assert_eq!(used.byte(LEN - 1), number);
        }
        world.lane.end(kept);
        // Registrations that were released in the meantime were waiting for this transfer.
        world.transfer(&memories[0], 1);
        let held = world.counts.held();
        assert!(held.0 <= most.into() && held.1 <= bytes, "{held:?}");
        world.cache.flush();
        world.cache.sweep();
        assert_eq!(world.counts.held(), (0, 0));
        assert!(world.peer.write(&[9; LEN], used.start(), key).is_err(), "a registration was left behind");
    }
}

/// The kernel's limit of locked memory applies to threads without CAP_IPC_LOCK. Each thread may drop this capability
/// for itself. A device is used with the credentials with which it was opened.
///
/// Requirements: RCACHE-023.
#[test]
fn idle_registrations_are_evicted_at_the_locked_memory_limit() {
    const LIMIT: u64 = 48 << 20;
    if std::env::var_os("PERCALE_GUEST").is_none() {
        return println!("skipped (guest): the test lowers a limit of the whole process");
    }
    let before = rustix::process::getrlimit(Resource::Memlock);
    let low = Rlimit { current: Some(LIMIT), ..before };
    rustix::process::setrlimit(Resource::Memlock, low).expect("a lower limit");
    let all = thread::spawn(|| {
        let mut capabilities = rustix::thread::capabilities(None).expect("the capabilities can be read");
        capabilities.effective.remove(CapabilitySet::IPC_LOCK);
        rustix::thread::set_capabilities(None, capabilities).expect("the capabilities can be dropped");
        let Some(mut world) = World::open(|builder| builder) else { return };
        let memories = memories(64, 1 << 20);
        for (number, memory) in (1..).zip(memories.iter().chain(&memories)) {
            let used = world.lane.get(memory.range(), ACCESS).expect("a registration after idle ones are evicted");
            world.peer.write(&[number; LEN], memory.start(), used.remote_key() as u32).expect("a write");
            assert_eq!(memory.byte(LEN - 1), number);
            world.lane.end(used);
            assert!(world.counts.held().1 <= LIMIT, "the kernel allowed more than the limit");
        }
        let stats = world.cache.stats();
        assert!(stats.evictions > 0 && stats.failures == 0, "{stats:?}");
        // Registrations in use are kept, idle ones are dropped, and a request beyond the limit returns an error.
        world.cache.flush();
        let get = |memory: &Memory| world.lane.get(memory.range(), ACCESS).map(|used| world.lane.hold(used));
        let mut kept: Vec<_> = memories[..8].iter().map(|memory| get(memory).expect("room for eight")).collect();
        for memory in &memories[8..] {
            let used = world.lane.get(memory.range(), ACCESS).expect("a registration after idle ones are evicted");
            world.lane.end(used);
        }
        kept.extend(memories[8..].iter().map_while(|memory| get(memory).ok()));
        let most = (LIMIT >> 20) as usize;
        assert!((most / 2..=most).contains(&kept.len()), "{} of {most}", kept.len());
        kept.into_iter().for_each(|used| world.lane.end(used));
    });
    let ended = all.join();
    rustix::process::setrlimit(Resource::Memlock, before).expect("the previous limit");
    ended.expect("no panic");
}

/// Requirements: RCACHE-027.
#[test]
fn application_registrations_end_only_on_request() {
    if super::double::pins_no_pages() {
        return;
    }
    let Some(mut world) = World::open(|builder| builder) else { return };
    let (own, cached) = (Memory::new(LEN), Memory::new(LEN));
    let registration = world.cache.register(own.range(), ACCESS).expect("a registration");
    world.transfer(&cached, 1);
    assert_eq!((world.counts.held().0, world.cache.check()), (2, None));
    world.change(&own);
    world.change(&cached);
    world.cache.sweep();
    assert_eq!(world.counts.held().0, 1, "only the cached registration was removed");
    assert_eq!(
        (world.cache.check(), world.cache.check()),
        (Some(registration.handle), None),
        "the other registration is reported once"
    );
    // The registration still exists, for pages that are no longer mapped in the application.
    world.peer.write(&[2; LEN], own.start(), registration.remote_key as u32).expect("the registration is valid");
    assert_eq!(own.byte(0), 0);
    world.cache.deregister(registration.handle).expect("the registration exists");
    assert_eq!(world.counts.held(), (0, 0));
}

/// Requirements: RCACHE-026, RCACHE-021.
#[test]
fn changes_are_reported_during_transfers() {
    const ROUNDS: u8 = 60;
    let Some(world) = World::open(|builder| builder.max_count(3)) else { return };
    let World { cache, notifier, adapter, counts, lane, peer } = world;
    drop((lane, peer));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers = [0_u8, 1, 2].map(|number| {
            let (cache, notifier, adapter) = (&cache, &notifier, &adapter);
            scope.spawn(move || {
                let (lane, memory) = (cache.lane(), Memory::new(LEN));
                let mut peer = LoopbackPair::new(adapter, LEN).expect("a device that works");
                for round in 0..ROUNDS {
                    let byte = (1 + round) ^ (number << 6);
                    let used = lane.get(memory.range(), ACCESS).expect("a registration");
                    peer.write(&[byte; LEN], memory.start(), used.remote_key() as u32)
                        .expect("the memory is registered");
                    assert_eq!(
                        memory.byte(LEN - 1),
                        byte,
                        "thread {number}, round {round}: the write went to other pages"
                    );
                    lane.end(used);
                    if round % 3 == 0 {
                        memory.change(|range| notifier.changed(range));
                    }
                }
                notifier.changed(memory.range());
            })
        });
        // Changes are reported at any time, even for memory that is in use.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                notifier.changed_everything();
                thread::yield_now();
            }
        });
        let ended = workers.map(|worker| worker.join());
        over.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|ended| ended.expect("no panic"));
    });
    cache.flush();
    cache.sweep();
    assert_eq!(counts.held(), (0, 0), "a registration was left behind");
}

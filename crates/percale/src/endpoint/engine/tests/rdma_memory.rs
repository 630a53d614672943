//! Tests of operations over verbs on memory that the application has not registered, on a device if there is one.
//! Otherwise each test prints why it was skipped. Memory longer than a page is accessed by RDMA in place.

#![expect(unsafe_code, reason = "posts accesses from and to borrowed memory; each block states its reason")]

use std::sync::Arc;

use pindown::Stats;
use pindown::monitor::imported::Notifier;

use super::pairs::connected;
use super::rdma::{ALL, bytes_of, reach};
use super::*;
use crate::memory::region::Region;
use crate::transport::verbs::testing::Memory;
use crate::transport::verbs::{Adapter, Rights, VerbsRegistrar};
use crate::{CacheSettings, Entry, OpFlags, RemotePieces, RmaWork, Segment};

const PAGE: usize = 4096;
const LEN: usize = 64 << 10;

/// An initiator with a domain that registers according to the settings, and a target with a region that the initiator
/// reaches.
struct World {
    a: TestEndpoint,
    b: TestEndpoint,
    peer: PeerAddress,
    region: Region,
    notifier: Notifier,
    adapter: Arc<Adapter>,
}

impl World {
    fn open(settings: CacheSettings) -> Option<Self> {
        let (_, b, _) = connected()?;
        let builder = Info::discover().unwrap().domain().transport("verbs".parse().unwrap());
        let domain = builder.registration_cache(settings).open().unwrap();
        let (notifier, imported) = Notifier::new(|_, _| true).unwrap();
        // SAFETY: the tests notify the monitor of all changes of memory that is in the cache, before they post anything
        // there again.
        unsafe { domain.import_monitor(imported) }.unwrap();
        let a = TestEndpoint::of(domain, &CompletionQueue::default());
        let peer = connect(&a, &b);
        let region = b.domain.register(vec![0; LEN], ALL).unwrap();
        reach(&a, &b, peer, &region);
        Some(Self { a, b, peer, region, notifier, adapter: Adapter::open().ok()? })
    }

    /// Writes memory to the region, or reads it from there, and waits for the end.
    fn access(&self, memory: *mut u8, len: usize, writes: bool) {
        let Self { a, b, peer, region, .. } = self;
        let part = region.remote().at(0..len as u64);
        // SAFETY: the bytes outlive the operation, because the test waits for its end, and nothing else accesses them
        // meanwhile.
        let local = unsafe { Segment::new(memory, len) };
        let (local, remote) = (Segments::new(&[local]).unwrap(), RemotePieces::new(&[part]).unwrap());
        let work = RmaWork { peer: *peer, local, remote, data: None, context: 5, flags: OpFlags::COMPLETION };
        let posted = if writes {
            // SAFETY: as above.
            unsafe { a.endpoint.post_write(&work) }
        } else {
            // SAFETY: as above.
            unsafe { a.endpoint.post_read(&work) }
        };
        posted.unwrap();
        let entry = until(&[a, b], || {
            let mut entries = [Entry::default(); 1];
            a.endpoint.poll(&mut entries).ok().filter(|count| *count == 1).map(|_| entries[0])
        });
        assert_eq!((entry.context, entry.len), (5, len as u64));
    }

    /// Fills memory with this byte, writes it to the region, and checks that it arrives there.
    fn write(&self, memory: &Memory, byte: u8) {
        memory.fill(byte);
        self.access(memory.as_ptr(), memory.len(), true);
        assert!(
            bytes_of(&self.region)[..memory.len()] == vec![byte; memory.len()],
            "the region does not contain {byte}"
        );
    }

    /// Changes memory like an application that unmaps it and maps other memory at its address.
    fn change(&self, memory: &Memory) {
        memory.change(|range| self.notifier.changed(range));
    }

    /// Returns the statistics of the domain's cache since the first long access.
    fn stats(&self) -> Stats {
        // SAFETY: nothing is registered through it: the cache exists already and keeps its own registrar.
        let registrar = unsafe { VerbsRegistrar::new(Arc::clone(self.adapter.domain()), Rights::empty()) };
        self.a.engine(|engine| engine.core.local.pins().cache(registrar).unwrap().stats())
    }

    /// Returns the number of registrations that were made.
    fn made(&self) -> u64 {
        let stats = self.stats();
        stats.misses + stats.single_uses.iter().sum::<u64>()
    }
}

fn memories(count: usize, len: usize) -> Vec<Memory> {
    (0..count).map(|_| Memory::new(len)).collect()
}

/// Requirements: RCACHE-001, RCACHE-002.
#[test]
fn reused_source_memory_is_registered_once() {
    let Some(world) = World::open(CacheSettings::default()) else { return };
    let memory = Memory::new(LEN);
    for byte in 1..=20 {
        world.write(&memory, byte);
    }
    let stats = world.stats();
    assert_eq!((world.made(), stats.hits, stats.entries, stats.bytes), (1, 19, 1, LEN as u64), "{stats:?}");
    // A part of this memory is in the cache.
    world.access(memory.as_ptr().wrapping_add(100), PAGE + 1, true);
    assert_eq!(world.made(), 1);
}

/// Requirements: RCACHE-021.
#[test]
fn changed_memory_is_reregistered_before_use() {
    let Some(world) = World::open(CacheSettings::default()) else { return };
    let (changing, lasting) = (Memory::new(LEN), Memory::new(LEN));
    for byte in 1..=20 {
        world.write(&changing, byte);
        world.write(&lasting, byte + 100);
        world.change(&changing);
    }
    assert_eq!(world.made(), 21, "one registration in each round, none for unchanged memory");
}

/// Requirements: RCACHE-005, RCACHE-007, RCACHE-022.
#[test]
fn domain_limits_apply_to_operation_memory() {
    let bytes = 4 * LEN as u64;
    for settings in [CacheSettings::default().max_count(4), CacheSettings::default().max_bytes(bytes)] {
        let Some(world) = World::open(settings) else { return };
        let memories = memories(40, LEN);
        for (byte, memory) in (0..).zip(memories.iter().chain(&memories)) {
            world.write(memory, byte);
            let stats = world.stats();
            assert!(stats.entries <= 4 && stats.bytes <= bytes, "{stats:?}");
            assert_eq!((stats.retired, stats.failures), (0, 0), "{stats:?}");
        }
        assert_eq!(world.made(), 80);
    }
}

/// Requirements: RCACHE-006, RCACHE-008.
#[test]
fn default_cache_limits_the_count_but_not_the_size() {
    let Some(world) = World::open(CacheSettings::default()) else { return };
    let memories = memories(100, LEN);
    for (byte, memory) in (0..).zip(memories.iter().chain(&memories)) {
        world.write(memory, byte);
    }
    assert_eq!((world.made(), world.stats().bytes), (100, 100 * LEN as u64));
    // These are registrations of two pages each: first 800, which all fit, then 240 more, so that the maximum of 1024
    // is exceeded.
    let many: Vec<_> = memories.iter().flat_map(|memory| (0..LEN / 2 / PAGE).map(move |at| (memory, at))).collect();
    let domain = World::open(CacheSettings::default()).unwrap();
    for (number, (memory, at)) in (1..).zip(many.iter().cycle().take(800)) {
        domain.access(memory.as_ptr().wrapping_add(2 * PAGE * at), 2 * PAGE, true);
        assert_eq!((domain.made(), domain.stats().entries), (number, number), "all registrations fit");
    }
    let others = self::memories(30, LEN);
    for (memory, at) in others.iter().flat_map(|memory| (0..8).map(move |at| (memory, at))) {
        domain.access(memory.as_ptr().wrapping_add(2 * PAGE * at), 2 * PAGE, true);
        assert!(domain.stats().entries <= 1024);
    }
    assert!(domain.made() == 1040 && domain.stats().evictions > 0, "{:?}", domain.stats());
}

/// Requirements: RCACHE-009.
#[test]
fn zero_cache_count_registers_each_time() {
    let Some(world) = World::open(CacheSettings::default().max_count(0)) else { return };
    let memory = Memory::new(LEN);
    for byte in 1..=20 {
        world.write(&memory, byte);
        let stats = world.stats();
        assert_eq!((world.made(), stats.entries, stats.bytes, stats.retired), (byte.into(), 0, 0, 0), "{stats:?}");
        // No notice of the change is needed.
        memory.change(|_| {});
    }
}

/// Requirements: RCACHE-010.
#[test]
fn operation_memory_stays_registered_until_it_ends() {
    let Some(world) = World::open(CacheSettings::default().max_count(2)) else { return };
    let World { a, b, peer, region, .. } = &world;
    let memories = memories(12, LEN);
    for round in 1..=10_u8 {
        // There are more writes at a time than the cache keeps. The device reads each from its own memory.
        let writes: Vec<_> = (0..12_u8)
            .map(|number| {
                let part = region.remote().at(0..LEN as u64);
                a.endpoint.write(*peer, vec![round ^ (number << 4); LEN], part).start().unwrap()
            })
            .collect();
        world.write(&memories[usize::from(round)], round);
        until(&[a, b], || writes.iter().all(|write| write.is_ready()).then_some(()));
        writes.into_iter().for_each(|mut write| drop(write.wait().unwrap()));
        // The memory of these writes returns to the allocator, which sends no notice.
        world.notifier.changed_everything();
        assert!(bytes_of(region) == vec![round; LEN], "the last write determines the contents");
    }
    world.write(&memories[0], 1);
    let stats = world.stats();
    assert!(stats.entries <= 2 && stats.failures == 0, "{stats:?}");
}

/// Requirements: RCACHE-024.
#[test]
fn rdma_works_with_any_kind_of_memory() {
    static READ_ONLY: [u8; 5 * PAGE] = [7; 5 * PAGE];
    let Some(world) = World::open(CacheSettings::default()) else { return };
    let mut stack = [3_u8; 3 * PAGE + 77];
    let mut boxed = vec![0_u8; 3 * PAGE + 77].into_boxed_slice();
    world.access(stack.as_mut_ptr(), stack.len(), true);
    world.access(boxed.as_mut_ptr(), boxed.len(), false);
    assert!(boxed[..] == stack[..]);
    // Read-only memory is only read.
    world.access(READ_ONLY.as_ptr().cast_mut(), READ_ONLY.len(), true);
    let mapped = Memory::new(LEN);
    world.access(mapped.as_ptr().wrapping_add(123), READ_ONLY.len(), false);
    assert_eq!((mapped.byte(122), mapped.byte(123), mapped.byte(122 + READ_ONLY.len())), (0, 7, 7));
    world.write(&mapped, 9);
    world.access(stack.as_mut_ptr(), stack.len(), false);
    assert!(stack.iter().all(|byte| *byte == 9));
    // Memory that is no longer mapped changes without notice, but its registrations are removed before that.
    world.notifier.changed_everything();
}

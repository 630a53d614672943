//! Tests of registrations that outlive the mapping of their memory. Without a device each test prints the reason and is
//! skipped.

#![expect(unsafe_code, reason = "registers memory that it does not own; the block states its reason")]

use std::sync::Arc;

use pindown::monitor::Choice;
use pindown::monitor::userfaultfd::{Settings, Unseen};
use pindown::{Access, Cache, OpenError, Registrar};

use super::testing::Memory;
use super::tests::adapter;
use super::{Adapter, LoopbackPair, Rights, VerbsRegistrar};

pub(super) const LEN: usize = 4 * 4096;
pub(super) const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);

pub(super) fn registrar(adapter: &Adapter) -> VerbsRegistrar {
    // SAFETY: only `Memory` is registered here, which contains no values of the program.
    unsafe { VerbsRegistrar::new(Arc::clone(adapter.domain()), Rights::empty()) }
}

/// Demonstrates the problem that a monitor solves: the write succeeds, but the application never reads the bytes.
///
/// Requirements: RCACHE-001.
#[test]
fn write_without_a_monitor_reaches_unmapped_memory() {
    if super::double::pins_no_pages() {
        return;
    }
    let Some(adapter) = adapter() else { return };
    let (registrar, memory) = (registrar(&adapter), Memory::new(LEN));
    let mut peer = LoopbackPair::new(&adapter, LEN).expect("a device that works");
    let kept = registrar.pin(memory.range(), ACCESS).expect("a registration");
    let (_, key) = kept.pin.keys();
    peer.write(&[1; LEN], memory.start(), key).expect("a write");
    assert_eq!(memory.byte(0), 1);
    memory.change(|_| {});
    peer.write(&[2; LEN], memory.start(), key).expect("the write succeeds");
    assert_eq!(memory.byte(0), 0, "the write is not visible to the application");
    let mut bytes = [0; LEN];
    peer.read(&mut bytes, memory.start(), key).expect("a read");
    assert_eq!(bytes, [2; LEN], "the bytes are in pages that the application no longer has");
    registrar.unpin(kept.pin);
    assert!(peer.write(&[3; 8], memory.start(), key).is_err(), "the key of a registration that was ended still works");
    assert_eq!(memory.byte(0), 0);
}

/// Checks that with a cache that uses this monitor, a write never reaches memory that was unmapped.
fn is_seen_with(monitor: Choice) {
    let Some(adapter) = adapter() else { return };
    let cache = match Cache::builder(registrar(&adapter)).monitor(monitor).open() {
        Ok(cache) => cache,
        Err(error @ OpenError::Monitor { .. }) => return println!("skipped (bpf): {error}"),
        Err(error) => panic!("{error}"),
    };
    let (lane, memory) = (cache.lane(), Memory::new(LEN));
    let mut peer = LoopbackPair::new(&adapter, LEN).expect("a device that works");
    for round in 1..=20 {
        for twice in [round, round + 100] {
            let used = lane.get(memory.range(), ACCESS).expect("a registration");
            peer.write(&[twice; LEN], memory.start(), used.remote_key() as u32).expect("a write");
            assert_eq!(memory.byte(0), twice, "round {round}: the write went to other pages");
            lane.end(used);
        }
        memory.change(|_| {});
    }
}

/// Requirements: RCACHE-021.
#[test]
fn no_write_is_lost_without_a_cache() {
    is_seen_with(Choice::None);
}

/// Requirements: RCACHE-021.
#[test]
fn over_the_kernel_tier_no_write_is_lost() {
    is_seen_with(Choice::Bpf);
}

/// Requirements: RCACHE-021.
#[test]
fn over_userfaultfd_no_write_is_lost() {
    is_seen_with(Choice::Userfaultfd(Unseen::NeverMade.into()));
}

/// Requirements: RCACHE-021.
#[test]
fn over_userfaultfd_of_old_kernels_no_write_is_lost() {
    is_seen_with(Choice::Userfaultfd(Settings::new(Unseen::NeverMade).plain()));
}

/// Requirements: RCACHE-021.
#[test]
fn over_sealed_memory_no_write_is_lost() {
    is_seen_with(Choice::Sealed);
}

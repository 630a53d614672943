//! Registrations that outlive their memory, on a device, if there is one; else each test says why it was skipped.

#![expect(unsafe_code, reason = "maps and unmaps memory under a device; each block states its own reason")]

use std::ptr::{read_volatile, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pindown::monitor::Choice;
use pindown::monitor::userfaultfd::{Settings, Unseen};
use pindown::{Access, Cache, OpenError, Range, Registrar};
use rustix::mm::{MapFlags, ProtFlags};

use super::tests::adapter;
use super::{Adapter, Reach, Rights, VerbsRegistrar};

const LEN: usize = 4 * 4096;
const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);

/// Memory at an address that no other thread of the harness is given, so that nothing gets between taking it away and
/// putting other memory there.
struct Memory(usize);

impl Memory {
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(96 << 30);
        let memory = Self(NEXT.fetch_add(1 << 20, Ordering::Relaxed));
        memory.map();
        memory
    }

    fn map(&self) {
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE);
        let at = with_exposed_provenance_mut(self.0);
        // SAFETY: nothing is replaced.
        let mapped = unsafe { rustix::mm::mmap_anonymous(at, LEN, rights, flags) }.expect("free addresses");
        assert_eq!(mapped, at);
    }

    fn unmap(&self) {
        // SAFETY: no reference to it is anywhere; it is read by `byte` only while it is mapped.
        unsafe { rustix::mm::munmap(with_exposed_provenance_mut(self.0), LEN) }.expect("mapped memory");
    }

    /// The application lets its memory go, and gets other memory at the same address.
    fn change(&self) {
        self.unmap();
        self.map();
        assert_eq!(self.byte(), 0, "new memory is zeroed");
    }

    fn range(&self) -> Range {
        Range::new(self.0 as u64, LEN as u64).expect("a range")
    }

    /// What the application sees.
    fn byte(&self) -> u8 {
        // SAFETY: it is mapped, and any byte is a value.
        unsafe { read_volatile(with_exposed_provenance(self.0)) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.unmap();
    }
}

fn registrar(adapter: &Adapter) -> VerbsRegistrar {
    // SAFETY: only `Memory` is registered here, in which no value lies.
    unsafe { VerbsRegistrar::new(Arc::clone(adapter.domain()), Rights::empty()) }
}

/// What the paper warns of: the write goes well, and the application never sees the bytes.
#[test]
fn rcache_001_without_a_monitor_a_write_reaches_memory_that_is_gone() {
    let Some(adapter) = adapter() else { return };
    let (registrar, memory) = (registrar(&adapter), Memory::new());
    let mut peer = Reach::new(&adapter, LEN).expect("a device that works");
    let kept = registrar.pin(memory.range(), ACCESS).expect("a registration");
    let (_, key) = kept.pin.keys();
    peer.write(&[1; LEN], memory.0 as u64, key).expect("a write");
    assert_eq!(memory.byte(), 1);
    memory.change();
    peer.write(&[2; LEN], memory.0 as u64, key).expect("it says that it went well");
    assert_eq!(memory.byte(), 0, "the application sees nothing of it");
    let mut bytes = [0; LEN];
    peer.read(&mut bytes, memory.0 as u64, key).expect("a read");
    assert_eq!(bytes, [2; LEN], "the bytes are in pages that the application has no longer");
    registrar.unpin(kept.pin);
    assert!(peer.write(&[3; 8], memory.0 as u64, key).is_err(), "the key of a registration that was ended still works");
    assert_eq!(memory.byte(), 0);
}

/// The same with a cache in between, over one of its monitors: it never happens.
fn is_seen_with(monitor: Choice) {
    let Some(adapter) = adapter() else { return };
    let cache = match Cache::builder(registrar(&adapter)).monitor(monitor).open() {
        Ok(cache) => cache,
        Err(error @ OpenError::Monitor { .. }) => return println!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    };
    let (lane, memory) = (cache.lane(), Memory::new());
    let mut peer = Reach::new(&adapter, LEN).expect("a device that works");
    for round in 1..=20 {
        for twice in [round, round + 100] {
            let used = lane.get(memory.range(), ACCESS).expect("a registration");
            peer.write(&[twice; LEN], memory.0 as u64, used.remote_key() as u32).expect("a write");
            assert_eq!(memory.byte(), twice, "round {round}: the write went to other pages");
            lane.end(used);
        }
        memory.change();
    }
}

#[test]
fn rcache_021_without_a_cache_kept_nothing_is_lost() {
    is_seen_with(Choice::None);
}

#[test]
fn rcache_021_over_the_kernel_tier_nothing_is_lost() {
    is_seen_with(Choice::Bpf);
}

#[test]
fn rcache_021_over_userfaultfd_nothing_is_lost() {
    is_seen_with(Choice::Userfaultfd(Unseen::NeverMade.into()));
}

#[test]
fn rcache_021_over_userfaultfd_of_old_kernels_nothing_is_lost() {
    is_seen_with(Choice::Userfaultfd(Settings::new(Unseen::NeverMade).plain()));
}

#[test]
fn rcache_021_over_sealed_memory_nothing_is_lost() {
    is_seen_with(Choice::Sealed);
}

//! Tests that memory that peers were accessing when its region or its domain ended is kept until they have finished.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::domain::{Domain, DomainBuilder};
use crate::memory::region::Region;
use crate::region::stuck::StuckPeer;
use crate::region::{Access, AccessOrigin};
use crate::transport::sim::{Network, SimOptions};

/// Creates a region of a few bytes, and a peer that does not finish its access to it.
fn stuck() -> (Domain, Arc<StuckPeer>, Region, std::sync::Weak<[u8]>) {
    let network = Network::new(1, SimOptions::default());
    let domain = DomainBuilder::new(false, None, false, false, String::new()).simulated(&network).open().unwrap();
    let memory = Arc::<[u8]>::from([7; 16]);
    let weak = Arc::downgrade(&memory);
    let region = domain.register(memory, Access::REMOTE_READ).unwrap();
    let peer = StuckPeer::at(&domain.inner.keys, region.key(), AccessOrigin::default());
    (domain, peer, region, weak)
}

/// Requirements: REV-002.
#[test]
fn parked_memory_is_freed_by_an_endpoint_that_makes_progress() {
    let (domain, peer, region, memory) = stuck();
    let vector = domain.address_vector().build().unwrap();
    let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0").unwrap();
    let turn = || (0..100).for_each(|_| _ = endpoint.progress());
    drop(region);
    turn();
    assert!(memory.upgrade().is_some(), "memory was freed while a peer accessed it");
    peer.retired.store(true, Ordering::Release);
    turn();
    assert!(memory.upgrade().is_none(), "parked memory was not freed after its peer had retired");
}

/// Requirements: MW-050, REV-002.
#[test]
fn domain_closes_while_a_peer_uses_a_window() {
    let network = Network::new(1, SimOptions::default());
    let domain = DomainBuilder::new(false, None, false, false, String::new()).simulated(&network).open().unwrap();
    let memory = Arc::<[u8]>::from([7; 16]);
    let weak = Arc::downgrade(&memory);
    let region = domain.register(memory, Access::REMOTE_READ).unwrap();
    let mut window = domain.window(crate::memory::window::WindowType::One).unwrap();
    let name = window.bind(&region, 0..8, crate::memory::window::WindowAccess::READ).unwrap();
    let peer = Arc::<StuckPeer>::default();
    let bound = domain.inner.keys.find(name.key, AccessOrigin::default()).unwrap();
    assert!(bound.grants().add(Arc::clone(&peer) as _, 0));
    drop((bound, window, region));
    assert!(weak.upgrade().is_some());
    drop(domain);
    assert!(weak.upgrade().is_some(), "memory was freed while a peer accessed a part of it");
}

/// Requirements: REV-002.
#[test]
fn parked_memory_is_freed_when_another_region_opens_or_closes() {
    for comes in [true, false] {
        let (domain, peer, region, memory) = stuck();
        let other = domain.register(vec![0; 8], Access::REMOTE_READ).unwrap();
        drop(region);
        assert!(memory.upgrade().is_some());
        peer.retired.store(true, Ordering::Release);
        if comes {
            domain.register(vec![0; 8], Access::REMOTE_READ).unwrap();
        } else {
            drop(other.close().unwrap());
        }
        assert!(memory.upgrade().is_none(), "comes: {comes}");
    }
}

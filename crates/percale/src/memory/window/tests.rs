//! Tests of windows in a domain with endpoints that send to themselves.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::*;
use crate::domain::{Domain, DomainBuilder};
use crate::endpoint::Endpoint;
use crate::endpoint::window_work::Bind;
use crate::endpoint::work::OpFlags;
use crate::local_memory::access::Access;
use crate::memory::region::Region;
use crate::region::stuck::StuckPeer;
use crate::region::{AccessOrigin, CloseError, RegisterError, RemoteMemory};
use crate::transport::sim::{Network, SimOptions};
use crate::types::PeerAddress;
use crate::{Entry, ErrorCode};

fn domain_of(two: TypeTwo) -> Domain {
    let network = Network::new(1, SimOptions::default());
    let builder = DomainBuilder::new(false, None, false, false, String::new()).simulated(&network).windows(two);
    builder.revoke_timeout(Duration::from_millis(50)).open().unwrap()
}

fn domain() -> Domain {
    domain_of(TypeTwo::B)
}

/// Creates an endpoint, and returns it with its address as a peer of itself.
fn me(domain: &Domain) -> (Endpoint, PeerAddress) {
    let vector = domain.address_vector().build().unwrap();
    let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0").unwrap();
    let me = vector.insert(endpoint.address()).unwrap();
    (endpoint, me)
}

fn region(domain: &Domain) -> Region {
    domain.register((0..100).collect::<Vec<u8>>(), Access::empty()).unwrap()
}

/// Returns the result of an operation.
fn end(endpoint: &Endpoint) -> Result<Entry, ErrorCode> {
    let mut entries = [Entry::default()];
    assert!(endpoint.wait(Some(Duration::from_secs(20))), "no completion");
    match endpoint.poll(&mut entries) {
        Ok(1) => Ok(entries[0]),
        Ok(_) => panic!("the endpoint was ready but returned no completion"),
        Err(_) => Err(endpoint.read_error().unwrap().error),
    }
}

fn read(endpoint: &Endpoint, me: PeerAddress, name: RemoteMemory) -> Result<Vec<u8>, i32> {
    let read = endpoint.read(me, name, vec![0; name.len as usize]).wait();
    read.map(|bytes| bytes.into_vec()).map_err(|error| error.errno())
}

fn bind(
    (endpoint, me): &(Endpoint, PeerAddress),
    window: &Window,
    region: &Region,
    range: std::ops::Range<u64>,
    key: u8,
) -> Result<RemoteMemory, ErrorCode> {
    let how = Bind { range, access: WindowAccess::READ, key };
    let name = endpoint.post_bind(*me, window, region, &how, 7, OpFlags::COMPLETION).unwrap();
    let entry = end(endpoint)?;
    assert_eq!((entry.context, entry.data, entry.flags), (7, name.key, crate::CompletionFlags::BIND));
    Ok(name)
}

fn invalidate((endpoint, me): &(Endpoint, PeerAddress), key: u64) -> Result<(), ErrorCode> {
    endpoint.post_invalidate(*me, key, 8, OpFlags::COMPLETION).unwrap();
    let entry = end(endpoint)?;
    assert_eq!((entry.context, entry.data), (8, key));
    Ok(())
}

const REFUSED: i32 = ErrorCode::KeyRejected.errno();

/// Requirements: MW-002, MW-034.
#[test]
fn domain_supports_type_1_and_one_type_2_window() {
    for (two, has, lacks) in
        [(TypeTwo::A, WindowType::TwoA, WindowType::TwoB), (TypeTwo::B, WindowType::TwoB, WindowType::TwoA)]
    {
        let domain = domain_of(two);
        assert_eq!(domain.type_two(), two);
        assert_eq!(domain.window(WindowType::One).unwrap().kind(), WindowType::One);
        assert_eq!(domain.window(has).unwrap().kind(), has);
        assert_eq!(domain.window(lacks).unwrap_err(), WindowError::NoSuchType(lacks));
    }
}

/// Requirements: MW-007, MW-029.
#[test]
fn bind_changes_the_low_key_byte_and_other_keys_are_rejected() {
    let domain = domain();
    let (endpoint, me) = me(&domain);
    let region = region(&domain);
    let mut window = domain.window(WindowType::One).unwrap();
    let index = window.key() >> 8;
    let mut old: Option<RemoteMemory> = None;
    for round in 0..600 {
        let name = window.bind(&region, 10..20, WindowAccess::READ).unwrap();
        assert_eq!(name.key >> 8, index);
        assert_eq!((name.address, name.len, window.state()), (10, 10, WindowState::Bound(name.key)));
        if let Some(old) = old {
            assert_ne!(old.key, name.key, "round {round}");
            assert_eq!(read(&endpoint, me, old), Err(REFUSED), "round {round}");
        }
        assert_eq!(read(&endpoint, me, name).unwrap(), (10..20).collect::<Vec<u8>>());
        old = Some(name);
    }
    // MW-008: one of the 256 keys of the window's index is valid, and no key of another index.
    let name = old.unwrap();
    for key in (0..256).map(|byte| name.key & !0xFF | byte).chain([name.key + 256, name.key - 256, name.key | 1 << 32])
    {
        let got = read(&endpoint, me, RemoteMemory { key, ..name });
        assert_eq!(got.is_ok(), key == name.key, "{key:#x}");
    }
}

/// Requirements: MW-016, MW-020.
#[test]
fn failed_bind_changes_nothing() {
    let (domain, other) = (domain(), domain());
    let (endpoint, me) = me(&domain);
    let region = region(&domain);
    let mut window = domain.window(WindowType::One).unwrap();
    let name = window.bind(&region, 10..20, WindowAccess::READ).unwrap();
    let fixed = domain.register(&b"fixed"[..], Access::REMOTE_READ).unwrap();
    let apart = domain.registration(Access::REMOTE_READ).windows(false).own(vec![0; 8]).unwrap();
    let foreign = super::tests::region(&other);
    for (range, wanted) in
        [(0..101, WindowError::Range), (101..101, WindowError::Range), (5..u64::MAX, WindowError::Range)]
    {
        assert_eq!(window.bind(&region, range, WindowAccess::READ).unwrap_err(), wanted);
    }
    #[expect(clippy::reversed_empty_ranges, reason = "the test uses a reversed range on purpose")]
    let backwards = 20..10;
    assert_eq!(window.bind(&region, backwards, WindowAccess::READ).unwrap_err(), WindowError::Range);
    for access in [WindowAccess::WRITE, WindowAccess::ATOMIC, WindowAccess::all()] {
        assert_eq!(window.bind(&fixed, 0..5, access).unwrap_err(), WindowError::ReadOnly);
    }
    assert_eq!(window.bind(&apart, 0..5, WindowAccess::READ).unwrap_err(), WindowError::NotAllowed);
    assert_eq!(window.bind(&foreign, 0..5, WindowAccess::READ).unwrap_err(), WindowError::Domain);
    assert_eq!(window.state(), WindowState::Bound(name.key));
    assert_eq!(read(&endpoint, me, name).unwrap(), (10..20).collect::<Vec<u8>>());
    assert_eq!(
        window.bind(&fixed, 0..5, WindowAccess::READ).map(|name| read(&endpoint, me, name)),
        Ok(Ok(b"fixed".to_vec()))
    );
}

/// Requirements: MW-004, MW-030.
#[test]
fn a_region_is_not_closed_while_a_window_is_bound() {
    let domain = domain();
    let (endpoint, me) = me(&domain);
    let region = region(&domain);
    let mut window = domain.window(WindowType::One).unwrap();
    let name = window.bind(&region, 0..100, WindowAccess::READ).unwrap();
    let Err(CloseError::Windows(region)) = region.close() else {
        panic!("the region was closed while a window was bound to it")
    };
    assert_eq!(read(&endpoint, me, name.at(0..3)).unwrap(), [0, 1, 2]);
    // The region is unchanged, so more windows can be bound to it.
    let mut second = domain.window(WindowType::One).unwrap();
    second.bind(&region, 0..100, WindowAccess::READ).unwrap();
    window.bind(&region, 0..0, WindowAccess::empty()).unwrap();
    assert_eq!((window.state(), read(&endpoint, me, name)), (WindowState::Unbound, Err(REFUSED)));
    let Err(CloseError::Windows(region)) = region.close() else {
        panic!("the region was closed while a window was bound to it")
    };
    drop(second);
    assert!(window.bind(&region, 0..1, WindowAccess::READ).is_ok());
    assert!(window.close().is_ok());
    assert_eq!(region.close().unwrap().into_vec().len(), 100);
}

/// Requirements: MW-004.
#[test]
fn memory_of_a_dropped_region_stays_while_a_window_is_bound() {
    let domain = domain();
    let (endpoint, me) = me(&domain);
    let memory = Arc::<[u8]>::from([7; 16]);
    let weak = Arc::downgrade(&memory);
    let region = domain.register(memory, Access::REMOTE_READ).unwrap();
    let (mut window, key) = (domain.window(WindowType::One).unwrap(), region.remote());
    let name = window.bind(&region, 0..16, WindowAccess::READ).unwrap();
    drop(region);
    assert_eq!(read(&endpoint, me, key), Err(REFUSED));
    assert_eq!(read(&endpoint, me, name), Ok(vec![7; 16]));
    drop(window);
    domain.inner.keys.free_parked();
    assert!(weak.upgrade().is_none(), "unused memory was not freed");
}

/// Requirements: MW-024, MW-025, MW-031.
#[test]
fn each_window_type_accepts_only_its_bind_call() {
    let domain = domain();
    let us = me(&domain);
    let region = region(&domain);
    let (mut one, mut two) = (domain.window(WindowType::One).unwrap(), domain.window(WindowType::TwoB).unwrap());
    assert_eq!(two.bind(&region, 0..8, WindowAccess::READ), Err(WindowError::WrongType));
    assert_eq!(bind(&us, &one, &region, 0..8, 9), Err(ErrorCode::Invalid));
    let name = one.bind(&region, 0..8, WindowAccess::READ).unwrap();
    assert_eq!(invalidate(&us, name.key), Err(ErrorCode::Invalid));
    assert_eq!(read(&us.0, us.1, name).unwrap().len(), 8);
}

/// Requirements: MW-035, MW-036, MW-037, MW-043.
#[test]
fn type_2_window_is_bound_with_a_key_byte_and_invalidated() {
    let domain = domain();
    let us = me(&domain);
    let region = region(&domain);
    let window = domain.window(WindowType::TwoB).unwrap();
    assert_eq!(bind(&us, &window, &region, 5..5, 1), Err(ErrorCode::Invalid));
    let name = bind(&us, &window, &region, 50..60, 0xAB).unwrap();
    assert_eq!(name.key, window.key_with(0xAB));
    assert_eq!(bind(&us, &window, &region, 0..10, 0xAC), Err(ErrorCode::Busy));
    assert_eq!((window.state(), read(&us.0, us.1, name)), (WindowState::Bound(name.key), Ok((50..60).collect())));
    invalidate(&us, name.key).unwrap();
    assert_eq!((window.state(), read(&us.0, us.1, name)), (WindowState::Unbound, Err(REFUSED)));
    // MW-046: keys that are invalid, or never were valid, cannot be invalidated.
    for key in [name.key, window.key_with(1), window.key_with(1) ^ 0x4000_0000, 0] {
        assert_eq!(invalidate(&us, key), Err(ErrorCode::KeyRejected), "{key:#x}");
    }
    // This bind uses the same 8 bits and another range.
    let name = bind(&us, &window, &region, 0..10, 0xAB).unwrap();
    assert_eq!(read(&us.0, us.1, name), Ok((0..10).collect()));
    // The key is valid only through this endpoint.
    let others = me(&domain);
    assert_eq!(read(&others.0, others.1, name), Err(REFUSED));
    assert_eq!(invalidate(&others, name.key), Err(ErrorCode::Denied));
    assert_eq!(read(&us.0, us.1, name), Ok((0..10).collect()));
}

/// Requirements: MW-041.
#[test]
fn type_2b_window_is_unbound_when_its_endpoint_closes() {
    let domain = domain();
    let us = me(&domain);
    let region = region(&domain);
    let window = domain.window(WindowType::TwoB).unwrap();
    bind(&us, &window, &region, 0..10, 1).unwrap();
    drop(us);
    assert_eq!(window.state(), WindowState::Unbound);
    region.close().unwrap();
    assert!(window.close().is_ok());
}

/// Requirements: MW-007.
#[test]
fn window_reserves_256_keys() {
    let domain = domain();
    let window = domain.window(WindowType::One).unwrap();
    let with_key = |key| domain.registration(Access::REMOTE_READ).key(key).own(vec![0; 8]);
    for byte in [0, 1, 255] {
        let key = window.key_with(byte);
        assert!(matches!(with_key(key), Err(RegisterError::KeyTaken(taken)) if taken == key));
    }
    // A region has a key with the next index, so this index is skipped.
    let next = window.key_with(0) + 256;
    let region = with_key(next + 17).unwrap();
    let other = domain.window(WindowType::One).unwrap();
    assert_ne!(other.key(), next);
    region.close().unwrap();
    drop(window);
    assert!(with_key(next - 256).is_ok(), "the keys of a deallocated window can be used");
    // KEY-004: the domain never chooses a window's key for a region.
    for _ in 0..100 {
        let key = domain.register(vec![0], Access::REMOTE_READ).unwrap().key();
        assert!(key > u64::from(u32::MAX) && key != u64::MAX && key >> 32 != next >> 32);
    }
}

/// Returns a peer that never finishes its access to a window.
fn stuck_in(domain: &Domain, key: u64, via: AccessOrigin) -> Arc<StuckPeer> {
    StuckPeer::at(&domain.inner.keys, key, via)
}

/// Requirements: MW-050.
#[test]
fn rebind_returns_busy_while_a_stopped_peer_uses_the_window() {
    let domain = domain();
    let region = region(&domain);
    let mut window = domain.window(WindowType::One).unwrap();
    let name = window.bind(&region, 0..8, WindowAccess::READ).unwrap();
    let peer = stuck_in(&domain, name.key, AccessOrigin::default());
    assert_eq!(window.bind(&region, 0..8, WindowAccess::READ), Err(WindowError::Busy));
    assert_eq!(window.state(), WindowState::Revoking(name.key));
    let Err(CloseError::Windows(region)) = region.close() else {
        panic!("the region was closed while a peer accessed it")
    };
    let Err(CloseError::Busy(mut window)) = window.close() else {
        panic!("the window was deallocated while a peer accessed it")
    };
    peer.retired.store(true, Ordering::Release);
    let again = window.bind(&region, 0..8, WindowAccess::READ).unwrap();
    assert_ne!(again.key, name.key);
    let peer = stuck_in(&domain, again.key, AccessOrigin::default());
    drop(window);
    let Err(CloseError::Windows(region)) = region.close() else {
        panic!("the region was closed while a peer accessed it")
    };
    peer.retired.store(true, Ordering::Release);
    domain.inner.keys.free_parked();
    region.close().unwrap();
}

/// Requirements: MW-050.
#[test]
fn invalidation_completes_when_the_window_has_no_users() {
    let domain = domain();
    let us = me(&domain);
    let region = region(&domain);
    let window = domain.window(WindowType::TwoB).unwrap();
    let via = us.0.via_for_test(us.1);
    let name = bind(&us, &window, &region, 0..8, 1).unwrap();
    let peer = stuck_in(&domain, name.key, via);
    assert_eq!(invalidate(&us, name.key), Err(ErrorCode::Busy));
    assert_eq!(read(&us.0, us.1, name), Err(REFUSED));
    // The invalidation may be requested again, and a bind waits for it.
    us.0.post_invalidate(us.1, name.key, 1, OpFlags::COMPLETION).unwrap();
    let how = Bind { range: 8..16, access: WindowAccess::READ, key: 2 };
    let next = us.0.post_bind(us.1, &window, &region, &how, 2, OpFlags::COMPLETION).unwrap();
    (0..100).for_each(|_| _ = us.0.progress());
    assert!(!us.0.wait(Some(Duration::ZERO)), "the invalidation completed while a peer accessed the window");
    peer.retired.store(true, Ordering::Release);
    assert_eq!(end(&us.0).map(|entry| entry.context), Ok(1));
    assert_eq!(end(&us.0).map(|entry| entry.context), Ok(2));
    assert_eq!(read(&us.0, us.1, next), Ok((8..16).collect()));
    // An operation with a fence does not wait for invalidations that have ended.
    us.0.post_invalidate(us.1, next.key, 3, OpFlags::FENCE | OpFlags::COMPLETION).unwrap();
    assert_eq!(end(&us.0).map(|entry| entry.context), Ok(3));
}

/// Requirements: MW-044.
#[test]
fn fence_waits_for_invalidation_posted_before_connection_loss() {
    let network = Network::new(1, SimOptions::default());
    let open = || {
        let builder = DomainBuilder::new(false, None, false, false, String::new()).simulated(&network);
        builder.revoke_timeout(Duration::from_secs(60)).open().unwrap()
    };
    let (domain, other) = (open(), open());
    let vector = domain.address_vector().build().unwrap();
    let owner = domain.endpoint().vector(&vector).bind("127.0.0.1:0").unwrap();
    let user = other.endpoint().bind("127.0.0.1:0").unwrap();
    let user_there = vector.insert(user.address()).unwrap();
    let region = region(&domain);
    let windows = [1, 2].map(|_| domain.window(WindowType::TwoB).unwrap());
    let turns = || (0..1000).for_each(|_| _ = (owner.progress(), user.progress()));
    let taken = || {
        let mut entry = [Entry::default()];
        turns();
        owner.poll(&mut entry).map(|count| (count > 0).then_some(entry[0].context)).unwrap()
    };
    let bind = |window, key, context, flags| {
        let how = Bind { range: 0..8, access: WindowAccess::READ, key };
        owner.post_bind(user_there, window, &region, &how, context, flags | OpFlags::COMPLETION).unwrap()
    };
    let name = bind(&windows[0], 1, 1, OpFlags::empty());
    assert_eq!(taken(), Some(1));
    let stuck = stuck_in(&domain, name.key, owner.via_for_test(user_there));
    owner.post_invalidate(user_there, name.key, 2, OpFlags::COMPLETION).unwrap();
    network.lose(0);
    turns();
    // This bind uses another connection, so it does not wait for the invalidation.
    bind(&windows[1], 2, 3, OpFlags::empty());
    assert_eq!(taken(), Some(3));
    bind(&windows[1], 3, 4, OpFlags::FENCE);
    assert_eq!(taken(), None, "a fenced bind completed before an earlier invalidation");
    stuck.retired.store(true, Ordering::Release);
    assert_eq!(taken(), Some(2));
}

/// Tests every 64th key, and all keys of windows. With `PERCALE_LONG` it tests every 32-bit key.
///
/// Requirements: MW-008.
#[test]
fn only_live_keys_are_accepted() {
    let long = std::env::var_os("PERCALE_LONG").is_some_and(|value| value != "0");
    let domain = domain();
    let region = region(&domain);
    let mut windows: Vec<Window> = (0..300).map(|_| domain.window(WindowType::One).unwrap()).collect();
    let mut live = std::collections::BTreeSet::new();
    for (number, window) in windows.iter_mut().enumerate() {
        // Some windows are never bound, some are bound several times, and some were bound and then unbound.
        for _ in 0..number % 5 {
            let key = window.bind(&region, 0..1, WindowAccess::READ).unwrap().key;
            if number % 7 == 0 {
                window.bind(&region, 0..0, WindowAccess::READ).unwrap();
            } else {
                live.remove(&window.key_with((key as u8).wrapping_sub(1)));
                live.insert(key);
            }
        }
    }
    assert!(live.len() > 200);
    let allows = |key: &u64| domain.allows(RemoteMemory { key: *key, address: 0, len: 1 }, Access::REMOTE_READ);
    let step = if long { 1 } else { 64 };
    let upper = windows[0].key() >> 32 << 32;
    let some = (0..1_u64 << 32).step_by(step).flat_map(|low| [low, upper | low]).filter(allows);
    let near = windows.iter().flat_map(|window| (0..=255).map(|byte| window.key_with(byte))).filter(allows);
    assert_eq!(near.chain(some).collect::<std::collections::BTreeSet<u64>>(), live);
}

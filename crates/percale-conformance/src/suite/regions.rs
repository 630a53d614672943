//! Tests of regions: raw keys, asynchronous registration, enabling and refreshing, endpoints, and authorization keys.

use std::panic::{AssertUnwindSafe, catch_unwind};

use percale::endpoint::safe::{Cause, OperationError};
use percale::memory::region::{PendingError, RAW_KEY_BYTES, RegisterError};
use percale::{
    Access, Buffer, Counter, ErrorCode, Event, EventQueue, PostError, Region, RemoteMemory, WindowAccess, WindowType,
};

use crate::fabric::Fabric;
use crate::memory::{content, same};
use crate::mesh::Mesh;

const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
const LEN: usize = 20_000;

/// Returns memory of both kinds: memory that percale allocated, which local peers may map, and other memory.
fn memories<F: Fabric>(mesh: &Mesh<F>) -> [Buffer; 2] {
    let mut allocation = mesh.test_endpoint(1).domain.allocate(LEN).expect("memory");
    allocation.write(0, &content(1, LEN));
    [Buffer::from(content(1, LEN)), Buffer::from(allocation)]
}

/// Checks that a read, a write and an atomic operation succeed.
#[track_caller]
fn served<F: Fabric>(mesh: &Mesh<F>, region: &Region, remote: RemoteMemory) {
    let (a, peer) = (mesh.endpoint(0), mesh.peer(1));
    for (number, len) in [(3, 8), (4, 3000), (5, remote.len as usize)] {
        let part = remote.at(0..len as u64);
        mesh.finish(a.write(peer, content(number, len), part)).expect("the write");
        let mut there = vec![0; len];
        region.read(0, &mut there);
        same(&there, &content(number, len), "the written data");
        let got = mesh.finish(a.read(peer, part, vec![0; len])).expect("the read");
        same(&got.into_vec(), &content(number, len), "the data read");
    }
    let word = remote.at(0..8);
    let before = mesh.finish(a.fetch_add(peer, word, 7_u64)).expect("an atomic operation");
    assert_eq!(mesh.finish(a.fetch_add(peer, word, 7_u64)).expect("another"), before.wrapping_add(7));
}

/// Checks that a read, a write and an atomic operation fail, and that nothing is disclosed or changed.
#[track_caller]
fn refused<F: Fabric>(mesh: &Mesh<F>, region: Option<&Region>, remote: RemoteMemory) {
    let (a, peer) = (mesh.endpoint(0), mesh.peer(1));
    let bytes = |region: &Region| {
        let mut bytes = vec![0; region.len()];
        region.read(0, &mut bytes);
        bytes
    };
    let before = region.map(bytes);
    for len in [8, 3000, remote.len as usize] {
        let part = remote.at(0..len as u64);
        let write = mesh.finish(a.write(peer, vec![0x55; len], part)).expect_err("a write is refused");
        assert_eq!(code(&write), ErrorCode::KeyRejected);
        let read = mesh.finish(a.read(peer, part, vec![0x55; len])).expect_err("a read is refused");
        assert_eq!(code(&read), ErrorCode::KeyRejected);
        same(&read.into_buffer().expect("the buffer is returned").into_vec(), &vec![0x55; len], "nothing is disclosed");
    }
    let add = mesh.finish(a.fetch_add(peer, remote.at(0..8), 1_u64)).expect_err("an atomic operation is refused");
    assert_eq!(code(&add), ErrorCode::KeyRejected);
    assert_eq!(region.map(bytes), before, "something was changed");
}

#[track_caller]
fn code(error: &OperationError) -> ErrorCode {
    match error.cause() {
        Cause::Completion(error) => error.error,
        other => panic!("the operation should have been posted: {other}"),
    }
}

/// The key of a region is valid immediately after each registration of the memory, and invalid after the region is
/// closed.
///
/// Requirements: MR-058, KEY-001.
pub fn key_is_valid_from_registration_until_close<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.test_endpoint(1).domain;
    for mut memory in memories(&mesh) {
        let mut dead = Vec::new();
        for _ in 0..5 {
            let region = domain.register(memory, ALL).expect("a region");
            served(&mesh, &region, region.remote());
            dead.push(region.remote());
            memory = region.close().expect("no access is in progress");
            dead.iter().for_each(|name| refused(&mesh, None, *name));
        }
    }
}

/// A domain that has mapped a complete raw key can access its region. No other domain can, and no domain can after the
/// key was unmapped.
///
/// Requirements: KEY-005, KEY-006, KEY-011, KEY-012, KEY-014, KEY-015, KEY-016.
pub fn mapped_raw_keys_give_access_to_their_region<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (ours, theirs) = (&mesh.test_endpoint(0).domain, &mesh.test_endpoint(1).domain);
    for (base, memory) in [0, 0x7000_0000_0000].into_iter().zip(memories(&mesh)) {
        let region = theirs.registration(ALL).base(base).raw_key().own(memory).expect("a region");
        let raw = region.raw_key();
        assert_eq!((raw.as_bytes().len(), region.remote().address), (RAW_KEY_BYTES, base));
        // The parts of a raw key are not valid keys themselves.
        for part in raw.as_bytes().windows(8) {
            let key = u64::from_le_bytes(part.try_into().expect("8 bytes"));
            let read = mesh.finish(mesh.endpoint(0).read(
                mesh.peer(1),
                RemoteMemory { key, address: base, len: 8 },
                vec![0; 8],
            ));
            assert_eq!(code(&read.expect_err("no key")), ErrorCode::KeyRejected);
        }
        let mapped = ours.map_raw(raw.as_bytes()).expect("a raw key");
        let remote = mapped.remote(base, LEN as u64);
        served(&mesh, &region, remote);
        let again = ours.map_raw(raw.as_bytes()).expect("mapped twice");
        assert_ne!(again.key(), mapped.key());
        drop(mapped);
        let (a, peer) = (mesh.endpoint(0), mesh.peer(1));
        let late = a.write(peer, vec![1; 8], remote.at(0..8)).start().expect_err("the key is unmapped");
        assert!(matches!(late.cause(), Cause::Post(PostError::NotMapped(key)) if *key == remote.key), "{late}");
        served(&mesh, &region, again.remote(base, LEN as u64));
        // A mapped key is invalid after its region was closed, and gives no access to a later region with the same base
        // address.
        drop(region.close().expect("no access is in progress"));
        refused(&mesh, None, again.remote(base, LEN as u64));
        let next = theirs.registration(ALL).base(base).raw_key().own(content(1, LEN)).expect("a region");
        refused(&mesh, Some(&next), again.remote(base, LEN as u64));
    }
}

/// Regions without long keys have short raw keys, which can be mapped as well.
///
/// Requirements: KEY-013, KEY-019.
pub fn short_raw_keys_can_be_mapped<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    for memory in memories(&mesh) {
        let region = mesh.test_endpoint(1).domain.register(memory, ALL).expect("a region");
        assert_eq!(region.raw_key().as_bytes(), region.key().to_le_bytes());
        let mapped = mesh.test_endpoint(0).domain.map_raw(region.raw_key().as_bytes()).expect("a raw key");
        served(&mesh, &region, mapped.remote(0, LEN as u64));
        served(&mesh, &region, region.remote());
    }
}

/// A raw key is invalid if any bit was changed, if it was truncated, if it belongs to another domain, or if it was
/// combined from two keys.
///
/// Requirements: KEY-005, KEY-015.
pub fn forged_raw_keys_give_no_access<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let ours = &mesh.test_endpoint(0).domain;
    for memory in memories(&mesh) {
        let region = mesh.test_endpoint(1).domain.registration(ALL).raw_key().own(memory).expect("a region");
        let other =
            mesh.test_endpoint(1).domain.registration(Access::empty()).raw_key().own(vec![0; LEN]).expect("a region");
        let foreign = mesh.fabric.domain(|domain| domain);
        let foreign = foreign.registration(ALL).raw_key().own(vec![0; LEN]).expect("a region elsewhere");
        let good: [u8; RAW_KEY_BYTES] = region.raw_key().as_bytes().try_into().expect("32 bytes");
        let mut forged = (0..8 * RAW_KEY_BYTES)
            .map(|bit| {
                let mut wrong = good;
                wrong[bit / 8] ^= 1 << (bit % 8);
                wrong.to_vec()
            })
            .collect::<Vec<_>>();
        let mut spliced = good;
        spliced[..16].copy_from_slice(&other.raw_key().as_bytes()[..16]);
        forged.extend([
            good[..8].to_vec(),
            foreign.raw_key().as_bytes().to_vec(),
            spliced.to_vec(),
            vec![0; RAW_KEY_BYTES],
        ]);
        let before = content(1, LEN);
        for wrong in forged {
            let mapped = ours.map_raw(&wrong).expect("a raw key of valid length");
            let part = mapped.remote(0, 8);
            let read = mesh.finish(mesh.endpoint(0).read(mesh.peer(1), part, vec![0; 8])).expect_err("forged");
            assert_eq!(code(&read), ErrorCode::KeyRejected, "{wrong:x?}");
            let write = mesh.finish(mesh.endpoint(0).write(mesh.peer(1), vec![9; 8], part)).expect_err("forged");
            assert_eq!(code(&write), ErrorCode::KeyRejected, "{wrong:x?}");
        }
        for len in (0..64).filter(|len| !matches!(*len, 8 | RAW_KEY_BYTES)) {
            let error = ours.map_raw(&vec![7; len]).expect_err("an invalid raw key length");
            assert_eq!(error.errno(), 22, "{len}: {error}");
        }
        let mut there = vec![0; LEN];
        region.read(0, &mut there);
        same(&there, &before, "the target");
        served(&mesh, &region, ours.map_raw(&good).expect("a raw key").remote(0, LEN as u64));
    }
}

/// Every 64-bit value can be the key of a region while windows are bound and keys are mapped on both sides. The domain
/// never chooses the value that means "no key".
///
/// Requirements: KEY-004, KEY-020, MW-051.
pub fn every_64_bit_value_can_be_a_region_key<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (us, owner) = (&mesh.test_endpoint(0).domain, &mesh.test_endpoint(1).domain);
    let below = owner.register(content(1, 64), Access::empty()).expect("a region");
    let mut windows: Vec<_> = (0..64).map(|_| owner.window(WindowType::One).expect("a window")).collect();
    let names: Vec<_> =
        windows.iter_mut().map(|window| window.bind(&below, 0..8, WindowAccess::READ).expect("a bind")).collect();
    let raw = owner.registration(ALL).raw_key().own(content(2, 64)).expect("a region");
    let mapped = [us, owner].map(|domain| domain.map_raw(raw.raw_key().as_bytes()).expect("a mapped key"));
    let chosen =
        [0, 1, 0xFFFF, 1 << 31, u64::from(u32::MAX), 1 << 32, 1 << 63, 0x7FFF_F7FF_0000, u64::MAX - 1, u64::MAX];
    let halves = (0..64).flat_map(|bit| [0xFFFF_FFFE_0000_0000 | 1 << (bit % 32), 1 << bit, u64::MAX << bit]);
    // Keys that differ from a window's key or from a mapped key in the upper half, and keys that consist of only that
    // half.
    let near = names.iter().map(|name| name.key).chain(mapped.iter().map(|key| key.key()));
    let near = near.flat_map(|key| [key & 0xFFFF_FFFF, key ^ 1 << 32, key ^ 1 << 63, key >> 32]);
    let keys: std::collections::BTreeSet<u64> = chosen.into_iter().chain(halves).chain(near).collect();
    for key in keys {
        let region = owner.registration(ALL).key(key).own(content(key, 64)).expect("any key");
        assert_eq!(region.key(), key);
        let read = mesh.finish(mesh.endpoint(0).read(mesh.peer(1), region.remote(), vec![0; 64])).expect("a read");
        same(&read.into_vec(), &content(key, 64), "the region of this key");
        mesh.finish(mesh.endpoint(0).write(mesh.peer(1), vec![7; 8], region.remote().at(8..16))).expect("a write");
        region.close().expect("no access is in progress");
        let late =
            mesh.finish(mesh.endpoint(0).read(mesh.peer(1), RemoteMemory { key, address: 0, len: 8 }, vec![0; 8]));
        assert_eq!(
            code(&late.expect_err("no region has this key")),
            ErrorCode::KeyRejected,
            "{key:#x} of a region that was closed"
        );
    }
    for name in names {
        let read = mesh.finish(mesh.endpoint(0).read(mesh.peer(1), name, vec![0; 8])).expect("a window");
        same(&read.into_vec(), &content(1, 64)[..8], "the window");
    }
    let read = mesh.finish(mesh.endpoint(0).read(mesh.peer(1), mapped[0].remote(0, 64), vec![0; 64]));
    same(&read.expect("a mapped key").into_vec(), &content(2, 64), "the region of the mapped key");
    let mut regions = Vec::new();
    for _ in 0..500 {
        let region = owner.register(vec![0; 8], ALL).expect("a region");
        assert!(region.key() >> 32 != 0 && region.key() != u64::MAX);
        regions.push(region);
    }
}

/// The memory of an asynchronous registration cannot be accessed and has no key before the event is read.
///
/// Requirements: MR-060, MR-062, MR-063, MR-064, MR-065, KEY-002.
pub fn registration_ends_with_an_event<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.test_endpoint(1).domain;
    let events = EventQueue::new(3);
    for memory in memories(&mesh) {
        let remote = RemoteMemory { key: 90, address: 0, len: LEN as u64 };
        let pending = domain.registration(ALL).key(90).begin(memory, &events, 7).expect("room for an event");
        refused(&mesh, None, remote);
        let error = pending.finish().expect_err("the event was not read");
        assert!(error.is_retriable(), "{error}");
        let pending = error.into_inner().expect("it has not ended");
        assert_eq!(events.peek(), Some(Event::Registered { context: 7 }));
        assert_eq!(events.read(), Some(Event::Registered { context: 7 }));
        assert_eq!(events.read(), None, "exactly one");
        let region = pending.finish().expect("a region");
        assert_eq!(region.key(), 90);
        served(&mesh, &region, remote);
        // If the key is in use, the event reports this and there is no region.
        let late = domain.registration(ALL).key(90).begin(vec![0; 8], &events, 8).expect("room for an event");
        assert!(matches!(events.read(), Some(Event::RegistrationFailed { context: 8, errno: 126, .. })));
        let error = late.finish().expect_err("the key is taken");
        assert!(matches!(error, PendingError::Failed(RegisterError::KeyTaken(90))), "{error}");
        // If the registration is cancelled, or if the call fails, there is no event.
        drop(domain.registration(ALL).key(91).begin(vec![0; 8], &events, 9).expect("room for an event"));
        assert_eq!(events.read(), None);
        let full = (0..3).map(|context| domain.registration(ALL).begin(vec![0; 8], &events, context).expect("room"));
        let full = full.collect::<Vec<_>>();
        domain.registration(ALL).begin(vec![0; 8], &events, 3).expect_err("no room");
        for context in 0..3 {
            assert_eq!(events.read(), Some(Event::Registered { context }));
        }
        assert_eq!(events.read(), None);
        full.into_iter().for_each(|pending| drop(pending.finish().expect("a region")));
    }
}

/// Each write and atomic operation of a peer is counted once. Reads, and writes to other memory, are not counted.
///
/// Requirements: BIND-001, BIND-002, BIND-008.
pub fn remote_writes_are_counted_by_the_region_counter<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (a, peer) = (mesh.endpoint(0), mesh.peer(1));
    let domain = &mesh.test_endpoint(1).domain;
    for memory in memories(&mesh) {
        let counter = Counter::new();
        let mut region = domain.registration(ALL).counter(&counter).disabled().own(memory).expect("a region");
        let other = domain.register(vec![0; LEN], ALL).expect("another region");
        refused(&mesh, Some(&region), region.remote());
        assert_eq!(counter.read(), 0);
        region.enable().expect("no access is in progress");
        served(&mesh, &region, region.remote());
        mesh.until(|| (counter.read() >= 5).then_some(()));
        mesh.finish(a.read(peer, region.remote(), vec![0; LEN])).expect("a read");
        served(&mesh, &other, other.remote());
        mesh.turns(50);
        assert_eq!(counter.read(), 5, "three writes and two atomic operations");
        // The region keeps the counter when it is disabled and enabled again.
        region.refresh(|| ()).expect("no access is in progress");
        mesh.finish(a.write(peer, vec![1; 100], region.remote().at(0..100))).expect("a write");
        mesh.until(|| (counter.read() >= 6).then_some(()));
    }
}

/// A disabled region keeps its key. No peer can access it, including peers that accessed it before.
///
/// Requirements: BIND-006, BIND-009.
pub fn a_disabled_region_is_not_reached<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.test_endpoint(1).domain;
    for memory in memories(&mesh) {
        let mut region = domain.registration(ALL).key(66).disabled().own(memory).expect("a region");
        assert!(!region.is_enabled());
        let taken = domain.registration(ALL).key(66).own(vec![0; 8]).expect_err("the key is taken");
        assert!(matches!(taken, RegisterError::KeyTaken(66)), "{taken}");
        for _ in 0..3 {
            refused(&mesh, Some(&region), region.remote());
            region.enable().expect("no access is in progress");
            region.enable().expect("nothing happens to an enabled region");
            served(&mesh, &region, region.remote());
            region.disable().expect("no access is in progress");
            region.disable().expect("nothing happens to a disabled region");
        }
        // If the region is closed while it is disabled, its key can be used again.
        drop(region.close().expect("no access is in progress"));
        let again = domain.registration(ALL).key(66).own(content(1, LEN)).expect("the key is free");
        served(&mesh, &again, again.remote());
        drop(again);
        drop(domain.registration(ALL).key(66).disabled().own(vec![0; 8]).expect("the key is free"));
        domain.registration(ALL).key(66).own(vec![0; 8]).expect("the key is free");
    }
}

/// A region bound to an endpoint cannot be accessed through other endpoints. A region that is bound to no endpoint can
/// be accessed through all endpoints.
///
/// Requirements: BIND-010, BIND-011, BIND-012.
pub fn endpoint_bound_region_is_accessible_only_through_it<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (domain, here) = (&mesh.test_endpoint(1).domain, mesh.endpoint(1).id());
    let elsewhere =
        domain.endpoint().vector(&mesh.test_endpoint(1).vector).bind(mesh.fabric.address()).expect("an endpoint");
    for memory in memories(&mesh) {
        let mut region = domain.registration(ALL).endpoint(elsewhere.id()).own(memory).expect("a region");
        refused(&mesh, Some(&region), region.remote());
        region.disable().expect("no access is in progress");
        region.restrict(here);
        refused(&mesh, Some(&region), region.remote());
        region.enable().expect("no access is in progress");
        served(&mesh, &region, region.remote());
        region.disable().expect("no access is in progress");
        region.restrict(elsewhere.id());
        region.enable().expect("no access is in progress");
        refused(&mesh, Some(&region), region.remote());
        let of_all = domain.register(content(1, LEN), ALL).expect("a region");
        served(&mesh, &of_all, of_all.remote());
    }
}

/// While a region is being refreshed, accesses of peers fail. Afterwards they access the new contents.
///
/// Requirements: BIND-014, BIND-016, BIND-018, BIND-019.
pub fn region_is_not_accessible_during_refresh<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (a, peer) = (mesh.endpoint(0), mesh.peer(1));
    for memory in memories(&mesh) {
        let mut region = mesh.test_endpoint(1).domain.register(memory, ALL).expect("a region");
        let remote = region.remote();
        for number in 0..5 {
            served(&mesh, &region, remote);
            region.refresh(|| refused(&mesh, None, remote)).expect("no access is in progress");
            region.write(0, &content(number, LEN));
            let got = mesh.finish(a.read(peer, remote, vec![0; LEN])).expect("a read");
            same(&got.into_vec(), &content(number, LEN), "the current contents");
        }
    }
}

/// A region is accessible only through endpoints that have its authorization key, which is that of the domain or
/// another one.
///
/// Requirements: MR-055, MR-056.
pub fn region_is_accessible_only_with_its_authorization_key<F: Fabric>() {
    for own in [None, Some("key of the endpoints")] {
        let mesh = Mesh::<F>::with(
            2,
            |domain| domain.authorization_key("key of the domain"),
            |_, endpoint| match own {
                Some(key) => endpoint.authorization_key(key),
                None => endpoint,
            },
        );
        let domain = &mesh.test_endpoint(1).domain;
        for key in [None, Some("key of the domain"), Some("key of the endpoints"), Some("key of no endpoint")] {
            for memory in memories(&mesh) {
                let registration = domain.registration(ALL);
                let registration = match key {
                    Some(key) => registration.authorization_key(key.as_bytes()),
                    None => registration,
                };
                let region = registration.own(memory).expect("a region");
                if key.unwrap_or("key of the domain") == own.unwrap_or("key of the domain") {
                    served(&mesh, &region, region.remote());
                } else {
                    refused(&mesh, Some(&region), region.remote());
                }
            }
        }
    }
}

/// A region of plain values is accessed by peers, and returns its memory in its type.
///
/// Requirements: RMA-001, RMA-002.
pub fn typed_region_returns_the_values_that_peers_wrote<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (a, peer, domain) = (mesh.endpoint(0), mesh.peer(1), &mesh.test_endpoint(1).domain);
    let vector = domain.register_typed(vec![1.5_f64; 1000], ALL).expect("a region");
    let allocation =
        domain.register_typed(domain.allocate_of::<[u32; 2]>(500).expect("memory"), ALL).expect("a region");
    for remote in [vector.remote(), allocation.remote()] {
        mesh.finish(a.write(peer, [7_u32, 8].map(u32::to_ne_bytes).concat(), remote.at(16..24))).expect("a write");
        let first = mesh.finish(a.read(peer, remote.at(0..8), vec![0; 8])).expect("a read").into_vec();
        assert_eq!(first, if remote == vector.remote() { 1.5_f64.to_ne_bytes() } else { [0; 8] });
    }
    let values: Vec<f64> = vector.close().expect("the memory");
    assert_eq!(
        (values[1], values[2].to_ne_bytes().as_slice()),
        (1.5, [7_u32, 8].map(u32::to_ne_bytes).concat().as_slice())
    );
    assert_eq!(allocation.get(2), [7, 8]);
    assert_eq!(allocation.close().expect("the memory").to_vec()[1..4], [[0; 2], [7, 8], [0; 2]]);
}

/// Scopes of borrowed memory end while a peer accesses it: afterwards the memory does not change. The closure leaks
/// its regions, and sometimes panics.
///
/// Requirements: REV-001, REV-004, REV-006.
pub fn borrowed_memory_is_not_written_after_its_scope<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.test_endpoint(1).domain;
    let (mut written, read) = (vec![0; LEN], content(1, LEN));
    for round in 1..30_u8 {
        let mut under_way = Vec::new();
        let ended = catch_unwind(AssertUnwindSafe(|| {
            domain.scope(|scope| {
                let writable = scope.register(&mut written, ALL).expect("a region");
                let readable = scope.register_shared(&read, Access::REMOTE_READ).expect("a region");
                let (to, from) = (writable.remote(), readable.remote());
                Box::leak(Box::new([writable, readable]));
                for len in [8, 3000, LEN] {
                    let write = mesh.endpoint(0).write(mesh.peer(1), vec![round; len], to.at(..len as u64));
                    let read = mesh.endpoint(0).read(mesh.peer(1), from.at(..len as u64), vec![0; len]);
                    under_way.extend([(write.start(), false), (read.start(), true)]);
                }
                mesh.turns(usize::from(round % 7));
                assert!(round % 3 > 0, "as intended");
            });
        }));
        assert_eq!(ended.is_err(), round % 3 == 0);
        let before = written.clone();
        for (operation, reads) in under_way {
            match mesh.finish(operation.expect("the operation was posted")) {
                Ok(buffer) if reads => {
                    same(buffer.as_slice().expect("a vector"), &read[..buffer.len()], "the data read")
                }
                Ok(_) => {}
                Err(error) => assert_eq!(code(&error), ErrorCode::KeyRejected),
            }
        }
        assert!(written == before, "round {round}: memory was written after its scope had ended");
    }
}

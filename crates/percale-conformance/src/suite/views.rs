//! The owner's typed and atomic access to its region while peers access it.

use std::sync::atomic::Ordering;

use percale::{Access, Region, ViewError};

use crate::fabric::Fabric;
use crate::memory::content;
use crate::mesh::Mesh;

const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Registers memory of the second endpoint, aligned for atomic operations.
fn region<F: Fabric>(mesh: &Mesh<F>, len: usize) -> Region {
    let domain = &mesh.test_endpoint(1).domain;
    domain.register(domain.allocate(len).expect("memory"), ALL).expect("a region")
}

/// What a peer wrote before it changed a flag is read by an owner that loads the flag, and the reverse.
///
/// Requirements: RMA-008, ATM-002.
pub fn flag_orders_bytes_between_peer_and_owner<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (peer, owner) = (mesh.endpoint(0), mesh.peer(1));
    let region = region(&mesh, 64 << 10);
    let (view, remote) = (region.view(), region.remote());
    let flag = view.atomic::<u64>(0).expect("an aligned word");
    for (round, len) in (1_u64..).zip([8, 100, 3000, 60_000]) {
        let sent = content(round, len);
        mesh.finish(peer.write(owner, sent.clone(), remote.at(64..64 + len as u64))).expect("a write");
        let before: u64 = mesh.finish(peer.fetch_add(owner, remote.at(0..8), 1_u64)).expect("an addition");
        assert_eq!((before, flag.load(Ordering::Acquire)), (round - 1, round));
        let mut got = vec![0; len];
        view.copy_to(64, &mut got).expect("the bytes are within the region");
        assert!(got == sent, "{len} bytes");
        assert_eq!(view.read_at::<[u8; 8]>(64).expect("8 bytes").as_slice(), &sent[..8]);
    }
    let answer = content(99, 1000);
    view.copy_from(64, &answer).expect("room");
    view.write_at(1064, [1_u32, 2, 3]).expect("room");
    flag.store(77, Ordering::Release);
    let seen: u64 = mesh.finish(peer.fetch_add(owner, remote.at(..8), 0_u64)).expect("an addition");
    assert_eq!(seen, 77);
    let got = mesh.finish(peer.read(owner, remote.at(64..1076), vec![0; 1012])).expect("a read").into_vec();
    let numbers: Vec<u8> = [1_u32, 2, 3].iter().flat_map(|number| number.to_ne_bytes()).collect();
    assert!(got[..1000] == answer && got[1000..] == numbers, "what the owner wrote is read");
}

/// Additions of a peer and of the owner to one word are all kept, and a value is exchanged once.
///
/// Requirements: ATM-002.
pub fn owner_and_peer_change_one_word_atomically<F: Fabric>() {
    const ROUNDS: u64 = 300;
    let mesh = Mesh::<F>::new(2);
    let (peer, owner) = (mesh.endpoint(0), mesh.peer(1));
    let region = region(&mesh, 64);
    let (view, remote) = (region.view(), region.remote());
    std::thread::scope(|scope| {
        let adds = scope.spawn(move || {
            for _ in 0..ROUNDS {
                view.atomic::<u64>(8).expect("a word").fetch_add(1, Ordering::Relaxed);
                view.atomic::<u32>(16).expect("a word").fetch_add(1, Ordering::Relaxed);
            }
        });
        for _ in 0..ROUNDS {
            mesh.finish(peer.fetch_add(owner, remote.at(8..16), 1_u64)).expect("an addition");
            mesh.finish(peer.fetch_add(owner, remote.at(16..20), 1_u32)).expect("an addition");
        }
        adds.join().expect("the owner's thread");
    });
    assert_eq!((view.read_at::<u64>(8), view.read_at::<u32>(16)), (Ok(2 * ROUNDS), Ok(2 * ROUNDS as u32)));
    let word = view.atomic::<u64>(8).expect("a word");
    let swap = || mesh.finish(peer.compare_swap(owner, remote.at(8..16), 5_u64, 6)).expect("a swap");
    word.store(5, Ordering::Relaxed);
    assert_eq!(swap(), 5);
    assert_eq!(word.compare_exchange(5, 7, Ordering::AcqRel, Ordering::Acquire), Err(6));
    assert_eq!(word.compare_exchange(6, 7, Ordering::AcqRel, Ordering::Acquire), Ok(6));
    assert_eq!(swap(), 7);
}

/// A part of a region has the description and the view of the same bytes.
pub fn part_of_a_region_names_the_bytes_of_its_view<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (peer, owner) = (mesh.endpoint(0), mesh.peer(1));
    let domain = &mesh.test_endpoint(1).domain;
    let registration = domain.registration(ALL).base(1 << 40);
    let region = registration.own(domain.allocate(4096).expect("memory")).expect("a region");
    let part = region.slice(1000..3000).expect("within the region").slice(24..).expect("within the part");
    assert_eq!((part.start(), part.len(), part.access()), (1024, 1976, ALL));
    assert_eq!(part.remote(), region.remote().at(1024..3000));
    mesh.finish(peer.write(owner, content(3, 1976), part.remote())).expect("a write");
    let mut got = vec![0; 1976];
    part.view().copy_to(0, &mut got).expect("the whole part");
    assert!(got == content(3, 1976), "the peer's bytes");
    assert_eq!(region.view().read_at::<[u8; 2]>(1023).expect("2 bytes"), [0, got[0]]);
    assert_eq!(part.view().read_at::<u8>(1976), Err(ViewError::Range { start: 1976, end: 1977, len: 1976 }));
    assert_eq!(region.slice(4000..4097).map(drop), Err(ViewError::Range { start: 4000, end: 4097, len: 4096 }));
    assert_eq!(part.slice(..=1976).map(drop), Err(ViewError::Range { start: 0, end: 1977, len: 1976 }));
}

/// Memory that a scope borrowed is accessed through the view of its region.
pub fn borrowed_memory_is_accessed_within_its_scope<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (peer, owner) = (mesh.endpoint(0), mesh.peer(1));
    let mut memory = vec![0; 100];
    mesh.test_endpoint(1).domain.scope(|scope| {
        let region = scope.register(&mut memory, ALL).expect("a region");
        region.view().write_at(10, 7_u16).expect("room");
        mesh.finish(peer.write(owner, vec![5; 8], region.remote().at(0..8))).expect("a write");
        assert_eq!(region.view().read_at::<[u8; 9]>(0), Ok([5, 5, 5, 5, 5, 5, 5, 5, 0]));
    });
    assert_eq!(memory[10..12], 7_u16.to_ne_bytes());
}

/// The owner reads, and does not change, memory that it shares.
pub fn shared_memory_is_not_written_through_a_view<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let memory = std::sync::Arc::<[u8]>::from(content(1, 100));
    let region = mesh.test_endpoint(1).domain.register(memory, Access::REMOTE_READ).expect("a region");
    let view = region.view();
    assert_eq!(view.read_at::<[u8; 100]>(0).expect("all bytes").as_slice(), content(1, 100));
    assert_eq!(view.write_at(0, 1_u8), Err(ViewError::ReadOnly));
    assert_eq!(view.atomic::<u8>(0).map(drop), Err(ViewError::ReadOnly));
}

//! Tests of the two sides of one control socket.

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::*;
use crate::local_memory::mapping::sealed_memfd;

const BYTES: usize = 4096;

fn pair() -> [Arenas; 2] {
    let ends = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    [ends.0, ends.1].map(|end| {
        // The size does not depend on the default of the system.
        rustix::net::sockopt::set_socket_send_buffer_size(&end, 64 << 10).unwrap();
        Arenas::new(end.into())
    })
}

fn memory() -> Arc<OwnedFd> {
    Arc::new(sealed_memfd("percale-test", BYTES, 0).unwrap())
}

#[test]
fn arena_is_revoked_when_the_socket_has_room() {
    let [mut ours, mut theirs] = pair();
    // Give as many arenas as the socket has room to announce. Their memory stays allocated.
    let stays = memory();
    let held = (2..).take_while(|number| ours.give((*number, Sharing::Writable), BYTES, &stays)).count() as u32;
    assert!(matches!(theirs.mapping((2, Sharing::Writable)), Ok(ArenaAccess::Mapped(_))));
    let goes = memory();
    assert!(ours.give((1, Sharing::Writable), BYTES, &goes));
    let more = (held + 2..).take_while(|number| ours.give((*number, Sharing::Writable), BYTES, &stays)).count() as u32;
    drop(goes);
    let last = (held + more + 2, Sharing::Writable);
    assert!(!ours.give(last, BYTES, &stays), "the arena was accepted beyond the limit");
    assert!(matches!(theirs.mapping((1, Sharing::Writable)), Ok(ArenaAccess::Mapped(_))), "the arena was passed");
    assert!(ours.give(last, BYTES, &stays));
    assert!(matches!(theirs.mapping(last), Ok(ArenaAccess::Mapped(_))));
    assert!(matches!(theirs.mapping((1, Sharing::Writable)), Ok(ArenaAccess::Gone)), "the arena was not taken back");
    assert_eq!(theirs.taken_back(), 1);
}

#[test]
fn peer_announcing_too_many_arenas_is_disconnected() {
    let [mut ours, mut theirs] = pair();
    let stays = memory();
    for number in 1..=20 {
        assert!(ours.give((number, Sharing::ReadOnly), BYTES, &stays));
    }
    assert_eq!(theirs.receive(21), Ok(()));
    for number in 21..=41 {
        assert!(ours.give((number, Sharing::ReadOnly), BYTES, &stays));
    }
    assert!(theirs.receive(21).is_err());
}

#[test]
fn revoked_arena_number_is_not_a_protocol_error() {
    let [mut ours, mut theirs] = pair();
    assert!(matches!(theirs.find(7, 0, 8), Ok(None)), "the arena was never passed");
    let memory = memory();
    assert!(ours.give((7, Sharing::Writable), BYTES, &memory));
    assert!(matches!(theirs.find(7, 0, BYTES as u64), Ok(Some(_))));
    assert!(theirs.find(7, 1, BYTES as u64).is_err(), "a range beyond the arena");
    drop(memory);
    ours.take_back();
    theirs.receive(8).unwrap();
    assert!(matches!(theirs.find(7, 0, 8), Ok(None)), "the arena was taken back");
}

#[test]
fn arenas_larger_than_memory_are_not_mapped() {
    let [mut ours, mut theirs] = pair();
    let sparse = |bytes: u64| Arc::new(sealed_memfd("percale-test", bytes as usize, 0).unwrap());
    let huge = 32_u64 << 40;
    assert!(ours.give((1, Sharing::Writable), huge as usize, &sparse(huge)));
    assert!(matches!(theirs.mapping((1, Sharing::Writable)), Ok(ArenaAccess::Unmapped)));
    // The sum of the lengths is bounded as well.
    let half = theirs.most / 16 * 9 / 4096 * 4096;
    let (first, second) = (sparse(half), sparse(half));
    assert!(ours.give((2, Sharing::Writable), half as usize, &first));
    assert!(matches!(theirs.mapping((2, Sharing::Writable)), Ok(ArenaAccess::Mapped(_))));
    assert!(ours.give((3, Sharing::Writable), half as usize, &second));
    assert!(matches!(theirs.mapping((3, Sharing::Writable)), Ok(ArenaAccess::Unmapped)));
    drop(first);
    ours.take_back();
    assert!(ours.give((4, Sharing::Writable), half as usize, &second));
    assert!(matches!(theirs.mapping((4, Sharing::Writable)), Ok(ArenaAccess::Mapped(_))), "there is room again");
}

/// Gives an arena of this many bytes, and takes it back while its mapping is in use, as by a grant.
fn held_while_taken_back(number: u32, bytes: u64, [ours, theirs]: &mut [Arenas; 2]) -> Option<Arc<Mapping>> {
    let memory = Arc::new(sealed_memfd("percale-test", bytes as usize, 0).unwrap());
    assert!(ours.give((number, Sharing::Writable), bytes as usize, &memory));
    let given = theirs.mapping((number, Sharing::Writable)).unwrap();
    drop(memory);
    ours.take_back();
    theirs.receive(8).unwrap();
    match given {
        ArenaAccess::Mapped(mapping) => Some(mapping),
        ArenaAccess::Unmapped => None,
        ArenaAccess::Gone => panic!("the arena was passed"),
    }
}

#[test]
fn revoked_mapping_in_use_counts_against_the_limit() {
    let mut sides = pair();
    let half = sides[1].most / 16 * 9 / 4096 * 4096;
    let first = held_while_taken_back(1, half, &mut sides).unwrap();
    assert!(held_while_taken_back(2, half, &mut sides).is_none(), "the first arena is still mapped");
    drop(first);
    assert!(held_while_taken_back(3, half, &mut sides).is_some(), "there is room again");
}

#[test]
fn mappings_in_use_are_limited() {
    let mut sides = pair();
    let mut held: Vec<_> = (1..=LIMIT as u32).map(|n| held_while_taken_back(n, 4096, &mut sides).unwrap()).collect();
    assert!(held_while_taken_back(2000, 4096, &mut sides).is_none(), "one mapping more than the limit");
    held.pop();
    assert!(held_while_taken_back(2001, 4096, &mut sides).is_some(), "there is room again");
}

/// Announces an arena, as a peer that does not check whether it has done so before.
fn announce_arena(ours: &Arenas, arena: Identity, memory: &OwnedFd) {
    announce(&ours.control, arena, BYTES as u64, Some(memory.as_fd())).unwrap();
}

#[test]
fn arena_shared_twice_is_a_protocol_error() {
    let [ours, mut theirs] = pair();
    let memory = memory();
    let arena = (7, Sharing::Writable);
    announce_arena(&ours, arena, &memory);
    announce_arena(&ours, (7, Sharing::ReadOnly), &memory);
    assert_eq!(theirs.receive(8), Ok(()), "each kind of access is given separately");
    announce_arena(&ours, arena, &memory);
    assert!(theirs.receive(8).is_err());
    assert_eq!(theirs.mapped.len(), 2);
}

#[test]
fn records_of_arenas_are_limited() {
    let [ours, mut theirs] = pair();
    let memory = memory();
    for number in 1..=LIMIT as u32 {
        announce_arena(&ours, (number, Sharing::Writable), &memory);
        assert_eq!(theirs.receive(8), Ok(()));
    }
    announce_arena(&ours, (LIMIT as u32 + 1, Sharing::Writable), &memory);
    assert!(theirs.receive(8).is_err());
    assert_eq!(theirs.mapped.len(), LIMIT);
}

/// A program that shares more arenas than its peer records is not disconnected: the further ones are not given.
#[test]
fn arenas_beyond_the_limit_are_not_given() {
    let [mut ours, mut theirs] = pair();
    let (stays, goes) = (memory(), memory());
    assert!(ours.give((1, Sharing::Writable), BYTES, &goes));
    for number in 2..=LIMIT as u32 {
        assert!(ours.give((number, Sharing::Writable), BYTES, &stays));
        assert_eq!(theirs.receive(8), Ok(()));
    }
    let next = (LIMIT as u32 + 1, Sharing::Writable);
    assert!(!ours.give(next, BYTES, &stays));
    assert_eq!(theirs.receive(8), Ok(()));
    assert!(matches!(theirs.mapping(next), Ok(ArenaAccess::Gone)));
    drop(goes);
    assert!(ours.give(next, BYTES, &stays), "there is room again");
    assert!(matches!(theirs.mapping(next), Ok(ArenaAccess::Mapped(_))));
}

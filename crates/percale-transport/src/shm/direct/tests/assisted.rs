//! Tests of long accesses to a key under which another region has been registered in the meantime.

use super::*;
use crate::local_memory::sealed::AllocationExt as _;
use crate::owner::Region;
use crate::shm::direct::tests::{BOTH, Two, bytes_of, poll};
use crate::shm::draining_link::Release;
use crate::testing::Lent;

/// The length of an access in bytes. It takes several chunks.
const LEN: usize = 512 << 10;
const KEY: u64 = 0xABCD;

/// Registers a region under `KEY`, which the tests use repeatedly.
fn region(two: &Two, value: u8) -> Region {
    let mut memory = crate::local_memory::sealed::allocate(LEN).unwrap();
    memory.fill(value);
    two.domain.registration(BOTH).key(KEY).own(memory).unwrap()
}

/// Returns the bytes to write. They stay allocated, because the target may copy them later.
fn nines() -> Lent {
    Lent::new(vec![9; LEN])
}

/// Writes all of `from`. The target does not help, because it makes no progress.
fn write(two: &mut Two, grant: GrantIndex, from: &Lent) -> Result<bool, DirectError> {
    let local = &from.whole();
    two.initiator.direct_long(&LongAccess { grant, key: KEY, address: 0, local, writes: true, token: 1 })
}

/// Requirements: REV-004.
#[test]
fn stale_key_is_looked_up_again_before_target_assistance() {
    let mut two = Two::new(true);
    let old = region(&two, 0);
    let grant = two.grant(KEY);
    two.turn();
    drop(old.close().unwrap());
    let new = region(&two, 0);
    // The error is returned at once. If it were returned after the target has copied to the new region, the access
    // could not be repeated.
    assert_eq!(write(&mut two, grant, &nines()), Err(DirectError::Stale));
    assert!(!two.initiator.is_assisted() && two.target.is_quiet(), "the access used the assistance of the target");
    assert_eq!(bytes_of(&new), [0; LEN]);
}

/// Requirements: REV-004.
#[test]
fn target_assists_only_with_the_region_of_the_initiator() {
    for again in [false, true] {
        let mut two = Two::new(true);
        let mut region_now = region(&two, 0);
        let grant = two.grant(KEY);
        two.turn();
        let from = nines();
        assert_eq!(write(&mut two, grant, &from), Ok(true));
        if again {
            drop(region_now.close().unwrap());
            region_now = region(&two, 0);
        } else {
            region_now.write(0, &[0; LEN]);
        }
        // Simulates an initiator that has not claimed any chunk when the target reads its request.
        let (direct, side) = two.initiator.direct();
        assert!(direct.initiator().is_some());
        let (pair, number) = (Arc::clone(side.pair), 1);
        let claims = pair.claims(side.side);
        claims.next.store(word(number, 0), Ordering::Release);
        (0..LEN / CHUNK + 2).for_each(|_| poll(&mut two.target).unwrap());
        let claimed = claims.next.load(Ordering::Acquire);
        let expected = if again { (word(number, 0), 0) } else { (word(number, (LEN / CHUNK) as u32), 9) };
        assert_eq!((claimed, bytes_of(&region_now)[LEN - 1]), expected, "registered again: {again}");
    }
}

#[test]
fn assistance_request_for_freed_memory_keeps_the_link() {
    let mut two = Two::new(true);
    let region = region(&two, 0);
    let grant = two.grant(KEY);
    two.turn();
    for _ in 0..3 {
        // The target is busy, so it reads the request after the arena that the request names was taken back.
        let mut from = crate::local_memory::sealed::allocate(LEN).unwrap();
        from.fill(9);
        let local = &Segments::one(from.segment());
        let long = LongAccess { grant, key: KEY, address: 0, local, writes: true, token: 1 };
        assert_eq!(two.initiator.direct_long(&long), Ok(true));
    }
    for _ in 0..8 {
        two.turn();
    }
    assert_eq!(bytes_of(&region), [9; LEN]);
}

/// The target was stopped after it had claimed a chunk. It continues after the end of the connection, or ends its side.
#[test]
fn connection_end_keeps_memory_of_a_long_access() {
    for finishes in [true, false] {
        let Two { mut initiator, target, domain: _domain } = Two::new(true);
        let (direct, side) = initiator.direct();
        let (pair, side) = (Arc::clone(side.pair), side.side);
        pair.claims(side).done.store(word(1, 0), Ordering::Relaxed);
        direct.assisted = Some(AssistedRequest { token: 5, awaited: word(1, 1), result: Ok(()) });
        initiator.connection_end().set("closed");
        while poll(&mut initiator).is_ok() {}
        let draining = initiator.draining().expect("the target may still be copying");
        assert_eq!((draining.held_access(), draining.release()), (Some(5), None));
        drop(initiator);
        assert_eq!(draining.release(), None);
        if finishes {
            finish(pair.claims(side), 1, Ok(()));
        } else {
            drop(target);
        }
        assert_eq!(draining.release(), Some(Release::LetGo));
    }
}

//! Tests of regions that are closed, links that end and peer processes that exit during accesses.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;
use crate::local_memory::rundown::Announcer;
use crate::local_memory::volatile::SegmentsExt as _;
use crate::peer_process::PeerProcess;
use crate::region::{CloseError, Grantee, Registered};
use crate::shm::direct::grantee::ShmGrantee;
use crate::shm::pair::{PairMemory, pair_memory};
use crate::testing::sleeping_peer;

/// Requirements: MR-067.
#[test]
fn closed_region_is_not_accessible() {
    for mapped in [true, false] {
        let mut two = Two::new(true);
        let region = two.region(100_000, mapped, BOTH);
        let key = region.key();
        let grant = two.grant(key);
        two.write(key, 0, &[1; 16]).unwrap();
        let memory = region.close().unwrap();
        for len in [8, 100_000] {
            assert_eq!(two.write(key, 0, &vec![2; len]), Err(DirectError::Stale));
            assert_eq!(two.read(key, 0, len), Err(DirectError::Stale));
        }
        two.initiator.forget(key);
        assert_eq!(Segments::lend(&[2; 8], |from| two.initiator.direct_write(grant, 0, from)), Err(DirectError::Stale));
        let mut bytes = [0; 17];
        memory.copy_to(0, &mut bytes);
        assert_eq!(bytes, [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0]);
        // `NoKey` is returned once. Then a new request is sent to the target, which may have a region with this key.
        assert_eq!(two.look_up(key), Lookup::NoKey);
        let again = two.domain.registration(BOTH).key(key).own(memory).unwrap();
        assert_eq!(two.write(key, 0, &[3; 8]), Ok(()));
        assert_ne!(two.grant(key), grant);
        assert_eq!(bytes_of(&again)[..9], [3, 3, 3, 3, 3, 3, 3, 3, 1]);
    }
}

/// The initiator's entry of a key may belong to a region that is closed. This entry must not cause the rejection of an
/// access that the new region allows.
///
/// Requirements: MR-067.
#[test]
fn reused_key_has_the_new_rights_and_length() {
    for mapped in [true, false] {
        let mut two = Two::new(true);
        let region = two.region(16, mapped, Access::REMOTE_READ);
        let key = region.key();
        assert_eq!(two.read(key, 0, 16), Ok(vec![0; 16]));
        assert_eq!(two.write(key, 0, &[1; 16]), Err(DirectError::Right));
        assert_eq!(two.read(key, 0, 17), Err(DirectError::Range));
        region.close().unwrap();
        for len in [16, 17, 100_000] {
            assert_eq!(two.write(key, 0, &vec![1; len]), Err(DirectError::Stale), "{len} bytes");
            assert_eq!(two.read(key, 0, len), Err(DirectError::Stale), "{len} bytes");
        }
        let memory = vec![0; 100_000];
        let _again = two.domain.registration(BOTH).key(key).own(memory).unwrap();
        two.initiator.forget(key);
        assert_eq!(two.write(key, 0, &vec![1; 100_000]), Ok(()));
    }
}

/// The slot of a grant that was removed is used again, and an access with the old index does not reach the new region.
#[test]
fn index_of_a_removed_grant_stays_stale() {
    let mut two = Two::new(true);
    let [first, second] = [(), ()].map(|()| two.region(64, true, BOTH));
    let old = two.grant(first.key());
    two.initiator.forget(first.key());
    let new = two.grant(second.key());
    for (grant, expected) in [(old, Err(DirectError::Stale)), (new, Ok(())), (old, Err(DirectError::Stale))] {
        let before = bytes_of(&second);
        let value = before[0] + 1;
        let written = Segments::lend(&[value; 8], |from| two.initiator.direct_write(grant, 0, from));
        assert_eq!((written, bytes_of(&second)[0] == value), (expected, expected.is_ok()));
    }
    assert_eq!(bytes_of(&first), [0; 64]);
}

#[test]
fn repeated_lookup_returns_the_same_grant() {
    let mut two = Two::new(true);
    let region = two.region(8, true, BOTH);
    let registered = two.domain.inner.keys.find(region.key(), AccessOrigin::default()).unwrap();
    let held = Arc::strong_count(&registered);
    for _ in 0..3 * super::super::ENTRIES {
        two.initiator.forget(region.key());
        two.grant(region.key());
    }
    assert_eq!(two.write(region.key(), 0, &[1; 8]), Ok(()));
    assert_eq!(Arc::strong_count(&registered), held, "grants hold no regions");
}

/// Regions are registered and closed repeatedly. Neither the entries nor the initiator's table grow.
#[test]
fn void_grants_are_reclaimed() {
    let mut two = Two::new(true);
    for round in 0..2 * super::super::ENTRIES {
        let region = two.region(8, false, BOTH);
        assert_eq!(two.write(region.key(), 0, &[1; 8]), Ok(()), "round {round}");
        region.close().unwrap();
    }
    let live = two.initiator.initiator().unwrap().grants().live();
    assert!(live < 300, "{live} grants are kept");
    // An arena that was freed does not stay mapped for long.
    let region = two.region(1 << 20, true, BOTH);
    let arena = Arc::downgrade(
        &two.domain.inner.keys.find(region.key(), AccessOrigin::default()).unwrap().located().unwrap().fd,
    );
    two.write(region.key(), 0, &[1; 8]).unwrap();
    drop(region.close().unwrap());
    assert_eq!(arena.strong_count(), 0);
    let live = two.initiator.initiator().unwrap().grants().live();
    let next = two.region(1 << 20, true, BOTH);
    two.write(next.key(), 0, &[1; 8]).unwrap();
    assert!(two.initiator.initiator().unwrap().grants().live() <= live, "the old grant is removed");
}

/// A thread writes as fast as it can while the region is closed and registered again many times.
fn hammer(mapped: bool, rounds: u64) {
    const LEN: usize = 300_000;
    let Two { mut initiator, mut target, domain } = Two::new(true);
    let (key, writes, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (key, writes, stop) = (&key, &writes, &stop);
        scope.spawn(move || {
            let bytes = vec![1; LEN];
            let (mut stale, mut turn) = (0, 0_usize);
            while !stop.load(Ordering::Relaxed) {
                poll(&mut initiator).unwrap();
                let key = key.load(Ordering::Relaxed);
                let Lookup::Ready(grant) = initiator.look_up(key) else { continue };
                loop {
                    turn += 1;
                    let len = [8, LEN, 64, 70_000][turn % 4];
                    match Segments::lend(&bytes[..len], |from| initiator.direct_write(grant, 0, from)) {
                        Ok(()) => writes.fetch_add(1, Ordering::Relaxed),
                        Err(DirectError::Stale) => break,
                        Err(error) => panic!("{error}"),
                    };
                }
                initiator.forget(key);
                stale += 1;
            }
            assert!(stale > 0, "no access met a closed region");
        });
        let _stop = Stop(stop);
        let mut memory: crate::local_memory::buffer::Buffer =
            if mapped { allocate(LEN).unwrap().into() } else { vec![0; LEN].into() };
        for round in 0..rounds {
            let mut region = domain.register(memory, BOTH).unwrap();
            key.store(region.key(), Ordering::Relaxed);
            let (before, deadline) = (writes.load(Ordering::Relaxed), Instant::now() + Duration::from_secs(30));
            while writes.load(Ordering::Relaxed) < before + 1 + round % 5 {
                assert!(Instant::now() < deadline, "no writer makes progress");
                poll(&mut target).unwrap();
                std::thread::yield_now();
            }
            region.write(0, &[0; LEN]);
            memory = region.close().expect("a busy writer does not keep a region from being closed");
            // The owner has the memory back: its content does not change any more.
            let mut then = vec![0; LEN];
            memory.copy_to(0, &mut then);
            for _ in 0..3 {
                poll(&mut target).unwrap();
                std::thread::yield_now();
                let mut now = vec![0; LEN];
                memory.copy_to(0, &mut now);
                assert!(now == then, "memory was written after its region was closed, round {round}");
            }
        }
    });
}

/// Stops the writer, even if an assertion fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Requirements: MR-069.
#[test]
fn nothing_is_written_after_close_through_a_mapping() {
    hammer(true, 300);
}

/// Requirements: MR-069.
#[test]
fn nothing_is_written_after_close_by_the_kernel() {
    hammer(false, 300);
}

/// Returns a grantee without links, and a region that is granted to it.
pub(super) fn grantee(
    domain: &Domain,
    process: Option<&Arc<PeerProcess>>,
) -> (Arc<PairMemory>, Arc<ShmGrantee>, Region, Arc<Registered>) {
    let pair = Arc::new(PairMemory::new(pair_memory().unwrap()).unwrap());
    let grantee = Arc::new(ShmGrantee::new(&pair, 0, process).unwrap());
    let region = domain.register(vec![0; 8], BOTH).unwrap();
    let registered = domain.inner.keys.find(region.key(), AccessOrigin::default()).unwrap();
    grantee.grant(&registered).unwrap().unwrap();
    (pair, grantee, region, registered)
}

pub(super) fn is_granted(registered: &Registered, grantee: &Arc<ShmGrantee>) -> bool {
    let grantee: Arc<dyn Grantee> = Arc::clone(grantee) as _;
    registered.grants().find(&grantee).is_some()
}

#[test]
fn grants_end_with_their_link() {
    let mut two = Two::new(true);
    let region = two.region(64, true, BOTH);
    let key = region.key();
    let grant = two.grant(key);
    let Two { mut initiator, target, domain } = two;
    drop(target);
    assert_eq!(Segments::lend(&[2; 8], |from| initiator.direct_write(grant, 0, from)), Err(DirectError::Stale));
    region.close().unwrap();
    drop(initiator);
    // A region that is still open does not keep the record of a peer after the peer process has ended.
    let (_pair, grantee, region, registered) = grantee(&domain, None);
    assert!(is_granted(&registered, &grantee));
    grantee.end();
    assert!(!is_granted(&registered, &grantee));
    region.close().unwrap();
}

#[test]
fn close_waits_for_an_access_after_its_link_ended() {
    let domain = Domain::new(Duration::from_millis(20));
    let (pair, grantee, region, registered) = grantee(&domain, None);
    let mut announcer = Announcer::default();
    announcer.enter(pair.announcements(1));
    grantee.end();
    assert!(is_granted(&registered, &grantee), "the memory may still be written");
    let Err(CloseError::Busy(region)) = region.close() else { panic!("closed during an access of a peer") };
    announcer.leave(pair.announcements(1));
    region.close().unwrap();
}

/// The first grants of all peers have the same entry number.
#[test]
fn end_of_a_link_keeps_the_grants_of_other_peers() {
    let domain = Domain::new(Duration::from_millis(20));
    let (_pair, grantee, region, registered) = grantee(&domain, None);
    let other_pair = Arc::new(PairMemory::new(pair_memory().unwrap()).unwrap());
    let other = Arc::new(ShmGrantee::new(&other_pair, 0, None).unwrap());
    let [first, second] = [&grantee, &other].map(|peer| peer.grant(&registered).unwrap().unwrap().0);
    assert_eq!(first, second);
    let mut announcer = Announcer::default();
    announcer.enter(other_pair.announcements(1));
    grantee.end();
    assert!(!is_granted(&registered, &grantee) && is_granted(&registered, &other));
    let Err(CloseError::Busy(region)) = region.close() else { panic!("closed during an access of the other peer") };
    announcer.leave(other_pair.announcements(1));
    region.close().unwrap();
}

#[test]
fn a_dead_peer_is_not_waited_for() {
    let domain = domain();
    let (mut child, process) = sleeping_peer();
    let (pair, grantee, region, _) = grantee(&domain, Some(&process));
    Announcer::default().enter(pair.announcements(1));
    assert!(!grantee.has_retired(0, grantee.snapshot()));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(grantee.has_retired(0, grantee.snapshot()));
    region.close().unwrap();
}

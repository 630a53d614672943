//! Tests of memory that is revoked while a transfer is in progress, and of the information about its location that the
//! peer gets.

use super::*;
use crate::testing::Revocable;

/// The length of a transfer in bytes. It takes several dozen chunks or frames.
const LEN: usize = 4 << 20;

/// The kind of memory at the end that is not revoked, and whether the kernel may copy. The memory is in an arena, or on
/// the heap with or without copies by the kernel.
const WAYS: [(Kept, bool); 3] = [(Kept::Arena, false), (Kept::Heap, true), (Kept::Heap, false)];

/// Side 1 pulls `LEN` bytes of operation 3 into `into`, and side 0 receives the request.
fn pull(both: &mut [Peer; 2], offer: &Offer, into: &Lease, token: u32) -> (Head, Vec<u8>) {
    both[1].link.pull(3, offer, into, token).unwrap();
    run(both, |both| !both[0].seen.requests.is_empty());
    both[0].seen.requests.remove(0)
}

/// Returns an offer of this memory. If `memory` is `None`, the offer is of memory that cannot be read from outside.
fn offer(both: &mut [Peer; 2], memory: Option<&mut Memory>) -> Offer {
    let mut offer = Offer { len: (LEN as u64).into(), ..Offer::default() };
    if let Some(memory) = memory {
        let source = memory.segments();
        offer.address = (source.as_slice()[0].as_ptr().expose_provenance() as u64).into();
        offer.pieces = 1.into();
        offer = Segments::lend(offer.as_bytes(), |bytes| both[0].link.transfers.complete_offer(bytes)).unwrap();
    }
    offer
}

/// Polls each side once.
fn turn(both: &mut [Peer; 2]) {
    for peer in both {
        peer.link.poll(9, &mut peer.seen).unwrap();
    }
}

/// Returns the results that both ends of the transfer report, once both have ended.
fn ended(both: &mut [Peer; 2]) -> (Result<u64, PullError>, Result<(), PullError>) {
    run(both, |both| !both[1].seen.pulled.is_empty() && !both[0].seen.pushed.is_empty());
    let (pulled, pushed) = (both[1].seen.pulled.remove(0), both[0].seen.pushed.remove(0));
    assert_eq!((pulled.0, pushed.0), (7, 3));
    (pulled.1, pushed.1)
}

/// Requirements: MR-069.
#[test]
fn target_revoked_during_a_pull_fails_it_and_keeps_the_link() {
    for (kept, cma) in WAYS {
        let bounces = kept == Kept::Heap && !cma;
        let mut both = peers(cma, HEAP);
        for rounds in [0, 1, 3] {
            let mut source = Memory::new(LEN, kept);
            View::of(&vec![7; LEN]).copy_into(&source.segments(), 0);
            // The target lies in an arena, so that the pusher could reach it.
            let mut target = Memory::new(LEN, Kept::Arena);
            let revocable = Revocable::new(target.segments());
            let offer = offer(&mut both, Some(&mut source));
            let (head, request) = pull(&mut both, &offer, &revocable.lease(), 7);
            assert_eq!(request[1], u8::from(!bounces), "whether the puller can copy without help");
            assert_eq!(request[2], 0, "no pieces of memory that only its owner may write");
            assert!(request[16..].iter().all(|byte| *byte == 0), "neither address nor arena are named");
            both[0].link.push(head.id, head.tag, View::of(&request), &source.lease()).unwrap();
            for _ in 0..rounds {
                turn(&mut both);
            }
            revocable.revoke();
            let arrived = target.segments().to_vec();
            assert_eq!(arrived.contains(&7), rounds > 0 || !bounces);
            let pushed = if bounces { Ok(()) } else { Err(PullError::Gone) };
            assert_eq!(ended(&mut both), (Err(PullError::Revoked), pushed), "after {rounds} rounds");
            assert!(
                target.segments().to_vec() == arrived && arrived.contains(&0),
                "bytes were written after the revocation"
            );
        }
        let [a, b] = exchange(both, 60, 1 << 20);
        assert!(a.link.is_idle() && b.link.is_idle());
    }
}

#[test]
fn target_revoked_before_link_end_is_not_a_memory_fault() {
    for (kept, cma) in WAYS.into_iter().filter(|(kept, cma)| *kept == Kept::Arena || *cma) {
        let mut both = peers(cma, HEAP);
        let (mut source, mut target) = (Memory::new(LEN, kept), Memory::new(LEN, Kept::Arena));
        let revocable = Revocable::new(target.segments());
        let offer = offer(&mut both, Some(&mut source));
        let (head, request) = pull(&mut both, &offer, &revocable.lease(), 7);
        both[0].link.push(head.id, head.tag, View::of(&request), &source.lease()).unwrap();
        revocable.revoke();
        let [mut a, mut b] = both;
        b.link.poll(9, &mut b.seen).unwrap(); // Side 1 writes the reason why it stops.
        b.link.connection_end().set("closed");
        while b.link.poll(9, &mut b.seen).is_ok() {}
        assert!(b.link.draining().is_none(), "the peer does not write this memory");
        for _ in 0..10 {
            let _over = a.link.poll(9, &mut a.seen);
        }
        assert_eq!(a.seen.pushed, [(3, Err(PullError::Gone))]);
    }
}

/// Requirements: MR-069.
#[test]
fn source_revoked_during_a_pull_fails_both_and_keeps_the_link() {
    for (kept, cma) in WAYS {
        let mut both = peers(cma, HEAP);
        for rounds in [None, Some(0), Some(1), Some(3)] {
            let mut source = Memory::new(LEN, Kept::Arena);
            View::of(&vec![7; LEN]).copy_into(&source.segments(), 0);
            let mut target = Memory::new(LEN, kept);
            let revocable = Revocable::new(source.segments());
            let offer = offer(&mut both, None);
            let (head, request) = pull(&mut both, &offer, &target.lease(), 7);
            assert_eq!(request[1], 0, "memory without an address cannot be copied");
            if rounds.is_none() {
                revocable.revoke();
            }
            both[0].link.push(head.id, head.tag, View::of(&request), &revocable.lease()).unwrap();
            for _ in 0..rounds.unwrap_or(0) {
                turn(&mut both);
            }
            if rounds.is_some() {
                revocable.revoke();
            }
            // A side that reads the memory after this would read the content of its next use.
            View::of(&vec![9; LEN]).copy_into(&source.segments(), 0);
            assert_eq!(ended(&mut both), (Err(PullError::Gone), Err(PullError::Revoked)), "after {rounds:?} rounds");
            let arrived = target.segments().to_vec();
            assert!(!arrived.contains(&9) && arrived.contains(&0), "the memory was read after the revocation");
            assert_eq!(arrived.contains(&7), rounds.is_some_and(|rounds| rounds > 0 || kept == Kept::Arena || cma));
        }
        let [a, b] = exchange(both, 60, 1 << 20);
        assert!(a.link.is_idle() && b.link.is_idle());
    }
}

/// The source of a payload that is sent as frames is revoked while there is no room for another frame.
#[test]
fn source_revoked_while_the_ring_is_full_fails_both() {
    let mut both = peers(false, HEAP);
    let (mut source, mut target) = (Memory::new(LEN, Kept::Heap), Memory::new(LEN, Kept::Heap));
    let revocable = Revocable::new(source.segments());
    let offer = offer(&mut both, None);
    let (head, request) = pull(&mut both, &offer, &target.lease(), 7);
    both[0].link.push(head.id, head.tag, View::of(&request), &revocable.lease()).unwrap();
    fill(&mut both[0]);
    revocable.revoke();
    for _ in 0..10 {
        let [a, _] = &mut both;
        a.link.poll(9, &mut a.seen).unwrap();
        assert!(a.seen.pushed.is_empty(), "the puller was not notified");
    }
    assert_eq!(ended(&mut both), (Err(PullError::Gone), Err(PullError::Revoked)));
}

#[test]
fn unrevoked_leased_memory_is_transferred_completely() {
    for (kept, cma) in WAYS {
        let mut both = peers(cma, HEAP);
        for (from_region, into_region) in [(true, false), (false, true), (true, true)] {
            let (mut source, mut target) = (Memory::new(LEN, kept), Memory::new(LEN, kept));
            let bytes = pattern(LEN as u64, LEN);
            View::of(&bytes).copy_into(&source.segments(), 0);
            let (from, into) = (Revocable::new(source.segments()), Revocable::new(target.segments()));
            let offer = offer(&mut both, (!from_region).then_some(&mut source));
            let into = if into_region { into.lease() } else { target.lease() };
            let (head, request) = pull(&mut both, &offer, &into, 7);
            let from = if from_region { from.lease() } else { source.lease() };
            both[0].link.push(head.id, head.tag, View::of(&request), &from).unwrap();
            assert_eq!(ended(&mut both), (Ok(LEN as u64), Ok(())));
            assert!(target.segments().to_vec() == bytes);
        }
    }
}

#[test]
fn pull_by_guessed_region_address_breaks_the_link() {
    let mut both = peers(true, HEAP);
    let (mut source, mut target) = (Memory::new(LEN, Kept::Heap), Memory::new(LEN, Kept::Heap));
    let revocable = Revocable::new(source.segments());
    // Simulates that the peer has guessed the address.
    let offer = offer(&mut both, Some(&mut source));
    let (head, request) = pull(&mut both, &offer, &target.lease(), 7);
    let answer = both[0].link.push(head.id, head.tag, View::of(&request), &revocable.lease());
    assert_eq!(answer, Err(Refused::Broken));
    assert!(matches!(both[0].poll(), Err(Broken::Protocol(_))));
    both[0].link.connection_end().set("over");
    both[1].link.connection_end().set("over");
}

/// The owner's thread revokes the memory at an arbitrary time, waits, and reuses it. After that the other side does not
/// write to the memory, and does not read its new content.
///
/// Requirements: MR-069.
#[test]
fn revoked_memory_is_immediately_free_for_its_owner() {
    for (kept, cma) in WAYS {
        let mut both = peers(cma, HEAP);
        for round in 0..24u64 {
            let revoke_source = round % 2 == 0;
            let (mut source, mut target) = (Memory::new(LEN, kept), Memory::new(LEN, kept));
            View::of(&vec![7; LEN]).copy_into(&source.segments(), 0);
            let memory = if revoke_source { source.segments() } else { target.segments() };
            let revocable = Revocable::new(memory);
            let offer = offer(&mut both, (!revoke_source).then_some(&mut source));
            let into = if revoke_source { target.lease() } else { revocable.lease() };
            let (head, request) = pull(&mut both, &offer, &into, 7);
            let from = if revoke_source { revocable.lease() } else { source.lease() };
            both[0].link.push(head.id, head.tag, View::of(&request), &from).unwrap();
            let result = std::thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..round * 40 {
                        std::hint::spin_loop();
                    }
                    revocable.revoke_and_wait();
                    View::of(&vec![9; LEN]).copy_into(&memory, 0);
                });
                ended(&mut both)
            });
            let arrived = target.segments().to_vec();
            if revoke_source {
                assert!(!arrived.contains(&9), "read after the revocation: {result:?}");
                assert!(result.0.is_err() || arrived.iter().all(|byte| *byte == 7));
                assert_eq!(result.0.is_ok(), result.1.is_ok());
            } else {
                assert!(arrived.iter().all(|byte| *byte == 9), "written after the revocation: {result:?}");
            }
        }
    }
}

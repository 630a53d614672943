//! Tests of the ends of transfers, and of the time from which the owner may reuse the memory of an aborted transfer.

use super::*;
use crate::shm::draining_link::Release;
use crate::testing::sleeping_peer;

/// The length of a transfer in bytes. It takes several dozen chunks.
const LEN: usize = 4 << 20;

/// Offers `source` from side 0 to side 1, which receives the offer.
fn offered(both: &mut [Peer; 2], source: &mut Memory) -> (Head, Offer) {
    let from = source.segments();
    let mut offer = Offer {
        len: (LEN as u64).into(),
        address: (from.as_slice()[0].as_ptr().expose_provenance() as u64).into(),
        pieces: 1.into(),
        ..Offer::default()
    };
    let len = size_of::<Offer>() as u32;
    let head = Head { kind: FrameKind::MessageOffer, flags: Flags::ID, len, id: 3, ..Head::default() };
    let sent = Segments::lend(offer.as_mut_bytes(), |payload| both[0].link.send(&head, payload, false));
    sent.unwrap();
    run(both, |both| !both[1].seen.offers.is_empty());
    both[1].seen.offers.remove(0)
}

/// Starts a pull of side 1 from side 0, and the push of side 0.
fn under_way(both: &mut [Peer; 2], source: &mut Memory, target: &mut Memory) {
    let (head, offer) = offered(both, source);
    both[1].link.pull(head.id, &offer, &target.lease(), 7).unwrap();
    run(both, |both| !both[0].seen.requests.is_empty());
    let (head, request) = both[0].seen.requests.remove(0);
    both[0].link.push(head.id, head.tag, View::of(&request), &source.lease()).unwrap();
}

/// Simulates that side 0 was stopped after it had claimed a chunk and before it copied the chunk.
fn stopped(both: &[Peer; 2]) {
    let slot = both[0].link.pair.slot(1, 0).unwrap();
    slot.claimed.fetch_add(1 << 32, Ordering::SeqCst);
}

/// Returns the two sides of a transfer and their memory. The pusher, side 0, was stopped after it had claimed a chunk.
fn stopped_half_way(cma: bool) -> ([Peer; 2], Memory, Memory) {
    let kept = if cma { Kept::Heap } else { Kept::Arena };
    let mut both = peers(cma, HEAP);
    let (mut source, mut target) = (Memory::new(LEN, kept), Memory::new(LEN, kept));
    under_way(&mut both, &mut source, &mut target);
    stopped(&both);
    (both, source, target)
}

#[test]
fn connection_end_keeps_memory_the_peer_may_copy() {
    for cma in [true, false] {
        let ([mut a, mut b], _source, mut target) = stopped_half_way(cma);
        b.link.connection_end().set("reset by another process");
        while b.link.poll(9, &mut b.seen).is_ok() {}
        assert!(b.seen.pulled.is_empty(), "the pull ended");
        let draining = b.link.draining().expect("the peer may still be copying");
        assert!(draining.holds_pull(7));
        assert_eq!(draining.release(), None);
        drop(b);
        assert_eq!(draining.release(), None);
        // The pusher continues, and detects that the connection has ended.
        a.link.connection_end().set("closed");
        while a.link.poll(9, &mut a.seen).is_ok() {}
        assert_eq!(draining.release(), Some(Release::LetGo));
        let before = target.segments().to_vec();
        assert!(a.link.draining().is_none(), "the peer does not copy to this side");
        drop(a);
        assert!(target.segments().to_vec() == before, "bytes were written after the peer released the memory");
    }
}

#[test]
fn transfer_abandoned_by_its_puller_is_not_a_memory_fault() {
    for cma in [true, false] {
        let ([mut a, mut b], _source, _target) = stopped_half_way(cma);
        b.link.connection_end().set("closed");
        while b.link.poll(9, &mut b.seen).is_ok() {}
        let draining = b.link.draining().expect("the peer may still be copying");
        // Side 0 has not detected the end yet.
        for _ in 0..10 {
            let _over = a.link.poll(9, &mut a.seen);
        }
        assert!(a.seen.pushed.is_empty(), "ended before the connection: {:?}", a.seen.pushed);
        assert_eq!(draining.release(), Some(Release::LetGo));
        drop((a, b));
    }
}

#[test]
fn withdrawn_message_is_not_delivered() {
    for (cma, turns) in [(true, 0), (true, 3), (false, 0), (false, 3)] {
        let kept = if cma { Kept::Heap } else { Kept::Arena };
        let mut both = peers(cma, HEAP);
        let (mut source, mut target) = (Memory::new(LEN, kept), Memory::new(LEN, kept));
        View::of(&vec![7; LEN]).copy_into(&source.segments(), 0);
        under_way(&mut both, &mut source, &mut target);
        for _ in 0..turns {
            both.iter_mut().for_each(|peer| assert!(peer.link.poll(9, &mut peer.seen).unwrap()));
        }
        let [mut a, mut b] = both;
        assert!(a.link.draining().is_none(), "the peer does not copy to this side");
        drop(a);
        // The send has failed, so its memory is reused.
        View::of(&vec![9; LEN]).copy_into(&source.segments(), 0);
        for _ in 0..200 {
            b.link.poll(9, &mut b.seen).unwrap(); // Side 1 has not detected the end yet.
        }
        assert!(b.seen.pulled.is_empty(), "{:?}", b.seen.pulled);
        b.link.connection_end().set("closed");
        while b.link.poll(9, &mut b.seen).is_ok() {}
        assert!(b.seen.pulled.is_empty(), "{:?}", b.seen.pulled);
        assert!(b.link.draining().is_none(), "waits for a peer that has released all memory");
    }
}

#[test]
fn memory_is_given_back_when_the_process_ends() {
    let (mut child, process) = sleeping_peer();
    let [a, b] = parts(false);
    let mut both = [a, b].map(|parts| {
        let (doorbell, process) = (Arc::clone(&parts.my_doorbell), Some(Arc::clone(&process)));
        let link = ShmLink::new(ShmLinkParts { process, ..parts }).unwrap();
        let (sources, targets) = (HashMap::new(), HashMap::new());
        Peer { link, doorbell, seen: Seen::default(), sources, targets, how: HEAP, next: 0 }
    });
    let (mut source, mut target) = (Memory::new(LEN, Kept::Arena), Memory::new(LEN, Kept::Arena));
    under_way(&mut both, &mut source, &mut target);
    stopped(&both);
    let [a, mut b] = both;
    b.link.connection_end().set("connection closed");
    while b.link.poll(9, &mut b.seen).is_ok() {}
    let draining = b.link.draining().expect("the peer may still be copying");
    assert_eq!(draining.release(), None);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(draining.release(), Some(Release::ProcessEnded));
    drop((a, b));
}

#[test]
fn pull_started_after_peer_loss_ends() {
    for rounds in 0..2 {
        let mut both = peers(true, HEAP);
        let (mut source, mut target) = (Memory::new(LEN, Kept::Heap), Memory::new(LEN, Kept::Heap));
        let (head, offer) = offered(&mut both, &mut source);
        let [mut a, mut b] = both;
        if rounds == 1 {
            // The pusher never reads the request.
            b.link.pull(head.id, &offer, &target.lease(), 7).unwrap();
        }
        let bye = Head { kind: FrameKind::Bye, ..Head::default() };
        a.link.send(&bye, &Segments::EMPTY, false).unwrap();
        assert!(a.link.draining().is_none());
        drop(a);
        if rounds == 0 {
            b.link.pull(head.id, &offer, &target.lease(), 7).unwrap();
        }
        while b.link.poll(9, &mut b.seen).is_ok() {}
        assert!(b.link.draining().is_none(), "waits for a peer that has released all memory");
    }
}

/// The pusher has copied the whole message and closes the connection. The puller has not noticed the end of the copies.
#[test]
fn message_that_arrived_whole_before_the_goodbye_is_received() {
    for cma in [true, false] {
        let kept = if cma { Kept::Heap } else { Kept::Arena };
        let mut both = peers(cma, HEAP);
        let (mut source, mut target) = (Memory::new(LEN, kept), Memory::new(LEN, kept));
        let bytes = pattern(5, LEN);
        View::of(&bytes).copy_into(&source.segments(), 0);
        under_way(&mut both, &mut source, &mut target);
        let [mut a, mut b] = both;
        let deadline = Instant::now() + Duration::from_secs(20);
        while a.seen.pushed.is_empty() {
            assert!(Instant::now() < deadline, "the pusher does not finish alone");
            a.link.poll(9, &mut a.seen).unwrap();
        }
        assert_eq!(a.seen.pushed, [(3, Ok(()))]);
        let bye = Head { kind: FrameKind::Bye, ..Head::default() };
        a.link.send(&bye, &Segments::EMPTY, false).unwrap();
        drop(a);
        assert!(b.seen.pulled.is_empty());
        while b.link.poll(9, &mut b.seen).is_ok() {}
        assert_eq!(b.link.poll(9, &mut b.seen), Err(Broken::Closed));
        assert_eq!(b.seen.pulled, [(7, Ok(LEN as u64))]);
        assert!(target.segments().to_vec() == bytes);
    }
}

/// The sides for which the kernel refuses to copy from some point on.
const FORBIDDEN: [[bool; 2]; 3] = [[true, false], [false, true], [true, true]];

#[test]
fn forbidden_kernel_copy_falls_back_to_the_ring() {
    for sides in FORBIDDEN {
        for turns in [None, Some(0), Some(1), Some(3), Some(9)] {
            let mut both = peers(true, HEAP);
            let forbid = |both: &[Peer; 2]| {
                for (peer, forbidden) in both.iter().zip(sides) {
                    if forbidden {
                        peer.link.transfers.cma_of_peer().forbid();
                    }
                }
            };
            if turns.is_none() {
                forbid(&both);
            }
            let (mut source, mut target) = (Memory::new(LEN, Kept::Heap), Memory::new(LEN, Kept::Heap));
            let bytes = pattern(77, LEN);
            View::of(&bytes).copy_into(&source.segments(), 0);
            under_way(&mut both, &mut source, &mut target);
            for _ in 0..turns.unwrap_or(0) {
                for peer in &mut both {
                    peer.link.poll(9, &mut peer.seen).unwrap();
                }
            }
            forbid(&both);
            run(&mut both, |both| !both[1].seen.pulled.is_empty() && !both[0].seen.pushed.is_empty());
            assert_eq!(both[1].seen.pulled, [(7, Ok(LEN as u64))], "{sides:?}, {turns:?}");
            assert_eq!(both[0].seen.pushed, [(3, Ok(()))], "{sides:?}, {turns:?}");
            assert!(target.segments().to_vec() == bytes, "{sides:?}, {turns:?}");
            for peer in &mut both {
                (peer.seen, peer.next) = (Seen::default(), 0);
            }
            let [a, b] = exchange(both, 20, 1 << 20);
            assert!(a.link.is_idle() && b.link.is_idle());
        }
    }
}

#[test]
fn messages_arrive_although_kernel_copies_become_forbidden() {
    for (round, sides) in (0..24_u64).zip(FORBIDDEN.into_iter().cycle()) {
        let both = peers(true, HEAP);
        let both = std::thread::scope(|scope| {
            for (peer, _) in both.iter().zip(sides).filter(|(_, forbidden)| *forbidden) {
                let cma = peer.link.transfers.cma_of_peer();
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_micros(round * 700));
                    cma.forbid();
                });
            }
            exchange(both, 60, 1 << 20)
        });
        assert!(both.iter().all(|peer| peer.link.is_idle()));
    }
}

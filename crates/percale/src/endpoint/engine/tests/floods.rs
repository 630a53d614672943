//! Tests of peers that send more than the receiver takes: the memory that is kept for one peer is bounded, and other
//! peers are not affected.

use zerocopy::IntoBytes;

use super::super::peers::{BACKLOG, BEYOND, HEAD};
use super::*;
use crate::local_memory::volatile::SegmentsExt as _;
use crate::local_memory::volatile::View;
use crate::transport::{Broken, Landing, PullError, Refused, Sink};
use crate::wire::head::{Flags, FrameKind, Offer};

/// The receive side of the hostile peer: it reads nothing, or it counts answers. They have to arrive in the order of the
/// messages, which are numbered from 1.
struct Ears {
    open: bool,
    answers: usize,
}

impl Sink for Ears {
    fn takes(&self, _: ConnectionId) -> bool {
        self.open
    }
    fn frame(&mut self, _: ConnectionId, head: &Head, _: View<'_>) {
        if head.kind == FrameKind::Ack {
            self.answers += 1;
            assert_eq!(head.id as usize, self.answers, "an answer overtook earlier ones");
        }
    }
    fn begin(&mut self, _: ConnectionId, head: Head) -> Landing {
        panic!("{head:?}")
    }
    fn landed(&mut self, _: ConnectionId, _: u32) {}
    fn pulled(&mut self, _: ConnectionId, _: u32, _: Result<u64, PullError>) {}
    fn assisted(&mut self, _: ConnectionId, _: u32, _: Result<(), PullError>) {}
    fn undone(&mut self, _: ConnectionId, _: u32) {}
    fn pushed(&mut self, _: ConnectionId, _: u32, _: Result<(), PullError>) {}
}

impl TestEndpoint {
    /// Sends frames without using the engine while there is room. If the first one has a number, the others have the
    /// numbers that follow. Returns the number of frames.
    fn flood(&self, to: &Self, head: &Head, payload: &[u8], most: usize, ears: &mut Ears) -> usize {
        let slot = self.slot(to);
        let head = Head { len: payload.len() as u32, ..*head };
        self.engine(|engine| {
            let link = engine.links[slot as usize].as_mut().expect("the endpoints are connected");
            let mut sent = 0;
            while sent < most {
                let id = if head.flags.contains(Flags::ID) { head.id + sent as u32 } else { head.id };
                match Segments::lend(payload, |payload| link.send(&Head { id, ..head }, payload, true)) {
                    Ok(()) => sent += 1,
                    Err(Refused::Full) => break,
                    Err(Refused::Broken) => panic!("the connection ended"),
                }
            }
            link.poll(slot, ears).expect("the connection is up");
            sent
        })
    }
}

/// Counts the attempts of a peer since it could last send. The peer counts as blocked after many attempts and some time,
/// because the kernel of a busy machine passes on bytes late.
struct BlockedSends {
    attempts: u32,
    since: Instant,
}

impl BlockedSends {
    fn new() -> Self {
        Self { attempts: 0, since: Instant::now() }
    }

    /// Records an attempt that sent this number of messages.
    fn record(&mut self, sent: usize) {
        if sent > 0 {
            *self = Self::new();
        }
        self.attempts += 1;
    }

    fn is_blocked(&self) -> bool {
        self.attempts > 200 && self.since.elapsed() > Duration::from_millis(300)
    }
}

/// Checks that messages of other peers arrive meanwhile.
fn goes_on(honest: &TestEndpoint, peer: PeerAddress, target: &TestEndpoint) {
    let before = target.finished();
    let mut receive = target.endpoint.tagged_recv(77, 0, vec![0; 8]).start().unwrap();
    until(&[honest, target], || honest.endpoint.tagged_inject(peer, 77, &[7; 8]).ok());
    until(&[honest, target], || (target.finished() > before).then_some(()));
    assert_eq!(receive.wait().unwrap().to_vec(), [7; 8]);
}

#[test]
fn peer_is_not_read_while_too_many_answers_are_pending() {
    for transport in ["tcp", "shm"] {
        let [hostile, honest, target] = [(); 3].map(|()| TestEndpoint::new(transport));
        connect(&hostile, &target);
        let to_target = connect(&honest, &target);
        let slot = target.slot(&hostile);
        let mut ears = Ears { open: false, answers: 0 };
        // Each message invalidates a window that does not exist, and requests an answer.
        let flags = Flags::INVALIDATE | Flags::ID | Flags::ACK | Flags::DATA;
        let head = Head { kind: FrameKind::Message, flags, data: 0xdead_beef, ..Head::default() };
        let (mut sent, mut longest, mut blocked) = (0, 0, BlockedSends::new());
        while !blocked.is_blocked() {
            let more = hostile.flood(&target, &Head { id: sent as u32 + 1, ..head }, &[], 4096, &mut ears);
            sent += more;
            target.endpoint.progress();
            blocked.record(more);
            longest = longest.max(target.engine(|engine| engine.core.peers.get(slot).backlog()));
            assert!(sent < 8 * BACKLOG, "{transport}: the peer is still read");
        }
        assert!(!target.engine(|engine| engine.core.peers.is_read(slot)), "{transport}");
        assert!(longest <= BACKLOG + (64 << 10), "{transport}: {longest} answers wait");
        goes_on(&honest, to_target, &target);
        // When the peer takes the answers, its frames are read again, and each message is answered, in order.
        ears.open = true;
        while ears.answers < sent {
            let before = ears.answers;
            until(&[&target], || {
                hostile.flood(&target, &head, &[], 0, &mut ears);
                (ears.answers > before).then_some(())
            });
        }
        assert_eq!(ears.answers, sent, "{transport}");
        assert!(
            target.engine(|engine| engine.core.peers.is_read(slot) && !engine.core.peers.has_answers()),
            "{transport}"
        );
        assert_eq!(target.ended(), None);
    }
}

/// A ring that is full refuses an answer again when the answer is retried.
#[test]
fn answers_that_a_full_ring_refuses_repeatedly_leave_later() {
    let [hostile, target] = [(); 2].map(|()| TestEndpoint::new("shm"));
    connect(&hostile, &target);
    let slot = target.slot(&hostile);
    let backlog = || target.engine(|engine| engine.core.peers.get(slot).backlog());
    let mut ears = Ears { open: false, answers: 0 };
    // Each message invalidates a window that does not exist, and requests an answer.
    let flags = Flags::INVALIDATE | Flags::ID | Flags::ACK | Flags::DATA;
    let head = Head { kind: FrameKind::Message, flags, data: 0xdead_beef, ..Head::default() };
    let mut sent = 0;
    until(&[&target], || {
        sent += hostile.flood(&target, &Head { id: sent as u32 + 1, ..head }, &[], 64, &mut ears);
        (backlog() > 64).then_some(())
    });
    for _ in 0..100 {
        target.endpoint.progress();
    }
    assert!(backlog() > 64, "the ring has no room");
    ears.open = true;
    // Both endpoints run in this thread, so each round makes room for more answers.
    for _ in 0..100_000 {
        hostile.flood(&target, &head, &[], 0, &mut ears);
        target.endpoint.progress();
        if ears.answers == sent {
            break;
        }
    }
    assert_eq!((ears.answers, backlog()), (sent, 0));
}

/// A test endpoint with a small cap on unexpected messages.
fn capped(transport: &str, cap: usize) -> TestEndpoint {
    let builder = Info::discover().unwrap().domain().transport(transport.parse().unwrap());
    TestEndpoint::of(builder.unexpected_cap(cap).open().unwrap(), &CompletionQueue::default())
}

/// Sends messages for which the target has no receive, until the target accepts no further messages or `most` were
/// sent. Returns the number of sent messages.
fn overrun(hostile: &TestEndpoint, target: &TestEndpoint, kind: FrameKind, most: usize) -> usize {
    let mut ears = Ears { open: false, answers: 0 };
    let (mut sent, mut blocked) = (0, BlockedSends::new());
    while !blocked.is_blocked() {
        let (flags, data) = if kind == FrameKind::Collective { (Flags::DATA, 1) } else { (Flags::empty(), 0) };
        let head = Head { kind, flags, data, tag: sent as u64 * 7919, ..Head::default() };
        let more = hostile.flood(target, &head, &[9; LEN], usize::from(sent < most), &mut ears);
        sent += more;
        target.endpoint.progress();
        blocked.record(more);
        assert!(sent < 1000, "the peer is still read");
    }
    sent
}

const LEN: usize = 500 << 10;

#[test]
fn unexpected_messages_are_bounded_per_peer() {
    const CAP: usize = 1 << 20;
    const MOST: usize = CAP + BEYOND + (2 << 20);
    for kind in [FrameKind::Message, FrameKind::Collective] {
        let (honest, target) = (TestEndpoint::new("tcp"), capped("tcp", CAP));
        let to_target = connect(&honest, &target);
        let held = |slot| target.engine(|engine| engine.core.peers.get(slot).held());
        let mut slots = Vec::new();
        for round in 0..3 {
            let hostile = TestEndpoint::new("tcp");
            connect(&hostile, &target);
            let slot = target.slot(&hostile);
            overrun(&hostile, &target, kind, 120);
            assert!(held(slot) > BEYOND / 2, "{kind:?}: {} bytes are held", held(slot));
            goes_on(&honest, to_target, &target);
            // The hostile peer disconnects, and the messages that it left are not charged to any other peer.
            drop(hostile);
            until(&[&target], || target.ended());
            assert_eq!(held(slot) > 0, kind == FrameKind::Message, "{kind:?}: messages of a group are dropped");
            slots.push(slot);
            let all: usize = slots.iter().map(|slot| held(*slot)).sum();
            assert!(all <= 2 * MOST, "{kind:?}, round {round}: disconnected peers left {all} bytes");
            goes_on(&honest, to_target, &target);
        }
        let hostile = TestEndpoint::new("tcp");
        connect(&hostile, &target);
        let slot = target.slot(&hostile);
        overrun(&hostile, &target, kind, usize::MAX);
        assert!((BEYOND..MOST).contains(&held(slot)), "{kind:?}: {} bytes are held", held(slot));
        assert!(!target.engine(|engine| engine.core.peers.is_read(slot)), "{kind:?}");
        goes_on(&honest, to_target, &target);
        if kind == FrameKind::Message {
            // The messages that are kept can be received, and then the rest arrives.
            let all: usize = slots.iter().chain([&slot]).map(|slot| held(*slot)).sum();
            for _ in 0..all / LEN {
                let before = target.finished();
                let mut receive = target.endpoint.recv(vec![0; LEN]).start().unwrap();
                until(&[&target], || (target.finished() > before).then_some(()));
                assert!(receive.wait().unwrap().to_vec() == vec![9; LEN]);
            }
            assert!(target.engine(|engine| engine.core.peers.is_read(slot)));
        }
    }
}

#[test]
fn unexpected_cap_counts_offer_heads_not_claimed_lengths() {
    let (hostile, target) = (TestEndpoint::new("tcp"), capped("tcp", 10 * HEAD));
    connect(&hostile, &target);
    let (slot, back) = (target.slot(&hostile), hostile.slot(&target));
    for number in 0..20 {
        let offer = Offer { len: (u64::MAX >> 1).into(), pieces: 1.into(), ..Offer::default() };
        let head = Head { kind: FrameKind::MessageOffer, flags: Flags::ID, id: number, ..Head::default() };
        hostile.forge(&target, &head, offer.as_bytes());
    }
    let held = || target.engine(|engine| engine.core.peers.get(slot).held());
    until(&[&target], || (held() == 20 * HEAD).then_some(()));
    until(&[&target, &hostile], || {
        hostile.engine(|engine| engine.core.peers.get(back).takes_offers_only()).then_some(())
    });
    drop(hostile);
    until(&[&target], || target.ended());
    assert_eq!(held(), 0, "the offers are dropped");
}

/// When a connection ends, the messages of the peer are dropped, which creates a frame for that peer. The slot is not
/// given to another peer while the frame waits.
#[test]
fn slot_is_not_reclaimed_while_a_frame_waits_for_its_peer() {
    const CAP: usize = 1 << 20;
    let (hostile, target) = (TestEndpoint::new("tcp"), capped("tcp", CAP));
    connect(&hostile, &target);
    let slot = target.slot(&hostile);
    overrun(&hostile, &target, FrameKind::Collective, 6);
    assert!(target.engine(|engine| engine.core.peers.get(slot).held()) > CAP, "the peer has to offer messages");
    let name = target.vector.find(hostile.endpoint.address()).expect("its address is in the vector");
    target.vector.remove(name).unwrap();
    let elsewhere = ("127.0.0.1:1".parse().unwrap(), 0);
    target.engine(|engine| {
        engine.down(slot, &Broken::Closed);
        assert!(engine.core.peers.has_actions_for(slot), "the peer may send messages again");
        assert_ne!(engine.core.peers.nameless_slot(elsewhere), slot, "another peer would get the frame");
        engine.act(); // There is no connection, so the frame is dropped.
        engine.reclaim(slot);
        assert_eq!(engine.core.peers.nameless_slot(elsewhere), slot, "nothing refers to the slot");
    });
}

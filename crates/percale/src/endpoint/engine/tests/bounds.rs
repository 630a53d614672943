//! Tests that valid requests beyond the limits for one peer end the connection of that peer, or are refused, and do not
//! affect other peers.

use zerocopy::IntoBytes;

use super::super::remote::PART_LIMIT;
use super::*;
use crate::local_memory::access::RefusalExt as _;
use crate::local_memory::volatile::SegmentsExt as _;
use crate::region::{Access, Refusal, RemoteMemory};
use crate::transport::testing::SinkReport;
use crate::wire::head::{Flags, FrameKind, Offer, RMA_EAGER, ReadHead};

/// A number of requests that exceeds every limit.
const MANY: u32 = 40_000;

/// Sends valid frames endlessly to a victim that makes progress, and takes no answer. Returns why the sender was
/// disconnected. Checks that an honest peer is served meanwhile and afterwards.
fn flood(len: usize, frame: impl Fn(&RemoteMemory, u32) -> (Head, Vec<u8>)) -> String {
    let (victim, hostile, honest) = (TestEndpoint::new("tcp"), TestEndpoint::new("tcp"), TestEndpoint::new("tcp"));
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let memory = victim.domain.register(vec![0; len], access).unwrap();
    let remote = memory.remote();
    connect(&hostile, &victim);
    connect(&victim, &honest);
    while victim.ended().is_some() {}
    let slot = hostile.slot(&victim);
    let mut ended = None;
    for id in 0..MANY {
        let (head, payload) = frame(&remote, id);
        let id = if head.flags.contains(Flags::ID) { id } else { 0 };
        let head = Head { len: payload.len() as u32, id, ..head };
        // The test does not measure the sender's own memory, so the sender waits for room.
        let sent = until(&[], || {
            let sent = hostile.engine(|engine| match engine.links[slot as usize].as_mut() {
                Some(link) => Segments::lend(&payload, |payload| link.send(&head, payload, false)).map_err(Some),
                None => Err(None),
            });
            victim.endpoint.progress();
            ended = ended.take().or_else(|| victim.ended());
            (ended.is_some() || sent != Err(Some(crate::transport::Refused::Full))).then_some(sent)
        });
        if ended.is_some() || sent.is_err() {
            break;
        }
    }
    let why = ended.unwrap_or_else(|| until(&[&victim], || victim.ended()));
    victim.engine(|engine| {
        let held = engine.core.peers.actions();
        assert!(held < 100, "{held} answers are kept for a disconnected peer");
    });
    connect(&victim, &honest);
    why
}

/// Requirements: FLT-007, FLT-008.
#[test]
fn peer_that_does_not_read_answers_is_disconnected() {
    let read = |remote: &RemoteMemory, _| {
        let ask = ReadHead { len: (RMA_EAGER as u64).into(), expected: 0.into() };
        let (kind, flags) = (FrameKind::Read, Flags::DATA | Flags::ID);
        let head = Head { kind, flags, tag: remote.address, data: remote.key, ..Head::default() };
        (head, ask.as_bytes().to_vec())
    };
    println!("reads: {}", flood(1 << 16, read));
}

/// Requirements: FLT-007, FLT-008.
#[test]
fn peer_with_too_many_offered_transfers_is_disconnected() {
    let offer = |remote: &RemoteMemory, _| {
        let offer = Offer { len: 8.into(), ..Offer::default() };
        let (kind, flags) = (FrameKind::WriteOffer, Flags::DATA | Flags::ID);
        let head = Head { kind, flags, tag: remote.address, data: remote.key, ..Head::default() };
        (head, offer.as_bytes().to_vec())
    };
    println!("offers: {}", flood(1 << 16, offer));
}

/// Requirements: FLT-008.
#[test]
fn access_part_longer_than_the_limit_is_rejected() {
    let (victim, hostile) = (TestEndpoint::new("tcp"), TestEndpoint::new("tcp"));
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let memory = victim.domain.register(vec![0; PART_LIMIT as usize + 64], access).unwrap();
    let remote = memory.remote();
    connect(&hostile, &victim);
    let long = PART_LIMIT + 1;
    let offer = Offer { len: long.into(), ..Offer::default() };
    let read = ReadHead { len: long.into(), expected: 0.into() };
    for (kind, payload) in [(FrameKind::WriteOffer, offer.as_bytes()), (FrameKind::Read, read.as_bytes())] {
        let flags = Flags::DATA | Flags::ID;
        let head = Head { kind, tag: remote.address, data: remote.key, flags, id: 9, ..Head::default() };
        let head = Head { len: payload.len() as u32, ..head };
        let slot = hostile.slot(&victim);
        let mut notes = Notes::keeping(64);
        hostile.engine(|engine| {
            let link = engine.links[slot as usize].as_mut().expect("the endpoints are connected");
            Segments::lend(payload, |payload| link.send(&head, payload, false)).expect("there is room");
        });
        let answer = until(&[&victim], || {
            hostile.engine(|engine| {
                let link = engine.links[slot as usize].as_mut().expect("the endpoints are connected");
                link.poll(slot, &mut notes).expect("the connection is up");
            });
            let of_it = |reported: &SinkReport| matches!(reported, SinkReport::Frame(head, _) if head.id == 9);
            let at = notes.reported.iter().position(of_it)?;
            Some(notes.reported.remove(at))
        });
        let SinkReport::Frame(answer, _) = answer else { panic!("{answer:?}") };
        assert_eq!((answer.kind, answer.tag), (FrameKind::Done, Refusal::Range.number()), "{kind:?}");
    }
    assert_eq!(victim.engine(|engine| engine.core.messages.under_way()[1]), 0, "nothing is fetched");
}

/// Requirements: FLT-008.
#[test]
fn peer_naming_too_many_groups_is_disconnected() {
    use crate::wire::join::Join;
    for said in [Join::Ready(1), Join::Failed { number: 1, error: libc::ECANCELED as u16 }] {
        let why = flood(64, |_, id| {
            let (kind, flags) = (FrameKind::Collective, Flags::DATA);
            (Head { kind, flags, tag: u64::from(id), data: said.to_data(), ..Head::default() }, Vec::new())
        });
        assert!(why.contains("about joining a group"), "{said:?}: {why}");
    }
}

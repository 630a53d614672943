//! Rules about numbers of frames: a peer sends more than it may, and reads nothing.

use super::*;
use crate::endpoint::engine::peers::{BACKLOG, BEYOND, PARTS_LIMIT};
use crate::transport::Refused;
use crate::wire::head::{Offer, RMA_EAGER, ReadHead};
use crate::wire::join::Join;

/// The limit of answers to accesses that a peer has not read.
const REPLIES: usize = 8192;

/// The number of lists about which a peer may send messages.
const LISTS: usize = 1 << 14;

const DATA_ID: Flags = Flags::DATA.union(Flags::ID);

/// Sends one frame without reading anything. Returns false if the victim does not read, or has ended the connection.
fn sends(scene: &mut Scene<'_>, head: Head, payload: &[u8]) -> bool {
    let head = Head { len: payload.len() as u32, ..head };
    let (bytes, mut at) = ([head.to_bytes().as_bytes(), payload].concat(), 0);
    let (mut attempts, mut since) = (0, Instant::now());
    loop {
        let sent = scene.link(|link, _| match link {
            AnyLink::Tcp(link) => match rustix::io::write(link.as_fd(), &bytes[at..]) {
                Ok(written) => {
                    at += written;
                    Ok(at == bytes.len())
                }
                Err(rustix::io::Errno::AGAIN) => Err(true),
                Err(_) => Err(false),
            },
            link => match Segments::lend(payload, |payload| link.send(&head, payload, true)) {
                Ok(()) => Ok(true),
                Err(Refused::Full) => Err(true),
                Err(Refused::Broken) => Err(false),
            },
        });
        match sent {
            Ok(true) => return true,
            Ok(false) => (attempts, since) = (0, Instant::now()),
            Err(false) => return false,
            // The kernel of a busy machine passes on bytes late.
            Err(true) if attempts > 200 && since.elapsed() > Duration::from_millis(300) => return false,
            Err(true) => {
                attempts += 1;
                scene.turn();
            }
        }
    }
}

/// Creates a rule about the number of frames. `most` is a number of frames that exceeds every limit.
fn flood(
    kind: FrameKind,
    what: &str,
    outcome: Outcome,
    bound: usize,
    most: usize,
    frame: impl Fn(&Scene<'_>, u32) -> (Head, Vec<u8>) + 'static,
) -> Rule {
    let rule = Rule::new(what, outcome, move |scene| {
        let slot = scene.victim.slot(&scene.hostile) as usize;
        for number in 0..most {
            let (head, payload) = frame(scene, number as u32);
            if !sends(scene, head, &payload) {
                break;
            }
            if number % 64 == 0 {
                scene.turn();
                if scene.victim.engine(|engine| engine.links[slot].is_none()) {
                    break;
                }
            }
        }
    });
    rule.of(kind).within(bound)
}

pub(super) fn rules(transport: &'static str) -> Vec<Rule> {
    let mut rules = Vec::new();
    let too_many = Outcome::Ends("too many requests in progress");
    let access = |scene: &Scene<'_>, kind, id| {
        let (data, tag) = (scene.region.key, scene.region.address);
        Head { kind, flags: DATA_ID, data, tag, id, ..Head::default() }
    };
    // Each answer has at most 16 KiB, and a record in the queue.
    let replies = REPLIES * (RMA_EAGER + 512) + ONE_FRAME;
    rules.push(flood(
        FrameKind::Read,
        "answers of 16 KiB are not read",
        too_many,
        replies,
        40_000,
        move |scene, id| {
            let payload = ReadHead { len: (RMA_EAGER as u64).into(), expected: 0.into() };
            (access(scene, FrameKind::Read, id), payload.as_bytes().to_vec())
        },
    ));
    rules.push(flood(
        FrameKind::Read,
        "answers of 8 bytes are not read",
        too_many,
        replies,
        1 << 20,
        move |scene, id| {
            let payload = ReadHead { len: 8.into(), expected: 0.into() };
            (access(scene, FrameKind::Read, id), payload.as_bytes().to_vec())
        },
    ));
    let transfers = 2 * PARTS_LIMIT as usize * 1024 + ONE_FRAME;
    rules.push(flood(
        FrameKind::Read,
        "long answers are not fetched",
        too_many,
        transfers,
        40_000,
        move |scene, id| {
            let payload = ReadHead { len: (LEN as u64).into(), expected: 0.into() };
            (access(scene, FrameKind::Read, id), payload.as_bytes().to_vec())
        },
    ));
    if transport == "tcp" {
        let what = "expected answers are not read";
        rules.push(flood(FrameKind::Read, what, too_many, transfers, 40_000, move |scene, id| {
            let payload = ReadHead { len: (LEN as u64).into(), expected: u64::from(id + 1).into() };
            (access(scene, FrameKind::Read, id), payload.as_bytes().to_vec())
        }));
    }
    let what = "offered writes are not sent";
    rules.push(flood(FrameKind::WriteOffer, what, too_many, transfers, 40_000, move |scene, id| {
        let offer = Offer { len: 8.into(), ..Offer::default() };
        (access(scene, FrameKind::WriteOffer, id), offer.as_bytes().to_vec())
    }));
    let what = "answers to atomic operations are not read";
    rules.push(flood(FrameKind::Atomic, what, too_many, replies, 1 << 20, move |scene, id| {
        // A sum of one element of 64 bits.
        let op = crate::local_memory::atomic::AtomicOp::Sum.to_u8();
        let datatype = crate::local_memory::atomic::Datatype::U64.to_u8();
        let payload = [&[op, datatype, 0, 0][..], &1_u32.to_le_bytes(), &[0; 8]].concat();
        (access(scene, FrameKind::Atomic, id), payload)
    }));
    let lists = Outcome::Ends("invalid message about joining a group, or too many groups");
    for said in [Join::Ready(1), Join::Failed { number: 1, error: 5 }] {
        let what = format!("too many lists ({said:?})");
        // The limit of the documentation is about 2 MB.
        rules.push(flood(FrameKind::Collective, &what, lists, 4 << 20, 4 * LISTS, move |_, id| {
            let (kind, flags) = (FrameKind::Collective, Flags::DATA);
            (Head { kind, flags, tag: u64::from(id), data: said.to_data(), ..Head::default() }, Vec::new())
        }));
    }
    // Acknowledgements that the peer does not read: 40 bytes each, in a queue that doubles when it grows.
    let unread = Outcome::Unread("it has read half of the answers");
    let answers = BACKLOG * 40 * 2 + (2 << 20);
    let what = "acknowledgements are not read";
    rules.push(flood(FrameKind::Message, what, unread, answers, 8 * BACKLOG, |_, id| {
        let flags = Flags::INVALIDATE | Flags::ID | Flags::ACK | Flags::DATA;
        (Head { kind: FrameKind::Message, flags, data: 0xdead_beef, id, ..Head::default() }, Vec::new())
    }));
    // Messages that no receive matches, and offers, which count as 384 bytes each.
    let held = Outcome::Unread("receives have matched some of its messages");
    let messages = CAP + BEYOND + (4 << 20);
    let len = if transport == "tcp" { 500 << 10 } else { 8000 };
    let plain = |kind| Head { kind, ..Head::default() };
    rules.push(flood(
        FrameKind::Message,
        "long messages that no receive matches",
        held,
        messages,
        20_000,
        move |_, _| (plain(FrameKind::Message), vec![1; len]),
    ));
    rules.push(flood(
        FrameKind::Tagged,
        "empty messages that no receive matches",
        held,
        messages,
        1 << 20,
        move |_, id| (Head { tag: 1000 + u64::from(id), ..plain(FrameKind::Tagged) }, Vec::new()),
    ));
    rules.push(flood(FrameKind::Collective, "messages of unknown groups", held, messages, 1 << 20, move |_, id| {
        (Head { flags: Flags::DATA, tag: u64::from(id), data: 1, ..plain(FrameKind::Collective) }, vec![1; 200])
    }));
    rules.push(flood(
        FrameKind::TaggedOffer,
        "offers that no receive matches",
        held,
        messages,
        1 << 20,
        move |_, id| {
            let offer = Offer { len: (1 << 40).into(), ..Offer::default() };
            let head = Head { flags: Flags::ID, tag: 1000 + u64::from(id), id, ..plain(FrameKind::TaggedOffer) };
            (head, offer.as_bytes().to_vec())
        },
    ));
    if transport == "shm" {
        let keys = Outcome::Ends("too many key requests in progress");
        rules.push(flood(FrameKind::Resolve, "answers about keys are not read", keys, ONE_FRAME, 1 << 16, |_, id| {
            let kind = FrameKind::Resolve;
            (Head { kind, flags: DATA_ID, data: 5, id, ..Head::default() }, Vec::new())
        }));
    }
    rules
}

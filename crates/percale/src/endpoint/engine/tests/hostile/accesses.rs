//! Rules about accesses to the victim's memory, and about the answers to the victim's own accesses.

use super::messages::invalid_offers;
use super::*;
use crate::endpoint::engine::remote::{PART, PART_LIMIT};
use crate::local_memory::atomic::{AtomicKind, AtomicOp, Datatype, KindWireExt as _};
use crate::wire::head::{AtomicHead, Offer, RMA_EAGER, ReadHead, WriteNotice};

const DATA_ID: Flags = Flags::DATA.union(Flags::ID);

/// The parts of a request that rules change.
#[derive(Clone, Copy)]
enum Place {
    /// The region with all rights, at this offset.
    Region(u64),
    /// The region that may only be read.
    Readable,
    /// The region with all rights, at this address.
    Address(u64),
    /// This key.
    Key(u64),
}

impl Place {
    /// Returns a request for the place.
    fn head(self, scene: &Scene<'_>, kind: FrameKind) -> Head {
        let region = scene.region;
        let (data, tag) = match self {
            Self::Region(offset) => (region.key, region.address.wrapping_add(offset)),
            Self::Readable => (scene.readable.key, scene.readable.address),
            Self::Address(address) => (region.key, address),
            Self::Key(key) => (key, region.address),
        };
        Head { kind, flags: DATA_ID, data, tag, id: 5, ..Head::default() }
    }
}

fn rule(kind: FrameKind, what: &str, outcome: Outcome, place: Place, payload: impl Fn() -> Vec<u8> + 'static) -> Rule {
    let rule = Rule::new(what, outcome, move |scene| {
        let head = place.head(scene, kind);
        scene.frame(head, &payload());
    });
    rule.of(kind)
}

fn offer(len: u64) -> Vec<u8> {
    Offer { len: len.into(), ..Offer::default() }.as_bytes().to_vec()
}

fn read(len: u64, expected: u64) -> Vec<u8> {
    ReadHead { len: len.into(), expected: expected.into() }.as_bytes().to_vec()
}

/// The payload of an atomic operation, with these bytes of operands.
fn atomic(change: impl FnOnce(&mut AtomicHead), operands: usize) -> Vec<u8> {
    let (op, datatype) = (AtomicOp::Sum.to_u8(), Datatype::U64.to_u8());
    let mut head = AtomicHead { op, datatype, kind: AtomicKind::Plain.to_u8(), reserved: 0, count: 1.into() };
    change(&mut head);
    [head.as_bytes(), &vec![0; operands]].concat()
}

/// The ways in which a place is invalid for an access of 8 bytes.
fn places(changes: bool) -> Vec<(&'static str, Place, Refusal)> {
    let end = LEN as u64;
    let mut places = vec![
        ("an unknown key", Place::Key(0x1357_9bdf_0246_8ace), Refusal::Key),
        ("key 0", Place::Key(0), Refusal::Key),
        ("the largest key", Place::Key(u64::MAX), Refusal::Key),
        ("one byte beyond the region", Place::Region(end - 7), Refusal::Range),
        ("the byte after the region", Place::Region(end), Refusal::Range),
        ("far beyond the region", Place::Region(end + (1 << 40)), Refusal::Range),
        ("8 bytes before the region", Place::Region(0_u64.wrapping_sub(8)), Refusal::Range),
        ("the last address", Place::Address(u64::MAX), Refusal::Range),
        ("a range that wraps", Place::Address(u64::MAX - 7), Refusal::Range),
    ];
    if changes {
        places.push(("a region that may only be read", Place::Readable, Refusal::Right));
    }
    places
}

fn requests(transport: &'static str) -> Vec<Rule> {
    let mut rules = Vec::new();
    for (what, place, refusal) in places(true) {
        let outcome = refused(refusal);
        rules.push(rule(FrameKind::Write, what, outcome, place, || vec![1; 8]));
        rules.push(rule(FrameKind::WriteOffer, what, outcome, place, || offer(8)));
        rules.push(rule(FrameKind::Atomic, what, outcome, place, || atomic(|_| (), 8)));
    }
    for (what, place, refusal) in places(false) {
        rules.push(rule(FrameKind::Read, what, refused(refusal), place, || read(8, 0)));
    }
    // A long write arrives in pieces over a stream, so it is checked before its bytes have arrived.
    for (what, place, refusal) in places(true) {
        let what = format!("1800 bytes, {what}");
        rules.push(rule(FrameKind::Write, &what, refused(refusal), place, || vec![1; 1800]));
    }
    let inside = Place::Region(0);
    for len in [LEN as u64 + 1, 1 << 40, u64::MAX] {
        let what = format!("{len} bytes of a region of {LEN}");
        rules.push(rule(FrameKind::Read, &what, refused(Refusal::Range), inside, move || read(len, 0)));
        rules.push(rule(FrameKind::WriteOffer, &what, refused(Refusal::Range), inside, move || offer(len)));
    }
    let what = "more bytes than a part may have";
    rules.push(rule(FrameKind::Read, what, refused(Refusal::Range), inside, || read(PART_LIMIT + 1, 0)));
    rules.push(rule(FrameKind::WriteOffer, what, refused(Refusal::Range), inside, || offer(PART_LIMIT + 1)));
    rules.push(rule(FrameKind::WriteOffer, "no bytes", refused(Refusal::Range), inside, || offer(0)));
    for (what, expected, offer) in invalid_offers(8) {
        let ends = Outcome::Ends(expected);
        rules.push(rule(FrameKind::WriteOffer, what, ends, inside, move || offer.as_bytes().to_vec()));
    }
    let tells = Rule::new("completion data of 7 bytes", Outcome::Ends("write without its data"), move |scene| {
        let head = inside.head(scene, FrameKind::Write);
        scene.frame(Head { flags: head.flags | Flags::TELLS, ..head }, &[1; 7]);
    });
    rules.push(tells.of(FrameKind::Write));
    let destination = Outcome::Ends("read without a destination");
    for expected in [(1 << 32) + 1, u64::MAX] {
        let what = format!("the expected pull {expected}");
        rules.push(rule(FrameKind::Read, &what, destination, inside, move || read(100_000, expected)));
    }
    if transport == "shm" {
        let ends = Outcome::Ends("a pull without its request");
        rules.push(rule(FrameKind::Read, "an expected pull, not over a stream", ends, inside, || read(100_000, 1)));
    }
    rules
}

fn atomics() -> Vec<Rule> {
    let mut rules = Vec::new();
    let ends = Outcome::Ends("unknown atomic operation");
    let mut add = |what: &str, outcome, change: fn(&mut AtomicHead), operands: usize| {
        rules.push(rule(FrameKind::Atomic, what, outcome, Place::Region(0), move || atomic(change, operands)));
    };
    add("operation 255", ends, |head| head.op = 255, 8);
    add("type 255", ends, |head| head.datatype = 255, 8);
    add("kind 3", ends, |head| head.kind = 3, 8);
    add("kind 255", ends, |head| head.kind = 255, 8);
    add("a reserved byte", ends, |head| head.reserved = 1, 8);
    add("no operands", ends, |_| (), 0);
    add("7 bytes of operands", ends, |_| (), 7);
    add("16 bytes of operands for one element", ends, |_| (), 16);
    add("2 elements with operands of one", ends, |head| head.count = 2.into(), 8);
    add("2^32 - 1 elements", ends, |head| head.count = u32::MAX.into(), 8);
    add("1008 bytes", ends, |head| head.count = 126.into(), 1008);
    add("no elements", ends, |head| head.count = 0.into(), 0);
    add("a comparison without compare values", ends, |head| head.kind = AtomicKind::Compare.to_u8(), 8);
    add("a sum with compare values", ends, |head| head.kind = AtomicKind::Compare.to_u8(), 16);
    add("a read that returns nothing", ends, |head| head.op = AtomicOp::Read.to_u8(), 0);
    add("a comparison that returns nothing", ends, |head| head.op = AtomicOp::Cswap.to_u8(), 8);
    let floats = |head: &mut AtomicHead| {
        (head.op, head.datatype) = (AtomicOp::Band.to_u8(), Datatype::F64.to_u8());
    };
    add("bits of floats", ends, floats, 8);
    for offset in [1, 4, 7] {
        let what = format!("misaligned by {offset} bytes");
        let place = Place::Region(offset);
        rules.push(rule(FrameKind::Atomic, &what, refused(Refusal::Misaligned), place, || atomic(|_| (), 8)));
    }
    rules
}

fn notices() -> Vec<Rule> {
    let mut rules = Vec::new();
    let notice = |generation: u64| {
        move || WriteNotice { generation: generation.into(), len: u64::MAX.into() }.as_bytes().to_vec()
    };
    let mut add = |what: &str, outcome, place: Place, id: u32, generation: u64| {
        let payload = notice(generation);
        let rule = Rule::new(what, outcome, move |scene| {
            let Head { tag, data, .. } = place.head(scene, FrameKind::Wrote);
            // The key of the region is the tag of a notice, and the completion data is its data.
            let _address = tag;
            let head = Head { kind: FrameKind::Wrote, flags: DATA_ID, tag: data, data: 9, id, ..Head::default() };
            scene.frame(head, &payload());
        });
        rules.push(rule.of(FrameKind::Wrote));
    };
    let unknown = Outcome::Ends("access notification with unknown counters");
    add("counter 8", unknown, Place::Region(0), 8, 1);
    add("all counters", unknown, Place::Region(0), u32::MAX, 1);
    let closed = Outcome::Ignored("the region may have been closed meanwhile");
    add("an unknown key", closed, Place::Key(77), 1, 1);
    add("an unknown generation", closed, Place::Region(0), 1, u64::MAX - 5);
    add("no generation of a write", closed, Place::Region(0), 2, 0);
    rules
}

/// The accesses of the victim.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Asks {
    Read(usize),
    Write(usize),
    Fetch,
}

/// The frames with which a peer answers an access, given the number of its part.
type Frames = fn(u32) -> Vec<(Head, Vec<u8>)>;

const SHORT: usize = 8;
const LONG: usize = 1 << 20;

/// Begins an access of the victim to memory of the hostile peer, which does not answer. Returns the number of its part.
fn begins(scene: &mut Scene<'_>, asks: Asks) -> u32 {
    let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::REMOTE_FETCH;
    let memory = scene.hostile.domain.register(vec![1; LONG], all).unwrap();
    let remote = memory.remote();
    let (victim, peer) = (scene.victim, scene.to_hostile);
    // After this access the victim knows that its peer executes accesses.
    let first = victim.endpoint.read(peer, remote.at(0..8), vec![0; 8]).start().unwrap();
    let hostile = &scene.hostile;
    until(&[victim, hostile], || first.is_ready().then_some(()));
    drop(first);
    match asks {
        Asks::Read(len) => {
            let part = remote.at(0..len as u64);
            let read = memory::counted(|| victim.endpoint.read(peer, part, vec![0; len]).start()).unwrap();
            scene.keep(read);
        }
        Asks::Write(len) => {
            let part = remote.at(0..len as u64);
            let write = memory::counted(|| victim.endpoint.write(peer, vec![0; len], part).start()).unwrap();
            scene.keep(write);
        }
        Asks::Fetch => {
            let word = RemoteMemory { len: 8, ..remote };
            let fetch = memory::counted(|| victim.endpoint.fetch_add(peer, word, 1_u64).start()).unwrap();
            scene.keep(fetch);
        }
    }
    victim.engine(|engine| engine.core.remote.first_part()).expect("an access in progress")
}

fn answers(transport: &'static str) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut add = |kind, what: &str, outcome, asks: Asks, frames: Frames| {
        let rule = Rule::new(format!("{what}, for {asks:?}"), outcome, move |scene| {
            let id = begins(scene, asks);
            for (head, payload) in frames(id) {
                scene.frame(head, &payload);
            }
        });
        rules.push(rule.of(kind).within(2 * LONG + ONE_FRAME));
    };
    const fn head(kind: FrameKind, id: u32) -> Head {
        Head { kind, flags: Flags::ID, len: 0, tag: 0, data: 0, id }
    }
    use FrameKind::{Done, Pull, ReadData, ReadOffer};
    let all = [Asks::Read(SHORT), Asks::Read(LONG), Asks::Write(SHORT), Asks::Write(LONG), Asks::Fetch];
    for asks in all {
        let unrequested = Outcome::Ends("reply to an access that was not requested");
        add(Done, "the number of no part", unrequested, asks, |id| vec![(head(Done, id ^ PART), vec![])]);
        let code = Outcome::Ends("unknown error code in a reply");
        add(Done, "error 7", code, asks, |id| vec![(Head { tag: 7, ..head(Done, id) }, vec![])]);
        add(Done, "the largest error", code, asks, |id| vec![(Head { tag: u64::MAX, ..head(Done, id) }, vec![])]);
        let stale = Outcome::Ignored("the number may be that of a part that has ended");
        add(Done, "the number of another part", stale, asks, |id| vec![(head(Done, id ^ 1), vec![])]);
        add(ReadData, "the number of another part", stale, asks, |id| vec![(head(ReadData, id ^ 1), vec![0; 8])]);
        let unknown = Outcome::Ends("data for an unknown read");
        add(ReadData, "the number of no part", unknown, asks, |id| vec![(head(ReadData, id ^ PART), vec![0; 8])]);
        let unknown = Outcome::Ends("offer for an unknown read");
        add(ReadOffer, "the number of no part", unknown, asks, |id| vec![(head(ReadOffer, id ^ PART), offer(8))]);
        if matches!(asks, Asks::Write(_)) {
            let unknown = Outcome::Ends("data for an unknown read");
            add(ReadData, "bytes for a write", unknown, asks, |id| vec![(head(ReadData, id), vec![0; 8])]);
            let unknown = Outcome::Ends("offer for an unknown read");
            add(ReadOffer, "an offer for a write", unknown, asks, |id| vec![(head(ReadOffer, id), offer(8))]);
        } else {
            // Over a stream the bytes of a long read are expected already.
            let expected = transport == "tcp" && asks == Asks::Read(LONG);
            let without = Outcome::Ends("end of a read without data");
            add(Done, "success without bytes", without, asks, |id| vec![(head(Done, id), vec![])]);
            let wrong = if expected { "data for an unknown read" } else { "data for a read has the wrong length" };
            for (what, payload) in [("7 bytes", 7), ("9 bytes", 9), ("no bytes", 0)] {
                let frames: Frames = match payload {
                    7 => |id| vec![(head(ReadData, id), vec![0; 7])],
                    9 => |id| vec![(head(ReadData, id), vec![0; 9])],
                    _ => |id| vec![(head(ReadData, id), vec![])],
                };
                add(ReadData, what, Outcome::Ends(wrong), asks, frames);
            }
            let wrong = if expected { "offer for an unknown read" } else { "offer with a wrong length for a read" };
            add(ReadOffer, "an offer of 9 bytes", Outcome::Ends(wrong), asks, |id| {
                vec![(head(ReadOffer, id), offer(9))]
            });
            add(ReadOffer, "an offer of 2^64 - 1 bytes", Outcome::Ends(wrong), asks, |id| {
                vec![(head(ReadOffer, id), offer(u64::MAX))]
            });
            let no_offer = Outcome::Ends("operation without an offer");
            let pull: Frames = if transport == "tcp" {
                |id| vec![(head(Pull, id), vec![0; 8])]
            } else {
                |id| vec![(head(Pull, id), vec![0; 40])]
            };
            add(Pull, "a pull of a read", no_offer, asks, pull);
        }
    }
    rules
}

fn offers_for_reads() -> Vec<Rule> {
    let mut rules = Vec::new();
    for (what, expected, offer) in invalid_offers(SHORT as u64) {
        let rule = Rule::new(format!("{what}, for a read"), Outcome::Ends(expected), move |scene| {
            let id = begins(scene, Asks::Read(SHORT));
            let head = Head { kind: FrameKind::ReadOffer, flags: Flags::ID, id, tag: 1 << 30, ..Head::default() };
            scene.frame(head, offer.as_bytes());
        });
        rules.push(rule.of(FrameKind::ReadOffer).within(LONG + ONE_FRAME));
    }
    rules
}

pub(super) fn rules(transport: &'static str) -> Vec<Rule> {
    const { assert!(LEN > RMA_EAGER) };
    let mut rules = requests(transport);
    rules.extend(atomics());
    rules.extend(notices());
    rules.extend(answers(transport));
    rules.extend(offers_for_reads());
    rules
}

//! Rules about the words of transfers over shared memory: the slots of pulls, and long accesses.

use super::messages::pulls_from_peer;
use super::*;
use crate::wire::head::Offer;

/// The length of a message that is pulled.
const LONG: usize = 1 << 20;
/// The memory for such a message, in the receive and in the send.
const BOUND: usize = LONG + ONE_FRAME;

/// Writes to a word of the control page.
fn overwrite(scene: &mut Scene<'_>, name: &str, value: u64) {
    scene.shm(|link| {
        let words = link.shared_words();
        link.overwrite(words.iter().find(|word| word.name == name).expect("a word of the control page"), value);
    });
}

/// Offers a message in an arena with this number, for which the victim has a receive.
pub(super) fn names_arena(scene: &mut Scene<'_>, arena: u32) {
    scene.expects(3, 64);
    let offer = Offer { len: 64.into(), pieces: 1.into(), arena: arena.into(), ..Offer::default() };
    let head = Head { kind: FrameKind::TaggedOffer, flags: Flags::ID, tag: 3, id: 3, ..Head::default() };
    scene.frame(head, offer.as_bytes());
    scene.turns(5);
}

/// An offer whose source the victim cannot copy, or can copy from an address at which there is no memory.
fn offer(address: u64) -> Offer {
    let pieces = u32::from(address != 0);
    Offer { len: (LONG as u64).into(), pieces: pieces.into(), address: address.into(), ..Offer::default() }
}

/// The victim pulls a message, and the peer writes to the slot.
fn pulled() -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut add = |what: &str, outcome, words: &'static [(&'static str, u64)]| {
        let rule = Rule::new(format!("slot of the victim's pull: {what}"), outcome, move |scene| {
            pulls_from_peer(scene, &offer(0));
            for (word, value) in words {
                overwrite(scene, &format!("other pull: {word}"), *value);
                scene.turns(3);
            }
        });
        rules.push(rule.within(BOUND));
    };
    let unknown = Outcome::Ends("unknown transfer state");
    add("pusher's state 9", unknown, &[("pusher's state", 9)]);
    add("pusher's state 255", unknown, &[("pusher's state", 255)]);
    add("pusher's state 2^32 - 1", unknown, &[("pusher's state", u32::MAX as u64)]);
    add("unknown state after ACCEPTED", unknown, &[("pusher's state", 1), ("pusher's state", 77)]);
    add("unknown state after YOURS", unknown, &[("pusher's state", 2), ("pusher's state", 77)]);
    let own = Outcome::Ignored("a peer that writes wrong values to a slot harms only its own message");
    add("more bytes than were requested", own, &[("pusher's bytes", u64::MAX), ("pusher's state", 1)]);
    add("all bytes, without a copy", own, &[("pusher's bytes", LONG as u64), ("pusher's state", 1)]);
    add("all chunks claimed", own, &[("claimed chunks", u64::MAX)]);
    add("the puller's words", own, &[("puller's bytes", u64::MAX), ("puller's state", 9)]);
    add("back from ACCEPTED to OPEN", own, &[("pusher's state", 1), ("pusher's state", 0)]);
    add("CLOSED without all bytes", own, &[("pusher's state", 6)]);
    let fails = Outcome::Ignored("the message fails, and the connection continues");
    add("FAULT", fails, &[("pusher's state", 3)]);
    add("GONE", fails, &[("pusher's state", 5)]);
    add("REVOKED", fails, &[("pusher's state", 7)]);
    let frames = Outcome::Ignored("the victim waits for frames");
    add("UNABLE", frames, &[("pusher's state", 8)]);
    add("BOUNCE", frames, &[("pusher's state", 4)]);
    let early = Rule::new(
        "bytes before they are announced",
        Outcome::Ends("data frame for a transfer that expects none"),
        |scene| {
            let id = pulls_from_peer(scene, &offer(0));
            let head = Head { kind: FrameKind::Data, flags: Flags::ID, id, ..Head::default() };
            scene.frame(head, &[1; 8]);
        },
    );
    rules.push(early.of(FrameKind::Data).within(BOUND));
    let fault = Outcome::Ignored("the message fails: the source is not memory of the peer");
    for address in [1_u64, 4096, 1 << 47, u64::MAX - 4095, u64::MAX] {
        let rule = Rule::new(format!("a source at address {address:#x}"), fault, move |scene| {
            pulls_from_peer(scene, &offer(address));
            scene.turns(20);
        });
        rules.push(rule.of(FrameKind::TaggedOffer).within(BOUND));
    }
    rules
}

/// The payload of a pull of the whole message into ordinary memory.
fn request(slot: u8, puller_copies: u8, address: u64) -> Vec<u8> {
    let mut bytes = vec![slot, puller_copies, u8::from(address != 0), 0];
    bytes.extend((128_u32 << 10).to_le_bytes());
    bytes.extend((LONG as u64).to_le_bytes());
    bytes.extend(address.to_le_bytes());
    bytes.extend([0; 16]);
    bytes
}

/// The peer pulls a message of the victim, and writes to the slot.
fn pushed() -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut add = |what: &str, outcome, copies: u8, words: &'static [(&'static str, u64)]| {
        let rule = Rule::new(format!("slot of the peer's pull: {what}"), outcome, move |scene| {
            let id = scene.sends(LONG, false);
            let head = Head { kind: FrameKind::Pull, flags: Flags::ID, tag: 7, id, ..Head::default() };
            scene.frame(head, &request(0, copies, 0));
            scene.turns(3);
            for (word, value) in words {
                overwrite(scene, &format!("own pull: {word}"), *value);
                scene.turns(3);
            }
        });
        rules.push(rule.within(BOUND));
    };
    let own = Outcome::Ignored("a peer that writes wrong values to a slot harms only its own message");
    add("puller's state 9", own, 1, &[("puller's state", 9)]);
    add("puller's state 2^32 - 1", own, 1, &[("puller's state", u32::MAX as u64)]);
    add("more bytes than were requested", own, 1, &[("puller's bytes", u64::MAX)]);
    add("all chunks claimed", own, 1, &[("claimed chunks", u64::MAX)]);
    add("the pusher's words", own, 1, &[("pusher's bytes", u64::MAX), ("pusher's state", 77)]);
    add("FAILED", own, 1, &[("puller's state", 2)]);
    add("REVOKED", own, 1, &[("puller's state", 3)]);
    add("FRAMES, although the puller copies", own, 1, &[("puller's state", 4)]);
    add("LEFT, although the link is in use", own, 1, &[("puller's state", 5)]);
    add("back from FINISHED to OPEN", own, 1, &[("puller's state", 1), ("puller's state", 0)]);
    add("FINISHED while frames are sent", own, 0, &[("puller's state", 1)]);
    for address in [1_u64, 4096, 1 << 47, u64::MAX - 4095, u64::MAX] {
        let fault = Outcome::Ignored("the message fails: the destination is not memory of the peer");
        let rule = Rule::new(format!("a destination at address {address:#x}"), fault, move |scene| {
            let id = scene.sends(LONG, false);
            let head = Head { kind: FrameKind::Pull, flags: Flags::ID, tag: 7, id, ..Head::default() };
            scene.frame(head, &request(0, 0, address));
            scene.turns(20);
        });
        rules.push(rule.of(FrameKind::Pull).within(BOUND));
    }
    rules
}

/// The peer requests help with a long access to the victim's region.
fn assisted() -> Vec<Rule> {
    let mut rules = Vec::new();
    let payload = |place: u64, writes: u32, generation: u64| {
        let mut bytes = (LEN as u64).to_le_bytes().to_vec();
        bytes.extend(place.to_le_bytes());
        bytes.extend(0_u32.to_le_bytes());
        bytes.extend(writes.to_le_bytes());
        bytes.extend(generation.to_le_bytes());
        bytes
    };
    let head = |scene: &Scene<'_>| {
        let flags = Flags::DATA | Flags::ID;
        let (data, tag) = (scene.region.key, scene.region.address);
        Head { kind: FrameKind::Assist, flags, data, tag, id: 1, ..Head::default() }
    };
    let without = Rule::new("without a grant", Outcome::Ends("a request for help without a grant"), move |scene| {
        let head = head(scene);
        scene.frame(head, &payload(4096, 0, 1));
    });
    rules.push(without.of(FrameKind::Assist));
    let mut add = |what: &str, outcome, change: fn(&mut Head), place: u64, writes: u32, wrong: u64| {
        let rule = Rule::new(what, outcome, move |scene| {
            let generation = grants(scene);
            let mut head = head(scene);
            change(&mut head);
            scene.frame(head, &payload(place, writes, generation ^ wrong));
            scene.turns(5);
            // The claims of the access with this number.
            overwrite(scene, "own long access: next chunk", 1 << 32);
            scene.turns(5);
        });
        rules.push(rule.of(FrameKind::Assist));
    };
    let malformed = Outcome::Ends("a malformed request for help");
    add("an unknown direction", malformed, |_| (), 4096, 2, 0);
    add("the largest direction", malformed, |_| (), 4096, u32::MAX, 0);
    let alone = Outcome::Ignored("the victim does not help");
    add("an unknown key", alone, |head| head.data ^= 1 << 50, 4096, 0, 0);
    add("another generation", alone, |_| (), 4096, 0, 1);
    add("beyond the region", alone, |head| head.tag += 1, 4096, 0, 0);
    add("far beyond the region", alone, |head| head.tag = u64::MAX, 4096, 0, 0);
    let fails = Outcome::Ignored("the access fails: the place is not memory of the peer");
    add("a place without memory, for a read", fails, |_| (), 4096, 0, 0);
    add("a place without memory, for a write", fails, |_| (), u64::MAX - 4095, 1, 0);
    rules
}

/// Gets a grant of the victim's region. Returns its generation.
fn grants(scene: &mut Scene<'_>) -> u64 {
    let flags = Flags::DATA | Flags::ID;
    scene.frame(Head { kind: FrameKind::Resolve, flags, data: scene.region.key, id: 1, ..Head::default() }, &[]);
    // The link handles the answer itself, so it is read from the state of the region.
    scene.turns(5);
    let key = scene.region.key;
    let region = scene.victim.engine(|engine| engine.core.local.find(key, 0)).expect("the region");
    region.generation()
}

pub(super) fn rules() -> Vec<Rule> {
    let mut rules = pulled();
    rules.extend(pushed());
    rules.extend(assisted());
    rules
}

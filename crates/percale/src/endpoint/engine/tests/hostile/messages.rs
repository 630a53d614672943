//! Rules about messages: offers, pulls, data, acknowledgements, and messages of groups.

use super::*;
use crate::wire::head::{ABORT, Counts, GONE, Offer};
use crate::wire::join::JOIN;

/// The length of a message that is offered over both transports.
const LONG: usize = 1 << 20;
/// The memory of the victim for such a message.
const LONG_BOUND: usize = LONG + ONE_FRAME;

const ID: Flags = Flags::ID;
const DATA: Flags = Flags::DATA;
const DATA_ID: Flags = DATA.union(ID);

const fn head(kind: FrameKind, flags: Flags, id: u32) -> Head {
    Head { kind, flags, len: 0, tag: 0, data: 0, id }
}

/// The ways in which the fields of an offer do not fit together.
pub(super) fn invalid_offers(len: u64) -> Vec<(&'static str, &'static str, Offer)> {
    let offer = Offer { len: len.into(), pieces: 1.into(), ..Offer::default() };
    let location = "an offer with an invalid location";
    vec![
        ("5 pieces", "too many pieces", Offer { pieces: 5.into(), ..offer }),
        ("2^32 - 1 pieces", "too many pieces", Offer { pieces: u32::MAX.into(), ..offer }),
        ("an address of no piece", location, Offer { pieces: 0.into(), address: 4096.into(), ..offer }),
        ("an address of 2 pieces", location, Offer { pieces: 2.into(), address: 4096.into(), ..offer }),
        ("an arena of no piece", location, Offer { pieces: 0.into(), arena: 7.into(), ..offer }),
        ("an arena of 4 pieces", location, Offer { pieces: 4.into(), arena: 7.into(), ..offer }),
        ("an offset without an arena", location, Offer { offset: 64.into(), ..offer }),
    ]
}

fn offers() -> Vec<Rule> {
    let mut rules = Vec::new();
    for (kind, flags) in
        [(FrameKind::MessageOffer, ID), (FrameKind::TaggedOffer, ID), (FrameKind::CollectiveOffer, DATA_ID)]
    {
        let head = Head { data: u64::from(flags.contains(DATA)), ..head(kind, flags, 3) };
        for (what, expected, offer) in invalid_offers(LONG as u64) {
            rules.push(Rule::frame(what, head, Outcome::Ends(expected), move |_| offer.as_bytes().to_vec()));
        }
        for len in [1 << 63, u64::MAX] {
            let offer = Offer { len: len.into(), ..Offer::default() };
            let ends = Outcome::Ends("an offer of more bytes than a message may have");
            let what = format!("{len} bytes");
            rules.push(Rule::frame(&what, head, ends, move |_| offer.as_bytes().to_vec()));
        }
        // A receive gets at most as many bytes as it has room for.
        let offer = Offer { len: (u64::MAX >> 1).into(), ..Offer::default() };
        let ignored = Outcome::Ignored("the length is that of the longest message; nothing is allocated by it");
        rules.push(Rule::frame("the longest length", head, ignored, move |_| offer.as_bytes().to_vec()));
    }
    let offered =
        Rule::new("the longest length, for a short receive", Outcome::Ignored("the rest is truncated"), |scene| {
            scene.expects(9, 64);
            let offer = Offer { len: (u64::MAX >> 1).into(), ..Offer::default() };
            scene.frame(Head { tag: 9, ..head(FrameKind::TaggedOffer, ID, 3) }, offer.as_bytes());
            let (pull, payload) = scene.receive(FrameKind::Pull);
            let at = if scene.transport == "tcp" { 0 } else { 8 };
            let wanted = u64::from_le_bytes(payload[at..at + 8].try_into().unwrap());
            assert_eq!((pull.id, wanted), (3, 64));
        });
    rules.push(offered.of(FrameKind::TaggedOffer));
    rules
}

/// A pull of the victim's message, in the format of the transport.
#[derive(Clone, Copy)]
struct PullFields {
    slot: u8,
    puller_copies: u8,
    pieces: u8,
    reserved: u8,
    chunk: u32,
    wanted: u64,
    address: u64,
    arena: u32,
    reserved2: u32,
    offset: u64,
}

const PULL: PullFields = PullFields {
    slot: 0,
    puller_copies: 0,
    pieces: 0,
    reserved: 0,
    chunk: 128 << 10,
    wanted: LONG as u64,
    address: 0,
    arena: 0,
    reserved2: 0,
    offset: 0,
};

impl PullFields {
    fn send(&self, scene: &mut Scene<'_>, id: u32, token: u32) {
        let mut bytes = vec![self.slot, self.puller_copies, self.pieces, self.reserved];
        bytes.extend(self.chunk.to_le_bytes());
        bytes.extend(self.wanted.to_le_bytes());
        let (tag, bytes) = if scene.transport == "tcp" {
            (u64::from(token) << 32, bytes[8..].to_vec())
        } else {
            bytes.extend(self.address.to_le_bytes());
            bytes.extend(self.arena.to_le_bytes());
            bytes.extend(self.reserved2.to_le_bytes());
            bytes.extend(self.offset.to_le_bytes());
            (u64::from(token), bytes)
        };
        scene.frame(Head { tag, ..head(FrameKind::Pull, ID, id) }, &bytes);
    }
}

fn pulls(transport: &'static str) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut add = |what: &str, outcome, fields: PullFields| {
        let rule = Rule::new(what, outcome, move |scene| {
            let id = scene.sends(LONG, false);
            fields.send(scene, id, 7);
        });
        rules.push(rule.of(FrameKind::Pull).within(LONG_BOUND));
    };
    if transport == "tcp" {
        add(
            "more bytes than were offered",
            Outcome::Ends("which is shorter"),
            PullFields { wanted: PULL.wanted + 1, ..PULL },
        );
        add("2^64 - 1 bytes", Outcome::Ends("which is shorter"), PullFields { wanted: u64::MAX, ..PULL });
    } else {
        let malformed = Outcome::Ends("a malformed pull");
        let more = Outcome::Ends("a pull of more bytes than were offered");
        add("more bytes than were offered", more, PullFields { wanted: PULL.wanted + 1, ..PULL });
        add("2^64 - 1 bytes", more, PullFields { wanted: u64::MAX, ..PULL });
        add("no bytes in a slot", malformed, PullFields { wanted: 0, ..PULL });
        add("bytes without a slot", Outcome::Ends("a pull without a slot"), PullFields { slot: 255, ..PULL });
        for slot in [8, 9, 128, 254] {
            add(&format!("slot {slot}"), Outcome::Ends("invalid slot"), PullFields { slot, ..PULL });
        }
        for chunk in [0, 1, 4095, (128 << 10) + 1, u32::MAX] {
            add(&format!("chunks of {chunk} bytes"), malformed, PullFields { chunk, ..PULL });
        }
        add("an unknown way of copying", malformed, PullFields { puller_copies: 2, ..PULL });
        add("a reserved byte", malformed, PullFields { reserved: 1, ..PULL });
        add("reserved bytes", malformed, PullFields { reserved2: 1, ..PULL });
        add("5 pieces", malformed, PullFields { pieces: 5, ..PULL });
        add("an address of no piece", malformed, PullFields { address: 4096, ..PULL });
        add("an address of 2 pieces", malformed, PullFields { pieces: 2, address: 4096, ..PULL });
        add("an arena of no piece", malformed, PullFields { arena: 9, ..PULL });
        add("an offset without an arena", malformed, PullFields { pieces: 1, offset: 1, ..PULL });
        let other = Outcome::Ignored("an arena that was taken back meanwhile has an unknown number");
        add("an unknown arena", other, PullFields { pieces: 1, arena: u32::MAX, ..PULL });
        let twice = Rule::new("a slot that is in use", malformed, |scene| {
            let first = scene.sends(LONG, false);
            // The destination is not accessible, so this pull stays in progress.
            PullFields { puller_copies: 1, ..PULL }.send(scene, first, 7);
            scene.turns(5);
            let (victim, peer) = (scene.victim, scene.to_hostile);
            let second = memory::counted(|| victim.endpoint.tagged_send(peer, 6, vec![1; LONG]).start()).unwrap();
            scene.keep(second);
            PullFields { puller_copies: 1, ..PULL }.send(scene, first ^ 1, 8);
            PullFields { puller_copies: 1, ..PULL }.send(scene, first + 1, 8);
        });
        rules.push(twice.of(FrameKind::Pull).within(2 * LONG_BOUND));
    }
    let token = Rule::new("a token with low bits", Outcome::Ends("a malformed pull"), |scene| {
        let id = scene.sends(LONG, false);
        scene.frame(Head { tag: 7 << 32 | 1, ..head(FrameKind::Pull, ID, id) }, &(LONG as u64).to_le_bytes());
    });
    if transport == "tcp" {
        rules.push(token.of(FrameKind::Pull).within(LONG_BOUND));
    }
    let second = Rule::new("a second pull of a message", Outcome::Ends("operation without an offer"), |scene| {
        let id = scene.sends(LONG, false);
        let fields = PullFields { puller_copies: 1, ..PULL };
        fields.send(scene, id, 7);
        PullFields { slot: 1, ..fields }.send(scene, id, 8);
    });
    rules.push(second.of(FrameKind::Pull).within(LONG_BOUND));
    let eager = Rule::new("a message that was not offered", Outcome::Ends("operation without an offer"), |scene| {
        let id = scene.sends(8, true);
        PULL.send(scene, id, 7);
    });
    rules.push(eager.of(FrameKind::Pull));
    for (what, id) in [("a message", 77), ("an access", 77 | 1 << 31), ("bytes of a region", 77 | 1 << 30)] {
        let late = Outcome::Ignored("the number may be that of an operation that has ended");
        let rule = Rule::new(format!("the number of {what} that does not exist"), late, move |scene| {
            PULL.send(scene, id, 7);
            scene.turns(5);
        });
        rules.push(rule.of(FrameKind::Pull));
    }
    rules
}

fn answers() -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut add = |what: &str, kind, outcome, len: usize, delivered: bool, frames: &'static [Head]| {
        let rule = Rule::new(what, outcome, move |scene| {
            let id = scene.sends(len, delivered);
            for frame in frames {
                scene.frame(Head { id, ..*frame }, &[]);
            }
        });
        rules.push(rule.of(kind).within(LONG_BOUND));
    };
    const ACK: Head = head(FrameKind::Ack, ID, 0);
    const FAILED: Head = Head { tag: 5, ..ACK };
    const PULLED: Head = head(FrameKind::Pulled, ID, 0);
    let unrequested = Outcome::Ends("acknowledgement that was not requested");
    add("not requested", FrameKind::Ack, unrequested, LONG, false, &[ACK]);
    add("a failure, not requested", FrameKind::Ack, unrequested, LONG, false, &[FAILED]);
    add("a second one", FrameKind::Ack, unrequested, LONG, true, &[ACK, ACK]);
    let not_offered = Outcome::Ends("rejection of a payload that was not offered");
    add("a message that was not offered", FrameKind::Pulled, not_offered, 8, true, &[PULLED]);
    add("a second one", FrameKind::Pulled, not_offered, LONG, true, &[PULLED, PULLED]);
    let pulled = Rule::new("a message that is being pulled", Outcome::Ends("pull of zero bytes"), |scene| {
        let id = scene.sends(LONG, false);
        PullFields { puller_copies: 1, ..PULL }.send(scene, id, 7);
        scene.frame(Head { id, ..PULLED }, &[]);
    });
    rules.push(pulled.of(FrameKind::Pulled).within(LONG_BOUND));
    for kind in [FrameKind::Ack, FrameKind::Pulled] {
        let late = Outcome::Ignored("the number may be that of an operation that has ended");
        rules.push(Rule::frame("an unknown number", head(kind, ID, 0x1234_5678), late, |_| Vec::new()));
    }
    rules
}

/// A pull of the victim: it receives a long message of the hostile peer. Returns the token of the pull.
pub(super) fn pulls_from_peer(scene: &mut Scene<'_>, offer: &Offer) -> u32 {
    scene.expects(9, LONG);
    scene.frame(Head { tag: 9, ..head(FrameKind::TaggedOffer, ID, 3) }, offer.as_bytes());
    let (pull, _) = scene.receive(FrameKind::Pull);
    if scene.transport == "tcp" { (pull.tag >> 32) as u32 } else { pull.tag as u32 }
}

fn data(transport: &'static str) -> Vec<Rule> {
    let mut rules = Vec::new();
    let unknown = if transport == "tcp" { "data for unknown pull" } else { "unrequested data" };
    rules.push(Rule::frame("no pull", head(FrameKind::Data, ID, 5), Outcome::Ends(unknown), |_| vec![1; 8]));
    let mut add = |what: &str, outcome, frames: &'static [(Head, usize)]| {
        let rule = Rule::new(what, outcome, move |scene| {
            let id = pulls_from_peer(scene, &Offer { len: (LONG as u64).into(), ..Offer::default() });
            if scene.transport == "shm" {
                // The state by which the sender announces frames: that of the pusher in the first slot.
                scene.shm(|link| {
                    let words = link.shared_words();
                    let state = words.iter().find(|word| word.name == "other pull: pusher's state").unwrap();
                    link.overwrite(state, 4);
                });
            }
            for (frame, len) in frames {
                scene.frame(Head { id, ..*frame }, &vec![1; *len]);
            }
        });
        rules.push(rule.of(FrameKind::Data).within(LONG_BOUND));
    };
    const FRAME: Head = head(FrameKind::Data, ID, 0);
    let offset = if transport == "tcp" { "bytes of data at offset" } else { "data at a wrong offset" };
    let ends = Outcome::Ends(offset);
    add("at offset 1", ends, &[(Head { tag: 1, ..FRAME }, 8)]);
    add("at offset 2^63", ends, &[(Head { tag: 1 << 63, ..FRAME }, 8)]);
    add("at the mark of the end, with bytes", ends, &[(Head { tag: GONE, ..FRAME }, 8)]);
    add("the same bytes twice", ends, &[(FRAME, 100), (FRAME, 100)]);
    add("a gap", ends, &[(FRAME, 100), (Head { tag: 200, ..FRAME }, 100)]);
    add("no bytes", ends, &[(FRAME, 0)]);
    if transport == "tcp" {
        const ERROR: Head = head(FrameKind::Data, DATA_ID, 0);
        let unknown = Outcome::Ends("unknown error code in a reply");
        add("an unknown error", unknown, &[(Head { tag: GONE, data: 99, ..ERROR }, 0)]);
        add("the largest error", unknown, &[(Head { tag: GONE, data: u64::MAX, ..ERROR }, 0)]);
        add("bytes with an error", Outcome::Ends("data with an error code"), &[(Head { data: 1, ..ERROR }, 8)]);
        let more = Rule::new("more bytes than were requested", Outcome::Ends("bytes of data at offset"), |scene| {
            scene.expects(9, 600);
            let offer = Offer { len: 600.into(), ..Offer::default() };
            scene.frame(Head { tag: 9, ..head(FrameKind::TaggedOffer, ID, 3) }, offer.as_bytes());
            let (pull, _) = scene.receive(FrameKind::Pull);
            scene.frame(Head { id: (pull.tag >> 32) as u32, ..FRAME }, &[1; 601]);
        });
        rules.push(more.of(FrameKind::Data));
    }
    let ended = Rule::new("data after the end", Outcome::Ends(unknown), move |scene| {
        let id = pulls_from_peer(scene, &Offer { len: (LONG as u64).into(), ..Offer::default() });
        if scene.transport == "shm" {
            scene.shm(|link| {
                let words = link.shared_words();
                let state = words.iter().find(|word| word.name == "other pull: pusher's state").unwrap();
                link.overwrite(state, 4);
            });
        }
        scene.frame(Head { tag: GONE, id, ..FRAME }, &[]);
        scene.turns(5);
        scene.frame(Head { id, ..FRAME }, &[1; 8]);
    });
    rules.push(ended.of(FrameKind::Data).within(LONG_BOUND));
    rules
}

fn groups() -> Vec<Rule> {
    let message = head(FrameKind::Collective, DATA, 0);
    let join = Outcome::Ends("invalid message about joining a group");
    let number = Outcome::Ends("a message of a group with an invalid number");
    let nothing = |_: &Scene<'_>| Vec::new();
    let offer = Offer { len: (LONG as u64).into(), ..Offer::default() };
    let offered = head(FrameKind::CollectiveOffer, DATA_ID, 3);
    vec![
        Rule::frame("an unknown message about joining", Head { data: 7 << 61, ..message }, join, nothing),
        Rule::frame("the last number below the aborts", Head { data: ABORT - 1, ..message }, join, nothing),
        Rule::frame("a message about joining, with bytes", Head { data: JOIN, ..message }, number, |_| vec![1; 8]),
        Rule::frame("an abort with bytes", Head { data: ABORT, ..message }, number, |_| vec![1; 8]),
        Rule::frame("the number of a join", Head { data: JOIN, ..offered }, number, move |_| offer.as_bytes().to_vec()),
        Rule::frame("the number of an abort", Head { data: u64::MAX, ..offered }, number, move |_| {
            offer.as_bytes().to_vec()
        }),
        Rule::frame(
            "an abort of an unknown group",
            Head { data: ABORT | 5, tag: 99, ..message },
            Outcome::Ignored("the group may have been left"),
            nothing,
        ),
        Rule::frame(
            "a message of an unknown group",
            Head { data: 5, tag: 99, ..message },
            Outcome::Ignored("the group may be joined later; the message counts as unexpected"),
            |_| vec![1; 64],
        ),
    ]
}

pub(super) fn rules(transport: &'static str) -> Vec<Rule> {
    let mut rules = offers();
    rules.extend(pulls(transport));
    rules.extend(answers());
    rules.extend(data(transport));
    rules.extend(groups());
    let nothing = |_: &Scene<'_>| Vec::new();
    for id in [2, 3, u32::MAX] {
        let ends = Outcome::Ends("invalid request to offer messages");
        rules.push(Rule::frame(&format!("value {id}"), head(FrameKind::Offers, ID, id), ends, nothing));
    }
    for id in [Counts::REGION.bits(), 8, 1 << 31, u32::MAX] {
        let ends = Outcome::Ends("unknown counters in a request for reports");
        rules.push(Rule::frame(&format!("value {id:#x}"), head(FrameKind::Counts, ID, id), ends, nothing));
    }
    let control = Outcome::Ends("control frame to an endpoint that accepts none");
    for id in 0..5 {
        let what = format!("number {id}, to an endpoint without a role");
        rules.push(Rule::frame(&what, head(FrameKind::Control, ID, id), control, nothing));
    }
    let flags = DATA_ID.union(Flags::ACK).union(Flags::INVALIDATE);
    for kind in [FrameKind::Message, FrameKind::Tagged, FrameKind::MessageOffer, FrameKind::TaggedOffer] {
        let offer = Offer { len: (LONG as u64).into(), ..Offer::default() };
        let offered = matches!(kind, FrameKind::MessageOffer | FrameKind::TaggedOffer);
        let head = Head { data: 0xdead_beef, ..head(kind, flags, 3) };
        let answers = Outcome::Answers(FrameKind::Ack, ErrorCode::KeyRejected.errno() as u64);
        rules.push(Rule::frame("invalidates an unknown key", head, answers, move |_| {
            if offered { offer.as_bytes().to_vec() } else { vec![1; 8] }
        }));
    }
    rules.push(
        Rule::new("a frame after the closing message", Outcome::Closed, |scene| {
            scene.frame(head(FrameKind::Bye, Flags::empty(), 0), &[]);
            scene.frame(head(FrameKind::Offers, ID, 9), &[]);
        })
        .of(FrameKind::Bye),
    );
    rules
}

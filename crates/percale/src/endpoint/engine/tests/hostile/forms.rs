//! Rules about the form of frames: heads, flags, lengths and unused fields.
//!
//! [`FRAMES`] describes every kind independently of the tables by which links check frames. From each valid frame, one
//! field at a time is changed to a value that the description does not allow.

use super::*;

/// The length of payloads of a kind.
#[derive(Clone, Copy)]
enum Length {
    Exactly(u32),
    /// At most this, over a stream; over shared memory the ring is the limit.
    AtMost(u32),
    Between(u32, u32),
    /// The first over a stream, the second over shared memory.
    Either(u32, u32),
}

/// Where frames of a kind are sent.
#[derive(Clone, Copy, PartialEq)]
enum Over {
    Both,
    Shm,
    /// Over byte streams.
    Streams,
}

/// The valid frames of a kind.
struct Frames {
    kind: FrameKind,
    over: Over,
    /// The valid combinations of flags over shared memory. One more is valid over a stream for `Data`.
    flags: &'static [u8],
    length: Length,
    /// Whether the tag has a meaning.
    tag: bool,
    /// Whether the data has a meaning without the flag.
    data: bool,
}

const D: u8 = 1;
const I: u8 = 2;
const A: u8 = 4;
const TELLS: u8 = 8;
const PART: u8 = 16;
const INVALIDATE: u8 = 32;
const FLAGS: [(&str, u8); 8] = [
    ("DATA", D),
    ("ID", I),
    ("ACK", A),
    ("TELLS", TELLS),
    ("PART", PART),
    ("INVALIDATE", INVALIDATE),
    ("bit 6", 64),
    ("bit 7", 128),
];

const EAGER: &[u8] = &[0, D, I | A, D | I | A, D | I | A | INVALIDATE];
const OFFERED: &[u8] = &[I, D | I, I | A, D | I | A, D | I | A | INVALIDATE];
const REQUEST: &[u8] = &[D | I, D | I | PART];
const WRITE: &[u8] = &[D | I, D | I | PART, D | I | TELLS];

const fn frames(kind: FrameKind, over: Over, flags: &'static [u8], length: Length, tag: bool) -> Frames {
    Frames { kind, over, flags, length, tag, data: false }
}

const FRAMES: [Frames; 31] = {
    use FrameKind as K;
    use Length::{AtMost, Between, Either, Exactly};
    use Over::{Both, Shm, Streams};
    [
        frames(K::Message, Both, EAGER, AtMost(512 << 10), true),
        frames(K::Tagged, Both, EAGER, AtMost(512 << 10), true),
        frames(K::MessageOffer, Both, OFFERED, Exactly(32), true),
        frames(K::TaggedOffer, Both, OFFERED, Exactly(32), true),
        frames(K::Pull, Both, &[I], Either(8, 40), true),
        frames(K::Data, Both, &[I], AtMost(256 << 10), true),
        frames(K::Pulled, Both, &[I], Exactly(0), false),
        frames(K::Ack, Both, &[I], Exactly(0), true),
        frames(K::Offers, Both, &[I], Exactly(0), false),
        frames(K::Bye, Both, &[0], Exactly(0), false),
        frames(K::Nothing, Both, &[0], Exactly(0), false),
        frames(K::Transport, Shm, &[0], Exactly(0), true),
        frames(K::Write, Both, WRITE, AtMost(512 << 10), true),
        frames(K::WriteOffer, Both, REQUEST, Exactly(32), true),
        frames(K::Read, Both, REQUEST, Exactly(16), true),
        frames(K::ReadData, Both, &[I, D | I], Between(0, (16 << 10) + 64), false),
        frames(K::ReadOffer, Both, &[I], Exactly(32), true),
        frames(K::Atomic, Both, REQUEST, Between(8, (16 << 10) + 64), true),
        frames(K::Done, Both, &[I, D | I], Exactly(0), true),
        frames(K::Wrote, Both, &[I, D | I], Exactly(16), true),
        frames(K::Resolve, Shm, &[D | I], Exactly(0), false),
        frames(K::Resolved, Shm, &[I], Exactly(48), false),
        frames(K::Assist, Shm, &[D | I], Exactly(32), true),
        frames(K::Counts, Both, &[I], Exactly(0), false),
        frames(K::Control, Both, &[I], Between(0, 296), true),
        frames(K::Collective, Both, &[D], AtMost(512 << 10), true),
        frames(K::CollectiveOffer, Both, &[D | I], Exactly(32), true),
        frames(K::QueuePair, Streams, &[I], Exactly(32), false),
        Frames { data: true, ..frames(K::Locate, Streams, &[I], Exactly(0), false) },
        frames(K::Located, Streams, &[I], Exactly(40), false),
        Frames { data: true, ..frames(K::Revoked, Streams, &[I], Exactly(0), true) },
    ]
};

/// A head with arbitrary numbers in place of the kind and the flags.
#[derive(Clone, Copy)]
struct RawHead {
    kind: u8,
    flags: u8,
    head: Head,
}

impl RawHead {
    fn of(head: Head) -> Self {
        Self { kind: head.kind as u8, flags: head.flags.bits(), head }
    }

    /// Sends the start of the frame.
    fn claim(self, scene: &mut Scene<'_>) {
        if scene.transport == "tcp" {
            let mut bytes = self.head.to_bytes();
            bytes.as_mut_bytes()[..2].copy_from_slice(&[self.kind, self.flags]);
            return scene.bytes(bytes.as_bytes());
        }
        // The receiver finds the words after the mark by the flags.
        let head = Head { flags: Flags::from_bits_retain(self.flags), ..self.head };
        let line = ForgedLine { kind: self.kind, flags: self.flags, ..ForgedLine::of(&head, &[]) };
        scene.lines(&line);
    }
}

impl Frames {
    fn is_sent_over(&self, transport: &str) -> bool {
        self.over == Over::Both || (transport == "shm") == (self.over == Over::Shm)
    }

    /// Returns the lengths of the shortest and the longest payload.
    fn lengths(&self, transport: &str) -> (u32, Option<u32>) {
        let stream = transport == "tcp";
        match self.length {
            Length::Exactly(len) => (len, Some(len)),
            Length::AtMost(len) => (0, stream.then_some(len)),
            Length::Between(least, most) => (least, Some(most)),
            Length::Either(first, second) => {
                (if stream { first } else { second }, Some(if stream { first } else { second }))
            }
        }
    }

    fn flags(&self, transport: &str) -> Vec<u8> {
        let mut flags = self.flags.to_vec();
        if self.kind == FrameKind::Data && transport == "tcp" {
            flags.push(D | I);
        }
        flags
    }

    /// Returns a valid head with these flags.
    fn head(&self, transport: &str, flags: u8) -> Head {
        let flags = Flags::from_bits_retain(flags);
        let id = if flags.contains(Flags::ID) { 1 } else { 0 };
        Head { kind: self.kind, flags, len: self.lengths(transport).0, tag: 0, data: 0, id }
    }

    /// Returns the rules for frames of this kind.
    fn rules(&self, transport: &'static str) -> Vec<Rule> {
        let mut rules = Vec::new();
        let (kind, valid) = (self.kind, self.flags(transport));
        let mut add = |what: String, raw: RawHead, expected| {
            let rule = Rule::new(what, Outcome::Ends(expected), move |scene| raw.claim(scene));
            rules.push(rule.of(kind));
        };
        let mut wrong = Vec::new();
        for base in &valid {
            for (name, bit) in FLAGS {
                let flags = base ^ bit;
                if valid.contains(&flags) || wrong.contains(&flags) {
                    continue;
                }
                wrong.push(flags);
                let change = if base & bit == 0 { "with" } else { "without" };
                let expected = match flags {
                    64.. if transport == "tcp" => "invalid frame header",
                    64.. => "a frame with unknown flags",
                    _ if flags & (A | I) == A && transport == "shm" => "acknowledgement request without a number",
                    _ => "flags that its kind does not have",
                };
                let head = self.head(transport, *base);
                add(format!("flags {base:#b} {change} {name}"), RawHead { flags, ..RawHead::of(head) }, expected);
            }
        }
        let head = self.head(transport, valid[0]);
        let (least, most) = self.lengths(transport);
        if let Some(shorter) = least.checked_sub(1) {
            add("payload too short".into(), RawHead::of(Head { len: shorter, ..head }), "too short for its kind");
            add("no payload".into(), RawHead::of(Head { len: 0, ..head }), "too short for its kind");
        }
        let long = "more payload bytes than its kind allows";
        let ring = "longer than its ring allows";
        if let Some(most) = most {
            let in_ring = |len: u32| if transport == "shm" && len > 2048 { ring } else { long };
            add("payload one byte too long".into(), RawHead::of(Head { len: most + 1, ..head }), in_ring(most + 1));
            add("payload of 4 GiB".into(), RawHead::of(Head { len: u32::MAX, ..head }), in_ring(u32::MAX));
        } else {
            add("payload longer than the ring".into(), RawHead::of(Head { len: 2049, ..head }), ring);
            add("payload of 4 GiB".into(), RawHead::of(Head { len: u32::MAX, ..head }), ring);
        }
        let unused = "a value in an unused field";
        if !self.tag {
            add("a tag".into(), RawHead::of(Head { tag: 1, ..head }), unused);
            add("a tag in the highest bit".into(), RawHead::of(Head { tag: 1 << 63, ..head }), unused);
        }
        // In a ring, these fields exist only with their flags.
        if transport == "tcp" {
            if !self.data && valid[0] & D == 0 {
                add("data without its flag".into(), RawHead::of(Head { data: 1, ..head }), unused);
            }
            if valid[0] & I == 0 {
                add("a number without its flag".into(), RawHead::of(Head { id: 1, ..head }), unused);
            }
        }
        rules
    }
}

pub(super) fn rules(transport: &'static str) -> Vec<Rule> {
    let mut rules = Vec::new();
    for frames in &FRAMES {
        if frames.is_sent_over(transport) {
            rules.extend(frames.rules(transport));
        } else {
            let raw = RawHead::of(frames.head(transport, frames.flags[0]));
            let what = "not sent over this transport";
            let ends = Outcome::Ends("invalid frame kind for this transport");
            rules.push(Rule::new(what, ends, move |scene| raw.claim(scene)).of(frames.kind));
        }
    }
    for kind in [0, 32, 64, 127, 128, 255_u8] {
        let raw = RawHead { kind, ..RawHead::of(Head::default()) };
        let expected = if transport == "tcp" { "invalid frame header" } else { "unknown frame kind" };
        let what = format!("a frame of the unknown kind {kind}");
        rules.push(Rule::new(what, Outcome::Ends(expected), move |scene| raw.claim(scene)));
    }
    if transport == "tcp" {
        // The kind and the flags are the first two bytes; then come two reserved ones, and the check word after the
        // length and the number.
        for at in [2, 3, 12, 13, 14, 15] {
            let what = format!("byte {at} of a head has a wrong value");
            rules.push(Rule::new(what, Outcome::Ends("invalid frame header"), move |scene| {
                let mut bytes = Head::default().to_bytes();
                bytes.as_mut_bytes()[at] ^= 1;
                scene.bytes(bytes.as_bytes());
            }));
        }
        // Frames that only links over verbs handle.
        for kind in [FrameKind::QueuePair, FrameKind::Locate, FrameKind::Located, FrameKind::Revoked] {
            let frames = FRAMES.iter().find(|frames| frames.kind == kind).expect("all kinds are listed");
            let (head, len) = (frames.head("tcp", frames.flags[0]), frames.lengths("tcp").0);
            let ends = Outcome::Ends("a frame that is not a remote access");
            rules.push(Rule::frame("only for RDMA", head, ends, move |_| vec![0; len as usize]));
        }
        for (what, len) in [("ends in a head", 20), ("ends in a payload", 40), ("ends in a long payload", 5000)] {
            let what = format!("the stream {what}");
            rules.push(Rule::new(what, Outcome::Lost, move |scene| {
                let head = Head { kind: FrameKind::Tagged, len: 200_000, ..Head::default() };
                let bytes = [head.to_bytes().as_bytes(), &[0; 5000]].concat();
                scene.bytes(&bytes[..len]);
                scene.turns(20);
                scene.link(|link, _| match link {
                    AnyLink::Tcp(link) => rustix::net::shutdown(link.as_fd(), rustix::net::Shutdown::Both).unwrap(),
                    other => panic!("{other:?}"),
                });
            }));
        }
    }
    rules
}

/// Each valid combination of flags is accepted by links, so each rule above breaks only the stated one.
#[test]
fn the_frames_that_rules_change_have_a_valid_form() {
    use crate::wire::form::{RING, STREAM};
    let mut kinds = Vec::new();
    for frames in &FRAMES {
        kinds.push(frames.kind);
        for (transport, forms) in [("tcp", &STREAM), ("shm", &RING)] {
            if !frames.is_sent_over(transport) {
                continue;
            }
            for flags in frames.flags(transport) {
                let head = frames.head(transport, flags);
                assert_eq!(head.check(forms), Ok(()), "{transport}: {head:?}");
            }
        }
    }
    let all: Vec<FrameKind> = (0..=u8::MAX).filter_map(FrameKind::from_u8).collect();
    assert_eq!(kinds, all, "every kind is described");
}

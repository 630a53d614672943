//! Rules about grants over shared memory: answers about keys, and the key page. The victim accesses memory of the peer.

use super::*;

const ENTRIES: u32 = 8192;

/// The fields of an answer about a key.
#[derive(Clone, Copy)]
struct Answer {
    status: u8,
    rights: u8,
    notify: u8,
    reserved: u8,
    entry: u32,
    generation: u64,
    base: u64,
    len: u64,
    place: u64,
    arena: u32,
    page: u32,
}

/// A grant of memory that the kernel copies.
const GRANT: Answer = Answer {
    status: 2,
    rights: 3,
    notify: 0,
    reserved: 0,
    entry: 0,
    generation: 1,
    base: 0,
    len: 4096,
    place: 4096,
    arena: 0,
    page: 77,
};

/// An answer without a grant.
const NONE: Answer = Answer {
    status: 4,
    rights: 0,
    notify: 0,
    reserved: 0,
    entry: 0,
    generation: 0,
    base: 0,
    len: 0,
    place: 0,
    arena: 0,
    page: 0,
};

impl Answer {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.status, self.rights, self.notify, self.reserved];
        bytes.extend(self.entry.to_le_bytes());
        for word in [self.generation, self.base, self.len, self.place] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.arena.to_le_bytes());
        bytes.extend(self.page.to_le_bytes());
        bytes
    }
}

/// Lets the victim ask about a key of the peer, which does not answer.
fn asks(scene: &mut Scene<'_>) {
    let memory = scene.hostile.domain.register(vec![1; 4096], Access::REMOTE_READ).unwrap();
    let (victim, peer, remote) = (scene.victim, scene.to_hostile, memory.remote());
    let read = memory::counted(|| victim.endpoint.read(peer, remote.at(0..8), vec![0; 8]).start()).unwrap();
    scene.keep(read);
    scene.turns(3);
}

fn answers() -> Vec<Rule> {
    let mut rules = Vec::new();
    let head = |id| Head { kind: FrameKind::Resolved, flags: Flags::ID, id, ..Head::default() };
    let mut add = |what: &str, outcome, answer: Answer| {
        let rule = Rule::new(what, outcome, move |scene| {
            asks(scene);
            scene.frame(head(1), &answer.bytes());
        });
        rules.push(rule.of(FrameKind::Resolved));
    };
    let method = Outcome::Ends("unknown access method of a key");
    let malformed = Outcome::Ends("a malformed answer about a key");
    let grant = Outcome::Ends("invalid grant");
    let region = Outcome::Ends("invalid region");
    for status in [0, 5, 128, 255] {
        add(&format!("method {status}"), method, Answer { status, ..GRANT });
    }
    for status in [1, 2] {
        let good = Answer { status, ..GRANT };
        let of = |what: &str| format!("{what}, for method {status}");
        for rights in [0, 16, 128, 255] {
            add(&of(&format!("rights {rights}")), malformed, Answer { rights, ..good });
        }
        for notify in [2, 255] {
            add(&of(&format!("notices {notify}")), malformed, Answer { notify, ..good });
        }
        add(&of("a reserved byte"), malformed, Answer { reserved: 1, ..good });
        add(&of("key page 0"), malformed, Answer { page: 0, ..good });
        add(&of("generation 0"), grant, Answer { generation: 0, ..good });
        for entry in [ENTRIES, ENTRIES + 1, u32::MAX] {
            add(&of(&format!("entry {entry}")), grant, Answer { entry, ..good });
        }
        add(&of("no bytes"), region, Answer { len: 0, ..good });
        add(&of("a range that wraps"), region, Answer { base: u64::MAX - 4094, ..good });
        add(&of("2^64 - 1 bytes from address 2"), region, Answer { base: 2, len: u64::MAX, ..good });
        let page = Outcome::Ignored("the key page may have been taken back: the peer executes accesses");
        add(&of("an unknown key page"), page, Answer { page: 0xffff_0000, ..good });
    }
    for status in [3, 4] {
        let bare = Answer { status, ..NONE };
        for (what, answer) in [
            ("rights", Answer { rights: 1, ..bare }),
            ("notices", Answer { notify: 1, ..bare }),
            ("a reserved byte", Answer { reserved: 1, ..bare }),
            ("an entry", Answer { entry: 1, ..bare }),
            ("a generation", Answer { generation: 1, ..bare }),
            ("a base", Answer { base: 1, ..bare }),
            ("a length", Answer { len: 1, ..bare }),
            ("a place", Answer { place: 1, ..bare }),
            ("an arena", Answer { arena: 1, ..bare }),
            ("a key page", Answer { page: 1, ..bare }),
        ] {
            add(&format!("{what}, without a grant (method {status})"), malformed, answer);
        }
    }
    let unexpected = Outcome::Ends("unexpected reply about a key");
    rules.push(Rule::frame("without a request", head(1), unexpected, |_| NONE.bytes()));
    for (what, id) in [("number 0", 0), ("number 2", 2), ("the largest number", u32::MAX)] {
        let rule = Rule::new(format!("{what}, which was not requested"), unexpected, move |scene| {
            asks(scene);
            scene.frame(head(id), &NONE.bytes());
        });
        rules.push(rule.of(FrameKind::Resolved));
    }
    let twice = Rule::new("a second answer", unexpected, move |scene| {
        asks(scene);
        scene.frame(head(1), &NONE.bytes());
        scene.frame(head(1), &NONE.bytes());
    });
    rules.push(twice.of(FrameKind::Resolved));
    rules
}

/// The peer changes the key page after the victim has got a grant.
fn page() -> Vec<Rule> {
    let mut rules = Vec::new();
    for generation in [1_u64, 77, 1 << 63, u64::MAX] {
        let what = format!("key page: generation {generation:#x} after the victim has read it [grants]");
        let ignored = Outcome::Ignored(
            "the grant is no longer valid: the access waits for another one, as for a peer that does not answer",
        );
        rules.push(Rule::new(what, ignored, move |scene| {
            let memory = scene.hostile.domain.register(vec![5; 4096], Access::REMOTE_READ).unwrap();
            let (victim, peer, remote) = (scene.victim, scene.to_hostile, memory.remote());
            let read = |scene: &Scene<'_>| {
                let read = victim.endpoint.read(peer, remote.at(0..8), vec![0; 8]);
                let mut read = memory::counted(|| read.start()).unwrap();
                for _ in 0..50 {
                    scene.turn();
                    scene.hostile.endpoint.progress();
                }
                if read.is_ready() { Some(read.wait().unwrap().into_vec()) } else { None }
            };
            // The grant arrives after the first access.
            (0..5).for_each(|_| assert_eq!(read(scene), Some(vec![5; 8])));
            assert!(scene.shm(|link| link.forge_key_entry(0, generation)), "there is a key page");
            (0..5).for_each(|_| drop(read(scene)));
        }));
    }
    rules
}

pub(super) fn rules() -> Vec<Rule> {
    let mut rules = answers();
    rules.extend(page());
    rules
}

//! Rules about the ring, the words of the pair's memory, and the doorbell.
//!
//! The victim reads some words several times. The rules that change a word after the victim has read it say so in their
//! names.

use super::*;

const ID: Flags = Flags::ID;

/// A line with a message.
fn message(len: u32, tag: u64) -> ForgedLine {
    ForgedLine::of(&Head { kind: FrameKind::Tagged, tag, len, ..Head::default() }, &[])
}

fn marks() -> Vec<Rule> {
    let mut rules = Vec::new();
    for lap in [1_u16, 2, 1 << 15, u16::MAX] {
        let ignored = Outcome::Ignored("a line with another lap has not been written yet");
        rules.push(Rule::new(format!("mark: the lap is {lap} too high"), ignored, move |scene| {
            scene.line(&ForgedLine { lap, ..message(8, 1) });
        }));
    }
    for len in [2049, 1 << 14, 1 << 31, u32::MAX] {
        for kind in [FrameKind::Message, FrameKind::Tagged, FrameKind::Write, FrameKind::ReadData] {
            let what = format!("mark: {len} bytes in the small ring");
            let rule = Rule::new(what, Outcome::Ends("a payload longer than its ring allows"), move |scene| {
                let flags = if kind == FrameKind::Write { Flags::DATA | ID } else { Flags::empty() };
                let flags = if kind == FrameKind::ReadData { ID } else { flags };
                scene.line(&ForgedLine::of(&Head { kind, flags, len, ..Head::default() }, &[]));
            });
            rules.push(rule.of(kind));
        }
    }
    let begins = |scene: &mut Scene<'_>| {
        // The first of three lines. The victim reads it, and waits for the others.
        scene.line(&message(104, 5));
        scene.turns(5);
    };
    let kind = Outcome::Ends("unknown frame kind");
    rules.push(Rule::new("mark: an unknown kind, after the victim has read the mark", kind, move |scene| {
        begins(scene);
        scene.shm(|link| link.forge_line(&ForgedLine { kind: 99, ..message(104, 5) }, 1));
    }));
    let long = Outcome::Ends("a payload longer than its ring allows");
    rules.push(Rule::new("mark: a longer payload, after the victim has read the mark", long, move |scene| {
        begins(scene);
        scene.shm(|link| link.forge_line(&message(u32::MAX, 5), 1));
    }));
    let flags = Outcome::Ends("flags that its kind does not have");
    rules.push(Rule::new("mark: other flags, after the victim has read the mark", flags, move |scene| {
        begins(scene);
        scene.shm(|link| link.forge_line(&ForgedLine { flags: Flags::PART.bits(), ..message(8, 5) }, 1));
    }));
    let taken = Outcome::Ignored("nothing of the first value was used: the frame is the one with the later mark");
    rules.push(Rule::new("mark: a shorter payload, after the victim has read the mark", taken, move |scene| {
        begins(scene);
        scene.expects(5, 104);
        scene.shm(|link| link.forge_line(&message(8, 5), 1));
    }));
    let gone = Outcome::Ignored("a line with another lap has not been written yet");
    rules.push(Rule::new("mark: another lap, after the victim has read the mark", gone, move |scene| {
        begins(scene);
        scene.shm(|link| link.forge_line(&ForgedLine { lap: 7, ..message(104, 5) }, 1));
    }));
    rules.push(Rule::new("mark: a line of a payload has another lap", gone, |scene| {
        scene.line(&message(104, 5));
        scene.line(&ForgedLine { lap: 1, ..message(104, 5) });
        scene.line(&message(104, 5));
    }));
    let other = Outcome::Ignored("the bytes of a payload may have any value; it is copied before it is used");
    rules.push(Rule::new("payload: changed after the victim has read it", other, |scene| {
        scene.expects(5, 8);
        let line = ForgedLine::of(&Head { kind: FrameKind::Tagged, tag: 5, len: 8, ..Head::default() }, &[1; 8]);
        scene.line(&line);
        scene.turns(5);
        scene.shm(|link| link.forge_line(&ForgedLine { body: [u64::MAX; 7], ..line }, 1));
    }));
    let transport = |tag| Head { kind: FrameKind::Transport, tag, ..Head::default() };
    for tag in [0, 2, u64::MAX] {
        let ends = Outcome::Ends("unknown transport frame");
        rules.push(Rule::frame(&format!("request {tag}"), transport(tag), ends, |_| Vec::new()));
    }
    let twice = Rule::new("a larger ring, twice", Outcome::Ends("unknown transport frame"), move |scene| {
        // This announces the larger ring, and the link continues in it.
        let long = vec![1; 4000];
        scene.frame(Head { kind: FrameKind::Tagged, tag: 99, ..Head::default() }, &long);
        scene.frame(transport(1), &[]);
    });
    rules.push(twice.of(FrameKind::Transport));
    for len in [(16 << 10) + 1, 1 << 20, u32::MAX] {
        let what = format!("mark: {len} bytes in the large ring");
        rules.push(Rule::new(what, Outcome::Ends("a payload longer than its ring allows"), move |scene| {
            scene.frame(Head { kind: FrameKind::Tagged, tag: 99, ..Head::default() }, &[1; 4000]);
            scene.line(&message(len, 5));
        }));
    }
    rules
}

/// The words of the control page, and what the victim does when it finds a wrong value.
fn words() -> Vec<Rule> {
    const OWNED: &str = "only the victim's peer reads this word";
    const HINT: &str = "the word only decides whether its reader fences, or is woken";
    const UNUSED: &str = "there is no transfer or access of this kind";
    const STOPPED: &str = "the peer states that it has stopped copying";
    let outcome = |name: &str| -> Outcome {
        match name {
            // The victim's credits: it reads them when its ring is full.
            "other small ring: consumed lines" => Outcome::Ends("the peer acknowledged data that was not sent"),
            "other small ring: consumed bytes" => Outcome::Ends("the peer acknowledged data that was not sent"),
            _ if name.contains("ring: consumed") => Outcome::Ignored(OWNED),
            _ if name.contains("ring: ") => Outcome::Ignored(HINT),
            _ if name.contains("accesses: ") => Outcome::Ignored(HINT),
            _ if name.contains("stopped") => Outcome::Ignored(STOPPED),
            _ => Outcome::Ignored(UNUSED),
        }
    };
    let names = [
        "small ring: consumed lines",
        "small ring: consumed bytes",
        "large ring: consumed lines",
        "large ring: consumed bytes",
        "ring: cold",
        "ring: barrier",
        "ring: unfenced",
        "ring: wants room",
        "pull: claimed chunks",
        "pull: puller's bytes",
        "pull: puller's state",
        "pull: pusher's bytes",
        "pull: pusher's state",
        "accesses: sequence",
        "accesses: manner",
        "accesses: may omit fences",
        "long access: next chunk",
        "long access: finished chunks",
        "long access: failure",
        "stopped mark",
    ];
    let mut rules = Vec::new();
    for name in ["own", "other"].iter().flat_map(|whose| names.map(|name| format!("{whose} {name}"))) {
        for value in [u64::MAX, 1 << 63 | 1 << 31, 77] {
            let (outcome, word) = (outcome(&name), name.clone());
            let rule = Rule::new(format!("word: {name} = {value:#x}"), outcome, move |scene| {
                scene.shm(|link| {
                    let words = link.shared_words();
                    assert_eq!(words.len(), 40, "there is a rule for each word");
                    let word = words.iter().find(|known| known.name == word).expect("a word of the control page");
                    link.overwrite(word, value);
                });
                exercise(scene);
            });
            rules.push(rule);
        }
    }
    rules
}

/// Lets the victim send more than its ring holds, and receive a message.
fn exercise(scene: &mut Scene<'_>) {
    let (victim, peer) = (scene.victim, scene.to_hostile);
    for number in 0..100 {
        // The ring is full after a while; the messages stay in the victim's queue.
        let sent = memory::counted(|| victim.endpoint.tagged_inject(peer, number, &[1; 40]));
        scene.turn();
        if sent.is_err() {
            break;
        }
    }
    scene.expects(5, 8);
    let head = Head { kind: FrameKind::Tagged, tag: 5, ..Head::default() };
    scene.frame(head, &[1; 8]);
    scene.turns(20);
}

fn doorbells() -> Vec<Rule> {
    let mut rules = Vec::new();
    let hint = Outcome::Ignored("every sleep ends, and then all rings are polled");
    for (what, offset) in [
        ("the mark of a sleeper", 0),
        ("the processor", 4),
        ("the summary", 64),
        ("the upper half of the summary", 68),
        ("the first bits", 128),
        ("the last bits", 636),
        ("an unused word", 4092),
    ] {
        for value in [1_u32, 3, u32::MAX] {
            rules.push(Rule::new(format!("doorbell: {what} = {value:#x}"), hint, move |scene| {
                scene.shm(|link| link.overwrite_doorbell(offset, value));
                exercise_sleep(scene);
            }));
        }
    }
    rules.push(Rule::new("doorbell: all words are set", hint, |scene| {
        scene.shm(|link| (0..4096).step_by(4).for_each(|offset| link.overwrite_doorbell(offset, u32::MAX)));
        exercise_sleep(scene);
    }));
    rules.push(Rule::new("doorbell: the event counter is full", hint, |scene| {
        scene.shm(|link| rustix::io::write(link.doorbell_event(), &(u64::MAX - 1).to_le_bytes()).unwrap());
        exercise_sleep(scene);
    }));
    rules.push(Rule::new("doorbell: the event descriptor blocks, and its counter is 0", hint, |scene| {
        scene.shm(|link| {
            let event = link.doorbell_event();
            rustix::fs::fcntl_setfl(event, rustix::fs::OFlags::RDWR).unwrap();
        });
        exercise_sleep(scene);
        scene.shm(|link| {
            let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NONBLOCK;
            rustix::fs::fcntl_setfl(link.doorbell_event(), flags).unwrap();
        });
    }));
    rules
}

/// Lets the victim sleep for a short time, and receive a message.
fn exercise_sleep(scene: &mut Scene<'_>) {
    for _ in 0..3 {
        let victim = scene.victim;
        memory::counted(|| {
            let armed = victim.engine(|engine| {
                let looked = engine.results();
                engine.arm(looked)
            });
            if let Some(armed) = armed {
                armed.sleep_on_doorbell(Duration::from_millis(1));
                victim.engine(|engine| engine.disarm(&armed));
            }
        });
        scene.turns(5);
    }
    scene.expects(5, 8);
    scene.frame(Head { kind: FrameKind::Tagged, tag: 5, ..Head::default() }, &[1; 8]);
    scene.turns(10);
}

/// Rules about the socket over which descriptors are passed. The victim reads it when a frame names an arena.
fn control_socket() -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut add = |what: &str, outcome, messages: &'static [&'static [u32]], descriptor: Descriptor| {
        rules.push(Rule::new(format!("control socket: {what}"), outcome, move |scene| {
            for words in messages {
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                let fd = descriptor.open();
                scene.shm(|link| send_with(link.control_socket(), &bytes, fd.as_ref()));
            }
            super::transfers::names_arena(scene, 9);
        }));
    };
    let malformed = Outcome::Ends("a malformed message about an arena");
    // The number of the arena, whether it is read-only, and its size.
    add("8 bytes", malformed, &[&[9, 0]], Descriptor::None);
    add("15 bytes and more", malformed, &[&[9, 0, 4096]], Descriptor::None);
    add("arena 0", malformed, &[&[0, 0, 4096, 0]], Descriptor::Sealed(4096));
    let sharing = Outcome::Ends("unknown sharing method of an arena");
    add("unknown sharing", sharing, &[&[9, 2, 4096, 0]], Descriptor::Sealed(4096));
    add("the largest sharing", sharing, &[&[9, u32::MAX, 4096, 0]], Descriptor::Sealed(4096));
    let twice = Outcome::Ends("an arena was shared twice");
    add("an arena twice", twice, &[&[9, 0, 4096, 0], &[9, 0, 4096, 0]], Descriptor::Sealed(4096));
    let other = Outcome::Ignored("memory in an arena that cannot be mapped is reached in other ways");
    add("no descriptor", other, &[&[9, 0, 4096, 0]], Descriptor::None);
    add("a shorter arena", other, &[&[9, 0, 8192, 0]], Descriptor::Sealed(4096));
    add("a longer arena", other, &[&[9, 0, 4096, 0]], Descriptor::Sealed(8192));
    add("an arena of 2^63 bytes", other, &[&[9, 0, 0, 1 << 31]], Descriptor::Sealed(4096));
    add("an arena that is not sealed", other, &[&[9, 0, 4096, 0]], Descriptor::Unsealed(4096));
    add("a descriptor of another kind", other, &[&[9, 0, 4096, 0]], Descriptor::Event);
    let gone = Outcome::Ignored("a peer may take back an arena that it could not share");
    add("an unknown arena is taken back", gone, &[&[9, 0, 0, 0]], Descriptor::None);
    rules.push(Rule::new("control socket: 1025 arenas", Outcome::Ends("too many arenas"), |scene| {
        // The socket holds fewer messages, so the victim reads them meanwhile.
        for number in 0..1025_u32 {
            let words = [100 + number, 0, 4096, 0];
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            scene.shm(|link| send_with(link.control_socket(), &bytes, None));
            if number % 64 == 0 {
                super::transfers::names_arena(scene, 9);
                scene.turns(3);
            }
        }
        super::transfers::names_arena(scene, 9);
    }));
    rules
}

/// A descriptor that a peer passes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Descriptor {
    None,
    /// A sealed memfd of this many bytes.
    Sealed(usize),
    /// A memfd that can shrink.
    Unsealed(usize),
    /// A sealed memfd that cannot be written.
    WriteSealed(usize),
    /// A sealed memfd, opened for reading only.
    ReadOnly(usize),
    Event,
    /// An eventfd that blocks.
    BlockingEvent,
}

impl Descriptor {
    pub(super) fn open(self) -> Option<std::os::fd::OwnedFd> {
        use rustix::event::{EventfdFlags, eventfd};
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
        let memory = |len: usize, seals: SealFlags| {
            let fd = memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&fd, len as u64).unwrap();
            fcntl_add_seals(&fd, seals).unwrap();
            fd
        };
        let fixed = SealFlags::SHRINK | SealFlags::GROW;
        Some(match self {
            Self::None => return None,
            Self::Sealed(len) => memory(len, fixed),
            Self::Unsealed(len) => memory(len, SealFlags::GROW),
            Self::WriteSealed(len) => memory(len, fixed | SealFlags::FUTURE_WRITE),
            Self::ReadOnly(len) => {
                use std::os::fd::AsRawFd;
                let fd = memory(len, fixed);
                let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
                rustix::fs::open(path, rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap()
            }
            Self::Event => eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap(),
            Self::BlockingEvent => eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
        })
    }
}

/// Sends a message with a descriptor.
fn send_with(socket: std::os::fd::BorrowedFd<'_>, bytes: &[u8], fd: Option<&std::os::fd::OwnedFd>) {
    let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
    send_all(socket, bytes, &fds);
}

/// Sends a message with descriptors.
pub(super) fn send_all(socket: std::os::fd::BorrowedFd<'_>, bytes: &[u8], descriptors: &[std::os::fd::BorrowedFd<'_>]) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    sendmsg(socket, &[std::io::IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
}

pub(super) fn rules() -> Vec<Rule> {
    let mut rules = marks();
    rules.extend(words());
    rules.extend(doorbells());
    rules.extend(control_socket());
    rules
}

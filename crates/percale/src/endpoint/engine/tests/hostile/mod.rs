//! Peers that speak the protocol correctly and break one rule of it.
//!
//! Each [`Rule`] is one row: its name, how a peer breaks it, and what the victim does. A peer that is otherwise correct
//! connects to the victim, breaks the rule, and the victim has to do what the row states, within [`event_timeout`]. In
//! addition, for every rule:
//!
//! 1. A friend of the victim exchanges messages with it and accesses its memory, as before.
//! 2. The memory that the victim allocated meanwhile is within the bound of the row.
//! 3. No call of the victim panics.
//!
//! The rows are in the modules below, by the part of the protocol to which they belong. `forms` derives most of its
//! rows from a second, independent description of all frames, and `every_frame_kind_has_rules` fails if a kind has none.
//! `PERCALE_RULE=text` runs only the rules whose names contain the text.

mod accesses;
mod floods;
mod forms;
mod hellos;
mod keys;
mod meetings;
mod memory;
mod messages;
mod rings;
mod targets;
mod transfers;

use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use zerocopy::IntoBytes;

use super::*;
use crate::Region;
use crate::completion::entry::ErrorCode;
use crate::local_memory::access::RefusalExt as _;
use crate::region::{Access, Refusal, RemoteMemory};
use crate::transport::any::AnyLink;
use crate::transport::shm::{ForgedLine, ShmLink};
use crate::transport::testing::SinkReport;
use crate::wire::head::{Flags, FrameKind, Head};

/// The two transports over which other processes connect.
const TRANSPORTS: [&str; 2] = ["tcp", "shm"];

/// The limit of the victim's unexpected messages.
const CAP: usize = 1 << 20;

/// The memory for one frame: a frame has at most 512 KiB. The rest is for tables that grow.
const ONE_FRAME: usize = 1 << 20;

/// The length of the regions.
const LEN: usize = 256 << 10;

/// What the victim does when a rule is broken.
#[derive(Clone, Copy)]
enum Outcome {
    /// It ends the connection, because the peer violated the protocol. The reason contains this text.
    Ends(&'static str),
    /// It sends a frame of this kind with this tag, and the connection continues.
    Answers(FrameKind, u64),
    /// The connection continues. The text is the reason why the protocol allows that.
    Ignored(&'static str),
    /// The peer is not read until this happens. The end of its connection is then not detected either.
    Unread(&'static str),
    /// There is no connection.
    NotConnected,
    /// The connection ends as if the peer had died.
    Lost,
    /// The connection ends in an orderly way.
    Closed,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ends(why) => write!(f, "the connection ends: {why}"),
            Self::Answers(kind, tag) => write!(f, "the answer is {kind:?} with the tag {tag}"),
            Self::Ignored(why) => write!(f, "ignored: {why}"),
            Self::Unread(until) => write!(f, "the peer is not read until {until}"),
            Self::NotConnected => f.write_str("there is no connection"),
            Self::Lost => f.write_str("the connection ends as if the peer had died"),
            Self::Closed => f.write_str("the connection ends in an orderly way"),
        }
    }
}

/// The outcome of an access that is refused for this reason.
fn refused(refusal: Refusal) -> Outcome {
    Outcome::Answers(FrameKind::Done, refusal.number())
}

type Break = Box<dyn Fn(&mut Scene<'_>)>;

/// A rule of the protocol.
struct Rule {
    name: String,
    /// The kind of the frame that breaks the rule, if it is a frame.
    kind: Option<FrameKind>,
    /// Whether the peer is connected before it breaks the rule.
    connected: bool,
    breaks: Break,
    outcome: Outcome,
    /// The number of bytes that the victim may allocate meanwhile.
    bound: usize,
}

impl Rule {
    fn new(name: impl Into<String>, outcome: Outcome, breaks: impl Fn(&mut Scene<'_>) + 'static) -> Self {
        let (name, breaks) = (name.into(), Box::new(breaks));
        Self { name, kind: None, connected: true, breaks, outcome, bound: ONE_FRAME }
    }

    /// Creates a rule that one frame breaks.
    fn frame(what: &str, head: Head, outcome: Outcome, payload: impl Fn(&Scene<'_>) -> Vec<u8> + 'static) -> Self {
        let breaks = move |scene: &mut Scene<'_>| {
            let payload = payload(scene);
            scene.frame(head, &payload);
        };
        Self { kind: Some(head.kind), ..Self::new(format!("{:?}: {what}", head.kind), outcome, breaks) }
    }

    fn of(self, kind: FrameKind) -> Self {
        Self { kind: Some(kind), name: format!("{kind:?}: {}", self.name), ..self }
    }

    /// Lets the victim allocate more memory.
    fn within(self, bound: usize) -> Self {
        Self { bound, ..self }
    }
}

/// All rules of a transport.
fn all_rules(transport: &'static str) -> Vec<Rule> {
    let mut rules = forms::rules(transport);
    rules.extend(messages::rules(transport));
    rules.extend(accesses::rules(transport));
    rules.extend(floods::rules(transport));
    rules.extend(hellos::rules(transport));
    if transport == "shm" {
        rules.extend(rings::rules());
        rules.extend(transfers::rules());
        rules.extend(keys::rules());
        rules.extend(meetings::rules());
    }
    rules
}

/// Anything that is kept until a scene ends.
trait Kept {}
impl<T> Kept for T {}

/// A victim, and a peer that is about to break a rule.
struct Scene<'a> {
    transport: &'static str,
    victim: &'a TestEndpoint,
    hostile: TestEndpoint,
    /// The hostile peer's address in the victim's vector.
    to_hostile: PeerAddress,
    /// A region of the victim with all rights.
    region: RemoteMemory,
    /// A region of the victim that peers may only read.
    readable: RemoteMemory,
    /// The operations of the victim that are in progress.
    operations: Vec<Box<dyn Kept + 'a>>,
    notes: Notes,
}

impl<'a> Scene<'a> {
    /// Makes progress on the victim.
    fn turn(&self) {
        memory::counted(|| self.victim.endpoint.progress());
        std::thread::yield_now();
    }

    fn turns(&self, rounds: usize) {
        (0..rounds).for_each(|_| self.turn());
    }

    /// Makes progress on the victim until `ready` returns something.
    #[track_caller]
    fn until<R>(&self, mut ready: impl FnMut() -> Option<R>) -> R {
        let deadline = Instant::now() + event_timeout();
        loop {
            if let Some(found) = ready() {
                return found;
            }
            self.turn();
            assert!(Instant::now() < deadline, "hang: the condition was not met in time");
        }
    }

    /// Uses the hostile peer's link without its engine.
    fn link<R>(&mut self, f: impl FnOnce(&mut AnyLink, ConnectionId) -> R) -> R {
        let slot = self.hostile.slot(self.victim);
        self.hostile.engine(|engine| f(engine.links[slot as usize].as_mut().expect("the peers are connected"), slot))
    }

    /// Uses the hostile peer's link over shared memory.
    fn shm<R>(&mut self, f: impl FnOnce(&mut ShmLink) -> R) -> R {
        self.link(|link, _| match link {
            AnyLink::Shm(link) => f(link),
            other => panic!("{other:?}"),
        })
    }

    /// Writes bytes to the socket of the hostile peer.
    fn bytes(&mut self, mut bytes: &[u8]) {
        let deadline = Instant::now() + event_timeout();
        while !bytes.is_empty() {
            let written = self.link(|link, _| match link {
                AnyLink::Tcp(link) => rustix::io::write(link.as_fd(), bytes),
                other => panic!("{other:?}"),
            });
            match written {
                Ok(written) => bytes = &bytes[written..],
                Err(rustix::io::Errno::AGAIN) => self.turn(),
                // The victim has ended the connection already.
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => return,
                Err(error) => panic!("{error}"),
            }
            assert!(Instant::now() < deadline, "hang: the victim does not read");
        }
    }

    /// Writes the next line of the hostile peer's ring.
    fn line(&mut self, line: &ForgedLine) {
        self.shm(|link| link.forge_line(line, 0));
    }

    /// Sends a frame as it is, with a payload of the length that its head states.
    fn frame(&mut self, head: Head, payload: &[u8]) {
        let head = Head { len: payload.len() as u32, ..head };
        if self.transport == "tcp" {
            return self.bytes(&[head.to_bytes().as_bytes(), payload].concat());
        }
        let extras = usize::from(head.flags.contains(Flags::DATA)) + usize::from(head.flags.contains(Flags::ID));
        if 1 + extras + payload.len().div_ceil(8) <= 7 {
            return self.line(&ForgedLine::of(&head, payload));
        }
        let deadline = Instant::now() + event_timeout();
        while self.link(|link, _| Segments::lend(payload, |payload| link.send(&head, payload, false))).is_err() {
            assert!(Instant::now() < deadline, "hang: the ring stays full");
            self.turn();
        }
    }

    /// Writes the lines of a frame that begins with this one. The lines after it have arbitrary content.
    fn lines(&mut self, first: &ForgedLine) {
        let extras = (first.flags & 3).count_ones();
        let (room, len) = (48 - 8 * extras, first.len);
        self.line(first);
        if len > room && len <= 104 {
            (0..(len - room).div_ceil(56)).for_each(|_| self.line(first));
        }
    }

    /// Returns the frames and reports that the hostile peer has got so far.
    fn received(&mut self) -> &[SinkReport] {
        let mut notes = std::mem::replace(&mut self.notes, Notes::keeping(0));
        self.link(|link, slot| link.poll(slot, &mut notes)).ok();
        self.notes = notes;
        &self.notes.reported
    }

    /// Waits for a frame of this kind from the victim.
    fn receive(&mut self, kind: FrameKind) -> (Head, Vec<u8>) {
        let deadline = Instant::now() + event_timeout();
        loop {
            for report in self.received() {
                if let SinkReport::Frame(head, payload) = report
                    && head.kind == kind
                {
                    return (*head, payload.clone());
                }
            }
            self.turn();
            assert!(Instant::now() < deadline, "hang: the victim sent no {kind:?}");
        }
    }

    /// Keeps an operation of the victim until the scene ends.
    fn keep(&mut self, operation: impl Sized + 'a) {
        self.operations.push(Box::new(operation));
    }

    /// Posts a receive of the victim for tagged messages with this tag.
    fn expects(&mut self, tag: u64, len: usize) {
        let victim = self.victim;
        let receive = memory::counted(|| victim.endpoint.tagged_recv(tag, 0, vec![0; len]).start()).unwrap();
        self.keep(receive);
    }

    /// Begins a send of the victim to the hostile peer. Returns the number of the send.
    fn sends(&mut self, len: usize, delivered: bool) -> u32 {
        let (victim, peer) = (self.victim, self.to_hostile);
        let mut request = victim.endpoint.tagged_send(peer, 5, vec![1; len]);
        if delivered {
            request = request.delivered();
        }
        let send = memory::counted(|| request.start()).unwrap();
        self.keep(send);
        victim.engine(|engine| engine.core.messages.sends().first()).expect("a send in progress")
    }
}

/// A victim and its friend.
struct Stage {
    transport: &'static str,
    victim: TestEndpoint,
    friend: TestEndpoint,
    to_victim: PeerAddress,
    to_friend: PeerAddress,
    region: Region,
    readable: Region,
}

impl Stage {
    fn new(transport: &'static str) -> Self {
        let builder = Info::discover().unwrap().domain().transport(transport.parse().unwrap());
        let domain = builder.unexpected_cap(CAP).open().unwrap();
        let (victim, friend) = (TestEndpoint::of(domain, &CompletionQueue::default()), TestEndpoint::new(transport));
        let (to_victim, to_friend) = (connect(&friend, &victim), victim.peer(&friend));
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::REMOTE_FETCH;
        let region = victim.domain.register(vec![0; LEN], all).unwrap();
        let readable = victim.domain.register(vec![0; LEN], Access::REMOTE_READ).unwrap();
        Self { transport, victim, friend, to_victim, to_friend, region, readable }
    }

    /// Checks that the victim serves its friend, in both directions.
    fn serves_its_friend(&self) {
        let Self { victim, friend, to_victim, to_friend, region, .. } = self;
        let both = [victim, friend];
        for (from, to, peer) in [(friend, victim, *to_victim), (victim, friend, *to_friend)] {
            for len in [8, 100_000] {
                let mut receive = to.endpoint.tagged_recv(77, 0, vec![0; len]).start().unwrap();
                let mut send = from.endpoint.tagged_send(peer, 77, vec![7; len]).start().unwrap();
                until(&both, || (send.is_ready() && receive.is_ready()).then_some(()));
                send.wait().unwrap();
                assert!(receive.wait().unwrap().to_vec() == vec![7; len]);
            }
        }
        let word = region.remote().at(0..8);
        let mut write = friend.endpoint.write(*to_victim, vec![3; 8], word).start().unwrap();
        until(&both, || write.is_ready().then_some(()));
        write.wait().unwrap();
        let mut read = friend.endpoint.read(*to_victim, word, vec![0; 8]).start().unwrap();
        until(&both, || read.is_ready().then_some(()));
        assert_eq!(read.wait().unwrap().into_vec(), [3; 8]);
    }

    /// Returns the reason for which the connection to the hostile peer has ended, if it has.
    fn ended(&self) -> Option<(ErrorCode, String)> {
        while let Some(event) = self.victim.events.read() {
            if let Event::PeerDown { error, reason, .. } = event {
                return Some((error, reason));
            }
        }
        None
    }

    /// Runs a rule. Returns the memory that the victim allocated.
    fn run(&self, rule: &Rule) -> usize {
        while self.victim.events.read().is_some() {}
        // The hostile peer grants no access to its own memory, so the victim sends it requests.
        let trust = if rule.name.contains("[grants]") { Trust::SameUser } else { Trust::None };
        let hostile = TestEndpoint::trusting(self.transport, trust);
        let to_hostile = if rule.connected { connect(&self.victim, &hostile) } else { PeerAddress::UNSPECIFIED };
        while self.victim.events.read().is_some() {}
        let mut scene = Scene {
            transport: self.transport,
            victim: &self.victim,
            hostile,
            to_hostile,
            region: self.region.remote(),
            readable: self.readable.remote(),
            operations: Vec::new(),
            notes: Notes::keeping(1 << 10),
        };
        memory::begin();
        (rule.breaks)(&mut scene);
        match rule.outcome {
            Outcome::Ends(expected) => {
                let (error, why) = scene.until(|| self.ended());
                assert!(why.contains(expected), "the reason is \"{why}\", and not \"{expected}\"");
                assert_eq!(error, ErrorCode::Protocol, "{why}");
            }
            Outcome::Answers(kind, tag) => {
                let (head, _) = scene.receive(kind);
                assert_eq!(head.tag, tag, "the answer {head:?}");
                assert_eq!(self.ended(), None, "the connection has ended");
            }
            Outcome::Ignored(_) => {
                scene.turns(50);
                assert_eq!(self.ended(), None, "the connection has ended");
            }
            Outcome::Lost | Outcome::Closed => {
                let (error, why) = scene.until(|| self.ended());
                let lost = matches!(rule.outcome, Outcome::Lost);
                assert_eq!(error, if lost { ErrorCode::PeerDied } else { ErrorCode::Closed }, "{why}");
            }
            Outcome::Unread(_) => {
                let slot = self.victim.slot(&scene.hostile);
                assert!(!self.victim.engine(|engine| engine.core.peers.is_read(slot)), "the peer is still read");
                assert_eq!(self.ended(), None, "the connection has ended");
            }
            Outcome::NotConnected => {
                scene.turns(20);
                assert_eq!(self.ended(), None, "there was a connection");
            }
        }
        self.serves_its_friend();
        let peak = memory::peak();
        assert!(peak <= rule.bound, "{peak} bytes were allocated; the bound is {}", rule.bound);
        let remains = matches!(rule.outcome, Outcome::Answers(..) | Outcome::Ignored(_));
        let Scene { hostile, operations, .. } = scene;
        drop(hostile);
        if remains && rule.connected {
            until(&[&self.victim], || self.ended());
        }
        // Memory to which the peer could write is released now.
        until(&[&self.victim], || self.victim.engine(|engine| engine.core.left.is_empty()).then_some(()));
        drop(operations);
        peak
    }
}

/// The result of all rules of a transport.
#[derive(Default)]
struct Figures {
    rules: usize,
    ends: usize,
    panics: usize,
    hangs: usize,
    failures: Vec<String>,
    /// The largest share of its bound that a rule reached: the bytes, the bound and the rule.
    peaks: Vec<(usize, usize, String)>,
}

fn run_all(transport: &'static str) {
    let only = std::env::var("PERCALE_RULE").ok();
    let mut figures = Figures::default();
    let mut stage = Stage::new(transport);
    for rule in all_rules(transport) {
        if only.as_ref().is_some_and(|only| !rule.name.contains(only)) {
            continue;
        }
        figures.rules += 1;
        figures.ends += usize::from(matches!(rule.outcome, Outcome::Ends(_)));
        if only.is_some() {
            println!("{transport}: {}: {}", rule.name, rule.outcome);
        }
        match catch_unwind(AssertUnwindSafe(|| stage.run(&rule))) {
            Ok(peak) => {
                if matches!(rule.outcome, Outcome::Unread(_)) {
                    stage = Stage::new(transport);
                }
                figures.peaks.push((peak, rule.bound, rule.name));
            }
            Err(panic) => {
                let why = panic.downcast_ref::<String>().cloned();
                let why = why.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default();
                if why.contains("in time") || why.contains("hang") {
                    figures.hangs += 1
                } else {
                    figures.panics += 1
                }
                figures.failures.push(format!("{}: {why}", rule.name));
                stage = Stage::new(transport);
            }
        }
    }
    let Figures { rules, ends, panics, hangs, failures, mut peaks } = figures;
    println!(
        "{transport}: {rules} rules were broken, {ends} of them ended the connection; {panics} panics, {hangs} hangs"
    );
    peaks.sort_by_key(|(peak, bound, _)| (*bound, *peak));
    for (at, (peak, bound, name)) in peaks.iter().enumerate() {
        // The largest of each bound.
        if peaks.get(at + 1).is_none_or(|(_, next, _)| next != bound) {
            println!("{transport}: at most {peak} bytes of a bound of {bound} bytes ({name})");
        }
    }
    assert!(failures.is_empty(), "{transport}: {} rules failed:\n{}", failures.len(), failures.join("\n"));
    assert!(rules > 0, "no rule has this name");
}

/// Requirements: FLT-007, FLT-008.
#[test]
fn tcp_peer_that_breaks_one_rule_affects_only_its_connection() {
    run_all("tcp");
}

/// Requirements: FLT-007, FLT-008.
#[test]
fn shm_peer_that_breaks_one_rule_affects_only_its_connection() {
    run_all("shm");
}

#[test]
fn every_frame_kind_has_rules() {
    let rules: Vec<Rule> = TRANSPORTS.into_iter().flat_map(all_rules).collect();
    for number in 0..=u8::MAX {
        let Some(kind) = FrameKind::from_u8(number) else { continue };
        let count = rules.iter().filter(|rule| rule.kind == Some(kind)).count();
        assert!(count >= 4, "{kind:?} has {count} rules");
    }
    for transport in TRANSPORTS {
        let mut names: Vec<String> = all_rules(transport).into_iter().map(|rule| rule.name).collect();
        names.sort_unstable();
        let twice: Vec<&[String]> = names.windows(2).filter(|pair| pair[0] == pair[1]).collect();
        assert!(twice.is_empty(), "{transport}: rules with the same name: {twice:?}");
    }
}

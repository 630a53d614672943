//! Rules about the handshake: hellos, verdicts and commits. The peer is a plain socket.
//!
//! The hostile peer calls the victim, or the victim calls it. In both cases it sends the messages of a correct peer
//! except for one field.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use zerocopy::FromBytes;

use super::*;
use crate::transport::host;
use crate::wire::hello::{
    Commit, CommitBytes, ConnectionChoice, HELLO_BYTES, Hello, HelloBytes, HelloFlags, Incarnation, Ruling, Verdict,
    VerdictBytes,
};
use crate::wire::refusal_reason::RefusalReason;

/// The victim's answer to a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Answer {
    /// It closes the connection without an answer.
    Nothing,
    /// It sends its own hello, from which the caller sees the version, and closes the connection.
    Hello,
    /// It refuses the call for this reason.
    Refused(RefusalReason),
    /// It accepts the call with this ruling.
    Accepted(Ruling),
}

/// Offsets in a hello.
const MAGIC: usize = 0;
const VERSION: usize = 8;
const SIZE: usize = 10;
const FLAGS: usize = 12;
const ADDRESS: usize = 56;
const CALLED: usize = 76;
const RESET: usize = 112;

/// Returns a correct hello of a peer that is on another host, or on this one.
pub(super) fn hello_to(called: SocketAddr, place: bool) -> Hello {
    let mut identity = host::place();
    if !place {
        identity.boot = [9; 16];
    }
    Hello {
        flags: HelloFlags::TCP | HelloFlags::SHM,
        place: identity,
        // No endpoint answers there, so the caller is a peer without an address.
        address: ([127, 0, 0, 1], 1).into(),
        called,
        context: 0,
        wanted: 0,
        incarnation: Incarnation::random().unwrap(),
        reset: [0; 16],
        nonce: [7; 32],
    }
}

/// Reads from a socket until the other side closes it, or `most` bytes have arrived.
pub(super) fn read_all(scene: &Scene<'_>, mut stream: &TcpStream, most: usize) -> Vec<u8> {
    stream.set_nonblocking(true).unwrap();
    let mut bytes = Vec::new();
    scene.until(|| {
        let mut piece = [0; 512];
        let room = most.saturating_sub(bytes.len()).min(piece.len());
        if room == 0 {
            return Some(());
        }
        match stream.read(&mut piece[..room]) {
            Ok(0) => return Some(()),
            Ok(read) => bytes.extend(&piece[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return Some(()),
        }
        None
    });
    stream.set_nonblocking(false).unwrap();
    bytes
}

const BOTH: usize = HELLO_BYTES + size_of::<VerdictBytes>();

/// Returns the victim's answer, and its hello and verdict.
pub(super) fn answer_of(scene: &Scene<'_>, stream: &TcpStream) -> (Answer, Option<(Hello, Verdict)>) {
    let bytes = read_all(scene, stream, BOTH);
    if bytes.len() < BOTH {
        assert!(matches!(bytes.len(), 0 | HELLO_BYTES), "{} bytes", bytes.len());
        return (if bytes.is_empty() { Answer::Nothing } else { Answer::Hello }, None);
    }
    let hello = Hello::from_bytes(&HelloBytes::read_from_bytes(&bytes[..HELLO_BYTES]).unwrap()).unwrap();
    let verdict = Verdict::from_bytes(&VerdictBytes::read_from_bytes(&bytes[HELLO_BYTES..]).unwrap()).unwrap();
    let answer = match verdict.ruling {
        Ruling::Refuse => Answer::Refused(verdict.why),
        ruling => Answer::Accepted(ruling),
    };
    (answer, Some((hello, verdict)))
}

/// Creates a rule about the hello of a caller.
fn calls(what: &str, expected: Answer, change: impl Fn(&Scene<'_>, &mut HelloBytes) + 'static) -> Rule {
    let rule = Rule::new(format!("hello of a caller: {what}"), Outcome::NotConnected, move |scene| {
        let called = scene.victim.endpoint.address();
        let mut bytes = hello_to(called, false).to_bytes();
        change(scene, &mut bytes);
        let mut stream = TcpStream::connect(called).unwrap();
        stream.write_all(bytes.as_bytes()).unwrap();
        assert_eq!(answer_of(scene, &stream).0, expected);
    });
    Rule { connected: false, ..rule }
}

/// A change of a hello.
type Change = Box<dyn Fn(&mut HelloBytes)>;

/// The invalid values of the address at this offset.
fn addresses(at: usize) -> Vec<(&'static str, Change)> {
    let set =
        move |ip: [u8; 16]| move |hello: &mut HelloBytes| hello.as_mut_bytes()[at + 4..at + 20].copy_from_slice(&ip);
    let v4 = |last: [u8; 4]| {
        let mut ip = [0; 16];
        ip[10..12].copy_from_slice(&[255; 2]);
        ip[12..].copy_from_slice(&last);
        ip
    };
    vec![
        ("family 0", Box::new(move |hello| hello.as_mut_bytes()[at] = 0)),
        ("family 5", Box::new(move |hello| hello.as_mut_bytes()[at] = 5)),
        ("an IPv6 address as IPv4", Box::new(set([1; 16]))),
        ("an unspecified address", Box::new(set(v4([0; 4])))),
        ("a multicast address", Box::new(set(v4([224, 0, 0, 1])))),
        ("the broadcast address", Box::new(set(v4([255; 4])))),
        ("port 0", Box::new(move |hello| hello.as_mut_bytes()[at + 2..at + 4].copy_from_slice(&[0; 2]))),
    ]
}

fn set_flags(hello: &mut HelloBytes, flags: u32) {
    hello.as_mut_bytes()[FLAGS..FLAGS + 4].copy_from_slice(&flags.to_le_bytes());
}

fn callers(transport: &'static str) -> Vec<Rule> {
    let mut rules = Vec::new();
    for at in [MAGIC, MAGIC + 3, MAGIC + 7] {
        let what = format!("byte {at} of the magic number");
        rules.push(calls(&what, Answer::Nothing, move |_, hello| hello.as_mut_bytes()[at] ^= 1));
    }
    for version in [0_u16, 10, 12, u16::MAX] {
        let what = format!("version {version}");
        rules.push(calls(&what, Answer::Hello, move |_, hello| {
            hello.as_mut_bytes()[VERSION..VERSION + 2].copy_from_slice(&version.to_le_bytes());
        }));
    }
    for size in [0_u16, 16, HELLO_BYTES as u16 - 1, HELLO_BYTES as u16 + 1, u16::MAX] {
        let what = format!("size {size}");
        rules.push(calls(&what, Answer::Hello, move |_, hello| {
            hello.as_mut_bytes()[SIZE..SIZE + 2].copy_from_slice(&size.to_le_bytes());
        }));
    }
    for bit in [6, 7, 15, 31] {
        let what = format!("flag {bit}");
        let flags = 3 | 1_u32 << bit;
        rules.push(calls(&what, Answer::Hello, move |_, hello| set_flags(hello, flags)));
    }
    let key = Answer::Refused(RefusalReason::Authorization);
    rules.push(calls("a key although none is used", key, |_, hello| set_flags(hello, 3 | 4)));
    rules.push(calls("both a reset and a probe", Answer::Hello, |_, hello| set_flags(hello, 3 | 8 | 32)));
    rules.push(calls("a token without a purpose", Answer::Hello, |_, hello| {
        hello.as_mut_bytes()[RESET..RESET + 16].copy_from_slice(&[1; 16]);
    }));
    let unknown = Answer::Refused(RefusalReason::NotKnown);
    rules.push(calls("a probe for an unknown call", unknown, |_, hello| {
        set_flags(hello, 3 | 32);
        hello.as_mut_bytes()[RESET..RESET + 16].copy_from_slice(&[1; 16]);
    }));
    rules.push(calls("a probe for an unknown connection", unknown, |_, hello| set_flags(hello, 3 | 32)));
    for (which, at) in [("advertised", ADDRESS), ("called", CALLED)] {
        for (what, change) in addresses(at) {
            let what = format!("the {which} address: {what}");
            rules.push(calls(&what, Answer::Hello, move |_, hello| change(hello)));
        }
    }
    let own = Answer::Refused(RefusalReason::OwnIncarnation);
    rules.push(calls("the incarnation of the victim", own, |scene, hello| {
        let incarnation = scene.victim.engine(|engine| engine.core.peers.get(0).incarnation());
        hello.as_mut_bytes()[96..112].copy_from_slice(&incarnation.to_be_bytes());
    }));
    let own = Answer::Refused(RefusalReason::OwnAddress);
    rules.push(calls("the address of the victim", own, |_, hello| {
        let called: Vec<u8> = hello.as_bytes()[CALLED..CALLED + 20].to_vec();
        hello.as_mut_bytes()[ADDRESS..ADDRESS + 20].copy_from_slice(&called);
    }));
    let none = Answer::Refused(RefusalReason::NoTransport);
    rules.push(calls("no transport", none, |_, hello| set_flags(hello, 0)));
    if transport == "tcp" {
        rules.push(calls("only shared memory", none, |_, hello| set_flags(hello, 1)));
    } else {
        let host = Answer::Refused(RefusalReason::AnotherHost);
        rules.push(calls("shared memory with another host", host, |_, hello| set_flags(hello, 1)));
    }
    let context = Answer::Refused(RefusalReason::NoContext);
    for wanted in [1_u16, 1 << 15, u16::MAX] {
        let what = format!("context {wanted}");
        // The number of the wanted context is before that of the caller's own.
        rules.push(calls(&what, context, move |_, hello| {
            hello.as_mut_bytes()[52..54].copy_from_slice(&wanted.to_le_bytes());
        }));
    }
    for len in [1, 15, 16, HELLO_BYTES - 1] {
        let rule =
            Rule::new(format!("hello of a caller: ends after {len} bytes"), Outcome::NotConnected, move |scene| {
                let called = scene.victim.endpoint.address();
                let mut stream = TcpStream::connect(called).unwrap();
                stream.write_all(&hello_to(called, false).to_bytes().as_bytes()[..len]).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                assert!(matches!(answer_of(scene, &stream).0, Answer::Nothing | Answer::Hello));
            });
        rules.push(Rule { connected: false, ..rule });
    }
    rules
}

/// Rules about the last message of a caller over TCP.
fn commits() -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut add = |what: &str, len: usize, change: fn(&mut CommitBytes)| {
        let rule = Rule::new(format!("commit of a caller: {what}"), Outcome::NotConnected, move |scene| {
            let called = scene.victim.endpoint.address();
            let mut stream = TcpStream::connect(called).unwrap();
            stream.write_all(hello_to(called, false).to_bytes().as_bytes()).unwrap();
            assert_eq!(answer_of(scene, &stream).0, Answer::Accepted(Ruling::Tcp));
            let commit = Commit { choice: ConnectionChoice::Tcp, why: RefusalReason::AnotherHost, errno: 0 };
            let mut bytes = commit.to_bytes();
            change(&mut bytes);
            stream.write_all(&bytes.as_bytes()[..len]).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(read_all(scene, &stream, 1), [0; 0]);
        });
        rules.push(Rule { connected: false, ..rule });
    };
    let all = size_of::<CommitBytes>();
    add("choice 3", all, |bytes| bytes.as_mut_bytes()[0] = 3);
    add("choice 255", all, |bytes| bytes.as_mut_bytes()[0] = 255);
    add("a choice that was not offered", all, |bytes| bytes.as_mut_bytes()[0] = 2);
    add("reason 0", all, |bytes| bytes.as_mut_bytes()[1] = 0);
    add("reason 21", all, |bytes| bytes.as_mut_bytes()[1] = 21);
    add("a reserved byte", all, |bytes| bytes.as_mut_bytes()[2] = 1);
    add("the other reserved byte", all, |bytes| bytes.as_mut_bytes()[3] = 1);
    add("no connection", all, |bytes| bytes.as_mut_bytes()[0] = 0);
    add("ends early", all - 1, |_| ());
    rules
}

/// Creates a rule about the answer to a call of the victim.
fn answers(
    what: &str,
    expected: ErrorCode,
    change: impl Fn(&Scene<'_>, &mut HelloBytes, &mut VerdictBytes) + 'static,
) -> Rule {
    let rule = Rule::new(format!("answer to a call: {what}"), Outcome::NotConnected, move |scene| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (victim, peer) = (scene.victim, scene.victim.vector.insert(address.to_string()).unwrap());
        let send = memory::counted(|| victim.endpoint.tagged_send(peer, 1, vec![1; 8]).start()).unwrap();
        scene.keep(send);
        listener.set_nonblocking(true).unwrap();
        let mut stream = scene.until(|| Some(listener.accept().ok()?.0));
        assert_eq!(read_all(scene, &stream, HELLO_BYTES).len(), HELLO_BYTES);
        let place = scene.transport == "shm";
        let mut hello = Hello { address, ..hello_to(address, place) }.to_bytes();
        let (ruling, why) = match scene.transport {
            "tcp" => (Ruling::Tcp, RefusalReason::AnotherHost),
            _ => (Ruling::Shm, RefusalReason::SameHost),
        };
        let mut verdict = Verdict { ruling, why, token: [3; 16] }.to_bytes();
        change(scene, &mut hello, &mut verdict);
        stream.write_all(hello.as_bytes()).unwrap();
        // The victim may have closed the connection already.
        stream.write_all(verdict.as_bytes()).ok();
        let (error, reason) = scene.until(|| {
            while let Some(event) = victim.events.read() {
                match event {
                    Event::Failed { error, reason, .. } => return Some((error, reason)),
                    Event::Connected { .. } => panic!("there is a connection"),
                    _ => {}
                }
            }
            None
        });
        assert_eq!(error, expected, "{reason}");
    });
    Rule { connected: false, ..rule }
}

fn called() -> Vec<Rule> {
    let mut rules = Vec::new();
    let protocol = ErrorCode::Protocol;
    for at in [MAGIC, MAGIC + 7] {
        let what = format!("byte {at} of the magic number");
        rules.push(answers(&what, protocol, move |_, hello, _| hello.as_mut_bytes()[at] ^= 1));
    }
    for version in [0_u16, 10, 12] {
        let what = format!("version {version}");
        rules.push(answers(&what, protocol, move |_, hello, _| {
            hello.as_mut_bytes()[VERSION..VERSION + 2].copy_from_slice(&version.to_le_bytes());
        }));
    }
    for size in [0_u16, HELLO_BYTES as u16 + 1] {
        let what = format!("size {size}");
        rules.push(answers(&what, protocol, move |_, hello, _| {
            hello.as_mut_bytes()[SIZE..SIZE + 2].copy_from_slice(&size.to_le_bytes());
        }));
    }
    rules.push(answers("flag 31", protocol, |_, hello, _| set_flags(hello, 3 | 1 << 31)));
    rules.push(answers("a key although none is used", ErrorCode::Denied, |_, hello, _| set_flags(hello, 3 | 4)));
    rules.push(answers("a token without a purpose", protocol, |_, hello, _| {
        hello.as_mut_bytes()[RESET..RESET + 16].copy_from_slice(&[1; 16]);
    }));
    for (which, at) in [("advertised", ADDRESS), ("called", CALLED)] {
        for (what, change) in addresses(at) {
            let what = format!("the {which} address: {what}");
            rules.push(answers(&what, protocol, move |_, hello, _| change(hello)));
        }
    }
    for ruling in [0_u8, 8, 255] {
        let what = format!("ruling {ruling}");
        rules.push(answers(&what, protocol, move |_, _, verdict| verdict.as_mut_bytes()[0] = ruling));
    }
    rules.push(answers("the ruling of a probe", protocol, |_, _, verdict| verdict.as_mut_bytes()[0] = 7));
    rules.push(answers("a ruling for RDMA, which is not allowed", protocol, |_, _, verdict| {
        verdict.as_mut_bytes()[0] = 6;
    }));
    rules.push(answers("a ruling for the other transport", protocol, |scene, _, verdict| {
        verdict.as_mut_bytes()[0] = if scene.transport == "tcp" { 2 } else { 1 };
    }));
    rules.push(answers("a ruling for a transport that the peer itself excludes", protocol, |_, hello, _| {
        set_flags(hello, 0);
    }));
    for why in [0_u8, 21, 255] {
        let what = format!("reason {why}");
        rules.push(answers(&what, protocol, move |_, _, verdict| verdict.as_mut_bytes()[1] = why));
    }
    for at in [2, 5, 7] {
        let what = format!("reserved byte {at} of the verdict");
        rules.push(answers(&what, protocol, move |_, _, verdict| verdict.as_mut_bytes()[at] = 1));
    }
    rules.push(answers("a proof although no key is used", protocol, |_, _, verdict| {
        verdict.as_mut_bytes()[24] = 1;
    }));
    rules
}

pub(super) fn rules(transport: &'static str) -> Vec<Rule> {
    let mut rules = callers(transport);
    if transport == "tcp" {
        rules.extend(commits());
    }
    rules.extend(called());
    rules
}

/// The messages that the rules change are accepted when they are correct, and the layout is the one that the offsets
/// above assume.
#[test]
fn a_correct_call_over_a_plain_socket_is_accepted() {
    let stage = Stage::new("tcp");
    let rule = Rule::new("correct", Outcome::NotConnected, |scene| {
        let called = scene.victim.endpoint.address();
        let hello = hello_to(called, false);
        let bytes = hello.to_bytes();
        assert_eq!(bytes.as_bytes()[96..112], hello.incarnation.0);
        assert_eq!(bytes.as_bytes()[ADDRESS + 2..ADDRESS + 4], [1, 0]);
        assert_eq!(bytes.as_bytes()[CALLED + 2..CALLED + 4], called.port().to_le_bytes());
        assert_eq!((bytes.as_bytes()[FLAGS], bytes.as_bytes().len()), (3, HELLO_BYTES));
        let mut stream = TcpStream::connect(called).unwrap();
        stream.write_all(bytes.as_bytes()).unwrap();
        assert_eq!(answer_of(scene, &stream).0, Answer::Accepted(Ruling::Tcp));
        let commit = Commit { choice: ConnectionChoice::Tcp, why: RefusalReason::AnotherHost, errno: 0 };
        stream.write_all(commit.to_bytes().as_bytes()).unwrap();
        scene.until(|| matches!(scene.victim.events.read(), Some(Event::Connected { .. })).then_some(()));
        let head = Head { kind: FrameKind::Offers, flags: Flags::ID, id: 2, ..Head::default() };
        stream.write_all(head.to_bytes().as_bytes()).unwrap();
        assert_eq!(read_all(scene, &stream, 1), [0; 0]);
        while scene.victim.events.read().is_some() {}
    });
    stage.run(&Rule { connected: false, ..rule });
}

//! A process that is not a peer but connects nevertheless. It sends a plausible hello over TCP and then violates the
//! protocol.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use percale_wire::head::{Flags, FrameKind, HEAD_BYTES, Head};
use percale_wire::hello::{HELLO_BYTES, Hello, HelloBytes, HelloFlags, HostIdentity, Incarnation};
use zerocopy::{FromBytes, IntoBytes};

use crate::random::Random;

/// The behaviour of a stranger.
#[derive(Clone, Copy, Debug)]
pub(super) enum StrangerBehaviour {
    /// Disconnects at a random point, or sends frames with random fields.
    Junk,
    /// Sends messages that match no receive, and disconnects.
    Flood,
    /// Advertises the address of the endpoint that it connects to.
    OwnAddress,
    /// Uses the identity of another endpoint, and resets its connection.
    Pose,
}

/// The size of a verdict.
const VERDICT: usize = 56;

struct StrangerConnection {
    stream: TcpStream,
    theirs: Hello,
}

fn connect(port: u16) -> Option<TcpStream> {
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpStream::connect_timeout(&to, Duration::from_secs(2)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(3))).ok()?;
    stream.set_write_timeout(Some(Duration::from_secs(3))).ok()?;
    stream.set_nodelay(true).ok()?;
    Some(stream)
}

pub(super) fn own(random: &mut Random, address: SocketAddr) -> Hello {
    let (mut incarnation, mut nonce) = ([0; 16], [0; 32]);
    random.fill(&mut incarnation);
    random.fill(&mut nonce);
    Hello {
        flags: HelloFlags::TCP,
        place: HostIdentity { boot: [0x5a; 16], namespace: (7, 7), user: 12345 },
        address,
        called: address,
        context: 0,
        wanted: 0,
        incarnation: Incarnation(incarnation),
        reset: [0; 16],
        nonce,
    }
}

/// Exchanges hellos. Returns the connection, and the ruling and the token of the verdict.
fn meet(port: u16, hello: &Hello) -> Option<(StrangerConnection, u8, [u8; 16])> {
    let mut stream = connect(port)?;
    stream.write_all(hello.to_bytes().as_bytes()).ok()?;
    let mut bytes = [0; HELLO_BYTES];
    stream.read_exact(&mut bytes).ok()?;
    let theirs = Hello::from_bytes(&HelloBytes::read_from_bytes(&bytes).ok()?).ok()?;
    let mut verdict = [0; VERDICT];
    stream.read_exact(&mut verdict).ok()?;
    let token = verdict[8..24].try_into().ok()?;
    if verdict[0] == 1 {
        stream.write_all(&[1, verdict[1], 0, 0, 0, 0, 0, 0]).ok()?;
    }
    Some((StrangerConnection { stream, theirs }, verdict[0], token))
}

/// Connects to `target` and violates the protocol. `other` is the port of another endpoint, or the same port.
pub(super) fn visit(target: u16, other: u16, manner: StrangerBehaviour, seed: u64) {
    let mut random = Random::new(seed);
    // A failure here means that the endpoint has rejected the connection.
    let _: Option<()> = match manner {
        StrangerBehaviour::Junk => junk(target, &mut random),
        StrangerBehaviour::Flood => flood(target, &mut random),
        StrangerBehaviour::OwnAddress => own_address(target, &mut random),
        StrangerBehaviour::Pose => pose(target, other, &mut random),
    };
}

fn somewhere(random: &mut Random) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 1 + random.below(1000) as u16))
}

/// Closes the connection with a reset.
pub(super) fn reset(stream: &TcpStream) {
    super::ignored(rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO)));
}

fn junk(target: u16, random: &mut Random) -> Option<()> {
    let at = somewhere(random);
    let hello = own(random, at);
    match random.below(6) {
        0 => {
            // Sends a part of a hello, then waits or disconnects.
            let mut stream = connect(target)?;
            let most = random.below(HELLO_BYTES);
            stream.write_all(&hello.to_bytes().as_bytes()[..most]).ok()?;
            std::thread::sleep(Duration::from_millis(random.below(3000) as u64));
            if random.below(2) == 0 {
                reset(&stream);
            }
        }
        1 => {
            let mut stream = connect(target)?;
            let mut bytes = hello.to_bytes().as_bytes().to_vec();
            let (at, bit) = (random.below(bytes.len()), random.below(8));
            bytes[at] ^= 1 << bit;
            stream.write_all(&bytes).ok()?;
            std::thread::sleep(Duration::from_millis(random.below(500) as u64));
        }
        _ => {
            let (mut visit, _, _) = meet(target, &hello)?;
            let count = 1 << random.below(14);
            for _ in 0..count {
                let kind = FrameKind::from_u8(1 + random.below(27) as u8)?;
                let len = [0, 0, 8, 16, 32, 64, 700][random.below(7)];
                let mut payload = vec![0; len];
                random.fill(&mut payload);
                if matches!(kind, FrameKind::MessageOffer | FrameKind::TaggedOffer) {
                    payload = offer(random);
                }
                send(&mut visit.stream, random, kind, &payload)?;
                if random.below(200) == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            std::thread::sleep(Duration::from_millis(random.below(1000) as u64));
            if random.below(2) == 0 {
                reset(&visit.stream);
            }
        }
    }
    Some(())
}

/// Makes an offer of a long message with a random length.
fn offer(random: &mut Random) -> Vec<u8> {
    let len = random.next() >> random.below(64);
    let mut bytes = len.to_le_bytes().to_vec();
    bytes.extend([0; 12]);
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend([0; 8]);
    bytes
}

/// Sends a frame with a tag that no receive of the workers matches.
fn send(stream: &mut TcpStream, random: &mut Random, kind: FrameKind, payload: &[u8]) -> Option<()> {
    let kind = if kind == FrameKind::Message { FrameKind::Tagged } else { kind };
    let kind = if kind == FrameKind::MessageOffer { FrameKind::TaggedOffer } else { kind };
    let flags =
        Flags::from_bits_truncate(random.next() as u8) & (Flags::ID | Flags::ACK | Flags::DATA | Flags::INVALIDATE);
    let head = Head {
        kind,
        flags,
        len: payload.len() as u32,
        tag: 0xff << 56 | random.next() >> 8,
        data: if flags.contains(Flags::DATA) { random.next() } else { 0 },
        id: if flags.is_empty() { 0 } else { random.below(64) as u32 },
    };
    let mut frame = head.to_bytes().as_bytes().to_vec();
    assert_eq!(frame.len(), HEAD_BYTES, "a head");
    frame.extend_from_slice(payload);
    stream.write_all(&frame).ok()
}

fn flood(target: u16, random: &mut Random) -> Option<()> {
    let at = somewhere(random);
    let hello = own(random, at);
    let (mut visit, _, _) = meet(target, &hello)?;
    match random.below(3) {
        0 => {
            // Send more unexpected messages than an endpoint keeps.
            let payload = vec![0x55; 512 << 10];
            for _ in 0..133 {
                send(&mut visit.stream, random, FrameKind::Tagged, &payload)?;
            }
        }
        1 => {
            for _ in 0..20_000 {
                send(&mut visit.stream, random, FrameKind::Control, &[])?;
            }
        }
        _ => {
            let len = 1_u64 << (50 + random.below(14));
            for _ in 0..64 {
                let mut payload = len.to_le_bytes().to_vec();
                payload.extend([0; 12]);
                payload.extend(1_u32.to_le_bytes());
                payload.extend([0; 8]);
                send(&mut visit.stream, random, FrameKind::TaggedOffer, &payload)?;
            }
        }
    }
    std::thread::sleep(Duration::from_millis(random.below(3000) as u64));
    Some(())
}

fn own_address(target: u16, random: &mut Random) -> Option<()> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, target));
    let (mut visit, _, _) = meet(target, &own(random, address))?;
    // Data that arrives here was addressed to the endpoint itself.
    let mut bytes = [0; 4096];
    for _ in 0..20 {
        if visit.stream.read(&mut bytes).is_ok_and(|count| count == 0) {
            break;
        }
    }
    Some(())
}

fn pose(target: u16, other: u16, random: &mut Random) -> Option<()> {
    // The hello of the other endpoint contains its identity.
    let at = somewhere(random);
    let (victim, _, _) = meet(other, &own(random, at))?;
    let mut hello = own(random, victim.theirs.address);
    hello.incarnation = victim.theirs.incarnation;
    if random.below(3) == 0 {
        hello.place = victim.theirs.place;
    }
    let (visit, ruling, token) = meet(target, &hello)?;
    if ruling == 3 || random.below(2) == 0 {
        drop(visit);
        hello.flags |= HelloFlags::RESET;
        hello.reset = token;
        random.fill(&mut hello.nonce);
        let (visit, _, _) = meet(target, &hello)?;
        std::thread::sleep(Duration::from_millis(random.below(1500) as u64));
        if random.below(2) == 0 {
            reset(&visit.stream);
        }
    }
    Some(())
}

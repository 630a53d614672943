//! Rules about the meeting of two endpoints of one machine: the packets on the Unix socket, and their descriptors.

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::hellos::{Answer, answer_of, hello_to};
use super::rings::{Descriptor, send_all};
use super::*;
use crate::transport::shm::{DOORBELL_BITS, DOORBELL_BYTES, PAIR_BYTES};
use crate::wire::hello::{Ruling, Token};
use crate::wire::meeting::{Confirm, MeetingAnswer, MeetingHalf, MeetingOffer};
use crate::wire::refusal_reason::RefusalReason;

/// The descriptors of a correct offer: the pair's memory, the doorbell's page, and its event.
const CORRECT: [Descriptor; 3] =
    [Descriptor::Sealed(PAIR_BYTES), Descriptor::Sealed(DOORBELL_BYTES), Descriptor::Event];

/// Calls the victim, and connects to its Unix socket. Returns the sockets and the token of the connection.
fn meets(scene: &Scene<'_>) -> (TcpStream, OwnedFd, Token) {
    let called = scene.victim.endpoint.address();
    let mut stream = TcpStream::connect(called).unwrap();
    stream.write_all(hello_to(called, true).to_bytes().as_bytes()).unwrap();
    let (answer, found) = answer_of(scene, &stream);
    assert_eq!(answer, Answer::Accepted(Ruling::Shm));
    let (hello, verdict) = found.unwrap();
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let address = SocketAddrUnix::new_abstract_name(hello.incarnation.socket_name().as_bytes()).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    (stream, socket, verdict.token)
}

/// Sends an offer with these descriptors.
fn offers(socket: &OwnedFd, packet: &[u8], descriptors: &[Descriptor]) {
    let open: Vec<OwnedFd> = descriptors.iter().filter_map(|descriptor| descriptor.open()).collect();
    let lent: Vec<BorrowedFd<'_>> = open.iter().map(AsFd::as_fd).collect();
    send_all(socket.as_fd(), packet, &lent);
}

/// Returns the victim's answer, or `None` if it closes the socket.
fn answered(scene: &Scene<'_>, socket: &OwnedFd) -> Option<MeetingAnswer> {
    use zerocopy::FromBytes;
    scene.until(|| {
        let mut bytes = [0; size_of::<MeetingAnswer>()];
        match rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Some(None),
            Ok(_) => Some(Some(MeetingAnswer::read_from_bytes(&bytes).unwrap())),
            Err(rustix::io::Errno::AGAIN) => None,
            Err(_) => Some(None),
        }
    })
}

fn not_connected(what: &str, breaks: impl Fn(&mut Scene<'_>) + 'static) -> Rule {
    Rule { connected: false, ..Rule::new(format!("meeting: {what}"), Outcome::NotConnected, breaks) }
}

const HALF: MeetingHalf = MeetingHalf {
    bit: zerocopy::little_endian::U32::new(1),
    reserved: zerocopy::little_endian::U32::ZERO,
    word_address: zerocopy::little_endian::U64::ZERO,
    word_value: zerocopy::little_endian::U64::ZERO,
    challenge: zerocopy::little_endian::U64::new(99),
};

pub(super) fn rules() -> Vec<Rule> {
    let mut rules = Vec::new();
    // Packets that are not an offer for a call of the victim's: no answer.
    let all = size_of::<MeetingOffer>();
    let mut add = |what: &str, len: usize, change: fn(&mut [u8])| {
        rules.push(not_connected(what, move |scene| {
            let (_stream, socket, token) = meets(scene);
            let offer = MeetingOffer::new(token, HALF);
            let mut bytes = offer.as_bytes().to_vec();
            bytes.resize(len, 0);
            change(&mut bytes);
            offers(&socket, &bytes, &CORRECT);
            assert!(answered(scene, &socket).is_none(), "there is an answer");
        }));
    };
    add("the magic number", all, |bytes| bytes[0] ^= 1);
    add("a reserved word", all, |bytes| bytes[4] = 1);
    add("another token", all, |bytes| bytes[8] ^= 1);
    add("another end of the token", all, |bytes| bytes[23] ^= 1);
    add("a reserved word of the half", all, |bytes| bytes[28] = 1);
    add("a packet that is too short", all - 1, |_| ());
    add("a packet that is too long", all + 1, |_| ());
    add("a packet of one byte", 1, |_| ());
    // Descriptors that cannot be used.
    let [pair, doorbell, event] = CORRECT;
    let mut add = |what: &str, descriptors: Vec<Descriptor>| {
        rules.push(not_connected(what, move |scene| {
            let (_stream, socket, token) = meets(scene);
            offers(&socket, MeetingOffer::new(token, HALF).as_bytes(), &descriptors);
            // An answer states the reason. If there are too many descriptors, the packet is not an offer.
            if let Some(answer) = answered(scene, &socket) {
                let (why, _) = answer.outcome().expect("an answer");
                assert_eq!(why, RefusalReason::BadResources);
            }
        }));
    };
    add("no descriptor", vec![]);
    add("one descriptor", vec![pair]);
    add("two descriptors", vec![pair, doorbell]);
    add("four descriptors", vec![pair, doorbell, event, event]);
    add("descriptors in another order", vec![doorbell, pair, event]);
    for (what, bad) in [
        ("shorter", Descriptor::Sealed(PAIR_BYTES - 4096)),
        ("longer", Descriptor::Sealed(PAIR_BYTES + 4096)),
        ("empty", Descriptor::Sealed(0)),
        ("not sealed", Descriptor::Unsealed(PAIR_BYTES)),
        ("sealed against writing", Descriptor::WriteSealed(PAIR_BYTES)),
        ("opened for reading", Descriptor::ReadOnly(PAIR_BYTES)),
        ("an eventfd", Descriptor::Event),
    ] {
        add(&format!("the pair's memory is {what}"), vec![bad, doorbell, event]);
    }
    for (what, bad) in [
        ("shorter", Descriptor::Sealed(DOORBELL_BYTES - 1)),
        ("longer", Descriptor::Sealed(2 * DOORBELL_BYTES)),
        ("not sealed", Descriptor::Unsealed(DOORBELL_BYTES)),
        ("sealed against writing", Descriptor::WriteSealed(DOORBELL_BYTES)),
        ("opened for reading", Descriptor::ReadOnly(DOORBELL_BYTES)),
        ("an eventfd", Descriptor::Event),
    ] {
        add(&format!("the doorbell's page is {what}"), vec![pair, bad, event]);
    }
    add("the event is memory", vec![pair, doorbell, Descriptor::Sealed(4096)]);
    add("the event blocks", vec![pair, doorbell, Descriptor::BlockingEvent]);
    // A correct offer, and a wrong confirmation.
    let mut add = |what: &str, len: usize, descriptors: &'static [Descriptor], change: fn(&mut [u8])| {
        rules.push(not_connected(what, move |scene| {
            let (_stream, socket, token) = meets(scene);
            offers(&socket, MeetingOffer::new(token, HALF).as_bytes(), &CORRECT);
            let answer = answered(scene, &socket).expect("an answer");
            assert_eq!((answer.outcome(), answer.echo), (Some((RefusalReason::SameHost, 0)), HALF.challenge));
            let mut bytes = Confirm::new(answer.half.challenge).as_bytes().to_vec();
            bytes.resize(len, 0);
            change(&mut bytes);
            offers(&socket, &bytes, descriptors);
            assert!(answered(scene, &socket).is_none(), "the socket is closed");
        }));
    };
    let all = size_of::<Confirm>();
    add("the confirmation's magic number", all, &[], |bytes| bytes[0] ^= 1);
    add("the confirmation's reserved word", all, &[], |bytes| bytes[4] = 1);
    add("the confirmation's challenge", all, &[], |bytes| bytes[8] ^= 1);
    add("a confirmation with a descriptor", all, &[Descriptor::Event], |_| ());
    add("a confirmation that is too short", all - 1, &[], |_| ());
    add("a confirmation that is too long", all + 1, &[], |_| ());
    // A bit that no doorbell has.
    for bit in [DOORBELL_BITS, 1 << 16, u32::MAX] {
        rules.push(not_connected(&format!("bit {bit} of the doorbell"), move |scene| {
            let (_stream, socket, token) = meets(scene);
            let half = MeetingHalf { bit: bit.into(), ..HALF };
            offers(&socket, MeetingOffer::new(token, half).as_bytes(), &CORRECT);
            // The offer is refused, or the victim finds the bit when it makes its link.
            let accepted = answered(scene, &socket)
                .filter(|answer| answer.outcome().is_some_and(|(why, _)| why == RefusalReason::SameHost));
            if let Some(answer) = accepted {
                offers(&socket, Confirm::new(answer.half.challenge).as_bytes(), &[]);
                assert!(answered(scene, &socket).is_none(), "the socket is closed");
            }
        }));
    }
    rules
}

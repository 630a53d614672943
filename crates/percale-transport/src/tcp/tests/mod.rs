//! Tests with two links over a loopback connection, and with invalid streams.

mod limits;
pub(super) mod outbound;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::fuzz::{fuzz_stream, receive};
use super::{DATA_LIMIT, TcpLink, TcpOptions};
use crate::local_memory::volatile::ViewExt as _;
use crate::local_memory::volatile::{Segments, View};
use crate::region::Refusal;
use crate::testing::{Lent, Notes, SinkReport};
use crate::wire::head::{Flags, FrameKind, GONE, HEAD_BYTES, Head, Offer};
use crate::{Broken, Link, PullError, Refused};

/// A small send buffer, so that most writes are partial. With a small receive buffer as well, the window would be
/// smaller than the segments of the loopback interface, and the kernel would wait for its timers.
pub(super) const SMALL: TcpOptions =
    TcpOptions { send_buffer: Some(4 << 10), receive_buffer: None, timeout: Duration::from_secs(30) };

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (a, listener.accept().unwrap().0)
}

pub(super) fn links(options: TcpOptions) -> (TcpLink, TcpLink) {
    let (a, b) = sockets();
    (TcpLink::new(OwnedFd::from(a), options).unwrap(), TcpLink::new(OwnedFd::from(b), options).unwrap())
}

#[test]
fn socket_without_peer_is_a_lost_connection() {
    let (a, _b) = sockets();
    let again = a.try_clone().unwrap();
    let mut link = TcpLink::new(OwnedFd::from(a), SMALL).unwrap();
    rustix::net::connect_unspec(&again).unwrap();
    // Another call consumes the first error, as another thread could. After that the kernel returns ENOTCONN for all
    // later calls.
    assert!(rustix::net::sockopt::socket_error(&again).unwrap().is_err());
    let lost = (0..1000).find_map(|_| link.poll(0, &mut Notes::keeping(0)).err());
    assert!(matches!(lost, Some(Broken::Died(_))), "{lost:?}");
}

pub(super) fn tagged(len: usize, tag: u64) -> Head {
    Head { kind: FrameKind::Tagged, flags: Flags::DATA, len: len as u32, tag, data: !tag, id: 0 }
}

fn plain(kind: FrameKind) -> Head {
    Head { kind, ..Head::default() }
}

pub(super) fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at + seed) * 31 + (at >> 8)) as u8).collect()
}

/// Calls `done` until it returns true. Panics after a time that no working link needs.
pub(super) fn until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "the links made no progress");
    }
}

/// Polls until the link breaks, and returns the reason.
fn ending(link: &mut TcpLink, notes: &mut Notes) -> Broken {
    let mut end = None;
    until(|| {
        end = link.poll(0, notes).err();
        end.is_some()
    });
    assert_eq!(link.poll(0, notes).err(), end, "a broken link stays broken");
    end.unwrap()
}

/// Sends these payloads (length, cuts) in one direction, and checks what arrives.
fn exchange(options: TcpOptions, frames: &[(usize, Vec<usize>, bool)], keep: usize) {
    let (mut a, mut b) = links(options);
    let (mut at_a, mut at_b) = (Notes::keeping(keep), Notes::keeping(keep));
    let mut expected = Vec::new();
    for (n, (len, cuts, more)) in frames.iter().enumerate() {
        let head = tagged(*len, n as u64);
        let mut bytes = pattern(*len, n);
        let memory = Lent::new(bytes.clone());
        let mut waited = false;
        until(|| match a.send(&head, &memory.cut(cuts), *more) {
            Ok(()) => true,
            Err(refused) => {
                assert_eq!(refused, Refused::Full);
                a.poll(0, &mut at_a).unwrap();
                b.poll(0, &mut at_b).unwrap();
                waited = true;
                false
            }
        });
        // The memory may be reused as soon as `send` has returned.
        drop(memory);
        bytes.truncate(keep);
        expected.push(SinkReport::Frame(head, bytes));
    }
    until(|| {
        a.poll(0, &mut at_a).unwrap();
        b.poll(0, &mut at_b).unwrap();
        a.is_idle() && at_b.reported.len() >= expected.len()
    });
    assert!(at_b.reported == expected, "the received data differs from the sent data");
    assert!(at_a.reported.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn frames_arrive_whole_and_in_order(
        frames in prop::collection::vec(
            (
                prop_oneof![6 => 0..300usize, 3 => 0..40_000usize, 1 => 0..=TcpLink::EAGER_LIMIT],
                prop::collection::vec(0..70_000usize, 0..=3),
                any::<bool>(),
            ),
            1..60,
        ),
        small in any::<bool>(),
        keep in prop_oneof![Just(usize::MAX), 0..5_000usize],
    ) {
        exchange(if small { SMALL } else { TcpOptions::default() }, &frames, keep);
    }

    #[test]
    fn offers_are_pulled_and_truncated(
        pulls in prop::collection::vec(
            (
                prop_oneof![0..100_000usize, 0..3_000_000usize],
                prop_oneof![Just(usize::MAX), 0..3_000_000usize],
                prop::collection::vec(0..1_000_000usize, 0..=3),
            ),
            1..5,
        ),
        small in any::<bool>(),
    ) {
        let (mut a, mut b) = links(if small { SMALL } else { TcpOptions::default() });
        let (mut at_a, mut at_b) = (Notes::keeping(64), Notes::keeping(64));
        let sources: Vec<_> = pulls.iter().enumerate().map(|(n, pull)| Lent::new(pattern(pull.0, n))).collect();
        let targets: Vec<_> = pulls.iter().map(|pull| Lent::new(vec![0; pull.0.min(pull.1)])).collect();
        for (n, (len, _, cuts)) in pulls.iter().enumerate() {
            let offer = Offer { len: (*len as u64).into(), ..Offer::default() };
            b.pull(n as u32 + 100, &offer, &targets[n].lease(cuts), n as u32).unwrap();
        }
        let mut sent = 0u64;
        let mut pushed = Vec::new();
        until(|| {
            a.poll(0, &mut at_a).unwrap();
            for reported in std::mem::take(&mut at_a.reported) {
                match reported {
                    SinkReport::Frame(head, request) => {
                        assert_eq!(head.kind, FrameKind::Pull);
                        let n = head.id as usize - 100;
                        a.push(head.id, head.tag, View::of(&request), &sources[n].lease(&pulls[n].2)).unwrap();
                    }
                    SinkReport::Pushed(id, result) => pushed.push((id, result)),
                    other => panic!("{other:?}"),
                }
            }
            // Messages are sent between the data frames.
            if sent < 50 && a.send(&tagged(8, sent), &Lent::new(sent.to_le_bytes().to_vec()).whole(), false).is_ok() {
                sent += 1;
            }
            b.poll(0, &mut at_b).unwrap();
            pushed.len() == pulls.len() && at_b.reported.len() == pulls.len() + 50
        });
        pushed.sort_unstable_by_key(|pushed| pushed.0);
        let all: Vec<_> = (0..pulls.len() as u32).map(|n| (n + 100, Ok(()))).collect();
        prop_assert_eq!(pushed, all);
        for (n, target) in targets.iter().enumerate() {
            let len = pulls[n].0.min(pulls[n].1);
            prop_assert!(at_b.reported.contains(&SinkReport::Pulled(n as u32, Ok(len as u64))));
            prop_assert!(target.bytes() == pattern(len, n), "pull {} returned other bytes", n);
        }
        at_b.reported.retain(|reported| matches!(reported, SinkReport::Frame(..)));
        let messages: Vec<_> =
            (0..50u64).map(|n| SinkReport::Frame(tagged(8, n), n.to_le_bytes().to_vec())).collect();
        prop_assert_eq!(&at_b.reported, &messages);
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_break_the_link_or_wait(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        fuzz_stream(&bytes);
    }

    #[test]
    fn damaged_frames_break_the_link_or_wait(
        heads in prop::collection::vec((1..=12u8, 0..5_000u32, 0..3u32, prop_oneof![Just(0u64), 0..4_200u64]), 1..12),
        damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        lengths in any::<[u8; 2]>(),
    ) {
        let mut bytes = lengths.to_vec();
        for (kind, len, id, tag) in heads {
            let kind = FrameKind::from_u8(kind).unwrap();
            bytes.extend(Head { kind, flags: Flags::ID, len, tag, data: 0, id }.to_bytes().as_bytes());
            bytes.extend(pattern(len as usize, 0));
        }
        if let Some((at, with)) = damage {
            let at = at.index(bytes.len());
            bytes[at] = with;
        }
        fuzz_stream(&bytes);
    }
}

/// Returns frames as bytes, after the two bytes that `receive` uses for the lengths of its pieces.
pub(super) fn stream(frames: &[(Head, usize)]) -> Vec<u8> {
    let mut bytes = vec![6, 50];
    for (head, len) in frames {
        bytes.extend(head.to_bytes().as_bytes());
        bytes.extend(pattern(*len, 0));
    }
    bytes
}

#[test]
fn invalid_frames_break_the_link() {
    let data = |id, tag, len: usize| {
        (Head { kind: FrameKind::Data, flags: Flags::ID, len: len as u32, tag, data: 0, id }, len)
    };
    let long = |kind, len: usize| (Head { kind, len: len as u32, ..Head::default() }, 0);
    let gone = |data| {
        let flags = Flags::ID | Flags::DATA;
        (Head { kind: FrameKind::Data, flags, tag: GONE, data, ..Head::default() }, 0)
    };
    let cases: [&[(Head, usize)]; 13] = [
        &[data(2, 0, 10)],
        &[data(0, 1, 10)],
        &[data(0, 0, 101)],
        &[data(0, 0, 60), data(0, 60, 41)],
        &[data(0, 0, 60), data(0, 0, 40)],
        &[data(0, 0, 0)],
        &[data(0, 0, 100), data(0, 100, 0)],
        &[long(FrameKind::Pull, 65)],
        &[long(FrameKind::Message, TcpLink::EAGER_LIMIT + 1)],
        &[long(FrameKind::Write, TcpLink::EAGER_LIMIT + 1)],
        &[gone(99)],
        &[gone(2), gone(2)],
        &[long(FrameKind::Transport, 0)],
    ];
    for frames in cases {
        let result = receive(&stream(frames), &mut Notes::keeping(9));
        assert!(matches!(result, Err(Broken::Protocol(_))), "{frames:?}: {result:?}");
    }
    let mut notes = Notes::keeping(9);
    receive(&stream(&[gone(2)]), &mut notes).unwrap();
    assert_eq!(notes.reported, [SinkReport::Pulled(0, Err(PullError::Refused(Refusal::Right)))]);
    let mut notes = Notes::keeping(9);
    let good = stream(&[data(0, 0, 60), data(1, 0, 4_000), data(0, 60, 40), long(FrameKind::Data, DATA_LIMIT)]);
    let result = receive(&good, &mut notes);
    assert!(matches!(result, Err(Broken::Protocol(_))), "the pulls are over: {result:?}");
    assert_eq!(notes.reported, [SinkReport::Pulled(1, Ok(4_000)), SinkReport::Pulled(0, Ok(100))]);
}

#[test]
fn close_without_goodbye_is_reported_as_death() {
    let (mut a, mut b) = links(TcpOptions::default());
    let mut notes = Notes::keeping(99);
    a.send(&tagged(0, 1), &Segments::EMPTY, false).unwrap();
    a.send(&plain(FrameKind::Bye), &Segments::EMPTY, false).unwrap();
    assert_eq!(a.send(&tagged(0, 2), &Segments::EMPTY, false), Err(Refused::Broken));
    assert!(a.linger(Duration::from_secs(10)));
    assert_eq!(ending(&mut b, &mut notes), Broken::Closed);
    assert_eq!(notes.reported.len(), 2, "the message and the goodbye");
    assert_eq!(b.send(&tagged(0, 3), &Segments::EMPTY, false), Err(Refused::Broken));

    let (mut a, mut b) = links(TcpOptions::default());
    let mut notes = Notes::keeping(99);
    a.send(&tagged(0, 1), &Segments::EMPTY, false).unwrap();
    drop(a);
    assert!(matches!(ending(&mut b, &mut notes), Broken::Died(_)));
    assert_eq!(notes.reported, [SinkReport::Frame(tagged(0, 1), vec![])]);
}

#[test]
fn reset_is_reported_as_death_after_earlier_messages() {
    let (mut a, mut b) = links(TcpOptions::default());
    let mut notes = Notes::keeping(99);
    a.send(&tagged(0, 1), &Segments::EMPTY, false).unwrap();
    b.send(&tagged(0, 2), &Segments::EMPTY, false).unwrap();
    // The socket is closed with an unread byte, which causes a reset.
    drop(a);
    until(|| b.send(&tagged(0, 3), &Segments::EMPTY, false) == Err(Refused::Broken));
    assert!(matches!(ending(&mut b, &mut notes), Broken::Died(_)));
    assert_eq!(notes.reported, [SinkReport::Frame(tagged(0, 1), vec![])]);
}

/// More messages have arrived than one poll receives when a write finds that the connection was reset.
#[test]
fn all_messages_before_a_reset_arrive() {
    const COUNT: u64 = 1500;
    let (a, b) = sockets();
    let arrived = b.try_clone().unwrap();
    let mut a = TcpLink::new(OwnedFd::from(a), TcpOptions::default()).unwrap();
    let mut b = TcpLink::new(OwnedFd::from(b), TcpOptions::default()).unwrap();
    for tag in 0..COUNT {
        a.send(&tagged(0, tag), &Segments::EMPTY, false).unwrap();
    }
    b.send(&tagged(0, 0), &Segments::EMPTY, false).unwrap();
    // `a` does not receive, so that its close resets the connection.
    until(|| {
        a.outbound.poll(&mut a.socket);
        rustix::io::ioctl_fionread(&arrived).unwrap() == COUNT * HEAD_BYTES as u64
    });
    drop(a);
    until(|| b.send(&tagged(0, 3), &Segments::EMPTY, false) == Err(Refused::Broken));
    let mut notes = Notes::keeping(9);
    assert!(matches!(ending(&mut b, &mut notes), Broken::Died(_)));
    assert_eq!(notes.reported.len() as u64, COUNT);
}

#[test]
fn truncated_stream_is_reported_as_death() {
    let (mut a, b) = sockets();
    let mut b = TcpLink::new(OwnedFd::from(b), TcpOptions::default()).unwrap();
    a.write_all(&tagged(5_000, 1).to_bytes().as_bytes()[..20]).unwrap();
    drop(a);
    let mut notes = Notes::keeping(99);
    let Broken::Died(why) = ending(&mut b, &mut notes) else { panic!() };
    assert!(why.contains("in the middle"), "{why}");
}

#[test]
fn linger_delivers_queued_frames_despite_unread_input() {
    let (mut a, mut b) = links(SMALL);
    let memory = Lent::new(pattern(200_000, 0));
    let reader = std::thread::spawn(move || {
        let mut notes = Notes::keeping(usize::MAX);
        b.send(&tagged(0, 7), &Segments::EMPTY, false).unwrap();
        (ending(&mut b, &mut notes), notes.reported)
    });
    a.send(&tagged(200_000, 1), &memory.whole(), false).unwrap();
    a.send(&plain(FrameKind::Bye), &Segments::EMPTY, false).unwrap();
    assert!(a.linger(Duration::from_secs(30)));
    let (end, reported) = reader.join().unwrap();
    assert_eq!(end, Broken::Closed);
    assert!(reported[0] == SinkReport::Frame(tagged(200_000, 1), memory.bytes()));
}

#[test]
fn linger_times_out_if_the_peer_does_not_read() {
    let (mut a, _b) = links(SMALL);
    let memory = Lent::new(vec![0; 200_000]);
    while a.send(&tagged(200_000, 1), &memory.whole(), false).is_ok() {}
    assert!(!a.linger(Duration::from_millis(50)));
}

/// The peer resets the connection while the kernel still has bytes that were not acknowledged.
#[test]
fn linger_fails_if_the_connection_is_reset() {
    let (a, b) = sockets();
    rustix::net::sockopt::set_socket_recv_buffer_size(&b, 4 << 10).unwrap();
    let again = a.try_clone().unwrap();
    let options = TcpOptions { send_buffer: Some(1 << 20), receive_buffer: None, timeout: Duration::from_secs(30) };
    let mut a = TcpLink::new(OwnedFd::from(a), options).unwrap();
    let memory = Lent::new(vec![0; 200_000]);
    a.send(&tagged(200_000, 1), &memory.whole(), false).unwrap();
    until(|| {
        a.poll(0, &mut Notes::keeping(0)).unwrap();
        a.is_idle()
    });
    let closes = std::thread::spawn(move || {
        // A write fails once the other thread has shut down the sending direction and waits.
        let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
        until(|| rustix::net::send(&again, &[], flags) == Err(rustix::io::Errno::PIPE));
        drop(b); // The socket is closed with unread bytes, which causes a reset.
    });
    assert!(!a.linger(Duration::from_secs(60)), "bytes that were discarded count as delivered");
    closes.join().unwrap();
}

#[test]
fn pull_of_withdrawn_data_fails_and_of_too_much_breaks_the_link() {
    let (mut a, mut b) = links(TcpOptions::default());
    let (mut at_a, mut at_b) = (Notes::keeping(99), Notes::keeping(99));
    let target = Lent::new(vec![0; 50]);
    let offer = Offer { len: 60.into(), ..Offer::default() };
    for (token, source, answer) in [(3, vec![], Ok(())), (4, vec![1; 49], Err(Refused::Broken))] {
        b.pull(8, &offer, &target.lease(&[]), token).unwrap();
        until(|| a.poll(0, &mut at_a).unwrap());
        let Some(SinkReport::Frame(head, request)) = at_a.reported.pop() else { panic!() };
        assert_eq!(a.push(8, head.tag, View::of(&request), &Lent::new(source).lease(&[])), answer);
        if answer.is_ok() {
            until(|| b.poll(0, &mut at_b).unwrap());
            a.poll(0, &mut at_a).unwrap();
            assert_eq!(at_b.reported, [SinkReport::Pulled(3, Err(PullError::Gone))]);
            assert_eq!(at_a.reported.pop(), Some(SinkReport::Pushed(8, Err(PullError::Gone))));
        }
    }
    assert!(matches!(a.poll(0, &mut at_a), Err(Broken::Protocol(_))));
}

#[test]
fn a_goodbye_waits_for_pushes() {
    let (mut a, mut b) = links(SMALL);
    let (mut at_a, mut at_b) = (Notes::keeping(99), Notes::keeping(99));
    let (source, target) = (Lent::new(pattern(900_000, 0)), Lent::new(vec![0; 900_000]));
    b.pull(8, &Offer { len: 900_000.into(), ..Offer::default() }, &target.lease(&[]), 5).unwrap();
    until(|| a.poll(0, &mut at_a).unwrap());
    let Some(SinkReport::Frame(head, request)) = at_a.reported.pop() else { panic!() };
    a.push(8, head.tag, View::of(&request), &source.lease(&[])).unwrap();
    a.send(&plain(FrameKind::Bye), &Segments::EMPTY, false).unwrap();
    let mut end = None;
    until(|| {
        // Once everything was sent, the close of the other end may be the only event that is left to receive.
        a.poll(0, &mut at_a).ok();
        end = b.poll(0, &mut at_b).err();
        end.is_some()
    });
    assert_eq!(end, Some(Broken::Closed));
    assert_eq!(at_b.reported, [SinkReport::Pulled(5, Ok(900_000)), SinkReport::Frame(plain(FrameKind::Bye), vec![])]);
    assert!(target.bytes() == source.bytes());
}

#[test]
fn wire_format_is_head_then_payload() {
    let (a, mut b) = sockets();
    let mut a = TcpLink::new(OwnedFd::from(a), TcpOptions::default()).unwrap();
    a.send(&tagged(3, 9), &Lent::new(vec![1, 2, 3]).whole(), false).unwrap();
    let mut bytes = [0; 35];
    b.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes[..32], tagged(3, 9).to_bytes().as_bytes());
    assert_eq!(bytes[32..], [1, 2, 3]);
}

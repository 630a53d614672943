//! Tests with two wires of one process. They use a device if there is one.

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::*;
use crate::local_memory::volatile::SegmentsExt as _;
use crate::tcp::TcpOptions;
use crate::verbs::credit::CREDITS;
use crate::verbs::tests::adapter;

/// Returns two connected wires, which watch the two ends of a TCP connection.
pub(super) fn wires(adapter: &Arc<Adapter>) -> (Wire, Wire) {
    let (mut one, mut two) = (Wire::new(adapter).expect("a wire"), Wire::new(adapter).expect("a wire"));
    let (ours, theirs) = (one.ours(), two.ours());
    two.connect(&ours).expect("a connected wire");
    one.connect(&theirs).expect("a connected wire");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let called = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let (accepted, _) = listener.accept().expect("a connection");
    let options = TcpOptions::default();
    one.watch(Socket::new(OwnedFd::from(called).into(), &options).expect("a socket")).expect("a watch");
    two.watch(Socket::new(OwnedFd::from(accepted).into(), &options).expect("a socket")).expect("a watch");
    (one, two)
}

/// Calls `attempt` until it returns a result, for at most ten seconds.
fn until<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        assert!(Instant::now() < deadline, "no result in time");
    }
}

fn read(wire: &mut Wire, len: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; len];
    let read = until(|| match wire.read_one(&mut bytes) {
        Err(Errno::AGAIN) => None,
        result => Some(result),
    })?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Returns the byte at a position of the stream.
const fn byte(at: usize) -> u8 {
    (at.wrapping_mul(31) >> 3) as u8
}

#[test]
fn a_stream_longer_than_all_credits_arrives_in_order_both_ways() {
    let Some(adapter) = adapter() else { return };
    let (mut one, mut two) = wires(&adapter);
    let total = 3 * CREDITS * SLOT + 777;
    let (mut sent, mut got) = ([0; 2], [0; 2]);
    let mut piece = 1;
    let deadline = Instant::now() + Duration::from_secs(60);
    while got != [total; 2] {
        assert!(Instant::now() < deadline, "sent {sent:?}, got {got:?} of {total}");
        for (side, wire) in [&mut one, &mut two].into_iter().enumerate() {
            piece = piece * 7 % 30_011 + 1;
            let bytes: Vec<u8> = (sent[side]..total.min(sent[side] + piece)).map(byte).collect();
            let (first, second) = bytes.split_at(bytes.len() / 3);
            match Segments::lend(second, |second| wire.write(first, second)) {
                Ok(written) => sent[side] += written,
                Err(error) => assert_eq!(error, Errno::AGAIN),
            }
            // The second side reads less at a time, so that credits are used up.
            let mut into = vec![0; if side == 0 { 20_000 } else { piece / 2 + 1 }];
            let (front, tail) = into.split_at_mut(piece / 3);
            match Segments::lend_mut(front, |front| wire.read(front, tail)) {
                Ok(read) => {
                    let place = &mut got[side];
                    assert!(
                        into[..read].iter().enumerate().all(|(at, found)| *found == byte(*place + at)),
                        "wrong bytes"
                    );
                    *place += read;
                }
                Err(error) => assert_eq!(error, Errno::AGAIN),
            }
        }
    }
    until(|| {
        one.take();
        two.take();
        (one.is_calm() && two.is_calm()).then_some(())
    });
    assert_eq!((one.progress(), two.progress()), ((total as u64, total as u64), (total as u64, total as u64)));
}

#[test]
fn unread_messages_block_the_sender_until_read() {
    let Some(adapter) = adapter() else { return };
    let (mut one, mut two) = wires(&adapter);
    let mut sent = 0;
    until(|| match one.write_one(&[1; 100]) {
        Ok(written) => {
            sent += written;
            None
        }
        Err(error) => {
            assert_eq!(error, Errno::AGAIN);
            one.is_calm().then_some(())
        }
    });
    assert_eq!(sent, 100 * CREDITS, "each message costs a credit");
    assert_eq!(one.write_one(&[1]), Err(Errno::AGAIN));
    let mut got = 0;
    while got < sent {
        got += read(&mut two, 1000).expect("bytes").len();
    }
    until(|| {
        one.take();
        one.credits.has_room().then_some(())
    });
    assert_eq!(one.write_one(&[1]), Ok(1));
}

/// A message behind many acknowledgements is read at once, because no completion is left in the queue, where it would
/// not cause a wake-up.
///
/// Requirements: MSG-014.
#[test]
fn one_read_finds_a_message_behind_many_acknowledgements() {
    let Some(adapter) = adapter() else { return };
    let (mut one, mut two) = wires(&adapter);
    const MANY: usize = SENDS - 4;
    for _ in 0..MANY {
        assert_eq!(one.write_one(&[1]), Ok(1));
    }
    until(|| {
        two.take();
        (two.arrived.len() == MANY).then_some(())
    });
    assert_eq!(two.write_one(&[2]), Ok(1));
    until(|| {
        two.take();
        two.credits.is_calm().then_some(())
    });
    assert_eq!(one.read_one(&mut [0; 8]), Ok(1), "the peer's device has acknowledged it");
}

/// The owner of a wire with unread bytes must not sleep.
#[test]
fn wire_with_unread_bytes_is_not_calm() {
    let Some(adapter) = adapter() else { return };
    let (mut one, mut two) = wires(&adapter);
    assert!(two.is_calm());
    assert_eq!(one.write_one(&[1, 2]), Ok(2));
    until(|| {
        two.take();
        (!two.arrived.is_empty()).then_some(())
    });
    for _ in 0..2 {
        assert!(!two.is_calm());
        assert_eq!(two.read_one(&mut [0]), Ok(1));
    }
    assert!(two.is_calm());
}

/// Requirements: CON-019.
#[test]
fn returned_credit_proves_arrival() {
    let Some(adapter) = adapter() else { return };
    let (mut one, _two) = wires(&adapter);
    for len in [100, 50] {
        assert_eq!(one.write_one(&vec![1; len]), Ok(len));
    }
    // The credit arrives before the local device has reported anything.
    let read = Completion { id: RECEIVE, receive: true, status: 0, len: 1, immediate: Some(1), invalidated: None };
    one.completed(&read);
    assert_eq!(one.progress(), (150, 100));
    until(|| {
        one.take();
        one.credits.is_calm().then_some(())
    });
    assert_eq!(one.progress(), (150, 150));
}

#[test]
fn data_before_the_end_of_stream_is_read_first() {
    let Some(adapter) = adapter() else { return };
    let (mut one, mut two) = wires(&adapter);
    assert_eq!(one.write_one(b"last words"), Ok(10));
    until(|| {
        one.take();
        one.credits.is_calm().then_some(())
    });
    drop(one);
    until(|| {
        two.look();
        two.is_over().then_some(())
    });
    assert_eq!(read(&mut two, 100).as_deref(), Ok(&b"last words"[..]));
    assert_eq!(read(&mut two, 100).as_deref(), Ok(&b""[..]), "the end of the stream");
}

#[test]
fn a_pair_in_error_ends_the_stream_with_a_reason() {
    let Some(adapter) = adapter() else { return };
    let (mut one, _two) = wires(&adapter);
    one.pair.fail().expect("a failed pair");
    assert_eq!(read(&mut one, 1), Err(Errno::CONNRESET));
    assert!(matches!(one.failure(), Some(Broken::Died(_))), "{:?}", one.failure());
    assert_eq!(one.write_one(&[1]), Err(Errno::CONNRESET));
}

#[test]
fn peer_with_a_silent_device_times_out() {
    let Some(adapter) = adapter() else { return };
    let (mut one, mut two) = wires(&adapter);
    // The queue pair is destroyed. The TCP connection is kept, because its end would signal this.
    let connection = two.watched.take();
    drop(two);
    assert_eq!(one.write_one(&[1; 10]), Ok(10));
    assert_eq!(read(&mut one, 1), Err(Errno::TIMEDOUT));
    assert!(matches!(one.failure(), Some(Broken::Timeout(_))), "{:?}", one.failure());
    drop(connection);
}

#[test]
fn invalid_completion_or_message_ends_the_stream() {
    let Some(adapter) = adapter() else { return };
    let good = Completion { id: RECEIVE, receive: true, status: 0, len: 1, immediate: None, invalidated: None };
    let bad = [
        Completion { id: RECEIVE | RECEIVES as u64, ..good },
        Completion { id: RECEIVE | (1 << 40), ..good },
        Completion { len: SLOT as u32 + 1, ..good },
        Completion { immediate: Some(1), ..good },
        Completion { len: 0, ..good },
        Completion { len: 0, immediate: Some(0), ..good },
        Completion { immediate: Some(u32::MAX), ..good },
        Completion { id: 0, receive: false, ..good },
        Completion { id: NOTE, receive: false, ..good },
        Completion { id: NOTE | 1, ..good },
        Completion { status: -1, ..good },
        Completion { status: i32::MAX, ..good },
        Completion { invalidated: Some(1), ..good },
    ];
    for one in bad {
        let mut wire = Wire::new(&adapter).expect("a wire");
        wire.completed(&one);
        assert!(wire.failure().is_some(), "{one:?} was accepted");
    }
    let mut wire = Wire::new(&adapter).expect("a wire");
    wire.completed(&good);
    assert!(wire.failure().is_none());
    wire.completed(&good);
    assert!(wire.failure().is_some(), "a slot was filled twice");
}

/// The link over a wire. Its type differs in models.
#[cfg(not(loom))]
mod link {
    use super::*;
    use crate::Link as _;
    use crate::region::AccessOrigin;
    use crate::verbs::VerbsLink;
    use crate::verbs::tests::NoCache;
    use crate::wire::head::{FrameKind, Head};

    /// The close of a link waits for the acknowledgement of the peer's device.
    #[test]
    fn close_without_acknowledgement_is_reported() {
        let Some(adapter) = adapter() else { return };
        let (one, mut two) = wires(&adapter);
        // The queue pair is destroyed. The TCP connections are kept, because their end would signal this.
        let connection = two.watched.take();
        drop(two);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let called = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        let accepted = listener.accept().expect("a connection");
        let (socket, pins) = (OwnedFd::from(called).into(), Arc::new(NoCache));
        let link = VerbsLink::new(one, socket, TcpOptions::default(), None, AccessOrigin::default(), pins);
        let mut link = link.expect("a link");
        let head = Head { kind: FrameKind::Message, ..Head::default() };
        link.send(&head, &Segments::EMPTY, false).expect("room for a frame");
        assert!(!link.linger(Duration::from_secs(60)), "a message that was not acknowledged counts as delivered");
        drop((connection, accepted));
    }
}

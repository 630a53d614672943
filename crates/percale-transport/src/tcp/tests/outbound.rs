//! Tests of how writes are combined, on a stream that accepts a given number of bytes.

use std::collections::VecDeque;

use rustix::io::Errno;

use super::*;
use crate::local_memory::volatile::SegmentsExt as _;
use crate::tcp::outbound::{FLUSH_BYTES, Outbound, QUEUE_LIMIT};
use crate::tcp::socket::Stream;

/// A stream that accepts a given number of bytes, and records the lengths of the writes and the number of releases.
#[derive(Default)]
pub(in crate::tcp) struct Slow {
    pub(in crate::tcp) writes: Vec<usize>,
    pub(in crate::tcp) bytes: Vec<u8>,
    pub(in crate::tcp) room: VecDeque<usize>,
    pub(in crate::tcp) released: usize,
}

impl Stream for Slow {
    fn read(&mut self, _into: &Segments, _tail: &mut [u8]) -> Result<usize, Errno> {
        Err(Errno::AGAIN)
    }

    fn write(&mut self, prefix: &[u8], from: &Segments) -> Result<usize, Errno> {
        let all = prefix.len() + from.len();
        let room = self.room.pop_front().unwrap_or(usize::MAX).min(all);
        if room == 0 && all > 0 {
            return Err(Errno::AGAIN);
        }
        let front = room.min(prefix.len());
        self.bytes.extend(&prefix[..front]);
        self.bytes.extend(from.slice(0, room - front).to_vec());
        self.writes.push(room);
        Ok(room)
    }

    fn release(&mut self) {
        self.released += 1;
    }
}

#[test]
fn lone_frame_is_sent_at_once_and_a_burst_is_batched() {
    let (mut out, mut to) = (Outbound::new(), Slow::default());
    for _ in 0..3 {
        out.send(&mut to, &tagged(0, 0), &Segments::EMPTY, false).unwrap();
        out.poll(&mut to);
    }
    assert_eq!(to.writes, [32, 32, 32]);
    to.writes.clear();
    let count = 5 * FLUSH_BYTES / 32;
    for n in 0..count {
        // `more` is set, so that the result does not depend on the clock.
        out.send(&mut to, &tagged(0, n as u64), &Segments::EMPTY, true).unwrap();
    }
    out.poll(&mut to);
    assert_eq!(to.writes.iter().sum::<usize>(), count * 32);
    assert!(to.writes.len() <= 6, "{:?}", to.writes);
    assert_eq!(to.bytes.len(), (3 + count) * 32);
    assert!(out.is_empty());
}

#[test]
fn queued_frames_are_sent_with_the_last_frame_of_a_batch() {
    let (mut out, mut to) = (Outbound::new(), Slow::default());
    let memory = Lent::new(pattern(FLUSH_BYTES, 0));
    out.send(&mut to, &tagged(0, 0), &Segments::EMPTY, true).unwrap();
    out.send(&mut to, &tagged(0, 1), &Segments::EMPTY, true).unwrap();
    assert!(to.writes.is_empty());
    out.send(&mut to, &tagged(0, 2), &Segments::EMPTY, false).unwrap();
    assert_eq!(to.writes, [96]);
    out.poll(&mut to);
    out.send(&mut to, &tagged(0, 3), &Segments::EMPTY, true).unwrap();
    out.send(&mut to, &tagged(FLUSH_BYTES, 4), &memory.whole(), false).unwrap();
    assert_eq!(to.writes, [96, 64 + FLUSH_BYTES], "the user's memory is sent after the queued bytes");
}

/// Bytes that the stream holds back for more bytes are sent by the next poll.
#[test]
fn held_frames_are_released_by_the_next_poll() {
    let (mut out, mut to) = (Outbound::new(), Slow::default());
    for _ in 0..3 {
        out.send(&mut to, &tagged(0, 0), &Segments::EMPTY, true).unwrap();
        out.flush_queued(&mut to);
        assert!(out.is_empty() && !out.is_idle(), "the frame is held back");
        out.poll(&mut to);
        assert!(out.is_idle());
    }
    assert_eq!((to.writes, to.released), (vec![32, 32, 32], 3));
}

#[test]
fn full_socket_is_tried_once_per_poll_and_queue_is_bounded() {
    let (mut out, mut to) = (Outbound::new(), Slow { room: [10, 0, 0].into(), ..Slow::default() });
    let memory = Lent::new(pattern(1_000, 0));
    let mut sent = 0;
    while out.send(&mut to, &tagged(1_000, sent), &memory.whole(), false).is_ok() {
        sent += 1;
    }
    assert_eq!(to.writes, [10]);
    assert!((QUEUE_LIMIT..QUEUE_LIMIT + 2_000).contains(&out.queued()));
    assert_eq!(
        out.send(&mut to, &plain(FrameKind::Ack), &Segments::EMPTY, false),
        Ok(()),
        "answers have reserved room"
    );
    out.poll(&mut to);
    assert_eq!(to.room.len(), 1, "a poll requests room once");
    out.poll(&mut to);
    out.poll(&mut to);
    assert!(out.is_empty());
    let mut expected = Vec::new();
    for n in 0..sent {
        expected.extend(tagged(1_000, n).to_bytes().as_bytes());
        expected.extend(memory.bytes());
    }
    expected.extend(plain(FrameKind::Ack).to_bytes().as_bytes());
    assert!(to.bytes == expected);
}

proptest! {
    #[test]
    fn partial_writes_lose_nothing(
        rooms in prop::collection::vec(0..3_000usize, 0..200),
        lens in prop::collection::vec(0..20_000usize, 1..20),
        more in any::<u32>(),
    ) {
        let (mut out, mut to) = (Outbound::new(), Slow { room: rooms.into(), ..Slow::default() });
        let mut expected = Vec::new();
        for (n, &len) in lens.iter().enumerate() {
            let memory = Lent::new(pattern(len, n));
            let head = tagged(len, n as u64);
            while out.send(&mut to, &head, &memory.cut(&[len / 5]), more >> n & 1 == 1).is_err() {
                out.poll(&mut to);
            }
            expected.extend(head.to_bytes().as_bytes());
            expected.extend(memory.bytes());
        }
        while !out.is_empty() {
            out.poll(&mut to);
        }
        prop_assert!(to.bytes == expected);
    }
}

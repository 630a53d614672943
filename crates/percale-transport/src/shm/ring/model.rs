//! Loom models of the ring (`RUSTFLAGS="--cfg loom" cargo test --release -p percale-transport --lib loom_`).

use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;

use super::super::super::sync::{explore, fence};
use super::*;
use crate::local_memory::volatile::ViewExt as _;

/// A ring that two threads use.
struct TwoEnds(Heap);
// SAFETY: lines, blocks and credits are cells and atomics of loom, which checks their use.
unsafe impl Sync for TwoEnds {}
// SAFETY: as above.
unsafe impl Send for TwoEnds {}

/// Sends a frame with these flags for each length. The tags are the numbers of the frames.
fn send(tx: &mut Producer, flags: Flags, lengths: &[usize]) {
    for (tag, &len) in lengths.iter().enumerate() {
        let mut bytes = vec![tag as u8; len];
        let frame = Head { flags, ..head(len, tag as u64) };
        while tx.push(&frame, &segments(&mut bytes), Publish::Plain).is_err() {
            loom::thread::yield_now();
        }
    }
}

/// Receives the frames that [`send`] sends. Each frame must arrive whole.
fn receive(rx: &mut Consumer, lengths: &[usize]) {
    let mut scratch = [0; SCRATCH];
    let mut tag = 0;
    while tag < lengths.len() {
        let Some(arrival) = rx.peek(&mut scratch).unwrap() else {
            loom::thread::yield_now();
            continue;
        };
        assert_eq!(arrival.head.tag, tag as u64);
        // SAFETY: the frame is consumed below.
        let bytes = unsafe { arrival.view() }.to_vec();
        assert_eq!(bytes.len(), lengths[tag]);
        assert!(bytes.iter().all(|byte| *byte == tag as u8));
        rx.consume(&arrival);
        tag += 1;
    }
}

/// Sends frames with these flags and lengths through a ring in every interleaving with at most three preemptions.
fn transfer(expected: usize, shift: u32, bulk: usize, flags: Flags, lengths: &'static [usize]) {
    explore(Some(3), expected, move || {
        let heap = Arc::new(TwoEnds(Heap::new(shift, bulk)));
        let producer = {
            let heap = Arc::clone(&heap);
            loom::thread::spawn(move || send(&mut Producer::new(heap.0.area(bulk / 2)), flags, lengths))
        };
        receive(&mut Consumer::new(heap.0.area(bulk / 2)), lengths);
        producer.join().unwrap();
    });
}

/// Publication and credits: a ring of 4 lines carries more frames than it has lines, with payloads in lines and in
/// the byte ring. Each frame arrives whole, and no cell is written while it is read.
///
/// Requirements: RES-008.
#[test]
fn loom_ring_carries_whole_frames_and_reuses_lines_only_after_credit() {
    transfer(7000, 2, 2048, Flags::empty(), &[8, 600, 100, 0, 700]);
}

/// The receiver reads each of a frame's three lines only after the mark of that line, also if it has waited for it.
///
/// Requirements: RES-008.
#[test]
fn loom_each_line_of_a_frame_is_read_after_its_mark() {
    transfer(45, 3, 512, Flags::DATA, &[INLINE_MAX]);
}

/// A byte ring carries more bytes than it has. The ring has so many lines that no credits for lines are published,
/// so only the credits for bytes show that a payload was read before its bytes are written again.
///
/// Requirements: RES-008.
#[test]
fn loom_bytes_are_reused_only_after_credit() {
    transfer(250, 4, 512, Flags::empty(), &[200, 250, 130]);
}

/// A sender fences after a frame of any form, then checks whether the receiver sleeps. A receiver that is about to
/// sleep checks the ring once more.
///
/// Requirements: RES-008.
#[test]
fn loom_single_frame_of_any_length_wakes_a_sleeping_receiver() {
    for len in [0, 48, 49, INLINE_MAX, 200] {
        explore(None, 8, move || {
            let shared = Arc::new((TwoEnds(Heap::new(2, 512)), AtomicU32::new(0)));
            let sender = {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || {
                    let (heap, asleep) = &*shared;
                    let mut bytes = vec![0; len];
                    let mut tx = Producer::new(heap.0.area(256));
                    tx.push(&head(len, 0), &segments(&mut bytes), Publish::Fenced).unwrap();
                    asleep.load(Ordering::SeqCst) != 0
                })
            };
            let (heap, asleep) = &*shared;
            let rx = Consumer::new(heap.0.area(256));
            asleep.store(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let sleeps = rx.is_empty();
            let woken = sender.join().unwrap();
            assert!(!sleeps || woken, "no wake-up after {len} bytes");
        });
    }
}

/// A sender begins to omit fences while its receiver goes to sleep. A receiver that finds the mark of such a sender
/// fences for both sides, which loom does not support. A receiver that does not find it is woken.
///
/// Requirements: RES-008.
#[test]
fn loom_first_frame_without_a_fence_wakes_a_sleeping_receiver() {
    explore(None, 20, || {
        let shared = Arc::new((TwoEnds(Heap::new(2, 512)), AtomicU32::new(0), AtomicU32::new(0)));
        let sender = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                let (heap, unfenced, asleep) = &*shared;
                let mut tx = Producer::new(heap.0.area(256));
                mark_unfenced(unfenced);
                tx.push(&head(0, 0), &Segments::EMPTY, Publish::Plain).unwrap();
                asleep.load(Ordering::SeqCst) != 0
            })
        };
        let (heap, unfenced, asleep) = &*shared;
        let rx = Consumer::new(heap.0.area(256));
        asleep.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let sleeps = !is_unfenced(unfenced) && rx.is_empty();
        let woken = sender.join().unwrap();
        assert!(!sleeps || woken, "no wake-up");
    });
}

/// A sender whose ring is full requests room and sleeps. The receiver frees a line or some bytes.
///
/// Requirements: RES-008.
#[test]
fn loom_sender_that_waits_for_room_is_woken() {
    // In the first ring there is no room for another line, in the second no room for more bytes.
    for (shift, len, sent) in [(2, 0, 3), (4, 256, 2)] {
        explore(None, 30, move || {
            let shared = Arc::new((TwoEnds(Heap::new(shift, 512)), AtomicU32::new(0)));
            let mut bytes = vec![0; len];
            let mut tx = Producer::new(shared.0.0.area(256));
            for _ in 0..sent {
                tx.push(&head(len, 0), &segments(&mut bytes), Publish::Plain).unwrap();
            }
            let receiver = {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || {
                    let (heap, request) = &*shared;
                    let mut rx = Consumer::new(heap.0.area(256));
                    let arrival = rx.peek(&mut [0; SCRATCH]).unwrap().unwrap();
                    assert!(rx.consume(&arrival), "no credits were published");
                    is_room_requested(request)
                })
            };
            let (frame, payload) = (head(len, 0), segments(&mut bytes));
            let mut room = RoomRequest::default();
            let sleeps = tx.push(&frame, &payload, Publish::Plain).is_err()
                && room.push(&shared.1, &mut tx, &frame, &payload).is_err();
            let woken = receiver.join().unwrap();
            assert!(!sleeps || woken, "no wake-up of a sender of {len} bytes");
            assert_eq!(shared.1.load(Ordering::Relaxed) != 0, sleeps, "the request remains after the frame was sent");
        });
    }
}

//! Tests of the ring.

#![expect(unsafe_code, reason = "rings on private memory; each block states its own reason")]

#[cfg(loom)]
#[path = "model.rs"]
mod model;

use super::*;
use crate::local_memory::volatile::{Segment, Segments};
use crate::wire::head::Head;

/// A ring on the heap.
struct Heap {
    lines: Vec<RingLine>,
    bulk: Vec<std::cell::UnsafeCell<u64>>,
    #[cfg(loom)]
    cells: Vec<Shared<()>>,
    credits: ConsumerProgress,
}

impl Heap {
    fn new(shift: u32, bulk: usize) -> Self {
        let line = || RingLine { mark: AtomicU64::new(0), body: Shared::new([0; 7]) };
        Self {
            lines: (0..1 << shift).map(|_| line()).collect(),
            bulk: (0..bulk / 8).map(|_| 0.into()).collect(),
            #[cfg(loom)]
            cells: (0..bulk / LINE).map(|_| Shared::new(())).collect(),
            credits: ConsumerProgress { lines: AtomicU64::new(0), bulk: AtomicU64::new(0) },
        }
    }

    fn area(&self, max: usize) -> Area {
        let (shift, bytes) = (self.lines.len().trailing_zeros(), self.bulk.len() * 8);
        let bulk = self.bulk.as_ptr().cast_mut().cast();
        // SAFETY: the tests keep the heap alive and in place longer than the area's ends.
        let area = unsafe { Area::new(self.lines.as_ptr(), shift, bulk, bytes, &raw const self.credits, max) };
        #[cfg(loom)]
        let area = Area { cells: self.cells.as_ptr(), ..area };
        area
    }
}

impl Consumer {
    fn peek(&self, scratch: &mut AssemblyBuffer) -> Result<Option<RingFrame>, &'static str> {
        self.next().map_or(Ok(None), |mark| self.peek_any(mark, scratch))
    }
}

fn segments(bytes: &mut [u8]) -> Segments {
    // SAFETY: the tests keep the bytes alive while they are used.
    Segments::one(unsafe { Segment::new(bytes.as_mut_ptr(), bytes.len()) })
}

fn head(len: usize, tag: u64) -> Head {
    Head { kind: FrameKind::Tagged, len: len as u32, tag, ..Head::default() }
}

#[cfg(not(loom))]
mod plain {
    use super::*;
    use crate::local_memory::volatile::ViewExt as _;

    #[test]
    fn frames_of_every_size_and_shape_arrive_as_sent() {
        let heap = Heap::new(6, 4096);
        let (mut tx, mut rx) = (Producer::new(heap.area(2048)), Consumer::new(heap.area(2048)));
        let mut scratch = [0; SCRATCH];
        let mut tag = 0u64;
        for round in 0..3 {
            for len in (0..=600).chain([1000, 1024, 1500, 2047, 2048]) {
                for flags in 0..8 {
                    tag += 1;
                    let flags = Flags::from_bits(flags).unwrap();
                    let id = if complete(flags).contains(Flags::ID) { 77 + tag as u32 } else { 0 };
                    let data = if flags.contains(Flags::DATA) { !tag } else { 0 };
                    let mut bytes: Vec<u8> = (0..len).map(|i| (i as u64 * 7 + tag) as u8).collect();
                    let kind = if round == 0 { FrameKind::Message } else { FrameKind::Data };
                    let sent = Head { kind, flags, len: len as u32, tag, data, id };
                    let how = if tag.is_multiple_of(2) { Publish::Plain } else { Publish::Fenced };
                    assert!(rx.is_empty());
                    tx.push(&sent, &segments(&mut bytes), how).unwrap();
                    assert!(!rx.is_empty());
                    let arrival = rx.peek(&mut scratch).unwrap().expect("a frame");
                    assert_eq!(arrival.head, Head { flags: complete(flags), ..sent });
                    // SAFETY: the frame is consumed below.
                    assert_eq!(unsafe { arrival.view() }.to_vec(), bytes);
                    rx.consume(&arrival);
                    assert!(rx.peek(&mut scratch).unwrap().is_none());
                }
            }
        }
    }

    #[test]
    fn full_ring_accepts_frames_after_a_quarter_is_consumed() {
        let heap = Heap::new(4, 4096);
        let (mut tx, mut rx) = (Producer::new(heap.area(2048)), Consumer::new(heap.area(2048)));
        let (mut scratch, none) = ([0; SCRATCH], Segments::EMPTY);
        let mut sent = 0;
        while tx.push(&head(0, sent), &none, Publish::Plain).is_ok() {
            sent += 1;
        }
        assert_eq!(sent, 15, "one line stays free");
        for expected in 0..4 {
            assert_eq!(tx.push(&head(0, sent), &none, Publish::Plain), Err(NoRoom::Full));
            let arrival = rx.peek(&mut scratch).unwrap().unwrap();
            assert_eq!(arrival.head.tag, expected);
            assert_eq!(rx.consume(&arrival), expected == 3);
        }
        for _ in 0..4 {
            tx.push(&head(0, 0), &none, Publish::Plain).unwrap();
        }
        assert_eq!(tx.push(&head(0, 0), &none, Publish::Plain), Err(NoRoom::Full));
    }

    #[test]
    fn empty_ring_accepts_the_longest_payload_at_any_position() {
        for first in (513..=2048).step_by(61) {
            let heap = Heap::new(6, 4096);
            let (mut tx, mut rx) = (Producer::new(heap.area(2048)), Consumer::new(heap.area(2048)));
            let mut scratch = [0; SCRATCH];
            // A payload of 960 bytes ends less than a quarter of the ring behind the last credits.
            for len in [first, 960, 2048, first, 2048, 2048, first] {
                let mut bytes = vec![len as u8; len];
                tx.push(&head(len, 0), &segments(&mut bytes), Publish::Plain).unwrap();
                let arrival = rx.peek(&mut scratch).unwrap().unwrap();
                // SAFETY: the frame is consumed below.
                assert_eq!(unsafe { arrival.view() }.to_vec(), bytes);
                rx.consume(&arrival);
            }
        }
        let heap = Heap::new(6, 4096);
        let mut bytes = vec![0; 2049];
        let mut tx = Producer::new(heap.area(2048));
        assert_eq!(tx.push(&head(2049, 0), &segments(&mut bytes), Publish::Plain), Err(NoRoom::TooLong));
    }

    #[test]
    fn incomplete_frame_is_not_returned() {
        let heap = Heap::new(6, 4096);
        let (mut tx, rx) = (Producer::new(heap.area(2048)), Consumer::new(heap.area(2048)));
        let mut bytes = vec![1; INLINE_MAX];
        tx.push(&head(INLINE_MAX, 0), &segments(&mut bytes), Publish::Plain).unwrap();
        let last = &heap.lines[1].mark;
        let mark = last.swap(0, Ordering::Relaxed);
        assert_ne!(mark, 0);
        assert!(rx.peek(&mut [0; SCRATCH]).unwrap().is_none());
        assert!(!rx.is_empty());
        last.store(mark, Ordering::Relaxed);
        assert!(rx.peek(&mut [0; SCRATCH]).unwrap().is_some());
    }

    /// A consumer that withdraws credits could make its producer wait without end.
    #[test]
    fn withdrawn_credits_are_rejected() {
        // In the first ring there is no room for another line, in the second no room for more bytes.
        for (shift, len, sent) in [(2, 0, 3), (4, 256, 2)] {
            let heap = Heap::new(shift, 512);
            let (mut tx, mut rx) = (Producer::new(heap.area(256)), Consumer::new(heap.area(256)));
            let mut bytes = vec![0; len];
            let (frame, payload) = (head(len, 0), segments(&mut bytes));
            for _ in 0..sent {
                tx.push(&frame, &payload, Publish::Plain).unwrap();
            }
            assert_eq!(tx.push(&frame, &payload, Publish::Plain), Err(NoRoom::Full));
            let arrival = rx.peek(&mut [0; SCRATCH]).unwrap().unwrap();
            assert!(rx.consume(&arrival));
            tx.push(&frame, &payload, Publish::Plain).unwrap();
            assert_eq!(tx.push(&frame, &payload, Publish::Plain), Err(NoRoom::Full));
            let credits = if len == 0 { &heap.credits.lines } else { &heap.credits.bulk };
            credits.store(0, Ordering::Relaxed);
            assert_eq!(tx.push(&frame, &payload, Publish::Plain), Err(NoRoom::BadCredits));
        }
    }

    /// The short path takes messages without flags other than `DATA`. A frame with any other flag gets all checks.
    #[test]
    fn message_with_other_flags_is_not_taken_unchecked() {
        let heap = Heap::new(2, 4096);
        let rx = Consumer::new(heap.area(2048));
        for kind in [FrameKind::Message, FrameKind::Tagged, FrameKind::Collective] {
            for flags in 0..=u8::MAX {
                let mark = 1 | (kind as u64) << 16 | u64::from(flags) << 24;
                heap.lines[0].mark.store(mark, Ordering::Relaxed);
                let taken = rx.peek_message(rx.next().unwrap());
                let plain = flags == Flags::DATA.bits() || (flags == 0 && kind != FrameKind::Collective);
                assert_eq!(taken.is_some(), plain, "{kind:?} with flags {flags:#x}");
            }
        }
    }

    #[test]
    fn marks_wrap_around() {
        let heap = Heap::new(2, 4096);
        let (mut tx, mut rx) = (Producer::new(heap.area(2048)), Consumer::new(heap.area(2048)));
        let mut scratch = [0; SCRATCH];
        for tag in 0..(1 << 18) + 9 {
            assert!(rx.is_empty());
            tx.push(&head(0, tag), &Segments::EMPTY, Publish::Plain).unwrap();
            let arrival = rx.peek(&mut scratch).unwrap().unwrap();
            assert_eq!(arrival.head.tag, tag);
            rx.consume(&arrival);
        }
    }

    #[test]
    fn invalid_marks_are_rejected() {
        let heap = Heap::new(2, 4096);
        let mut rx = Consumer::new(heap.area(2048));
        let try_mark = |mark: u64| {
            heap.lines[0].mark.store(mark, Ordering::Relaxed);
            rx.peek(&mut [0; SCRATCH]).map(|arrival| arrival.is_some())
        };
        assert_eq!(try_mark(2 | 1 << 16), Ok(false), "another lap");
        assert!(try_mark(1).is_err(), "no kind");
        assert!(try_mark(1 | 200 << 16).is_err(), "no such kind");
        assert!(try_mark(1 | 1 << 16 | 0x80 << 24).is_err(), "no such flag");
        assert!(try_mark(1 | 1 << 16 | 4 << 24).is_err(), "ACK without ID");
        assert!(try_mark(1 | 1 << 16 | 2049 << 32).is_err(), "too long");
        assert!(try_mark(1 | 1 << 16 | u64::MAX << 32).is_err(), "much too long");
        assert_eq!(try_mark(1 | 1 << 16 | 2048 << 32), Ok(true));
        let arrival = rx.peek(&mut [0; SCRATCH]).unwrap().unwrap();
        rx.consume(&arrival);
        for (lines, bulk) in [(9, 0), (u64::MAX, 0), (0, 64), (0, u64::MAX), (1 << 63, 0)] {
            let mut tx = Producer::new(heap.area(2048));
            heap.credits.lines.store(lines, Ordering::Relaxed);
            heap.credits.bulk.store(bulk, Ordering::Relaxed);
            let error = (0..9).find_map(|_| tx.push(&head(0, 0), &Segments::EMPTY, Publish::Plain).err());
            assert_eq!(error, Some(NoRoom::BadCredits));
        }
    }
}

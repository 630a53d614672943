//! Tests that a link does not trust the parts that it gets from connection set-up or the content of the pair's memory,
//! and does not rely on that content staying unchanged.

use std::os::fd::AsFd;

use super::*;
use crate::local_memory::mapping::{Mapping, sealed_memfd};
use crate::local_memory::volatile::ViewExt as _;
use crate::shm::pair::PAIR_BYTES;
use crate::shm::{ForgedLine, fuzz_ring};

#[test]
fn setup_parameters_are_validated() {
    let [good, _] = parts(true);
    assert!(matches!(ShmLink::new(ShmLinkParts { side: 2, ..good }), Err(SetUpError::Side(2))));
    let [good, _] = parts(true);
    assert!(matches!(
        ShmLink::new(ShmLinkParts { peer_bit: DOORBELL_BITS, ..good }),
        Err(SetUpError::Bit(DOORBELL_BITS))
    ));
    let [good, _] = parts(true);
    let small = sealed_memfd("percale-test", PAIR_BYTES - 4096, 0).unwrap();
    assert!(matches!(ShmLink::new(ShmLinkParts { pair: small, ..good }), Err(SetUpError::Pair(_))));
    let [good, _] = parts(true);
    let doorbell = sealed_memfd("percale-test", 100, 0).unwrap();
    assert!(matches!(ShmLink::new(ShmLinkParts { peer_doorbell: doorbell, ..good }), Err(SetUpError::Doorbell(_))));
    let [good, _] = parts(true);
    let link = ShmLink::new(ShmLinkParts { peer_nonce: (good.peer_nonce.0, 1), ..good }).unwrap();
    assert!(link.cma_reason().unwrap().contains("not the peer"));
    assert!(link.describe().contains("not the peer"));
    let [good, _] = parts(true);
    let link = ShmLink::new(ShmLinkParts { peer_nonce: (8, 1), ..good }).unwrap();
    assert!(link.cma_reason().unwrap().contains("/mem"));
}

/// Requirements: CON-008.
#[test]
fn memory_mapped_during_setup_is_not_mapped_again() {
    let [mut one, mut two] = parts(false);
    for parts in [&mut one, &mut two] {
        parts.mappings = Some(Mappings::new(parts.pair.as_fd(), parts.peer_doorbell.as_fd()).unwrap());
        // These descriptors cannot be mapped, as if the process were at its limit.
        let nothing = || std::fs::File::open("/dev/null").unwrap().into();
        (parts.pair, parts.peer_doorbell) = (nothing(), nothing());
    }
    assert!(ShmLink::new(one).is_ok() && ShmLink::new(two).is_ok());
}

/// The creator of a pair may not have allocated its memory. The other side allocates it, so that no access of a message
/// fails for lack of memory.
#[test]
fn memory_of_an_idle_pair_is_allocated_when_it_is_mapped() {
    let memory = sealed_memfd("percale-test", PAIR_BYTES, 0).unwrap();
    let allocated = || rustix::fs::fstat(&memory).unwrap().st_blocks * 512;
    assert_eq!(allocated(), 0);
    let _pair = PairMemory::new(rustix::io::dup(&memory).unwrap()).unwrap();
    assert!(allocated() >= 16 << 10, "{} bytes", allocated());
}

/// Returns the violation of the protocol with which side 1 ends the connection.
fn violation(both: &mut [Peer; 2]) -> String {
    let peer = &mut both[1];
    match (0..10).find_map(|_| peer.link.poll(9, &mut peer.seen).err()) {
        Some(Broken::Protocol(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn invalid_frame_ends_the_connection() {
    let mut both = peers(false, HEAP);
    // A payload that is longer than the small ring allows.
    let message = Head { kind: FrameKind::Message, len: 2049, ..Head::default() };
    both[0].link.forge_line(&ForgedLine::of(&message, &[]), 0);
    assert_eq!(violation(&mut both), "a payload longer than its ring allows");

    let mut both = peers(false, HEAP);
    let message = Head { kind: FrameKind::Message, flags: Flags::PART, ..Head::default() };
    both[0].link.forge_line(&ForgedLine::of(&message, &[]), 0);
    assert!(violation(&mut both).contains("flags"));
    assert!(both[1].seen.messages.is_empty());
}

#[test]
fn larger_ring_is_announced_only_once() {
    let mut both = peers(false, HEAP);
    both[0].send(1, &[1; 4000], false).unwrap();
    run(&mut both, |both| both[1].seen.messages.len() == 1);
    let again = Head { kind: FrameKind::Transport, tag: crate::shm::sender::GROW, ..Head::default() };
    both[0].link.forge_line(&ForgedLine::of(&again, &[]), 0);
    assert_eq!(violation(&mut both), "unknown transport frame");
    assert_eq!(both[1].seen.messages.len(), 1);
}

/// Side 1 pulls `len` bytes of operation 3. Side 0 receives the request.
fn request(both: &mut [Peer; 2], len: usize, into: &mut Memory, from: &mut Memory) -> (Head, Vec<u8>) {
    let address = from.heap.as_ptr().expose_provenance() as u64;
    let offer = Offer { len: (len as u64).into(), address: address.into(), pieces: 1.into(), ..Offer::default() };
    both[1].link.pull(3, &offer, &into.lease(), 7).unwrap();
    run(both, |both| !both[0].seen.requests.is_empty());
    both[0].seen.requests.remove(0)
}

#[test]
fn more_data_than_was_requested_ends_the_connection() {
    const LEN: usize = 1000;
    for (first, second) in [(LEN + 1, 1), (LEN - 1, 2)] {
        let mut both = peers(false, HEAP);
        let (mut source, mut target) = (Memory::new(LEN, Kept::Heap), Memory::new(LEN, Kept::Heap));
        let (head, bytes) = request(&mut both, LEN, &mut target, &mut source);
        both[0].link.push(head.id, head.tag, View::of(&bytes), &source.lease()).unwrap();
        let mut offset = 0;
        for len in [first, second] {
            let id = head.tag as u32;
            let data = Head { kind: FrameKind::Data, flags: Flags::ID, tag: offset, id, len: len as u32, ..head };
            let send = |payload: &Segments| both[0].link.send(&data, payload, false);
            Segments::lend(&vec![1; len], send).unwrap();
            offset += len as u64;
        }
        assert_eq!(violation(&mut both), "data at a wrong offset");
    }
}

#[test]
fn invalid_pull_ends_the_connection() {
    const LEN: usize = 1 << 20;
    // The request is valid, asks for chunks that are too short or too long, or is made twice.
    for (chunk, valid) in [(None, 1), (Some(4095), 0), (Some((128 << 10) + 1), 0), (Some(u32::MAX), 0)] {
        let mut both = peers(true, HEAP);
        let (mut source, mut target) = (Memory::new(LEN, Kept::Heap), Memory::new(LEN, Kept::Heap));
        let (head, mut bytes) = request(&mut both, LEN, &mut target, &mut source);
        if let Some(chunk) = chunk {
            bytes[4..8].copy_from_slice(&u32::to_le_bytes(chunk));
        }
        let mut push = || both[0].link.push(head.id, head.tag, View::of(&bytes), &source.lease());
        let accepted = (0..3).take_while(|_| push().is_ok()).count();
        assert_eq!(accepted, valid, "{chunk:?}");
        both.iter().for_each(|peer| peer.link.connection_end().set("over"));
    }
}

#[test]
fn arbitrary_pair_memory_breaks_only_its_link() {
    for seed in 0..1500u64 {
        let mut bytes = pattern(seed, [200, 4200, 9000, 30_000][(seed % 4) as usize]);
        if seed % 3 == 0 {
            // Plausible marks: an existing kind, only known flags, short lengths.
            for at in (1..bytes.len().saturating_sub(8)).step_by(64) {
                bytes[at + 2] = bytes[at + 2] % 22 + 1;
                bytes[at + 3] %= 4;
                bytes[at + 5] %= 12;
                bytes[at + 6] = 0;
                bytes[at + 7] = 0;
            }
        }
        fuzz_ring(&bytes);
    }
}

/// A thread writes arbitrary bytes all over the pair while messages are sent in both directions.
#[test]
fn overwriting_pair_memory_breaks_only_the_link() {
    for seed in 0..40u64 {
        let parts = parts(false);
        let scribble = Mapping::of(parts[0].pair.as_fd(), PAIR_BYTES).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (stop, scribble) = (&stop, &scribble);
            let sides = parts.map(|parts| {
                scope.spawn(move || {
                    let doorbell = Arc::clone(&parts.my_doorbell);
                    let link = ShmLink::new(parts).unwrap();
                    let mut seen = Scribbled::default();
                    let mut peer = Peer {
                        link,
                        doorbell,
                        seen: Seen::default(),
                        sources: HashMap::new(),
                        targets: HashMap::new(),
                        how: HEAP,
                        next: 0,
                    };
                    for tag in 0..4000 {
                        let bytes = vec![1; size(tag, 100_000)];
                        if peer.send(tag, &bytes, false) == Err(Refused::Broken)
                            || peer.link.poll(9, &mut seen).is_err()
                        {
                            break;
                        }
                        seen.answer(&mut peer);
                    }
                })
            });
            scope.spawn(move || {
                let mut round = seed << 20;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    round += 1;
                    let dice = pattern(round, 12);
                    let word = u32::from_le_bytes(dice[..4].try_into().unwrap()) as usize;
                    // Most writes go where they are most harmful, which is the control page and the first rings.
                    let at = word % if dice[4].is_multiple_of(8) { PAIR_BYTES - 8 } else { 20 << 10 };
                    for (index, byte) in dice[5..].iter().enumerate().take(1 + usize::from(dice[4] % 7)) {
                        // SAFETY: the address is within the mapping, and links allow other processes to write to it at
                        // any time.
                        unsafe { scribble.as_ptr().wrapping_add(at + index).write_volatile(*byte) };
                    }
                    std::thread::yield_now();
                }
            });
            for side in sides {
                side.join().unwrap();
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}

/// An engine that does not trust anything from the link.
#[derive(Default)]
struct Scribbled {
    offers: Vec<(Head, Offer)>,
    requests: Vec<(Head, Vec<u8>)>,
    /// Buffers are kept until the end, because there is no reliable report of a transfer's end.
    kept: Vec<Memory>,
}

impl Scribbled {
    fn answer(&mut self, peer: &mut Peer) {
        for (head, offer) in self.offers.drain(..) {
            let mut memory = Memory::new((offer.len.get() as usize).min(100_000), Kept::Heap);
            peer.link.pull(head.id, &offer, &memory.lease(), head.id).ok();
            self.kept.push(memory);
        }
        for (head, request) in self.requests.drain(..) {
            let source = Lease::own(&peer.sources.get_mut(&head.id).map_or(Segments::EMPTY, Memory::segments));
            peer.link.push(head.id, head.tag, View::of(&request), &source).ok();
        }
    }
}

impl Sink for Scribbled {
    fn frame(&mut self, _: ConnectionId, head: &Head, payload: View<'_>) {
        match head.kind {
            FrameKind::MessageOffer => self.offers.extend(payload.read(0).map(|offer| (*head, offer))),
            FrameKind::Pull => self.requests.push((*head, payload.to_vec())),
            _ => assert_eq!(payload.to_vec().len(), head.len as usize),
        }
    }

    fn begin(&mut self, _: ConnectionId, _: Head) -> Landing {
        unreachable!("payloads arrive whole")
    }

    fn landed(&mut self, _: ConnectionId, _: u32) {
        unreachable!("payloads arrive whole")
    }

    fn pulled(&mut self, _: ConnectionId, _: u32, _: Result<u64, PullError>) {}

    fn undone(&mut self, _: ConnectionId, _: u32) {}

    fn assisted(&mut self, _: ConnectionId, _: u32, _: Result<(), PullError>) {}

    fn pushed(&mut self, _: ConnectionId, _: u32, _: Result<(), PullError>) {}
}

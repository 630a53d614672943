//! Tests that a link does not trust the parts that it gets from connection set-up or the content of the pair's memory,
//! and does not rely on that content staying unchanged.

use std::os::fd::AsFd;

use super::*;
use crate::local_memory::mapping::{Mapping, sealed_memfd};
use crate::local_memory::volatile::ViewExt as _;
use crate::shm::fuzz_ring;
use crate::shm::pair::PAIR_BYTES;

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

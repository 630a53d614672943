//! Tests with two links in one process, each with its own thread.

#![expect(unsafe_code, reason = "lends buffers and maps arenas; each block states its own reason")]

#[path = "distrust_tests.rs"]
mod distrust;

use std::collections::{HashMap, VecDeque};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::*;
use crate::local_memory::sealed::AllocationExt as _;
use crate::local_memory::sealed::{Allocation, allocate};
use crate::local_memory::volatile::ViewExt as _;
use crate::peer_process::PeerProcess;
use crate::shm::pair::pair_memory;
use crate::shm::{Doorbell, WakeMethod};
use crate::system::forked::word_of_this_process;
use crate::wire::head::Flags;
use crate::{Landing, PullError};

/// An endpoint with one link, which answers offers and pulls as an engine would.
struct Peer {
    link: ShmLink,
    doorbell: Arc<Doorbell>,
    seen: Seen,
    /// The sources of offers of this peer, by id.
    sources: HashMap<u32, Memory>,
    /// The destinations of pulls of this peer, by token.
    targets: HashMap<u32, (Memory, u64)>,
    how: How,
    next: u32,
}

#[derive(Default)]
struct Seen {
    messages: VecDeque<(Head, Vec<u8>)>,
    offers: Vec<(Head, Offer)>,
    requests: Vec<(Head, Vec<u8>)>,
    pulled: Vec<(u32, Result<u64, PullError>)>,
    pushed: Vec<(u32, Result<(), PullError>)>,
}

/// The kind of memory from which large messages are sent and into which they are received.
#[derive(Clone, Copy, PartialEq)]
struct How {
    source: Kept,
    target: Kept,
}

#[derive(Clone, Copy, PartialEq)]
enum Kept {
    Heap,
    Arena,
    /// Heap memory in three pieces.
    Pieces,
}

/// Memory for one message.
struct Memory {
    heap: Vec<u8>,
    arena: Option<Allocation>,
    pieces: bool,
}

impl Memory {
    fn new(len: usize, kept: Kept) -> Self {
        let in_arena = kept == Kept::Arena;
        Self {
            heap: if in_arena { Vec::new() } else { vec![0; len] },
            arena: in_arena.then(|| allocate(len).unwrap()),
            pieces: kept == Kept::Pieces,
        }
    }

    fn lease(&mut self) -> Lease {
        Lease::own(&self.segments())
    }

    fn segments(&mut self) -> Segments {
        if let Some(arena) = &self.arena {
            return Segments::one(arena.segment());
        }
        // SAFETY: the vector outlives the transfer that uses it, because it is kept in a table.
        let all = Segments::one(unsafe { Segment::new(self.heap.as_mut_ptr(), self.heap.len()) });
        if !self.pieces {
            return all;
        }
        let third = self.heap.len() / 3;
        let piece = |at: usize, len: usize| all.slice(at, len).as_slice().first().copied().unwrap_or(Segment::EMPTY);
        Segments::new(&[piece(0, third), piece(third, 7), piece(third + 7, usize::MAX)]).unwrap()
    }
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// Returns a size; small sizes are as likely as large ones.
fn size(seed: u64, max: usize) -> usize {
    let bits = pattern(seed, 9);
    let word = u64::from_le_bytes(bits[..8].try_into().unwrap()) as usize;
    (word % (1 << (usize::from(bits[8]) % 21))).min(max)
}

/// Returns the address and the value of the word that identifies a peer in this process. The word is in a page of its
/// own, as during connection set-up.
fn nonce() -> (u64, u64) {
    const VALUE: u64 = 0x1234_5678_9ABC_DEF0;
    static WORD: OnceLock<&'static AtomicU64> = OnceLock::new();
    let word = *WORD.get_or_init(|| word_of_this_process().unwrap());
    word.store(VALUE, Ordering::Relaxed);
    (std::ptr::from_ref(word).expose_provenance() as u64, VALUE)
}

pub(in crate::shm) fn parts(cma: bool) -> [ShmLinkParts; 2] {
    let pair = pair_memory().unwrap();
    let doorbells = [Arc::new(Doorbell::new().unwrap()), Arc::new(Doorbell::new().unwrap())];
    let (a, b) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let mut sockets = [Some(a), Some(b)];
    [0usize, 1].map(|side| ShmLinkParts {
        side: side as u8,
        pair: rustix::io::dup(&pair).unwrap(),
        my_doorbell: Arc::clone(&doorbells[side]),
        my_bit: 5 + side as u32,
        peer_doorbell: rustix::io::dup(doorbells[1 - side].descriptors().unwrap()[0]).unwrap(),
        mappings: None,
        peer_event: rustix::io::dup(doorbells[1 - side].event_fd()).unwrap(),
        peer_bit: 6 - side as u32,
        control: sockets[side].take().unwrap().into(),
        peer_nonce: nonce(),
        cma,
        process: Some(Arc::new(PeerProcess::of(std::process::id().cast_signed()).unwrap())),
        keys: None,
        via: crate::region::AccessOrigin::default(),
    })
}

fn peers(cma: bool, how: How) -> [Peer; 2] {
    parts(cma).map(|parts| {
        let doorbell = Arc::clone(&parts.my_doorbell);
        let link = ShmLink::new(parts).unwrap();
        barrier::register();
        assert_eq!(link.cma_reason().is_none(), cma, "{:?}", link.cma_reason());
        let (sources, targets) = (HashMap::new(), HashMap::new());
        Peer { link, doorbell, seen: Seen::default(), sources, targets, how, next: 0 }
    })
}

impl Sink for Seen {
    fn frame(&mut self, from: ConnectionId, head: &Head, payload: View<'_>) {
        assert_eq!(from, 9);
        match head.kind {
            FrameKind::MessageOffer => self.offers.push((*head, payload.read(0).unwrap())),
            FrameKind::Pull => self.requests.push((*head, payload.to_vec())),
            _ => self.messages.push_back((*head, payload.to_vec())),
        }
    }

    fn begin(&mut self, _: ConnectionId, _: Head) -> Landing {
        unreachable!("payloads arrive whole")
    }

    fn landed(&mut self, _: ConnectionId, _: u32) {
        unreachable!("payloads arrive whole")
    }

    fn pulled(&mut self, _: ConnectionId, token: u32, result: Result<u64, PullError>) {
        self.pulled.push((token, result));
    }

    fn undone(&mut self, _: ConnectionId, _: u32) {}

    fn assisted(&mut self, _: ConnectionId, _: u32, _: Result<(), PullError>) {}

    fn pushed(&mut self, _: ConnectionId, id: u32, result: Result<(), PullError>) {
        self.pushed.push((id, result));
    }
}

impl Peer {
    fn poll(&mut self) -> Result<bool, Broken> {
        let moved = self.link.poll(9, &mut self.seen)?;
        for (head, offer) in std::mem::take(&mut self.seen.offers) {
            self.next += 1;
            let mut memory = Memory::new(offer.len.get() as usize, self.how.target);
            let into = memory.lease();
            self.targets.insert(self.next, (memory, head.tag));
            self.link.pull(head.id, &offer, &into, self.next).unwrap();
        }
        for (head, request) in std::mem::take(&mut self.seen.requests) {
            let source = Lease::own(&self.sources.get_mut(&head.id).map_or(Segments::EMPTY, Memory::segments));
            self.link.push(head.id, head.tag, View::of(&request), &source).unwrap();
        }
        for (token, result) in std::mem::take(&mut self.seen.pulled) {
            let (mut memory, tag) = self.targets.remove(&token).unwrap();
            let bytes = memory.segments().to_vec();
            assert_eq!(result, Ok(bytes.len() as u64));
            let head = Head { kind: FrameKind::Message, len: bytes.len() as u32, tag, ..Head::default() };
            self.seen.messages.push_back((head, bytes));
        }
        for (id, result) in std::mem::take(&mut self.seen.pushed) {
            assert_eq!(result, Ok(()));
            self.sources.remove(&id).unwrap();
        }
        Ok(moved)
    }

    /// Sends one message of any length. After `Full` the caller tries again.
    fn send(&mut self, tag: u64, bytes: &[u8], more: bool) -> Result<(), Refused> {
        if bytes.len() <= self.link.frame_limit() {
            let mut bytes = bytes.to_vec();
            let head = Head { kind: FrameKind::Message, len: bytes.len() as u32, tag, ..Head::default() };
            // SAFETY: the vector lives until `send` returns.
            let payload = Segments::one(unsafe { Segment::new(bytes.as_mut_ptr(), bytes.len()) });
            return self.link.send(&head, &payload, more);
        }
        let id = tag as u32;
        let mut memory = Memory::new(bytes.len(), self.how.source);
        let source = memory.segments();
        View::of(bytes).copy_into(&source, 0);
        let first = source.as_slice()[0].as_ptr().expose_provenance() as u64;
        let mut offer = Offer {
            len: (bytes.len() as u64).into(),
            address: first.into(),
            pieces: (source.as_slice().len() as u32).into(),
            ..Offer::default()
        };
        let head = Head {
            kind: FrameKind::MessageOffer,
            flags: Flags::ID,
            len: size_of::<Offer>() as u32,
            tag,
            id,
            ..Head::default()
        };
        let payload = offer.as_mut_bytes();
        // SAFETY: the offer lives until `send` returns.
        let payload = Segments::one(unsafe { Segment::new(payload.as_mut_ptr(), payload.len()) });
        self.link.send(&head, &payload, more)?;
        self.sources.insert(id, memory);
        Ok(())
    }
}

/// Both sides send `count` messages of random sizes and check the messages that they receive. Large and small messages
/// may overtake each other.
fn exchange(mut peers: [Peer; 2], count: u64, max: usize) -> [Peer; 2] {
    std::thread::scope(|scope| {
        let threads = peers.each_mut().map(|peer| {
            scope.spawn(move || {
                let side = peer.link.side as u64;
                let (mut sent, mut got) = (0, 0);
                let deadline = Instant::now() + Duration::from_secs(60);
                while sent < count || got < count || !peer.sources.is_empty() || !peer.link.transfers.is_empty() {
                    assert!(Instant::now() < deadline, "stuck at {sent} sent, {got} received");
                    let seed = sent * 2 + side;
                    if sent < count
                        && peer.targets.len() < 20
                        && peer.send(sent, &pattern(seed, size(seed, max)), sent.is_multiple_of(3)).is_ok()
                    {
                        sent += 1;
                    }
                    if !peer.poll().unwrap() {
                        std::thread::yield_now();
                    }
                    while let Some((head, bytes)) = peer.seen.messages.pop_front() {
                        let seed = head.tag * 2 + 1 - side;
                        assert_eq!(head.len as usize, size(seed, max));
                        assert!(bytes == pattern(seed, bytes.len()), "message {} is damaged", head.tag);
                        got += 1;
                    }
                }
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
    });
    assert!(peers.iter().all(|peer| peer.sources.is_empty() && peer.targets.is_empty()));
    peers
}

const HEAP: How = How { source: Kept::Heap, target: Kept::Heap };

#[test]
fn messages_of_all_sizes_arrive_by_cma() {
    exchange(peers(true, HEAP), 400, 1 << 20);
}

#[test]
fn messages_of_all_sizes_arrive_without_cma() {
    exchange(peers(false, HEAP), 400, 1 << 20);
}

#[test]
fn messages_of_all_sizes_arrive_through_arenas() {
    let kinds = [Kept::Heap, Kept::Arena, Kept::Pieces];
    for (source, target) in kinds.into_iter().flat_map(|source| kinds.map(|target| (source, target))) {
        for cma in [true, false] {
            let [a, b] = exchange(peers(cma, How { source, target }), 60, 1 << 20);
            assert!(a.link.broken.is_none() && b.link.broken.is_none());
        }
    }
}

#[test]
fn small_messages_stream_through_growing_rings_and_sleepers() {
    exchange(peers(true, HEAP), 20_000, 3000);
}

/// Each refusal is counted, although the sender's frames are sent at once when there is room again.
#[test]
fn a_ring_that_is_filled_and_emptied_in_turn_grows() {
    let [mut a, mut b] = peers(false, HEAP);
    let mut fill = || {
        let mut count = 0;
        while a.send(count, &[], false).is_ok() {
            count += 1;
        }
        while b.poll().unwrap() {}
        count
    };
    let first = fill();
    let later: Vec<u64> = (0..6).map(|_| fill()).collect();
    assert!(later[5] > 2 * first, "still {later:?} after {first}");
    assert_eq!(b.seen.messages.len() as u64, first + later.iter().sum::<u64>());
}

/// Returns whether an endpoint that sleeps was woken up. Resets the wake-up.
fn is_woken(doorbell: &Doorbell) -> bool {
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(doorbell.event_fd(), rustix::event::PollFlags::IN)];
    let woken = rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() > 0;
    doorbell.drain();
    woken
}

/// A sender that sleeps until its ring has room is woken when its peer has received frames.
#[test]
fn sleeping_sender_is_woken_when_its_ring_has_room() {
    for cold in [false, true] {
        let [mut a, mut b] = peers(false, HEAP);
        for round in 0..10 {
            let mut count = 0;
            while a.send(count, &[], false).is_ok() {
                count += 1;
            }
            assert!(count > 0, "no room in round {round}");
            while a.poll().unwrap() {}
            assert!(!cold || a.link.set_cold());
            a.doorbell.arm(WakeMethod::Event);
            let barrier = a.link.prepare_sleep();
            assert!(!barrier, "the peer sends nothing");
            assert!(!a.doorbell.is_rung() && !is_woken(&a.doorbell));
            while b.poll().unwrap() {}
            assert_eq!(a.doorbell.take_rung(|bit| assert_eq!(bit, 5)), usize::from(cold));
            assert!(is_woken(&a.doorbell), "no wake-up in round {round}");
            a.doorbell.disarm();
            a.link.set_hot();
        }
    }
}

/// A link that has frames to receive, or has ended, stays hot. Its peer found it hot, and did not ring.
#[test]
fn link_with_something_to_receive_does_not_become_cold() {
    let [mut a, mut b] = peers(false, HEAP);
    a.send(1, b"one", false).unwrap();
    assert!(!b.doorbell.is_rung(), "the link is hot");
    assert!(!b.link.set_cold() && !b.link.is_cold());
    assert_eq!(b.poll(), Ok(true));
    assert!(b.link.set_cold() && b.link.is_cold());
    a.send(2, b"two", false).unwrap();
    assert_eq!(b.doorbell.take_rung(|bit| assert_eq!(bit, 6)), 1);
    b.link.set_hot();
    assert_eq!(b.poll(), Ok(true));
    assert!(b.link.is_quiet());
    b.link.connection_end().set("killed");
    assert!(!b.link.set_cold() && !b.link.is_cold());
    assert!(!b.link.is_quiet(), "the end is not reported without a poll");
}

/// Side 1 sleeps whenever it can, and makes its link cold. No message may be lost.
#[test]
fn a_sleeping_receiver_misses_nothing() {
    let [mut a, mut b] = peers(true, HEAP);
    const COUNT: u64 = 30_000;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut sent = 0;
            while sent < COUNT {
                // Bursts make the sender stream at times. In between it sends nothing.
                if a.send(sent, &sent.to_le_bytes(), sent % 5 == 1).is_ok() {
                    sent += 1;
                    if sent % 3000 == 0 {
                        a.poll().unwrap();
                        std::thread::sleep(Duration::from_millis(1));
                    }
                } else {
                    a.poll().unwrap();
                }
            }
            a.poll().unwrap();
            while a.seen.messages.is_empty() {
                a.poll().unwrap();
                std::thread::yield_now();
            }
        });
        let (mut got, mut sleeps) = (0u64, 0);
        let mut done = false;
        while !done {
            let moved = (!b.link.is_cold() || b.doorbell.take_rung(|bit| assert_eq!(bit, 6)) > 0) && {
                b.link.set_hot();
                b.poll().unwrap()
            };
            for (head, bytes) in b.seen.messages.drain(..) {
                assert_eq!((head.tag, &bytes[..]), (got, &got.to_le_bytes()[..]));
                got += 1;
            }
            done = got == COUNT;
            if moved || done || (got % 2 == 0 && !b.link.set_cold()) {
                continue;
            }
            b.doorbell.arm(WakeMethod::Event);
            let barrier = b.link.prepare_sleep();
            assert!(!barrier || Doorbell::barrier());
            let arrived = if b.link.is_cold() { b.doorbell.is_rung() } else { !b.link.rx.is_empty() };
            if !arrived {
                sleeps += 1;
                let mut fds =
                    [rustix::event::PollFd::from_borrowed_fd(b.doorbell.event_fd(), rustix::event::PollFlags::IN)];
                let timeout = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
                let woken = rustix::event::poll(&mut fds, Some(&timeout)).unwrap();
                assert_eq!(woken, 1, "no wake-up at {got}");
            }
            b.doorbell.disarm();
            b.doorbell.drain();
        }
        assert!(sleeps > 0);
        b.send(0, &[], false).unwrap();
    });
}

#[test]
fn messages_sent_before_death_or_goodbye_arrive() {
    let [mut a, mut b] = peers(false, HEAP);
    for tag in 0..24 {
        a.send(tag, b"last words", false).unwrap();
    }
    b.link.connection_end().set("killed");
    assert!(b.doorbell.is_rung());
    while b.seen.messages.len() < 24 {
        assert_eq!(b.poll(), Ok(true));
    }
    assert_eq!(b.poll(), Err(Broken::Died("killed".to_owned())));
    assert_eq!(b.send(0, &[], false), Err(Refused::Broken));

    let [mut a, mut b] = peers(false, HEAP);
    a.send(0, b"so long", false).unwrap();
    let bye = Head { kind: FrameKind::Bye, ..Head::default() };
    a.link.send(&bye, &Segments::EMPTY, false).unwrap();
    assert_eq!(b.poll(), Ok(true));
    assert_eq!(b.seen.messages.len(), 2);
    assert_eq!(b.poll(), Err(Broken::Closed));
}

/// A sink whose peer sends its last message and dies when the sink is asked whether it takes frames.
struct DyingPeer {
    peer: std::cell::RefCell<Peer>,
    end: Arc<ConnectionEnd>,
    takes: bool,
    seen: Seen,
}

impl Sink for DyingPeer {
    fn takes(&self, _: ConnectionId) -> bool {
        if !self.end.is_set() {
            self.peer.borrow_mut().send(1, b"last words", false).unwrap();
            self.end.set("killed");
        }
        self.takes
    }

    fn frame(&mut self, from: ConnectionId, head: &Head, payload: View<'_>) {
        self.seen.frame(from, head, payload);
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

/// The peer sends its last message and dies while its link is polled, also while the receiver takes no frames.
#[test]
fn message_sent_before_a_death_during_a_poll_arrives() {
    for takes in [false, true] {
        let [a, mut b] = peers(false, HEAP);
        let end = b.link.connection_end();
        let mut sink = DyingPeer { peer: a.into(), end, takes, seen: Seen::default() };
        assert_eq!(b.link.poll(9, &mut sink), Ok(takes), "the death was reported before the message");
        assert_eq!(b.link.poll(9, &mut sink).is_ok(), !takes);
        assert_eq!(sink.seen.messages.len(), 1);
        assert_eq!(b.link.poll(9, &mut sink), Err(Broken::Died("killed".to_owned())));
    }
}

/// Polls both sides in turn until `done` returns true.
fn run(peers: &mut [Peer; 2], mut done: impl FnMut(&mut [Peer; 2]) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done(peers) {
        assert!(Instant::now() < deadline, "stuck");
        for peer in peers.iter_mut() {
            peer.link.poll(9, &mut peer.seen).unwrap();
        }
    }
}

#[test]
fn unreadable_memory_is_an_error_on_both_sides_and_the_link_goes_on() {
    let mut both = peers(true, HEAP);
    // Nothing is mapped at the first page. The lengths cause one side or both sides to copy.
    for (round, len) in [100_000u64, 4 << 20].into_iter().enumerate() {
        // SAFETY: only the kernel uses this address, and it refuses the copy.
        let nowhere = unsafe { Segment::new(std::ptr::without_provenance_mut(64), len as usize) };
        let offer = Offer { len: len.into(), address: 64.into(), pieces: 1.into(), ..Offer::default() };
        let token = round as u32 + 1;
        let mut memory = Memory::new(len as usize, Kept::Heap);
        both[1].link.pull(3, &offer, &memory.lease(), token).unwrap();
        run(&mut both, |both| !both[0].seen.requests.is_empty());
        let (head, request) = both[0].seen.requests.remove(0);
        both[0].link.push(head.id, head.tag, View::of(&request), &Lease::own(&Segments::one(nowhere))).unwrap();
        run(&mut both, |both| !both[1].seen.pulled.is_empty() && !both[0].seen.pushed.is_empty());
        assert_eq!(both[1].seen.pulled.pop(), Some((token, Err(PullError::Fault))));
        assert_eq!(both[0].seen.pushed.pop(), Some((3, Err(PullError::Fault))));
    }
    exchange(both, 100, 1 << 20);
}

#[test]
fn pull_of_a_missing_operation_fails_with_gone() {
    let mut both = peers(true, HEAP);
    let mut memory = Memory::new(50_000, Kept::Heap);
    let address = (memory.heap.as_ptr().expose_provenance() as u64).into();
    let offer = Offer { len: 50_000.into(), address, pieces: 1.into(), ..Offer::default() };
    let mut target = Memory::new(50_000, Kept::Heap);
    both[1].link.pull(3, &offer, &target.lease(), 8).unwrap();
    // Long enough for the puller to start copying on its own.
    let start = Instant::now();
    run(&mut both, |_| start.elapsed() > Duration::from_millis(2));
    assert!(both[1].seen.pulled.is_empty(), "the pull ended before the operation was confirmed");
    let (head, request) = both[0].seen.requests.remove(0);
    both[0].link.push(head.id, head.tag, View::of(&request), &Lease::own(&Segments::EMPTY)).unwrap();
    run(&mut both, |both| !both[1].seen.pulled.is_empty());
    assert_eq!(both[1].seen.pulled, [(8, Err(PullError::Gone))]);
    assert!(both[0].seen.pushed.is_empty());
    // A pull of zero bytes succeeds on both sides.
    both[1].link.pull(4, &offer, &Lease::own(&Segments::EMPTY), 9).unwrap();
    run(&mut both, |both| !both[0].seen.requests.is_empty());
    let (head, request) = both[0].seen.requests.remove(0);
    both[0].link.push(head.id, head.tag, View::of(&request), &memory.lease()).unwrap();
    run(&mut both, |both| both[1].seen.pulled.len() == 2 && both[0].seen.pushed.len() == 1);
    assert_eq!(both[1].seen.pulled[1], (9, Ok(0)));
    assert_eq!(both[0].seen.pushed, [(4, Ok(()))]);
}

/// Fills the ring in which a side sends.
fn fill(peer: &mut Peer) {
    while peer.send(99, &[], false).is_ok() {}
}

/// Pulls whose requests find no room, more often than there are slots, are sent when there is room.
#[test]
fn pulls_without_room_for_their_requests_are_repeated() {
    let mut both = peers(false, HEAP);
    let bytes = pattern(7, 100_000);
    both[0].send(3, &bytes, false).unwrap();
    run(&mut both, |both| !both[1].seen.offers.is_empty());
    fill(&mut both[1]);
    for _ in 0..4 * crate::shm::pair::SLOTS {
        both[1].poll().unwrap();
    }
    assert!(!both[1].link.is_idle(), "the pull waits for room");
    let deadline = Instant::now() + Duration::from_secs(20);
    while both[1].seen.messages.is_empty() {
        assert!(Instant::now() < deadline, "the pull was not started");
        both.iter_mut().for_each(|peer| _ = peer.poll().unwrap());
    }
    assert!(both[1].seen.messages[0].1 == bytes);
}

/// The pusher still has a push for each slot when the puller has finished all of them. No slot is used again before its
/// pusher has closed it.
#[test]
fn slots_are_used_again_only_after_their_pushers_closed_them() {
    const COUNT: u32 = crate::shm::pair::SLOTS as u32;
    const LEN: usize = 1 << 20;
    let mut both = peers(true, HEAP);
    let content = |id: u32| pattern(u64::from(id), LEN);
    let mut sources: Vec<Memory> = (0..=COUNT).map(|_| Memory::new(LEN, Kept::Heap)).collect();
    let mut targets: Vec<Memory> = (0..=COUNT).map(|_| Memory::new(LEN, Kept::Heap)).collect();
    let mut pull = |both: &mut [Peer; 2], id: u32, target: &mut Memory| {
        let source = &mut sources[id as usize];
        View::of(&content(id)).copy_into(&source.segments(), 0);
        let address = (source.heap.as_ptr().expose_provenance() as u64).into();
        let offer = Offer { len: (LEN as u64).into(), address, pieces: 1.into(), ..Offer::default() };
        both[1].link.pull(id, &offer, &target.lease(), id).unwrap();
        source.lease()
    };
    let leases: Vec<Lease> = (0..COUNT).map(|id| pull(&mut both, id, &mut targets[id as usize])).collect();
    run(&mut both, |both| both[0].seen.requests.len() == COUNT as usize);
    for (head, request) in std::mem::take(&mut both[0].seen.requests) {
        both[0].link.push(head.id, head.tag, View::of(&request), &leases[head.id as usize]).unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    let [_, b] = &mut both;
    while b.seen.pulled.len() < COUNT as usize {
        assert!(Instant::now() < deadline, "the puller does not finish alone");
        b.link.poll(9, &mut b.seen).unwrap();
    }
    let lease = pull(&mut both, COUNT, &mut targets[COUNT as usize]);
    both[1].link.poll(9, &mut both[1].seen).unwrap();
    assert!(!both[1].link.is_idle(), "the pull waits for a slot");
    assert!(both[0].seen.pushed.is_empty());
    run(&mut both, |both| !both[0].seen.requests.is_empty());
    assert_eq!(both[0].seen.pushed.len(), COUNT as usize);
    let (head, request) = both[0].seen.requests.remove(0);
    both[0].link.push(head.id, head.tag, View::of(&request), &lease).unwrap();
    run(&mut both, |both| both[1].seen.pulled.len() > COUNT as usize && both[0].seen.pushed.len() > COUNT as usize);
    assert!(both[1].seen.pulled.iter().all(|(_, result)| *result == Ok(LEN as u64)));
    assert!(both[0].seen.pushed.iter().all(|(_, result)| *result == Ok(())));
    for (id, target) in (0..).zip(&mut targets) {
        assert!(target.segments().to_vec() == content(id), "message {id} is damaged");
    }
}

#[path = "ends_tests.rs"]
mod ends;

#[path = "revoked_tests.rs"]
mod revoked;

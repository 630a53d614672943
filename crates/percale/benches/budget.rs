//! Benchmarks that count the user-space instructions of operations under callgrind. `cargo xtask budget` compares the
//! counts with the limits in budget.toml. The benchmarks use two endpoints in one thread, so both ends of an operation
//! are counted. Before counting begins, connections are established and rings have grown.

#![expect(unsafe_code, reason = "the benchmarks use the raw API; `Pair` keeps the memory valid")]
#![expect(missing_docs, reason = "the macros generate public items that cannot be named")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use gungraun::prelude::*;
use percale::trigger::RawOperation;
use percale::{
    Access, AddressSet, AddressVector, AtomicOp, Collective, CollectiveWork, Counter, Datatype, Domain, Endpoint,
    Entry, ErrorCode, Info, OpFlags, PeerAddress, ReceiveWork, RemoteMemory, Segment, Segments, SendWork,
    SharedEndpoint, TransportKind,
};

/// The number of operations in one count. The costs of single operations differ, for example when a credit is returned.
const TIMES: u64 = 100;

/// The number of messages in a burst.
const BURST: usize = 16;

/// The number of operations before counting begins.
const WARM: u64 = 500;

/// The number of receives that wait in the matching benchmark. 7 does not divide it, so steps of 7 visit all of them.
const POSTED: u64 = 1000;

/// Two connected endpoints, and the memory of their operations.
///
/// `source`, `target`, `word`, `result` and the `exposed` memory exist as long as the endpoints do, and only operations
/// access them.
struct Pair {
    vector: AddressVector,
    left: Endpoint,
    right: Endpoint,
    peer: PeerAddress,
    source: Segments,
    target: Segments,
    /// Eight bytes of memory.
    word: Segment,
    result: Segment,
    /// The description of a word of memory that percale allocated.
    exposed: RemoteMemory,
}

impl Pair {
    fn new(kind: TransportKind, bytes: usize) -> Self {
        Self::within(kind, bytes).1
    }

    fn within(kind: TransportKind, bytes: usize) -> (Domain, Self) {
        percale::endpoint::assume_alone();
        let domain = Info::discover().expect("information").domain().transport(kind).open().expect("a domain");
        let vector = domain.address_vector().build().expect("a vector");
        let bind = || domain.endpoint().vector(&vector).bind("127.0.0.1:0").expect("an endpoint");
        let (left, right) = (bind(), bind());
        let peer = vector.insert(right.address()).expect("an address");
        let memory = || {
            let leaked = vec![7_u8; 4096].leak();
            // SAFETY: leaked memory is never freed, and only operations use the segment.
            Segments::one(unsafe { Segment::new(leaked.as_mut_ptr(), leaked.len()) })
        };
        let allocation = domain.allocate(4096).expect("memory");
        // SAFETY: it is never freed (below), and only operations use the segment.
        let word = unsafe { Segment::new(allocation.as_ptr(), 8) };
        let registration = domain.registration(Access::REMOTE_READ | Access::REMOTE_WRITE);
        // SAFETY: as above.
        let region = unsafe { registration.raw(&[word], true) }.expect("a region");
        let exposed = region.remote();
        std::mem::forget((allocation, region));
        let eight = || memory().slice(0, 8).as_slice()[0];
        let (source, target) = (memory().slice(0, bytes), memory());
        let mut pair = Self { vector, left, right, peer, source, target, word: eight(), result: eight(), exposed };
        pair.connect();
        for tag in 0..WARM {
            pair.exchange(tag);
        }
        (domain, pair)
    }

    /// Connects the endpoints with a first message.
    fn connect(&mut self) {
        self.post_receive(0, 0);
        self.post_send(0);
        let deadline = Instant::now() + Duration::from_secs(60);
        let (mut sent, mut received) = (false, false);
        while !(sent && received) {
            let mut entry = [Entry::default()];
            sent |= self.left.poll(&mut entry).expect("a success") == 1;
            received |= self.right.poll(&mut entry).expect("a success") == 1;
            assert!(Instant::now() < deadline, "not connected: {:?}", self.left.describe_peers());
            // Valgrind runs one thread at a time, and this thread must let the service thread run.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[inline]
    fn post_receive(&self, tag: u64, context: u64) {
        let (from, flags) = (PeerAddress::UNSPECIFIED, OpFlags::COMPLETION);
        let work = ReceiveWork { from, segments: self.target, tag: Some((tag, 0)), context, flags };
        // SAFETY: the memory of a `Pair` outlives its endpoints, and only operations access it.
        unsafe { self.right.post_recv(&work) }.expect("room for a receive");
    }

    #[inline]
    fn post_send(&self, tag: u64) {
        let (peer, data, context, flags) = (self.peer, None, tag, OpFlags::COMPLETION);
        let work = SendWork { peer, segments: self.source, tag: Some(tag), data, context, flags };
        // SAFETY: the memory of a `Pair` outlives its endpoints, and only operations access it.
        unsafe { self.left.post_send(&work) }.expect("room for a send");
    }

    /// Sends a tagged message from left to right, and reads the completions of both.
    #[inline]
    fn exchange(&mut self, tag: u64) {
        self.post_receive(tag, tag);
        self.post_send(tag);
        completed(&self.right, tag);
        completed(&self.left, tag);
    }

    /// Sends as many messages in a row as one read returns. Only the receiver gets completions, and four times as many
    /// receives wait.
    #[inline]
    fn burst(&mut self) {
        for _ in 0..BURST {
            self.left.tagged_inject(self.peer, 0, &[7; 8]).expect("room to inject");
        }
        let mut left = BURST;
        while left > 0 {
            let mut entries = [Entry::default(); BURST];
            let count = self.right.poll(&mut entries).expect("a success");
            for entry in &entries[..count] {
                self.post_receive(0, black_box(entry.context));
            }
            left -= count;
        }
    }

    /// Performs an operation of the left endpoint on the memory that the right one exposes, and reads its completion.
    /// The right endpoint only has to report the location of the memory once.
    #[inline]
    fn access(&self, context: u64, op: Op) {
        let (peer, word, remote, flags) = (self.peer, self.word, self.exposed, OpFlags::COMPLETION);
        let posted = match op {
            // SAFETY: the memory of a `Pair` outlives its endpoints, and only operations access it.
            Op::Get => unsafe { self.left.post_read_one(peer, word, remote, context, flags) },
            // SAFETY: as above.
            Op::Put => unsafe { self.left.post_write_one(peer, word, remote, context, flags) },
            // SAFETY: as above.
            Op::FetchAdd => unsafe { self.left.post_fetch_add(peer, word, self.result, remote, context, flags) },
        };
        posted.expect("room for an operation");
    }

    /// Performs a collective operation on both endpoints.
    #[inline]
    fn sum(&self, works: &[CollectiveWork; 2]) {
        for (endpoint, work) in [&self.left, &self.right].into_iter().zip(works) {
            // SAFETY: the memory of a `Pair` outlives its endpoints, and only operations access it.
            unsafe { endpoint.post_collective(work) }.expect("room for a sum");
        }
        completed(&self.left, works[0].context);
        completed(&self.right, works[1].context);
    }

    /// Sends a tagged message from left to right, for which only the receiver gets a completion.
    #[inline]
    fn inject(&mut self, tag: u64) {
        self.left.tagged_inject(self.peer, tag, &[7; 8]).expect("room to inject");
        completed(&self.right, tag);
    }
}

/// The access to the exposed memory.
#[derive(Clone, Copy)]
enum Op {
    Get,
    Put,
    FetchAdd,
}

#[inline]
fn completed(endpoint: &Endpoint, context: u64) {
    let mut entry = [Entry::default()];
    while endpoint.poll(&mut entry).expect("a success") == 0 {}
    assert_eq!(entry[0].context, context);
}

fn shm(bytes: usize) -> Pair {
    Pair::new(TransportKind::Shm, bytes)
}

fn tcp(bytes: usize) -> Pair {
    Pair::new(TransportKind::Tcp, bytes)
}

fn shm_with_receives(posted: u64) -> Pair {
    let mut pair = shm(8);
    for tag in 0..posted {
        pair.post_receive(tag, tag);
    }
    // The first message that needs a long search causes the receives to be sorted into bins.
    pair.inject(posted - 1);
    pair.post_receive(posted - 1, posted - 1);
    pair
}

#[library_benchmark]
#[bench::bytes_8(setup = shm, args = (8))]
#[bench::bytes_64(setup = shm, args = (64))]
#[bench::bytes_512(setup = shm, args = (512))]
#[bench::bytes_2048(setup = shm, args = (2048))]
fn tagged(mut pair: Pair) -> Pair {
    for tag in 0..TIMES {
        pair.exchange(black_box(tag));
    }
    pair
}

#[library_benchmark]
#[bench::bytes_8(setup = shm, args = (8))]
fn inject(mut pair: Pair) -> Pair {
    for tag in 0..TIMES {
        pair.post_receive(black_box(tag), tag);
        pair.inject(tag);
    }
    pair
}

#[library_benchmark]
#[bench::receive(setup = shm, args = (8))]
fn cancel(pair: Pair) -> Pair {
    let mut entry = [Entry::default()];
    for tag in 0..TIMES {
        pair.post_receive(black_box(tag), tag);
        assert!(pair.right.cancel(tag));
        assert!(pair.right.poll(&mut entry).is_err());
        assert!(pair.right.read_error().is_some_and(|error| error.error == ErrorCode::Canceled));
    }
    pair
}

// The receives of these messages are at different positions among many others.
#[library_benchmark]
#[bench::posted_1000(setup = shm_with_receives, args = (POSTED))]
fn matching(mut pair: Pair) -> Pair {
    for step in 0..TIMES {
        let tag = step * 7 % POSTED;
        pair.inject(black_box(tag));
        pair.post_receive(tag, tag);
    }
    pair
}

fn shm_stream(posted: u64) -> Pair {
    let mut pair = shm(8);
    for context in 0..posted {
        pair.post_receive(0, context);
    }
    for _ in 0..100 {
        pair.burst();
    }
    pair
}

// Eight bursts are 128 messages.
#[library_benchmark]
#[bench::posted_64(setup = shm_stream, args = (4 * BURST as u64))]
fn stream(mut pair: Pair) -> Pair {
    for _ in 0..8 {
        pair.burst();
    }
    pair
}

fn accessing(op: Op) -> (Pair, Op) {
    let pair = shm(8);
    for context in 0..WARM {
        pair.access(context, op);
        let mut entry = [Entry::default()];
        while pair.left.poll(&mut entry).expect("a success") == 0 {
            assert_eq!(pair.right.poll(&mut [Entry::default()]), Ok(0));
        }
    }
    (pair, op)
}

#[library_benchmark]
#[bench::get_8(setup = accessing, args = (Op::Get))]
#[bench::put_8(setup = accessing, args = (Op::Put))]
#[bench::fetch_add(setup = accessing, args = (Op::FetchAdd))]
fn access((pair, op): (Pair, Op)) -> Pair {
    for context in 0..TIMES {
        pair.access(black_box(context), op);
        completed(&pair.left, context);
    }
    pair
}

/// Creates a pair with its two endpoints in one group, and the operations of both, which are sums of one element.
fn grouped() -> (Pair, [CollectiveWork; 2]) {
    let pair = shm(8);
    let members: AddressSet = [pair.left.address(), pair.right.address()]
        .into_iter()
        .map(|address| pair.vector.insert(address).expect("an address"))
        .collect();
    let joining = [&pair.left, &pair.right].map(|endpoint| endpoint.join(&members).expect("a group"));
    let groups = joining.map(|mut joining| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !joining.is_ready() {
            let _none = (pair.left.progress(), pair.right.progress());
            assert!(Instant::now() < deadline, "not joined");
            std::thread::sleep(Duration::from_millis(1));
        }
        joining.wait().expect("both join")
    });
    let works = groups.map(|group| CollectiveWork {
        group: std::mem::ManuallyDrop::new(group).id(),
        what: Collective::Allreduce,
        op: AtomicOp::Sum,
        datatype: Datatype::F64,
        count: 1,
        source: pair.word,
        result: pair.result,
        context: 7,
        flags: OpFlags::COMPLETION,
    });
    (0..WARM).for_each(|_| pair.sum(&works));
    (pair, works)
}

#[library_benchmark]
#[bench::bytes_8(setup = grouped)]
fn allreduce((pair, works): (Pair, [CollectiveWork; 2])) -> Pair {
    (0..TIMES).for_each(|_| pair.sum(black_box(&works)));
    pair
}

/// A pair, and another sender. A counter starts the sends of that sender.
struct Triggered {
    pair: Pair,
    sender: SharedEndpoint,
    counter: Counter,
}

impl Triggered {
    fn new(domain: &Domain, pair: Pair) -> Self {
        let sender = domain.endpoint().vector(&pair.vector).bind_shared("127.0.0.1:0").expect("an endpoint");
        let mut triggered = Self { pair, sender, counter: Counter::new() };
        (0..WARM).for_each(|tag| triggered.pass(tag));
        triggered
    }

    /// Posts a message that waits for the counter, increments the counter, and reads the receiver's completion.
    #[inline]
    fn pass(&mut self, tag: u64) {
        self.pair.post_receive(tag, tag);
        let (peer, segments, flags) = (self.pair.peer, self.pair.source, OpFlags::empty());
        let work = SendWork { peer, segments, tag: Some(tag), data: None, context: tag, flags };
        let threshold = self.counter.value() + 1;
        // SAFETY: the memory of a `Pair` outlives its endpoints, and only operations access it.
        unsafe { self.sender.post_when(&RawOperation::Send(work), &self.counter, threshold) }.expect("room to wait");
        self.counter.add(1);
        let mut entry = [Entry::default()];
        while self.pair.right.poll(&mut entry).expect("a success") == 0 {
            assert_eq!(self.sender.poll(&mut [Entry::default()]), Ok(0));
            if tag == 0 {
                std::thread::sleep(Duration::from_millis(1)); // This gives the sender time to connect.
            }
        }
        assert_eq!(entry[0].context, tag);
    }
}

fn triggering() -> Triggered {
    let (domain, pair) = Pair::within(TransportKind::Shm, 8);
    Triggered::new(&domain, pair)
}

#[library_benchmark]
#[bench::send_8(setup = triggering)]
fn trigger(mut triggered: Triggered) -> Triggered {
    (0..TIMES).for_each(|tag| triggered.pass(black_box(tag + WARM)));
    triggered
}

#[library_benchmark]
#[bench::bytes_8(setup = tcp, args = (8))]
fn tcp_tagged(mut pair: Pair) -> Pair {
    for tag in 0..TIMES {
        pair.exchange(black_box(tag));
    }
    pair
}

library_benchmark_group!(
    name = over_shm,
    benchmarks = [tagged, inject, cancel, matching, stream, access, allreduce, trigger]
);
library_benchmark_group!(name = over_tcp, benchmarks = [tcp_tagged]);
main!(library_benchmark_groups = [over_shm, over_tcp]);

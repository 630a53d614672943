//! Benchmarks that count the user-space instructions of operations under callgrind. `cargo xtask budget` compares the
//! counts with the limits in budget.toml. The benchmarks use two endpoints in one thread, so both ends of an operation
//! are counted. Before counting begins, connections are established and rings have grown.
//!
//! The group `safe_over_shm` has operations of the safe API. Without the prefix `safe_`, their names are those of the
//! same operations of the raw API.

#![expect(unsafe_code, reason = "most benchmarks use the raw API; `Pair` keeps the memory valid")]
#![expect(missing_docs, reason = "the macros generate public items that cannot be named")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use gungraun::prelude::*;
use percale::trigger::Operation;
use percale::{
    Access, AddressSet, AddressVector, AtomicOp, Buffer, Collective, CollectiveWork, Counter, Datatype, Domain,
    Endpoint, Entry, ErrorCode, Info, OpFlags, PeerAddress, ReceiveWork, RemoteMemory, Segment, Segments, SendWork,
    SharedEndpoint, TransportKind,
};

/// The number of operations in one count. The costs of single operations differ, for example when a credit is returned.
const TIMES: u64 = 100;

/// The number of messages in a burst.
const BURST: usize = 16;

/// The number of messages in flight at the same time.
const IN_FLIGHT: usize = 64;

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
            // SAFETY: as above.
            Op::CompareSwap => unsafe {
                self.left.post_compare_swap(peer, [word, word], self.result, remote, context, flags)
            },
        };
        posted.expect("room for an operation");
    }

    /// Has many messages in flight at the same time, and reads the completions of both ends.
    #[inline]
    fn in_flight(&self) {
        (0..IN_FLIGHT as u64).for_each(|context| self.post_receive(0, context));
        (0..IN_FLIGHT).for_each(|_| self.post_send(0));
        for endpoint in [&self.right, &self.left] {
            let mut left = IN_FLIGHT;
            while left > 0 {
                let mut entries = [Entry::default(); BURST];
                left -= black_box(endpoint.poll(&mut entries).expect("a success"));
            }
        }
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
    CompareSwap,
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

#[library_benchmark]
#[bench::messages_64(setup = shm_in_flight)]
fn in_flight(pair: Pair) -> Pair {
    (0..2).for_each(|_| pair.in_flight());
    pair
}

fn shm_in_flight() -> Pair {
    let pair = shm(8);
    (0..10).for_each(|_| pair.in_flight());
    pair
}

fn accessing(op: Op) -> (Pair, Op) {
    let pair = shm(8);
    for context in 0..WARM {
        // After the first write, the word has the value that compare-and-swap expects and writes.
        pair.access(context, if context == 0 { Op::Put } else { op });
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
#[bench::compare_swap(setup = accessing, args = (Op::CompareSwap))]
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
        unsafe { self.sender.post_when(&Operation::Send(work), &self.counter, threshold) }.expect("room to wait");
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

/// A pair for operations of the safe API, and their buffers: those of sends and accesses, and those of receives.
struct SafePair {
    pair: Pair,
    sources: Vec<Buffer>,
    targets: Vec<Buffer>,
}

impl SafePair {
    fn new() -> Self {
        let buffers = || (0..IN_FLIGHT).map(|_| Buffer::from(vec![7; 8])).collect();
        Self { pair: shm(8), sources: buffers(), targets: buffers() }
    }

    /// Sends tagged messages from left to right, and takes the results of both ends.
    #[inline]
    fn exchange(&mut self, times: u64) {
        let (Some(mut source), Some(mut target)) = (self.sources.pop(), self.targets.pop()) else { return };
        let Pair { left, right, peer, .. } = &self.pair;
        for tag in 0..times {
            let mut receiving = right.tagged_recv(black_box(tag), 0, target).start().expect("room for a receive");
            let mut sending = left.tagged_send(*peer, tag, source).start().expect("room for a send");
            target = receiving.wait().expect("a message").buffer;
            source = sending.wait().expect("a success");
        }
        self.sources.push(source);
        self.targets.push(target);
    }

    /// Has many messages in flight at the same time, and takes the results of both ends.
    #[inline]
    fn in_flight(&mut self, times: usize) {
        let Pair { left, right, peer, .. } = &self.pair;
        let (mut receives, mut sends) = (Vec::with_capacity(IN_FLIGHT), Vec::with_capacity(IN_FLIGHT));
        for _ in 0..times {
            let receive = |buffer| right.tagged_recv(0, 0, buffer).start().expect("room for a receive");
            receives.extend(self.targets.drain(..).map(receive));
            let send = |buffer| left.tagged_send(*peer, 0, buffer).start().expect("room for a send");
            sends.extend(self.sources.drain(..).map(send));
            self.targets.extend(receives.drain(..).map(|mut receiving| receiving.wait().expect("a message").buffer));
            self.sources.extend(sends.drain(..).map(|mut sending| sending.wait().expect("a success")));
        }
    }

    /// Accesses the memory that the right endpoint exposes. `meanwhile` runs before the result is taken.
    #[inline]
    fn access(&mut self, op: Op, times: u64, meanwhile: impl Fn(&Pair)) {
        let Some(mut buffer) = self.sources.pop() else { return };
        let Pair { left, peer, exposed, .. } = &self.pair;
        let value = u64::from_ne_bytes([7; 8]);
        for _ in 0..times {
            let (peer, remote) = (*peer, black_box(*exposed));
            match op {
                Op::Get => {
                    let mut reading = left.read(peer, remote, buffer).start().expect("room for a read");
                    meanwhile(&self.pair);
                    buffer = reading.wait().expect("a success");
                }
                Op::Put => {
                    let mut writing = left.write(peer, buffer, remote).start().expect("room for a write");
                    meanwhile(&self.pair);
                    buffer = writing.wait().expect("a success");
                }
                Op::FetchAdd => {
                    let mut adding = left.fetch_add(peer, remote, value).start().expect("room for an addition");
                    meanwhile(&self.pair);
                    black_box(adding.wait().expect("a success"));
                }
                Op::CompareSwap => {
                    let mut swapping = left.compare_swap(peer, remote, value, value).start().expect("room for a swap");
                    meanwhile(&self.pair);
                    black_box(swapping.wait().expect("a success"));
                }
            }
        }
        self.sources.push(buffer);
    }
}

fn safe_exchanging() -> SafePair {
    let mut safe = SafePair::new();
    safe.exchange(WARM);
    safe
}

#[library_benchmark]
#[bench::bytes_8(setup = safe_exchanging)]
fn safe_tagged(mut safe: SafePair) -> SafePair {
    safe.exchange(TIMES);
    safe
}

fn safe_shm_in_flight() -> SafePair {
    let mut safe = SafePair::new();
    safe.in_flight(10);
    safe
}

#[library_benchmark]
#[bench::messages_64(setup = safe_shm_in_flight)]
fn safe_in_flight(mut safe: SafePair) -> SafePair {
    safe.in_flight(2);
    safe
}

fn safe_accessing(op: Op) -> (SafePair, Op) {
    let mut safe = SafePair::new();
    // The first operations need answers of the right endpoint.
    let answer = |pair: &Pair| {
        for _ in 0..100 {
            let _progress: bool = pair.right.progress();
        }
    };
    // The word then has the value that compare-and-swap expects and writes.
    safe.access(Op::Put, 1, answer);
    safe.access(op, WARM, answer);
    (safe, op)
}

#[library_benchmark]
#[bench::get_8(setup = safe_accessing, args = (Op::Get))]
#[bench::put_8(setup = safe_accessing, args = (Op::Put))]
#[bench::fetch_add(setup = safe_accessing, args = (Op::FetchAdd))]
#[bench::compare_swap(setup = safe_accessing, args = (Op::CompareSwap))]
fn safe_access((mut safe, op): (SafePair, Op)) -> SafePair {
    safe.access(op, TIMES, |_| ());
    safe
}

library_benchmark_group!(
    name = over_shm,
    benchmarks = [tagged, inject, cancel, matching, stream, in_flight, access, allreduce, trigger]
);
library_benchmark_group!(name = safe_over_shm, benchmarks = [safe_tagged, safe_in_flight, safe_access]);
library_benchmark_group!(name = over_tcp, benchmarks = [tcp_tagged]);
main!(library_benchmark_groups = [over_shm, safe_over_shm, over_tcp]);

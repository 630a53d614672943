//! Counts the user-space instructions of the operations of safe_budget.rs by the raw API, for comparison. It is a
//! program of its own with only these operations, because the compiler chooses the functions that it inlines by the
//! number of their callers in a program. So the counts differ from those of the same operations in budget.rs.

#![expect(unsafe_code, reason = "the benchmarks use the raw API; `Pair` keeps the memory valid")]
#![expect(missing_docs, reason = "the macros generate public items that cannot be named")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use gungraun::prelude::*;
use percale::{
    Access, AddressVector, Endpoint, Entry, Info, OpFlags, PeerAddress, RemoteMemory, Segment, TransportKind,
};

/// The number of operations in one count. The costs of single operations differ, for example when a credit is returned.
const TIMES: u64 = 100;

/// The number of messages in flight at the same time.
const IN_FLIGHT: usize = 64;

/// The number of completions that one call reads.
const READ: usize = 16;

/// The number of operations before counting begins.
const WARM: u64 = 500;

/// Two connected endpoints, and the memory of their operations. It exists as long as the program runs, and only
/// operations access it.
struct Pair {
    _vector: AddressVector,
    left: Endpoint,
    right: Endpoint,
    peer: PeerAddress,
    /// Eight bytes that are sent, and that are the operands of accesses.
    source: Segment,
    /// Eight bytes that are received, and that are the results of accesses.
    target: Segment,
    /// The description of a word of memory that percale allocated.
    exposed: RemoteMemory,
}

/// The access to the exposed memory.
#[derive(Clone, Copy)]
enum Op {
    Get,
    Put,
    FetchAdd,
    CompareSwap,
}

impl Pair {
    fn new() -> Self {
        percale::endpoint::assume_alone();
        let info = Info::discover().expect("information");
        let domain = info.domain().transport(TransportKind::Shm).open().expect("a domain");
        let vector = domain.address_vector().build().expect("a vector");
        let bind = || domain.endpoint().vector(&vector).bind("127.0.0.1:0").expect("an endpoint");
        let (left, right) = (bind(), bind());
        let peer = vector.insert(right.address()).expect("an address");
        let registration = domain.registration(Access::REMOTE_READ | Access::REMOTE_WRITE);
        let region = registration.own(domain.allocate(4096).expect("memory")).expect("a region");
        let exposed = region.remote().slice(0..8).expect("a part of the region");
        // The region is open as long as the program runs.
        std::mem::forget(region);
        let memory = || {
            let leaked = vec![7_u8; 8].leak();
            // SAFETY: leaked memory is never freed, and only operations use the segment.
            unsafe { Segment::new(leaked.as_mut_ptr(), leaked.len()) }
        };
        let pair = Self { _vector: vector, left, right, peer, source: memory(), target: memory(), exposed };
        pair.connect();
        pair
    }

    /// Connects the endpoints with a first message.
    fn connect(&self) {
        self.post_receive(0, 0);
        self.post_send(0, 0);
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
        // SAFETY: the memory outlives the endpoints, and only operations access it.
        let posted = unsafe { self.right.post_recv_one(from, self.target, Some((tag, 0)), context, flags) };
        posted.expect("room for a receive");
    }

    /// Posts a send. Until there is room in the ring, the right endpoint makes progress.
    #[inline]
    fn post_send(&self, tag: u64, context: u64) {
        let (peer, source, flags) = (self.peer, self.source, OpFlags::COMPLETION);
        // SAFETY: as in `post_receive`.
        while unsafe { self.left.post_send_one(peer, source, Some(tag), None, context, flags) }.is_err() {
            self.right.progress();
        }
    }

    /// Sends tagged messages from left to right, one after another.
    #[inline]
    fn exchange(&self, times: u64) {
        for tag in 0..times {
            self.post_receive(black_box(tag), tag);
            self.post_send(tag, tag);
            completed(&self.right, tag);
            completed(&self.left, tag);
        }
    }

    /// Has many messages in flight at the same time, several times in turn.
    #[inline]
    fn exchange_many(&self, times: usize) {
        for _ in 0..times {
            (0..IN_FLIGHT as u64).for_each(|context| self.post_receive(0, context));
            (0..IN_FLIGHT as u64).for_each(|context| self.post_send(0, context));
            for endpoint in [&self.right, &self.left] {
                let mut left = IN_FLIGHT;
                while left > 0 {
                    let mut entries = [Entry::default(); READ];
                    let count = endpoint.poll(&mut entries).expect("a success");
                    left -= black_box(&entries[..count]).len();
                }
            }
        }
    }

    /// Accesses the memory that the right endpoint exposes. `meanwhile` runs before the completion is read.
    #[inline]
    fn access(&self, op: Op, times: u64, meanwhile: impl Fn(&Endpoint)) {
        let (left, peer, source, target) = (&self.left, self.peer, self.source, self.target);
        for context in 0..times {
            let (remote, flags) = (black_box(self.exposed), OpFlags::COMPLETION);
            let posted = match op {
                // SAFETY: the memory outlives the endpoints, and only operations access it.
                Op::Get => unsafe { left.post_read_one(peer, target, remote, context, flags) },
                // SAFETY: as above.
                Op::Put => unsafe { left.post_write_one(peer, source, remote, context, flags) },
                // SAFETY: as above.
                Op::FetchAdd => unsafe { left.post_fetch_add(peer, source, target, remote, context, flags) },
                // SAFETY: as above.
                Op::CompareSwap => unsafe {
                    left.post_compare_swap(peer, [source, source], target, remote, context, flags)
                },
            };
            posted.expect("room for an operation");
            meanwhile(&self.right);
            completed(left, context);
        }
    }
}

#[inline]
fn completed(endpoint: &Endpoint, context: u64) {
    let mut entry = [Entry::default()];
    while endpoint.poll(&mut entry).expect("a success") == 0 {}
    assert_eq!(entry[0].context, context);
}

fn exchanging() -> Pair {
    let pair = Pair::new();
    pair.exchange(WARM);
    pair
}

#[library_benchmark]
#[bench::bytes_8(setup = exchanging)]
fn tagged(pair: Pair) -> Pair {
    pair.exchange(TIMES);
    pair
}

fn exchanging_many() -> Pair {
    let pair = Pair::new();
    pair.exchange_many(10);
    pair
}

#[library_benchmark]
#[bench::messages_64(setup = exchanging_many)]
fn in_flight(pair: Pair) -> Pair {
    pair.exchange_many(2);
    pair
}

fn accessing(op: Op) -> (Pair, Op) {
    let pair = Pair::new();
    // The first operations need answers of the right endpoint.
    let answer = |right: &Endpoint| {
        for _ in 0..100 {
            right.progress();
        }
    };
    // The word then has the value that compare-and-swap expects and writes.
    pair.access(Op::Put, 1, answer);
    pair.access(op, WARM, answer);
    (pair, op)
}

#[library_benchmark]
#[bench::get_8(setup = accessing, args = (Op::Get))]
#[bench::put_8(setup = accessing, args = (Op::Put))]
#[bench::fetch_add(setup = accessing, args = (Op::FetchAdd))]
#[bench::compare_swap(setup = accessing, args = (Op::CompareSwap))]
fn access((pair, op): (Pair, Op)) -> Pair {
    pair.access(op, TIMES, |_| ());
    pair
}

library_benchmark_group!(name = raw_over_shm, benchmarks = [tagged, in_flight, access]);
main!(library_benchmark_groups = [raw_over_shm]);

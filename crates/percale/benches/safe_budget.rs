//! Counts the user-space instructions of operations of the safe API, as budget.rs does for those of the raw API.
//! raw_budget.rs has the same operations as this program by the raw API.

#![expect(missing_docs, reason = "the macros generate public items that cannot be named")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use gungraun::prelude::*;
use percale::{Access, AddressVector, Buffer, Endpoint, Info, PeerAddress, RemoteMemory, TransportKind};

/// The number of operations in one count. The costs of single operations differ, for example when a credit is returned.
const TIMES: u64 = 100;

/// The number of messages in flight at the same time.
const IN_FLIGHT: usize = 64;

/// The number of operations before counting begins.
const WARM: u64 = 500;

/// Two connected endpoints, and the buffers of their operations.
struct Pair {
    _vector: AddressVector,
    left: Endpoint,
    right: Endpoint,
    peer: PeerAddress,
    /// The buffers of sends and accesses.
    sources: Vec<Buffer>,
    /// The buffers of receives.
    targets: Vec<Buffer>,
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
        let buffers = || (0..IN_FLIGHT).map(|_| Buffer::from(vec![7; 8])).collect();
        let mut pair = Self { _vector: vector, left, right, peer, sources: buffers(), targets: buffers(), exposed };
        pair.connect();
        pair
    }

    /// Connects the endpoints with a first message.
    fn connect(&mut self) {
        let mut receiving = self.right.tagged_recv(0, 0, vec![0; 8]).start().expect("room for a receive");
        let mut sending = self.left.tagged_send(self.peer, 0, vec![7; 8]).start().expect("room for a send");
        let deadline = Instant::now() + Duration::from_secs(60);
        while !(sending.is_ready() & receiving.is_ready()) {
            assert!(Instant::now() < deadline, "not connected: {:?}", self.left.describe_peers());
            // Valgrind runs one thread at a time, and this thread must let the service thread run.
            std::thread::sleep(Duration::from_millis(1));
        }
        sending.wait().expect("a success");
        receiving.wait().expect("a message");
    }

    /// Sends tagged messages from left to right, one after another.
    #[inline]
    fn exchange(&mut self, times: u64) {
        let (Some(mut source), Some(mut target)) = (self.sources.pop(), self.targets.pop()) else { return };
        for tag in 0..times {
            let mut receiving = self.right.tagged_recv(black_box(tag), 0, target).start().expect("room for a receive");
            let mut sending = self.left.tagged_send(self.peer, tag, source).start().expect("room for a send");
            target = receiving.wait().expect("a message").buffer;
            source = sending.wait().expect("a success");
        }
        self.sources.push(source);
        self.targets.push(target);
    }

    /// Has many messages in flight at the same time, several times in turn.
    #[inline]
    fn exchange_many(&mut self, times: usize) {
        let Self { left, right, peer, sources, targets, .. } = self;
        let (mut receives, mut sends) = (Vec::with_capacity(IN_FLIGHT), Vec::with_capacity(IN_FLIGHT));
        for _ in 0..times {
            for buffer in targets.drain(..) {
                receives.push(right.tagged_recv(0, 0, buffer).start().expect("room for a receive"));
            }
            for buffer in sources.drain(..) {
                let sending = left.tagged_send(*peer, 0, buffer).start().expect("room for a send");
                // A send that finds no room in the ring is queued, and leaves when the left endpoint makes progress.
                while !sending.is_ready() {
                    right.progress();
                }
                sends.push(sending);
            }
            targets.extend(receives.drain(..).map(|mut receiving| receiving.wait().expect("a message").buffer));
            sources.extend(sends.drain(..).map(|mut sending| sending.wait().expect("a success")));
        }
    }

    /// Accesses the memory that the right endpoint exposes. `meanwhile` runs before the result is taken.
    #[inline]
    fn access(&mut self, op: Op, times: u64, meanwhile: impl Fn(&Endpoint)) {
        let Some(mut buffer) = self.sources.pop() else { return };
        let (left, peer, value) = (&self.left, self.peer, u64::from_ne_bytes([7; 8]));
        for _ in 0..times {
            let remote = black_box(self.exposed);
            match op {
                Op::Get => {
                    let mut reading = left.read(peer, remote, buffer).start().expect("room for a read");
                    meanwhile(&self.right);
                    buffer = reading.wait().expect("a success");
                }
                Op::Put => {
                    let mut writing = left.write(peer, buffer, remote).start().expect("room for a write");
                    meanwhile(&self.right);
                    buffer = writing.wait().expect("a success");
                }
                Op::FetchAdd => {
                    let mut adding = left.fetch_add(peer, remote, value).start().expect("room for an addition");
                    meanwhile(&self.right);
                    black_box(adding.wait().expect("a success"));
                }
                Op::CompareSwap => {
                    let mut swapping = left.compare_swap(peer, remote, value, value).start().expect("room for a swap");
                    meanwhile(&self.right);
                    black_box(swapping.wait().expect("a success"));
                }
            }
        }
        self.sources.push(buffer);
    }
}

fn exchanging() -> Pair {
    let mut pair = Pair::new();
    pair.exchange(WARM);
    pair
}

#[library_benchmark]
#[bench::bytes_8(setup = exchanging)]
fn tagged(mut pair: Pair) -> Pair {
    pair.exchange(TIMES);
    pair
}

fn exchanging_many() -> Pair {
    let mut pair = Pair::new();
    pair.exchange_many(10);
    pair
}

#[library_benchmark]
#[bench::messages_64(setup = exchanging_many)]
fn in_flight(mut pair: Pair) -> Pair {
    pair.exchange_many(2);
    pair
}

fn accessing(op: Op) -> (Pair, Op) {
    let mut pair = Pair::new();
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
fn access((mut pair, op): (Pair, Op)) -> Pair {
    pair.access(op, TIMES, |_| ());
    pair
}

library_benchmark_group!(name = safe_over_shm, benchmarks = [tagged, in_flight, access]);
main!(library_benchmark_groups = [safe_over_shm]);

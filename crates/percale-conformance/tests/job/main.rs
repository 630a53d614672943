//! A job in a simulated network. It has nodes with many endpoints each, all of them in one symmetric range of a vector.
//! Each endpoint sends to random other endpoints. The test measures the memory that the job uses.
//!
//! `PERCALE_JOB=100x100x64` (nodes, endpoints of each node, peers of each endpoint) runs the full size, which takes
//! several minutes and one or two gigabytes of memory. The allocator counts the bytes requested by the single thread
//! that does all the work.

#![expect(unsafe_code, reason = "an allocator that counts")]

mod counting;

use std::collections::HashSet;

use counting::in_use;
use percale::address::vector::VectorOptions;
use percale::transport::sim::{Network, SimOptions};
use percale::{AddressVector, Domain, Endpoint, Info, PeerAddress, PostError};
use percale_conformance::random::{Random, seed};
use percale_conformance::watchdog::Watchdog;

/// The length of a message.
const MESSAGE: usize = 24;

/// The size of the job.
#[derive(Clone, Copy, Debug)]
struct Size {
    nodes: usize,
    each: usize,
    peers: usize,
}

impl Size {
    fn from_environment() -> Self {
        let text = std::env::var("PERCALE_JOB").unwrap_or_else(|_| "10x10x16".to_owned());
        let numbers: Vec<usize> = text.split('x').map(|n| n.parse().expect("PERCALE_JOB is like 100x100x64")).collect();
        let [nodes, each, peers] = numbers[..] else { panic!("PERCALE_JOB is like 100x100x64, not {text}") };
        Self { nodes, each, peers }
    }

    fn endpoints(self) -> usize {
        self.nodes * self.each
    }
}

/// Returns the message from one endpoint to another: both numbers, and a value that is computed from both.
fn message(from: usize, to: usize) -> [u8; MESSAGE] {
    let mut bytes = [0; MESSAGE];
    let words = [from as u64, to as u64, (from as u64) << 32 ^ (to as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)];
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The job.
struct Job {
    size: Size,
    network: Network,
    /// The first field, so that endpoints are closed before the objects that they use.
    endpoints: Vec<Endpoint>,
    vector: AddressVector,
    _nodes: Vec<Domain>,
}

impl Job {
    fn new(size: Size, seed: u64) -> Self {
        let options = SimOptions { shared_descriptors: true, ..SimOptions::default() };
        let network = Network::new(seed, options);
        let info = Info::discover().expect("discovery");
        let nodes = (0..size.nodes).map(|_| info.domain().simulated(&network).open().expect("a domain"));
        let nodes: Vec<_> = nodes.collect();
        let expected = size.endpoints();
        let vector = AddressVector::new(VectorOptions { expected, ..VectorOptions::default() }).expect("a vector");
        Self { size, network, endpoints: Vec::new(), vector, _nodes: nodes }
    }

    /// Inserts all endpoints as one range. Returns the number of bytes that the range uses.
    fn name(&self) -> isize {
        let before = in_use();
        let inserted =
            self.vector.insert_symmetric("10.0.0.1", self.size.nodes, "5000", self.size.each).expect("a range");
        let after = in_use();
        assert_eq!(inserted.count(), self.size.endpoints() as u64);
        drop(inserted);
        after.min(in_use()) - before
    }

    /// Opens all endpoints, in the order of the vector.
    fn open(&mut self) {
        self.endpoints.reserve(self.size.endpoints());
        for (number, node) in self._nodes.iter().enumerate() {
            for service in 0..self.size.each {
                let builder = node.endpoint().vector(&self.vector);
                let address = format!("10.0.0.{}:{}", number + 1, 5000 + service);
                self.endpoints.push(builder.bind(address).expect("an endpoint"));
            }
        }
        let last = PeerAddress(self.size.endpoints() as u64 - 1);
        assert_eq!(self.vector.lookup(last), self.endpoints.last().map(Endpoint::address));
    }

    /// Sends from each endpoint to several other endpoints.
    fn send(&self, random: &mut Random) -> Vec<Vec<usize>> {
        let mut expected = vec![Vec::new(); self.endpoints.len()];
        for (from, endpoint) in self.endpoints.iter().enumerate() {
            let mut to = HashSet::new();
            while to.len() < self.size.peers {
                let peer = random.below(self.endpoints.len());
                if peer == from || !to.insert(peer) {
                    continue;
                }
                expected[peer].push(from);
                let again = endpoint.inject(PeerAddress(peer as u64), &message(from, peer));
                assert!(matches!(again, Ok(()) | Err(PostError::Again)), "{again:?}");
                assert!(again.is_ok(), "there is room for a message to a new peer");
            }
        }
        expected
    }

    /// Checks that every endpoint receives each message that was sent to it exactly once, with its source.
    fn receive(&self, expected: &mut [Vec<usize>]) {
        for (to, from) in expected.iter_mut().enumerate() {
            from.sort_unstable();
            let endpoint = &self.endpoints[to];
            let mut delivered = Vec::with_capacity(from.len());
            for _ in 0..from.len() {
                let receive = endpoint.recv(vec![0; MESSAGE]).start().expect("a receive");
                for _ in 0..100_000 {
                    if receive.is_ready() {
                        break;
                    }
                    self.network.advance(1000);
                    endpoint.progress();
                }
                assert!(receive.is_ready(), "{to} did not receive {} of its messages", from.len() - delivered.len());
                let received = receive.wait().expect("a message");
                let source = received.source.expect("the sender is in the vector").0 as usize;
                assert_eq!(received.to_vec(), message(source, to), "the message from {source} to {to}");
                delivered.push(source);
            }
            delivered.sort_unstable();
            assert_eq!(delivered, *from, "the senders of the messages that {to} received");
        }
    }

    /// Makes progress on all endpoints until no message is in transfer.
    fn settle(&self) {
        for _ in 0..1000 {
            let any = self.endpoints.iter().fold(false, |any, endpoint| endpoint.progress() | any);
            if !any && !self.network.advance_to_arrival() {
                return;
            }
        }
        panic!("messages are still in transfer");
    }
}

mod sim {
    mod rust {
        use super::super::*;

        /// Requirements: AV-019.
        #[test]
        fn closed_vector_leaks_no_memory() {
            let before = in_use();
            let vector = AddressVector::new(VectorOptions::default()).expect("a vector");
            vector.insert_many((0..10_000u32).map(|n| format!("10.{}.{}.1:5", n >> 8, n & 255))).expect("room");
            vector.insert_many((0..10_000u32).map(|n| format!("[fd00::{n:x}]:5"))).expect("room");
            vector.insert_symmetric("10.64.0.0", 1000, "5000", 100).expect("a range");
            assert!(in_use() - before > 10_000 * (8 + 24));
            drop(vector);
            assert_eq!(in_use(), before, "bytes of a vector that is closed");
        }

        /// Requirements: AV-009.
        #[test]
        fn endpoint_uses_2_kilobytes_to_address_its_job_peers() {
            let size = Size::from_environment();
            let seed = seed();
            println!("{size:?}, seed {seed:#x}");
            let _watchdog = Watchdog::within("the job", std::time::Duration::from_secs(1200));
            let mut random = Random::new(seed);
            let mut job = Job::new(size, seed);
            let count = size.endpoints();

            let range = job.name();
            let before = in_use();
            job.open();
            let idle = (in_use() - before) / count as isize;
            let unnamed = job.endpoints.iter().map(Endpoint::naming_bytes).max().unwrap_or(0);

            let before = in_use();
            let mut expected = job.send(&mut random);
            job.settle();
            job.receive(&mut expected);
            job.settle();
            drop(expected);
            let naming: Vec<_> = job.endpoints.iter().map(Endpoint::naming_bytes).collect();
            let (most, all) = (naming.iter().max().copied().unwrap_or(0), naming.iter().sum::<usize>());
            let network = job.network.bytes();
            let others = network + all - unnamed * count;
            let connections = in_use() - before - others as isize;
            let connected = job.endpoints.iter().map(|endpoint| endpoint.describe_peers().len() - 1).sum::<usize>();
            println!("the address range, shared by all endpoints: {range} bytes");
            println!(
                "identifying {} peers as targets and sources: {} bytes per endpoint, at most {most}",
                size.peers,
                all / count
            );
            println!("an idle endpoint: {idle} bytes, of which {unnamed} are for identifying peers");
            println!(
                "one end of a connection: {} bytes; {} ends per endpoint",
                connections / connected as isize,
                connected / count
            );
            assert!(range <= 100, "{range} bytes for the range");
            assert!(most as isize + range <= 2048, "{most} bytes, and {range} bytes for the range");
            assert!(idle <= IDLE, "{idle} bytes for an idle endpoint");
            // A peer in the vector uses no memory of an endpoint that never communicates with it.
            let quiet = job.endpoints[0].naming_bytes();
            let before = in_use();
            let more = job.vector.insert_symmetric("10.64.0.0", 10_000, "5000", 100).expect("a range");
            assert_eq!(more.count(), 1_000_000);
            drop(more);
            job.settle();
            assert_eq!(job.endpoints[0].naming_bytes(), quiet);
            assert!(in_use() - before <= 200, "{} bytes for a million unused peers", in_use() - before);
        }
    }
}

/// The maximum number of bytes of an endpoint without any communication.
const IDLE: isize = 5 << 10;

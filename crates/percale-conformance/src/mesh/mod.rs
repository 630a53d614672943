//! Endpoints of one process that one thread drives together, and their reports.
//!
//! Test endpoints are identified by number, modulo the number of test endpoints. On a transport where an endpoint can
//! reach only itself, a test that sends from 0 to 1 therefore sends from an endpoint to itself. Contexts are unique in
//! a mesh, so all reports go to one map.

#![expect(unsafe_code, reason = "posts through the raw API; the memory is never freed")]

mod triggered;
mod work;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::IntoFuture;
use std::time::{Duration, Instant};

use percale::address::PeerAddress;
use percale::domain::DomainBuilder;
use percale::endpoint::{Endpoint, EndpointBuilder};
use percale::{
    AddressVector, AtomicOp, AtomicWork, Datatype, Domain, Entry, ErrorEntry, OpFlags, PostError, ReceiveWork,
    RemoteMemory, RemotePieces, RmaWork, Segments, SendWork,
};

pub use self::triggered::try_when;
pub use self::work::{Receive, Send};

use crate::fabric::Fabric;
use crate::memory::Memory;
use crate::polled::polled;
use crate::watchdog::Watchdog;

/// An endpoint and the objects that belong to it.
#[derive(Debug)]
pub struct TestEndpoint {
    /// The endpoint. It is the first field, so that it is closed first.
    pub endpoint: Endpoint,
    /// The address vector. Entry `n` is test endpoint `n`.
    pub vector: AddressVector,
    /// The domain.
    pub domain: Domain,
}

/// The report of an operation.
pub type Report = Result<Entry, ErrorEntry>;

/// Endpoints that are driven together.
#[derive(Debug)]
pub struct Mesh<F: Fabric> {
    stations: Vec<Option<TestEndpoint>>,
    /// The transport of the endpoints.
    pub fabric: F,
    reports: RefCell<HashMap<u64, VecDeque<Report>>>,
    next: Cell<u64>,
    /// Whether the next write of one piece is posted with `post_write_one`.
    other_way: Cell<bool>,
    /// Whether the next read of one piece is posted with `post_read_one`.
    other_way_back: Cell<bool>,
    seed: u64,
    _watchdog: Watchdog,
}

/// The number of times that [`Mesh::nothing`] and [`Mesh::turns`] drive all test endpoints to show that an event does
/// not occur.
pub const MANY: usize = 400;

impl<F: Fabric> Mesh<F> {
    /// Makes `count` endpoints that have each other's addresses. Makes one endpoint if endpoints of the transport can
    /// reach only themselves.
    #[must_use]
    #[track_caller]
    pub fn new(count: usize) -> Self {
        Self::with(count, |domain| domain, |_, endpoint| endpoint)
    }

    /// Like [`new`](Self::new), with domains and endpoints adjusted.
    #[must_use]
    #[track_caller]
    pub fn with(
        count: usize,
        domain: impl Fn(DomainBuilder) -> DomainBuilder,
        endpoint: impl for<'d> Fn(usize, EndpointBuilder<'d>) -> EndpointBuilder<'d>,
    ) -> Self {
        let seed = crate::random::seed();
        let place = std::panic::Location::caller();
        let what = std::thread::current().name().map_or_else(|| place.to_string(), ToOwned::to_owned);
        let fabric = F::new(seed);
        let count = if F::ALONE { 1 } else { count };
        let stations = (0..count).map(|number| {
            let domain = fabric.domain(&domain);
            let vector = domain.address_vector().build().expect("a vector");
            let builder = endpoint(number, domain.endpoint().vector(&vector));
            let endpoint = builder.bind(fabric.address()).expect("an endpoint");
            TestEndpoint { endpoint, vector, domain }
        });
        let stations: Vec<_> = stations.map(Some).collect();
        let _watchdog = Watchdog::new(&what);
        let (other_way, other_way_back) = (Cell::new(true), Cell::new(true));
        let (reports, next) = (RefCell::default(), Cell::new(1));
        let mesh = Self { stations, fabric, reports, next, other_way, other_way_back, seed, _watchdog };
        for test_endpoint in mesh.stations() {
            for (number, other) in mesh.stations().enumerate() {
                let peer = test_endpoint.vector.insert(other.endpoint.address()).expect("an address");
                assert_eq!(peer, PeerAddress(number as u64), "a new vector numbers from 0");
            }
        }
        mesh
    }

    /// Like [`new`](Self::new), with all pairs connected.
    #[must_use]
    #[track_caller]
    pub fn connected(count: usize) -> Self {
        let mesh = Self::new(count);
        mesh.connect();
        mesh
    }

    /// Connects all pairs.
    pub fn connect(&self) {
        for from in 0..self.stations.len() {
            for to in 0..self.stations.len() {
                self.settle(from, to);
            }
        }
    }

    fn stations(&self) -> impl Iterator<Item = &TestEndpoint> {
        self.stations.iter().flatten()
    }

    /// Returns a test endpoint.
    ///
    /// # Panics
    /// Panics if it was closed.
    #[must_use]
    pub fn test_endpoint(&self, number: usize) -> &TestEndpoint {
        self.stations[number % self.stations.len()].as_ref().expect("the station is open")
    }

    /// Returns the endpoint of a test endpoint.
    #[must_use]
    pub fn endpoint(&self, number: usize) -> &Endpoint {
        &self.test_endpoint(number).endpoint
    }

    /// Returns the address of this test endpoint. It is the same in the vectors of all test endpoints.
    #[must_use]
    pub fn peer(&self, number: usize) -> PeerAddress {
        PeerAddress((number % self.stations.len()) as u64)
    }

    /// Closes a test endpoint, which is no longer driven.
    pub fn close(&mut self, number: usize) {
        self.stations[number] = None;
    }

    /// Replaces a closed test endpoint with this one.
    pub fn open(&mut self, number: usize, test_endpoint: TestEndpoint) {
        self.stations[number] = Some(test_endpoint);
    }

    /// Returns a context that no operation has used.
    pub fn context(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    /// Drives one test endpoint, and collects its reports.
    pub fn turn_one(&self, number: usize) {
        self.fabric.tick();
        self.collect(&self.test_endpoint(number).endpoint);
    }

    /// Drives every test endpoint once, and collects all reports.
    pub fn turn(&self) {
        self.fabric.tick();
        self.stations().for_each(|test_endpoint| self.collect(&test_endpoint.endpoint));
    }

    /// Drives every test endpoint `count` times.
    pub fn turns(&self, count: usize) {
        (0..count).for_each(|_| self.turn());
    }

    fn collect(&self, endpoint: &Endpoint) {
        let mut entries = [Entry::default(); 32];
        let mut reports = self.reports.borrow_mut();
        loop {
            match endpoint.poll(&mut entries) {
                Ok(0) => break,
                Ok(count) => {
                    for entry in &entries[..count] {
                        reports.entry(entry.context).or_default().push_back(Ok(*entry));
                    }
                }
                Err(_) => {
                    let error = endpoint.read_error().expect("the queue reported an error entry");
                    reports.entry(error.entry.context).or_default().push_back(Err(error));
                }
            }
        }
    }

    /// Drives all test endpoints until `done` returns a value.
    pub fn until<R>(&self, mut done: impl FnMut() -> Option<R>) -> R {
        let mut idle = 0;
        loop {
            if let Some(result) = done() {
                return result;
            }
            self.turn();
            idle += 1;
            if F::REAL && idle % 64 == 0 {
                std::thread::yield_now();
            }
        }
    }

    /// Waits for the next report on an operation.
    pub fn report(&self, context: u64) -> Report {
        self.until(|| self.take(context))
    }

    /// Returns the next report on an operation, if there is one.
    pub fn take(&self, context: u64) -> Option<Report> {
        self.reports.borrow_mut().get_mut(&context)?.pop_front()
    }

    /// Waits for the success of an operation.
    #[track_caller]
    pub fn done(&self, context: u64) -> Entry {
        match self.report(context) {
            Ok(entry) => entry,
            Err(error) => panic!("operation {context} failed: {error}"),
        }
    }

    /// Waits for the success of each of these operations.
    #[track_caller]
    pub fn all_done(&self, contexts: impl IntoIterator<Item = u64>) {
        for context in contexts {
            self.done(context);
        }
    }

    /// Waits for the failure of an operation.
    #[track_caller]
    pub fn failed(&self, context: u64) -> ErrorEntry {
        match self.report(context) {
            Ok(entry) => panic!("operation {context} succeeded, but should not: {entry:?}"),
            Err(error) => error,
        }
    }

    /// Drives all test endpoints for a while, and asserts that there is no report on an operation.
    #[track_caller]
    pub fn nothing(&self, context: u64) {
        self.turns(MANY);
        if let Some(report) = self.take(context) {
            panic!("nothing should have been reported on operation {context}, but: {report:?}");
        }
    }

    /// Posts a send. Drives all test endpoints while there is no room for it.
    #[track_caller]
    pub fn send(&self, from: usize, to: usize, send: Send) -> u64 {
        self.until(|| match self.try_send(from, self.peer(to), send) {
            Ok(context) => Some(context),
            Err(PostError::Again) => None,
            Err(error) => panic!("a send from {from} to {to} was refused: {error}"),
        })
    }

    /// Posts a send.
    ///
    /// # Errors
    /// Returns the errors of the endpoint.
    pub fn try_send(&self, from: usize, peer: PeerAddress, send: Send) -> Result<u64, PostError> {
        let context = self.context();
        let Send { segments, tag, data, flags } = send;
        let work = SendWork { peer, segments, tag, data, context, flags };
        // SAFETY: segments are made of `Memory`, which is never freed, and tests do not write it while an operation may
        // read it.
        unsafe { self.endpoint(from).post_send(&work) }.map(|()| context)
    }

    /// Injects a message. Drives all test endpoints while there is no room for it.
    #[track_caller]
    pub fn inject(&self, from: usize, to: usize, tag: Option<u64>, bytes: &[u8]) {
        self.until(|| match self.endpoint(from).inject_with(self.peer(to), bytes, tag, None) {
            Ok(()) => Some(()),
            Err(PostError::Again) => None,
            Err(error) => panic!("an inject from {from} to {to} was refused: {error}"),
        });
    }

    /// Posts a write of this memory to pieces of the other test endpoint's regions.
    #[track_caller]
    pub fn write(&self, from: usize, to: usize, local: Segments, pieces: &[RemoteMemory]) -> u64 {
        let work = self.rma(to, local, pieces);
        let RmaWork { peer, context, flags, .. } = work;
        // Writes that can be posted with either call use the two calls alternately.
        let posted = match (local.as_slice(), pieces) {
            // SAFETY: as in `try_send`.
            (&[local], &[piece]) if self.other_way.replace(!self.other_way.get()) => unsafe {
                self.endpoint(from).post_write_one(peer, local, piece, context, flags)
            },
            // SAFETY: as above.
            _ => unsafe { self.endpoint(from).post_write(&work) },
        };
        posted.expect("room for a write");
        context
    }

    /// Posts a read into this memory from pieces of the other test endpoint's regions.
    #[track_caller]
    pub fn read(&self, from: usize, to: usize, local: Segments, pieces: &[RemoteMemory]) -> u64 {
        let work = self.rma(to, local, pieces);
        let RmaWork { peer, context, flags, .. } = work;
        let posted = match (local.as_slice(), pieces) {
            // SAFETY: as in `try_receive`.
            (&[local], &[piece]) if self.other_way_back.replace(!self.other_way_back.get()) => unsafe {
                self.endpoint(from).post_read_one(peer, local, piece, context, flags)
            },
            // SAFETY: as above.
            _ => unsafe { self.endpoint(from).post_read(&work) },
        };
        posted.expect("room for a read");
        context
    }

    /// Posts an addition of 8 bytes, without fetching, to 8 bytes of the other test endpoint's regions.
    #[track_caller]
    pub fn add(&self, from: usize, to: usize, operand: Memory, remote: RemoteMemory) -> u64 {
        let (context, flags) = (self.context(), OpFlags::COMPLETION);
        let work = AtomicWork {
            peer: self.peer(to),
            op: AtomicOp::Sum,
            datatype: Datatype::U64,
            operand: operand.segments(),
            compare: None,
            result: None,
            remote,
            data: None,
            context,
            flags,
        };
        // SAFETY: as in `try_send`.
        unsafe { self.endpoint(from).post_atomic(&work) }.expect("room for an atomic operation");
        context
    }

    /// Posts an addition to a word with `post_fetch_add`.
    #[track_caller]
    pub fn fetch_add(&self, from: usize, to: usize, operand: Memory, result: Memory, remote: RemoteMemory) -> u64 {
        let (peer, context, flags) = (self.peer(to), self.context(), OpFlags::COMPLETION);
        let (operand, result) = (operand.segment(), result.segment());
        // SAFETY: as in `try_receive`.
        let posted = unsafe { self.endpoint(from).post_fetch_add(peer, operand, result, remote, context, flags) };
        posted.expect("room for an addition");
        context
    }

    /// Posts a compare-and-swap of a word with `post_compare_swap`.
    #[track_caller]
    pub fn compare_swap(
        &self,
        from: usize,
        to: usize,
        operands: [Memory; 2],
        result: Memory,
        remote: RemoteMemory,
    ) -> u64 {
        let (peer, context, flags) = (self.peer(to), self.context(), OpFlags::COMPLETION);
        let (operands, result) = (operands.map(|operand| operand.segment()), result.segment());
        // SAFETY: as in `try_receive`.
        let posted = unsafe { self.endpoint(from).post_compare_swap(peer, operands, result, remote, context, flags) };
        posted.expect("room for a compare-and-swap");
        context
    }

    /// Returns a read or a write, for a test that posts it itself.
    #[must_use]
    pub fn rma(&self, to: usize, local: Segments, pieces: &[RemoteMemory]) -> RmaWork {
        let remote = RemotePieces::new(pieces).expect("a few pieces");
        let (peer, context) = (self.peer(to), self.context());
        RmaWork { peer, local, remote, data: None, context, flags: OpFlags::COMPLETION }
    }

    /// Posts a receive.
    #[track_caller]
    pub fn receive(&self, at: usize, receive: Receive) -> u64 {
        self.try_receive(at, receive).unwrap_or_else(|error| panic!("a receive at {at} was refused: {error}"))
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// Returns the errors of the endpoint.
    pub fn try_receive(&self, at: usize, receive: Receive) -> Result<u64, PostError> {
        let context = receive.context.unwrap_or_else(|| self.context());
        let Receive { segments, tag, from, flags, .. } = receive;
        let work = ReceiveWork { from, segments, tag, context, flags };
        // SAFETY: segments are made of `Memory`, which is never freed, and tests do not access it while an operation
        // may write it.
        unsafe { self.endpoint(at).post_recv(&work) }.map(|()| context)
    }

    /// Waits until everything that `from` has sent to `to` so far has arrived. To detect this, it sends one more
    /// message, with a separate tag.
    #[track_caller]
    pub fn settle(&self, from: usize, to: usize) {
        const MARK: u64 = 0xffff_5e77_1e00_0000;
        let tag = MARK | (from % self.stations.len()) as u64;
        let receive = Receive::into(Memory::of(&[])).tag(tag, 0).from(self.peer(from));
        self.follow(from, to, Send::of(Memory::of(&[])).tag(tag), receive);
    }

    /// Like [`settle`](Self::settle), with an untagged message, for use while receives of any tag are posted.
    #[track_caller]
    pub fn settle_untagged(&self, from: usize, to: usize) {
        let receive = Receive::into(Memory::of(&[])).from(self.peer(from));
        self.follow(from, to, Send::of(Memory::of(&[])), receive);
    }

    #[track_caller]
    fn follow(&self, from: usize, to: usize, send: Send, receive: Receive) {
        let received = self.receive(to, receive);
        let sent = self.send(from, to, send);
        self.done(sent);
        self.done(received);
    }

    /// Drives all test endpoints until an operation of the safe API is over.
    pub fn finish<T>(&self, operation: impl IntoFuture<Output = T>) -> T {
        self.until(polled(operation))
    }

    /// Drives all test endpoints until `done` returns true, for at most this time.
    pub fn during(&self, time: Duration, mut done: impl FnMut() -> bool) -> bool {
        let start = Instant::now();
        while start.elapsed() < time {
            if done() {
                return true;
            }
            self.turn();
            std::thread::yield_now();
        }
        false
    }
}

/// The records of an endpoint that its program can see: while there are any, others may be kept as well.
const OPEN: [&str; 11] = [
    "operations that the link has not taken",
    "posted receives",
    "held messages",
    "claims",
    "multi-receive buffers",
    "receives of groups",
    "held messages of groups",
    "operations that are due",
    "begun operations",
    "operations that wait for another process",
    "safe operations",
];

/// The time in which endpoints without operations remove their last records.
const SETTLED: Duration = Duration::from_secs(5);

impl<F: Fabric> Mesh<F> {
    /// Checks that the endpoints keep no records of operations, unless the test ends in the middle of some.
    fn nothing_remains(&self) {
        let start = Instant::now();
        loop {
            let remains: Vec<_> = self.stations().flat_map(|test_endpoint| test_endpoint.endpoint.remains()).collect();
            if remains.is_empty() || remains.iter().any(|(name, _)| OPEN.contains(name)) {
                return;
            }
            assert!(
                start.elapsed() < SETTLED,
                "{}: no operation is in progress, but records remain: {remains:?}",
                F::NAME
            );
            self.turn();
            std::thread::yield_now();
        }
    }
}

impl<F: Fabric> Drop for Mesh<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}: PERCALE_SEED={} repeats this", F::NAME, self.seed);
        } else if self.stations.iter().all(Option::is_some) {
            self.nothing_remains();
        }
    }
}

//! Tests with several engines in one process. One of them is the misbehaving peer: the test uses its links without its
//! engine.

mod answers;
mod asleep;
mod bounds;
mod broken;
mod connection_ends;
mod fair;
mod finished;
mod floods;
mod full;
mod groups;
mod hostile;
mod identity;
mod lingering;
mod logging;
mod notices;
mod one_connection;
mod operation_set;
mod owned;
mod pairs;
mod partial;
mod pieces;
mod rdma;
mod rdma_memory;
mod reads;
mod reclaim;
mod shared;
mod unfinished;
mod windows;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Engine;
use crate::completion::event::{Event, EventQueue};
use crate::endpoint::Endpoint;
use crate::endpoint::ownership::reach::EngineAccess;
use crate::local_memory::volatile::Segments;
use crate::local_memory::volatile::SegmentsExt as _;
use crate::transport::any::AnyLink;
use crate::transport::connect::LocalDoorbell as _;
use crate::transport::shm::DOORBELL_BITS;
use crate::transport::testing::{Notes, SinkReport};
use crate::transport::{ConnectionId, Link};
use crate::wire::head::{FrameKind, Head};
use crate::{CompletionQueue, Domain, Info, PeerAddress, Trust};

/// An endpoint with its vector, event queue and domain.
struct TestEndpoint {
    endpoint: Endpoint,
    vector: crate::AddressVector,
    events: EventQueue,
    domain: Domain,
}

impl TestEndpoint {
    fn new(transport: &str) -> Self {
        Self::trusting(transport, Trust::SameUser)
    }

    fn trusting(transport: &str, trust: Trust) -> Self {
        Self::reporting(transport, trust, &CompletionQueue::default())
    }

    /// Opens a test endpoint that reports receives to this queue.
    fn reporting(transport: &str, trust: Trust, queue: &CompletionQueue) -> Self {
        let builder = Info::discover().unwrap().domain().transport(transport.parse().unwrap());
        Self::of(builder.trust(trust).open().unwrap(), queue)
    }

    /// Opens a test endpoint of a domain.
    fn of(domain: Domain, queue: &CompletionQueue) -> Self {
        let vector = domain.address_vector().build().unwrap();
        let events = EventQueue::default();
        let endpoint = domain.endpoint().vector(&vector).event_queue(&events).receive_queue(queue);
        let endpoint = endpoint.bind("127.0.0.1:0").unwrap();
        Self { endpoint, vector, events, domain }
    }

    /// Returns the address of another test endpoint in this test endpoint's vector.
    fn peer(&self, other: &Self) -> PeerAddress {
        self.vector.insert(other.endpoint.address().to_string()).unwrap()
    }

    fn engine<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> R {
        self.endpoint.access.with_here(f)
    }

    /// Returns the number of safe operations that have ended.
    fn finished(&self) -> u64 {
        self.engine(|engine| engine.core.operations.finished())
    }

    /// Returns the slot of the connection to another test endpoint.
    fn slot(&self, other: &Self) -> ConnectionId {
        let address = other.endpoint.address();
        self.engine(|engine| engine.core.peers.real_slot((address, 0)))
    }

    /// Sends a frame without using the engine.
    fn forge(&self, to: &Self, head: &Head, payload: &[u8]) {
        let slot = self.slot(to);
        let head = Head { len: payload.len() as u32, ..*head };
        self.engine(|engine| {
            let link = engine.links[slot as usize].as_mut().expect("the endpoints are connected");
            Segments::lend(payload, |payload| link.send(&head, payload, false)).expect("there is room");
            // Consecutive frames leave together at the next poll. Frames that have arrived are ignored.
            link.poll(slot, &mut Notes::keeping(0)).expect("the connection is up");
        });
    }

    /// Writes bytes to the socket to another test endpoint without using the link. The socket has room for them.
    fn write_bytes(&self, to: &Self, bytes: &[u8]) {
        let slot = self.slot(to);
        let written = self.engine(|engine| match &engine.links[slot as usize] {
            Some(AnyLink::Tcp(link)) => rustix::io::write(link.as_fd(), bytes),
            other => panic!("{other:?}"),
        });
        assert_eq!(written, Ok(bytes.len()));
    }

    /// Waits for a frame of this kind from another test endpoint, and returns its head. The engine of this test endpoint
    /// does not receive the frames that arrive meanwhile.
    fn receive_frame(&self, from: &Self, kind: FrameKind) -> Head {
        let slot = self.slot(from);
        let mut notes = Notes::keeping(0);
        until(&[from], || {
            self.engine(|engine| {
                let link = engine.links[slot as usize].as_mut().expect("the endpoints are connected");
                link.poll(slot, &mut notes).expect("the connection is up");
            });
            notes.reported.iter().find_map(|report| match report {
                SinkReport::Frame(head, _) if head.kind == kind => Some(*head),
                _ => None,
            })
        })
    }

    /// Returns the records that the engine keeps of operations (see [`Engine::remains`]).
    fn remains(&self) -> Vec<(&'static str, usize)> {
        self.engine(|engine| engine.remains())
    }

    /// Returns the reason for which a peer's connection ended, if one did.
    fn ended(&self) -> Option<String> {
        while let Some(event) = self.events.read() {
            if let Event::PeerDown { reason, .. } = event {
                return Some(reason);
            }
        }
        None
    }
}

/// Returns the time to wait for an event that should happen soon. `PERCALE_TIMEOUT_SCALE` is the factor by which this
/// time is longer on a slow machine (an emulated one, or under valgrind).
fn event_timeout() -> Duration {
    let times = std::env::var("PERCALE_TIMEOUT_SCALE").ok();
    Duration::from_secs(30) * times.map_or(1, |times| times.parse().expect("PERCALE_TIMEOUT_SCALE is a whole number"))
}

/// Makes progress on all test endpoints until `ready` returns something.
#[track_caller]
fn until<R>(all: &[&TestEndpoint], mut ready: impl FnMut() -> Option<R>) -> R {
    let deadline = Instant::now() + event_timeout();
    loop {
        if let Some(found) = ready() {
            return found;
        }
        for test_endpoint in all {
            test_endpoint.endpoint.progress();
        }
        assert!(Instant::now() < deadline, "the condition was not met in time");
        // Under valgrind one thread runs at a time, and a thread that never yields leaves almost no time for the
        // threads that connect.
        std::thread::yield_now();
    }
}

/// Returns the number of bits of an endpoint's doorbell that peers have.
fn bits_in_use(test_endpoint: &TestEndpoint) -> usize {
    let allocator = test_endpoint.engine(|engine| Arc::clone(&engine.doorbell_allocator));
    let free: Vec<u32> = std::iter::from_fn(|| allocator.allocate()).collect();
    free.iter().rev().for_each(|bit| allocator.release(*bit));
    DOORBELL_BITS as usize - free.len()
}

/// Connects two test endpoints.
fn connect(a: &TestEndpoint, b: &TestEndpoint) -> PeerAddress {
    let peer = a.peer(b);
    b.peer(a);
    let (send, receive) = (a.endpoint.tagged_send(peer, 1, vec![1; 8]), b.endpoint.tagged_recv(1, 0, vec![0; 8]));
    let before = a.finished() + b.finished();
    let (mut send, mut receive) = (send.start().unwrap(), receive.start().unwrap());
    until(&[a, b], || (a.finished() + b.finished() == before + 2).then_some(()));
    send.wait().unwrap();
    assert_eq!(receive.wait().unwrap().to_vec(), [1; 8]);
    peer
}

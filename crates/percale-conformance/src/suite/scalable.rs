//! Scalable endpoints: several contexts at one address.

use std::future::IntoFuture;
use std::pin::pin;
use std::sync::Barrier;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use percale::endpoint::safe::{OperationError, Received};
use percale::{
    Access, AddressSet, AddressVector, AtomicOp, Datatype, Domain, Endpoint, ErrorCode, PeerAddress, ScalableEndpoint,
};

use crate::fabric::{Fabric, Peers, Real, Transport};
use crate::memory::{content, same};
use crate::watchdog::Watchdog;

/// The number of address bits for receive contexts, which permits 4 contexts.
const BITS: u32 = 2;
const CONTEXTS: u16 = 3;

/// Two scalable endpoints, their contexts, and the vector that contains both.
struct World<F: Fabric> {
    contexts: [Vec<Option<Endpoint>>; 2],
    scalable: [ScalableEndpoint; 2],
    peers: [PeerAddress; 2],
    vector: AddressVector,
    domain: Domain,
    fabric: F,
    _watchdog: Watchdog,
}

impl<F: Fabric> World<F> {
    /// Makes the endpoints and opens all contexts.
    fn new(what: &str) -> Self {
        let mut world = Self::unopened(what);
        for side in 0..2 {
            world.contexts[side] = (0..CONTEXTS).map(|index| Some(world.open(side, index))).collect();
        }
        world
    }

    /// Makes the endpoints and opens no context.
    fn unopened(what: &str) -> Self {
        let fabric = F::new(7);
        let domain = fabric.domain(|domain| domain);
        let vector = domain.address_vector().receive_context_bits(BITS).build().expect("a vector");
        vector.insert("192.0.2.1:9").expect("an unused address"); // The numbers then do not start at 0.
        let scalable = [(); 2].map(|()| {
            domain.scalable_endpoint().contexts(CONTEXTS).bind(fabric.address()).expect("a scalable endpoint")
        });
        let peers = scalable.each_ref().map(|one| vector.insert(one.address()).expect("an address"));
        let contexts = [(); 2].map(|()| (0..CONTEXTS).map(|_| None).collect());
        Self { contexts, scalable, peers, vector, domain, fabric, _watchdog: Watchdog::new(what) }
    }

    fn open(&self, side: usize, index: u16) -> Endpoint {
        self.scalable[side].open(index, self.domain.endpoint().vector(&self.vector)).expect("a context")
    }

    fn at(&self, side: usize, context: u16) -> &Endpoint {
        self.contexts[side][usize::from(context)].as_ref().expect("the endpoint is open")
    }

    fn name(&self, side: usize, context: u16) -> PeerAddress {
        self.peers[side].receive_context(context.into(), BITS).expect("the context fits into the address")
    }

    fn turn(&self) {
        self.contexts.iter().flatten().flatten().for_each(|endpoint| _ = endpoint.progress());
        self.fabric.tick();
    }

    /// Drives all contexts until an operation is over.
    fn finish<T>(&self, operation: impl IntoFuture<Output = T>) -> T {
        let mut operation = pin!(operation.into_future());
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(result) = operation.as_mut().poll(&mut context) {
                return result;
            }
            self.turn();
            std::thread::yield_now();
        }
    }

    /// Sends one message, untagged or tagged, from one context to another.
    fn pass(&self, from: (usize, u16), to: (usize, u16), name: PeerAddress, number: u64, len: usize) {
        let (source, target) = (self.at(from.0, from.1), self.at(to.0, to.1));
        let what = format!("{len} bytes from {from:?} to {to:?}");
        let (got, sent) = if number.is_multiple_of(2) {
            let receive = target.recv(vec![0; len]).start().expect("a receive");
            let send = source.send(name, content(number, len)).start().expect("a send");
            (self.finish(receive), self.finish(send))
        } else {
            let send = source.tagged_send(name, number, content(number, len)).start().expect("a send");
            let receive = target.tagged_recv(number, 0, vec![0; len]).start().expect("a receive");
            (self.finish(receive), self.finish(send))
        };
        sent.unwrap_or_else(|error| panic!("{what}: {error}"));
        let got = got.unwrap_or_else(|error| panic!("{what}: {error}"));
        same(&got.to_vec(), &content(number, len), &what);
        assert_eq!(got.source, Some(self.peers[from.0]), "{what}: the source is the sender's plain number");
    }

    /// Checks that no message is waiting.
    fn nothing_is_left(&self) {
        for _ in 0..50 {
            self.turn();
        }
        for endpoint in self.contexts.iter().flatten().flatten() {
            let receives = [endpoint.recv(vec![0; 8]), endpoint.tagged_recv(0, !0, vec![0; 8])];
            for receive in receives {
                let receive = receive.start().expect("a receive");
                assert!(!receive.is_ready(), "{}: a message that was not sent to this context", F::NAME);
            }
        }
    }
}

fn refused(result: Result<Received, OperationError>, code: ErrorCode) {
    let error = result.expect_err("the context was closed");
    assert_eq!(error.errno(), code.errno(), "{error}");
}

/// Messages from any context to any context of the other endpoint arrive at that context and at no other.
///
/// Requirements: AV-008, AV-051, CTX-001.
pub fn each_receive_context_gets_only_its_messages<F: Peers>() {
    let world = World::<F>::new("each context gets its own messages");
    let mut number = 0;
    for (from, to) in (0..CONTEXTS).flat_map(|from| (0..CONTEXTS).map(move |to| (from, to))) {
        for len in [0, 8, 100, 5000, F::BULK] {
            for side in 0..2 {
                world.pass((side, from), (1 - side, to), world.name(1 - side, to), number, len);
                number += 1;
            }
        }
    }
    world.nothing_is_left();
}

/// An address without a context number addresses context 0.
///
/// Requirements: CTX-003.
pub fn a_plain_address_means_context_0<F: Peers>() {
    let mut world = World::<F>::new("a plain address means context 0");
    world.pass((0, 2), (1, 0), world.peers[1], 1, 100);
    world.pass((1, 1), (0, 0), world.peers[0], 2, 100);
    // The same holds in a vector without bits for contexts, and for an endpoint that is not scalable.
    let plain = world.domain.address_vector().build().expect("a vector");
    let one = world.domain.endpoint().vector(&plain).bind(world.fabric.address()).expect("an endpoint");
    let peer = plain.insert(world.scalable[1].address()).expect("an address");
    let back = world.vector.insert(one.address()).expect("an address");
    world.contexts[0].push(Some(one)); // This endpoint is driven in the same way as the contexts.
    let (target, one) = (world.at(1, 0), world.at(0, CONTEXTS));
    let (receive, sending) = (target.recv(vec![0; 9]).start().unwrap(), one.send(peer, content(5, 9)).start().unwrap());
    let got = world.finish(receive).expect("a message");
    same(&got.to_vec(), &content(5, 9), "a message of an ordinary endpoint");
    assert_eq!(got.source, Some(back));
    world.finish(sending).expect("a send");
    // An ordinary endpoint has only one context.
    let error = world
        .finish(world.at(0, 1).send(back.receive_context(1, BITS).unwrap(), vec![1]))
        .expect_err("an ordinary endpoint has only context 0");
    assert_eq!(error.errno(), ErrorCode::Refused.errno(), "{error}");
    world.nothing_is_left();
}

/// Contexts of one endpoint are peers of each other and of themselves.
///
/// Requirements: CTX-002.
pub fn contexts_of_one_endpoint_reach_each_other<F: Transport>() {
    let world = World::<F>::new("contexts of one endpoint reach each other");
    for (number, (from, to)) in (0..CONTEXTS).flat_map(|from| (0..CONTEXTS).map(move |to| (from, to))).enumerate() {
        if F::ALONE && from != to {
            continue;
        }
        for len in [8, 5000, F::BULK] {
            world.pass((0, from), (0, to), world.name(0, to), number as u64, len);
        }
    }
    world.nothing_is_left();
}

/// A receive directed at a context matches only messages sent from it.
///
/// Requirements: AV-051.
pub fn a_receive_is_directed_at_a_context<F: Peers>() {
    let world = World::<F>::new("a receive is directed at a context");
    let target = world.at(1, 0);
    let [first, second] = [2, 1].map(|from| target.recv(vec![0; 8]).from(world.name(0, from)).start().unwrap());
    for from in [1, 2] {
        world.finish(world.at(0, from).send(world.peers[1], vec![from as u8; 8])).expect("a send");
    }
    assert_eq!(world.finish(first).expect("a message").to_vec(), [2; 8]);
    assert_eq!(world.finish(second).expect("a message").to_vec(), [1; 8]);
}

/// A send to a context that does not exist fails, and the error names the context.
///
/// Requirements: CTX-003.
pub fn send_to_missing_context_fails<F: Peers>() {
    let mut world = World::<F>::new("send to missing context fails");
    let error =
        world.finish(world.at(0, 0).send(world.name(1, 3), vec![1])).expect_err("the endpoint has only three contexts");
    assert_eq!(error.errno(), ErrorCode::Refused.errno(), "{error}");
    let text = error.to_string();
    assert!(text.contains("receive context 3 of") && text.contains("does not exist"), "{text}");
    world.pass((0, 0), (1, 2), world.name(1, 2), 1, 8); // Other operations are not affected.
    let (domain, vector) = (world.domain.clone(), world.vector.clone());
    let builder = || domain.endpoint().vector(&vector);
    for (index, errno) in [(3, libc_einval()), (1, libc_ebusy())] {
        assert_eq!(world.scalable[0].open(index, builder()).expect_err("the context is not available").errno(), errno);
    }
    // A context that only sends cannot be addressed by a peer.
    let one =
        world.domain.scalable_endpoint().contexts(2).receiving(1).bind(world.fabric.address()).expect("an endpoint");
    let peer = world.vector.insert(one.address()).expect("an address");
    world.contexts[0].push(Some(one.open(1, builder()).expect("a context")));
    let (sender, target) = (world.at(0, CONTEXTS), world.at(1, 0));
    let (receive, send) = (target.recv(vec![0; 4]).start().unwrap(), sender.send(world.peers[1], vec![9; 4]).start());
    world.finish(send.unwrap()).expect("the send");
    assert_eq!(world.finish(receive).expect("a message").source, Some(peer));
    let error = world
        .finish(world.at(1, 1).send(peer.receive_context(1, BITS).unwrap(), vec![1]))
        .expect_err("the context cannot receive");
    assert_eq!(error.errno(), ErrorCode::Refused.errno(), "{error}");
    for contexts in [0, 257] {
        let error = world.domain.scalable_endpoint().contexts(contexts).bind(world.fabric.address());
        assert_eq!(error.expect_err("an invalid number of contexts").errno(), libc_einval());
    }
}

fn libc_einval() -> i32 {
    rustix::io::Errno::INVAL.raw_os_error()
}

fn libc_ebusy() -> i32 {
    rustix::io::Errno::BUSY.raw_os_error()
}

/// Regions can be accessed through any context.
///
/// Requirements: CTX-001.
pub fn memory_is_accessed_through_contexts<F: Peers>() {
    let world = World::<F>::new("memory is accessed through contexts");
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
    for (from, to) in [(0, 0), (1, 2), (2, 1)] {
        for len in [8, 5000, F::BULK] {
            let region = world.domain.register(vec![0; len], rights).expect("a region");
            let (initiator, peer) = (world.at(0, from), world.name(1, to));
            let bytes = content(9, len);
            let source = world.finish(initiator.write(peer, bytes.clone(), region.remote())).expect("a write");
            let got = world.finish(initiator.read(peer, region.remote(), source)).expect("a read");
            same(&got.into_vec(), &bytes, "the written data");
        }
    }
}

/// A context can be opened after a peer has sent to it.
///
/// Requirements: CTX-004.
pub fn send_waits_for_a_context_not_yet_open<F: Peers + Real>() {
    let mut world = World::<F>::unopened("send waits for a context not yet open");
    world.contexts[0][0] = Some(world.open(0, 0));
    world.contexts[1][0] = Some(world.open(1, 0));
    let late = {
        let sending = world.at(0, 0).send(world.name(1, 1), vec![7; 100]).start().expect("a send");
        let until = Instant::now() + Duration::from_millis(50);
        while Instant::now() < until {
            world.turn();
        }
        let late = world.open(1, 1);
        let receive = late.recv(vec![0; 100]).start().expect("a receive");
        assert_eq!(world.finish(receive).expect("a message").to_vec(), [7; 100]);
        world.finish(sending).expect("a send");
        late
    };
    world.contexts[1][1] = Some(late);
    world.nothing_is_left();
}

/// Closing a context ends only the operations that wait for it. It can be reached again after it is opened again.
///
/// Requirements: CTX-005.
pub fn closed_context_ends_operations_waiting_for_it<F: Peers>() {
    let mut world = World::<F>::new("closed context ends operations waiting for it");
    for to in 0..CONTEXTS {
        world.pass((0, 0), (1, to), world.name(1, to), to.into(), 100);
    }
    for round in 0..3 {
        let gone = world.contexts[1][1].take();
        let waiting = world.at(0, 0).recv(vec![0; 8]).from(world.name(1, 1)).start().expect("a receive");
        let other = world.at(0, 0).recv(vec![0; 8]).from(world.name(1, 2)).start().expect("a receive");
        let long = world.at(0, 0).send(world.name(1, 1), content(1, F::BULK)).start().expect("a send");
        drop(gone);
        refused(world.finish(waiting), ErrorCode::Closed);
        drop(long);
        assert!(!other.is_ready(), "the other contexts are still open");
        world.finish(world.at(1, 2).send(world.peers[0], vec![round; 8])).expect("a send");
        assert_eq!(world.finish(other).expect("a message").to_vec(), [round; 8]);
        world.contexts[1][1] = Some(world.open(1, 1));
        world.pass((0, 0), (1, 1), world.name(1, 1), 2, 100);
    }
    world.nothing_is_left();
}

/// The address is in use while any context is open, and free afterwards.
///
/// Requirements: CTX-005.
pub fn address_stays_in_use_while_a_context_is_open<F: Peers>() {
    let mut world = World::<F>::new("address stays in use while a context is open");
    let fabric = F::new(8);
    let domain = fabric.domain(|domain| domain);
    let scalable = domain.scalable_endpoint().contexts(2).bind(fabric.address()).expect("a scalable endpoint");
    let address = scalable.address();
    let vector = domain.address_vector().receive_context_bits(BITS).build().expect("a vector");
    let peer = vector.insert(address).expect("an address");
    let contexts = [0, 1].map(|index| scalable.open(index, domain.endpoint().vector(&vector)).expect("a context"));
    assert!(contexts.iter().all(|context| context.address() == address));
    drop(scalable);
    let [first, second] = contexts;
    drop(first);
    assert!(domain.endpoint().vector(&vector).bind(address.to_string()).is_err(), "the address is in use");
    world.contexts[0][0] = Some(second);
    let second = world.at(0, 0);
    world.finish(second.send(peer.receive_context(1, BITS).unwrap(), vec![1])).expect("the endpoint reaches itself");
    world.contexts[0][0] = None;
    domain.endpoint().vector(&vector).bind(address.to_string()).expect("the address is free");
}

/// Contexts can be members of groups, with any address and any number.
///
/// Requirements: CTX-001.
pub fn contexts_are_members_of_groups<F: Peers>() {
    let world = World::<F>::new("contexts are members of groups");
    for list in [&[(0, 0), (0, 1)][..], &[(0, 2), (1, 0), (0, 0)], &[(1, 1), (0, 1), (1, 0), (1, 2), (0, 2)]] {
        let set: AddressSet = list.iter().map(|(side, context)| world.name(*side, *context)).collect();
        // The same members in a different order are a different group.
        let turned: AddressSet = list.iter().rev().map(|(side, context)| world.name(*side, *context)).collect();
        let members: Vec<_> = list.iter().map(|(side, context)| world.at(*side, *context)).collect();
        let joins = members.iter().flat_map(|member| [member.join(&set), member.join(&turned)]);
        let joins: Vec<_> = joins.map(|join| join.expect("a group")).collect();
        let groups: Vec<_> = joins.into_iter().map(|join| world.finish(join).expect("all members join")).collect();
        for (at, group) in groups.iter().enumerate() {
            let rank = if at % 2 == 0 { at / 2 } else { list.len() - 1 - at / 2 };
            assert_eq!((group.rank(), group.size()), (rank, list.len()));
        }
        let sums = groups.iter().enumerate().map(|(at, group)| {
            let number = 1_u64 << (8 * (at % 2) + at / 2);
            group.allreduce(AtomicOp::Sum, Datatype::U64, number.to_ne_bytes().to_vec()).start().expect("a sum")
        });
        let all = (1_u64 << list.len()) - 1;
        for (at, sum) in sums.collect::<Vec<_>>().into_iter().enumerate() {
            assert_eq!(world.finish(sum).expect("a sum").into_vec(), (all << (8 * (at % 2))).to_ne_bytes());
        }
    }
}

/// Two threads drive one context each at the same time. Each thread sends to both contexts of the other endpoint.
///
/// Requirements: CTX-006.
pub fn threads_drive_separate_contexts<F: Peers + Real>() {
    const ROUNDS: usize = 300;
    let world = World::<F>::new("threads drive separate contexts");
    let names = |side: usize| (0..2).map(|to| world.name(side, to)).collect::<Vec<_>>();
    let (names, peers) = ([names(0), names(1)], world.peers);
    let start = Barrier::new(4);
    std::thread::scope(|scope| {
        for (side, contexts) in world.contexts.into_iter().enumerate() {
            for (index, endpoint) in contexts.into_iter().flatten().enumerate().take(2) {
                let (names, start) = (&names[1 - side], &start);
                scope.spawn(move || {
                    start.wait();
                    for round in 0..ROUNDS {
                        let len = if round % 10 == 0 { 9000 } else { 40 };
                        let tag = |from: usize, to: usize| (round << 8 | from << 4 | to) as u64;
                        let receives = [0, 1].map(|from| {
                            endpoint.tagged_recv(tag(from, index), 0, vec![0; len]).start().expect("a receive")
                        });
                        let sends = [0, 1].map(|to| {
                            let bytes = content(tag(index, to), len);
                            endpoint.tagged_send(names[to], tag(index, to), bytes).start().expect("a send")
                        });
                        for (from, mut receive) in receives.into_iter().enumerate() {
                            let got = receive.wait().expect("a message");
                            same(&got.to_vec(), &content(tag(from, index), len), "a message");
                            assert_eq!(got.source, Some(peers[1 - side]));
                        }
                        sends.into_iter().for_each(|mut send| drop(send.wait().expect("a send")));
                    }
                    start.wait(); // No thread ends before all have received their messages.
                });
            }
        }
    });
}

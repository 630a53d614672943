//! The sending halves of contexts, which are opened separately from the receiving halves.

use std::cell::RefCell;
use std::future::IntoFuture;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use percale::endpoint::safe::{OperationError, Received};
use percale::{AddressVector, Domain, Endpoint, ErrorCode, PeerAddress, ScalableEndpoint};

use crate::fabric::{Fabric, Peers};
use crate::watchdog::Watchdog;

const BITS: u32 = 2;
const CONTEXTS: u16 = 2;

/// A scalable endpoint with as many senders as contexts, and an ordinary endpoint.
struct World<F: Fabric> {
    senders: RefCell<Vec<Option<Endpoint>>>,
    contexts: RefCell<Vec<Option<Endpoint>>>,
    plain: Option<Endpoint>,
    scalable: ScalableEndpoint,
    /// The scalable endpoint, and the ordinary one.
    peers: [PeerAddress; 2],
    vector: AddressVector,
    domain: Domain,
    fabric: F,
    _watchdog: Watchdog,
}

impl<F: Fabric> World<F> {
    fn new(what: &str) -> Self {
        let fabric = F::new(7);
        let domain = fabric.domain(|domain| domain);
        let vector = domain.address_vector().receive_context_bits(BITS).build().expect("a vector");
        let builder = domain.scalable_endpoint().contexts(CONTEXTS).senders(CONTEXTS);
        let scalable = builder.bind(fabric.address()).expect("a scalable endpoint");
        let plain = domain.endpoint().vector(&vector).bind(fabric.address()).expect("an endpoint");
        let peers = [scalable.address(), plain.address()].map(|address| vector.insert(address).expect("an address"));
        let (senders, contexts, plain) = (RefCell::default(), RefCell::default(), Some(plain));
        let world =
            Self { senders, contexts, plain, scalable, peers, vector, domain, fabric, _watchdog: Watchdog::new(what) };
        world.senders.replace((0..CONTEXTS).map(|index| Some(world.sender(index))).collect());
        world.contexts.replace((0..CONTEXTS).map(|index| Some(world.context(index))).collect());
        world
    }

    fn sender(&self, index: u16) -> Endpoint {
        self.scalable.open_sender(index, self.domain.endpoint().vector(&self.vector)).expect("a sender")
    }

    fn context(&self, index: u16) -> Endpoint {
        self.scalable.open(index, self.domain.endpoint().vector(&self.vector)).expect("a context")
    }

    fn plain(&self) -> &Endpoint {
        self.plain.as_ref().expect("the endpoint is open")
    }

    fn name(&self, context: u16) -> PeerAddress {
        self.peers[0].receive_context(context.into(), BITS).expect("the context fits into the address")
    }

    /// Drives all endpoints until an operation is over.
    fn finish<T>(&self, operation: impl IntoFuture<Output = T>) -> T {
        let mut operation = pin!(operation.into_future());
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(result) = operation.as_mut().poll(&mut context) {
                return result;
            }
            self.turn();
        }
    }

    fn turn(&self) {
        let (senders, contexts) = (self.senders.borrow(), self.contexts.borrow());
        let all = senders.iter().chain(contexts.iter()).chain([&self.plain]);
        all.flatten().for_each(|endpoint| _ = endpoint.progress());
        self.fabric.tick();
        std::thread::yield_now();
    }

    /// Drives all endpoints for a while, until they have detected the closed ones.
    fn turns(&self) {
        let until = std::time::Instant::now() + std::time::Duration::from_millis(20);
        while std::time::Instant::now() < until {
            self.turn();
        }
    }

    /// Sends one message with this byte from a sender to the ordinary endpoint.
    fn send(&self, index: u16, byte: u8) {
        let senders = self.senders.borrow();
        let sender = senders[usize::from(index)].as_ref().expect("the endpoint is open");
        self.finish(sender.send(self.peers[1], vec![byte; 100]).start().expect("a send")).expect("the message is sent");
    }

    /// Returns the first byte of the message that a receive got, after a check of its source.
    fn got(&self, receive: impl IntoFuture<Output = Result<Received, OperationError>>) -> u8 {
        let got = self.finish(receive).expect("a message");
        assert_eq!(got.source, Some(self.peers[0]), "{}: the source is the plain number", F::NAME);
        got.to_vec()[0]
    }
}

/// A receive directed at a context matches messages of its sending half and no others, regardless of when it was
/// posted.
///
/// Requirements: CTX-012.
pub fn receives_directed_at_a_context_take_messages_of_its_sender<F: Peers>() {
    let world = World::<F>::new("directed at a context");
    let directed = |context| world.plain().recv(vec![0; 100]).from(world.name(context)).start().expect("a receive");
    // No message has arrived yet.
    let (first, second) = (directed(1), directed(0));
    world.send(0, 10);
    world.send(1, 11);
    assert_eq!((world.got(first), world.got(second)), (11, 10));
    // The messages have already arrived or are in transfer.
    world.send(1, 12);
    world.send(0, 13);
    assert_eq!((world.got(directed(0)), world.got(directed(1))), (13, 12));
    let later = directed(1);
    world.send(1, 14);
    assert_eq!(world.got(later), 14);
    // Receive from any source.
    let any = world.plain().recv(vec![0; 100]).start().expect("a receive");
    world.send(0, 15);
    assert_eq!(world.got(any), 15);
}

/// A receive directed at a context matches messages of a sender that has been closed, regardless of when it was posted.
///
/// Requirements: CTX-012.
pub fn messages_of_departed_sender_are_received<F: Peers>() {
    let world = World::<F>::new("messages of a sender that has left");
    let directed = || world.plain().recv(vec![0; 100]).from(world.name(0)).start().expect("a receive");
    for (round, bytes) in [[1, 2, 3], [4, 5, 6], [7, 8, 9]].into_iter().enumerate() {
        // The same sender sent other messages before it was closed and after it was opened again, and another sender
        // sent messages in between.
        world.send(1, 100);
        world.send(0, bytes[0]);
        world.send(0, bytes[1]);
        world.senders.borrow_mut()[0] = None;
        if round > 0 {
            world.contexts.borrow_mut()[0] = None;
        }
        world.turns();
        assert_eq!(world.got(directed()), bytes[0], "a message of a sender that has left");
        world.turns();
        let (sender, context) = (world.sender(0), round > 0);
        world.senders.borrow_mut()[0] = Some(sender);
        if context {
            let context = world.context(0);
            world.contexts.borrow_mut()[0] = Some(context);
        }
        world.send(0, bytes[2]);
        assert_eq!(world.got(directed()), bytes[1]);
        assert_eq!(world.got(directed()), bytes[2]);
        let other = world.plain().recv(vec![0; 100]).from(world.name(1)).start().expect("a receive");
        assert_eq!(world.got(other), 100);
    }
}

/// Each half can be closed and opened separately. Operations that wait for the closed half end, and the other half
/// continues.
///
/// Requirements: CTX-012.
pub fn each_half_of_a_context_closes_separately<F: Peers>() {
    let world = World::<F>::new("each half of a context closes separately");
    let directed = || world.plain().recv(vec![0; 100]).from(world.name(0)).start().expect("a receive");
    let reaches_context = |byte| {
        let contexts = world.contexts.borrow();
        let receive = contexts[0].as_ref().expect("the endpoint is open").recv(vec![0; 8]).start().expect("a receive");
        world
            .finish(world.plain().send(world.name(0), vec![byte; 8]).start().expect("a send"))
            .expect("the message is sent");
        assert_eq!(world.finish(receive).expect("a message").to_vec(), [byte; 8]);
    };
    for round in 0..3 {
        world.send(0, round);
        assert_eq!(world.got(directed()), round);
        // The sender is closed. Operations that wait for it end. The context stays open.
        let waiting = directed();
        world.senders.borrow_mut()[0] = None;
        let error = world.finish(waiting).expect_err("the sender has left");
        assert_eq!(error.errno(), ErrorCode::Closed.errno(), "{error}");
        reaches_context(round);
        // The sender is opened again. A receive that was posted meanwhile gets its message.
        let waiting = directed();
        let sender = world.sender(0);
        world.senders.borrow_mut()[0] = Some(sender);
        world.send(0, 100 + round);
        assert_eq!(world.got(waiting), 100 + round);
        // The context is closed. Messages to it that were not received end. The sender stays open.
        let long = world.plain().send(world.name(0), vec![1; F::BULK]).start().expect("a send");
        world.contexts.borrow_mut()[0] = None;
        world.finish(long).expect_err("the context has left");
        let waiting = directed();
        world.send(0, 50 + round);
        assert_eq!(world.got(waiting), 50 + round);
        let context = world.context(0);
        world.contexts.borrow_mut()[0] = Some(context);
        reaches_context(10 + round);
    }
    assert!(world.scalable.open_sender(0, world.domain.endpoint()).is_err(), "the sender is already open");
    assert!(world.scalable.open_sender(CONTEXTS, world.domain.endpoint()).is_err(), "there is no such sender");
}

//! Shared receive contexts: receives that several endpoints share.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use percale::endpoint::safe::{OperationError, Received};
use percale::{
    CompletionFlags, CompletionQueue, Domain, Endpoint, Entry, ErrorCode, Event, EventQueue, Listener, OpFlags,
    PeerAddress, ReceiveWork, Segments, SharedReceive, SharedReceiving,
};

use crate::fabric::{Fabric, Peers, Real, Transport};
use crate::memory::{Memory, content, post_receive, post_shared, same};
use crate::watchdog::Watchdog;

/// The number of endpoints that share receives.
const SHARERS: usize = 3;

/// Three endpoints that share receives, and two others that send. On a transport without other endpoints, the three
/// endpoints send to themselves.
struct World<F: Fabric> {
    endpoints: Vec<Option<Endpoint>>,
    peers: Vec<PeerAddress>,
    queues: Vec<CompletionQueue>,
    shared: SharedReceive,
    domain: Domain,
    fabric: F,
    _watchdog: Watchdog,
}

impl<F: Fabric> World<F> {
    fn new(what: &str) -> Self {
        let fabric = F::new(9);
        let domain = fabric.domain(|domain| domain);
        let vector = domain.address_vector().build().expect("a vector");
        let shared = domain.shared_receive();
        let queues: Vec<_> = (0..SHARERS).map(|_| CompletionQueue::default()).collect();
        let endpoints: Vec<_> = (0..SHARERS + 2)
            .map(|number| {
                let builder = domain.endpoint().vector(&vector);
                let builder = match queues.get(number) {
                    Some(queue) => builder.shared_receive(&shared).receive_queue(queue),
                    None => builder,
                };
                Some(builder.bind(fabric.address()).expect("an endpoint"))
            })
            .collect();
        let address = |endpoint: &Option<Endpoint>| endpoint.as_ref().expect("the endpoint is open").address();
        let peers = endpoints.iter().map(|one| vector.insert(address(one)).expect("an address")).collect();
        Self { endpoints, peers, queues, shared, domain, fabric, _watchdog: Watchdog::new(what) }
    }

    fn turn(&self) {
        self.endpoints.iter().flatten().for_each(|endpoint| _ = endpoint.progress());
        self.fabric.tick();
        std::thread::yield_now();
    }

    fn turns(&self) {
        (0..200).for_each(|_| self.turn());
    }

    fn until(&self, mut done: impl FnMut() -> bool) {
        while !done() {
            self.turn();
        }
    }

    /// Returns the endpoint that sends to this sharer.
    fn sender(&self, number: usize, to: usize) -> usize {
        if F::ALONE { to } else { SHARERS + number % 2 }
    }

    /// Injects a message. If it is long, posts it and waits until it is accepted.
    fn send(&self, number: usize, to: usize, tag: Option<u64>, bytes: &[u8]) -> usize {
        let from = self.sender(number, to);
        let endpoint = self.endpoints[from].as_ref().expect("the endpoint is open");
        while endpoint.inject_with(self.peers[to], bytes, tag, None).is_err() {
            self.turn();
        }
        from
    }

    /// Waits until all earlier messages have arrived. To detect this, it sends another message, for a receive of the
    /// endpoint itself.
    fn arrived(&self, from: usize, to: usize) {
        const BEHIND: u64 = 1 << 40;
        let [sender, receiver] =
            [from, to].map(|number| self.endpoints[number].as_ref().expect("the endpoint is open"));
        let receiving = receiver.tagged_recv(BEHIND, 0, Vec::new()).start().expect("a receive");
        while sender.tagged_inject(self.peers[to], BEHIND, &[]).is_err() {
            self.turn();
        }
        self.until(|| receiving.is_ready());
    }

    fn end(&self, receiving: SharedReceiving) -> Result<Received, OperationError> {
        self.until(|| receiving.is_ready());
        receiving.take().expect("the receive is ready")
    }
}

/// Shared receives are used in posting order, regardless of the target endpoint of a message.
///
/// Requirements: CTX-007.
pub fn messages_to_any_endpoint_use_shared_receives<F: Transport>() {
    let world = World::<F>::new("messages to any endpoint use shared receives");
    for tagged in [false, true] {
        for len in [0, 8, 100, 2000] {
            let post = |_| match tagged {
                true => world.shared.tagged_recv(5, 0, vec![0; len]).expect("a receive"),
                false => world.shared.recv(vec![0; len]).expect("a receive"),
            };
            let receives: Vec<_> = (0..12).map(post).collect();
            for (number, receiving) in receives.into_iter().enumerate() {
                let from = world.send(number, number % SHARERS, tagged.then_some(5), &content(number as u64, len));
                let got = world.end(receiving).expect("a message");
                same(&got.to_vec(), &content(number as u64, len), "a message to a shared receive");
                assert_eq!(got.source, Some(world.peers[from]));
            }
        }
    }
    // The target endpoint fetches a long message.
    for to in 0..SHARERS {
        let receiving = world.shared.recv(vec![0; F::BULK]).expect("a receive");
        let from = world.endpoints[world.sender(1, to)].as_ref().expect("the endpoint is open");
        let sending = from.send(world.peers[to], content(3, F::BULK)).start().expect("a send");
        same(&world.end(receiving).expect("a message").to_vec(), &content(3, F::BULK), "a long message");
        drop(sending);
    }
}

/// The unexpected messages of all endpoints form one queue.
///
/// Requirements: CTX-007.
pub fn unexpected_messages_of_all_endpoints_are_taken_in_order<F: Transport>() {
    let world = World::<F>::new("unexpected messages of all endpoints are taken in order");
    for round in 0..3 {
        for number in 0..12 {
            let to = (number * 7 + round) % SHARERS;
            let from = world.send(number, to, Some(number as u64), &content(number as u64, 60));
            world.arrived(from, to);
        }
        // A receive for one tag skips earlier messages with other tags. The remaining messages are received in order.
        let sixth = world.shared.tagged_recv(6, 0, vec![0; 60]).expect("a receive");
        assert_eq!(world.end(sixth).expect("a message").tag, 6);
        for number in (0..12).filter(|number| *number != 6) {
            let receiving = world.shared.tagged_recv(0, !0, vec![0; 60]).expect("a receive");
            let got = world.end(receiving).expect("a message");
            assert_eq!(got.tag, number);
            same(&got.to_vec(), &content(number, 60), "a message that arrived earlier");
        }
    }
    // A receive of the endpoint itself has priority, and no other receive gets its message.
    world.send(0, 1, None, b"own");
    world.turns();
    let one = world.endpoints[1].as_ref().expect("the endpoint is open");
    let mut own = one.recv(vec![0; 8]).start().expect("a receive");
    let receiving = world.shared.recv(vec![0; 8]).expect("a receive");
    world.until(|| own.is_ready());
    assert_eq!(own.wait().expect("a message").to_vec(), b"own");
    world.send(1, 2, None, b"shared");
    assert_eq!(world.end(receiving).expect("a message").to_vec(), b"shared");
}

/// A message that has matched a shared receive is delivered to it, regardless of the receives that its endpoint posts
/// before it makes progress.
///
/// Requirements: CTX-007.
pub fn endpoint_receive_takes_no_message_of_a_shared_receive<F: Transport>() {
    let world = World::<F>::new("endpoint receive takes no message of a shared receive");
    for tag in [None, Some(5)] {
        let mut from = 0;
        for number in 0..3 {
            from = world.send(0, 0, tag, &content(number, 100));
        }
        world.arrived(from, 0);
        let shared: Vec<_> = (0..2)
            .map(|_| match tag {
                Some(tag) => world.shared.tagged_recv(tag, 0, vec![0; 100]).expect("a receive"),
                None => world.shared.recv(vec![0; 100]).expect("a receive"),
            })
            .collect();
        let endpoint = world.endpoints[0].as_ref().expect("the endpoint is open");
        let mut own = match tag {
            Some(tag) => endpoint.tagged_recv(tag, 0, vec![0; 100]).start().expect("a receive"),
            None => endpoint.recv(vec![0; 100]).start().expect("a receive"),
        };
        world.until(|| own.is_ready());
        for (number, receiving) in shared.into_iter().enumerate() {
            same(
                &world.end(receiving).expect("a message").to_vec(),
                &content(number as u64, 100),
                "a message of a shared receive",
            );
        }
        same(&own.wait().expect("a message").to_vec(), &content(2, 100), "the third message");
    }
}

/// A message that the endpoint has received or claimed itself never matches a shared receive, not even temporarily.
/// Receives posted later get later messages in order.
///
/// Requirements: CTX-007.
pub fn shared_receive_gets_no_message_taken_by_an_endpoint<F: Transport>() {
    let world = World::<F>::new("shared receive gets no message taken by an endpoint");
    let ways =
        [OpFlags::empty(), OpFlags::MULTI_RECEIVE, OpFlags::PEEK | OpFlags::DISCARD, OpFlags::PEEK | OpFlags::CLAIM];
    for (context, way) in (1..).zip(ways) {
        for tag in [None, Some((5, 0))] {
            let mut from = 0;
            for number in 0..3 {
                from = world.send(0, 0, tag.map(|(tag, _)| tag), &content(number, 100));
            }
            world.arrived(from, 0);
            let endpoint = world.endpoints[0].as_ref().expect("the endpoint is open");
            let any = PeerAddress::UNSPECIFIED;
            let done = || {
                let mut entry = [Entry::default()];
                world.until(|| world.queues[0].read(&mut entry).expect("no error") == 1);
                assert_eq!(entry[0].context, context);
            };
            let target = Memory::blank(100);
            let looks = way.contains(OpFlags::PEEK);
            let segments = Segments::one(if looks { Memory::blank(0).segment() } else { target.segment() });
            let flags = way | OpFlags::COMPLETION;
            post_receive(endpoint, &ReceiveWork { from: any, segments, tag, context, flags }).expect("a receive");
            if looks {
                done();
            }
            let receive = || match tag {
                Some((tag, ignore)) => world.shared.tagged_recv(tag, ignore, vec![0; 100]).expect("a receive"),
                None => world.shared.recv(vec![0; 100]).expect("a receive"),
            };
            let shared: Vec<_> = (0..2).map(|_| receive()).collect();
            for (number, receiving) in (1..).zip(shared) {
                let got = world.end(receiving).expect("a message").to_vec();
                same(&got, &content(number, 100), "a message that no endpoint receive took");
            }
            if way.contains(OpFlags::CLAIM) {
                let (segments, flags) = (Segments::one(target.segment()), OpFlags::CLAIM | OpFlags::COMPLETION);
                let work = ReceiveWork { from: any, segments, tag, context, flags };
                post_receive(endpoint, &work).expect("the claimed message");
            }
            if !way.contains(OpFlags::DISCARD) {
                done();
                same(&target.read(), &content(0, 100), "the endpoint's own message");
            }
        }
    }
}

/// Results are reported to the queue of the endpoint that received the message.
///
/// Requirements: CTX-007.
pub fn raw_shared_receive_reports_to_the_receiving_endpoint<F: Transport>() {
    let world = World::<F>::new("raw shared receive reports to the receiving endpoint");
    for number in 0..30_usize {
        let to = (number * 5) % SHARERS;
        let target = Memory::blank(64);
        let flags = OpFlags::COMPLETION;
        let segments = Segments::one(target.segment());
        let tag = (number % 2 == 0).then_some((number as u64, 0));
        let from = PeerAddress::UNSPECIFIED;
        let work = ReceiveWork { from, segments, tag, context: 100 + number as u64, flags };
        let before = number % 3 == 0;
        if before {
            world.send(number, to, tag.map(|(tag, _)| tag), &content(number as u64, 64));
            world.turns();
        }
        post_shared(&world.shared, &work).expect("a receive");
        if !before {
            world.send(number, to, tag.map(|(tag, _)| tag), &content(number as u64, 64));
        }
        let mut entry = [Entry::default()];
        world.until(|| world.queues[to].read(&mut entry).expect("no error") == 1);
        assert_eq!((entry[0].context, entry[0].len), (100 + number as u64, 64));
        assert_eq!(entry[0].source, world.peers[world.sender(number, to)]);
        same(&target.read(), &content(number as u64, 64), "a message to a raw receive");
        assert!(world.queues.iter().all(|queue| queue.read(&mut entry).expect("no error") == 0));
    }
}

/// Cancelled and dropped receives get no message.
///
/// Requirements: CTX-008.
pub fn canceled_shared_receive_takes_no_message<F: Transport>() {
    let world = World::<F>::new("canceled shared receive takes no message");
    let [first, second, third] = [0, 1, 2].map(|_| world.shared.recv(vec![7; 16]).expect("a receive"));
    assert!(first.cancel());
    assert!(!first.cancel(), "the receive is already cancelled");
    drop(second);
    world.send(0, 1, None, b"third");
    assert_eq!(world.end(third).expect("a message").to_vec(), b"third");
    let error = world.end(first).expect_err("the operation was cancelled");
    assert_eq!(error.errno(), ErrorCode::Canceled.errno());
    assert_eq!(error.into_buffer().expect("the buffer is returned").into_vec(), [7; 16]);
    // One of the endpoints reports the cancellation of a raw receive.
    let segments = Segments::one(Memory::blank(8).segment());
    let (from, flags) = (PeerAddress::UNSPECIFIED, OpFlags::COMPLETION);
    post_shared(&world.shared, &ReceiveWork { from, segments, tag: None, context: 9, flags }).expect("a receive");
    assert!(world.shared.cancel(9) && !world.shared.cancel(9));
    let mut errors = Vec::new();
    world.until(|| {
        errors.extend(world.queues.iter().filter_map(CompletionQueue::read_error));
        !errors.is_empty()
    });
    world.turns();
    errors.extend(world.queues.iter().filter_map(CompletionQueue::read_error));
    assert_eq!(errors.len(), 1);
    assert_eq!((errors[0].entry.context, errors[0].error), (9, ErrorCode::Canceled));
    // Operations that report messages without receiving them cannot be shared.
    for flags in [OpFlags::PEEK, OpFlags::PEEK | OpFlags::CLAIM, OpFlags::CLAIM | OpFlags::DISCARD] {
        let work = ReceiveWork { from, segments, tag: None, context: 10, flags };
        assert_eq!(post_shared(&world.shared, &work).expect_err("the operation is rejected").errno(), 22);
    }
}

/// One buffer receives messages to all endpoints, one after another, and is released once.
///
/// Requirements: CTX-008.
pub fn a_multi_receive_buffer_is_shared<F: Transport>() {
    let world = World::<F>::new("a multi-receive buffer is shared");
    world.shared.set_multi_receive_minimum(100);
    for round in 0..4_u64 {
        let target = Memory::blank(1000);
        let early = if round % 2 == 0 { 0 } else { 4 }; // The number of messages that arrive before the buffer is posted.
        for number in 0..early {
            let from = world.send(number, number % SHARERS, None, &content(number as u64, 100));
            world.arrived(from, number % SHARERS);
        }
        let flags = OpFlags::COMPLETION | OpFlags::MULTI_RECEIVE;
        let (from, segments) = (PeerAddress::UNSPECIFIED, Segments::one(target.segment()));
        post_shared(&world.shared, &ReceiveWork { from, segments, tag: None, context: round, flags })
            .expect("a buffer");
        for number in early..10 {
            let from = world.send(number, number % SHARERS, None, &content(number as u64, 100));
            world.arrived(from, number % SHARERS);
        }
        let (mut parts, mut released) = (BTreeSet::new(), 0);
        world.until(|| {
            let mut entry = [Entry::default()];
            for queue in &world.queues {
                while queue.read(&mut entry).expect("no error") == 1 {
                    assert_eq!((entry[0].context, entry[0].len), (round, 100));
                    parts.insert(entry[0].buffer);
                    released += usize::from(entry[0].flags.contains(CompletionFlags::MULTI_RECEIVE));
                }
            }
            parts.len() == 10
        });
        assert_eq!(released, 1, "the buffer is released once");
        let first = *parts.first().expect("ten parts");
        assert!(parts.iter().copied().eq((0..10).map(|part| first + part * 100)), "the parts are contiguous");
        for number in 0..10 {
            same(&target.read()[number * 100..][..100], &content(number as u64, 100), "a part");
        }
    }
}

/// When an endpoint is closed, the receives remain available to the other endpoints. After the last one is closed, they
/// can still be cancelled.
///
/// Requirements: CTX-008.
pub fn closed_endpoints_leave_shared_receives_to_others<F: Transport>() {
    let mut world = World::<F>::new("closed endpoints leave shared receives to others");
    // One message waits in an endpoint that is closed before a receive is posted. The notification of another message
    // has not been read.
    world.send(0, 0, None, b"lost");
    world.turns();
    world.endpoints[0] = None;
    let receives: Vec<_> = (0..2).map(|_| world.shared.recv(vec![0; 16]).expect("a receive")).collect();
    for (number, receiving) in receives.into_iter().enumerate() {
        world.send(number, 1, None, b"message");
        assert_eq!(world.end(receiving).expect("a message").to_vec(), b"message");
    }
    world.send(0, 1, None, b"lost too");
    world.turns();
    let receiving = world.shared.recv(vec![0; 16]).expect("a receive");
    world.endpoints[1] = None; // The receive was offered to this endpoint, which is now closed.
    world.turns();
    // If the endpoint still matched its message to the receive, the receive is over. Otherwise the receive is available
    // to the others.
    let receiving = match receiving.is_ready() {
        true => {
            assert_eq!(world.end(receiving).expect("a message").to_vec(), b"lost too");
            world.shared.recv(vec![0; 16]).expect("a receive")
        }
        false => receiving,
    };
    world.send(0, 2, None, b"found");
    assert_eq!(world.end(receiving).expect("a message").to_vec(), b"found");
    // A receive that waits when all endpoints have been closed can still be cancelled.
    let receiving = world.shared.recv(vec![0; 16]).expect("a receive");
    world.endpoints.clear();
    assert!(!receiving.is_ready(), "other endpoints may still join");
    assert!(receiving.cancel());
    assert_eq!(receiving.take().expect("the result").expect_err("no message").errno(), ErrorCode::Canceled.errno());
    assert_eq!(world.domain.transports().first().map(|kind| kind.name()), Some("loopback"));
}

/// A receive directed at a peer ends when the peer dies.
///
/// Requirements: CTX-009.
pub fn a_directed_shared_receive_ends_with_its_peer<F: Peers>() {
    let mut world = World::<F>::new("a directed shared receive ends with its peer");
    let [first, second] = [world.peers[SHARERS], world.peers[SHARERS + 1]];
    for (from, to) in [(0, 1), (1, 0)] {
        let receives = [second, first].map(|peer| world.shared.recv_from(peer, None, vec![0; 8]).expect("a receive"));
        world.send(from, to, None, &[from as u8; 8]);
        world.send(1 - from, to, None, &[1 - from as u8; 8]);
        let [second, first] = receives.map(|receiving| world.end(receiving).expect("a message").to_vec());
        assert_eq!((second, first), (vec![1; 8], vec![0; 8]));
    }
    let [gone, here] = [first, second].map(|peer| world.shared.recv_from(peer, None, vec![0; 8]).expect("a receive"));
    world.endpoints[SHARERS] = None;
    assert_eq!(world.end(gone).expect_err("the peer was closed").errno(), ErrorCode::Closed.errno());
    world.send(1, 2, None, b"here");
    assert_eq!(world.end(here).expect("a message").to_vec(), b"here");
}

/// Returns two connected endpoints: the client and the server. The server shares receives.
fn connected(
    domain: &Domain,
    listener: &Listener,
    called: &EventQueue,
    shared: &SharedReceive,
) -> (Endpoint, Endpoint) {
    let client = domain.endpoint().event_queue(called).connect(listener.address().to_string(), &[]);
    let (client, mut server, mut up) = (client.expect("an endpoint"), None::<Endpoint>, 0);
    while up < 2 {
        _ = listener.progress();
        client.progress();
        server.iter().for_each(|endpoint| _ = endpoint.progress());
        if let Some(Event::ConnectionRequest(request)) = listener.events().read() {
            let builder = domain.endpoint().event_queue(called).shared_receive(shared);
            server = Some(builder.accept(&request, &[]).expect("an endpoint"));
        }
        up += usize::from(matches!(called.read(), Some(Event::Connected { .. })));
    }
    (client, server.expect("the connection was accepted"))
}

/// The first message of a connection arrives before there is a shared receive for it, and nothing else occurs on the
/// connection.
///
/// Requirements: CTX-007, CTX-010.
pub fn connection_starts_with_an_unexpected_message<F: Peers + Real>() {
    let _watchdog = Watchdog::new("connection starts with an unexpected message");
    let fabric = F::new(4);
    let domain = fabric.domain(|domain| domain);
    let (shared, called) = (domain.shared_receive(), EventQueue::default());
    let listener = domain.listener().bind(fabric.address()).expect("a listener");
    for len in [8, 2048, F::BULK] {
        let (client, server) = connected(&domain, &listener, &called, &shared);
        let both = || {
            client.progress();
            server.progress();
        };
        let sending = client.send(client.peer(), content(1, len)).start().expect("a send");
        // A second message follows, for a receive of the endpoint itself. When the second message has arrived, the
        // first has arrived too.
        let behind = server.tagged_recv(1, 0, vec![0; 8]).start().expect("a receive");
        while client.tagged_inject(client.peer(), 1, b"behind").is_err() {
            both();
        }
        while !behind.is_ready() {
            both();
        }
        let receiving = shared.recv(vec![0; len]).expect("a receive");
        while !receiving.is_ready() {
            both();
        }
        let got = receiving.take().expect("the receive is ready").expect("a message");
        same(&got.to_vec(), &content(1, len), "the first message");
        drop(sending);
    }
}

/// Tests endpoints of one connection each.
///
/// Requirements: CTX-010.
pub fn connected_endpoints_share_receives<F: Peers + Real>() {
    let _watchdog = Watchdog::new("connected endpoints share receives");
    let fabric = F::new(3);
    let domain = fabric.domain(|domain| domain);
    let (shared, served, called) = (domain.shared_receive(), EventQueue::default(), EventQueue::default());
    let listener = domain.listener().events(&served).bind(fabric.address()).expect("a listener");
    let pairs = (0..3).map(|_| connected(&domain, &listener, &called, &shared));
    let (clients, servers): (Vec<_>, Vec<_>) = pairs.unzip();
    let end = |receiving: SharedReceiving, all: [&[Endpoint]; 2]| {
        while !receiving.is_ready() {
            all.iter().copied().flatten().for_each(|endpoint| _ = endpoint.progress());
        }
        receiving.take().expect("the receive is ready").expect("a message").to_vec()
    };
    for round in 0..3 {
        let receives = [0, 1, 2].map(|_| shared.recv(vec![0; 64]).expect("a receive"));
        for (number, receiving) in receives.into_iter().enumerate().skip(round) {
            while clients[number].inject(clients[number].peer(), &content(number as u64, 64)).is_err() {
                clients[number].progress();
            }
            same(&end(receiving, [&clients, &servers]), &content(number as u64, 64), "a message");
        }
        // One connection ends. The shared context is not affected.
        clients[round].shutdown().expect("the connection is established");
        while !matches!(called.read(), Some(Event::Shutdown { .. })) {
            clients.iter().chain(&servers).for_each(|endpoint| _ = endpoint.progress());
        }
    }
}

/// Each endpoint has its own thread, and another thread posts receives. No message is lost or received twice.
///
/// Requirements: CTX-007.
pub fn threads_drive_endpoints_that_share_receives<F: Peers + Real>() {
    const EACH: usize = 400;
    let world = World::<F>::new("threads drive endpoints that share receives");
    let World { endpoints, peers, shared, .. } = world;
    let received = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (number, endpoint) in endpoints.into_iter().flatten().enumerate() {
            let (peers, received) = (&peers, &received);
            scope.spawn(move || {
                let mine = if number < SHARERS { 0 } else { EACH };
                for count in 0..mine {
                    let bytes = ((number * EACH + count) as u64).to_ne_bytes();
                    while endpoint.inject(peers[count % SHARERS], &bytes).is_err() {
                        endpoint.progress();
                    }
                }
                while received.load(Ordering::Relaxed) < 2 * EACH {
                    if !endpoint.progress() {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut seen = BTreeSet::new();
        let mut waiting: Vec<_> = (0..8).map(|_| shared.recv(vec![0; 8]).expect("a receive")).collect();
        while seen.len() < 2 * EACH {
            for slot in &mut waiting {
                if slot.is_ready() {
                    let next = shared.recv(vec![0; 8]).expect("a receive");
                    let got = std::mem::replace(slot, next).take().expect("the receive is ready").expect("a message");
                    let number = u64::from_ne_bytes(got.to_vec().try_into().expect("8 bytes"));
                    assert!(seen.insert(number), "{number} was received twice");
                    received.fetch_add(1, Ordering::Relaxed);
                }
            }
            std::thread::yield_now();
        }
    });
}

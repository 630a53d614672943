//! Tests of shared receives: the peer at which a receive is directed, and the order in which receives are taken.

use super::*;
use crate::local_memory::buffer::BufferExt as _;
use crate::{CompletionFlags, SharedReceive};

/// Opens a member of a context with this vector.
fn member(shared: &SharedReceive, vector: &crate::AddressVector, domain: &Domain) -> TestEndpoint {
    let events = EventQueue::default();
    let endpoint = domain.endpoint().vector(vector).event_queue(&events).shared_receive(shared);
    let endpoint = endpoint.bind("127.0.0.1:0").unwrap();
    TestEndpoint { endpoint, vector: vector.clone(), events, domain: domain.clone() }
}

/// A peer that is bound to every address of this machine, and members that share receives.
struct Shared {
    shared: SharedReceive,
    members: Vec<TestEndpoint>,
    peer: TestEndpoint,
    /// Two addresses of the peer. The peer advertises at most one of them.
    names: [PeerAddress; 2],
}

impl Shared {
    fn new() -> Self {
        let domain = Info::discover().unwrap().domain().transport("tcp".parse().unwrap()).open().unwrap();
        let (shared, vector) = (domain.shared_receive(), domain.address_vector().build().unwrap());
        let members: Vec<_> = (0..2).map(|_| member(&shared, &vector, &domain)).collect();
        let events = EventQueue::default();
        let of_peer = domain.address_vector().build().unwrap();
        let endpoint = domain.endpoint().vector(&of_peer).event_queue(&events).bind("0.0.0.0:0").unwrap();
        let peer = TestEndpoint { endpoint, vector: of_peer, events, domain };
        let port = peer.endpoint.address().port();
        let names = [1, 2].map(|host| vector.insert(format!("127.0.0.{host}:{port}")).unwrap());
        Self { shared, members, peer, names }
    }

    fn all(&self) -> Vec<&TestEndpoint> {
        self.members.iter().chain([&self.peer]).collect()
    }

    /// Makes a member connect to the peer at one of its addresses.
    fn call(&self, member: usize, name: usize) {
        let mut receive = self.peer.endpoint.recv(vec![0; 8]).start().unwrap();
        let before = self.peer.finished();
        self.members[member].endpoint.inject(self.names[name], &[9; 8]).unwrap();
        until(&self.all(), || (self.peer.finished() > before).then_some(()));
        assert_eq!(receive.wait().unwrap().to_vec(), [9; 8]);
    }

    fn send(&self, member: usize, value: u8) {
        let name = self.peer.peer(&self.members[member]);
        self.peer.endpoint.inject(name, &[value; 8]).unwrap();
    }
}

/// Requirements: CTX-009.
#[test]
fn shared_receive_may_use_any_address_of_its_peer() {
    for before in [false, true] {
        for calls in [&[(0, 0), (0, 1)][..], &[(0, 1), (0, 0)], &[(0, 0), (1, 1)], &[(1, 0), (0, 1)]] {
            let world = Shared::new();
            let post = || world.names.map(|name| world.shared.recv_from(name, None, vec![0; 8]).unwrap());
            let early = before.then(post);
            calls.iter().for_each(|(member, name)| world.call(*member, *name));
            let (first, _) = calls[0];
            (0..2).for_each(|value| world.send(first, value));
            let receives = early.unwrap_or_else(post);
            for (value, receive) in (0..).zip(receives) {
                until(&world.all(), || receive.is_ready().then_some(()));
                assert_eq!(receive.take().unwrap().unwrap().to_vec(), [value; 8], "before: {before}, calls: {calls:?}");
            }
        }
    }
}

/// Requirements: CTX-009.
#[test]
fn shared_receive_matches_departed_peer_by_either_address() {
    for directed in [[0, 1], [1, 0], [1, 1], [0, 0]] {
        let world = Shared::new();
        (0..2).for_each(|name| world.call(0, name));
        (0..2).for_each(|value| world.send(0, value));
        let Shared { shared, members, peer, names } = world;
        drop(peer);
        let all: Vec<&TestEndpoint> = members.iter().collect();
        until(&all, || members[0].ended());
        for (value, to) in (0..).zip(directed) {
            let receive = shared.recv_from(names[to], None, vec![0; 8]).unwrap();
            until(&all, || receive.is_ready().then_some(()));
            assert_eq!(receive.take().unwrap().unwrap().to_vec(), [value; 8], "{directed:?}");
        }
        let receive = shared.recv_from(names[1], None, vec![0; 8]).unwrap();
        until(&all, || receive.is_ready().then_some(()));
        receive.take().unwrap().expect_err("the peer has disconnected, and none of its messages is left");
    }
}

/// Requirements: CTX-009.
#[test]
fn a_shared_receive_waits_while_any_endpoint_is_connected_to_its_peer() {
    let world = Shared::new();
    world.call(0, 0);
    world.call(1, 0);
    let receive = world.shared.recv_from(world.names[0], None, vec![0; 8]).unwrap();
    let slot = world.members[0].engine(|engine| engine.core.peers.resolve(world.names[0]).unwrap());
    world.members[0].engine(|engine| engine.close_gracefully(slot, crate::ErrorCode::Io, "cut", Instant::now()));
    assert!(!receive.is_ready(), "the other endpoint may get its message");
    world.send(1, 5);
    until(&world.all(), || receive.is_ready().then_some(()));
    assert_eq!(receive.take().unwrap().unwrap().to_vec(), [5; 8]);
    // The end of the last connection ends the receive.
    let receive = world.shared.recv_from(world.names[0], None, vec![0; 8]).unwrap();
    let Shared { members, peer, .. } = world;
    drop(peer);
    until(&members.iter().collect::<Vec<_>>(), || receive.is_ready().then_some(()));
    assert!(receive.take().unwrap().is_err());
}

/// Requirements: CTX-009.
#[test]
fn a_directed_receive_ends_although_another_is_posted_at_once() {
    let domain = Info::discover().unwrap().domain().transport("tcp".parse().unwrap()).open().unwrap();
    let (shared, vector) = (domain.shared_receive(), domain.address_vector().build().unwrap());
    let (member, peer) = (member(&shared, &vector, &domain), TestEndpoint::new("tcp"));
    let name = connect(&member, &peer);
    drop(peer);
    until(&[&member], || member.ended());
    // The member finds out whether the peer is there when it makes progress. Before that, it handles the requests of the
    // context for messages that it keeps.
    let receive = shared.recv_from(name, None, vec![0; 8]).unwrap();
    let many = member.endpoint.recv(vec![0; 64]).many().unwrap();
    until(&[&member], || receive.is_ready().then_some(()));
    receive.take().unwrap().expect_err("the peer has disconnected");
    assert_eq!(many.finish().unread.len(), 0);
}

/// The length of messages that do not arrive at once.
const LONG: usize = 1 << 20;
/// The context of the buffer for many messages.
const MANY: u64 = 77;

/// Members that report to a queue each, and share a buffer for many messages from one peer, or from any peer.
struct Parts {
    shared: SharedReceive,
    queues: [CompletionQueue; 2],
    /// Keeps the memory of the posted buffer.
    _buffer: crate::local_memory::buffer::Buffer,
}

impl Parts {
    fn new(shared: SharedReceive, queues: [CompletionQueue; 2], from: PeerAddress) -> Self {
        let mut buffer = crate::local_memory::buffer::Buffer::from(vec![0; 4 * LONG]);
        let segments = Segments::one(buffer.segment_for_receive().unwrap());
        let flags = crate::OpFlags::COMPLETION | crate::OpFlags::MULTI_RECEIVE;
        let work = crate::ReceiveWork { from, segments, tag: None, context: MANY, flags };
        shared.pool.post(&work, &mut None).unwrap();
        Self { shared, queues, _buffer: buffer }
    }

    /// Returns the reports of a member: the flags of each end, and whether it is a success.
    fn ends(&self, member: usize) -> Vec<(CompletionFlags, bool)> {
        let (mut ends, mut entry) = (Vec::new(), [crate::Entry::default()]);
        loop {
            match self.queues[member].read(&mut entry) {
                Ok(0) => return ends,
                Ok(_) => ends.push((entry[0].flags, true)),
                Err(_) => ends.push((self.queues[member].read_error().unwrap().entry.flags, false)),
            }
        }
    }
}

/// Opens two members of a domain that report to a queue each.
fn reporting(shared: &SharedReceive, domain: &Domain) -> ([TestEndpoint; 2], [CompletionQueue; 2]) {
    let queues = [CompletionQueue::default(), CompletionQueue::default()];
    let vector = domain.address_vector().build().unwrap();
    let members = queues.each_ref().map(|queue| {
        let events = EventQueue::default();
        let builder = domain.endpoint().vector(&vector).event_queue(&events).shared_receive(shared);
        let endpoint = builder.receive_queue(queue).bind("127.0.0.1:0").unwrap();
        TestEndpoint { endpoint, vector: vector.clone(), events, domain: domain.clone() }
    });
    (members, queues)
}

/// Requirements: CTX-008, FLT-009.
#[test]
fn multi_receive_buffer_is_kept_while_a_peer_may_copy_to_it() {
    // The part to which a peer may be copying belongs to a member that reports to a queue, or to a member with its own
    // queue, which is closed with it.
    for queued in [true, false] {
        let domain = Info::discover().unwrap().domain().transport("shm".parse().unwrap()).open().unwrap();
        let shared = domain.shared_receive();
        let ([first, second], queues) = reporting(&shared, &domain);
        let first = match queued {
            true => first,
            false => {
                drop(first);
                member(&shared, &second.vector, &domain)
            }
        };
        let (stopped, moves) = (TestEndpoint::new("shm"), TestEndpoint::new("shm"));
        let parts = Parts::new(shared, queues, PeerAddress::UNSPECIFIED);
        let sends = [(&stopped, &first), (&moves, &second)].map(|(from, to)| {
            connect(from, to);
            let send = from.endpoint.send(from.peer(to), vec![9; LONG]).start().unwrap();
            until(&[to], || to.engine(|engine| engine.core.messages.under_way()[1] > 0).then_some(()));
            send
        });
        assert!(parts.shared.cancel(MANY));
        drop(first);
        // The other part of the buffer ends.
        let ends = until(&[&second, &moves], || Some(parts.ends(1)).filter(|ends| !ends.is_empty()));
        let [(flags, success)] = ends[..] else { panic!("{ends:?}") };
        assert!(success);
        assert!(!flags.contains(CompletionFlags::MULTI_RECEIVE), "released, while a peer may write to another part");
        assert!(parts.ends(0).is_empty());
        // The peer detects the end of the connection, and releases the memory.
        let [held, sent] = sends;
        until(&[&stopped, &moves], || (held.is_ready() && sent.is_ready()).then_some(()));
        let ends = until(&[&second], || {
            let [own, other] = [parts.ends(usize::from(!queued)), parts.ends(usize::from(queued))];
            assert!(other.is_empty(), "{other:?}");
            (!own.is_empty()).then_some(own)
        });
        let [(flags, success)] = ends[..] else { panic!("{ends:?}") };
        assert!(!success && flags.contains(CompletionFlags::MULTI_RECEIVE), "{flags:?}");
        drop((held, sent));
    }
}

/// Requirements: CTX-008, CTX-009.
#[test]
fn directed_multi_receive_is_released_after_its_peer_closes() {
    let domain = Info::discover().unwrap().domain().transport("tcp".parse().unwrap()).open().unwrap();
    let shared = domain.shared_receive();
    let ([first, second], queues) = reporting(&shared, &domain);
    let peer = TestEndpoint::new("tcp");
    let name = first.peer(&peer);
    connect(&peer, &second);
    let to = connect(&peer, &first);
    let parts = Parts::new(shared, queues, name);
    // More bytes than the sockets hold are sent at once. The message stays under way while the member does not read.
    let long = 3 * LONG;
    let send = peer.endpoint.send(to, vec![9; long]).start().unwrap();
    until(&[&first, &peer], || first.engine(|engine| engine.core.messages.under_way() != [0; 2]).then_some(()));
    drop(send);
    drop(peer);
    until(&[&second], || second.ended());
    (0..100).for_each(|_| _ = second.endpoint.progress());
    assert!(parts.ends(1).is_empty(), "an end is reported while another member receives into a part");
    let mut ends = Vec::new();
    until(&[&first, &second], || {
        assert!(parts.ends(1).is_empty(), "the member that received nothing reports something");
        ends.extend(parts.ends(0));
        ends.iter().any(|(flags, _)| flags.contains(CompletionFlags::MULTI_RECEIVE)).then_some(())
    });
    (0..100).for_each(|_| [&first, &second].into_iter().for_each(|member| _ = member.endpoint.progress()));
    ends.extend([0, 1].map(|member| parts.ends(member)).concat());
    let released = ends.iter().filter(|(flags, _)| flags.contains(CompletionFlags::MULTI_RECEIVE)).count();
    assert_eq!(released, 1, "{ends:?}");
    assert!(ends.last().unwrap().0.contains(CompletionFlags::MULTI_RECEIVE), "{ends:?}");
}

/// Requirements: CTX-008, CTX-009, FLT-009.
#[test]
fn directed_multi_receive_is_released_after_a_copying_peer() {
    let domain = Info::discover().unwrap().domain().transport("shm".parse().unwrap()).open().unwrap();
    let shared = domain.shared_receive();
    let ([member, _other], queues) = reporting(&shared, &domain);
    let stopped = TestEndpoint::new("shm");
    let (name, to) = (connect(&member, &stopped), connect(&stopped, &member));
    let parts = Parts::new(shared, queues, name);
    let mut send = stopped.endpoint.send(to, vec![9; LONG]).start().unwrap();
    until(&[&member], || member.engine(|engine| engine.core.messages.under_way()[1] > 0).then_some(()));
    assert!(member.engine(|engine| engine.disconnect(name)));
    (0..1000).for_each(|_| _ = member.endpoint.progress());
    let ends = parts.ends(0);
    assert!(ends.is_empty(), "an end is reported while the peer may still write to the buffer: {ends:?}");
    let mut ends = until(&[&member, &stopped], || Some(parts.ends(0)).filter(|ends| !ends.is_empty()));
    (0..1000).for_each(|_| _ = member.endpoint.progress());
    ends.extend([0, 1].map(|member| parts.ends(member)).concat());
    let [(flags, success)] = ends[..] else { panic!("{ends:?}") };
    assert!(!success && flags.contains(CompletionFlags::MULTI_RECEIVE), "{flags:?}");
    send.wait().unwrap_err();
}

/// Posts a receive of a shared receive context.
fn post(shared: &SharedReceive, context: u64, buffer: &mut crate::local_memory::buffer::Buffer) {
    let segments = Segments::one(buffer.segment_for_receive().unwrap());
    let (from, flags) = (PeerAddress::UNSPECIFIED, crate::OpFlags::COMPLETION);
    let work = crate::ReceiveWork { from, segments, tag: None, context, flags };
    shared.pool.post(&work, &mut None).unwrap();
}

/// A receive was matched with a message that does not exist any more when its member closes. The receive then gets
/// another message or, if a later receive has got one, ends with an error.
///
/// Requirements: CTX-008.
#[test]
fn receive_of_lost_message_remains_when_its_member_closes() {
    for later_has_ended in [false, true] {
        let mut buffers = [(); 2].map(|()| crate::local_memory::buffer::Buffer::from(vec![0; 8]));
        let domain = Info::discover().unwrap().domain().transport("shm".parse().unwrap()).open().unwrap();
        let shared = domain.shared_receive();
        let ([closes, stays], queues) = reporting(&shared, &domain);
        let (lost, peer) = (TestEndpoint::new("shm"), TestEndpoint::new("shm"));
        let [to_closes, to_stays] = [connect(&lost, &closes), connect(&peer, &stays)];
        let mut send = lost.endpoint.send(to_closes, vec![9; LONG]).start().unwrap();
        until(&[&closes, &lost], || closes.remains().contains(&("held messages", 1)).then_some(()));
        let next = |value: u8| {
            peer.endpoint.inject(to_stays, &[value; 8]).unwrap();
            until(&[&stays, &peer], || {
                let mut entry = [crate::Entry::default()];
                (queues[1].read(&mut entry) == Ok(1)).then(|| entry[0].context)
            })
        };
        let [first, second] = &mut buffers;
        post(&shared, 1, first);
        if later_has_ended {
            post(&shared, 2, second);
            assert_eq!(next(2), 2);
        }
        let slot = closes.slot(&lost);
        closes.engine(|engine| engine.close_gracefully(slot, crate::ErrorCode::Io, "cut", Instant::now()));
        drop(closes);
        if later_has_ended {
            let error = queues[0].read_error().expect("the receive has ended");
            assert_eq!((error.entry.context, error.error), (1, crate::ErrorCode::PeerDied));
        } else {
            assert_eq!(next(1), 1);
        }
        assert!(queues.iter().all(|queue| queue.is_empty()), "each receive ends once");
        until(&[&lost], || send.is_ready().then_some(()));
        send.wait().unwrap_err();
        let [first, second] = buffers.map(crate::local_memory::buffer::Buffer::into_vec);
        assert_eq!((first, second), if later_has_ended { (vec![0; 8], vec![2; 8]) } else { (vec![1; 8], vec![0; 8]) });
    }
}

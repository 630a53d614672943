//! Shared receives: which peer a directed one is for, and in what order they are taken.

use super::*;
use crate::SharedReceive;

/// A member of a context, with a vector of its own unless others are to share it.
fn member(shared: &SharedReceive, vector: &crate::AddressVector, domain: &Domain) -> Station {
    let events = EventQueue::default();
    let endpoint = domain.endpoint().vector(vector).event_queue(&events).shared_receive(shared);
    let endpoint = endpoint.bind("127.0.0.1:0").unwrap();
    Station { endpoint, vector: vector.clone(), events, domain: domain.clone() }
}

/// Peers at every address of this machine, and members that share receives.
struct Shared {
    shared: SharedReceive,
    members: Vec<Station>,
    peer: Station,
    /// Two addresses of the peer, of which it advertises at most one.
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
        let peer = Station { endpoint, vector: of_peer, events, domain };
        let port = peer.endpoint.address().port();
        let names = [1, 2].map(|host| vector.insert(format!("127.0.0.{host}:{port}")).unwrap());
        Self { shared, members, peer, names }
    }

    fn all(&self) -> Vec<&Station> {
        self.members.iter().chain([&self.peer]).collect()
    }

    /// A member calls the peer by one of its names.
    fn call(&self, member: usize, name: usize) {
        let receive = self.peer.endpoint.recv(vec![0; 8]).start().unwrap();
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

#[test]
fn ctx_009_a_shared_receive_may_name_any_address_at_which_its_peer_was_met() {
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

#[test]
fn ctx_009_a_shared_receive_waits_while_any_endpoint_is_connected_to_its_peer() {
    let world = Shared::new();
    world.call(0, 0);
    world.call(1, 0);
    let receive = world.shared.recv_from(world.names[0], None, vec![0; 8]).unwrap();
    let slot = world.members[0].engine(|engine| engine.core.peers.resolve(world.names[0]).unwrap());
    world.members[0].engine(|engine| engine.hang_up(slot, crate::ErrorCode::Io, "cut", Instant::now()));
    assert!(!receive.is_ready(), "the other endpoint may get its message");
    world.send(1, 5);
    until(&world.all(), || receive.is_ready().then_some(()));
    assert_eq!(receive.take().unwrap().unwrap().to_vec(), [5; 8]);
    // The last connection ends it.
    let receive = world.shared.recv_from(world.names[0], None, vec![0; 8]).unwrap();
    let Shared { members, peer, .. } = world;
    drop(peer);
    until(&members.iter().collect::<Vec<_>>(), || receive.is_ready().then_some(()));
    assert!(receive.take().unwrap().is_err());
}

//! Tests listeners and endpoints of one connection with peers that send frames that no correct peer sends. The tests
//! use a simulated network, and run on one thread.

use super::Engine;
use super::admission::Admission;
use super::types::LinkAction;
use crate::completion::entry::ErrorCode;
use crate::completion::event::{Event, EventQueue};
use crate::domain::Domain;
use crate::endpoint::connection::{ConnectionState, Listener};
use crate::endpoint::ownership::reach::EngineAccess;
use crate::endpoint::{Endpoint, EndpointBuilder};
use crate::local_memory::volatile::View;
use crate::local_memory::volatile::ViewExt as _;
use crate::transport::sim::{Network, SimOptions};
use crate::transport::{ConnectionId, Sink};
use crate::wire::control::{Control, Rejection};
use crate::wire::head::{Flags, FrameKind, Head};

/// A number of turns after which all pending work is done.
const MANY: usize = 3000;

struct World {
    network: Network,
    domain: Domain,
    events: EventQueue,
    listener: Listener,
}

impl World {
    fn new() -> Self {
        let network = Network::new(7, SimOptions::default());
        let domain = crate::Info::discover().unwrap().domain().simulated(&network).open().unwrap();
        let events = EventQueue::default();
        let listener = domain.listener().events(&events).bind("10.0.0.1:1").unwrap();
        Self { network, domain, events, listener }
    }

    fn turns(&self, count: usize, ends: &[&Endpoint]) {
        for _ in 0..count {
            self.network.advance(1000);
            let _any = self.listener.progress();
            for end in ends {
                end.progress();
            }
        }
    }

    fn open(&self, events: &EventQueue) -> Endpoint {
        self.domain.endpoint().event_queue(events).bind("10.0.0.2:0").unwrap()
    }

    fn builder(&self) -> EndpointBuilder<'_> {
        self.domain.endpoint()
    }

    /// Checks that the listener still serves requests.
    fn serves(&self) {
        let client = self.builder().connect(self.listener.address().to_string(), b"good").unwrap();
        self.turns(MANY, &[&client]);
        let request = std::iter::from_fn(|| self.events.read()).find_map(|event| match event {
            Event::ConnectionRequest(request) if request.data() == b"good" => Some(request),
            _ => None,
        });
        let server = self.builder().accept(&request.unwrap(), b"").unwrap();
        self.turns(MANY, &[&client, &server]);
        for end in [&client, &server] {
            assert_eq!(end.connection_state(), Some(ConnectionState::Connected));
        }
    }
}

/// Sends an arbitrary frame.
fn send(engine: &mut Engine, to: ConnectionId, head: Head, payload: Vec<u8>) {
    let head = Head { len: payload.len() as u32, ..head };
    engine.core.peers.push(to, LinkAction::Bytes(head, payload.into()));
    engine.act();
}

fn frames(controls: &[Control]) -> Vec<(Head, Vec<u8>)> {
    controls.iter().map(Control::to_frame).collect()
}

fn granted(address: &str) -> Control {
    Control::Granted { address: address.parse().unwrap(), anywhere: false, incarnation: 5, data: Vec::new() }
}

/// Requirements: CON-017, CON-018.
#[test]
fn listener_disconnects_peer_after_invalid_frame() {
    let world = World::new();
    let request = Control::Request { data: vec![1; 3] };
    let rejected = Control::Rejected { why: Rejection::Owner, data: Vec::new() };
    let other = |kind| Head { kind, flags: Flags::ID, ..Head::default() };
    let wrong: Vec<Vec<(Head, Vec<u8>)>> = vec![
        frames(&[request.clone(), request.clone()]),
        frames(&[granted("10.0.0.9:9")]),
        frames(&[rejected]),
        vec![(other(FrameKind::Control), vec![1; 300])],
        vec![(Head { id: 1, ..other(FrameKind::Control) }, vec![1; 257])],
        vec![(other(FrameKind::Message), vec![1; 8])],
        vec![(other(FrameKind::Message), vec![1; 2000])],
        vec![(other(FrameKind::TaggedOffer), vec![1; 40])],
        vec![(other(FrameKind::Read), vec![1; 16])],
        vec![(other(FrameKind::Write), vec![1; 2000])],
        vec![(other(FrameKind::Wrote), Vec::new())],
        vec![(other(FrameKind::Pull), vec![1; 40])],
        frames(&vec![request; 5000]),
    ];
    for (case, frames) in wrong.into_iter().enumerate() {
        let events = EventQueue::default();
        let hostile = world.open(&events);
        let slot = hostile.access.with_here(|engine| {
            let slot = engine.core.peers.slot((world.listener.address(), 0));
            engine.start_connecting(slot);
            slot
        });
        world.turns(MANY, &[&hostile]);
        assert!(matches!(events.read(), Some(Event::Connected { .. })));
        for (head, payload) in frames {
            hostile.access.with_here(|engine| send(engine, slot, head, payload));
        }
        world.turns(MANY, &[&hostile]);
        assert!(
            matches!(events.read(), Some(Event::PeerDown { .. })),
            "case {case}: the hostile peer is still connected"
        );
        assert_eq!(world.listener.pending(), 0, "case {case}");
        world.serves();
    }
    // Disconnected peers have left no slots behind: new peers reuse the same slots.
    let slots = world.listener.peers();
    for _ in 0..20 {
        world.serves();
    }
    assert!(
        world.listener.peers() <= slots + 1,
        "{} peers, expected at most one more than {slots}",
        world.listener.peers()
    );
}

/// Requirements: CON-018, FLT-007.
#[test]
fn request_flood_does_not_prevent_other_connections() {
    let world = World::new();
    let events = EventQueue::default();
    let hostile = world.open(&events);
    let slot = hostile.access.with(|engine| {
        let slot = engine.core.peers.slot((world.listener.address(), 0));
        engine.start_connecting(slot);
        slot
    });
    world.turns(MANY, &[&hostile]);
    // All of the requests arrive between two polls of the listener.
    let (head, payload) = Control::Request { data: vec![1; 3] }.to_frame();
    hostile.access.with(|engine| (0..5000).for_each(|_| send(engine, slot, head, payload.clone())));
    let client = world.builder().connect(world.listener.address().to_string(), b"good").unwrap();
    for _ in 0..MANY {
        world.network.advance(1000);
        client.progress();
    }
    world.turns(200, &[&client]);
    let request = std::iter::from_fn(|| world.events.read()).find_map(|event| match event {
        Event::ConnectionRequest(request) if request.data() == b"good" => Some(request),
        _ => None,
    });
    let server = world.builder().accept(&request.expect("the client's request"), b"").unwrap();
    world.turns(MANY, &[&client, &server]);
    for end in [&client, &server] {
        assert_eq!(end.connection_state(), Some(ConnectionState::Connected));
    }
    hostile.progress();
    let gone = std::iter::from_fn(|| events.read()).any(|event| matches!(event, Event::PeerDown { .. }));
    assert!(gone, "the flooding peer was not disconnected");
}

#[test]
fn departed_clients_do_not_count_as_connections_of_a_listener() {
    let world = World::new();
    let events = EventQueue::default();
    let connected = world.open(&events);
    connected.access.with_here(|engine| {
        let slot = engine.core.peers.slot((world.listener.address(), 0));
        engine.start_connecting(slot);
    });
    world.turns(MANY, &[&connected]);
    assert!(matches!(events.read(), Some(Event::Connected { .. })));
    // More clients connect and disconnect than may be connected without a request.
    world.listener.with_engine(|engine| {
        for _ in 0..5000 {
            let slot = engine.core.peers.nameless_slot(("10.0.0.9:9".parse().unwrap(), 0));
            engine.listener_link(slot);
            engine.listener_over(slot);
        }
        assert!(!engine.core.peers.any_violation(), "the client that is connected would be disconnected");
    });
    world.serves();
    world.turns(MANY, &[&connected]);
    assert_eq!(events.read(), None);
}

/// Requirements: CON-018, FLT-007.
#[test]
fn control_frames_are_counted_per_peer_and_poll() {
    let world = World::new();
    let [flooding, calling] = [(); 2].map(|()| world.open(&EventQueue::default()));
    for end in [&flooding, &calling] {
        end.access.with_here(|engine| {
            let slot = engine.core.peers.slot((world.listener.address(), 0));
            engine.start_connecting(slot);
        });
    }
    world.turns(MANY, &[&flooding, &calling]);
    let (head, payload) = Control::Request { data: vec![1; 3] }.to_frame();
    let head = Head { len: payload.len() as u32, ..head };
    let [flooding, calling] = [&flooding, &calling].map(Endpoint::address);
    world.listener.with_engine(|engine| {
        let slots = [flooding, calling].map(|address| engine.core.peers.slot((address, 0)));
        assert_ne!(slots[0], slots[1]);
        let violation = |engine: &Engine| slots.map(|slot| engine.core.peers.get(slot).violation().is_some());
        // A few requests at a time, which the listener handles in between, are not a flood.
        for _ in 0..10 {
            for slot in slots {
                (0..3).for_each(|_| engine.core.frame(slot, &head, View::of(&payload)));
            }
            assert_eq!(engine.core.take_control_frames().len(), 6);
        }
        assert_eq!(violation(engine), [false, false]);
        // If more frames arrive between two polls than all peers together may send, only their sender is disconnected.
        (0..5000).for_each(|_| engine.core.frame(slots[0], &head, View::of(&payload)));
        engine.core.frame(slots[1], &head, View::of(&payload));
        assert_eq!(violation(engine), [true, false]);
        let received = engine.core.take_control_frames();
        assert!(received.len() < 10 && received.iter().any(|(from, _)| *from == slots[1]), "{} frames", received.len());
    });
}

/// Requirements: CON-017, CON-018.
#[test]
fn client_disconnects_from_listener_after_invalid_frame() {
    let world = World::new();
    let request = Control::Request { data: Vec::new() };
    let message = vec![(Head::default(), vec![1; 8])];
    let long = vec![(Head::default(), vec![1; 2000])];
    let cases = |own: &str, there: &str| {
        vec![
            (frames(std::slice::from_ref(&request)), ErrorCode::PeerDied),
            (message.clone(), ErrorCode::PeerDied),
            (long.clone(), ErrorCode::PeerDied),
            (frames(&[granted(own)]), ErrorCode::PeerDied),
            (frames(&[granted(there)]), ErrorCode::PeerDied),
            // No endpoint has this address.
            (frames(&[granted("10.0.0.77:7")]), ErrorCode::Refused),
            // Another endpoint has this address.
            (frames(&[granted("10.0.0.1:1")]), ErrorCode::Refused),
            (frames(&[granted("10.0.0.1:1"), granted("10.0.0.1:1")]), ErrorCode::Refused),
        ]
    };
    for case in 0..cases("1.1.1.1:1", "1.1.1.1:1").len() {
        let (events, client_events) = (EventQueue::default(), EventQueue::default());
        let hostile = world.open(&events);
        hostile.access.with_here(|engine| engine.core.admission = Admission::closed());
        let there = hostile.address().to_string();
        let client = world.builder().event_queue(&client_events).bind_single("10.0.0.3:0").unwrap();
        let own = client.address().to_string();
        client.connect(&there, b"").unwrap();
        let mut receive = Some(client.recv(vec![0; 2000]).start().unwrap());
        world.turns(MANY, &[&client, &hostile]);
        assert_eq!(client.connection_state(), Some(ConnectionState::Connecting));
        let slot = hostile.access.with_here(|engine| engine.core.peers.slot((client.address(), 0)));
        let (frames, error) = cases(&own, &there).swap_remove(case);
        for (head, payload) in frames {
            hostile.access.with_here(|engine| send(engine, slot, head, payload));
        }
        world.turns(MANY, &[&client, &hostile]);
        match client_events.read() {
            Some(Event::ConnectionRefused { error: reported, reason, .. }) => {
                assert!(reported == error || reported == ErrorCode::Protocol, "case {case}: {reported:?}: {reason}");
            }
            other => panic!("case {case}: {other:?}"),
        }
        assert_eq!(client_events.read(), None, "case {case}: the result is reported only once");
        receive.take().unwrap().wait().map(drop).expect_err("the receive got no message");
        world.serves();
    }
}

//! Connections that are established and lost.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use percale::{AddressSet, ErrorCode, Event, EventQueue, OpFlags, PeerAddress};

use crate::fabric::{Fabric, Peers, Real};
use crate::memory::{Memory, content, same};
use crate::mesh::{Mesh, Receive, Send, TestEndpoint};
use crate::random::{Random, seed};

/// A peer is connected only when an operation is posted to it.
///
/// Requirements: CON-001.
pub fn connections_are_made_by_the_first_operation<F: Peers>() {
    let mesh = Mesh::<F>::new(3);
    for number in 0..1000_u16 {
        let unused = SocketAddr::from(([127, 1, (number >> 8) as u8, number as u8], 9));
        mesh.test_endpoint(0).vector.insert(unused).expect("an address");
    }
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("/proc is mounted").count();
    let peers = |number| mesh.endpoint(number).describe_peers().len();
    mesh.turns(50);
    let (before, nobody) = (descriptors(), peers(0));
    println!("{}: {before} descriptors before the first operation", F::NAME);
    let received = mesh.receive(1, Receive::into(Memory::blank(8)));
    mesh.turns(50);
    assert_eq!(peers(0), nobody, "a receive connects to no peer");
    mesh.inject(0, 1, None, b"first");
    mesh.done(received);
    assert_eq!((peers(0), peers(1), peers(2)), (nobody + 1, nobody + 1, nobody));
}

/// Closes endpoint 1 of 2 and opens another one at the same address.
fn restart<F: Fabric>(mesh: &mut Mesh<F>) {
    restart_one(mesh, 1, 2);
}

/// Closes an endpoint of `count` endpoints and opens another one at the same address.
pub(super) fn restart_one<F: Fabric>(mesh: &mut Mesh<F>, number: usize, count: usize) {
    let addresses: Vec<_> = (0..count).map(|number| mesh.endpoint(number).address()).collect();
    let address = addresses[number];
    mesh.close(number);
    let domain = mesh.fabric.domain(|domain| domain);
    let vector = domain.address_vector().build().expect("a vector");
    let bound = (0..200).find_map(|_| {
        let bound = domain.endpoint().vector(&vector).bind(address.to_string());
        if let Err(error) = &bound {
            eprintln!("{address} is not free yet: {error}");
            std::thread::sleep(Duration::from_millis(10));
        }
        bound.ok()
    });
    let endpoint = bound.expect("the address is free again");
    for address in addresses {
        vector.insert(address).expect("an address");
    }
    mesh.open(number, TestEndpoint { endpoint, vector, domain });
}

/// After a restart of the peer, outstanding operations fail once, and the next operation reaches the new endpoint at
/// the same peer address.
///
/// Requirements: CON-004.
pub fn a_restarted_endpoint_is_reached_again<F: Peers>() {
    let mut mesh = Mesh::<F>::connected(2);
    for round in 0..3 {
        let offered = mesh.send(0, 1, Send::of(Memory::content(1, F::BULK)));
        let delivered = mesh.send(0, 1, Send::of(Memory::content(1, 8)).with(OpFlags::DELIVERY_COMPLETE));
        let directed = mesh.receive(0, Receive::into(Memory::blank(8)).from(mesh.peer(1)));
        mesh.turns(50);
        restart(&mut mesh);
        for context in [offered, delivered, directed] {
            println!("{}: {}", F::NAME, mesh.failed(context));
        }
        for len in [8, 9000, F::BULK] {
            let target = Memory::blank(len);
            let received = mesh.receive(1, Receive::into(target));
            let sent = mesh.send(0, 1, Send::of(Memory::content(round, len)));
            mesh.done(received);
            mesh.done(sent);
            same(&target.read(), &content(round, len), "a message to the new endpoint");
            let received = mesh.receive(0, Receive::into(target).from(mesh.peer(1)));
            let sent = mesh.send(1, 0, Send::of(Memory::content(round + 9, len)));
            mesh.done(received);
            mesh.done(sent);
            same(&target.read(), &content(round + 9, len), "a message of the new endpoint");
        }
    }
}

/// Each waiting operation fails once. Later operations fail immediately, or reach the endpoint that then has the
/// address.
///
/// Requirements: FLT-003, FLT-005.
pub fn closed_endpoint_fails_operations_of_its_peers<F: Peers>() {
    let mut mesh = Mesh::<F>::connected(2);
    let peer = mesh.peer(1);
    let mut contexts: Vec<u64> =
        (0..20).map(|_| mesh.send(0, 1, Send::of(Memory::content(1, F::BULK)).tag(1))).collect();
    contexts.extend(
        (0..20).map(|_| mesh.send(0, 1, Send::of(Memory::content(1, 8)).tag(1).with(OpFlags::DELIVERY_COMPLETE))),
    );
    contexts.extend((0..20).map(|_| mesh.receive(0, Receive::into(Memory::blank(8)).from(peer))));
    let anybody = mesh.receive(0, Receive::into(Memory::blank(8)).tag(9, 0));
    mesh.settle(0, 1);
    mesh.close(1);
    for context in contexts {
        let error = mesh.failed(context);
        assert_eq!((error.error, error.errno()), (ErrorCode::Closed, libc::ESHUTDOWN), "{error}");
        assert!(mesh.take(context).is_none());
    }
    mesh.nothing(anybody);
    for _ in 0..3 {
        // No endpoint has the address now.
        if let Ok(sent) = mesh.try_send(0, peer, Send::of(Memory::content(1, 8))) {
            let error = mesh.failed(sent);
            println!("{}: {error}", F::NAME);
            assert!(error.errno() > 0 && !error.to_string().is_empty());
        }
    }
    mesh.inject(0, 0, Some(9), b"oneself");
    assert_eq!(mesh.done(anybody).len, 7, "the endpoint itself continues");
}

/// Injected messages are not lost if the sender then closes its endpoint in an orderly way.
pub fn messages_sent_before_closing_arrive<F: Peers>() {
    for len in [8, 2048] {
        for count in [1, 40] {
            let mut mesh = Mesh::<F>::connected(2);
            for number in 0..count {
                mesh.inject(0, 1, None, &content(number, len));
            }
            mesh.close(0);
            let target = Memory::blank(len);
            for number in 0..count {
                let received = mesh.receive(1, Receive::into(target));
                mesh.done(received);
                same(&target.read(), &content(number, len), &format!("message {number} of {count} before the end"));
            }
        }
    }
}

/// Events report that a peer is connected, disconnected, and connected again. Peeking removes no event, and the
/// application can add its own events.
///
/// Requirements: CMP-014.
pub fn events_report_connects_and_disconnects<F: Peers>() {
    let events = EventQueue::default();
    let mut mesh = Mesh::<F>::with(
        2,
        |domain| domain,
        |number, endpoint| if number == 0 { endpoint.event_queue(&events) } else { endpoint },
    );
    let next = |mesh: &Mesh<F>| mesh.until(|| events.read());
    let there = mesh.endpoint(1).address();
    mesh.settle(0, 1);
    let peeked = mesh.until(|| events.peek());
    assert_eq!(events.peek(), Some(peeked.clone()));
    assert_eq!(next(&mesh), peeked);
    match peeked {
        Event::Connected { peer, address, transport, reason, .. } => {
            assert_eq!((peer, address, transport), (mesh.peer(1), there, F::NAME));
            println!("{transport}: {reason}");
        }
        other => panic!("{other:?}"),
    }
    events.write(7, *b"mine").expect("room");
    restart(&mut mesh);
    assert_eq!(next(&mesh), Event::User { code: 7, data: b"mine".to_vec() });
    match next(&mesh) {
        Event::PeerDown { peer, address, error, reason } => {
            assert_eq!((peer, address), (mesh.peer(1), there));
            assert!(matches!(error, ErrorCode::Closed | ErrorCode::PeerDied), "{error:?}");
            println!("{}: {reason}", F::NAME);
        }
        Event::PeerReplaced { peer, address } => assert_eq!((peer, address), (mesh.peer(1), there)),
        other => panic!("{other:?}"),
    }
    mesh.settle(0, 1);
    mesh.until(|| events.read().filter(|event| matches!(event, Event::Connected { .. })));
    mesh.close(1);
    mesh.until(|| events.read().filter(|event| matches!(event, Event::PeerDown { .. })));
    // A failure to connect is also reported as an event.
    if let Ok(sent) = mesh.try_send(0, PeerAddress(1), Send::of(Memory::content(1, 8))) {
        mesh.failed(sent);
        let failed = mesh.until(|| events.read());
        match failed {
            Event::Failed { error, .. } => assert!(error.is_retriable(), "{error:?}"),
            Event::PeerDown { error, .. } => assert!(!error.is_retriable(), "{error:?}"),
            other => panic!("{other:?}"),
        }
    }
}

/// An endpoint reaches itself at each of its addresses.
///
/// Requirements: MSG-011.
pub fn endpoint_reaches_itself_by_any_of_its_addresses<F: Peers + Real>() {
    let _watchdog = crate::watchdog::Watchdog::new("endpoint reaches itself by any of its addresses");
    let fabric = F::new(seed());
    let domain = fabric.domain(|domain| domain);
    let vector = domain.address_vector().build().expect("a vector");
    let endpoint = domain.endpoint().vector(&vector).bind("0.0.0.0:0").expect("an endpoint");
    let port = endpoint.address().port();
    for name in [format!("127.0.0.1:{port}"), format!("127.0.0.7:{port}"), endpoint.address().to_string()] {
        let peer = vector.insert(name.as_str()).expect("an address");
        for len in [8, 20_000] {
            let mut receiving = endpoint.tagged_recv(1, 0, vec![0; len]).start().expect("a receive");
            endpoint.tagged_send(peer, 1, content(1, len)).wait().unwrap_or_else(|error| panic!("{name}: {error}"));
            same(&receiving.wait().expect("the message").to_vec(), &content(1, len), &name);
        }
    }
}

/// A receive directed at one address of an endpoint matches messages from its other addresses, even if it was posted
/// before it was known that they belong to the same endpoint. Such receives match in posting order, and also match
/// messages that arrived before.
///
/// Requirements: MSG-007.
pub fn directed_receive_matches_messages_of_alias_addresses<F: Peers + Real>() {
    let _watchdog = crate::watchdog::Watchdog::new("directed receive matches messages of alias addresses");
    let fabric = F::new(seed());
    let domain = fabric.domain(|domain| domain);
    for len in [8, 20_000] {
        let vector = domain.address_vector().build().expect("a vector");
        let endpoint = domain.endpoint().vector(&vector).bind("0.0.0.0:0").expect("an endpoint");
        let own = vector.insert(endpoint.address()).expect("an address");
        let name = |host: u8| vector.insert(SocketAddr::from(([127, 0, 0, host], endpoint.address().port())));
        let (one, other) = (name(7).expect("an address"), name(8).expect("an address"));
        let receive = |tag: u64, from: PeerAddress| {
            endpoint.tagged_recv(tag, 0, vec![0; len]).from(from).start().expect("a receive")
        };
        let send = |peer: PeerAddress, tag: u64, number: u64| {
            endpoint.tagged_send(peer, tag, content(number, len)).start().expect("a send")
        };
        let [first, second, third] =
            [(1, one), (1, PeerAddress::UNSPECIFIED), (2, one)].map(|(t, from)| receive(t, from));
        let sent = [(1, 11), (1, 12), (2, 13)].map(|(tag, number)| send(one, tag, number));
        for (mut received, number) in [(first, 11), (second, 12), (third, 13)] {
            same(&received.wait().expect("a message").to_vec(), &content(number, len), "the receive posted earlier");
        }
        sent.into_iter().for_each(|mut sent| drop(sent.wait().expect("the message is sent")));
        // These messages arrive before it is known which endpoint the other address denotes.
        let early = [(5, 21), (5, 22), (6, 23)].map(|(tag, number)| send(own, tag, number));
        let mut last = receive(6, PeerAddress::UNSPECIFIED);
        same(
            &last.wait().expect("a message").to_vec(),
            &content(23, len),
            "the last of the messages that have arrived",
        );
        let mut waiting = receive(5, other);
        let connects = send(other, 7, 24);
        same(&waiting.wait().expect("a message").to_vec(), &content(21, len), "the message sent earlier");
        for (tag, number) in [(5, 22), (7, 24)] {
            same(
                &receive(tag, one).wait().expect("a message").to_vec(),
                &content(number, len),
                "a receive by either address",
            );
        }
        early.into_iter().chain([connects]).for_each(|mut sent| drop(sent.wait().expect("the message is sent")));
    }
}

/// A member that refers to another member by an address that the other does not advertise joins a different list. Its
/// join fails with an error that explains this, and its next join is paired with the joins of the other members.
///
/// Requirements: CON-010.
pub fn join_by_unadvertised_address_fails_once<F: Peers + Real>() {
    let _watchdog = crate::watchdog::Watchdog::new("join by unadvertised address fails once");
    let fabric = F::new(seed());
    let domain = fabric.domain(|domain| domain);
    let open = |names: fn(SocketAddr) -> SocketAddr| {
        let vector = domain.address_vector().build().expect("a vector");
        (domain.endpoint().vector(&vector).bind("0.0.0.0:0").expect("an endpoint"), vector, names)
    };
    let other: fn(SocketAddr) -> SocketAddr = |address| SocketAddr::from(([127, 0, 0, 7], address.port()));
    let (one, two) = (open(other), open(|address| address));
    // Each member has inserted itself with the address that it advertises.
    let set = |of: usize| -> AddressSet {
        let (_, vector, names) = [&one, &two][of];
        let addresses = [&one, &two].map(|(endpoint, ..)| endpoint.address());
        let member =
            |(at, address)| vector.insert(if at == of { address } else { names(address) }).expect("an address");
        addresses.into_iter().enumerate().map(member).collect()
    };
    let sets = [set(0), set(1)];
    let mut theirs = two.0.join(&sets[1]).expect("a group");
    let failed = one.0.join(&sets[0]).expect("a group").wait().expect_err("no other member joins that list");
    assert!(failed.to_string().contains("advertises"), "{failed}");
    let mut again = one.0.join(&sets[0]).expect("a group");
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while !(theirs.is_ready() & again.is_ready()) {
        assert!(std::time::Instant::now() < until, "the join does not complete");
    }
    theirs.wait().and(again.wait()).expect("both have joined");
}

/// A process that is not a peer sends data that is not a hello.
///
/// Requirements: CON-002.
pub fn invalid_hello_bytes_do_not_affect_other_peers<F: Peers + Real>() {
    let mesh = Mesh::<F>::connected(2);
    let mut random = Random::new(seed());
    let mut strangers = Vec::new();
    for round in 0..60 {
        let mut stranger = TcpStream::connect(mesh.endpoint(1).address()).expect("the listener accepts connections");
        stranger.set_nonblocking(true).expect("non-blocking");
        let mut bytes = vec![0; [1, 16, 64, 300, 100_000][round % 5]];
        match round % 4 {
            0 => random.fill(&mut bytes),
            1 => bytes = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            2 => bytes.fill(0xff),
            _ => {} // Zero bytes.
        }
        // The endpoint may disconnect before all bytes are written.
        drop(stranger.write(&bytes));
        if round % 3 == 0 {
            drop(stranger);
        } else {
            strangers.push(stranger);
        }
        let target = Memory::blank(100);
        let received = mesh.receive(1, Receive::into(target));
        mesh.inject(0, 1, None, &content(round as u64, 100));
        mesh.done(received);
        same(&target.read(), &content(round as u64, 100), "a message while unauthenticated clients connect");
    }
    // The endpoint closes a connection on which wrong bytes arrived. It may close a connection with too few bytes only
    // after a timeout.
    let turned_away = |stranger: &mut TcpStream| match stranger.read(&mut [0; 4096]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    };
    mesh.during(Duration::from_secs(8), || {
        strangers.retain_mut(|stranger| !turned_away(stranger));
        strangers.is_empty()
    });
    assert!(strangers.is_empty(), "{} unauthenticated connections are still open", strangers.len());
    mesh.settle(0, 1);
    mesh.settle(1, 0);
}

/// 500 pairs of endpoints connect to each other at the same time. If there are too few descriptors, there are fewer
/// pairs, and the test reports this.
///
/// Requirements: CON-003.
pub fn many_simultaneous_mutual_connects_succeed<F: Peers + Real>() {
    let pairs = 500.min(crate::measure::most_descriptors() / 36);
    if pairs < 500 {
        crate::skipped("descriptors", "500 pairs", &format!("there are descriptors for {pairs} only"));
    }
    let timeout = |domain: percale::domain::DomainBuilder| domain.connect_timeout(Duration::from_secs(60));
    let mesh = Mesh::<F>::with(2, timeout, |_, endpoint| endpoint);
    let _watchdog = crate::watchdog::Watchdog::new("many simultaneous mutual connects succeed");
    let sides = [0, 1].map(|side| {
        let domain = &mesh.test_endpoint(side).domain;
        let open = |_| {
            let vector = domain.address_vector().build().expect("a vector");
            let endpoint = domain.endpoint().vector(&vector).bind(mesh.fabric.address()).expect("an endpoint");
            (endpoint, vector)
        };
        (0..pairs).map(open).collect::<Vec<_>>()
    });
    let [left, right] = &sides;
    for ((a, to_a), (b, to_b)) in left.iter().zip(right) {
        to_a.insert(b.address()).expect("an address");
        to_b.insert(a.address()).expect("an address");
    }
    let all = || left.iter().chain(right);
    for (number, (endpoint, _)) in all().enumerate() {
        for message in 0..3 {
            endpoint
                .inject(PeerAddress(0), &content(number as u64 * 3 + message, 100))
                .expect("room while it connects");
        }
    }
    let receives: Vec<_> =
        all().map(|(endpoint, _)| [0; 3].map(|_| endpoint.recv(vec![0; 200]).start().expect("a receive"))).collect();
    let mut ready = 0;
    while ready < receives.len() * 3 {
        for (endpoint, _) in all() {
            endpoint.progress();
        }
        ready = receives.iter().flatten().filter(|receiving| receiving.is_ready()).count();
    }
    for (number, receiving) in receives.into_iter().enumerate() {
        let from = (number + pairs) % (2 * pairs);
        for (message, mut receiving) in receiving.into_iter().enumerate() {
            let got = receiving.wait().expect("a message");
            let wanted = content((from * 3 + message) as u64, 100);
            assert_eq!(got.to_vec(), wanted, "message {message} of {from} to {number}, in order and once");
        }
    }
    for (endpoint, _) in all() {
        for _ in 0..20 {
            endpoint.progress();
        }
        let reached = endpoint.describe_peers();
        let others = reached.iter().filter(|(address, _)| *address != endpoint.address()).count();
        assert_eq!(others, 1, "one connection a pair: {reached:?}");
    }
}

/// Makes two endpoints with these keys.
fn keyed<F: Fabric>(keys: [Option<&str>; 2]) -> (Mesh<F>, [EventQueue; 2]) {
    let events = [EventQueue::default(), EventQueue::default()];
    let mut mesh = Mesh::<F>::with(2, |domain| domain, |number, endpoint| endpoint.event_queue(&events[number]));
    let addresses = [0, 1].map(|number| mesh.endpoint(number).address());
    for number in 0..2 {
        mesh.close(number);
    }
    for (number, key) in keys.into_iter().enumerate() {
        let domain = mesh.fabric.domain(|domain| match key {
            Some(key) => domain.authorization_key(key),
            None => domain,
        });
        let vector = domain.address_vector().build().expect("a vector");
        let builder = domain.endpoint().vector(&vector).event_queue(&events[number]);
        let endpoint = builder.bind(addresses[number].to_string()).expect("an endpoint");
        for address in addresses {
            vector.insert(address).expect("an address");
        }
        mesh.open(number, TestEndpoint { endpoint, vector, domain });
    }
    (mesh, events)
}

/// A different key, or a missing key, on either side prevents the connection.
///
/// Requirements: CON-005.
pub fn different_authorization_keys_prevent_connection<F: Peers + Real>() {
    for keys in [[Some("right"), Some("wrong")], [Some("right"), None], [None, Some("right")]] {
        let (mesh, events) = keyed::<F>(keys);
        let received = mesh.receive(1, Receive::into(Memory::blank(8)));
        let sent = mesh.send(0, 1, Send::of(Memory::content(1, 8)));
        let error = mesh.failed(sent);
        println!("{}: {keys:?}: {error}; {:?}", F::NAME, events[0].read());
        assert_eq!(error.errno(), libc::EACCES, "{keys:?}: {error}");
        mesh.nothing(received);
    }
}

/// The same key on both sides permits the connection.
///
/// Requirements: CON-006.
pub fn equal_authorization_keys_permit_connection<F: Peers + Real>() {
    let (mesh, _) = keyed::<F>([Some("right"), Some("right")]);
    for len in [8, 20_000] {
        let target = Memory::blank(len);
        let received = mesh.receive(1, Receive::into(target));
        let sent = mesh.send(0, 1, Send::of(Memory::content(1, len)));
        mesh.done(received);
        mesh.done(sent);
        same(&target.read(), &content(1, len), "a message with equal keys");
    }
}

/// An endpoint that is bound to a wildcard address advertises one concrete address. Peers connect to this address, and
/// it is the source address of the endpoint's messages.
///
/// Requirements: CON-010.
pub fn a_wildcard_advertises_one_address<F: Peers + Real>() {
    for bind in ["0.0.0.0:0", "[::]:0"] {
        let mut mesh = Mesh::<F>::new(2);
        let domain = mesh.fabric.domain(|domain| domain);
        let vector = domain.address_vector().build().expect("a vector");
        let endpoint = match domain.endpoint().vector(&vector).bind(bind) {
            Ok(endpoint) => endpoint,
            Err(error) if bind.starts_with('[') => {
                crate::skipped("IPv6", "a wildcard of IPv6", &error.to_string());
                continue;
            }
            Err(error) => panic!("{bind}: {error}"),
        };
        let address = endpoint.address();
        println!("{}: bound to {bind}, advertises {address}", F::NAME);
        assert!(!address.ip().is_unspecified() && address.port() != 0);
        vector.insert(mesh.endpoint(0).address()).expect("an address");
        let named = mesh.test_endpoint(0).vector.insert(address).expect("an address");
        mesh.close(1);
        mesh.open(1, TestEndpoint { endpoint, vector, domain });
        let received = mesh.receive(0, Receive::into(Memory::blank(8)));
        let sent = mesh.send(1, 0, Send::of(Memory::content(1, 8)));
        assert_eq!(mesh.done(received).source, named);
        mesh.done(sent);
        let received = mesh.receive(1, Receive::into(Memory::blank(8)));
        let sent = mesh.until(|| mesh.try_send(0, named, Send::of(Memory::content(2, 8))).ok());
        mesh.done(received);
        mesh.done(sent);
    }
}

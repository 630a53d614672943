//! Endpoints of one connection each, and listeners.

use std::rc::Rc;
use std::time::Duration;

use percale::endpoint::connection::DATA_LIMIT;
use percale::{
    Access, CompletionFlags, ConnectionError, ConnectionState, Endpoint, Entry, ErrorCode, ErrorEntry, Event,
    EventQueue, OpFlags, PeerAddress, PostError, ReceiveWork, SendWork,
};

use crate::fabric::{Alone, Fabric, Peers};
use crate::memory::{Memory, content, same};
use crate::net::{Net, NetEndpoint};

/// Sends untagged and tagged messages of all sizes from one endpoint to the other, through the safe API.
fn exchange<F: Fabric>(net: &Net<F>, from: &Endpoint, to: &Endpoint) {
    for len in [0, 8, 2048, 9000, F::BULK] {
        let receive = to.recv(vec![0; len]).start().expect("a receive");
        let send = from.send(from.peer(), content(1, len)).start().expect("a send");
        let got = net.finish(receive).expect("the message");
        assert_eq!(got.source, Some(to.peer()));
        same(&got.to_vec(), &content(1, len), "the message");
        net.finish(send).expect("the send");
        let receive = to.tagged_recv(7, 0, vec![0; len]).start().expect("a receive");
        net.finish(from.tagged_send(from.peer(), 7, content(2, len)).delivered()).expect("the send");
        same(&net.finish(receive).expect("the message").to_vec(), &content(2, len), "the tagged message");
    }
}

/// The request and the answer carry data. After that, all operations work in the same way as between other endpoints.
///
/// Requirements: CON-013.
pub fn a_connection_is_made_and_used<F: Peers>() {
    let net = Net::<F>::new("a connection is made and used");
    for len in [0, 1, DATA_LIMIT] {
        let client = net.call(&content(1, len));
        assert_eq!(client.endpoint.connection_state(), Some(ConnectionState::Connecting));
        assert_eq!(client.endpoint.peer_address(), Some(net.listener().address()));
        let request = net.request();
        assert_eq!((request.from(), request.listener()), (client.endpoint.address(), net.listener().address()));
        same(request.data(), &content(1, len), "the connection data of the client");
        let server = net.end(|builder| builder.accept(&request, &content(2, len))).expect("an endpoint");
        same(&net.stands(&client), &content(2, len), "the connection data of the server");
        same(&net.stands(&server), &content(1, len), "the connection data of the client");
        assert_eq!(server.endpoint.peer_address(), Some(client.endpoint.address()));
        same(
            &client.endpoint.wait_connected(None).expect("the connection is established"),
            &content(2, len),
            "the connection data of the server, read again",
        );
        exchange(&net, &client.endpoint, &server.endpoint);
        exchange(&net, &server.endpoint, &client.endpoint);
        let region = net.domain.register(vec![0; F::BULK], Access::REMOTE_READ | Access::REMOTE_WRITE).expect("memory");
        for (end, number) in [(&client.endpoint, 3), (&server.endpoint, 4)] {
            let (peer, all) = (end.peer(), region.remote());
            net.finish(end.write(peer, content(number, F::BULK), all)).expect("a write");
            let got = net.finish(end.read(peer, all, vec![0; F::BULK])).expect("a read");
            same(&got.into_vec(), &content(number, F::BULK), "the written data");
            net.finish(end.fetch_add(peer, all.at(0..8), 1_u64)).expect("an add");
        }
        assert!(net.is_quiet(), "there is no further event");
    }
    let long = [1; DATA_LIMIT + 1];
    let refused = net.end(|builder| builder.connect(net.address(), &long));
    assert!(matches!(refused, Err(ConnectionError::TooMuchData(257))));
    let _client = net.call(b"");
    let request = net.request();
    assert!(matches!(request.reject(&long), Err(ConnectionError::TooMuchData(257))));
    assert!(matches!(net.end(|builder| builder.accept(&request, &long)), Err(ConnectionError::TooMuchData(257))));
    net.end(|builder| builder.accept(&request, b"")).expect("the request still waits");
}

/// Posts a receive of 10 bytes through the raw API, into the part of `target` with the number `context`.
#[expect(unsafe_code, reason = "posts through the raw API; the memory is never freed")]
fn post_receive(end: &NetEndpoint, target: &Memory, from: PeerAddress, context: u64) -> Result<(), PostError> {
    let (segments, flags) = (target.part(10 * context as usize, 10).segments(), OpFlags::COMPLETION);
    // SAFETY: segments are made of `Memory`, which is never freed, and are not accessed before the completion.
    unsafe { end.endpoint.post_recv(&ReceiveWork { from, segments, tag: None, context, flags }) }
}

/// Posts a send of 10 bytes to the endpoint's peer through the raw API.
#[expect(unsafe_code, reason = "posts through the raw API; the memory is never freed")]
fn post_send(end: &NetEndpoint, context: u64) -> Result<(), PostError> {
    let (peer, segments) = (end.endpoint.peer(), Memory::of(b"over there").segments());
    let work = SendWork { peer, segments, tag: None, data: None, context, flags: OpFlags::COMPLETION };
    // SAFETY: as in `post_receive`.
    unsafe { end.endpoint.post_send(&work) }
}

/// Waits for the next result of an endpoint.
fn next_result<F: Fabric>(net: &Net<F>, end: &NetEndpoint) -> Result<Entry, ErrorEntry> {
    net.until(|| {
        let mut entry = [Entry::default()];
        match end.endpoint.poll(&mut entry) {
            Ok(0) => None,
            Ok(_) => Some(Ok(entry[0])),
            Err(_) => Some(Err(end.endpoint.read_error().expect("an error entry"))),
        }
    })
}

/// Checks that each kind of send is rejected because the endpoint is not connected.
fn refuses_sends(end: &NetEndpoint) {
    let (endpoint, peer) = (&end.endpoint, end.endpoint.peer());
    assert_eq!(post_send(end, 9), Err(PostError::NotConnected));
    assert_eq!(endpoint.inject(peer, b"x"), Err(PostError::NotConnected));
    let remote = percale::RemoteMemory { key: 1, address: 0, len: 1 };
    assert_eq!(endpoint.inject_write(peer, b"x", remote, None), Err(PostError::NotConnected));
    let error = endpoint.send(peer, vec![1; 5]).start().expect_err("there is no connection");
    assert_eq!(error.into_buffer().map(|buffer| buffer.len()), Some(5));
    assert_eq!(PostError::NotConnected.errno(), 258);
}

/// Through the raw API, receives can be posted before the connection is established, and sends cannot. The same holds
/// after the connection has ended.
///
/// Requirements: CON-014.
pub fn sends_require_a_connection<F: Peers>() {
    let net = Net::<F>::new("sends require a connection");
    let client = net.end(|builder| Ok(builder.bind_single(net.fabric.address())?)).expect("an endpoint");
    let target = Memory::blank(100);
    assert_eq!(client.endpoint.connection_state(), Some(ConnectionState::Unconnected));
    assert!(matches!(client.endpoint.wait_connected(None), Err(ConnectionError::Unconnected)));
    refuses_sends(&client);
    post_receive(&client, &target, PeerAddress::UNSPECIFIED, 1).expect("a receive");
    post_receive(&client, &target, client.endpoint.peer(), 2).expect("a receive from the only peer");
    client.endpoint.connect(net.address(), b"").expect("a call");
    refuses_sends(&client);
    post_receive(&client, &target, PeerAddress::UNSPECIFIED, 3).expect("a receive");
    let request = net.request();
    refuses_sends(&client);
    let server = net.end(|builder| Ok(builder.bind_single(net.fabric.address())?)).expect("an endpoint");
    post_receive(&server, &target, PeerAddress::UNSPECIFIED, 4).expect("a receive");
    refuses_sends(&server);
    server.endpoint.accept(&request, b"").expect("the request waits");
    if server.endpoint.connection_state() == Some(ConnectionState::Connecting) {
        refuses_sends(&server);
    }
    net.stands(&client);
    net.stands(&server);
    // An endpoint can be connected only once.
    assert!(matches!(client.endpoint.connect(net.address(), b""), Err(ConnectionError::Used)));
    assert!(matches!(server.endpoint.accept(&request, b""), Err(ConnectionError::Used)));
    assert!(matches!(net.end(|builder| builder.accept(&request, b"")), Err(ConnectionError::Gone)));
    assert!(matches!(request.reject(b""), Err(ConnectionError::Gone)));
    for context in 1..=3 {
        post_send(&server, 5).expect("a send");
        assert_eq!(next_result(&net, &server).expect("a send").context, 5);
        let got = next_result(&net, &client).expect("a message");
        assert_eq!((got.context, got.len, got.source), (context, 10, client.endpoint.peer()));
    }
    same(&target.part(10, 30).read(), b"over thereover thereover there", "the messages");
    post_receive(&client, &target, client.endpoint.peer(), 5).expect("a receive");
    post_receive(&client, &target, PeerAddress::UNSPECIFIED, 6).expect("a receive");
    server.endpoint.shutdown().expect("the connection is established");
    refuses_sends(&server);
    let error = next_result(&net, &server).expect_err("no peer will send");
    assert_eq!((error.entry.context, error.error), (4, ErrorCode::Canceled));
    for context in [5, 6] {
        let error = next_result(&net, &client).expect_err("no peer will send");
        assert_eq!((error.entry.context, error.error), (context, ErrorCode::Closed), "{error}");
        assert_eq!(error.entry.flags, CompletionFlags::RECEIVE | CompletionFlags::MESSAGE);
    }
    refuses_sends(&client);
    // Receives posted later fail as well.
    post_receive(&client, &target, client.endpoint.peer(), 7).expect("a receive");
    assert_eq!(next_result(&net, &client).expect_err("no peer will send").entry.context, 7);
}

#[track_caller]
fn refused<F: Fabric>(net: &Net<F>, end: &NetEndpoint) -> (ErrorCode, String, Vec<u8>) {
    let reported = match net.event(end) {
        Event::ConnectionRefused { endpoint, address, error, reason, data } => {
            assert_eq!(endpoint, end.endpoint.id());
            assert_eq!(end.endpoint.peer_address(), Some(address));
            (error, reason, data)
        }
        other => panic!("not refused, but {other:?}"),
    };
    assert_eq!(end.endpoint.connection_state(), Some(ConnectionState::Refused));
    match end.endpoint.wait_connected(None) {
        Err(ConnectionError::Refused { error, reason, data }) => assert_eq!((error, reason, data), reported),
        other => panic!("not refused, but {other:?}"),
    }
    assert_eq!(end.endpoint.inject(end.endpoint.peer(), b"x"), Err(PostError::NotConnected));
    reported
}

/// Requests are rejected if the listener's owner rejects them with data or drops them, or if they exceed the backlog.
///
/// Requirements: CON-015.
pub fn requests_are_rejected<F: Peers>() {
    let net = Net::<F>::new("requests are rejected");
    for len in [0, 1, DATA_LIMIT] {
        let client = net.call(b"please");
        let receive = client.endpoint.recv(vec![0; 8]).start().expect("a receive");
        net.request().reject(&content(3, len)).expect("the request waits");
        let (error, reason, data) = refused(&net, &client);
        assert_eq!((error, error.errno()), (ErrorCode::Refused, libc::ECONNREFUSED), "{reason}");
        same(&data, &content(3, len), "the connection data of the server");
        net.finish(receive).expect_err("there is no connection to receive from");
    }
    let client = net.call(b"please");
    drop(net.request());
    assert_eq!(refused(&net, &client).2, b"");
    net.listener().set_backlog(2);
    let clients = [(); 4].map(|()| net.call(b""));
    let turned_away = |end: &Rc<NetEndpoint>| end.endpoint.connection_state() == Some(ConnectionState::Refused);
    net.until(|| (clients.iter().filter(|end| turned_away(end)).count() == 2).then_some(()));
    net.until(|| (net.listener().pending() == 2).then_some(()));
    for _ in 0..2 {
        let request = net.request();
        net.end(|builder| builder.accept(&request, b"")).expect("an endpoint");
    }
    for end in &clients {
        if turned_away(end) {
            let (error, reason, _) = refused(&net, end);
            assert_eq!(error, ErrorCode::Refused, "{reason}");
        } else {
            net.stands(end);
        }
    }
    assert_eq!(net.listener().pending(), 0);
    net.pair();
}

/// A request for which the event queue has no room is rejected in the same way as a dropped request.
///
/// Requirements: CON-015.
pub fn requests_beyond_event_queue_capacity_are_rejected<F: Peers>() {
    let mut net = Net::<F>::new("requests beyond event queue capacity are rejected");
    let events = EventQueue::new(1);
    net.listener = Some(net.domain.listener().events(&events).bind(net.fabric.address()).expect("a listener"));
    let first = net.call(b"first");
    net.until(|| (net.listener().pending() == 1).then_some(()));
    let others = [(); 3].map(|()| net.call(b"others"));
    for client in &others {
        let (error, reason, _) = refused(&net, client);
        assert_eq!(error, ErrorCode::Refused, "{reason}");
    }
    let request = net.request();
    assert_eq!((request.data(), net.listener().events().read()), (&b"first"[..], Some(Event::Lost { count: 3 })));
    let server = net.end(|builder| builder.accept(&request, b"")).expect("the request still waits");
    net.stands(&first);
    net.stands(&server);
}

/// A connection request fails if no endpoint is bound to its address, if that endpoint is not a listener, or if the
/// listener closes before it answers.
///
/// Requirements: CON-016.
pub fn connection_request_without_listener_fails<F: Peers>() {
    let mut net = Net::<F>::new("connection request without listener fails");
    let nobody = net.end(|builder| Ok(builder.bind_single(net.fabric.address())?)).expect("an endpoint");
    let address = nobody.endpoint.address().to_string();
    net.close(nobody);
    let client = net.end(|builder| builder.connect(&address, b"")).expect("an endpoint");
    let (error, reason, _) = refused(&net, &client);
    assert_eq!(error, ErrorCode::Refused, "{reason}");
    // Endpoints that are not listeners accept no requests.
    let many = net.end(|builder| Ok(builder.bind(net.fabric.address())?)).expect("an endpoint");
    assert_eq!((many.endpoint.connection_state(), many.endpoint.peer()), (None, PeerAddress::UNSPECIFIED));
    assert!(matches!(many.endpoint.connect(net.address(), b""), Err(ConnectionError::NotForOne)));
    assert!(matches!(many.endpoint.shutdown(), Err(ConnectionError::NotForOne)));
    let (left, right) = net.pair();
    for end in [&many, &left, &right] {
        let client = net.end(|builder| builder.connect(end.endpoint.address().to_string(), b"")).expect("an endpoint");
        println!("{}: {:?}", F::NAME, refused(&net, &client));
    }
    exchange(&net, &left.endpoint, &right.endpoint);
    // The listener closes while requests wait. One of them was answered before.
    let clients = [(); 3].map(|()| net.call(b""));
    let requests = [(); 3].map(|()| net.request());
    let server = net.end(|builder| builder.accept(&requests[1], b"just in time")).expect("an endpoint");
    drop(net.listener.take());
    let accepted =
        clients.iter().find(|client| client.endpoint.address() == requests[1].from()).expect("the accepted client");
    for request in &requests {
        assert!(matches!(request.reject(b""), Err(ConnectionError::Gone)));
    }
    for client in clients.iter().filter(|client| !Rc::ptr_eq(client, accepted)) {
        let (error, reason, _) = refused(&net, client);
        assert_eq!(error, ErrorCode::Refused, "{reason}");
    }
    assert_eq!(net.stands(accepted), b"just in time");
    net.stands(&server);
    exchange(&net, &server.endpoint, &accepted.endpoint);
}

/// A request without an answer ends within a bounded time, on either side.
///
/// Requirements: CON-016.
pub fn waiting_for_an_answer_is_bounded<F: Peers>() {
    let net = Net::<F>::new("waiting for an answer is bounded");
    let client = net
        .end(|builder| builder.answer_timeout(Duration::from_millis(300)).connect(net.address(), b""))
        .expect("an endpoint");
    let (error, reason, _) = refused(&net, &client);
    assert_eq!(error, ErrorCode::TimedOut, "{reason}");
    // If the client's request has arrived, the client withdraws it.
    net.until(|| (net.listener().pending() == 0).then_some(()));
    if let Some(Event::ConnectionRequest(request)) = net.listener().events().read() {
        assert!(matches!(net.end(|builder| builder.accept(&request, b"")), Err(ConnectionError::Gone)));
    }
    // The accepted client closes before the connection is established.
    let client = net.call(b"");
    let request = net.request();
    let hasty = net.fabric.domain(|domain| domain.connect_timeout(Duration::from_millis(300)));
    let server = net.end_in(&hasty, |builder| builder.accept(&request, b"")).expect("an endpoint");
    net.close(client);
    let (error, reason, _) = refused(&net, &server);
    assert_eq!(error, ErrorCode::TimedOut, "{reason}");
}

/// A connection belongs to two endpoints. They reject messages of other endpoints before and after it is established.
///
/// Requirements: CON-018.
pub fn messages_of_unconnected_endpoints_are_rejected<F: Peers>() {
    let net = Net::<F>::new("messages of unconnected endpoints are rejected");
    let vector = net.domain.address_vector().build().expect("a vector");
    let stranger =
        net.end(|builder| Ok(builder.vector(&vector).bind(net.fabric.address())?)).expect("an endpoint").clone();
    let tries = |there: std::net::SocketAddr| {
        let peer = vector.insert(there).expect("an address");
        // A send may complete before its rejection is detected, so delivery completion is requested.
        net.finish(stranger.endpoint.send(peer, "let me in").delivered()).expect_err("the endpoint rejects it");
        let remote = percale::RemoteMemory { key: 1, address: 0, len: 8 };
        net.finish(stranger.endpoint.read(peer, remote, vec![0; 8])).expect_err("the endpoint rejects it");
    };
    tries(net.listener().address());
    let client = net.call(b"");
    let early = client.endpoint.recv(vec![0; 100]).start().expect("a receive");
    tries(client.endpoint.address());
    let request = net.request();
    tries(client.endpoint.address());
    let server = net.end(|builder| builder.accept(&request, b"")).expect("an endpoint");
    let late = server.endpoint.recv(vec![0; 100]).start().expect("a receive");
    tries(server.endpoint.address());
    net.stands(&client);
    net.stands(&server);
    tries(server.endpoint.address());
    tries(client.endpoint.address());
    for (from, receive) in [(&server, early), (&client, late)] {
        let send = from.endpoint.send(from.endpoint.peer(), "it is me").start().expect("a send");
        assert_eq!(net.finish(receive).expect("the message").to_vec(), b"it is me");
        net.finish(send).expect("the send");
    }
    net.pair();
    assert!(net.listener().events().is_empty());
}

/// After a shutdown, the other side gets one event, which follows all messages that were sent before. Outstanding
/// operations end.
///
/// Requirements: CON-019.
pub fn shutdown_event_follows_all_messages<F: Peers>() {
    let net = Net::<F>::new("shutdown event follows all messages");
    for (count, len, shut) in [(1, 8, true), (40, 8, false), (40, 2048, true), (30, 2048, false), (0, 0, true)] {
        let (client, server) = net.pair();
        let (from, to) = if count % 20 == 0 { (client, server) } else { (server, client) };
        for number in 0..count {
            net.until(|| match from.endpoint.inject(from.endpoint.peer(), &content(number, len)) {
                Ok(()) => Some(()),
                Err(error) => {
                    assert_eq!(error, PostError::Again);
                    None
                }
            });
        }
        let receives: Vec<_> = (0..count).map(|_| to.endpoint.recv(vec![0; len]).start().expect("a receive")).collect();
        if shut {
            from.endpoint.shutdown().expect("the connection is established");
            from.endpoint.shutdown().expect("shutdown can be repeated");
            assert_eq!(from.endpoint.connection_state(), Some(ConnectionState::Shutdown));
        } else {
            net.close(from);
        }
        let end = net.until(|| to.events.read());
        let Event::Shutdown { endpoint, error, reason, .. } = end else {
            panic!("expected the shutdown event, got {end:?}")
        };
        assert_eq!((endpoint, error), (to.endpoint.id(), ErrorCode::Closed), "{reason}");
        for (number, receive) in (0..).zip(receives) {
            let got = net.finish(receive).expect("the message was sent before the shutdown");
            same(&got.to_vec(), &content(number, len), "a message sent before the shutdown");
        }
        net.turns(50);
        assert!(to.events.read().is_none(), "the end is reported once");
        to.endpoint.shutdown().expect("the connection is shut down");
    }
}

/// Messages that arrived before the shutdown can be received after it.
///
/// Requirements: CON-019.
pub fn messages_can_be_received_after_shutdown<F: Peers>() {
    let net = Net::<F>::new("messages can be received after shutdown");
    let (client, server) = net.pair();
    for number in 0..5 {
        client.endpoint.inject(client.endpoint.peer(), &content(number, 100)).expect("room");
    }
    client.endpoint.shutdown().expect("the connection is established");
    assert!(matches!(net.event(&server), Event::Shutdown { .. }));
    for number in 0..5 {
        let got = net.finish(server.endpoint.recv(vec![0; 100])).expect("the message was sent before the shutdown");
        same(&got.to_vec(), &content(number, 100), "a message");
    }
    net.finish(server.endpoint.recv(vec![0; 100])).expect_err("no more messages");
}

/// Many endpoints connect to one listener at the same time, each with its own data. Each connection is then used.
///
/// Requirements: CON-020.
pub fn hundred_endpoints_connect_concurrently<F: Peers>() {
    const COUNT: usize = 100;
    let net = Net::<F>::with("hundred endpoints connect concurrently", |domain| {
        domain.connect_timeout(Duration::from_secs(60))
    });
    let clients: Vec<_> = (0..COUNT).map(|number| net.call(&number.to_le_bytes())).collect();
    let servers: Vec<_> = (0..COUNT)
        .map(|_| {
            let request = net.request();
            let server = net.end(|builder| builder.accept(&request, request.data())).expect("an endpoint");
            (usize::from_le_bytes(request.data().try_into().expect("eight bytes")), server)
        })
        .collect();
    for (number, client) in clients.iter().enumerate() {
        assert_eq!(net.stands(client), number.to_le_bytes());
    }
    for (number, server) in &servers {
        assert_eq!(net.stands(server), number.to_le_bytes());
        let client = &clients[*number].endpoint;
        client.inject(client.peer(), &number.to_le_bytes()).expect("room");
        let got = net.finish(server.endpoint.recv(vec![0; 8])).expect("the message");
        assert_eq!(got.to_vec(), number.to_le_bytes());
    }
    assert_eq!(net.listener().pending(), 0);
}

/// Without a transport to other endpoints a connection request fails, and the error states this reason.
///
/// Requirements: CON-016.
pub fn connect_without_transport_fails<F: Alone>() {
    let net = Net::<F>::new("connect without transport fails");
    let client = net.call(b"");
    let (error, reason, _) = refused(&net, &client);
    println!("{}: {error:?}: {reason}", F::NAME);
    let own = net.end(|builder| Ok(builder.bind_single(net.fabric.address())?)).expect("an endpoint");
    own.endpoint.connect(own.endpoint.address().to_string(), b"").expect("the error is reported later");
    assert_eq!(refused(&net, &own).0, ErrorCode::Refused);
}

/// For a connected endpoint, the endpoint and the peer of a type 2 window are those of its connection.
///
/// Requirements: MW-038, MW-040, MW-045.
pub fn windows_of_connected_endpoints_use_their_connection<F: Peers>() {
    use percale::{Bind, WindowAccess, WindowType};
    let net = Net::<F>::new("windows of connected endpoints use their connection");
    let region = net.domain.register(content(1, 100), Access::empty()).expect("a region");
    let window = net.domain.window(WindowType::TwoB).expect("a window");
    let [(client, server), (other, _)] = [(); 2].map(|()| net.pair());
    let bind = Bind { range: 10..20, access: WindowAccess::READ, key: 5 };
    let early = net.end(|builder| Ok(builder.bind_single(net.fabric.address())?)).expect("an endpoint");
    let refused = early.endpoint.post_bind(early.endpoint.peer(), &window, &region, &bind, 0, OpFlags::empty());
    assert_eq!(refused, Err(PostError::NotConnected));
    for round in 0..3 {
        let server = &server.endpoint;
        let name = net.finish(server.bind_window(server.peer(), &window, &region, bind.clone())).expect("a bind");
        let read = |end: &NetEndpoint| net.finish(end.endpoint.read(end.endpoint.peer(), name, vec![0; 10]));
        for _ in 0..3 {
            assert_eq!(read(&client).expect("the peer may read").into_vec(), content(1, 100)[10..20]);
            assert_eq!(
                read(&other).expect_err("another connection may not read").errno(),
                ErrorCode::KeyRejected.errno()
            );
        }
        if round == 1 {
            let receive = server.recv(vec![0; 8]).start().expect("a receive");
            let send = client.endpoint.send(client.endpoint.peer(), vec![1; 8]).invalidating(name.key);
            net.finish(send).expect("the send");
            assert_eq!(net.finish(receive).expect("the message").invalidated, Some(name.key));
        } else {
            net.finish(server.invalidate(server.peer(), name.key)).expect("the window is bound");
        }
        assert_eq!(read(&client).expect_err("the key is invalid").errno(), ErrorCode::KeyRejected.errno());
    }
}

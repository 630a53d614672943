//! Answers to peers that are not in the endpoint's vector.

use percale::endpoint::safe::{Cause, OperationError, Received};
use percale::{Access, PeerAddress, PostError};

use crate::fabric::Peers;
use crate::memory::{content, same};
use crate::mesh::{Mesh, TestEndpoint};

/// Makes a server, which is endpoint 1, makes no connections and has no peer in its vector, and clients that have the
/// server's address.
fn world<F: Peers>(clients: usize) -> Mesh<F> {
    let mesh = Mesh::<F>::with(
        clients + 1,
        |domain| domain,
        |number, endpoint| if number == 1 { endpoint.answer_only() } else { endpoint },
    );
    for number in 0..=clients {
        mesh.test_endpoint(1).vector.remove(mesh.peer(number)).expect("it is in the vector");
    }
    mesh
}

/// Sends a message from a client to the server. Returns what the server received.
fn received<F: Peers>(mesh: &Mesh<F>, from: usize, len: usize) -> Received {
    let receive = mesh.endpoint(1).recv(vec![0; len]).start().expect("a receive");
    let sent = mesh.endpoint(from).send(mesh.peer(1), content(from as u64, len)).start().expect("a send");
    let got = mesh.finish(receive).expect("a message");
    mesh.finish(sent).expect("the send");
    same(&got.to_vec(), &content(from as u64, len), "the message");
    got
}

/// Sends an answer from the server, and checks it at the client.
fn answer<F: Peers>(mesh: &Mesh<F>, to: usize, source: PeerAddress, len: usize) {
    let receive = mesh.endpoint(to).recv(vec![0; len]).from(mesh.peer(1)).start().expect("a receive");
    let sent = mesh.endpoint(1).send(source, content(9, len)).start().expect("an answer");
    same(&mesh.finish(receive).expect("the answer").to_vec(), &content(9, len), "the answer");
    mesh.finish(sent).expect("the answer was sent");
}

#[track_caller]
fn ended<T>(result: Result<T, OperationError>) -> OperationError {
    let error = result.err().expect("the connection has ended");
    assert!(matches!(error.cause(), Cause::Post(PostError::ConnectionEnded)), "{error}");
    error
}

/// The server makes no connections, so every answer uses the connection of the client.
pub fn messages_of_unknown_peers_are_answered_over_their_connections<F: Peers>() {
    let mesh = world::<F>(2);
    let server = mesh.endpoint(1);
    let mut sources = Vec::new();
    for from in [0, 2] {
        let source = received(&mesh, from, 8).source.expect("a source");
        assert_eq!(mesh.test_endpoint(1).vector.lookup(source), None);
        assert_eq!(received(&mesh, from, 5000).source, Some(source), "it stays the same");
        assert_eq!(server.network_address(source), Some(mesh.endpoint(from).address()));
        assert!(server.is_connected(source));
        sources.push((from, source));
    }
    assert_ne!(sources[0].1, sources[1].1);
    for len in [0, 8, 2048, 9000, F::BULK] {
        for (to, source) in &sources {
            answer(&mesh, *to, *source, len);
        }
    }
    assert_eq!(server.describe_peers().len(), 3, "the server and two clients");
    // A receive can be directed at the source, and an injected message sent to it.
    let (to, source) = sources[1];
    let directed = server.recv(vec![0; 8]).from(source).start().expect("a receive");
    let any = server.recv(vec![0; 8]).start().expect("a receive");
    mesh.inject(0, 1, None, &content(3, 8));
    assert_eq!(mesh.finish(any).expect("a message").source, Some(sources[0].1));
    mesh.inject(to, 1, None, &content(4, 8));
    assert_eq!(mesh.finish(directed).expect("a message").source, Some(source));
    let receive = mesh.endpoint(to).recv(vec![0; 8]).start().expect("a receive");
    mesh.until(|| server.inject(source, b"injected").ok());
    assert_eq!(mesh.finish(receive).expect("a message").to_vec(), b"injected");
}

/// Reads, writes and atomic operations reach the memory of the sender.
pub fn memory_of_an_unknown_peer_can_be_accessed<F: Peers>() {
    let mesh = world::<F>(1);
    let source = received(&mesh, 0, 8).source.expect("a source");
    let (server, domain) = (mesh.endpoint(1), &mesh.test_endpoint(0).domain);
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let region = domain.register(domain.allocate(8192).expect("memory"), access).expect("a region");
    for _ in 0..2 {
        mesh.finish(server.write(source, content(1, 8192), region.remote())).expect("a write");
        let read = mesh.finish(server.read(source, region.remote(), vec![0; 8192])).expect("a read");
        same(&read.into_vec(), &content(1, 8192), "the memory");
        mesh.finish(server.write(source, vec![0; 8], region.remote().at(0..8))).expect("a write");
        mesh.finish(server.fetch_add(source, region.remote().at(0..8), 5_u64)).expect("an addition");
        assert_eq!(mesh.finish(server.fetch_add(source, region.remote().at(0..8), 5_u64)).expect("an addition"), 5);
    }
}

/// An endpoint without a vector answers, too.
pub fn endpoint_without_a_vector_answers<F: Peers>() {
    let mut mesh = world::<F>(2);
    let domain = mesh.fabric.domain(|domain| domain);
    let vector = domain.address_vector().build().expect("a vector");
    let endpoint = domain.endpoint().answer_only().bind(mesh.fabric.address()).expect("an endpoint");
    for client in [0, 2] {
        mesh.test_endpoint(client).vector.remove(mesh.peer(1)).expect("it is in the vector");
        assert_eq!(mesh.test_endpoint(client).vector.insert(endpoint.address()), Ok(mesh.peer(1)));
    }
    mesh.close(1);
    mesh.open(1, TestEndpoint { endpoint, vector, domain });
    for from in [0, 2] {
        let source = received(&mesh, from, 8).source.expect("a source");
        for len in [8, 5000, F::BULK] {
            answer(&mesh, from, source, len);
        }
    }
}

/// After the end of the connection, the source reaches nobody: neither the peer's next connection, nor another peer.
pub fn source_of_an_ended_connection_is_invalid_for_ever<F: Peers>() {
    let mut mesh = world::<F>(1);
    let mut earlier = Vec::new();
    let mut bytes = 0;
    for round in 0..20 {
        let got = received(&mesh, 0, 8);
        let source = got.source.expect("a source");
        assert!(!earlier.contains(&source), "an address was used again");
        answer(&mesh, 0, source, 8);
        // A message that the server receives after the end of the connection has a source, too.
        mesh.inject(0, 1, None, b"too late");
        mesh.inject(0, 1, Some(6), b"the last");
        mesh.finish(mesh.endpoint(1).tagged_recv(6, 0, vec![0; 8])).expect("the earlier one has arrived, too");
        let directed = mesh.endpoint(1).tagged_recv(5, 0, vec![0; 8]).from(source).start().expect("a receive");
        if round % 2 == 0 {
            mesh.endpoint(0).disconnect(mesh.peer(1));
        } else {
            mesh.endpoint(0).shut();
        }
        mesh.finish(directed).expect_err("the peer has disconnected");
        if round % 2 == 1 {
            let domain = mesh.fabric.domain(|domain| domain);
            let vector = domain.address_vector().build().expect("a vector");
            let endpoint = domain.endpoint().vector(&vector).bind(mesh.fabric.address()).expect("an endpoint");
            for address in [endpoint.address(), mesh.endpoint(1).address()] {
                vector.insert(address).expect("an address");
            }
            mesh.close(0);
            mesh.open(0, TestEndpoint { endpoint, vector, domain });
        }
        let late = mesh.finish(mesh.endpoint(1).recv(vec![0; 8])).expect("the message");
        assert_eq!((late.to_vec(), late.source), (b"too late".to_vec(), Some(source)));
        earlier.push(source);
        for source in &earlier {
            let server = mesh.endpoint(1);
            assert!(!server.is_connected(*source));
            assert_eq!(server.network_address(*source), None);
            let back = ended(server.send(*source, vec![1, 2, 3]).start()).into_buffer();
            assert_eq!(back.map(percale::Buffer::into_vec), Some(vec![1, 2, 3]));
            ended(server.recv(vec![0; 8]).from(*source).start());
            assert_eq!(server.inject(*source, b"x"), Err(PostError::ConnectionEnded));
        }
        if round == 1 {
            bytes = mesh.endpoint(1).naming_bytes();
        }
    }
    assert!(mesh.endpoint(1).naming_bytes() <= bytes.max(1024), "the memory grows with the number of clients");
}

/// After its address was inserted, the peer's messages have that source. Both addresses reach the peer.
pub fn unknown_peer_that_is_inserted_keeps_its_connection<F: Peers>() {
    let mesh = Mesh::<F>::new(2);
    let vector = &mesh.test_endpoint(1).vector;
    vector.remove(mesh.peer(0)).expect("it is in the vector");
    let source = received(&mesh, 0, 8).source.expect("a source");
    answer(&mesh, 0, source, 8);
    let address = mesh.endpoint(1).network_address(source).expect("an address");
    let inserted = vector.insert(address).expect("an address");
    answer(&mesh, 0, inserted, 5000);
    assert_eq!(received(&mesh, 0, 8).source, Some(inserted));
    answer(&mesh, 0, source, 5000);
    answer(&mesh, 0, inserted, 8);
    assert_eq!(mesh.endpoint(1).describe_peers().len(), 2, "the server and one client");
}

/// Endpoints of a group must have addresses in the vector.
pub fn connection_address_cannot_be_a_member_of_a_group<F: Peers>() {
    let mesh = world::<F>(1);
    let source = received(&mesh, 0, 8).source.expect("a source");
    let own = mesh.test_endpoint(1).vector.insert(mesh.endpoint(1).address()).expect("an address");
    let members = [own, source].into_iter().collect::<percale::AddressSet>();
    let error = mesh.endpoint(1).join(&members).expect_err("it is refused");
    assert!(matches!(error.cause(), Cause::Post(PostError::Collective(_))), "{error}");
}

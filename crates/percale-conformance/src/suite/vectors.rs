//! Peers in all kinds of address vectors, and messages to them.

use percale::address::vector::VectorType;
use percale::{AddressVector, Endpoint, PeerAddress, PostError};

use crate::fabric::{Fabric, Peers};
use crate::memory::{Memory, same};
use crate::mesh::{Mesh, Receive};

/// Opens another endpoint of endpoint 0's domain.
fn with<F: Fabric>(mesh: &Mesh<F>, vector: &AddressVector) -> Endpoint {
    mesh.test_endpoint(0).domain.endpoint().vector(vector).bind(mesh.fabric.address()).expect("an endpoint")
}

/// Checks that a message to endpoint 1 at the address `peer` arrives completely.
fn says<F: Fabric>(mesh: &Mesh<F>, endpoint: &Endpoint, peer: PeerAddress) {
    let target = Memory::blank(8);
    let received = mesh.receive(1, Receive::into(target));
    let bytes = peer.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    mesh.until(|| match endpoint.inject(peer, &bytes) {
        Ok(()) => Some(()),
        Err(PostError::Again) => {
            endpoint.progress();
            None
        }
        Err(error) => panic!("{peer}: {error}"),
    });
    let report = mesh.until(|| {
        endpoint.progress();
        mesh.take(received)
    });
    assert_eq!(report.expect("a message").len, 8);
    same(&target.read(), &bytes, "the message");
}

/// Messages can be sent to peers in vectors of every type, with any expected size.
///
/// Requirements: AV-001, AV-004, AV-005, AV-007, AV-029, AV-056.
pub fn send_to_peers_of_any_vector_succeeds<F: Peers>() {
    let mesh = Mesh::<F>::new(2);
    let to = mesh.endpoint(1).address();
    assert_eq!(AddressVector::new(Default::default()).expect("a vector").options().kind, VectorType::Table);
    for kind in [VectorType::Table, VectorType::Map] {
        for expected in [0, 1, usize::MAX] {
            let vector =
                mesh.test_endpoint(0).domain.address_vector().kind(kind).expected(expected).build().expect("a vector");
            assert_eq!(vector.options().kind, kind);
            let peers: Vec<_> =
                vector.insert_many([to, to]).expect("room").iter().map(|peer| *peer.as_ref().expect("one")).collect();
            let endpoint = with(&mesh, &vector);
            for peer in peers {
                assert_eq!(vector.lookup(peer), Some(to));
                says(&mesh, &endpoint, peer);
            }
        }
    }
}

/// A peer that was inserted through one handle can be addressed by its number through a read-only handle, which cannot
/// change the vector.
///
/// Requirements: AV-012, AV-014, AV-017.
pub fn read_only_named_vector_can_be_used_to_send<F: Peers>() {
    let mesh = Mesh::<F>::new(2);
    let name = format!("suite-{}-{}", F::NAME, std::process::id());
    let domain = &mesh.test_endpoint(0).domain;
    let writer = domain.address_vector().name(&name).build().expect("a named vector");
    let reader = domain.address_vector().name(&name).read_only().build().expect("the vector exists");
    let endpoint = with(&mesh, &reader);
    let peer = writer.insert(mesh.endpoint(1).address()).expect("room");
    says(&mesh, &endpoint, peer);
    assert_eq!(reader.insert("10.0.0.1:1").expect_err("the vector is read-only").errno(), libc::EACCES);
    assert_eq!(reader.remove(peer).expect_err("the vector is read-only").errno(), libc::EACCES);
    says(&mesh, &endpoint, peer);
}

/// A vector exists as long as an endpoint uses it, even after all handles are dropped.
///
/// Requirements: AV-018.
pub fn a_vector_outlives_its_handles_while_it_is_used<F: Peers>() {
    let mesh = Mesh::<F>::new(2);
    let vector = mesh.test_endpoint(0).domain.address_vector().build().expect("a vector");
    let peer = vector.insert(mesh.endpoint(1).address()).expect("room");
    let endpoint = with(&mesh, &vector);
    drop(vector);
    says(&mesh, &endpoint, peer);
}

/// A range is one entry. Each of its parts is a peer like any other.
///
/// Requirements: AV-009, AV-042, AV-043.
pub fn send_to_a_peer_of_a_range_succeeds<F: Peers>() {
    let mesh = Mesh::<F>::new(2);
    let to = mesh.endpoint(1).address();
    // The range contains a few ports around that of the peer, on its node and on the next node.
    let first = (to.port() - 3).min(u16::MAX - 19);
    let vector = mesh.test_endpoint(0).domain.address_vector().build().expect("a vector");
    let inserted = vector.insert_symmetric(&to.ip().to_string(), 2, &first.to_string(), 20).expect("a range");
    assert_eq!((inserted.count(), vector.len()), (40, 40));
    let peer = PeerAddress(u64::from(to.port() - first));
    assert_eq!((vector.lookup(peer), vector.find(to)), (Some(to), Some(peer)));
    let endpoint = with(&mesh, &vector);
    says(&mesh, &endpoint, peer);
    // The peer is removed from the range, and inserted again at the same position.
    vector.remove(peer).expect("the peer is in the vector");
    assert!(matches!(endpoint.inject(peer, b"nobody"), Err(PostError::UnknownPeer(_))));
    assert_eq!(vector.insert(to), Ok(peer));
    says(&mesh, &endpoint, peer);
}

/// Several insertions have the same result as one, even if there are other insertions between them.
///
/// Requirements: AV-002, AV-030, AV-031.
pub fn several_insertions_have_the_result_of_one<F: Peers>() {
    let mesh = Mesh::<F>::new(2);
    let vector = mesh.test_endpoint(0).domain.address_vector().build().expect("a vector");
    let other = mesh.test_endpoint(0).domain.address_vector().build().expect("a vector");
    for number in 0..5 {
        let to = mesh.endpoint(1).address();
        assert_eq!(vector.insert(to), Ok(PeerAddress(number)));
        other.insert(to).expect("room");
    }
    let endpoint = with(&mesh, &vector);
    for number in 0..5 {
        says(&mesh, &endpoint, PeerAddress(number));
    }
}

/// Messages cannot be sent to a removed peer until it is inserted again.
///
/// Requirements: AV-046, AV-047, AV-050.
pub fn send_to_removed_peer_fails<F: Peers>() {
    let mesh = Mesh::<F>::new(2);
    let to = mesh.endpoint(1).address();
    let vector = mesh.test_endpoint(0).domain.address_vector().build().expect("a vector");
    let endpoint = with(&mesh, &vector);
    for _ in 0..3 {
        let peer = vector.insert(to).expect("room");
        says(&mesh, &endpoint, peer);
        vector.remove(peer).expect("the peer is in the vector");
        assert_eq!(vector.lookup(peer), None);
        let refused = endpoint.inject(peer, b"nobody");
        assert!(matches!(refused, Err(PostError::UnknownPeer(number)) if number == peer.0), "{refused:?}");
    }
}

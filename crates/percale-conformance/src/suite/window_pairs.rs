//! Windows and endpoints: the endpoints through which a key is valid, windows of closed endpoints, and messages of
//! peers that invalidate a key.

use std::time::Duration;

use percale::memory::window::WindowState;
use percale::{Access, ErrorCode, PeerAddress, RemoteMemory, TypeTwo, WindowAccess, WindowType};

use super::windows::{LEN, REFUSED, bind, bytes, bytes_of, code, how, invalidate, reads, regions, user_reads};
use crate::fabric::{Direct, Fabric};
use crate::memory::{content, same};
use crate::mesh::{Mesh, TestEndpoint};

/// Opens another endpoint in an endpoint's domain. Its vector contains endpoint 0 and itself. The caller drives it.
fn second<F: Fabric>(mesh: &Mesh<F>, number: usize) -> TestEndpoint {
    let domain = mesh.test_endpoint(number).domain.clone();
    let vector = domain.address_vector().build().expect("a vector");
    let endpoint = domain.endpoint().vector(&vector).bind(mesh.fabric.address()).expect("an endpoint");
    vector.insert(mesh.endpoint(0).address()).expect("an address");
    vector.insert(endpoint.address()).expect("an address");
    TestEndpoint { endpoint, vector, domain }
}

/// A key of type 1 is valid through every endpoint of its domain and through no endpoint of another. Endpoints are
/// opened and closed in between.
///
/// Requirements: MW-032, MW-033.
pub fn type_1_key_is_valid_for_its_whole_domain<F: Fabric>() {
    let mut mesh = Mesh::<F>::new(3);
    for region in regions(&mesh, Access::empty()) {
        let mut window = mesh.test_endpoint(1).domain.window(WindowType::One).expect("a window");
        let name = window.bind(&region, 0..8, WindowAccess::READ).expect("a bind");
        assert_eq!(user_reads(&mesh, name), bytes(0..8));
        let other = second(&mesh, 1);
        let to_itself = other.endpoint.read(PeerAddress(1), name, vec![0; 8]).wait();
        assert_eq!(to_itself.expect("through another endpoint of the domain").into_vec(), bytes(0..8).unwrap());
        if !F::ALONE {
            assert_eq!(reads(&mesh, mesh.endpoint(0), mesh.peer(2), name), REFUSED);
            drop(other);
            let replaced = second(&mesh, 1);
            mesh.close(1);
            mesh.open(1, replaced);
            let vector = &mesh.test_endpoint(0).vector;
            let peer = vector.insert(mesh.endpoint(1).address()).expect("an address");
            assert_eq!(reads(&mesh, mesh.endpoint(0), peer, name), bytes(0..8));
            let one = mesh.test_endpoint(1).endpoint.address();
            assert_eq!(vector.lookup(peer), Some(one));
            break; // The vectors of the mesh do not contain the new endpoint 1.
        }
    }
}

/// The owner chooses the key byte of a bind of a type 2 window. A bind to an empty range, a bind of a bound window, and
/// a second invalidation of a key are rejected. After an invalidation, the window can be bound again.
///
/// Requirements: MW-035, MW-036, MW-037, MW-043, MW-046.
pub fn type_2_key_byte_is_chosen_by_its_owner<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    for region in regions(&mesh, Access::empty()) {
        let window = mesh.test_endpoint(1).domain.window(WindowType::TwoB).expect("a window");
        assert_eq!(bind(&mesh, &window, &region, how(8..8, WindowAccess::READ, 1)), Err(ErrorCode::Invalid));
        for byte in [0, 1, 0x7F, 0xFF, 0xFF, 3] {
            let name = bind(&mesh, &window, &region, how(8..18, WindowAccess::READ, byte)).expect("a bind");
            assert_eq!(name.key, window.key_with(byte));
            assert_eq!(user_reads(&mesh, name), bytes(8..18));
            let again = bind(&mesh, &window, &region, how(0..8, WindowAccess::READ, byte ^ 1));
            assert_eq!((again, user_reads(&mesh, name)), (Err(ErrorCode::Busy), bytes(8..18)));
            assert_eq!(invalidate(&mesh, name.key ^ 1), Err(ErrorCode::KeyRejected));
            invalidate(&mesh, name.key).expect("the window is bound");
            assert_eq!(user_reads(&mesh, name), REFUSED);
            assert_eq!(invalidate(&mesh, name.key), Err(ErrorCode::KeyRejected));
        }
        for key in [0, 1, 0xFFFF_FFFF] {
            assert_eq!(invalidate(&mesh, key), Err(ErrorCode::KeyRejected));
        }
    }
}

/// A key of type 2 is valid for one peer of one endpoint.
///
/// Requirements: MW-038, MW-040, MW-052.
pub fn type_2_key_is_valid_for_one_endpoint_pair<F: Fabric>() {
    for two in [TypeTwo::A, TypeTwo::B] {
        let mesh = Mesh::<F>::with(3, |domain| domain.windows(two), |_, endpoint| endpoint);
        for region in regions(&mesh, Access::empty()) {
            let window = mesh.test_endpoint(1).domain.window(two.into()).expect("a window");
            let name = bind(&mesh, &window, &region, how(0..8, WindowAccess::READ, 1)).expect("a bind");
            assert_eq!(user_reads(&mesh, name), bytes(0..8));
            // Another endpoint of the domain accesses itself, so neither the endpoint nor the peer is the right one.
            let other = second(&mesh, 1);
            let refused = other.endpoint.read(PeerAddress(1), name, vec![0; 8]).wait();
            assert_eq!(code(refused), ErrorCode::KeyRejected);
            let refused = other.endpoint.invalidate(PeerAddress(1), name.key).wait();
            assert_eq!(code(refused), ErrorCode::Denied);
            if !F::ALONE {
                // Another peer of the endpoint uses the key.
                assert_eq!(reads(&mesh, mesh.endpoint(2), mesh.peer(1), name), REFUSED);
                let send = mesh.endpoint(2).send(mesh.peer(1), vec![1; 8]).invalidating(name.key);
                assert_eq!(code(mesh.finish(send)), ErrorCode::KeyRejected);
                // The owner invalidates the key for another peer.
                let other = mesh.finish(mesh.endpoint(1).invalidate(mesh.peer(2), name.key));
                assert_eq!(code(other), ErrorCode::Denied);
                assert_eq!(window.state(), WindowState::Bound(name.key));
                // The owner uses the key itself.
                assert_eq!(reads(&mesh, mesh.endpoint(1), mesh.peer(1), name), REFUSED);
            }
            assert_eq!(user_reads(&mesh, name), bytes(0..8), "the window is unchanged");
            invalidate(&mesh, name.key).expect("the window is bound");
        }
    }
}

/// A bound window of type 2A prevents its endpoint from being closed. A window of type 2B is unbound when its endpoint
/// is closed.
///
/// Requirements: MW-039, MW-041, MW-042.
pub fn bound_type_2a_window_prevents_endpoint_close<F: Fabric>() {
    for two in [TypeTwo::A, TypeTwo::B] {
        let mesh = Mesh::<F>::with(1, |domain| domain.windows(two), |_, endpoint| endpoint);
        for region in regions(&mesh, Access::empty()) {
            let TestEndpoint { endpoint, domain, .. } = second(&mesh, 0);
            let (me, window) = (PeerAddress(1), domain.window(two.into()).expect("a window"));
            let how = how(0..8, WindowAccess::READ, 1);
            let name = endpoint.bind_window(me, &window, &region, how.clone()).wait().expect("a bind");
            if two == TypeTwo::A {
                let Err(error) = endpoint.close() else { panic!("closed with a bound 2A window") };
                let endpoint = error.into_inner();
                assert_eq!(
                    endpoint.read(me, name, vec![0; 8]).wait().expect("the endpoint still works").into_vec(),
                    bytes(0..8).unwrap()
                );
                endpoint.invalidate(me, name.key).wait().expect("the window is bound");
                endpoint.close().expect("no window is bound through the endpoint");
            } else {
                let address = endpoint.address();
                endpoint.close().expect("a 2B window does not keep the endpoint open");
                assert_eq!(window.state(), WindowState::Unbound);
                // A later endpoint at the same address cannot use its windows.
                let vector = domain.address_vector().build().expect("a vector");
                let next = domain.endpoint().vector(&vector).bind(address.to_string()).expect("the address is free");
                let me = vector.insert(next.address()).expect("an address");
                assert_eq!(code(next.read(me, name, vec![0; 8]).wait()), ErrorCode::KeyRejected);
                let other = mesh.fabric.domain(|domain| domain.windows(two));
                let vector = other.address_vector().build().expect("a vector");
                drop(next);
                let next = other.endpoint().vector(&vector).bind(address.to_string()).expect("the address is free");
                let me = vector.insert(next.address()).expect("an address");
                assert_eq!(code(next.read(me, name, vec![0; 8]).wait()), ErrorCode::KeyRejected);
            }
            // Dropping an endpoint unbinds windows of either type.
            let TestEndpoint { endpoint, .. } = second(&mesh, 0);
            endpoint.bind_window(me, &window, &region, how).wait().expect("a bind");
            drop(endpoint);
            assert_eq!(window.state(), WindowState::Unbound);
            assert!(window.close().is_ok());
            region.close().expect("nothing is bound");
        }
    }
}

/// A message of a peer invalidates a window. The message is eager or offered, expected or unexpected, tagged or
/// untagged. The completion of the receive contains the invalidated key.
///
/// Requirements: MW-045.
pub fn send_with_invalidate_releases_the_window<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (user, owner) = (mesh.endpoint(0), mesh.endpoint(1));
    for region in regions(&mesh, Access::empty()) {
        let window = mesh.test_endpoint(1).domain.window(WindowType::TwoB).expect("a window");
        for (len, early) in
            [(0, true), (8, true), (8, false), (9000, true), (9000, false), (F::BULK, true), (F::BULK, false)]
        {
            for tagged in [false, true] {
                let name = bind(&mesh, &window, &region, how(0..8, WindowAccess::READ, 1)).expect("a bind");
                assert_eq!(user_reads(&mesh, name), bytes(0..8));
                let receive = || {
                    let receive = if tagged { owner.tagged_recv(5, 0, vec![0; len]) } else { owner.recv(vec![0; len]) };
                    receive.start().expect("a receive")
                };
                let posted = early.then(receive);
                let send = if tagged {
                    user.tagged_send(mesh.peer(1), 5, content(2, len))
                } else {
                    user.send(mesh.peer(1), content(2, len))
                };
                let send = send.invalidating(name.key).start().expect("a send");
                if posted.is_none() {
                    mesh.turns(100);
                }
                let got = mesh.finish(posted.unwrap_or_else(receive)).expect("the message");
                assert_eq!((got.invalidated, got.data, got.len), (Some(name.key), None, len));
                same(&got.to_vec(), &content(2, len), "the message");
                assert_eq!(window.state(), WindowState::Unbound);
                mesh.finish(send).expect("the send");
                assert_eq!(user_reads(&mesh, name), REFUSED);
                // A second such message is not delivered.
                let receive = receive();
                let again = user.tagged_send(mesh.peer(1), 5, content(3, len)).invalidating(name.key);
                assert_eq!(code(mesh.finish(again)), ErrorCode::KeyRejected);
                assert!(!receive.is_ready(), "a refused message was delivered");
                assert!(receive.cancel());
                mesh.finish(receive).expect_err("the operation was cancelled");
            }
        }
        // The completion of a message without a key reports that no key was invalidated.
        let receive = owner.recv(vec![0; 8]).start().expect("a receive");
        mesh.finish(user.send(mesh.peer(1), vec![1; 8]).data(7)).expect("a send");
        let got = mesh.finish(receive).expect("a message");
        assert_eq!((got.invalidated, got.data), (None, Some(7)));
    }
}

/// Binds, accesses and invalidations take effect in posting order, even before the connection is established.
///
/// Requirements: MW-026.
pub fn binds_keep_their_place_among_messages<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (user, owner) = (mesh.endpoint(0), mesh.endpoint(1));
    for region in regions(&mesh, Access::empty()) {
        let window = mesh.test_endpoint(1).domain.window(WindowType::TwoB).expect("a window");
        let receive = user.recv(vec![0; RemoteMemory::BYTES]).start().expect("a receive");
        let bind = owner
            .bind_window(mesh.peer(0), &window, &region, how(16..24, WindowAccess::READ, 1))
            .start()
            .expect("room");
        let bound = RemoteMemory { key: window.key_with(1), address: 16, len: 8 };
        let send = owner.send(mesh.peer(0), bound.to_bytes().to_vec()).start().expect("room");
        let name = mesh.finish(receive).expect("the key").to_vec();
        let name = RemoteMemory::from_bytes(&name).expect("a name");
        assert_eq!(user_reads(&mesh, name), bytes(16..24), "a peer that has the key can use it");
        assert_eq!(mesh.finish(bind).expect("the bind"), name);
        mesh.finish(send).expect("the send");
        // Invalidate the window and bind it again, without waiting in between.
        let ended = owner.invalidate(mesh.peer(0), name.key).start().expect("room");
        let next = owner
            .bind_window(mesh.peer(0), &window, &region, how(24..32, WindowAccess::READ, 2))
            .fenced()
            .start()
            .expect("room");
        mesh.finish(ended).expect("no access is in progress");
        let next = mesh.finish(next).expect("the next bind");
        assert_eq!((user_reads(&mesh, name), user_reads(&mesh, next)), (REFUSED, bytes(24..32)));
        invalidate(&mesh, next.key).expect("the window is bound");
    }
}

/// Accesses in progress while the window is invalidated either complete entirely or fail. Afterwards the memory is not
/// written.
///
/// Requirements: MW-050.
pub fn nothing_is_written_after_an_invalidation<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (user, peer) = (mesh.endpoint(0), mesh.peer(1));
    for region in regions(&mesh, Access::empty()) {
        let window = mesh.test_endpoint(1).domain.window(WindowType::TwoB).expect("a window");
        for round in 0..12 {
            let len = [8, 5000, LEN][round as usize % 3] as u64;
            let name = bind(&mesh, &window, &region, how(0..len, WindowAccess::WRITE, round)).expect("a bind");
            let write = |fill| user.write(peer, vec![fill; len as usize], name).start().expect("room");
            if round % 2 == 0 {
                // The user may access the window directly from the next access on.
                mesh.finish(write(1)).expect("the window is bound");
            }
            let writes: Vec<_> = (10..40).map(write).collect();
            mesh.turns(usize::from(round));
            let ended = invalidate(&mesh, name.key);
            ended.expect("no process is stopped during an access");
            let after = bytes_of(&region);
            let results = writes.into_iter().map(|write| mesh.finish(write).map(drop)).collect::<Vec<_>>();
            for result in results.into_iter().filter(Result::is_err) {
                assert_eq!(code(result), ErrorCode::KeyRejected);
            }
            mesh.turns(100);
            same(&bytes_of(&region), &after, "after the invalidation");
        }
    }
}

/// Windows of both types are read and written while only their user makes progress. Over verbs this holds if the device
/// supports windows.
///
/// Requirements: MW-049.
pub fn window_access_needs_no_owner_progress<F: Direct>() {
    let mesh = Mesh::<F>::connected(2);
    let (a, peer) = (mesh.endpoint(0), mesh.peer(1));
    for region in regions(&mesh, Access::empty()) {
        let mut one = mesh.test_endpoint(1).domain.window(WindowType::One).expect("a window");
        let two = mesh.test_endpoint(1).domain.window(WindowType::TwoB).expect("a window");
        let all = WindowAccess::READ | WindowAccess::WRITE;
        let names = [
            one.bind(&region, 100..200, all).expect("a bind"),
            bind(&mesh, &two, &region, how(200..300, all, 9)).expect("a bind"),
        ];
        if F::NAME == "verbs" && !device_has_windows(&mesh, names[0]) {
            return println!(
                "skipped (RDMA windows): the device has no windows: the owner's processor makes these accesses"
            );
        }
        for name in names {
            let expected = bytes(name.address as usize..name.address as usize + 100);
            let alone = || {
                assert_eq!(user_reads(&mesh, name), expected);
                let mut read = a.read(peer, name, vec![0; 100]).start().expect("a read");
                let is_made = during_one(&mesh, Duration::from_millis(100), || read.is_ready());
                mesh.until(|| read.is_ready().then_some(()));
                assert_eq!(Ok(read.wait().expect("a read").into_vec()), expected);
                is_made.then_some(())
            };
            mesh.until(alone);
            let mut write = a.write(peer, vec![7; 100], name).start().expect("a write");
            assert!(
                during_one(&mesh, Duration::from_secs(20), || write.is_ready()),
                "the access needed the owner's progress"
            );
            write.wait().expect("a write");
            assert_eq!(bytes_of(&region)[name.address as usize..][..100], [7; 100]);
        }
        if F::NAME == "verbs" {
            let owner = mesh.endpoint(1).describe_peers();
            let by_device = |how: &str| how.contains("and 2 windows (");
            assert!(owner.iter().any(|(_, how)| by_device(how)), "the device's windows were not used: {owner:?}");
        }
    }
}

/// Returns whether the device supports windows. The owner reports this once its peer has a queue pair for accesses.
fn device_has_windows<F: Fabric>(mesh: &Mesh<F>, name: RemoteMemory) -> bool {
    mesh.until(|| {
        assert!(user_reads(mesh, name).is_ok());
        let owner = mesh.endpoint(1).describe_peers();
        owner
            .iter()
            .find(|(_, how)| how.contains("the peer has direct access to"))
            .map(|(_, how)| how.contains("windows ("))
    })
}

/// Drives only the user until `done` returns true, for at most this time. Returns the last result of `done`.
fn during_one<F: Fabric>(mesh: &Mesh<F>, time: Duration, mut done: impl FnMut() -> bool) -> bool {
    let begun = std::time::Instant::now();
    while !done() && begun.elapsed() < time {
        mesh.turn_one(0);
    }
    done()
}

//! Memory windows through the safe API: the types of windows, binding, the access that a key permits, and when a key
//! becomes invalid.
//!
//! The owner is endpoint 1, and the user is endpoint 0. Every test runs on both kinds of memory. Every access is
//! repeated several times, because local peers access a window directly only from the second access on.

use std::ops::Range;

use percale::endpoint::safe::{Cause, OperationError};
use percale::memory::region::CloseError;
use percale::memory::window::{WindowError, WindowState};
use percale::{
    Access, Bind, Buffer, Endpoint, ErrorCode, PeerAddress, Region, RemoteMemory, TypeTwo, Window, WindowAccess,
    WindowType,
};

use crate::fabric::Fabric;
use crate::memory::{content, same};
use crate::mesh::Mesh;

/// The size of a region in these tests.
pub(super) const LEN: usize = 40_000;

/// Registers regions of both kinds of memory, with these rights for peers.
pub(super) fn regions<F: Fabric>(mesh: &Mesh<F>, access: Access) -> [Region; 2] {
    let domain = &mesh.test_endpoint(1).domain;
    let mut allocation = domain.allocate(LEN).expect("memory");
    allocation.write(0, &content(1, LEN));
    [Buffer::from(content(1, LEN)), Buffer::from(allocation)]
        .map(|memory| domain.register(memory, access).expect("one"))
}

#[track_caller]
pub(super) fn code<R>(result: Result<R, OperationError>) -> ErrorCode {
    match result {
        Ok(_) => panic!("the operation should not have succeeded"),
        Err(error) => match error.cause() {
            Cause::Completion(entry) => entry.error,
            cause => panic!("the operation should have been posted: {cause}"),
        },
    }
}

/// Returns the result of a read by the user, which is repeated several times.
#[track_caller]
pub(super) fn reads<F: Fabric>(
    mesh: &Mesh<F>,
    endpoint: &Endpoint,
    peer: PeerAddress,
    name: RemoteMemory,
) -> Result<Vec<u8>, ErrorCode> {
    let once = || match mesh.finish(endpoint.read(peer, name, vec![0; name.len as usize])) {
        Ok(bytes) => Ok(bytes.into_vec()),
        error => Err(code(error)),
    };
    let first = once();
    (0..3).for_each(|_| assert_eq!(once(), first));
    first
}

#[track_caller]
pub(super) fn user_reads<F: Fabric>(mesh: &Mesh<F>, name: RemoteMemory) -> Result<Vec<u8>, ErrorCode> {
    reads(mesh, mesh.endpoint(0), mesh.peer(1), name)
}

pub(super) const fn how(range: Range<u64>, access: WindowAccess, key: u8) -> Bind {
    Bind { range, access, key }
}

/// Binds a window of type 2 for the user.
#[track_caller]
pub(super) fn bind<F: Fabric>(
    mesh: &Mesh<F>,
    window: &Window,
    region: &Region,
    bind: Bind,
) -> Result<RemoteMemory, ErrorCode> {
    match mesh.finish(mesh.endpoint(1).bind_window(mesh.peer(0), window, region, bind)) {
        Ok(name) => Ok(name),
        error => Err(code(error)),
    }
}

#[track_caller]
pub(super) fn invalidate<F: Fabric>(mesh: &Mesh<F>, key: u64) -> Result<(), ErrorCode> {
    match mesh.finish(mesh.endpoint(1).invalidate(mesh.peer(0), key)) {
        Ok(()) => Ok(()),
        error => Err(code(error)),
    }
}

pub(super) const REFUSED: Result<Vec<u8>, ErrorCode> = Err(ErrorCode::KeyRejected);

pub(super) fn bytes(range: Range<usize>) -> Result<Vec<u8>, ErrorCode> {
    Ok(content(1, LEN)[range].to_vec())
}

pub(super) fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes);
    bytes
}

/// A new window permits no access. The handle reports the state of the window at any time.
///
/// Requirements: MW-001, MW-002, MW-005, MW-006, MW-034.
pub fn window_handle_reports_its_state<F: Fabric>() {
    for two in [TypeTwo::A, TypeTwo::B] {
        let mesh = Mesh::<F>::with(2, |domain| domain.windows(two), |_, endpoint| endpoint);
        let domain = &mesh.test_endpoint(1).domain;
        assert_eq!(domain.type_two(), two);
        let other = WindowType::from(if two == TypeTwo::A { TypeTwo::B } else { TypeTwo::A });
        assert_eq!(domain.window(other).expect_err("the domain uses the other type"), WindowError::NoSuchType(other));
        for region in regions(&mesh, Access::empty()) {
            for kind in [WindowType::One, two.into()] {
                let mut window = domain.window(kind).expect("a window");
                assert_eq!((window.kind(), window.state(), window.is_of(domain)), (kind, WindowState::Unbound, true));
                let unbound = RemoteMemory { key: window.key(), address: 0, len: 8 };
                assert_eq!(user_reads(&mesh, unbound), REFUSED);
                let mut name = RemoteMemory::default();
                for round in 0..3 {
                    name = if kind == WindowType::One {
                        window.bind(&region, 0..8, WindowAccess::READ).expect("a bind")
                    } else {
                        bind(&mesh, &window, &region, how(0..8, WindowAccess::READ, round)).expect("a bind")
                    };
                    assert_eq!(window.state(), WindowState::Bound(name.key));
                    assert_eq!((window.key(), user_reads(&mesh, name)), (name.key, bytes(0..8)));
                    if kind != WindowType::One {
                        invalidate(&mesh, name.key).expect("the window is bound");
                        assert_eq!(window.state(), WindowState::Unbound);
                    }
                }
                assert!(window.close().is_ok());
                assert_eq!(user_reads(&mesh, name), REFUSED);
            }
        }
    }
}

/// Deallocating a window unbinds it. A region with bound windows cannot be closed, and remains usable.
///
/// Requirements: MW-003, MW-004.
pub fn a_region_stays_while_windows_are_bound<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.test_endpoint(1).domain;
    for region in regions(&mesh, Access::REMOTE_READ) {
        let (mut one, two) =
            (domain.window(WindowType::One).expect("one"), domain.window(WindowType::TwoB).expect("two"));
        let first = one.bind(&region, 0..100, WindowAccess::READ).expect("a bind");
        let second = bind(&mesh, &two, &region, how(0..100, WindowAccess::READ, 1)).expect("a bind");
        let Err(CloseError::Windows(region)) = region.close() else { panic!("closed under two windows") };
        for name in [first, second, region.remote().at(0..100)] {
            assert_eq!(user_reads(&mesh, name), bytes(0..100));
        }
        drop(one);
        assert_eq!(user_reads(&mesh, first), REFUSED);
        let Err(CloseError::Windows(region)) = region.close() else {
            panic!("the region was closed although a window was bound to it")
        };
        assert_eq!(user_reads(&mesh, second), bytes(0..100));
        assert!(two.close().is_ok());
        assert_eq!(user_reads(&mesh, second), REFUSED);
        same(&region.close().expect("nothing is bound").into_vec(), &content(1, LEN), "the memory");
    }
}

/// Both the index and the byte of the key must be correct. An access with another key has no effect.
///
/// Requirements: MW-007, MW-008, MW-010, MW-049.
pub fn only_the_current_window_key_is_accepted<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.test_endpoint(1).domain;
    for region in regions(&mesh, Access::empty()) {
        let mut windows = [(); 2].map(|()| domain.window(WindowType::One).expect("a window"));
        let names = [0, 1].map(|at| windows[at].bind(&region, 0..8, WindowAccess::all()).expect("a bind"));
        let live = names.map(|name| name.key);
        assert_ne!(live[0] >> 8, live[1] >> 8);
        for (window, key) in windows.iter().zip(live) {
            assert_eq!((window.key(), window.key_with(0)), (key, key & !0xFF));
        }
        let bytes_of_keys = (0..256).map(|byte| live[0] & !0xFF | byte);
        let indices = (0..24).map(|bit| live[0] ^ 256 << bit);
        let wide = (32..64).map(|bit| live[0] ^ 1 << bit);
        for key in bytes_of_keys.chain(indices).chain(wide).filter(|key| !live.contains(key)) {
            let name = RemoteMemory { key, ..names[0] };
            let (a, peer) = (mesh.endpoint(0), mesh.peer(1));
            assert_eq!(code(mesh.finish(a.read(peer, name, vec![0; 8]))), ErrorCode::KeyRejected, "{key:#x}");
            assert_eq!(code(mesh.finish(a.write(peer, vec![9; 8], name))), ErrorCode::KeyRejected, "{key:#x}");
            assert_eq!(code(mesh.finish(a.fetch_add(peer, name, 1_u64))), ErrorCode::KeyRejected, "{key:#x}");
        }
        same(&bytes_of(&region), &content(1, LEN), "nothing was written");
        names.iter().for_each(|name| assert_eq!(user_reads(&mesh, *name), bytes(0..8)));
    }
}

/// Tests every combination of rights, over regions that give peers no rights, some rights, or all rights.
///
/// Requirements: MW-014, MW-015, MW-017, MW-018.
pub fn window_rights_are_independent_of_region_rights<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (a, peer) = (mesh.endpoint(0), mesh.peer(1));
    let every =
        [Access::empty(), Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_READ | Access::REMOTE_WRITE];
    for region in every.into_iter().flat_map(|access| regions(&mesh, access)) {
        let mut window = mesh.test_endpoint(1).domain.window(WindowType::One).expect("a window");
        for access in (0..8).map(WindowAccess::from_bits_retain) {
            let name = window.bind(&region, 8..24, access).expect("any rights can be given");
            let word = name.at(0..8);
            let wrote = if access.contains(WindowAccess::WRITE) { Ok(()) } else { Err(ErrorCode::Denied) };
            let read = if access.contains(WindowAccess::READ) { Ok(()) } else { Err(ErrorCode::Denied) };
            let changes = access.intersects(WindowAccess::WRITE | WindowAccess::ATOMIC);
            let fetches = access.intersects(WindowAccess::READ | WindowAccess::ATOMIC);
            let fetched = if changes && fetches { Ok(()) } else { Err(ErrorCode::Denied) };
            for _ in 0..3 {
                let before = bytes_of(&region);
                let result = mesh
                    .finish(a.read(peer, name, vec![0xEE; 16]))
                    .map(|got| assert_eq!(got.into_vec(), before[8..24]));
                assert_eq!(result.map_err(|error| code::<()>(Err(error))), read, "{access:?}");
                same(&bytes_of(&region), &before, "a read changes nothing");
                let result = mesh.finish(a.fetch_add(peer, word, 1_u64)).map(drop);
                assert_eq!(result.map_err(|error| code::<()>(Err(error))), fetched, "{access:?}");
                assert_eq!(bytes_of(&region) == before, fetched.is_err(), "{access:?}");
                let before = bytes_of(&region);
                let result =
                    mesh.finish(a.write(peer, before[8..24].iter().map(|byte| !byte).collect::<Vec<u8>>(), name));
                assert_eq!(result.map(drop).map_err(|error| code::<()>(Err(error))), wrote, "{access:?}");
                assert_eq!(bytes_of(&region) == before, wrote.is_err(), "{access:?}");
            }
            // The region's own key is unchanged (MW-014, MW-018).
            let part = region.remote().at(8..24);
            let read = mesh.finish(a.read(peer, part, vec![0; 16]));
            assert_eq!(read.is_ok(), region.access().contains(Access::REMOTE_READ));
            let wrote = mesh.finish(a.write(peer, content(1, 24)[8..].to_vec(), part));
            assert_eq!(wrote.is_ok(), region.access().contains(Access::REMOTE_WRITE));
        }
    }
}

/// A window with write access cannot be bound to a read-only region, and the attempt has no effect.
///
/// Requirements: MW-016.
pub fn read_only_region_rejects_windows_with_write_access<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.test_endpoint(1).domain;
    let region = domain.register(&b"it is written"[..], Access::empty()).expect("a region");
    let (mut one, two) = (domain.window(WindowType::One).expect("one"), domain.window(WindowType::TwoB).expect("two"));
    let name = one.bind(&region, 0..5, WindowAccess::READ).expect("a bind");
    for access in (2..8).map(WindowAccess::from_bits_retain) {
        assert_eq!(one.bind(&region, 6..13, access), Err(WindowError::ReadOnly));
        assert_eq!(bind(&mesh, &two, &region, how(6..13, access, 1)), Err(ErrorCode::Denied));
    }
    assert_eq!((one.state(), two.state()), (WindowState::Bound(name.key), WindowState::Unbound));
    assert_eq!(user_reads(&mesh, name), Ok(b"it is".to_vec()));
    let name = bind(&mesh, &two, &region, how(6..13, WindowAccess::READ, 1)).expect("reading is harmless");
    assert_eq!(user_reads(&mesh, name), Ok(b"written"[..].to_vec()));
    let apart = domain.registration(Access::all()).windows(false).own(vec![0; 8]).expect("a region");
    assert_eq!(one.bind(&apart, 0..8, WindowAccess::READ), Err(WindowError::NotAllowed));
}

/// Accesses within the window succeed and accesses one byte outside fail, for any position of the window and any
/// addresses of the region.
///
/// Requirements: MW-019, MW-020.
pub fn window_access_is_limited_to_its_range<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.test_endpoint(1).domain;
    let (a, peer) = (mesh.endpoint(0), mesh.peer(1));
    for base in [0, 1 << 40, u64::MAX - LEN as u64 + 1] {
        let mut memory = domain.allocate(LEN).expect("memory");
        memory.write(0, &content(1, LEN));
        for memory in [Buffer::from(memory), Buffer::from(content(1, LEN))] {
            let region = domain.registration(Access::empty()).base(base).own(memory).expect("a region");
            let mut window = domain.window(WindowType::One).expect("a window");
            for range in [0..LEN as u64, 0..1, 100..20_100, LEN as u64 - 1..LEN as u64] {
                let name =
                    window.bind(&region, range.clone(), WindowAccess::READ | WindowAccess::WRITE).expect("a bind");
                assert_eq!((name.address, name.len), (base.wrapping_add(range.start), range.end - range.start));
                assert_eq!(user_reads(&mesh, name), bytes(range.start as usize..range.end as usize));
                let (first, last) = (name.address, name.address.wrapping_add(name.len - 1));
                let tries =
                    [(first.wrapping_sub(1), 1), (last.wrapping_add(1), 1), (first.wrapping_sub(1), 2), (last, 2)];
                let long = [(first, name.len + 1), (first, u64::from(u32::MAX)), (first, 1 << 20)];
                for (address, len) in tries.into_iter().chain(long.into_iter().filter(|(_, len)| *len < 1 << 21)) {
                    let outside = RemoteMemory { address, len, ..name };
                    assert_eq!(code(mesh.finish(a.read(peer, outside, vec![0; len as usize]))), ErrorCode::Denied);
                    assert_eq!(code(mesh.finish(a.write(peer, vec![0; len as usize], outside))), ErrorCode::Denied);
                }
            }
            let key = window.key();
            for (start, end) in
                [(0, LEN as u64 + 1), (LEN as u64, LEN as u64 + 1), (5, u64::MAX), (u64::MAX, u64::MAX), (9, 8)]
            {
                assert_eq!(window.bind(&region, start..end, WindowAccess::READ), Err(WindowError::Range));
            }
            assert_eq!(window.state(), WindowState::Bound(key), "the binding is unchanged");
            same(&bytes_of(&region), &content(1, LEN), "nothing was written");
        }
    }
}

/// Windows of both types over one region can overlap and have separate rights. Each bind takes effect immediately.
///
/// Requirements: MW-021, MW-022, MW-023, MW-048.
pub fn windows_of_one_region_do_not_disturb_each_other<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.test_endpoint(1).domain;
    for region in regions(&mesh, Access::REMOTE_READ) {
        let mut ones = [(); 3].map(|()| domain.window(WindowType::One).expect("a window"));
        let twos = [(); 3].map(|()| domain.window(WindowType::TwoB).expect("a window"));
        let range = |at: usize| 1000 * at as u64..1000 * at as u64 + 1500;
        let mut names = Vec::new();
        for (at, window) in ones.iter_mut().enumerate() {
            names.push(window.bind(&region, range(at), WindowAccess::READ).expect("a bind"));
        }
        for (at, window) in twos.iter().enumerate() {
            names.push(bind(&mesh, window, &region, how(range(at), WindowAccess::READ, 7)).expect("a bind"));
        }
        let all_but = |dead: &[usize], names: &[RemoteMemory]| {
            for (at, name) in names.iter().enumerate() {
                let start = name.address as usize;
                let expected = if dead.contains(&at) { REFUSED } else { bytes(start..start + name.len as usize) };
                assert_eq!(user_reads(&mesh, *name), expected, "window {at}");
            }
            assert_eq!(user_reads(&mesh, region.remote().at(0..9)), bytes(0..9), "the region");
        };
        all_but(&[], &names);
        invalidate(&mesh, names[4].key).expect("the window is bound");
        all_but(&[4], &names);
        ones[1].bind(&region, 0..0, WindowAccess::empty()).expect("an empty range unbinds the window");
        all_but(&[1, 4], &names);
        names[1] = ones[1].bind(&region, 7000..7010, WindowAccess::READ).expect("a bind");
        names[4] = bind(&mesh, &twos[1], &region, how(8000..8010, WindowAccess::READ, 7)).expect("a bind");
        all_but(&[], &names);
    }
}

/// Each type has separate bind operations. A key of type 1 cannot be invalidated by an operation of the owner or of the
/// user.
///
/// Requirements: MW-024, MW-025, MW-031, MW-047.
pub fn each_window_type_has_separate_operations<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.test_endpoint(1).domain;
    for region in regions(&mesh, Access::empty()) {
        let (mut one, mut two) =
            (domain.window(WindowType::One).expect("one"), domain.window(WindowType::TwoB).expect("two"));
        assert_eq!(two.bind(&region, 0..8, WindowAccess::READ), Err(WindowError::WrongType));
        assert_eq!(bind(&mesh, &one, &region, how(0..8, WindowAccess::READ, 3)), Err(ErrorCode::Invalid));
        assert_eq!((one.state(), two.state()), (WindowState::Unbound, WindowState::Unbound));
        let name = one.bind(&region, 0..8, WindowAccess::READ).expect("a bind");
        assert_eq!(invalidate(&mesh, name.key), Err(ErrorCode::Invalid));
        let receive = mesh.endpoint(1).recv(vec![0; 8]).start().expect("a receive");
        let send = mesh.endpoint(0).send(mesh.peer(1), vec![1; 8]).invalidating(name.key);
        assert_eq!(code(mesh.finish(send)), ErrorCode::KeyRejected);
        assert!(!receive.is_ready(), "a refused message was delivered");
        assert_eq!(user_reads(&mesh, name), bytes(0..8), "the window is unchanged");
    }
}

/// A bind and a local invalidation need no peer, and are reported if a completion is requested.
///
/// Requirements: MW-026, MW-044.
pub fn binds_and_invalidations_send_nothing<F: Fabric>() {
    use percale::OpFlags;
    let mesh = Mesh::<F>::connected(2);
    let (owner, user) = (mesh.endpoint(1), mesh.peer(0));
    let window = mesh.test_endpoint(1).domain.window(WindowType::TwoB).expect("a window");
    for region in regions(&mesh, Access::empty()) {
        let bind = how(0..8, WindowAccess::READ, 9);
        let only_the_owner = |context| loop {
            if let Some(report) = mesh.take(context) {
                break report;
            }
            mesh.turn_one(1);
        };
        let context = mesh.context();
        let name = owner.post_bind(user, &window, &region, &bind, context, OpFlags::COMPLETION).expect("room");
        let entry = only_the_owner(context).expect("the window is bound");
        assert_eq!((entry.flags, entry.data), (percale::CompletionFlags::BIND, name.key));
        assert_eq!(user_reads(&mesh, name), bytes(0..8));
        // An error is reported even if the operation requests no completion.
        let silent = mesh.context();
        owner.post_bind(user, &window, &region, &bind, silent, OpFlags::empty()).expect("room");
        assert_eq!(only_the_owner(silent).expect_err("the window is bound").error, ErrorCode::Busy);
        let context = mesh.context();
        owner.post_invalidate(user, name.key, context, OpFlags::COMPLETION).expect("room");
        let entry = only_the_owner(context).expect("no access is in progress");
        assert_eq!((entry.flags, entry.data), (percale::CompletionFlags::INVALIDATED, name.key));
        assert_eq!(user_reads(&mesh, name), REFUSED);
        let silent = mesh.context();
        owner.post_bind(user, &window, &region, &bind, silent, OpFlags::empty()).expect("room");
        owner.post_invalidate(user, name.key, silent, OpFlags::empty()).expect("room");
        mesh.nothing(silent);
        assert_eq!(window.state(), WindowState::Unbound);
    }
}

/// Each bind of a window of type 1 creates a new key and invalidates the old one. Binding an empty range unbinds the
/// window.
///
/// Requirements: MW-028, MW-029, MW-030.
pub fn rebind_invalidates_the_old_key<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let mut window = mesh.test_endpoint(1).domain.window(WindowType::One).expect("a window");
    let mut old = Vec::<RemoteMemory>::new();
    for round in 0..4 {
        for region in regions(&mesh, Access::empty()) {
            let name = window.bind(&region, 10..20, WindowAccess::READ).expect("a bind");
            assert!(old.iter().all(|old| old.key != name.key), "a key was reused in round {round}");
            assert_eq!(user_reads(&mesh, name), bytes(10..20));
            let again = window.bind(&region, 30..40, WindowAccess::READ).expect("a bind");
            assert_eq!(user_reads(&mesh, again), bytes(30..40));
            assert_eq!(user_reads(&mesh, name), REFUSED);
            window.bind(&region, 50..50, WindowAccess::READ).expect("an empty range unbinds the window");
            assert_eq!((window.state(), user_reads(&mesh, again)), (WindowState::Unbound, REFUSED));
            region.close().expect("nothing is bound");
            old.extend([name, again]);
        }
    }
    old.into_iter().for_each(|old| assert_eq!(user_reads(&mesh, old), REFUSED));
}

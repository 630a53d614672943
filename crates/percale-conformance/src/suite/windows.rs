//! Memory windows, by the safe face: what each kind is and how it is bound, what its key gives, and how it ends.
//!
//! The owner is station 1, the user station 0. Every test runs on memory of both kinds, and every access is made several times:
//! local peers reach a window by themselves only from the second one on.

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
use crate::mesh::{Mesh, Station};

/// Bytes of a region here.
const LEN: usize = 40_000;

/// Regions of both kinds of memory, which give peers these rights.
pub(super) fn regions<F: Fabric>(mesh: &Mesh<F>, access: Access) -> [Region; 2] {
    let domain = &mesh.station(1).domain;
    let mut allocation = domain.allocate(LEN).expect("memory");
    allocation.write(0, &content(1, LEN));
    [Buffer::from(content(1, LEN)), Buffer::from(allocation)]
        .map(|memory| domain.register(memory, access).expect("one"))
}

#[track_caller]
fn code<R>(result: Result<R, OperationError>) -> ErrorCode {
    match result {
        Ok(_) => panic!("the operation should not have succeeded"),
        Err(OperationError { cause: Cause::Completion(error), .. }) => error.error,
        Err(error) => panic!("the operation should have been posted: {error}"),
    }
}

/// How a read by the user ends, each of several times.
#[track_caller]
fn reads<F: Fabric>(
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
fn user_reads<F: Fabric>(mesh: &Mesh<F>, name: RemoteMemory) -> Result<Vec<u8>, ErrorCode> {
    reads(mesh, mesh.endpoint(0), mesh.peer(1), name)
}

const fn how(range: Range<u64>, access: WindowAccess, key: u8) -> Bind {
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
    match mesh.finish(mesh.endpoint(1).invalidate(mesh.peer(0), key as u32)) {
        Ok(()) => Ok(()),
        error => Err(code(error)),
    }
}

const REFUSED: Result<Vec<u8>, ErrorCode> = Err(ErrorCode::KeyRejected);

fn bytes(range: Range<usize>) -> Result<Vec<u8>, ErrorCode> {
    Ok(content(1, LEN)[range].to_vec())
}

fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes);
    bytes
}

/// A new window reaches nothing; the handle says what the window is, at every point of its life.
pub fn mw_001_mw_002_mw_005_mw_006_mw_034_a_window_says_what_it_is<F: Fabric>() {
    for two in [TypeTwo::A, TypeTwo::B] {
        let mesh = Mesh::<F>::with(2, |domain| domain.windows(two), |_, endpoint| endpoint);
        let domain = &mesh.station(1).domain;
        assert_eq!(domain.type_two(), two);
        let other = WindowType::from(if two == TypeTwo::A { TypeTwo::B } else { TypeTwo::A });
        assert_eq!(domain.window(other).expect_err("the domain has the other"), WindowError::NoSuchType(other));
        for region in regions(&mesh, Access::empty()) {
            for kind in [WindowType::One, two.into()] {
                let mut window = domain.window(kind).expect("a window");
                assert_eq!((window.kind(), window.state(), window.is_of(domain)), (kind, WindowState::Unbound, true));
                let unbound = RemoteMemory { key: window.key().into(), address: 0, len: 8 };
                assert_eq!(user_reads(&mesh, unbound), REFUSED);
                let mut name = RemoteMemory::default();
                for round in 0..3 {
                    name = if kind == WindowType::One {
                        window.bind(&region, 0..8, WindowAccess::READ).expect("a bind")
                    } else {
                        bind(&mesh, &window, &region, how(0..8, WindowAccess::READ, round)).expect("a bind")
                    };
                    assert_eq!(window.state(), WindowState::Bound(name.key as u32));
                    assert_eq!((u64::from(window.key()), user_reads(&mesh, name)), (name.key, bytes(0..8)));
                    if kind != WindowType::One {
                        invalidate(&mesh, name.key).expect("it is bound");
                        assert_eq!(window.state(), WindowState::Unbound);
                    }
                }
                assert!(window.close().is_ok());
                assert_eq!(user_reads(&mesh, name), REFUSED);
            }
        }
    }
}

/// Deallocating unbinds; a region with bound windows stays, and is as usable as before.
pub fn mw_003_mw_004_a_region_stays_while_windows_are_bound<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.station(1).domain;
    for region in regions(&mesh, Access::REMOTE_READ) {
        let (mut one, two) =
            (domain.window(WindowType::One).expect("one"), domain.window(WindowType::TwoB).expect("two"));
        let first = one.bind(&region, 0..100, WindowAccess::READ).expect("a bind");
        let second = bind(&mesh, &two, &region, how(0..100, WindowAccess::READ, 1)).expect("a bind");
        let Err(CloseError::Windows(region)) = region.close() else { panic!("closed under two windows") };
        for name in [first, second, region.remote().slice(0..100)] {
            assert_eq!(user_reads(&mesh, name), bytes(0..100));
        }
        drop(one);
        assert_eq!(user_reads(&mesh, first), REFUSED);
        let Err(CloseError::Windows(region)) = region.close() else { panic!("closed under a window") };
        assert_eq!(user_reads(&mesh, second), bytes(0..100));
        assert!(two.close().is_ok());
        assert_eq!(user_reads(&mesh, second), REFUSED);
        same(&region.close().expect("nothing is bound").into_vec(), &content(1, LEN), "the memory");
    }
}

/// Index and byte must both be right; nothing is done with another key.
pub fn mw_007_mw_008_mw_010_mw_049_only_the_right_key_is_accepted<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.station(1).domain;
    for region in regions(&mesh, Access::empty()) {
        let mut windows = [(); 2].map(|()| domain.window(WindowType::One).expect("a window"));
        let names = [0, 1].map(|at| windows[at].bind(&region, 0..8, WindowAccess::all()).expect("a bind"));
        let live = names.map(|name| name.key);
        assert_ne!(live[0] >> 8, live[1] >> 8);
        for (window, key) in windows.iter().zip(live) {
            assert_eq!((u64::from(window.key()), u64::from(window.key_with(0))), (key, key & !0xFF));
        }
        let bytes_of_keys = (0..256).map(|byte| live[0] & !0xFF | byte);
        let indices = (0..24).map(|bit| live[0] ^ 256 << bit);
        let wide = (32..64).map(|bit| live[0] | 1 << bit);
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

/// Every combination of rights, over regions that give peers nothing, something, everything.
pub fn mw_014_mw_015_mw_017_mw_018_a_windows_rights_are_its_own<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (a, peer) = (mesh.endpoint(0), mesh.peer(1));
    let every =
        [Access::empty(), Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_READ | Access::REMOTE_WRITE];
    for region in every.into_iter().flat_map(|access| regions(&mesh, access)) {
        let mut window = mesh.station(1).domain.window(WindowType::One).expect("a window");
        for access in (0..8).map(WindowAccess::from_bits_retain) {
            let name = window.bind(&region, 8..24, access).expect("any rights can be given");
            let word = name.slice(0..8);
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
            // The region's own key is as it was (MW-014, MW-018).
            let part = region.remote().slice(8..24);
            let read = mesh.finish(a.read(peer, part, vec![0; 16]));
            assert_eq!(read.is_ok(), region.access().contains(Access::REMOTE_READ));
            let wrote = mesh.finish(a.write(peer, content(1, 24)[8..].to_vec(), part));
            assert_eq!(wrote.is_ok(), region.access().contains(Access::REMOTE_WRITE));
        }
    }
}

/// Memory that must not change is not given to be changed; nothing comes of the attempt.
pub fn mw_016_a_read_only_region_has_no_windows_that_change_it<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.station(1).domain;
    let region = domain.register(&b"it is written"[..], Access::empty()).expect("a region");
    let (mut one, two) = (domain.window(WindowType::One).expect("one"), domain.window(WindowType::TwoB).expect("two"));
    let name = one.bind(&region, 0..5, WindowAccess::READ).expect("a bind");
    for access in (2..8).map(WindowAccess::from_bits_retain) {
        assert_eq!(one.bind(&region, 6..13, access), Err(WindowError::ReadOnly));
        assert_eq!(bind(&mesh, &two, &region, how(6..13, access, 1)), Err(ErrorCode::Denied));
    }
    assert_eq!((one.state(), two.state()), (WindowState::Bound(name.key as u32), WindowState::Unbound));
    assert_eq!(user_reads(&mesh, name), Ok(b"it is".to_vec()));
    let name = bind(&mesh, &two, &region, how(6..13, WindowAccess::READ, 1)).expect("reading is harmless");
    assert_eq!(user_reads(&mesh, name), Ok(b"written"[..].to_vec()));
    let apart = domain.registration(Access::all()).windows(false).own(vec![0; 8]).expect("a region");
    assert_eq!(one.bind(&apart, 0..8, WindowAccess::READ), Err(WindowError::NotAllowed));
}

/// Inside works, one byte outside does not, wherever the window lies and whatever the region's addresses are.
pub fn mw_019_mw_020_a_window_is_exactly_its_range<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.station(1).domain;
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
            assert_eq!(window.state(), WindowState::Bound(key), "as it was");
            same(&bytes_of(&region), &content(1, LEN), "nothing was written");
        }
    }
}

/// Windows of both types over one region, overlapping, each with rights of its own; each bind holds at once.
pub fn mw_021_mw_022_mw_023_mw_048_windows_of_one_region_do_not_disturb_each_other<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.station(1).domain;
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
            assert_eq!(user_reads(&mesh, region.remote().slice(0..9)), bytes(0..9), "the region");
        };
        all_but(&[], &names);
        invalidate(&mesh, names[4].key).expect("it is bound");
        all_but(&[4], &names);
        ones[1].bind(&region, 0..0, WindowAccess::empty()).expect("it is unbound");
        all_but(&[1, 4], &names);
        names[1] = ones[1].bind(&region, 7000..7010, WindowAccess::READ).expect("a bind");
        names[4] = bind(&mesh, &twos[1], &region, how(8000..8010, WindowAccess::READ, 7)).expect("a bind");
        all_but(&[], &names);
    }
}

/// Each type is bound in its own way; type 1 is never invalidated.
pub fn mw_024_mw_025_mw_031_mw_047_each_type_has_its_own_operations<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.station(1).domain;
    for region in regions(&mesh, Access::empty()) {
        let (mut one, mut two) =
            (domain.window(WindowType::One).expect("one"), domain.window(WindowType::TwoB).expect("two"));
        assert_eq!(two.bind(&region, 0..8, WindowAccess::READ), Err(WindowError::WrongType));
        assert_eq!(bind(&mesh, &one, &region, how(0..8, WindowAccess::READ, 3)), Err(ErrorCode::Invalid));
        assert_eq!((one.state(), two.state()), (WindowState::Unbound, WindowState::Unbound));
        let name = one.bind(&region, 0..8, WindowAccess::READ).expect("a bind");
        assert_eq!(invalidate(&mesh, name.key), Err(ErrorCode::Invalid));
        let receive = mesh.endpoint(1).recv(vec![0; 8]).start().expect("a receive");
        let send = mesh.endpoint(0).send(mesh.peer(1), vec![1; 8]).invalidating(name.key as u32);
        assert_eq!(code(mesh.finish(send)), ErrorCode::KeyRejected);
        assert!(!receive.is_ready(), "a refused message was delivered");
        assert_eq!(user_reads(&mesh, name), bytes(0..8), "it is as it was");
    }
}

/// A bind and a local invalidation need nobody else, and are told where that was asked for.
pub fn mw_026_mw_044_binds_and_invalidations_send_nothing<F: Fabric>() {
    use percale::OpFlags;
    let mesh = Mesh::<F>::connected(2);
    let (owner, user) = (mesh.endpoint(1), mesh.peer(0));
    let window = mesh.station(1).domain.window(WindowType::TwoB).expect("a window");
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
        let entry = only_the_owner(context).expect("it is bound");
        assert_eq!((entry.flags, entry.data), (percale::CompletionFlags::BIND, name.key));
        assert_eq!(user_reads(&mesh, name), bytes(0..8));
        // Errors come as completions, also of what would not have been told.
        let silent = mesh.context();
        owner.post_bind(user, &window, &region, &bind, silent, OpFlags::empty()).expect("room");
        assert_eq!(only_the_owner(silent).expect_err("it is bound").error, ErrorCode::Busy);
        let context = mesh.context();
        owner.post_invalidate(user, name.key as u32, context, OpFlags::COMPLETION).expect("room");
        let entry = only_the_owner(context).expect("nobody is at it");
        assert_eq!((entry.flags, entry.data), (percale::CompletionFlags::INVALIDATED, name.key));
        assert_eq!(user_reads(&mesh, name), REFUSED);
        let silent = mesh.context();
        owner.post_bind(user, &window, &region, &bind, silent, OpFlags::empty()).expect("room");
        owner.post_invalidate(user, name.key as u32, silent, OpFlags::empty()).expect("room");
        mesh.nothing(silent);
        assert_eq!(window.state(), WindowState::Unbound);
    }
}

/// Type 1: a new key with each bind, the old one dead; no bytes unbind it.
pub fn mw_028_mw_029_mw_030_a_rebind_kills_the_old_key<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let mut window = mesh.station(1).domain.window(WindowType::One).expect("a window");
    let mut old = Vec::<RemoteMemory>::new();
    for round in 0..4 {
        for region in regions(&mesh, Access::empty()) {
            let name = window.bind(&region, 10..20, WindowAccess::READ).expect("a bind");
            assert!(old.iter().all(|old| old.key != name.key), "a key came again in round {round}");
            assert_eq!(user_reads(&mesh, name), bytes(10..20));
            let again = window.bind(&region, 30..40, WindowAccess::READ).expect("a bind");
            assert_eq!(user_reads(&mesh, again), bytes(30..40));
            assert_eq!(user_reads(&mesh, name), REFUSED);
            window.bind(&region, 50..50, WindowAccess::READ).expect("no bytes unbind");
            assert_eq!((window.state(), user_reads(&mesh, again)), (WindowState::Unbound, REFUSED));
            region.close().expect("nothing is bound");
            old.extend([name, again]);
        }
    }
    old.into_iter().for_each(|old| assert_eq!(user_reads(&mesh, old), REFUSED));
}

/// Another endpoint of a station's domain that knows station 0, and is driven by whoever calls.
fn second<F: Fabric>(mesh: &Mesh<F>, number: usize) -> Station {
    let domain = mesh.station(number).domain.clone();
    let vector = domain.address_vector().build().expect("a vector");
    let endpoint = domain.endpoint().vector(&vector).bind(mesh.fabric.address()).expect("an endpoint");
    vector.insert(mesh.endpoint(0).address()).expect("an address");
    vector.insert(endpoint.address()).expect("an address");
    Station { endpoint, vector, domain }
}

/// Type 1: through every endpoint of the domain, and through none of another; endpoints come and go.
pub fn mw_032_mw_033_a_type_1_key_is_its_domains<F: Fabric>() {
    let mut mesh = Mesh::<F>::new(3);
    for region in regions(&mesh, Access::empty()) {
        let mut window = mesh.station(1).domain.window(WindowType::One).expect("a window");
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
            let vector = &mesh.station(0).vector;
            let peer = vector.insert(mesh.endpoint(1).address()).expect("an address");
            assert_eq!(reads(&mesh, mesh.endpoint(0), peer, name), bytes(0..8));
            let one = mesh.station(1).endpoint.address();
            assert_eq!(vector.lookup(peer), Some(one));
            break; // The mesh knows the first station 1 no more.
        }
    }
}

/// Type 2: bound with a byte, never of no bytes, not twice; invalidated once, and bound again.
pub fn mw_035_mw_036_mw_037_mw_043_mw_046_a_type_2_key_is_its_owners_choice<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    for region in regions(&mesh, Access::empty()) {
        let window = mesh.station(1).domain.window(WindowType::TwoB).expect("a window");
        assert_eq!(bind(&mesh, &window, &region, how(8..8, WindowAccess::READ, 1)), Err(ErrorCode::Invalid));
        for byte in [0, 1, 0x7F, 0xFF, 0xFF, 3] {
            let name = bind(&mesh, &window, &region, how(8..18, WindowAccess::READ, byte)).expect("a bind");
            assert_eq!(name.key, u64::from(window.key_with(byte)));
            assert_eq!(user_reads(&mesh, name), bytes(8..18));
            let again = bind(&mesh, &window, &region, how(0..8, WindowAccess::READ, byte ^ 1));
            assert_eq!((again, user_reads(&mesh, name)), (Err(ErrorCode::Busy), bytes(8..18)));
            assert_eq!(invalidate(&mesh, name.key ^ 1), Err(ErrorCode::KeyRejected));
            invalidate(&mesh, name.key).expect("it is bound");
            assert_eq!(user_reads(&mesh, name), REFUSED);
            assert_eq!(invalidate(&mesh, name.key), Err(ErrorCode::KeyRejected));
        }
        for key in [0, 1, 0xFFFF_FFFF] {
            assert_eq!(invalidate(&mesh, key), Err(ErrorCode::KeyRejected));
        }
    }
}

/// Type 2: for one peer of one endpoint.
pub fn mw_038_mw_040_a_type_2_key_is_its_pairs<F: Fabric>() {
    for two in [TypeTwo::A, TypeTwo::B] {
        let mesh = Mesh::<F>::with(3, |domain| domain.windows(two), |_, endpoint| endpoint);
        for region in regions(&mesh, Access::empty()) {
            let window = mesh.station(1).domain.window(two.into()).expect("a window");
            let name = bind(&mesh, &window, &region, how(0..8, WindowAccess::READ, 1)).expect("a bind");
            assert_eq!(user_reads(&mesh, name), bytes(0..8));
            // Another endpoint of the domain, itself as a peer: neither end is right.
            let other = second(&mesh, 1);
            let refused = other.endpoint.read(PeerAddress(1), name, vec![0; 8]).wait();
            assert_eq!(code(refused), ErrorCode::KeyRejected);
            let refused = other.endpoint.invalidate(PeerAddress(1), name.key as u32).wait();
            assert_eq!(code(refused), ErrorCode::Denied);
            if !F::ALONE {
                // Another peer of the endpoint.
                assert_eq!(reads(&mesh, mesh.endpoint(2), mesh.peer(1), name), REFUSED);
                let send = mesh.endpoint(2).send(mesh.peer(1), vec![1; 8]).invalidating(name.key as u32);
                assert_eq!(code(mesh.finish(send)), ErrorCode::KeyRejected);
                // The owner itself.
                assert_eq!(reads(&mesh, mesh.endpoint(1), mesh.peer(1), name), REFUSED);
            }
            assert_eq!(user_reads(&mesh, name), bytes(0..8), "it is as it was");
            invalidate(&mesh, name.key).expect("it is bound");
        }
    }
}

/// Type 2A holds its endpoint, type 2B ends with it.
pub fn mw_039_mw_041_mw_042_how_endpoints_with_bound_windows_end<F: Fabric>() {
    for two in [TypeTwo::A, TypeTwo::B] {
        let mesh = Mesh::<F>::with(1, |domain| domain.windows(two), |_, endpoint| endpoint);
        for region in regions(&mesh, Access::empty()) {
            let Station { endpoint, domain, .. } = second(&mesh, 0);
            let (me, window) = (PeerAddress(1), domain.window(two.into()).expect("a window"));
            let how = how(0..8, WindowAccess::READ, 1);
            let name = endpoint.bind_window(me, &window, &region, how.clone()).wait().expect("a bind");
            if two == TypeTwo::A {
                let Err(endpoint) = endpoint.close() else { panic!("closed with a bound 2A window") };
                assert_eq!(
                    endpoint.read(me, name, vec![0; 8]).wait().expect("it works on").into_vec(),
                    bytes(0..8).unwrap()
                );
                endpoint.invalidate(me, name.key as u32).wait().expect("it is bound");
                endpoint.close().expect("nothing is bound through it");
            } else {
                let address = endpoint.address();
                endpoint.close().expect("a 2B window does not hold it");
                assert_eq!(window.state(), WindowState::Unbound);
                // Who has its address after it cannot use its windows.
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
            // A dropped endpoint unbinds either.
            let Station { endpoint, .. } = second(&mesh, 0);
            endpoint.bind_window(me, &window, &region, how).wait().expect("a bind");
            drop(endpoint);
            assert_eq!(window.state(), WindowState::Unbound);
            assert!(window.close().is_ok());
            region.close().expect("nothing is bound");
        }
    }
}

/// A peer's message invalidates: eager and offered, expected and not, tagged and not; the receiver is told which key died.
pub fn mw_045_a_peer_gives_its_key_back_with_a_message<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (user, owner) = (mesh.endpoint(0), mesh.endpoint(1));
    for region in regions(&mesh, Access::empty()) {
        let window = mesh.station(1).domain.window(WindowType::TwoB).expect("a window");
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
                let send = send.invalidating(name.key as u32).start().expect("a send");
                if posted.is_none() {
                    mesh.turns(100);
                }
                let got = mesh.finish(posted.unwrap_or_else(receive)).expect("the message");
                assert_eq!((got.invalidated, got.data, got.len), (Some(name.key as u32), None, len));
                same(&got.to_vec(), &content(2, len), "the message");
                assert_eq!(window.state(), WindowState::Unbound);
                mesh.finish(send).expect("the send");
                assert_eq!(user_reads(&mesh, name), REFUSED);
                // Once only: a second such message is not delivered.
                let receive = receive();
                let again = user.tagged_send(mesh.peer(1), 5, content(3, len)).invalidating(name.key as u32);
                assert_eq!(code(mesh.finish(again)), ErrorCode::KeyRejected);
                assert!(!receive.is_ready(), "a refused message was delivered");
                assert!(receive.cancel());
                mesh.finish(receive).expect_err("it was cancelled");
            }
        }
        // What comes without a key says so.
        let receive = owner.recv(vec![0; 8]).start().expect("a receive");
        mesh.finish(user.send(mesh.peer(1), vec![1; 8]).data(7)).expect("a send");
        let got = mesh.finish(receive).expect("a message");
        assert_eq!((got.invalidated, got.data), (None, Some(7)));
    }
}

/// Bind, key and invalidation in the order in which they were posted, also before there is a connection.
pub fn mw_026_binds_keep_their_place_among_messages<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (user, owner) = (mesh.endpoint(0), mesh.endpoint(1));
    for region in regions(&mesh, Access::empty()) {
        let window = mesh.station(1).domain.window(WindowType::TwoB).expect("a window");
        let receive = user.recv(vec![0; RemoteMemory::BYTES]).start().expect("a receive");
        let bind = owner
            .bind_window(mesh.peer(0), &window, &region, how(16..24, WindowAccess::READ, 1))
            .start()
            .expect("room");
        let bound = RemoteMemory { key: window.key_with(1).into(), address: 16, len: 8 };
        let send = owner.send(mesh.peer(0), bound.to_bytes().to_vec()).start().expect("room");
        let name = mesh.finish(receive).expect("the key").to_vec();
        let name = RemoteMemory::from_bytes(&name).expect("a name");
        assert_eq!(user_reads(&mesh, name), bytes(16..24), "whoever has the key can use it");
        assert_eq!(mesh.finish(bind).expect("the bind"), name);
        mesh.finish(send).expect("the send");
        // Invalidate and bind again, posted in a row.
        let ended = owner.invalidate(mesh.peer(0), name.key as u32).start().expect("room");
        let next = owner
            .bind_window(mesh.peer(0), &window, &region, how(24..32, WindowAccess::READ, 2))
            .fenced()
            .start()
            .expect("room");
        mesh.finish(ended).expect("nobody is at it");
        let next = mesh.finish(next).expect("the next bind");
        assert_eq!((user_reads(&mesh, name), user_reads(&mesh, next)), (REFUSED, bytes(24..32)));
        invalidate(&mesh, next.key).expect("it is bound");
    }
}

/// Accesses under way while the window is invalidated complete wholly or fail; afterwards nothing is written.
pub fn mw_050_nothing_is_written_after_an_invalidation<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (user, peer) = (mesh.endpoint(0), mesh.peer(1));
    for region in regions(&mesh, Access::empty()) {
        let window = mesh.station(1).domain.window(WindowType::TwoB).expect("a window");
        for round in 0..12 {
            let len = [8, 5000, LEN][round as usize % 3] as u64;
            let name = bind(&mesh, &window, &region, how(0..len, WindowAccess::WRITE, round)).expect("a bind");
            let write = |fill| user.write(peer, vec![fill; len as usize], name).start().expect("room");
            if round % 2 == 0 {
                mesh.finish(write(1)).expect("it is bound"); // From the next on the user may reach it by itself.
            }
            let writes: Vec<_> = (10..40).map(write).collect();
            mesh.turns(usize::from(round));
            let ended = invalidate(&mesh, name.key);
            ended.expect("nobody is stopped");
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

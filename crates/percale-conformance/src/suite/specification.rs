//! Requirements of the manual pages that applications rely on: empty regions, several counters, counters that are bound
//! late, thresholds.

#![expect(unsafe_code, reason = "registers raw memory, which is never freed")]

use std::sync::Arc;

use percale::memory::region::{CloseError, RegisterError};
use percale::{
    Access, AtomicOp, AtomicWork, Buffer, Counted, Counter, Datatype, Domain, ErrorCode, OpFlags, PeerAddress,
    PostError, RemoteMemory, Segment, Segments, WindowAccess, WindowType,
};

use super::windows::code;
use crate::fabric::{Fabric, Transport};
use crate::memory::{Memory, content, same};
use crate::mesh::{Mesh, Receive, Send, TestEndpoint};

const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
const LEN: usize = 20_000;

/// A region of 0 bytes has a key and gives peers no access, not even to adjacent memory.
///
/// Requirements: MR-006, MR-077.
pub fn an_empty_region_has_a_key_and_grants_nothing<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.test_endpoint(1).domain;
    for base in [0, 0x7000_0000_0000] {
        let empty = domain.allocate(0).map(Buffer::from).unwrap_or_else(|_| Buffer::from(Vec::new()));
        for memory in [Buffer::from(Vec::new()), Buffer::from(Arc::<[u8]>::from([])), empty] {
            let access = Access::REMOTE_READ;
            let region = domain.registration(access).base(base).key(91).own(memory).expect("a region of no bytes");
            assert!(region.is_empty() && region.key() == 91);
            assert_eq!(region.remote(), RemoteMemory { key: 91, address: base, len: 0 });
            let taken = domain.registration(access).key(91).own(vec![0; 8]).expect_err("the key is taken");
            assert!(matches!(taken, RegisterError::KeyTaken(91)), "{taken}");
            for _ in 0..3 {
                for (offset, len) in [(0, 1), (1, 1), (0, 3000), (0, LEN as u64), (1, 0)] {
                    let name = RemoteMemory { key: 91, address: base + offset, len };
                    let read = mesh.finish(mesh.endpoint(0).read(mesh.peer(1), name, vec![0; len as usize]));
                    assert_eq!(code(read), ErrorCode::Denied, "{name:?}");
                }
                mesh.finish(mesh.endpoint(0).read(mesh.peer(1), region.remote(), Vec::new())).expect("nothing is read");
            }
            let mut window = domain.window(WindowType::One).expect("a window");
            assert!(window.bind(&region, 0..1, WindowAccess::READ).is_err(), "a window of a region without bytes");
            region.close().expect("no access is in progress");
            let name = RemoteMemory { key: 91, address: base, len: 8 };
            let late = mesh.finish(mesh.endpoint(0).read(mesh.peer(1), name, vec![0; 8]));
            assert_eq!(code(late), ErrorCode::KeyRejected);
        }
    }
}

/// Segments that wrap around, an empty segment in a list of segments, and unknown rights are rejected.
///
/// Requirements: MR-078, MR-079, MR-080.
pub fn malformed_segments_are_not_registered<F: Fabric>() {
    let mesh = Mesh::<F>::new(1);
    let domain = &mesh.test_endpoint(0).domain;
    let memory = Memory::blank(64).segments().as_slice()[0];
    let register = |access, pieces: &[Segment]| {
        // SAFETY: `Memory` is never freed, and pieces of other memory are not registered.
        unsafe { domain.registration(access).raw(pieces, false) }.map(drop)
    };
    for empty in 0..3 {
        let pieces = [0, 1, 2].map(|at| if at == empty { memory.slice(at, 0) } else { memory.slice(16 * at, 16) });
        let error = register(ALL, &pieces).expect_err("a piece without bytes");
        assert!(matches!(error, RegisterError::Empty(at) if at == empty), "{error}");
        assert_eq!(error.errno(), libc::EINVAL);
    }
    register(ALL, &[memory.slice(0, 0)]).expect("the only piece may be empty");
    // SAFETY: the segment is not registered, so it is never accessed.
    let wraps = unsafe { Segment::new(memory.as_ptr(), usize::MAX - 100) };
    for pieces in [&[wraps][..], &[memory, wraps]] {
        match register(ALL, pieces) {
            Err(error @ (RegisterError::Wraps { .. } | RegisterError::Pieces(_))) => {
                assert_eq!(error.errno(), libc::EINVAL, "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    for bit in (0..64).map(|bit| 1 << bit).filter(|bit| Access::all().bits() & bit == 0) {
        let access = ALL | Access::from_bits_retain(bit);
        let error = register(access, &[memory]).expect_err("an undefined access right");
        assert!(matches!(error, RegisterError::Access(which) if which == bit) && error.errno() == 260, "{error}");
        domain.register(vec![0; 8], access).expect_err("an undefined access right");
    }
}

/// The key of a closed region is used for other memory with other rights. The rights of the closed region no longer
/// apply.
///
/// Requirements: MR-082.
pub fn reused_key_refers_to_the_current_region<F: Transport>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.test_endpoint(1).domain;
    let write = |remote: RemoteMemory, byte| {
        mesh.finish(mesh.endpoint(0).write(mesh.peer(1), vec![byte; remote.len as usize], remote))
    };
    let read = |remote: RemoteMemory| {
        let read = mesh.finish(mesh.endpoint(0).read(mesh.peer(1), remote, vec![0; remote.len as usize]));
        read.map(Buffer::into_vec)
    };
    for round in 1..5 {
        let long = domain.registration(ALL).key(495).own(vec![0; LEN]).expect("a region");
        write(long.remote(), round).expect("a write");
        let closed = long.close().expect("no access is in progress");
        let short = domain.registration(Access::REMOTE_READ).key(495).own(vec![200; 64]).expect("a region");
        assert_eq!(read(short.remote()).expect("a read"), [200; 64], "the memory of the closed region");
        assert_eq!(code(write(short.remote().at(0..8), 100)), ErrorCode::Denied, "the rights of the closed region");
        let beyond = RemoteMemory { len: 65, ..short.remote() };
        assert_eq!(code(read(beyond)), ErrorCode::Denied, "the length of the closed region");
        let add = mesh.finish(mesh.endpoint(0).fetch_add(mesh.peer(1), short.remote().at(0..8), 1_u64));
        assert_eq!(code(add), ErrorCode::Denied);
        assert!(
            short.close().expect("no access is in progress").into_vec() == [200; 64],
            "the memory of the short region was written"
        );
        assert!(closed.into_vec() == vec![round; LEN], "the memory was written after its region was closed");
    }
}

/// An atomic operation must have the same number of elements on both sides.
///
/// Requirements: ATM-007.
pub fn atomic_operation_requires_equal_element_counts<F: Transport>() {
    let mesh = Mesh::<F>::new(2);
    let region = mesh.test_endpoint(1).domain.register(vec![0; 64], ALL).expect("a region");
    let memory = Memory::of(&[1; 64]).segments().as_slice()[0];
    for (here, there) in [(8, 16), (16, 8), (8, 0), (64, 56), (0, 8)] {
        for (compared, fetched) in [(false, false), (false, true), (true, true)] {
            let operand = Segments::one(memory.slice(0, here));
            let work = AtomicWork {
                peer: mesh.peer(1),
                op: if compared { AtomicOp::Cswap } else { AtomicOp::Sum },
                datatype: Datatype::U64,
                operand,
                compare: compared.then_some(operand),
                result: fetched.then_some(operand),
                remote: region.remote().at(0..there as u64),
                data: None,
                context: 1,
                flags: OpFlags::COMPLETION,
            };
            // SAFETY: `Memory` is never freed.
            let error = unsafe { mesh.endpoint(0).post_atomic(&work) }.expect_err("the element counts differ");
            assert_eq!(error.errno(), libc::EINVAL, "{here} bytes here, {there} there: {error}");
        }
    }
    mesh.nothing(1);
    let mut there = [1; 64];
    region.read(0, &mut there);
    assert_eq!(there, [0; 64]);
}

/// Drives all endpoints until the counter has this value, and then checks that the value does not change.
#[track_caller]
fn counts<F: Fabric>(mesh: &Mesh<F>, counter: &Counter, value: u64) {
    mesh.until(|| (counter.value() >= value).then_some(()));
    mesh.turns(30);
    assert_eq!(counter.value(), value);
}

/// Writes on every access path. Returns the number of writes.
fn write_all<F: Fabric>(mesh: &Mesh<F>, remote: RemoteMemory) -> u64 {
    let lens = [8, 3000, remote.len as usize];
    for len in lens {
        let part = remote.at(0..len as u64);
        mesh.finish(mesh.endpoint(0).write(mesh.peer(1), content(1, len), part)).expect("a write");
        mesh.finish(mesh.endpoint(0).read(mesh.peer(1), part, vec![0; len])).expect("a read");
    }
    mesh.finish(mesh.endpoint(0).fetch_add(mesh.peer(1), remote.at(0..8), 1_u64)).expect("an addition");
    lens.len() as u64 + 1
}

/// Each counter of a region counts each write once, even if it was bound after peers had accessed the region. Windows
/// inherit the counters.
///
/// Requirements: BIND-021, BIND-022.
pub fn a_region_has_several_counters<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.test_endpoint(1).domain;
    for before in 0..3 {
        for memory in [Buffer::from(vec![0; LEN]), Buffer::from(domain.allocate(LEN).expect("memory"))] {
            let counters: [Counter; 4] = std::array::from_fn(|_| Counter::new());
            let registration = domain.registration(ALL).counter(&counters[0]).counter(&counters[1]);
            let mut region = registration.counter(&counters[0]).own(memory).expect("a region");
            let mut written = 0;
            for _ in 0..before {
                written += write_all(&mesh, region.remote());
            }
            for counter in &counters[..2] {
                counts(&mesh, counter, written);
            }
            region.count(&counters[2]).expect("a third");
            region.count(&counters[2]).expect("the counter may be attached twice");
            let first = written;
            for _ in 0..2 {
                written += write_all(&mesh, region.remote());
            }
            for (counter, value) in counters.iter().zip([written, written, written - first]) {
                counts(&mesh, counter, value);
            }
            // First bind a counter that counts nothing else. Peers access the region directly until then.
            let mut window = domain.window(WindowType::One).expect("a window");
            let name = window.bind(&region, 0..LEN as u64, WindowAccess::WRITE).expect("a bind");
            assert!(matches!(region.count(&counters[3]), Err(CloseError::Windows(()))), "counted through no window");
            mesh.finish(mesh.endpoint(0).write(mesh.peer(1), vec![5; 64], name.at(0..64))).expect("a write");
            for (counter, value) in counters.iter().zip([written + 1, written + 1, written + 1 - first, 0]) {
                counts(&mesh, counter, value);
            }
            assert!(window.close().is_ok());
            region.close().expect("no access is in progress");
        }
    }
}

/// Tests the first counter of a region that peers access directly.
///
/// Requirements: BIND-022.
pub fn counter_can_be_bound_after_peers_accessed_the_region<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.test_endpoint(1).domain;
    for before in 0..4 {
        for memory in [Buffer::from(vec![0; LEN]), Buffer::from(domain.allocate(LEN).expect("memory"))] {
            let counter = Counter::new();
            let mut region = domain.register(memory, ALL).expect("a region");
            (0..before).for_each(|_| _ = write_all(&mesh, region.remote()));
            region.count(&counter).expect("a counter");
            assert_eq!(counter.value(), 0);
            let mut written = 0;
            for _ in 0..3 {
                written += write_all(&mesh, region.remote());
            }
            counts(&mesh, &counter, written);
            let mut there = vec![0; LEN];
            region.read(8, &mut there[8..]);
            same(&there[8..], &content(1, LEN)[8..], "the written data");
            region.close().expect("no access is in progress");
        }
    }
}

/// Opens another endpoint of a domain, with itself in its vector.
fn another<F: Fabric>(mesh: &Mesh<F>, domain: &Domain) -> TestEndpoint {
    let vector = domain.address_vector().build().expect("a vector");
    let endpoint = domain.endpoint().region_counters(false).vector(&vector).bind(mesh.fabric.address());
    let endpoint = endpoint.expect("an endpoint");
    vector.insert(endpoint.address()).expect("an address");
    TestEndpoint { endpoint, vector, domain: domain.clone() }
}

/// The counters of a region do not count accesses through an endpoint with `region_counters(false)`. They count
/// accesses through another endpoint of the domain.
///
/// Requirements: BIND-023.
pub fn accesses_through_uncounted_endpoint_are_not_counted<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.test_endpoint(1).domain;
    let plain = another(&mesh, domain);
    let (writer, peer) = match F::ALONE {
        true => (&plain.endpoint, PeerAddress(0)),
        false => (mesh.endpoint(0), mesh.test_endpoint(0).vector.insert(plain.endpoint.address()).expect("an address")),
    };
    for memory in [Buffer::from(vec![0; LEN]), Buffer::from(domain.allocate(LEN).expect("memory"))] {
        let counter = Counter::new();
        let region = domain.registration(ALL).counter(&counter).own(memory).expect("a region");
        let mut written = 0;
        for len in [8, 3000, LEN, 8, 3000, LEN] {
            let write = writer.write(peer, content(2, len), region.remote().at(0..len as u64));
            let mut write = write.start().expect("room");
            mesh.until(|| {
                plain.endpoint.progress();
                write.is_ready().then_some(())
            });
            write.wait().expect("a write");
            (0..30).for_each(|_| _ = plain.endpoint.progress());
            counts(&mesh, &counter, written);
            written += write_all(&mesh, region.remote());
            counts(&mesh, &counter, written);
        }
    }
}

/// Counters bound to an open endpoint count the operations that end afterwards. Each kind of operation has one counter.
///
/// Requirements: CMP-021.
pub fn counters_are_bound_to_an_open_endpoint<F: Transport>() {
    for connected in [false, true] {
        let mesh = Mesh::<F>::new(2);
        if connected {
            mesh.connect();
        }
        let counters: [Counter; 6] = std::array::from_fn(|_| Counter::new());
        let (begins, is_reached) = (mesh.endpoint(0), mesh.endpoint(1));
        for (at, kind) in [Counted::SENDS, Counted::READS, Counted::WRITES].into_iter().enumerate() {
            begins.count(kind, &counters[at]).expect("a counter");
            let taken = begins.count(kind | Counted::all(), &counters[at]).expect_err("a counter is already attached");
            assert!(matches!(taken, PostError::HasCounter(_)) && taken.errno() == libc::EINVAL, "{taken}");
        }
        for (at, kind) in [Counted::RECEIVES, Counted::REMOTE_READS, Counted::REMOTE_WRITES].into_iter().enumerate() {
            is_reached.count(kind, &counters[3 + at]).expect("a counter");
        }
        mesh.turns(30);
        let memory = Memory::content(1, 3000);
        for tag in 0..5 {
            mesh.receive(1, Receive::into(Memory::blank(3000)).tag(tag, 0));
            mesh.done(mesh.send(0, 1, Send::of(memory).tag(tag)));
        }
        let region = mesh.test_endpoint(1).domain.register(vec![0; LEN], ALL).expect("a region");
        for _ in 0..4 {
            mesh.done(mesh.write(0, 1, memory.segments(), &[region.remote().at(0..3000)]));
            mesh.done(mesh.read(0, 1, memory.segments(), &[region.remote().at(0..3000)]));
        }
        mesh.done(mesh.write(0, 1, memory.segments(), &[region.remote().at(0..3000)]));
        for (counter, value) in counters.iter().zip([5, 4, 5, 5, 4, 5]) {
            counts(&mesh, counter, value);
        }
        assert!(counters.iter().all(|counter| counter.read_error() == 0));
    }
}

/// The largest threshold works like any other, for operations that wait for successes and for those that also wait for
/// failures.
///
/// Requirements: DWQ-024, TRIG-020.
pub fn the_largest_threshold_is_reached<F: Transport>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.test_endpoint(0).domain;
    for threshold in [u64::MAX - 1, u64::MAX] {
        let [trigger, count] = [(); 2].map(|()| Counter::new());
        domain.defer_add(&count, 1, (&trigger, threshold)).expect("queued");
        trigger.set(threshold - 1);
        assert_eq!(count.value(), 0, "started below its threshold");
        trigger.add(1);
        assert_eq!(count.value(), 1, "not started at {threshold:#x}");
        domain.defer_add(&count, 1, (&trigger, threshold)).expect("queued");
        assert_eq!(count.value(), 2, "the threshold is already reached");
        trigger.set(threshold - 1);
        domain.defer_add(&count, 1, (&trigger, threshold)).expect("queued");
        assert_eq!(count.value(), 2);
        trigger.add_error(9);
        assert_eq!(count.value(), 3, "failures count");
        assert!(!trigger.has_work());
        // A triggered send waits only for successes.
        let trigger = Counter::new();
        let received = mesh.receive(1, Receive::into(Memory::blank(8)).tag(threshold, 0));
        let send = mesh.endpoint(0).tagged_send(mesh.peer(1), threshold, vec![1; 8]).when(&trigger, threshold);
        let send = send.start().expect("room");
        trigger.set(threshold - 1);
        mesh.turns(30);
        assert!(!send.is_ready());
        trigger.add(1);
        mesh.done(received);
        mesh.finish(send).expect("the operation started");
    }
}

/// The same vector name in domains with different names refers to different vectors.
///
/// Requirements: AV-060.
pub fn vector_names_are_scoped_by_domain_name<F: Transport>() {
    let mesh = Mesh::<F>::new(1);
    let domain = &mesh.test_endpoint(0).domain;
    let name = format!("percale-test-{}-{}", std::process::id(), crate::random::seed());
    let vector = |of: &str| domain.address_vector().name(&name).domain(of);
    let first = vector("one").build().expect("a vector");
    first.insert("127.0.0.1:7000").expect("an address");
    assert!(vector("other").read_only().build().is_err(), "another domain's vector was found");
    let other = vector("other").build().expect("a vector");
    assert_eq!(other.insert("127.0.0.1:7001").expect("an address"), PeerAddress(0));
    let same = vector("one").read_only().build().expect("the vector exists");
    assert_eq!(same.lookup(PeerAddress(0)).map(|address| address.port()), Some(7000));
}

//! One-sided operations: regions with their rights and keys, reads, writes and atomic operations.
//!
//! Every test runs on memory of both kinds: memory that percale allocated (which local peers may map) and other memory.

use percale::endpoint::safe::{Cause, OperationError};
use percale::{
    Access, AtomicOp, Buffer, CompletionFlags, Counter, ErrorCode, PeerAddress, PostError, Region, RemoteMemory,
};

use crate::fabric::Fabric;
use crate::memory::{Memory, content, same};
use crate::mesh::{Mesh, Receive, Send};
use crate::random::Random;

const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Returns memory of both kinds.
fn memories<F: Fabric>(mesh: &Mesh<F>, bytes: &[u8]) -> [Buffer; 2] {
    let mut allocation = mesh.test_endpoint(1).domain.allocate(bytes.len()).expect("memory");
    allocation.write(0, bytes);
    [Buffer::from(bytes.to_vec()), Buffer::from(allocation)]
}

fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes);
    bytes
}

/// Splits memory into two pieces.
fn cut(memory: Memory, at: usize) -> percale::Segments {
    let all = memory.segments();
    let pieces = [all.slice(0, at), all.slice(at, usize::MAX)].map(|part| part.as_slice()[0]);
    percale::Segments::new(&pieces).expect("two pieces")
}

#[track_caller]
fn code<R>(result: Result<R, OperationError>) -> ErrorCode {
    match result {
        Ok(_) => panic!("the operation should not have succeeded"),
        Err(error) => match error.cause() {
            Cause::Completion(entry) => entry.error,
            cause => panic!("the operation should have been posted: {cause}"),
        },
    }
}

/// Writes and reads of every size transfer the correct data.
///
/// Requirements: RMA-001, RMA-008, MR-030, MR-033, MR-051, MR-053.
pub fn reads_and_writes_of_every_size<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (a, peer) = (mesh.endpoint(0), mesh.peer(1));
    let room = F::BULK + 100;
    for memory in memories(&mesh, &content(1, room)) {
        let region = mesh.test_endpoint(1).domain.register(memory, ALL).expect("a region");
        let mut expected = content(1, room);
        let short = [0, 1, 7, 8, 48, 64, 512, 2048, 2049, 9000, 16 << 10, (16 << 10) + 1];
        let long = [100_000, 512 << 10, (512 << 10) + 1, F::BULK].map(|len| len.min(F::BULK));
        for (number, len) in (2..).zip(short.into_iter().chain(long)) {
            let (start, bytes) = (number as usize, content(number, len));
            let part = region.remote().at(number..number + len as u64);
            let back = mesh.finish(a.write(peer, bytes.clone(), part)).expect("the write");
            same(&back.into_vec(), &bytes, "the source is returned");
            expected[start..start + len].copy_from_slice(&bytes);
            same(&bytes_of(&region), &expected, "the region");
            let got = mesh.finish(a.read(peer, part, vec![0; len])).expect("the read");
            same(&got.into_vec(), &bytes, "the data read");
        }
        same(&region.close().expect("no access is in progress").into_vec(), &expected, "the memory");
    }
}

/// An access that is larger than the amount that a target executes at a time is split into parts. Later parts start
/// after earlier parts have ended.
///
/// Requirements: RMA-001.
pub fn access_larger_than_target_limit_is_split_and_completes<F: Fabric>() {
    const LEN: usize = 110 << 20;
    let mesh = Mesh::<F>::new(2);
    let region = mesh.test_endpoint(1).domain.register(vec![0; LEN], ALL).expect("a region");
    let bytes = content(1, LEN);
    let source = mesh.finish(mesh.endpoint(0).write(mesh.peer(1), bytes, region.remote())).expect("the write");
    let got = mesh.finish(mesh.endpoint(0).read(mesh.peer(1), region.remote(), vec![0; LEN])).expect("the read");
    assert!(got.into_vec() == source.into_vec(), "a read returns the written data");
}

/// Accesses that are not permitted are rejected and change nothing.
///
/// Requirements: MR-001, MR-002, MR-009, MR-014, MR-031, MR-050, MR-052, ATM-006.
pub fn disallowed_accesses_are_rejected<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (a, peer) = (mesh.endpoint(0), mesh.peer(1));
    let before = content(1, 30_000);
    for access in [Access::empty(), Access::REMOTE_READ, Access::REMOTE_WRITE] {
        for memory in memories(&mesh, &before) {
            let region = mesh.test_endpoint(1).domain.register(memory, access).expect("a region");
            let all = region.remote();
            for len in [8, 20_000] {
                let part = all.at(0..len);
                let source = vec![0x55; len as usize];
                let wrong = RemoteMemory { key: part.key ^ 1, ..part };
                assert_eq!(code(mesh.finish(a.write(peer, source.clone(), wrong))), ErrorCode::KeyRejected);
                assert_eq!(code(mesh.finish(a.read(peer, wrong, source.clone()))), ErrorCode::KeyRejected);
                for address in [all.len - 1, all.len, u64::MAX, u64::MAX - len + 1, 1 << 63] {
                    let beyond = RemoteMemory { address, ..part };
                    assert_eq!(code(mesh.finish(a.write(peer, source.clone(), beyond))), ErrorCode::Denied);
                    assert_eq!(code(mesh.finish(a.read(peer, beyond, source.clone()))), ErrorCode::Denied);
                }
                if !access.contains(Access::REMOTE_WRITE) {
                    assert_eq!(code(mesh.finish(a.write(peer, source.clone(), part))), ErrorCode::Denied);
                }
                if !access.contains(Access::REMOTE_READ) {
                    let error = mesh.finish(a.read(peer, part, source.clone())).expect_err("the operation is rejected");
                    same(
                        &error.into_buffer().expect("the buffer is returned").into_vec(),
                        &source,
                        "nothing is disclosed",
                    );
                }
            }
            let word = all.at(0..8);
            if access != ALL {
                assert_eq!(code(mesh.finish(a.fetch_add(peer, word, 1_u64))), ErrorCode::Denied);
            }
            same(&bytes_of(&region), &before, "nothing was written");
        }
    }
}

/// The right to read permits atomic reads, the right to write permits atomic operations without a result, and
/// operations that fetch and change need both. The right to atomic operations permits all of them.
///
/// Requirements: MR-002, ATM-006.
pub fn atomic_operations_need_the_rights_for_their_effects<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (a, peer) = (mesh.endpoint(0), mesh.peer(1));
    let (read, write, atomic) = (Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC);
    for access in [Access::empty(), read, write, atomic, read | write, read | atomic, write | atomic] {
        let (fetches, changes) = (access.intersects(read | atomic), access.intersects(write | atomic));
        for memory in memories(&mesh, &5_u64.to_ne_bytes()) {
            let region = mesh.test_endpoint(1).domain.register(memory, access).expect("a region");
            let word = region.remote();
            let mut expected = 5_u64;
            let mut check = |what: &str, allowed: bool, result: Result<u64, OperationError>, after: u64| {
                match result {
                    Ok(fetched) => assert!(allowed && fetched == expected, "{what} with {access:?}: {fetched}"),
                    Err(error) => {
                        assert!(!allowed, "{what} with {access:?}: {error}");
                        assert_eq!(code(Err::<u64, _>(error)), ErrorCode::Denied, "{what} with {access:?}");
                    }
                }
                expected = if allowed { after } else { expected };
                assert_eq!(bytes_of(&region), expected.to_ne_bytes(), "{what} with {access:?}");
            };
            let both = fetches && changes;
            check("a read", fetches, mesh.finish(a.fetch_atomic(peer, AtomicOp::Read, word, 0_u64)), 5);
            check("an add", both, mesh.finish(a.fetch_add(peer, word, 1_u64)), 6);
            check("a swap", both, mesh.finish(a.compare_swap(peer, word, 6_u64, 7)), 7);
            check("a write", both, mesh.finish(a.fetch_atomic(peer, AtomicOp::Write, word, 8_u64)), 8);
        }
    }
}

/// Random keys, ranges that wrap around or exceed the region, missing rights, and keys of another domain.
///
/// Requirements: REV-008.
pub fn random_accesses_are_rejected<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (a, peer) = (mesh.endpoint(0), mesh.peer(1));
    let before = content(1, 3000);
    let domain = &mesh.test_endpoint(1).domain;
    let regions = [Access::empty(), Access::REMOTE_READ, Access::REMOTE_WRITE, ALL]
        .map(|access| (domain.register(before.clone(), access).expect("a region"), access));
    let other = mesh.fabric.domain(|domain| domain);
    let foreign = other.register(before.clone(), ALL).expect("a region of another domain");
    let mut random = Random::new(crate::random::seed());
    for _ in 0..if crate::long() { 100_000 } else { 1000 } {
        let (region, access) = &regions[random.below(regions.len())];
        let part = region.remote().at(0..8);
        let (mut tried, mut writes) = (part, random.below(2) == 0);
        match random.below(4) {
            // Each bit of the key is drawn, or one bit is changed.
            0 => tried.key = if random.below(2) == 0 { random.next() } else { part.key ^ (1 << random.below(64)) },
            1 => {
                let past = [2993, 3000, u64::MAX, u64::MAX - 7, 1 << 63, random.next() | (1 << 32)];
                tried.address = past[random.below(past.len())];
            }
            2 => tried.key = foreign.key(),
            _ if *access == ALL => continue,
            _ => writes = !access.contains(Access::REMOTE_WRITE),
        }
        if tried.key != part.key && regions.iter().any(|(region, _)| region.key() == tried.key) {
            continue;
        }
        let ended = if writes {
            mesh.finish(a.write(peer, vec![0x55; 8], tried)).map(drop).map_err(|error| error.to_string())
        } else {
            mesh.finish(a.read(peer, tried, vec![0x55; 8])).map(drop).map_err(|error| error.to_string())
        };
        assert!(ended.is_err(), "write {writes} of {tried:?} with {access:?} was executed");
    }
    for (region, _) in &regions {
        same(&bytes_of(region), &before, "nothing was written");
    }
    same(&bytes_of(&foreign), &before, "nothing was written");
}

/// A key is valid in one domain.
///
/// Requirements: MR-003.
pub fn region_key_is_valid_in_one_domain_only<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let other = mesh.fabric.domain(|domain| domain);
    let region = other.registration(ALL).key(77).own(vec![1; 100]).expect("a region");
    let wrong = mesh.finish(mesh.endpoint(0).read(mesh.peer(1), region.remote(), vec![0; 100]));
    assert_eq!(code(wrong), ErrorCode::KeyRejected);
}

/// The application can choose keys. A closed region is not accessible, and other regions remain accessible.
///
/// Requirements: MR-032, MR-066, MR-067, MR-068, MR-071.
pub fn application_keys_can_be_reused_after_close<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (a, peer) = (mesh.endpoint(0), mesh.peer(1));
    let domain = &mesh.test_endpoint(1).domain;
    for memory in memories(&mesh, &content(3, 5000)) {
        let other = domain.register(content(4, 100), ALL).expect("another region");
        let region = domain.registration(ALL).key(0xABCD).own(memory).expect("a region");
        assert_eq!(region.key(), 0xABCD);
        let taken = domain.registration(ALL).key(0xABCD).own(vec![0; 8]).expect_err("the key is taken");
        assert_eq!(taken.errno(), 126, "ENOKEY");
        let remote = RemoteMemory { key: 0xABCD, address: 0, len: 5000 };
        let got = mesh.finish(a.read(peer, remote, vec![0; 5000])).expect("a read");
        same(&got.into_vec(), &content(3, 5000), "the region");
        let memory = region.close().expect("no access is in progress").into_vec();
        for len in [8, 5000] {
            let part = remote.at(0..len);
            assert_eq!(code(mesh.finish(a.write(peer, vec![9; len as usize], part))), ErrorCode::KeyRejected);
            assert_eq!(code(mesh.finish(a.read(peer, part, vec![9; len as usize]))), ErrorCode::KeyRejected);
        }
        same(&memory, &content(3, 5000), "memory of a closed region");
        let got = mesh.finish(a.read(peer, other.remote(), vec![0; 100])).expect("another region is still accessible");
        same(&got.into_vec(), &content(4, 100), "the other region");
        // The key can be used again, and refers to the new region.
        let again = domain.registration(ALL).key(0xABCD).own(content(5, 5000)).expect("the key is free");
        let got = mesh.finish(a.read(peer, remote, vec![0; 5000])).expect("a read of the new region");
        same(&got.into_vec(), &content(5, 5000), "the new region");
        drop(again);
        assert_eq!(code(mesh.finish(a.read(peer, remote.at(0..8), vec![9; 8]))), ErrorCode::KeyRejected);
    }
}

/// The addresses of a region with a given base start at this base.
///
/// Requirements: MR-039, MR-040.
pub fn region_addresses_start_at_the_given_base<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (a, peer) = (mesh.endpoint(0), mesh.peer(1));
    for memory in memories(&mesh, &content(1, 100)) {
        let base = 0xFFFF_FFFF_FFFF_FF00;
        let region = mesh.test_endpoint(1).domain.registration(ALL).base(base).own(memory).expect("a region");
        assert_eq!(region.remote().address, base);
        mesh.finish(a.write(peer, vec![7; 10], region.remote().at(90..100))).expect("the last ten bytes");
        assert_eq!(&bytes_of(&region)[89..], [&content(1, 100)[89..90], &[7; 10][..]].concat());
        for address in [0, base - 1, base + 91] {
            let part = RemoteMemory { address, len: 10, ..region.remote() };
            assert_eq!(code(mesh.finish(a.write(peer, vec![7; 10], part))), ErrorCode::Denied);
        }
    }
}

/// Atomic operations have the documented result on every path.
///
/// Requirements: ATM-002, ATM-003, ATM-004.
pub fn atomic_operations_return_documented_results<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (a, peer) = (mesh.endpoint(0), mesh.peer(1));
    for memory in memories(&mesh, &[0; 64]) {
        let counter = Counter::new();
        let registration = mesh.test_endpoint(1).domain.registration(ALL).counter(&counter);
        let region = registration.own(memory).expect("a region");
        let word = |at: u64, len| region.remote().at(at..at + len);
        assert_eq!(mesh.finish(a.fetch_add(peer, word(0, 8), 5_u64)).expect("an add"), 0);
        assert_eq!(mesh.finish(a.fetch_add(peer, word(0, 8), u64::MAX)).expect("an add that wraps"), 5);
        assert_eq!(mesh.finish(a.compare_swap(peer, word(0, 8), 4_u64, 100)).expect("a swap"), 4);
        assert_eq!(mesh.finish(a.compare_swap(peer, word(0, 8), 4_u64, 200)).expect("no swap"), 100);
        assert_eq!(mesh.finish(a.fetch_atomic(peer, AtomicOp::Read, word(0, 8), 0_u64)).expect("a read"), 100);
        assert_eq!(mesh.finish(a.fetch_atomic(peer, AtomicOp::Sum, word(8, 8), 1.5_f64)).expect("a float"), 0.0);
        assert_eq!(mesh.finish(a.fetch_atomic(peer, AtomicOp::Max, word(8, 8), -1.0_f64)).expect("a maximum"), 1.5);
        assert_eq!(mesh.finish(a.fetch_atomic(peer, AtomicOp::Bor, word(16, 1), 0x81_u8)).expect("bits"), 0);
        assert_eq!(mesh.finish(a.fetch_atomic(peer, AtomicOp::Min, word(20, 4), -7_i32)).expect("a minimum"), 0);
        assert_eq!(
            mesh.finish(a.compare_atomic(peer, AtomicOp::Mswap, word(24, 2), 0x00F0_u16, 0xFFFF)).expect("m"),
            0
        );
        let bytes = bytes_of(&region);
        assert_eq!(bytes[..8], 100_u64.to_ne_bytes());
        assert_eq!(bytes[8..16], 1.5_f64.to_ne_bytes());
        assert_eq!(
            (bytes[16], &bytes[20..24], &bytes[24..26]),
            (0x81, &(-7_i32).to_ne_bytes()[..], &0xF0_u16.to_ne_bytes()[..])
        );
        let odd = code(mesh.finish(a.fetch_add(peer, word(1, 8), 1_u64)));
        assert_eq!(odd, ErrorCode::Misaligned);
        let refused = a
            .fetch_atomic(peer, AtomicOp::Band, word(8, 8), 1.0_f64)
            .start()
            .expect_err("bitwise operations on floats are invalid");
        assert!(matches!(refused.cause(), Cause::Post(PostError::NoSuchAtomic(..))), "{refused}");
        // The counter counts all ten operations except the read.
        mesh.until(|| (counter.read() >= 9).then_some(()));
        mesh.turns(20);
        assert_eq!(counter.read(), 9);
    }
}

/// The calls for one piece or one word have the same results as the general calls, also when they are repeated and when
/// they are rejected.
///
/// Requirements: RMA-001, ATM-002.
pub fn short_form_calls_behave_like_general_calls<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let operands = Memory::of(&[[5_u64.to_ne_bytes(), 7_u64.to_ne_bytes()], [[0; 8]; 2]].concat().concat());
    let [operand, compare, result] = [0, 8, 16].map(|at| operands.part(at, 8));
    let found = || u64::from_ne_bytes(result.read().try_into().expect("8 bytes"));
    let read_only = mesh.test_endpoint(1).domain.register(vec![0; 64], Access::REMOTE_READ).expect("a region");
    for memory in memories(&mesh, &[0; 64]) {
        let region = mesh.test_endpoint(1).domain.register(memory, ALL).expect("a region");
        let word = |at: u64, len: u64| region.remote().at(at..at + len);
        let mut expected = 0_u64;
        for round in 0..20_u64 {
            mesh.done(mesh.fetch_add(0, 1, operand, result, word(8, 8)));
            assert_eq!(found(), expected, "round {round}");
            expected += 5;
            // Every second operation compares with an equal value.
            compare.write(&(expected + round % 2).to_ne_bytes());
            let entry = mesh.done(mesh.compare_swap(0, 1, [compare, operand], result, word(8, 8)));
            assert_eq!((entry.len, entry.flags), (8, CompletionFlags::ATOMIC | CompletionFlags::READ));
            assert_eq!(found(), expected, "round {round}");
            expected = if round % 2 == 0 { 5 } else { expected };
            // Reads and writes of other lengths, without change of the contents.
            let len = 1 + round as usize % 16;
            let (out, back) = (Memory::content(round, len), Memory::blank(len));
            for _ in 0..2 {
                mesh.done(mesh.write(0, 1, out.segments(), &[word(32, len as u64)]));
                let entry = mesh.done(mesh.read(0, 1, back.segments(), &[word(32, len as u64)]));
                assert_eq!((entry.len, entry.flags), (len as u64, CompletionFlags::RMA | CompletionFlags::READ));
                same(&back.read(), &content(round, len), "the written data");
            }
        }
        // Rejected operations are posted twice, once with each call.
        for _ in 0..2 {
            assert_eq!(mesh.failed(mesh.fetch_add(0, 1, operand, result, word(9, 8))).error, ErrorCode::Misaligned);
            let outside = RemoteMemory { address: region.remote().address + 60, ..word(0, 8) };
            for (wrong, writes_only) in [(outside, false), (read_only.remote().at(0..8), true)] {
                assert_eq!(mesh.failed(mesh.fetch_add(0, 1, operand, result, wrong)).error, ErrorCode::Denied);
                assert_eq!(mesh.failed(mesh.write(0, 1, operand.segments(), &[wrong])).error, ErrorCode::Denied);
                let read = mesh.read(0, 1, result.segments(), &[wrong]);
                if writes_only {
                    mesh.done(read);
                } else {
                    assert_eq!(mesh.failed(read).error, ErrorCode::Denied);
                }
            }
        }
        assert_eq!(bytes_of(&region)[8..16], expected.to_ne_bytes());
        let gone = word(8, 8);
        mesh.done(mesh.fetch_add(0, 1, operand, result, gone));
        region.close().expect("no access is in progress");
        for _ in 0..2 {
            assert_eq!(mesh.failed(mesh.fetch_add(0, 1, operand, result, gone)).error, ErrorCode::KeyRejected);
            assert_eq!(mesh.failed(mesh.read(0, 1, result.segments(), &[gone])).error, ErrorCode::KeyRejected);
            assert_eq!(mesh.failed(mesh.write(0, 1, operand.segments(), &[gone])).error, ErrorCode::KeyRejected);
        }
    }
}

/// If requested, writes are reported to the target after the data has arrived: by its counter, and by an entry with 8
/// bytes of data in its queue.
///
/// Requirements: RMA-003, RMA-010.
pub fn writes_are_counted_and_reported_to_the_target<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (a, peer) = (mesh.endpoint(0), mesh.peer(1));
    for memory in memories(&mesh, &vec![0; F::BULK]) {
        let counter = Counter::new();
        let region = mesh.test_endpoint(1).domain.registration(ALL).counter(&counter).own(memory).expect("a region");
        let mut count = 0;
        for (number, len) in (1..).zip([8, 3000, 20_000, F::BULK]) {
            let part = region.remote().at(0..len as u64);
            mesh.finish(a.write(peer, content(number, len), part)).expect("a write");
            mesh.until(|| (counter.read() > count).then_some(()));
            let write =
                a.write(peer, content(number, len), part).data(number).start().expect("a write with remote data");
            count += 2;
            // When the write has been counted, its completion is in the queue.
            mesh.until(|| (counter.read() >= count).then_some(()));
            let reported = mesh.take(0).expect("the target's completion of the write").expect("no error");
            mesh.finish(write).expect("a write with remote data");
            let flags = CompletionFlags::RMA | CompletionFlags::REMOTE_WRITE | CompletionFlags::REMOTE_DATA;
            assert_eq!(
                (reported.flags, reported.data, reported.len, reported.source),
                (flags, number, len as u64, mesh.peer(0))
            );
            mesh.until(|| (counter.read() >= count).then_some(()));
            same(&bytes_of(&region)[..len], &content(number, len), "the written data");
            mesh.finish(a.read(peer, part, vec![0; len])).expect("a read");
        }
        mesh.turns(20);
        assert_eq!(counter.read(), count);
        let refused = a.write(peer, vec![0; 8], RemoteMemory { address: u64::MAX, ..region.remote().at(0..8) });
        assert_eq!(code(mesh.finish(refused.data(9))), ErrorCode::Denied);
        mesh.nothing(0);
        assert_eq!(counter.read(), count, "a refused write is not counted");
    }
}

/// A message that follows writes arrives after their data (FI_ORDER_SAW), and a read returns the data of earlier writes
/// (FI_ORDER_RAW).
///
/// Requirements: RMA-005, RMA-006.
pub fn messages_and_reads_do_not_overtake_writes<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (a, b, peer) = (mesh.endpoint(0), mesh.endpoint(1), mesh.peer(1));
    for memory in memories(&mesh, &vec![0; F::BULK]) {
        let region = mesh.test_endpoint(1).domain.register(memory, ALL).expect("a region");
        for (number, len) in (1..).zip([8, 3000, 20_000, F::BULK]) {
            let part = region.remote().at(0..len as u64);
            let receive = b.recv(vec![0; 8]).start().expect("a receive");
            let write = a.write(peer, content(number, len), part).start().expect("a write");
            let send = a.send(peer, vec![1; 8]).start().expect("a send");
            let read = a.read(peer, part.at(0..8), vec![0; 8]).start().expect("a read");
            mesh.finish(receive).expect("the message");
            same(&bytes_of(&region)[..len], &content(number, len), "the data written before the message");
            mesh.finish(write).expect("the write");
            mesh.finish(send).expect("the send");
            let got = mesh.finish(read).expect("the read").into_vec();
            same(&got, &content(number, len)[..8], "the data written before the read");
        }
    }
}

/// A fenced access starts after earlier operations have ended. An access to an unknown peer is rejected.
///
/// Requirements: RMA-007, RMA-009.
pub fn fenced_access_waits_and_unknown_peer_is_rejected<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (a, peer) = (mesh.endpoint(0), mesh.peer(1));
    for memory in memories(&mesh, &vec![0; F::BULK]) {
        let region = mesh.test_endpoint(1).domain.register(memory, ALL).expect("a region");
        let part = region.remote().at(0..F::BULK as u64);
        let write = a.write(peer, content(1, F::BULK), part).start().expect("a write");
        let read = a.read(peer, part, vec![0; F::BULK]).fenced().start().expect("a read");
        same(
            &mesh.finish(read).expect("the read").into_vec(),
            &content(1, F::BULK),
            "the data written before the read",
        );
        mesh.finish(write).expect("the write");
        let nobody = a.read(PeerAddress(99), part, vec![0; F::BULK]).start().expect_err("no endpoint has this address");
        assert!(matches!(nobody.cause(), Cause::Post(PostError::UnknownPeer(99))));
        let lengths = a.write(peer, vec![0; 9], part.at(0..8)).start().expect_err("other lengths");
        assert!(matches!(lengths.cause(), Cause::Post(PostError::Lengths { local: 9, remote: 8 })));
        assert_eq!(lengths.buffer().map(percale::Buffer::len), Some(9));
    }
}

/// A short access that could be made at once waits for earlier operations if it has a fence.
///
/// Requirements: RMA-007.
pub fn short_fenced_access_waits_for_an_earlier_message<F: Fabric>() {
    let mesh = Mesh::<F>::connected(2);
    let (a, b, peer) = (mesh.endpoint(0), mesh.endpoint(1), mesh.peer(1));
    for memory in memories(&mesh, &[0; 8]) {
        let region = mesh.test_endpoint(1).domain.register(memory, ALL | Access::REMOTE_ATOMIC).expect("a region");
        let word = || u64::from_le_bytes(bytes_of(&region).try_into().expect("8 bytes"));
        // With the first access the initiator gets to know the key.
        mesh.finish(a.write(peer, 5_u64.to_le_bytes().to_vec(), region.remote())).expect("a write");
        let send = |tag| a.tagged_send(peer, tag, vec![1; 8]).delivered().start().expect("a send");
        let receive = |tag| b.tagged_recv(tag, 0, vec![0; 8]);
        let first = send(1);
        let write = a.write(peer, 7_u64.to_le_bytes().to_vec(), region.remote()).fenced().start().expect("a write");
        mesh.turns(20);
        assert_eq!(word(), 5, "the write waits for the message to be received");
        mesh.finish(receive(1)).expect("the first message");
        mesh.finish(first).expect("the first send");
        mesh.finish(write).expect("the write");
        assert_eq!(word(), 7);
        let second = send(2);
        let add = a.fetch_add(peer, region.remote(), 2_u64).fenced().start().expect("an addition");
        mesh.turns(20);
        assert_eq!(word(), 7, "the addition waits for the message to be received");
        mesh.finish(receive(2)).expect("the second message");
        mesh.finish(second).expect("the second send");
        assert_eq!(mesh.finish(add).expect("the addition"), 7);
        assert_eq!(word(), 9);
    }
}

/// Accesses can have several pieces on both sides, which belong to one region or to several. A region counts an access
/// once, however many of the pieces belong to it.
///
/// Requirements: MR-010, RMA-004, RMA-010.
pub fn accesses_with_segments_on_both_sides_succeed<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    for [first, second] in [memories(&mesh, &vec![0; 80_000])] {
        let domain = &mesh.test_endpoint(1).domain;
        let counter = Counter::new();
        let one = domain.registration(ALL).counter(&counter).own(first).expect("a region");
        let two = domain.registration(ALL).counter(&counter).own(second).expect("a region");
        for len in [10_u64, 9000, 30_000] {
            let source = Memory::content(len, 3 * len as usize);
            let pieces = [
                one.remote().at(100..100 + len),
                two.remote().at(0..len),
                one.remote().at(0..0),
                two.remote().at(40_000..40_000 + len),
            ];
            let write = mesh.write(0, 1, cut(source, 5), &pieces);
            let entry = mesh.done(write);
            assert_eq!((entry.flags, entry.len), (CompletionFlags::RMA | CompletionFlags::WRITE, 3 * len));
            let target = Memory::blank(3 * len as usize);
            mesh.done(mesh.read(0, 1, cut(target, len as usize + 1), &pieces));
            same(&target.read(), &source.read(), "the data written and read");
            same(&bytes_of(&one)[100..100 + len as usize], &source.read()[..len as usize], "the first piece");
        }
        // Each write counts as one write to each region.
        mesh.until(|| (counter.read() >= 6).then_some(()));
        mesh.turns(20);
        assert_eq!(counter.read(), 6);
    }
}

/// The data of an injected write is copied. Its initiator gets a completion only if the write fails.
///
/// Requirements: RMA-002.
pub fn injected_writes_are_copied<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    for memory in memories(&mesh, &[0; 2048]) {
        let region = mesh.test_endpoint(1).domain.register(memory, ALL).expect("a region");
        for len in [8, 2048] {
            let mut bytes = content(len, len as usize);
            let part = region.remote().at(0..len);
            mesh.endpoint(0).inject_write(mesh.peer(1), &bytes, part, Some(len)).expect("an inject");
            bytes.fill(0);
            let reported = mesh.until(|| mesh.take(0)).expect("the target's completion of the write");
            assert_eq!(reported.data, len);
            same(&bytes_of(&region)[..len as usize], &content(len, len as usize), "the injected data");
        }
        let refused = mesh.endpoint(0).inject_write(
            mesh.peer(1),
            &[0; 2049],
            RemoteMemory { len: 2049, ..region.remote() },
            None,
        );
        assert_eq!(refused, Err(PostError::InjectTooLong(2049)));
        let wrong = RemoteMemory { key: region.key() ^ 1, ..region.remote().at(0..8) };
        mesh.endpoint(0).inject_write(mesh.peer(1), &[0; 8], wrong, None).expect("an inject");
        assert_eq!(mesh.failed(0).error, ErrorCode::KeyRejected);
    }
}

/// An operation posted before a region is closed succeeds or fails, and nothing is written after the close. A read
/// posted after a write to the same bytes returns what was written, if both succeed.
///
/// Requirements: MR-069, REV-004, RMA-005.
pub fn region_close_ends_outstanding_accesses<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (a, peer) = (mesh.endpoint(0), mesh.peer(1));
    for (round, len) in (0..40).map(|n| (n / 2, if n % 2 == 0 { F::BULK } else { F::BULK / 4 })) {
        for memory in memories(&mesh, &vec![0; len]) {
            let region = mesh.test_endpoint(1).domain.register(memory, ALL).expect("a region");
            let part = region.remote().at(0..len as u64);
            mesh.finish(a.read(peer, part.at(0..8), vec![0; 8])).expect("a read");
            let write = a.write(peer, content(1, len), part).start().expect("a write");
            let read = a.read(peer, part, vec![0; len]).start().expect("a read");
            mesh.turns(round);
            let memory = region.close().expect("no thread is stopped in the middle of an access").into_vec();
            let (write, read) = (mesh.finish(write), mesh.finish(read));
            for (error, what) in [(write.as_ref().err(), "the write"), (read.as_ref().err(), "the read")] {
                if let Some(error) = error {
                    let Cause::Completion(cause) = error.cause() else { panic!("{what}: {error}") };
                    assert_eq!(cause.error, ErrorCode::KeyRejected, "{what}");
                }
            }
            // Each byte is the written one, or unchanged if the write failed.
            let written = content(1, len);
            assert!(memory.iter().zip(&written).all(|(got, sent)| got == sent || (*got == 0 && write.is_err())));
            if let (Ok(_), Ok(read)) = (&write, read) {
                same(&read.into_vec(), &written, "the data written and read");
            }
            // The connection still works.
            let receive = mesh.receive(1, Receive::into(Memory::blank(8)));
            let send = mesh.send(0, 1, Send::of(Memory::content(2, 8)));
            mesh.all_done([receive, send]);
        }
    }
}

/// Borrowed memory is deregistered when its scope ends.
///
/// Requirements: REV-006.
pub fn borrowed_memory_is_registered_in_a_scope<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let mut bytes = content(1, 5000);
    let remote = mesh.test_endpoint(1).domain.scope(|scope| {
        let region = scope.register(&mut bytes, ALL).expect("a region");
        let write = mesh.endpoint(0).write(mesh.peer(1), vec![7; 100], region.remote().at(0..100));
        mesh.finish(write).expect("a write");
        region.remote()
    });
    assert_eq!((&bytes[..100], &bytes[100..]), (&[7; 100][..], &content(1, 5000)[100..]));
    let late = mesh.finish(mesh.endpoint(0).write(mesh.peer(1), vec![8; 100], remote.at(0..100)));
    assert_eq!(code(late), ErrorCode::KeyRejected);
    assert_eq!(bytes[..100], [7; 100]);
}

/// `try_wait` permits a thread to sleep only if all results have been read, even if a reply about a key has just ended
/// operations that waited for it.
pub fn try_wait_fails_while_results_are_unread<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (a, b, peer) = (mesh.endpoint(0), mesh.endpoint(1), mesh.peer(1));
    for key in 1..100 {
        let nowhere = RemoteMemory { key, address: 0, len: 8 };
        while a.inject_write(peer, &[1; 8], nowhere, None) == Err(PostError::Again) {
            mesh.turns(1);
        }
        let error = loop {
            let sleeps = a.try_wait();
            match a.read_error() {
                Some(error) => {
                    assert!(!sleeps, "a sleeping thread would miss the error (key {key})");
                    break error;
                }
                None => b.progress(),
            };
            if !sleeps {
                a.progress();
            }
        };
        assert_eq!(error.error, ErrorCode::KeyRejected);
    }
}

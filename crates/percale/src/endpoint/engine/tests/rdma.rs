//! Tests of accesses by RDMA, on a device if there is one. Otherwise each test prints why it was skipped.

#![expect(unsafe_code, reason = "posts accesses of several pieces with the raw API; each block states its reason")]

mod faults;
mod windows;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use zerocopy::IntoBytes;

use super::pairs::connected;
use super::*;
use crate::completion::entry::ErrorCode;
use crate::endpoint::safe::{Cause, OperationError};
use crate::memory::region::Region;
use crate::region::{Access, RemoteMemory};
use crate::transport::any::AnyLink;
use crate::transport::verbs::{Registers, VerbsRegistrar};
use crate::wire::head::{Flags, FrameKind};
use crate::wire::located::{AccessGrant, LocateAnswer, LocatedBytes};

pub(super) const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
const LEN: usize = 256 << 10;

/// Describes how `a` reaches regions of `b`.
fn how(a: &TestEndpoint, b: &TestEndpoint) -> String {
    let slot = a.slot(b);
    a.engine(|engine| match &engine.links[slot as usize] {
        Some(AnyLink::Verbs(link)) => link.describe(),
        other => panic!("{other:?}"),
    })
}

/// Reads a region until accesses to it are made by RDMA.
pub(super) fn reach(a: &TestEndpoint, b: &TestEndpoint, peer: PeerAddress, region: &Region) {
    reach_part(a, b, peer, region.remote().at(0..8));
}

/// Accesses memory under a dead key, between writes to another region. All are rejected, and only the other region
/// changes.
fn late_accesses(a: &TestEndpoint, b: &TestEndpoint, peer: PeerAddress, other: &Region, name: RemoteMemory, round: u8) {
    let mut before = a.endpoint.write(peer, vec![round; 8], other.remote().at(0..8)).start().unwrap();
    let late: Vec<_> = [8, 5000, LEN as u64]
        .map(|len| a.endpoint.write(peer, vec![99; len as usize], name.at(0..len)).start().unwrap())
        .into();
    let mut unread = a.endpoint.read(peer, name, vec![99; LEN]).start().unwrap();
    let mut after = a.endpoint.write(peer, vec![round; 100_000], other.remote().at(8..100_008)).start().unwrap();
    until(&[a, b], || (after.is_ready() && unread.is_ready()).then_some(()));
    before.wait().unwrap();
    after.wait().unwrap();
    late.into_iter().for_each(|mut write| assert_eq!(code(write.wait()), ErrorCode::KeyRejected));
    let error = unread.wait().unwrap_err();
    assert_eq!(error.into_buffer().unwrap().into_vec(), vec![99; LEN], "something was disclosed");
    assert_eq!(bytes_of(other)[..100_008], vec![round; 100_008]);
}

/// Like [`reach`], but for this part of a region.
fn reach_part(a: &TestEndpoint, b: &TestEndpoint, peer: PeerAddress, part: RemoteMemory) {
    let before = posted(a, b);
    until(&[a, b], || {
        let mut read = a.endpoint.read(peer, part, vec![0; part.len as usize]).start().unwrap();
        until(&[a, b], || read.is_ready().then_some(()));
        read.wait().unwrap();
        (posted(a, b) > before).then_some(())
    });
}

/// Returns the number of accesses by RDMA that `a` has made to `b`.
fn posted(a: &TestEndpoint, b: &TestEndpoint) -> u64 {
    let text = how(a, b);
    number_before(&text, "accesses")
}

/// Returns the number before this word in a description, or 0.
fn number_before(text: &str, what: &str) -> u64 {
    let words: Vec<_> = text.split([' ', ';', ',', '(', ')']).filter(|word| !word.is_empty()).collect();
    let at = words.iter().rposition(|word| *word == what).unwrap_or_else(|| panic!("{text}"));
    words[at - 1].parse().unwrap_or(0)
}

fn code<R>(result: Result<R, OperationError>) -> ErrorCode {
    match result {
        Err(error) => match error.cause() {
            Cause::Completion(entry) => entry.error,
            _ => panic!("{error}"),
        },
        Ok(_) => panic!("the operation should have failed"),
    }
}

fn read(a: &TestEndpoint, peer: PeerAddress, part: RemoteMemory) -> Vec<u8> {
    let mut read = a.endpoint.read(peer, part, vec![0; part.len as usize]).start().unwrap();
    read.wait_for(event_timeout()).unwrap().into_vec()
}

fn write(a: &TestEndpoint, peer: PeerAddress, part: RemoteMemory, byte: u8) -> Result<crate::Buffer, OperationError> {
    a.endpoint.write(peer, vec![byte; part.len as usize], part).start().unwrap().wait_for(event_timeout())
}

pub(super) fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes);
    bytes
}

/// Requirements: RMA-012.
#[test]
fn regions_are_accessed_by_rdma_while_their_target_makes_no_progress() {
    let Some((a, b, peer)) = connected() else { return };
    let mut allocation = b.domain.allocate(LEN).unwrap();
    allocation.write(0, &[7; LEN]);
    for memory in [crate::Buffer::from(vec![7; LEN]), crate::Buffer::from(allocation)] {
        let base = u64::MAX - LEN as u64 + 1;
        let region = b.domain.registration(ALL).base(base).own(memory).unwrap();
        reach(&a, &b, peer, &region);
        // From here on only the initiator makes progress.
        for (number, len) in (1..).zip([1, 8, 4095, 4096, 4097, 70_000, LEN as u64]) {
            let part = region.remote().at(LEN as u64 - len..LEN as u64);
            write(&a, peer, part, number).unwrap();
            assert_eq!(bytes_of(&region)[LEN - len as usize..], vec![number; len as usize]);
            assert_eq!(read(&a, peer, part), vec![number; len as usize]);
        }
        region.close().unwrap();
    }
}

/// Requirements: RMA-004.
#[test]
fn rdma_access_covers_segments_of_several_regions() {
    let Some((a, b, peer)) = connected() else { return };
    let regions = [0, 1].map(|number| b.domain.register(vec![number; LEN], ALL).unwrap());
    regions.iter().for_each(|region| reach(&a, &b, peer, region));
    let pieces = [
        regions[1].remote().at(10..5010),
        regions[0].remote().at(0..1),
        regions[1].remote().at(0..10),
        regions[0].remote().at(1..100_000),
    ];
    let all = crate::RemotePieces::new(&pieces).unwrap();
    let mut room = vec![9_u8; all.len() as usize];
    // SAFETY: the bytes outlive the operation, because the test waits for its end, and nothing else accesses them
    // meanwhile.
    let local = unsafe { crate::Segment::new(room.as_mut_ptr(), room.len()) };
    let segments = crate::Segments::new(&[local.slice(0, 7000), local.slice(7000, 1), local.slice(7001, usize::MAX)]);
    let work = crate::RmaWork {
        peer,
        local: segments.unwrap(),
        remote: all,
        data: None,
        context: 5,
        flags: crate::OpFlags::COMPLETION,
    };
    // SAFETY: as above.
    unsafe { a.endpoint.post_read(&work) }.unwrap();
    let entry = until(&[&a], || {
        let mut entries = [crate::Entry::default(); 1];
        a.endpoint.poll(&mut entries).ok().filter(|count| *count == 1).map(|_| entries[0])
    });
    assert_eq!((entry.context, entry.len), (5, all.len()));
    let expected = [&[1; 5000][..], &[0; 1], &[1; 10], &[0; 99_999]].concat();
    assert!(room == expected, "the data read");
}

/// Requirements: REV-001, MR-068.
#[test]
fn access_to_closed_region_is_rejected_and_others_succeed() {
    let Some((a, b, peer)) = connected() else { return };
    let other = b.domain.register(vec![0; LEN], ALL).unwrap();
    for round in 1..=5 {
        let region = b.domain.registration(ALL).key(77).own(vec![round; LEN]).unwrap();
        let name = region.remote();
        reach(&a, &b, peer, &other);
        reach(&a, &b, peer, &region);
        // The initiator is not notified.
        let memory = region.close().unwrap().into_vec();
        late_accesses(&a, &b, peer, &other, name, round);
        assert_eq!(memory, vec![round; LEN], "a late write");
    }
    // Another region is registered under the same key, and the same memory under another key. Late accesses find
    // neither.
    let again = b.domain.registration(ALL).key(77).own(vec![1; LEN]).unwrap();
    reach(&a, &b, peer, &again);
    let memory = again.close().unwrap();
    let elsewhere = b.domain.registration(ALL).key(78).own(memory).unwrap();
    let mut write = a.endpoint.write(peer, vec![99; 8], RemoteMemory { key: 77, address: 0, len: 8 }).start().unwrap();
    reach(&a, &b, peer, &elsewhere);
    assert_eq!(code(write.wait()), ErrorCode::KeyRejected);
    assert_eq!(bytes_of(&elsewhere), vec![1; LEN]);
}

/// Requirements: REV-001.
#[test]
fn nothing_is_written_by_rdma_after_a_region_is_closed() {
    let Some((mut a, b, peer)) = connected() else { return };
    for round in 1..=20 {
        let region = b.domain.registration(ALL).key(5).own(vec![0; LEN]).unwrap();
        reach(&a, &b, peer, &region);
        let (name, over) = (region.remote(), Arc::new(AtomicBool::new(false)));
        let storming = Arc::clone(&over);
        let storm = std::thread::spawn(move || {
            let refused = storm(&a, peer, name, round, &storming);
            (a, refused)
        });
        until_written(&region, round, &storm);
        let memory = region.close().unwrap().into_vec();
        let copy = memory.clone();
        over.store(true, Ordering::Relaxed);
        until(&[&b], || storm.is_finished().then_some(()));
        let refused;
        (a, refused) = storm.join().unwrap();
        assert!(refused > 0 && memory == copy, "written after it was closed");
    }
}

/// Waits until a storm has written the byte to the whole region, and then for that number of milliseconds.
fn until_written<T>(region: &Region, byte: u8, storm: &std::thread::JoinHandle<T>) {
    // The target makes no progress here: all writes are made by RDMA.
    let begun = Instant::now();
    let mut last = [0];
    while begun.elapsed() < Duration::from_millis(byte.into()) || last[0] != byte {
        assert!(begun.elapsed() < Duration::from_secs(30) && !storm.is_finished(), "nothing is written");
        region.read(LEN - 1, &mut last);
    }
}

/// Writes without pause until the test is over and a write was refused. Returns the number of refused writes.
fn storm(a: &TestEndpoint, peer: PeerAddress, name: RemoteMemory, byte: u8, over: &AtomicBool) -> u32 {
    let mut refused = 0;
    while !over.load(Ordering::Relaxed) || refused == 0 {
        let parts = [8, 4096, 9000, LEN as u64].map(|len| name.at(LEN as u64 - len..LEN as u64));
        let writes = parts.map(|part| a.endpoint.write(peer, vec![byte; part.len as usize], part).start().unwrap());
        for result in writes.map(|mut write| write.wait()) {
            if result.is_err() {
                assert_eq!(code(result), ErrorCode::KeyRejected);
                refused += 1;
            }
        }
    }
    refused
}

/// Requirements: RMA-005.
#[test]
fn rdma_and_executed_accesses_keep_their_order() {
    let Some((a, b, peer)) = connected() else { return };
    let region = b.domain.register(vec![0; LEN], ALL).unwrap();
    reach(&a, &b, peer, &region);
    let word = region.remote().at(64..72);
    for round in 0..50_u64 {
        let store = |value: u64| a.endpoint.write(peer, value.to_ne_bytes().to_vec(), word).start().unwrap();
        let first = store(round);
        let mut seen = a.endpoint.read(peer, region.remote().at(0..100_000), vec![0; 100_000]).start().unwrap();
        let second = store(round + 1000);
        let mut added = a.endpoint.fetch_add(peer, word, 1_u64).start().unwrap();
        let mut third = a.endpoint.read(peer, word, vec![0; 8]).start().unwrap();
        let last = store(7);
        until(&[&a, &b], || last.is_ready().then_some(()));
        for mut write in [first, second, last] {
            write.wait().unwrap();
        }
        let value = |bytes: &[u8]| u64::from_ne_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(value(&seen.wait().unwrap().into_vec()[64..]), round);
        assert_eq!(added.wait().unwrap(), round + 1000);
        assert_eq!(value(&third.wait().unwrap().into_vec()), round + 1001);
        assert_eq!(bytes_of(&region)[64..72], 7_u64.to_ne_bytes());
    }
}

/// Requirements: RMA-006.
#[test]
fn message_arrives_after_preceding_rdma_writes() {
    let Some((a, b, peer)) = connected() else { return };
    let region = b.domain.register(vec![0; 4 << 20], ALL).unwrap();
    reach(&a, &b, peer, &region);
    for round in 1..=20 {
        let mut receive = b.endpoint.recv(vec![0; 8]).start().unwrap();
        let mut write = a.endpoint.write(peer, vec![round; 4 << 20], region.remote()).start().unwrap();
        let mut send = a.endpoint.send(peer, vec![round; 8]).start().unwrap();
        until(&[&a, &b], || receive.is_ready().then_some(()));
        assert!(bytes_of(&region) == vec![round; 4 << 20], "round {round}");
        receive.wait().unwrap();
        until(&[&a, &b], || (send.is_ready() && write.is_ready()).then_some(()));
        send.wait().unwrap();
        write.wait().unwrap();
    }
}

/// Requirements: FLT-001.
#[test]
fn access_queue_pair_error_ends_the_connection() {
    let Some((a, b, peer)) = connected() else { return };
    let region = b.domain.register(vec![0; LEN], ALL).unwrap();
    reach(&a, &b, peer, &region);
    let slot = a.slot(&b);
    a.engine(|engine| match &engine.links[slot as usize] {
        Some(AnyLink::Verbs(link)) => link.fail_accesses(),
        other => panic!("{other:?}"),
    });
    // It is unknown whether the write was made.
    let write = write(&a, peer, region.remote(), 1);
    assert_eq!(code(write), ErrorCode::PeerDied);
    assert!(a.ended().is_some());
    until(&[&b], || b.ended());
    let peer = connect(&a, &b);
    reach(&a, &b, peer, &region);
}

/// Disables the registration cache.
#[derive(Debug)]
struct NoCache;

impl Registers for NoCache {
    fn cache(&self, _: VerbsRegistrar) -> Option<&pindown::Cache<VerbsRegistrar>> {
        None
    }
}

/// Requirements: RMA-001, RMA-005.
#[test]
fn unregistrable_memory_is_sent_in_frames() {
    let Some((a, b, _)) = connected() else { return };
    drop(a);
    let a = TestEndpoint::new("verbs");
    a.engine(|engine| engine.core.local.set_pins(Arc::new(NoCache)));
    let peer = connect(&a, &b);
    let region = b.domain.register(vec![0; LEN], ALL).unwrap();
    reach(&a, &b, peer, &region);
    // Short writes are made by RDMA, long ones are not. They overlap.
    let writes: Vec<_> = (1..=60_u8)
        .map(|number| {
            let len = [8, 4096, 4097, 100_000][usize::from(number) % 4];
            a.endpoint.write(peer, vec![number; len], region.remote().at(0..len as u64)).start().unwrap()
        })
        .collect();
    until(&[&a, &b], || writes.iter().all(|write| write.is_ready()).then_some(()));
    writes.into_iter().for_each(|mut write| drop(write.wait().unwrap()));
    let expected = [&[60; 8][..], &[59; 99_992]].concat();
    let expected = [&expected[..], &vec![0; LEN - 100_000]].concat();
    assert!(bytes_of(&region) == expected, "in another order");
    let mut read = a.endpoint.read(peer, region.remote(), vec![0; LEN]).start().unwrap();
    until(&[&a, &b], || read.is_ready().then_some(()));
    assert!(read.wait().unwrap().into_vec() == expected);
}

/// Requirements: FLT-007.
#[test]
fn invalid_region_frames_end_only_their_own_connection() {
    let Some((a, b, _)) = connected() else { return };
    let region = b.domain.register(vec![5; LEN], ALL).unwrap();
    let key = region.key();
    let good = |kind| Head { kind, flags: Flags::ID, ..Head::default() };
    let mut bad = vec![
        (Head { flags: Flags::empty(), ..good(FrameKind::Locate) }, vec![]),
        (Head { data: key, id: 1, ..good(FrameKind::Locate) }, vec![]),
        (Head { id: 1, ..good(FrameKind::Located) }, vec![0; 40]),
        (Head { id: 1, ..good(FrameKind::Revoked) }, vec![]),
        (Head { id: 1, tag: 1, ..good(FrameKind::Revoked) }, vec![]),
        (Head { id: 1, tag: 2, ..good(FrameKind::Revoked) }, vec![]),
        (Head { id: 1, ..good(FrameKind::QueuePair) }, vec![0; 32]),
        (Head { id: 2, ..good(FrameKind::QueuePair) }, vec![0; 32]),
        (good(FrameKind::QueuePair), vec![]),
        (good(FrameKind::QueuePair), vec![1; 31]),
    ];
    bad.extend((0..16).map(|at| (good(FrameKind::QueuePair), vec![0x11 * at; 32])));
    for (head, payload) in bad {
        a.forge(&b, &head, &payload);
        until(&[&b], || b.ended());
        until(&[&a, &b], || a.ended());
        connect(&a, &b);
    }
    assert_eq!(bytes_of(&region), vec![5; LEN]);
}

/// Requirements: FLT-007.
#[test]
fn invalid_frames_from_granted_peer_end_only_its_connection() {
    let Some((a, b, peer)) = connected() else { return };
    let region = b.domain.register(vec![5; LEN], ALL).unwrap();
    let good = |kind| Head { kind, flags: Flags::ID, ..Head::default() };
    let grant = AccessGrant { number: 0, reads: true, writes: true, remote_key: 1, base: 0, len: 8, address: 0 };
    let located = |located| LocatedBytes::of(&located).as_bytes().to_vec();
    // The number of the first grant: its slot, and the first generation.
    let mut numbers = crate::table::Table::new();
    let first = numbers.insert(()).to_wire();
    let bad = [
        // To the target: the peer reports that it has dropped a grant that is in force.
        (&a, &b, Head { tag: 1, id: first, ..good(FrameKind::Revoked) }, vec![]),
        // To the initiator: answers without a request, or without content.
        (&b, &a, Head { id: 77, ..good(FrameKind::Located) }, located(LocateAnswer::Granted(grant))),
        (&b, &a, Head { id: 1, ..good(FrameKind::Located) }, vec![1; 40]),
        (&b, &a, Head { id: 1, ..good(FrameKind::Located) }, vec![]),
        (&b, &a, Head { id: 1, ..good(FrameKind::QueuePair) }, vec![0; 32]),
        // Invalid notices about the queue pair.
        (&b, &a, Head { tag: 2, id: 1, ..good(FrameKind::Revoked) }, vec![]),
        (&b, &a, Head { tag: 2, data: 1, ..good(FrameKind::Revoked) }, vec![]),
        (&b, &a, Head { tag: 3, ..good(FrameKind::Revoked) }, vec![]),
    ];
    for (from, to, head, payload) in bad {
        reach(&a, &b, peer, &region);
        // The number may be that of a grant that no longer exists, so the target ignores this.
        a.forge(&b, &Head { tag: 1, id: 99, ..good(FrameKind::Revoked) }, &[]);
        reach(&a, &b, peer, &region);
        assert!(a.ended().is_none() && b.ended().is_none());
        from.forge(to, &head, &payload);
        until(&[to], || to.ended());
        until(&[from, to], || from.ended());
        connect(&a, &b);
    }
    assert_eq!(bytes_of(&region), vec![5; LEN]);
}

/// Requirements: FLT-007.
#[test]
fn reported_queue_pair_error_affects_only_its_peer() {
    let Some((a, b, peer)) = connected() else { return };
    let region = b.domain.register(vec![5; LEN], ALL).unwrap();
    let over = Head { kind: FrameKind::Revoked, flags: Flags::ID, tag: 2, ..Head::default() };
    for round in 0..5 {
        reach(&a, &b, peer, &region);
        let part = region.remote().at(0..LEN as u64);
        let mut read = a.endpoint.read(peer, part, vec![0; LEN]).start().unwrap();
        // The peer may send this several times.
        (0..=round).for_each(|_| b.forge(&a, &over, &[]));
        until(&[&a, &b], || read.is_ready().then_some(()));
        assert!(read.wait().unwrap().into_vec() == vec![5; LEN]);
    }
    reach(&a, &b, peer, &region);
    assert!(a.ended().is_none() && b.ended().is_none());
}

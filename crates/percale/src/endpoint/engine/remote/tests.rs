//! Tests of accesses in progress without an engine and without links.

use super::*;
use crate::endpoint::remote_work::{RemotePieces, RmaWork};
use crate::endpoint::work::OpFlags;
use crate::local_memory::buffer::{Buffer, BufferExt as _};
use crate::types::PeerAddress;
use crate::wire::head::Counts;

const TARGET: ConnectionId = 3;
/// Another peer.
const OTHER: ConnectionId = 4;
const KEY: u64 = 0xabc;

fn piece(address: u64, len: u64) -> RemoteMemory {
    RemoteMemory { key: KEY, address, len }
}

fn rma(remote: RemoteMemory, local: &mut Buffer, context: u64) -> RmaWork {
    let local = local.segment_for_receive().map_or(Segments::EMPTY, Segments::one);
    let (peer, remote, flags) = (PeerAddress::UNSPECIFIED, RemotePieces::one(remote), OpFlags::empty());
    RmaWork { peer, local, remote, data: None, context, flags }
}

/// Starts an access with this number of parts, all of which leave. Returns the access and the numbers that the target
/// uses for the parts.
fn start(remote: &mut RemoteAccesses, what: AccessOperation, parts: usize) -> (Id<Execution>, Vec<u32>) {
    let takes_data = matches!(what, AccessOperation::Read(_));
    let local = match &what {
        AccessOperation::Write(work) | AccessOperation::Read(work) => work.local,
        AccessOperation::Atomic(_) => Segments::EMPTY,
    };
    let mut waiting = PendingAccess::new(Box::new(Posted::lent(what)));
    let id = remote.start(TARGET, &mut waiting, Notify::Queue, None).expect("the access starts");
    assert!(remote.start(TARGET, &mut waiting, Notify::Queue, None).is_none());
    let leave = |_| {
        let part = remote.add_part(AccessPart::new(id, TARGET, local, KEY, takes_data));
        remote.count_part(id);
        part.to_wire() | PART
    };
    let parts = (0..parts).map(leave).collect();
    assert!(remote.step(id, Ok(())).is_none(), "all parts were sent, none is answered");
    (id, parts)
}

fn answer(id: u32) -> Head {
    Head { kind: crate::wire::head::FrameKind::Done, id, ..Head::default() }
}

/// Ends a part in the same way as the engine.
fn end(remote: &mut RemoteAccesses, part: Id<AccessPart>, result: Result<(), AccessError>) -> Option<Execution> {
    let part = remote.end_part(part)?;
    assert_eq!(part.to(), TARGET);
    remote.step(part.access(), result)
}

#[test]
fn an_access_ends_with_its_last_part() {
    let (mut remote, mut bytes) = (RemoteAccesses::default(), Buffer::from(vec![7; 8]));
    let (_, parts) = start(&mut remote, AccessOperation::Write(rma(piece(0, 8), &mut bytes, 5)), 2);
    let first = remote.answered(TARGET, &answer(parts[0]), Ok(())).unwrap().unwrap();
    assert!(end(&mut remote, first, Ok(())).is_none());
    let last = remote.answered(TARGET, &answer(parts[1]), Ok(())).unwrap().unwrap();
    let mut over = end(&mut remote, last, Ok(())).unwrap();
    assert_eq!((over.entry().context, over.to(), over.take_error()), (5, TARGET, None));
    assert_eq!(remote.counts(), [0; 3]);
}

#[test]
fn first_refusal_is_reported_and_stops_further_parts() {
    let (mut remote, mut bytes) = (RemoteAccesses::default(), Buffer::from(vec![7; 8]));
    let (access, parts) = start(&mut remote, AccessOperation::Write(rma(piece(0, 8), &mut bytes, 5)), 2);
    assert!(remote.has_parts_under_way(access) && !remote.has_failed(access));
    let ids = parts.iter().map(|part| remote.answered(TARGET, &answer(*part), Err(Refusal::Key)).unwrap().unwrap());
    let ids: Vec<_> = ids.collect();
    assert!(end(&mut remote, ids[0], Err((ErrorCode::KeyRejected, "first".into()))).is_none());
    assert!(remote.has_failed(access));
    let mut over = end(&mut remote, ids[1], Err((ErrorCode::Io, "second".into()))).unwrap();
    assert_eq!(over.take_error(), Some((ErrorCode::KeyRejected, "first".into())));
}

#[test]
fn late_and_foreign_answers_are_ignored() {
    let (mut remote, mut bytes) = (RemoteAccesses::default(), Buffer::from(vec![7; 8]));
    let (_, parts) = start(&mut remote, AccessOperation::Write(rma(piece(0, 8), &mut bytes, 5)), 1);
    assert_eq!(remote.answered(OTHER, &answer(parts[0]), Ok(())), Ok(None));
    assert!(remote.answered(TARGET, &answer(parts[0] & !PART), Ok(())).is_err(), "an unknown part number");
    let part = remote.answered(TARGET, &answer(parts[0]), Ok(())).unwrap().unwrap();
    assert!(end(&mut remote, part, Ok(())).is_some());
    assert_eq!(remote.answered(TARGET, &answer(parts[0]), Ok(())), Ok(None), "the part has already ended");
    let (_, again) = start(&mut remote, AccessOperation::Write(rma(piece(0, 8), &mut bytes, 6)), 1);
    assert_eq!(remote.answered(TARGET, &answer(parts[0]), Ok(())), Ok(None), "the slot belongs to another part");
    assert_ne!(again, parts);
}

#[test]
fn read_data_must_have_the_requested_length() {
    let (mut remote, mut bytes) = (RemoteAccesses::default(), Buffer::from(vec![0; 4]));
    let (_, parts) = start(&mut remote, AccessOperation::Read(rma(piece(0, 4), &mut bytes, 5)), 1);
    assert!(remote.answered(TARGET, &answer(parts[0]), Ok(())).is_err(), "an answer without data");
    assert!(remote.read_data(TARGET, &answer(parts[0]), View::of(&[1; 5])).is_err());
    assert_eq!(remote.read_data(OTHER, &answer(parts[0]), View::of(&[1; 4])), Ok(None));
    let part = remote.read_data(TARGET, &answer(parts[0]), View::of(&[1; 4])).unwrap().unwrap();
    assert!(end(&mut remote, part, Ok(())).is_some());
    assert_eq!(bytes.into_vec(), [1; 4]);
}

#[test]
fn part_ends_when_the_transport_has_read_it() {
    let (mut remote, mut bytes) = (RemoteAccesses::default(), Buffer::from(vec![7; 8]));
    let (_, parts) = start(&mut remote, AccessOperation::Write(rma(piece(0, 8), &mut bytes, 5)), 1);
    assert!(matches!(remote.write_asked(OTHER, parts[0]), PullAnswer::Gone));
    assert!(matches!(remote.write_asked(TARGET, parts[0]), PullAnswer::Source(source) if source.len() == 8));
    assert!(
        matches!(remote.write_asked(TARGET, parts[0]), PullAnswer::Nothing),
        "the bytes can be requested only once"
    );
    assert_eq!(remote.answered(TARGET, &answer(parts[0]), Ok(())), Ok(None), "a transport still reads the memory");
    let (part, result) = remote.write_pushed(TARGET, parts[0]).unwrap();
    assert_eq!(result, Ok(()));
    assert!(end(&mut remote, part, Ok(())).is_some());
}

#[test]
fn access_waits_for_an_overlapping_long_part() {
    let (mut remote, mut bytes) = (RemoteAccesses::default(), Buffer::from(vec![7; 8]));
    let (access, parts) = start(&mut remote, AccessOperation::Read(rma(piece(100, 50), &mut bytes, 5)), 1);
    let part = remote.part_of(TARGET, parts[0]);
    let NamedPart::Here(part) = part else { panic!("the part is in progress") };
    remote.note_long_part(part, piece(100, 50), false);
    let cases = [(90, 10, false), (90, 11, true), (149, 1, true), (150, 9, false)];
    for (address, len, meets) in cases {
        let mut work = |write: bool| {
            let work = rma(piece(address, len), &mut bytes, 6);
            if write { AccessOperation::Write(work) } else { AccessOperation::Read(work) }
        };
        assert_eq!(remote.conflicts_with_long(TARGET, &work(true)), meets, "{address} {len}");
        assert!(!remote.conflicts_with_long(TARGET, &work(false)), "two reads do not conflict");
        assert!(!remote.conflicts_with_long(OTHER, &work(true)), "another peer's memory");
    }
    assert_eq!([remote.long_bytes(TARGET), remote.long_bytes(OTHER)], [50, 0]);
    assert!(remote.note_long_write(access) && !remote.note_long_write(access));
    assert!(end(&mut remote, part, Ok(())).is_some_and(|over| over.is_long()));
    assert_eq!(remote.long_bytes(TARGET), 0);
}

#[test]
fn a_withdrawn_access_can_be_started_again() {
    let (mut remote, mut bytes) = (RemoteAccesses::default(), Buffer::from(vec![7; 8]));
    let mut waiting =
        PendingAccess::new(Box::new(Posted::lent(AccessOperation::Write(rma(piece(0, 8), &mut bytes, 5)))));
    let first = remote.start(TARGET, &mut waiting, Notify::Queue, None).unwrap();
    assert!(waiting.what().is_none() && remote.started(&waiting).is_some());
    remote.withdraw(&mut waiting, first);
    assert!(waiting.what().is_some() && remote.started(&waiting).is_none());
    assert!(remote.start_by_rdma(TARGET, &mut waiting, Notify::Queue).is_some());
    let (second, _, by_rdma) = remote.started(&waiting).unwrap();
    assert!(first != second && by_rdma);
    assert_eq!(remote.rdma_access_of(TARGET, second.to_wire()), Some(second));
    assert_eq!(remote.rdma_access_of(OTHER, second.to_wire()), None);
}

#[test]
fn notice_contains_the_region_generation_of_the_answer() {
    let (mut remote, mut bytes) = (RemoteAccesses::default(), Buffer::from(vec![7; 8]));
    let (access, parts) = start(&mut remote, AccessOperation::Write(rma(piece(0, 8), &mut bytes, 5)), 1);
    let what = AccessOperation::Write(rma(piece(0, 8), &mut bytes, 5));
    remote.notify_at_end(access, || what.notice(Counts::REGION));
    let head = Head { flags: Flags::ID | Flags::DATA, data: 77, ..answer(parts[0]) };
    let part = remote.answered(TARGET, &head, Ok(())).unwrap().unwrap();
    let over = end(&mut remote, part, Ok(())).unwrap();
    assert_eq!(over.notice().map(|notice| notice.regions().to_vec()), Some(vec![(KEY, 77)]));
}

/// A region that is bound to a counter counts an access once, however many pieces of the region it has.
#[test]
fn notice_contains_each_region_once() {
    let mut bytes = Buffer::from(vec![7; 12]);
    let other = RemoteMemory { key: KEY + 1, ..piece(0, 4) };
    let remote = RemotePieces::new(&[piece(0, 4), other, piece(8, 4)]).unwrap();
    let what = AccessOperation::Write(RmaWork { remote, ..rma(piece(0, 12), &mut bytes, 5) });
    assert_eq!(what.notice(Counts::REGION).regions(), [(KEY, 0), (KEY + 1, 0)]);
}

#[test]
fn connection_loss_ends_its_accesses() {
    let (mut remote, mut bytes) = (RemoteAccesses::default(), Buffer::from(vec![7; 8]));
    let (_, parts) = start(&mut remote, AccessOperation::Write(rma(piece(0, 8), &mut bytes, 5)), 3);
    let NamedPart::Here(part) = remote.part_of(TARGET, parts[0]) else { panic!("the part is in progress") };
    remote.note_long_part(part, piece(0, 8), true);
    let next = AccessOperation::Read(rma(piece(0, 8), &mut bytes, 6));
    assert!(remote.take_of(OTHER).is_empty());
    assert!(remote.conflicts_with_long(TARGET, &next));
    assert_eq!(remote.take_of(TARGET).iter().map(|access| access.entry().context).collect::<Vec<_>>(), [5]);
    assert_eq!(remote.counts(), [0; 3]);
    assert!(!remote.conflicts_with_long(TARGET, &next), "an access over the next connection waits for nothing");
}

#[test]
fn peer_fetches_read_data_once() {
    let mut remote = RemoteAccesses::default();
    let source = || Lease::own(&Segments::EMPTY);
    let wire = remote.serve(TARGET, source(), None, ServeMode::Offered, true);
    assert!(wire & SERVE != 0 && wire & PART == 0);
    assert!(matches!(remote.serve_asked(OTHER, wire), PullAnswer::Gone));
    assert!(matches!(remote.serve_asked(TARGET, wire), PullAnswer::Source(_)));
    assert!(matches!(remote.serve_asked(TARGET, wire), PullAnswer::Nothing));
    assert!(remote.served(OTHER, wire).is_none());
    assert!(remote.served(TARGET, wire).is_some_and(|serve| serve.is_counted() && serve.mode() == ServeMode::Offered));
    assert!(matches!(remote.serve_asked(TARGET, wire), PullAnswer::Gone));
    let wire = remote.serve(TARGET, source(), None, ServeMode::Expected, false);
    assert!(matches!(remote.serve_asked(TARGET, wire), PullAnswer::Nothing), "the data is sent without a request");
    remote.drop_serves(TARGET);
    assert!(remote.served(TARGET, wire).is_none());
}

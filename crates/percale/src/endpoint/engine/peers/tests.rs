//! Tests of peers without an engine and without links.

use super::super::remote::{AccessOperation, PendingAccess, RemoteAccesses};
use super::super::types::{GroupMessage, LinkAction, Notify, QueuedWork};
use super::*;
use crate::address_vector::vector::VectorOptions;
use crate::endpoint::posted::Posted;
use crate::endpoint::remote_work::{RemotePieces, RmaWork};
use crate::endpoint::work::{OpFlags, SendWork};
use crate::local_memory::volatile::Segments;
use crate::region::RemoteMemory;
use crate::wire::head::{FrameKind, Head};

const CAP: usize = 1 << 16;

fn at(n: u8) -> ContextAddress {
    (SocketAddr::from(([10, 0, 0, n], 7471)), 0)
}

/// Returns a table with one connected peer.
fn connected() -> (Peers, ConnectionId) {
    let mut peers = Peers::new(None, false, CAP);
    let slot = peers.slot(at(1));
    peers.connected(slot, 7);
    (peers, slot)
}

fn message(context: u64, flags: OpFlags) -> PendingOperation {
    let (peer, segments) = (PeerAddress::UNSPECIFIED, Segments::EMPTY);
    let work = SendWork { peer, segments, tag: None, data: None, context, flags };
    PendingOperation { work: QueuedWork::Send(Posted::lent(work)), notify: Notify::Queue }
}

fn of_group(context: u64) -> PendingOperation {
    PendingOperation { work: QueuedWork::Collective(GroupMessage::bare(1, 2, context)), notify: Notify::Collective }
}

/// Returns a write of which nothing has been sent.
fn write(context: u64) -> PendingOperation {
    let (peer, remote) = (PeerAddress::UNSPECIFIED, RemotePieces::one(RemoteMemory::default()));
    let work = RmaWork { peer, local: Segments::EMPTY, remote, data: None, context, flags: OpFlags::empty() };
    let access = PendingAccess::new(Box::new(Posted::lent(AccessOperation::Write(work))));
    PendingOperation { work: QueuedWork::Access(access), notify: Notify::Queue }
}

/// Returns an answer with this number.
fn answer(id: u32) -> LinkAction {
    LinkAction::Frame(Head { kind: FrameKind::Ack, id, ..Head::default() })
}

/// Returns the contexts of the operations in a peer's queue, and empties it.
fn contexts(peer: &mut Peer) -> Vec<u64> {
    std::iter::from_fn(|| peer.take_first()).filter_map(|pending| Some(pending.entry()?.context)).collect()
}

/// The kinds of frames that can leave in the call that posts them.
const AT_ONCE: [OutgoingKind; 4] = [
    OutgoingKind::Message,
    OutgoingKind::GroupMessage,
    OutgoingKind::Access { fenced: false },
    OutgoingKind::Window { invalidates: false, fenced: false },
];

fn may(peers: &Peers, slot: ConnectionId) -> [bool; 4] {
    AT_ONCE.map(|what| peers.get(slot).may_send(what))
}

#[test]
fn only_invalidations_start_without_a_connection() {
    let mut peers = Peers::new(None, false, CAP);
    let slot = peers.slot(at(1));
    let invalidation = OutgoingKind::Window { invalidates: true, fenced: false };
    assert_eq!(may(&peers, slot), [false; 4]);
    assert!(peers.get(slot).may_send(invalidation));
    peers.connecting(slot, 1);
    assert_eq!(may(&peers, slot), [false; 4]);
    assert!(!peers.get(slot).may_send(invalidation), "operations posted earlier may still be sent");
    peers.connected(slot, 7);
    assert_eq!(may(&peers, slot), [true; 4]);
    peers.reset(slot);
    assert_eq!(may(&peers, slot), [false; 4]);
}

#[test]
fn new_operations_do_not_overtake_queued_ones() {
    let (mut peers, slot) = connected();
    peers.get_mut(slot).queue(message(1, OpFlags::empty()));
    assert_eq!(may(&peers, slot), [false; 4]);
    assert!(peers.get(slot).may_send_first());
    let first = peers.get_mut(slot).take_first().unwrap();
    assert_eq!(may(&peers, slot), [true; 4]);
    peers.get_mut(slot).put_back(first);
    assert_eq!(may(&peers, slot), [false; 4]);
    assert_eq!(contexts(peers.get_mut(slot)), [1]);
    assert!(!peers.get(slot).may_send_first(), "the queue is empty");
}

#[test]
fn group_messages_precede_other_operations_in_order() {
    let (mut peers, slot) = connected();
    let peer = peers.get_mut(slot);
    peer.queue(message(1, OpFlags::empty()));
    peer.queue_for_group(of_group(2));
    peer.queue_for_group(of_group(3));
    peer.queue(message(4, OpFlags::empty()));
    assert!(peer.take_matching(|pending| pending.entry().is_some_and(|entry| entry.context == 9)).is_none());
    assert_eq!(contexts(peer), [2, 3, 1, 4]);
}

#[test]
fn fence_waits_for_operations_but_not_for_group_messages() {
    let (mut peers, slot) = connected();
    let peer = peers.get_mut(slot);
    peer.queue(message(1, OpFlags::FENCE));
    assert!(peer.may_send_first());
    peer.started();
    peer.started();
    peer.started_for_group();
    assert!(!peer.may_send_first());
    peer.finished();
    assert!(peer.may_send_first(), "only the message of a group is left");
    let _ = peer.take_first();
    peer.started();
    assert!(
        peer.may_send(OutgoingKind::Access { fenced: false }) && !peer.may_send(OutgoingKind::Access { fenced: true })
    );
}

#[test]
fn messages_wait_for_long_writes_and_for_notices() {
    let (mut peers, slot) = connected();
    let all = [true; 4];
    peers.get_mut(slot).notice_queued();
    assert_eq!(may(&peers, slot), [false, false, false, true], "an access may add a notice");
    peers.get_mut(slot).queue(message(1, OpFlags::empty()));
    assert!(!peers.get(slot).may_send_first());
    assert_eq!(contexts(peers.get_mut(slot)), [1]);
    peers.get_mut(slot).notice_left();
    assert_eq!(may(&peers, slot), all);
    // The peer executes a long write.
    peers.get_mut(slot).execution_started();
    assert_eq!(may(&peers, slot), [true, true, false, true]);
    peers.get_mut(slot).long_write_started();
    assert_eq!(may(&peers, slot), [false, false, false, true]);
    peers.get_mut(slot).execution_ended(true);
    assert_eq!(may(&peers, slot), all);
    // A write is made by RDMA.
    peers.get_mut(slot).rdma_started(true);
    assert_eq!(may(&peers, slot), [false, false, true, true]);
    peers.get_mut(slot).rdma_ended(true);
    assert_eq!(may(&peers, slot), all);
}

#[test]
fn queued_access_begins_after_the_notices_of_earlier_writes() {
    let (mut peers, slot) = connected();
    let peer = peers.get_mut(slot);
    peer.notice_queued();
    peer.queue(write(1));
    assert!(!peer.may_send_first(), "the access may add a notice");
    peer.notice_left();
    assert!(peer.may_send_first());
    // Once the access has begun, its other parts add no notice.
    let mut first = peer.take_first().unwrap();
    let QueuedWork::Access(access) = &mut first.work else { panic!("{first:?}") };
    assert!(RemoteAccesses::default().start(slot, access, Notify::Queue, None).is_some());
    peer.put_back(first);
    peer.notice_queued();
    assert!(peer.may_send_first());
}

#[test]
fn direct_and_executed_accesses_do_not_overlap() {
    let (mut peers, slot) = connected();
    let peer = peers.get_mut(slot);
    peer.execution_started();
    assert!(!peer.may_send(OutgoingKind::DirectAccess) && peer.may_send(OutgoingKind::ExecutedAccess));
    let in_a_row = std::iter::from_fn(|| peer.count_executed_instead().then_some(())).count();
    assert_eq!(in_a_row, 16, "further accesses wait for the executed ones");
    peer.forget_executed_instead();
    assert!(peer.count_executed_instead());
    peer.execution_ended(false);
    peer.rdma_started(false);
    assert!(peer.may_send(OutgoingKind::DirectAccess) && !peer.may_send(OutgoingKind::ExecutedAccess));
    assert!(peer.may_send(OutgoingKind::Message), "a read delays no message");
}

#[test]
fn access_parts_and_bytes_are_limited() {
    let (mut peers, slot) = connected();
    let peer = peers.get_mut(slot);
    assert!(peer.may_send(OutgoingKind::AccessPart { long_bytes: LONG_BYTES }));
    assert!(!peer.may_send(OutgoingKind::AccessPart { long_bytes: LONG_BYTES + 1 }));
    (0..PARTS_LIMIT).for_each(|_| peer.part_sent());
    assert!(!peer.may_send(OutgoingKind::AccessPart { long_bytes: 0 }));
    peer.part_ended();
    assert!(peer.may_send(OutgoingKind::AccessPart { long_bytes: 0 }));
}

#[test]
fn offers_only_peer_gets_no_eager_message() {
    let (mut peers, slot) = connected();
    peers.set_offers_only(slot, true);
    assert_eq!(may(&peers, slot), [false, true, true, true], "messages of groups are offered when they start");
    peers.get_mut(slot).queue(message(1, OpFlags::empty()));
    assert!(peers.get(slot).may_send_first(), "the queued message is offered");
}

#[test]
fn raw_operation_queue_is_bounded() {
    const KINDS: [QueuingKind; 3] = [QueuingKind::Message, QueuingKind::Access, QueuingKind::Window];
    for up in [false, true] {
        let mut peers = Peers::new(None, false, CAP);
        let slot = peers.slot(at(1));
        let may = |peers: &Peers, notify, fenced| KINDS.map(|what| peers.get(slot).may_queue(what, notify, fenced));
        assert_eq!(may(&peers, Notify::Queue, false), [true; 3]);
        peers.get_mut(slot).queue(message(0, OpFlags::empty()));
        if up {
            peers.connected(slot, 7);
        }
        assert_eq!(may(&peers, Notify::Queue, false), [!up, true, true], "if it is up, the queue is being sent");
        for context in 1..4096 {
            assert_eq!(may(&peers, Notify::Queue, false), [!up, !up || context < 1024, true], "{context}");
            assert_eq!(may(&peers, Notify::Queue, true), [true; 3], "{context} wait; fenced operations may too");
            peers.get_mut(slot).queue(message(context, OpFlags::empty()));
        }
        for fenced in [false, true] {
            assert_eq!(may(&peers, Notify::Queue, fenced), [false; 3], "up: {up}, fenced: {fenced}");
            assert_eq!(may(&peers, Notify::Operation, fenced), [true; 3]);
        }
    }
}

#[test]
fn answers_are_sent_in_order_after_refused_ones() {
    let (mut peers, slot) = connected();
    let id = |action: &LinkAction| match action {
        LinkAction::Frame(head) => head.id,
        other => panic!("{other:?}"),
    };
    assert!(!peers.has_actions() && !peers.has_answers());
    (1..=3).for_each(|number| peers.reply(slot, FrameKind::Ack, number, 0));
    assert!(peers.next_is_frame_for(slot) && !peers.next_is_frame_for(slot + 1) && peers.has_actions_for(slot));
    let mut left = Vec::new();
    while let Some((to, action)) = peers.next_action() {
        // The link refuses the second action.
        if peers.may_answer(to) && id(&action) != 2 {
            left.push(id(&action));
        } else {
            peers.queue_answer(to, action);
        }
    }
    assert!(peers.has_answers() && peers.get(slot).has_queued_answers() && peers.get(slot).has_something_to_send());
    let refused = peers.next_queued_answer(slot).unwrap();
    peers.requeue_answer(slot, refused);
    while let Some(action) = peers.next_queued_answer(slot) {
        left.push(id(&action));
    }
    assert_eq!(left, [1, 2, 3]);
    assert!(peers.may_answer(slot) && !peers.has_answers());
    peers.push(slot, answer(4));
    peers.drop_actions_for(slot);
    assert!(!peers.has_actions());
}

#[test]
fn answers_of_an_ended_connection_are_dropped() {
    let (mut peers, slot) = connected();
    let other = peers.slot(at(2));
    peers.connected(other, 9);
    (1..=2).for_each(|number| peers.queue_answer(slot, answer(number)));
    for (to, number) in [(slot, 3), (slot, 4), (other, 5), (slot, 6)] {
        peers.push(to, answer(number));
    }
    peers.reset(slot);
    peers.end_budget(slot);
    peers.drop_actions_for(slot);
    let left: Vec<_> = std::iter::from_fn(|| peers.next_action()).map(|(to, _)| to).collect();
    assert_eq!(left, [other], "another peer may use the slot next");
    assert!(!peers.get(slot).has_queued_answers() && !peers.has_answers(), "no answer waits");
}

#[test]
fn messages_wait_behind_a_long_backlog_of_answers() {
    let (mut peers, slot) = connected();
    for number in 0..=BACKLOG as u32 {
        peers.queue_answer(slot, LinkAction::Frame(Head { id: number, ..Head::default() }));
    }
    assert!(!peers.is_read(slot) && !peers.get(slot).may_send(OutgoingKind::Message));
    while peers.next_queued_answer(slot).is_some() {}
    assert!(peers.is_read(slot) && peers.get(slot).may_send(OutgoingKind::Message));
}

#[test]
fn peer_above_cap_sends_offers_only_until_half_is_free() {
    let (mut peers, slot) = connected();
    let offers_request = |peers: &mut Peers| match peers.next_action() {
        Some((_, LinkAction::Frame(head))) if head.kind == FrameKind::Offers => Some(head.id != 0),
        None => None,
        other => panic!("{other:?}"),
    };
    peers.charge(slot, CAP);
    assert_eq!(offers_request(&mut peers), None);
    peers.charge(slot, 1);
    assert_eq!(offers_request(&mut peers), Some(true));
    peers.release(slot, CAP / 2);
    assert_eq!(offers_request(&mut peers), None);
    peers.release(slot, 1);
    assert_eq!(offers_request(&mut peers), Some(false));
    peers.charge(slot, CAP + BEYOND);
    assert!(!peers.is_read(slot));
}

#[test]
fn messages_of_the_earliest_departed_peer_are_dropped_first() {
    let mut peers = Peers::new(None, false, CAP);
    let slots = [1, 2, 3].map(|n| peers.slot(at(n)));
    let most = CAP + BEYOND;
    let mut overdue = Vec::new();
    for slot in slots {
        peers.connected(slot, u128::from(slot) + 1);
        peers.charge(slot, most);
        peers.reset(slot);
        peers.end_budget(slot);
        overdue.push(peers.take_overdue(slot));
    }
    assert_eq!(overdue, [vec![], vec![], vec![slots[0]]]);
}

#[test]
fn messages_of_a_peer_that_disconnects_repeatedly_are_counted_once() {
    let (mut peers, slot) = connected();
    peers.charge(slot, CAP + BEYOND);
    for incarnation in 8..12 {
        peers.reset(slot);
        peers.end_budget(slot);
        assert!(peers.take_overdue(slot).is_empty());
        peers.connected(slot, incarnation);
    }
}

#[test]
fn slot_is_queued_once_for_reclaiming() {
    let mut peers = Peers::new(None, false, CAP);
    let [first, second] = [1, 2].map(|n| peers.slot(at(n)));
    let queued = |peers: &mut Peers| std::iter::from_fn(|| peers.next_to_reclaim()).collect::<Vec<_>>();
    // The second connection of the first slot ends before the slot is reclaimed.
    [first, second, first].into_iter().for_each(|slot| peers.part(slot));
    assert_eq!(queued(&mut peers), [first, second]);
    peers.part(first);
    assert_eq!(queued(&mut peers), [first], "the slot was in use again");
}

#[test]
fn transfers_and_requests_for_offers_end_with_the_connection() {
    let (mut peers, slot) = connected();
    (0..2 * PARTS_LIMIT).for_each(|_| peers.get_mut(slot).serving_started());
    assert!(!peers.get(slot).exceeds_request_limit());
    peers.set_offers_only(slot, true);
    peers.reset(slot);
    peers.connected(slot, 8);
    assert_eq!(may(&peers, slot), [true; 4], "the peer takes messages again");
    peers.get_mut(slot).serving_started();
    assert!(!peers.get(slot).exceeds_request_limit());
}

#[test]
fn connection_counts_are_reset_when_it_ends() {
    let (mut peers, slot) = connected();
    let peer = peers.get_mut(slot);
    peer.execution_started();
    peer.long_write_started();
    peer.notice_queued();
    peer.part_sent();
    (0..10_000).for_each(|_| peer.reply_queued());
    assert!(peer.exceeds_request_limit() && peer.stage(2 * LONG_BYTES) && !peer.stage(1));
    peers.flag_violation(slot, "for a test");
    assert!(peers.any_violation() && peers.get(slot).violation().is_some());
    peers.reset(slot);
    peers.connected(slot, 8);
    assert_eq!(may(&peers, slot), [true; 4]);
    assert!(!peers.get(slot).exceeds_request_limit() && peers.get_mut(slot).stage(1));
    assert_eq!((peers.get(slot).violation(), peers.get(slot).incarnation()), (None, 8));
}

#[test]
fn alias_lasts_until_the_connection_of_the_other_slot_ends() {
    let (mut peers, real) = connected();
    let slot = peers.slot(at(2));
    peers.get_mut(slot).queue(message(1, OpFlags::empty()));
    peers.alias(slot, real);
    assert_eq!(peers.real_slot(at(2)), real);
    assert_eq!(contexts(peers.get_mut(real)), [1], "waiting messages use that connection");
    assert!(!peers.get(real).is_free());
    peers.reset(real);
    assert_eq!(peers.real_slot(at(2)), slot);
    assert!(peers.get(slot).is_idle() && peers.get(slot).is_lost());
}

#[test]
fn source_of_messages_does_not_depend_on_the_address_that_was_used_last() {
    let vector = AddressVector::new(VectorOptions::default()).unwrap();
    let mut peers = Peers::new(Some(vector.clone()), false, CAP);
    let [own, other] = [1, 2].map(|number| vector.insert(at(number).0).unwrap());
    let real = peers.resolve(own).unwrap();
    assert_eq!(peers.source(real), own);
    let slot = peers.slot(at(2));
    peers.alias(slot, real);
    assert_eq!(peers.resolve(other), Ok(real));
    assert_eq!(peers.source(real), own);
}

#[test]
fn advertised_address_does_not_resolve_to_a_slot() {
    let mut peers = Peers::new(None, false, CAP);
    let nameless = peers.nameless_slot(at(1));
    assert!(!peers.get(nameless).has_address());
    let named = peers.slot(at(1));
    assert_ne!(named, nameless);
    peers.give_up(nameless);
    assert_eq!(peers.slot(at(2)), nameless, "the slot belongs to another peer");
    assert!(peers.advertise(named, at(3)) && !peers.advertise(named, at(3)) && !peers.advertise(named, at(1)));
}

#[test]
fn vector_address_resolves_to_a_slot_until_removed() {
    let vector = AddressVector::new(VectorOptions::default()).unwrap();
    let mut peers = Peers::new(Some(vector.clone()), false, CAP);
    let address = vector.insert(at(1).0).unwrap();
    assert_eq!(peers.resolved(address), None, "the address was not resolved yet");
    let slot = peers.resolve(address).unwrap();
    assert_eq!((peers.resolved(address), peers.source(slot)), (Some(slot), address));
    vector.remove(address).unwrap();
    assert_eq!(peers.resolve(address), Err(Unresolved::Unknown));
    assert!(
        {
            let source = peers.source(slot);
            peers.is_connection_address(source)
        } && !peers.is_in_vector(slot)
    );
    assert_eq!(Peers::new(None, false, CAP).resolve(address), Err(Unresolved::NoVector));
}

#[test]
fn connection_address_resolves_until_the_connection_ends() {
    let vector = AddressVector::new(VectorOptions::default()).unwrap();
    for vector in [None, Some(&vector)] {
        let mut peers = Peers::new(vector.cloned(), false, CAP);
        let slot = peers.nameless_slot(at(1));
        peers.connected(slot, 1);
        let source = peers.source(slot);
        assert!(source.is_specified() && !peers.is_in_vector(slot));
        assert_eq!((peers.source(slot), peers.network_address(source)), (source, Some(at(1).0)));
        for _ in 0..2 {
            assert_eq!(peers.resolve(source), Ok(slot));
        }
        peers.reset(slot);
        assert_eq!(peers.resolved(source), None);
        assert_eq!((peers.resolve(source), peers.network_address(source)), (Err(Unresolved::Ended), None));
        peers.give_up(slot);
        assert_eq!(peers.nameless_slot(at(2)), slot, "the slot is another peer's now");
        peers.connected(slot, 2);
        let other = peers.source(slot);
        assert_eq!((peers.resolve(source), peers.resolve(other)), (Err(Unresolved::Ended), Ok(slot)));
        // Another endpoint has the same slot, but not the same connection.
        let mut elsewhere = Peers::new(None, false, CAP);
        let same = elsewhere.nameless_slot(at(1));
        elsewhere.connected(same, 1);
        elsewhere.source(same);
        assert_eq!((same, elsewhere.resolve(other)), (slot, Err(Unresolved::Ended)));
    }
}

#[test]
fn connection_address_is_no_number_of_any_vector() {
    for bits in [0, 1, 8, 16, 31] {
        let options = VectorOptions { receive_context_bits: bits, ..VectorOptions::default() };
        let vector = AddressVector::new(options).unwrap();
        let mut peers = Peers::new(Some(vector.clone()), false, CAP);
        let slot = peers.nameless_slot(at(1));
        peers.connected(slot, 1);
        let source = peers.source(slot);
        assert_eq!(source.is_specified(), bits <= 16);
        assert!(!source.is_specified() || !vector.has_number(source));
    }
    let mut peers = Peers::new(None, false, CAP);
    peers.use_connection_addresses(false);
    let slot = peers.nameless_slot(at(1));
    peers.connected(slot, 1);
    assert_eq!(peers.source(slot), PeerAddress::UNSPECIFIED);
}

//! Tests of operations that wait for other processes, without an engine and without links. Waits for keys that peers use
//! are mostly tested with peers (`engine/tests`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::types::{Notify, Receive, ReceiveDestination};
use super::*;
use crate::Info;
use crate::completion::entry::Entry;
use crate::local_memory::volatile::Segment;
use crate::memory::window::{Window, WindowAccess, WindowError, WindowType};
use crate::region::stuck::StuckPeer;
use crate::region::{Access, AccessOrigin};
use crate::wire::head::{Flags, Head};

const FROM: ConnectionId = 3;
/// Another peer.
const OTHER: ConnectionId = 4;

fn windows() -> [Window; 2] {
    let domain = Info::discover().unwrap().domain().transport("tcp".parse().unwrap()).open().unwrap();
    [(); 2].map(|()| domain.window(domain.type_two().into()).unwrap())
}

fn receive() -> Receive {
    Receive { place: ReceiveDestination::One(Segment::EMPTY), context: 5, notify: Notify::Queue, multi: None }
}

#[test]
fn operation_on_unused_key_completes_immediately() {
    let [one, other] = windows();
    let mut left = DrainingOperations::default();
    assert!(left.is_empty() && left.take_over().is_empty());
    left.await_operation(Arc::clone(&one.cell), 1, (FROM, Notify::Queue, Entry::default()), None);
    assert!(left.has_pending_revocation(&one.cell) && !left.has_pending_revocation(&other.cell));
    assert_eq!([left.operations_to(FROM), left.operations_to(OTHER)], [1, 0]);
    let over = left.take_over();
    let [DrainingItem::Window(pending_revocation)] = over.as_slice() else { panic!("{over:?}") };
    assert!(pending_revocation.is_settled());
    assert!(left.is_empty() && !left.has_pending_revocation(&one.cell));
}

#[test]
fn invalidating_message_is_reported_when_key_has_no_users() {
    let [window, _] = windows();
    let mut left = DrainingOperations::default();
    let head = Head { data: 9, ..Head::default() };
    assert!(left.may_report(FROM, &head, 4, &receive()), "no operation waits for the message");
    left.await_message(Arc::clone(&window.cell), 9, FROM);
    assert_eq!(left.operations_to(FROM), 0, "the wait is not an operation of this endpoint");
    assert!(left.may_report(OTHER, &head, 4, &receive()), "another peer's message");
    assert_eq!(left.len(), 1);
    left.peer_gone(FROM);
    assert!(left.may_report(FROM, &head, 4, &receive()));
    assert!(left.is_empty(), "the wait ends with the peer");
}

/// A message that invalidated a key is reported when the key has no users. It is not answered if its sender has
/// disconnected, because the sender's slot may belong to another peer.
#[test]
fn invalidating_message_of_disconnected_peer_is_not_answered() {
    let domain = Info::discover().unwrap().domain().transport("tcp".parse().unwrap());
    let domain = domain.revoke_timeout(Duration::from_millis(1)).open().unwrap();
    let region = domain.register(vec![0; 8], Access::empty()).unwrap();
    for (gone, is_answered) in [(FROM, false), (OTHER, true)] {
        let mut window = domain.window(WindowType::One).unwrap();
        let key = window.bind(&region, 0..8, WindowAccess::READ).unwrap().key;
        let user = StuckPeer::at(&domain.inner.keys, key, AccessOrigin::default());
        assert_eq!(window.bind(&region, 0..8, WindowAccess::READ), Err(WindowError::Busy), "the key has a user");
        let mut left = DrainingOperations::default();
        left.await_message(Arc::clone(&window.cell), key, FROM);
        let flags = Flags::ID | Flags::ACK | Flags::DATA | Flags::INVALIDATE;
        assert!(!left.may_report(FROM, &Head { data: key, flags, ..Head::default() }, 4, &receive()));
        left.peer_gone(gone);
        assert!(left.take_over().is_empty(), "the key has a user");
        user.retired.store(true, Ordering::Release);
        let Some(DrainingItem::Window(over)) = left.take_over().pop() else { panic!("{left:?}") };
        let RevocationOutcome::Message { from, head, len, .. } = over.into_outcome() else {
            panic!("the message is reported")
        };
        assert_eq!((from, head.data, len), (FROM, key, 4));
        assert_eq!(head.flags.contains(Flags::ACK), is_answered, "peer {gone} has disconnected");
    }
}

#[test]
fn closed_endpoint_abandons_operations_waiting_for_keys() {
    let [window, _] = windows();
    let mut left = DrainingOperations::default();
    let entry = Entry { context: 7, ..Entry::default() };
    left.await_operation(Arc::clone(&window.cell), 1, (FROM, Notify::Queue, entry), None);
    left.await_message(Arc::clone(&window.cell), 9, FROM);
    let abandoned = left.take_all().into_iter().map(|item| match item {
        DrainingItem::Window(pending_revocation) => match pending_revocation.abandon() {
            AbandonedReport::Operation(_, entry) => Some(entry.context),
            AbandonedReport::Nothing | AbandonedReport::Message(..) => None,
        },
        DrainingItem::Link(broken) => panic!("{broken:?}"),
    });
    assert_eq!(abandoned.collect::<Vec<_>>(), [Some(7), None]);
    assert!(left.is_empty());
}

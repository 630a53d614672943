//! Tests of queue pairs that fail, on a device if there is one. Otherwise each test prints why it was skipped.

use super::*;
use crate::TransportKind;
use crate::transport::any::AnyLink;

/// Connects two test endpoints by queue pairs.
pub(super) fn connected() -> Option<(TestEndpoint, TestEndpoint, PeerAddress)> {
    let info = Info::discover().unwrap();
    let verbs = info.transports().iter().find(|one| one.kind == TransportKind::Verbs).unwrap();
    if !verbs.available {
        println!("skipped (RDMA): no verbs here: {}", verbs.reason);
        return None;
    }
    let (a, b) = (TestEndpoint::new("verbs"), TestEndpoint::new("verbs"));
    let peer = connect(&a, &b);
    Some((a, b, peer))
}

/// Requirements: FLT-001.
#[test]
fn queue_pair_error_ends_pending_operations_on_both_sides() {
    let Some((a, b, to_b)) = connected() else { return };
    let to_a = b.peer(&a);
    let long = || vec![1; 2 << 20];
    let sends = [a.endpoint.tagged_send(to_b, 7, long()), b.endpoint.tagged_send(to_a, 7, long())];
    let receives = [a.endpoint.recv(vec![0; 8]).from(to_b), b.endpoint.recv(vec![0; 8]).from(to_a)];
    let before = a.finished() + b.finished();
    let (sends, receives) = (sends.map(|send| send.start().unwrap()), receives.map(|one| one.start().unwrap()));
    let slot = a.slot(&b);
    a.engine(|engine| match &engine.links[slot as usize] {
        Some(AnyLink::Verbs(link)) => link.fail(),
        other => panic!("{other:?}"),
    });
    until(&[&a, &b], || (a.finished() + b.finished() == before + 4).then_some(()));
    sends.into_iter().for_each(|mut send| assert_eq!(send.wait().unwrap_err().errno(), libc::ECONNRESET));
    receives.into_iter().for_each(|mut one| assert_eq!(one.wait().unwrap_err().errno(), libc::ECONNRESET));
    let reason = a.ended().expect("an event");
    assert!(reason.contains("queue pair is in error"), "{reason}");
    assert!(b.ended().is_some());
    // The next operation starts a new connection.
    connect(&a, &b);
}

/// Requirements: FLT-001.
#[test]
fn queue_pair_error_wakes_sleeping_endpoint() {
    let Some((a, b, to_b)) = connected() else { return };
    until(&[&a, &b], || (!a.endpoint.progress() && !b.endpoint.progress()).then_some(()));
    let slot = b.slot(&a);
    let (posted, waits) = std::sync::mpsc::channel();
    let sleeping = std::thread::spawn(move || {
        let mut receive = a.endpoint.recv(vec![0; 8]).from(to_b).start().unwrap();
        posted.send(()).unwrap();
        receive.wait().unwrap_err().errno()
    });
    waits.recv().unwrap();
    b.engine(|engine| match &engine.links[slot as usize] {
        Some(AnyLink::Verbs(link)) => link.fail(),
        other => panic!("{other:?}"),
    });
    // The queue pair of the other side reports nothing. The owner of the failed queue pair closes the connection, which
    // is reported.
    until(&[&b], || b.ended());
    assert_eq!(sleeping.join().unwrap(), libc::ECONNRESET);
}

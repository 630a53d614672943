//! Tests of waiting operations without an engine and without links.

use super::*;
use crate::endpoint::work::{OpFlags, SendWork};
use crate::local_memory::volatile::Segments;
use crate::transport::shm::WakeMethod;
use crate::types::PeerAddress;

fn operations() -> TriggeredOperations {
    TriggeredOperations::new(Arc::new(Doorbell::new().expect("a doorbell")))
}

/// Returns a send with this context that waits.
fn transfer(operations: &TriggeredOperations, context: u64) -> Transfer {
    let (peer, segments, flags) = (PeerAddress::UNSPECIFIED, Segments::EMPTY, OpFlags::empty());
    let work = SendWork { peer, segments, tag: None, data: None, context, flags };
    Transfer {
        operation: Posted::lent(RawOperation::Send(work)),
        notify: Notify::Event,
        counting: None,
        quiet: false,
        canceled: false,
        located: None,
        endpoint: Some(Arc::clone(operations.submissions())),
    }
}

fn queue(operations: &mut TriggeredOperations, counter: &Counter, context: u64, threshold: u64) -> bool {
    let transfer = transfer(operations, context);
    operations.queue(transfer, counter, Condition::Successes(threshold)).unwrap()
}

/// Takes the contexts of the operations that are due.
fn due(operations: &mut TriggeredOperations) -> Vec<u64> {
    let Some(mut due) = operations.take_due() else { return Vec::new() };
    let contexts = due.drain(..).map(|transfer| transfer.context()).collect();
    operations.return_due(due);
    contexts
}

#[test]
fn operations_are_due_in_the_order_of_their_thresholds() {
    let (mut operations, counter) = (operations(), Counter::new());
    for (context, threshold) in [(1, 3), (2, 1), (3, 2), (4, 2)] {
        assert!(!queue(&mut operations, &counter, context, threshold));
    }
    assert!(due(&mut operations).is_empty());
    counter.add(2);
    assert_eq!(due(&mut operations), [2, 3, 4]);
    counter.add(1);
    assert_eq!(due(&mut operations), [1]);
    assert!(operations.take_due().is_none());
}

#[test]
fn a_cancelled_operation_is_not_due() {
    let (mut operations, counter) = (operations(), Counter::new());
    for context in [1, 2, 2] {
        queue(&mut operations, &counter, context, 1);
    }
    assert!(operations.cancel(2, true).is_none(), "no safe handle has this number");
    assert!(operations.cancel(2, false).is_some_and(|transfer| transfer.context() == 2));
    counter.add(1);
    assert_eq!(due(&mut operations), [1, 2], "one of two operations with the context");
    assert!(operations.cancel(2, false).is_none());
}

#[test]
fn cancel_leaves_operations_of_other_endpoints() {
    let counter = Counter::new();
    let [mut one, mut other] = [operations(), operations()];
    queue(&mut one, &counter, 1, 1);
    queue(&mut other, &counter, 1, 1);
    assert!(one.cancel(1, false).is_some() && one.cancel(1, false).is_none());
    queue(&mut one, &counter, 2, 1);
    let ended: Vec<u64> = one.close([None, None]).iter().map(|transfer| transfer.context()).collect();
    assert_eq!(ended, [2]);
    counter.add(1);
    assert!(due(&mut one).is_empty());
    assert_eq!(due(&mut other), [1]);
}

#[test]
fn counter_wakes_every_endpoint_whose_operations_are_due() {
    let counter = Counter::new();
    let doorbells = [(); 3].map(|()| Arc::new(Doorbell::new().expect("a doorbell")));
    let mut endpoints = doorbells.each_ref().map(|doorbell| TriggeredOperations::new(Arc::clone(doorbell)));
    for context in [1, 2] {
        endpoints.iter_mut().for_each(|operations| assert!(!queue(operations, &counter, context, 1)));
    }
    doorbells.iter().for_each(|doorbell| doorbell.arm(WakeMethod::Event));
    let is_awake = |doorbell: &Arc<Doorbell>| {
        let (event, now) = (doorbell.event_fd(), rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 });
        let mut polled = [rustix::event::PollFd::new(&event, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut polled, Some(&now)).expect("poll") == 1
    };
    assert!(!doorbells.iter().any(is_awake));
    counter.add(1);
    assert_eq!(doorbells.each_ref().map(is_awake), [true; 3]);
    assert_eq!(endpoints.each_mut().map(due), [[1, 2]; 3]);
}

#[test]
fn an_operation_that_has_begun_is_found_by_its_context_until_it_ends() {
    let mut operations = operations();
    assert!(!operations.any());
    operations.expect();
    assert!(operations.any());
    let begun = Triggered::new(Box::new(transfer(&operations, 5)), None);
    let id = operations.add_begun(begun);
    assert_eq!(operations.begun_with(5, false), [id.to_u64()]);
    assert!(operations.begun_with(5, true).is_empty() && operations.begun_with(6, false).is_empty());
    assert!(operations.arriving(id.to_u64()).is_none(), "the memory is host memory");
    let begun = operations.take_begun(id).unwrap();
    assert_eq!(begun.transfer().context(), 5);
    let entry = Entry { context: 5, ..Entry::default() };
    assert_eq!(begun.land(Side::Transmit, Ok(entry)).map(|entry| entry.context).ok(), Some(5));
    assert!(operations.take_begun(id).is_none() && operations.begun_with(5, false).is_empty());
}

//! Waits for queues and counters of an endpoint with one owner. Only the owner can drive such an endpoint.

use std::time::Duration;

use percale::completion::wait::WaitError;
use percale::{CompletionQueue, Counter, Endpoint, Entry, Event, EventQueue, PostError, WaitSet};

use crate::fabric::Real;
use crate::watchdog::Watchdog;

/// While an endpoint has one owner, waits with and without a timeout are rejected, and the error suggests a solution.
pub fn waits_that_no_thread_could_end_are_refused<F: Real>() {
    let _watchdog = Watchdog::new("waits that no thread could end are refused");
    let fabric = F::new(1);
    let domain = fabric.domain(|domain| domain);
    let vector = domain.address_vector().build().expect("a vector");
    let (queue, counter, set) = (CompletionQueue::default(), Counter::new(), WaitSet::new());
    set.add(&counter).expect("room");
    let builder = domain.endpoint().vector(&vector).receive_queue(&queue).receive_counter(&counter);
    let endpoint = builder.bind(fabric.address()).expect("an endpoint");
    let me = vector.insert(endpoint.address()).expect("an address");
    let mut entries = [Entry::default(); 2];
    let mut refused = || {
        for timeout in [None, Some(Duration::from_secs(1000))] {
            assert_eq!(counter.wait(1, timeout).expect_err("refused").errno(), libc::EDEADLK);
            let error = queue.wait(&mut entries, timeout).expect_err("refused");
            assert_eq!(error.errno(), libc::EDEADLK);
            assert!(error.to_string().contains("bind_shared"), "{error}");
            assert!(matches!(set.wait(timeout), Err(WaitError::NotDriven)));
        }
        for calm in [queue.try_wait(), counter.try_wait(), set.try_wait()] {
            assert!(!calm.expect("descriptors"), "nothing would make the descriptor readable");
        }
    };
    refused();
    // The same holds while an operation is outstanding. Available results are returned.
    let mut receiving = endpoint.recv(vec![0; 8]).start().expect("a receive");
    inject(&endpoint, me);
    refused();
    let message = loop {
        if receiving.is_ready() {
            break receiving.wait();
        }
        fabric.tick();
    };
    assert_eq!(message.expect("a message").len, 8);
    drop(receiving);
    counter.wait(1, None).expect("the message was counted");
    set.wait(None).expect("the message was counted");
    // Any waiting thread can drive a shared endpoint. A wait is also permitted if there is no endpoint.
    let shared = endpoint.share().expect("descriptors");
    let receiving = shared.recv(vec![0; 8]).start().expect("a receive");
    inject(&shared, me);
    counter.wait(2, None).expect("the wait drives the endpoint");
    drop(receiving);
    drop(shared);
    let error = counter.wait(9, Some(Duration::from_millis(1))).expect_err("no endpoint drives the counter");
    assert_eq!(error.errno(), libc::ETIMEDOUT);
}

/// The same holds for the event queue of an endpoint with one owner, and for a set that contains it. Events that are
/// there are returned.
pub fn waits_for_events_that_no_thread_could_report_are_refused<F: Real>() {
    let _watchdog = Watchdog::new("waits for events that no thread could report are refused");
    let fabric = F::new(1);
    let domain = fabric.domain(|domain| domain);
    let vector = domain.address_vector().build().expect("a vector");
    let (events, set) = (EventQueue::default(), WaitSet::new());
    set.add(&events).expect("room");
    let endpoint = domain.endpoint().vector(&vector).event_queue(&events).bind(fabric.address()).expect("an endpoint");
    for timeout in [None, Some(Duration::from_secs(1000))] {
        let error = events.wait(timeout).expect_err("refused");
        assert!(matches!(error, WaitError::NotDriven) && error.to_string().contains("bind_shared"), "{error}");
        assert!(matches!(set.wait(timeout), Err(WaitError::NotDriven)));
    }
    assert!(!events.try_wait().expect("a descriptor"), "nothing would make the descriptor readable");
    events.write(7, *b"news").expect("room");
    assert!(matches!(events.wait(None), Ok(Event::User { code: 7, .. })));
    let shared = endpoint.share().expect("descriptors");
    let error = events.wait(Some(Duration::from_millis(1))).expect_err("there is no event");
    assert!(matches!(error, WaitError::TimedOut), "{error}");
    drop(shared);
}

/// The same holds for a counter that only counts deferred work of such an endpoint.
pub fn waits_for_deferred_work_that_no_thread_drives_are_refused<F: Real>() {
    let _watchdog = Watchdog::new("waits for deferred work that no thread drives are refused");
    let fabric = F::new(1);
    let domain = fabric.domain(|domain| domain);
    let vector = domain.address_vector().build().expect("a vector");
    let endpoint = domain.endpoint().vector(&vector).bind(fabric.address()).expect("an endpoint");
    let me = vector.insert(endpoint.address()).expect("an address");
    let (start, done) = (Counter::new(), Counter::new());
    let mut receive = endpoint.recv(vec![0; 8]).start().expect("a receive");
    let mut send = endpoint.send(me, vec![1; 8]).when(&start, 1).counting(&done).start().expect("the work waits");
    assert_eq!(done.wait(1, None).expect_err("refused").errno(), libc::EDEADLK);
    start.add(1);
    send.wait().expect("sent");
    done.wait(1, None).expect("the work was counted");
    assert_eq!(receive.wait().expect("a message").len, 8);
    drop((send, receive));
    drop(endpoint);
    let error = done.wait(2, Some(Duration::from_millis(1))).expect_err("no endpoint drives the counter");
    assert_eq!(error.errno(), libc::ETIMEDOUT);
}

fn inject<A: percale::endpoint::Ownership>(endpoint: &Endpoint<A>, to: percale::PeerAddress) {
    while let Err(error) = endpoint.inject(to, &[1; 8]) {
        assert_eq!(error, PostError::Again);
        endpoint.progress();
    }
}

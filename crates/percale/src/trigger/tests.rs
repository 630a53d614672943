//! Tests of counters that change counters. The conformance suite tests operations of endpoints.

#![expect(unsafe_code, reason = "tests the raw API; each block states why its call is sound")]

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use super::*;
use crate::completion::counter::Counter;
use crate::completion::entry::{CompletionFlags, ErrorCode};
use crate::completion::wait::Driven;
use crate::domain::{Domain, DomainBuilder};
use crate::endpoint::work::{OpFlags, ReceiveWork};
use crate::local_memory::volatile::Segments;
use crate::{CompletionQueue, PeerAddress, SharedEndpoint};

fn domain() -> Domain {
    let network = crate::transport::sim::Network::new(1, crate::transport::sim::SimOptions::default());
    DomainBuilder::new(false, None, false, false, String::new()).simulated(&network).open().unwrap()
}

/// Requirements: DWQ-002, DWQ-003, DWQ-007.
#[test]
fn deferred_add_and_set_change_counters() {
    let domain = domain();
    let [trigger, other] = [Counter::new(), Counter::new()];
    domain.defer_add(&other, 5, (&trigger, 2)).unwrap();
    domain.defer_set(&other, 100, (&trigger, 3)).unwrap();
    trigger.add(1);
    assert_eq!(other.value(), 0);
    trigger.add_error(1); // Errors are counted, too.
    assert_eq!(other.value(), 5);
    trigger.add_error(1);
    assert_eq!(other.value(), 100);
    domain.defer_add(&other, 1, (&trigger, 3)).unwrap();
    assert_eq!((other.value(), other.read_error()), (101, 0), "work whose threshold is reached begins immediately");
}

/// Requirements: DWQ-008.
#[test]
fn counter_operation_rejects_a_completion_counter() {
    let (domain, counter) = (domain(), Counter::new());
    for work in [Work::Add(Counter::new(), 1), Work::Set(Counter::new(), 1)] {
        let work = DeferredWork { work, counter: counter.clone(), threshold: 1, counting: Some(Counter::new()) };
        // SAFETY: the operation uses no memory.
        let error = unsafe { domain.queue_work(work) }.unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL);
    }
    assert!(!counter.has_work());
}

/// Requirements: DWQ-012, DWQ-013, DWQ-014.
#[test]
fn deferred_work_is_canceled_and_flushed() {
    let (ours, others) = (domain(), domain());
    let [first, second, count] = [Counter::new(), Counter::new(), Counter::new()];
    let queue = |domain: &Domain, on: &Counter| domain.defer_add(&count, 1, (on, 1)).unwrap();
    let work = queue(&ours, &first);
    assert!(!others.cancel_work(&work), "the work belongs to another domain");
    assert!(ours.cancel_work(&work) && !ours.cancel_work(&work));
    first.add(1);
    assert_eq!(count.value(), 0);
    let begun = queue(&ours, &first);
    assert!(!ours.cancel_work(&begun), "the work has begun");
    assert_eq!(count.value(), 1);
    first.set(0);
    for counter in [&first, &second] {
        queue(&ours, counter);
        queue(&ours, counter);
        queue(&others, counter);
    }
    assert_eq!(ours.flush_work(Some(&first)), 2);
    assert_eq!(ours.flush_work(None), 2);
    assert_eq!(ours.flush_work(None), 0);
    first.add(1);
    second.add(1);
    assert_eq!(count.value(), 3, "the other domain's work begins");
    let gone = queue(&ours, &Counter::new());
    assert!(!ours.cancel_work(&gone), "the counter no longer exists");
}

/// Requirements: DWQ-020.
#[test]
fn a_chain_of_any_length_runs_and_is_dropped() {
    const LENGTH: u64 = 200_000;
    let domain = domain();
    for run in [true, false] {
        let first = Counter::new();
        let mut last = first.clone();
        for _ in 0..LENGTH {
            let next = Counter::new();
            domain.defer_add(&next, 1, (&last, 1)).unwrap();
            last = next;
        }
        if run {
            first.add(1);
        }
        assert_eq!(last.value(), u64::from(run));
        drop(last);
        drop(first);
    }
}

/// Requirements: DWQ-020.
#[test]
fn counter_may_trigger_itself() {
    let (domain, counter) = (domain(), Counter::new());
    for threshold in (1..1000).rev() {
        domain.defer_add(&counter, 1, (&counter, threshold)).unwrap();
    }
    counter.add(1);
    assert_eq!(counter.value(), 1000);
}

/// Requirements: DWQ-021.
#[test]
fn concurrent_add_and_queue_lose_no_work() {
    const EACH: u64 = 20_000;
    let domain = domain();
    let [trigger, done] = [Counter::new(), Counter::new()];
    let (queued, next) = (AtomicU64::new(0), AtomicU64::new(1));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    domain.defer_add(&done, 1, (&trigger, next.fetch_add(1, Ordering::Relaxed))).unwrap();
                    queued.fetch_add(1, Ordering::Relaxed);
                }
            });
            scope.spawn(|| (0..EACH).for_each(|_| trigger.add(1)));
        }
    });
    assert_eq!(done.value(), queued.load(Ordering::Relaxed));
    assert!(!trigger.has_work());
}

/// Requirements: DWQ-022.
#[test]
fn waiting_work_keeps_only_required_counters_alive() {
    let domain = domain();
    let (trigger, other) = (Counter::new(), Counter::new());
    let weak = other.downgrade();
    domain.defer_add(&other, 1, (&trigger, 1)).unwrap();
    drop(other);
    assert!(weak.upgrade().is_some(), "the waiting work keeps the counter alive");
    drop(trigger);
    assert!(weak.upgrade().is_none(), "the work can no longer begin");
}

/// Requirements: DWQ-022.
#[test]
fn closed_domain_cancels_its_work() {
    let domain = domain();
    let [trigger, other] = [Counter::new(), Counter::new()];
    domain.defer_add(&trigger, 1, (&trigger, 1)).unwrap(); // Its line holds a handle to the same counter.
    domain.defer_add(&trigger, 1, (&other, 1)).unwrap();
    domain.defer_add(&other, 1, (&trigger, 1)).unwrap(); // Each line now holds a handle to the other counter.
    let weak = [trigger.downgrade(), other.downgrade()];
    drop(domain);
    assert!(!trigger.has_work() && !other.has_work());
    drop([trigger, other]);
    assert!(weak.iter().all(|counter| !counter.is_alive()), "no handle to the counters is left");
}

/// Requirements: DWQ-019.
#[test]
fn work_gets_its_id_before_it_starts() {
    let domain = domain();
    let [trigger, other] = [Counter::new(), Counter::new()];
    let work = DeferredWork { work: Work::Add(other.clone(), 1), counter: trigger, threshold: 0, counting: None };
    let mut name = None;
    // SAFETY: the operation uses no memory.
    unsafe { domain.queue_named_work(work, |id| name = Some((id, other.value()))) }.unwrap();
    let (id, value) = name.expect("a name");
    assert_eq!((value, other.value()), (0, 1), "the work was due immediately, but began after `named` returned");
    assert!(!domain.cancel_work(&id));
}

/// Adds to its counters, in order, when it is dropped.
struct Last(std::cell::RefCell<Vec<Counter>>);

impl Drop for Last {
    fn drop(&mut self) {
        self.0.borrow().iter().for_each(|counter| counter.add(1));
    }
}

thread_local! {
    static FIRST_MADE: Last = const { Last(std::cell::RefCell::new(Vec::new())) };
    static LAST_MADE: Last = const { Last(std::cell::RefCell::new(Vec::new())) };
}

/// Destructors that run last in a thread may add to counters, before and after the library's thread-local data was
/// destroyed.
///
/// Requirements: DWQ-020.
#[test]
fn thread_local_destructors_may_add_to_counters() {
    let domain = domain();
    let [first, other, last, end] = std::array::from_fn(|_| Counter::new());
    for counter in [&first, &last] {
        for value in 1..5 {
            domain.defer_add(counter, 1, (counter, value)).unwrap();
        }
        domain.defer_add(&end, 1, (counter, 5)).unwrap();
    }
    domain.defer_add(&first, 1, (&other, 1)).unwrap();
    let go = Counter::new();
    domain.defer_add(&go, 1, (&go, 1)).unwrap();
    domain.defer_add(&end, 1, (&go, 2)).unwrap();
    std::thread::spawn(move || {
        FIRST_MADE.with(|counters| counters.0.borrow_mut().push(other));
        go.add(1);
        LAST_MADE.with(|counters| counters.0.borrow_mut().push(last));
    })
    .join()
    .unwrap();
    assert_eq!(end.value(), 3);
}

/// The function that gets the work's id may queue other work, cancel it and access the work of other counters.
///
/// Requirements: DWQ-019.
#[test]
fn id_callback_may_queue_and_cancel_work() {
    let (domain, end) = (domain(), Counter::new());
    let [trigger, other] = [Counter::new(), Counter::new()];
    let work = DeferredWork { work: Work::Add(end.clone(), 1), counter: trigger.clone(), threshold: 1, counting: None };
    let named = |_| {
        let taken = domain.defer_add(&end, 10, (&other, 1)).unwrap();
        domain.defer_add(&end, 100, (&other, 1)).unwrap();
        assert!(domain.cancel_work(&taken));
        assert_eq!(domain.flush_work(Some(&other)), 1);
        domain.defer_add(&end, 1000, (&other, 1)).unwrap();
    };
    // SAFETY: the operation uses no memory.
    unsafe { domain.queue_named_work(work, named) }.unwrap();
    trigger.add(1);
    other.add(1);
    assert_eq!(end.value(), 1001);
}

/// A line stores the owner of the work that was queued last, even after that domain has ended.
///
/// Requirements: DWQ-012.
#[test]
fn flush_cancels_work_after_another_domain_closed() {
    let [trigger, count] = [Counter::new(), Counter::new()];
    // Some work always waits.
    let keeping = domain();
    keeping.defer_add(&count, 1000, (&trigger, u64::MAX - 1)).unwrap();
    for round in 0..50 {
        let ended = domain();
        ended.defer_add(&count, 100, (&trigger, 1)).unwrap();
        drop(ended);
        let ours = domain();
        let work = ours.defer_add(&count, 10, (&trigger, 1)).unwrap();
        if round % 2 == 0 {
            assert!(ours.cancel_work(&work), "the work waits");
        } else {
            assert_eq!(ours.flush_work(None), 1, "the work waits");
        }
        ours.defer_add(&count, 10, (&trigger, 1)).unwrap();
        drop(ours);
    }
    trigger.add(1);
    assert_eq!(count.value(), 0, "work began after its domain had ended");
}

/// A driver of a counter that closes an endpoint when it is asked to make progress automatically.
struct ClosesWhenAutomated(SharedEndpoint);

impl Driven for ClosesWhenAutomated {
    fn progress(&self) {}

    fn automate(&self) -> io::Result<()> {
        self.0.shut();
        Ok(())
    }
}

/// An endpoint is closed after its work was accepted and before the work waits for the counter.
#[test]
fn work_submitted_while_its_endpoint_closes_is_canceled() {
    let (domain, counter) = (domain(), Counter::new());
    let vector = domain.address_vector().build().unwrap();
    let endpoint = domain.endpoint().vector(&vector).bind_shared("10.0.0.1:1").unwrap();
    let driver: Arc<dyn Driven> = Arc::new(ClosesWhenAutomated(endpoint.clone()));
    counter.attach(&driver).unwrap();
    let (from, segments, flags) = (PeerAddress::UNSPECIFIED, Segments::EMPTY, OpFlags::empty());
    let receive = RawOperation::Receive(ReceiveWork { from, segments, tag: None, context: 7, flags });
    let work = Work::Transfer(endpoint.clone(), receive);
    let work = DeferredWork { work, counter: counter.clone(), threshold: 1, counting: None };
    // SAFETY: the operation uses no memory.
    let id = unsafe { domain.queue_work(work) }.unwrap();
    assert!(endpoint.is_closed() && !counter.has_work(), "work of a closed endpoint waits");
    assert!(!domain.cancel_work(&id));
}

/// Closes an endpoint when it is woken.
struct Closes(Mutex<Option<SharedEndpoint>>);

impl Wake for Closes {
    fn wake(self: Arc<Self>) {
        let endpoint = self.0.lock().unwrap().take();
        assert!(endpoint.is_none_or(|endpoint| endpoint.close().is_ok()));
    }

    fn wake_by_ref(self: &Arc<Self>) {}
}

/// Closes an endpoint while the last handle of a counter is being dropped. The operations that are posted here wait for
/// this counter.
fn closed_in_the_drop(
    queue: Option<&CompletionQueue>,
    post: impl FnOnce(&'static SharedEndpoint, &Counter),
) -> &'static SharedEndpoint {
    let domain: &Domain = Box::leak(Box::new(domain()));
    let vector = domain.address_vector().build().unwrap();
    let one = domain.endpoint().vector(&vector);
    let one = queue.into_iter().fold(one, |one, queue| one.receive_queue(queue));
    let one: &SharedEndpoint = Box::leak(Box::new(one.bind_shared("10.0.0.1:1").unwrap()));
    let other = domain.endpoint().vector(&vector).bind_shared("10.0.0.2:1").unwrap();
    let counter = Counter::new();
    post(one, &counter);
    // The operation that was queued last is canceled first, and its waker closes the endpoint of the operations that
    // were queued before.
    let mut last = pin!(other.recv(vec![7; 64]).when(&counter, 5).start().unwrap());
    let waker = Waker::from(Arc::new(Closes(Mutex::new(Some(one.clone())))));
    assert!(last.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(counter);
    assert!(one.is_closed() && !other.is_closed());
    let Poll::Ready(Err(_)) = last.poll(&mut Context::from_waker(&waker)) else {
        panic!("the operation was not canceled")
    };
    one
}

/// Posts a raw receive with this context that waits for the counter.
fn post_receive(endpoint: &SharedEndpoint, counter: &Counter, context: u64) {
    let (from, segments, flags) = (PeerAddress::UNSPECIFIED, Segments::EMPTY, OpFlags::COMPLETION);
    let receive = RawOperation::Receive(ReceiveWork { from, segments, tag: None, context, flags });
    // SAFETY: the operation uses no memory.
    unsafe { endpoint.post_when(&receive, counter, 5) }.unwrap();
}

#[test]
fn canceled_work_is_reported_after_its_endpoint_closed() {
    let post = |endpoint: &'static SharedEndpoint, counter: &Counter| {
        (77..80).for_each(|context| post_receive(endpoint, counter, context));
    };
    let queue = CompletionQueue::default();
    for queue in [None, Some(&queue)] {
        let endpoint = closed_in_the_drop(queue, post);
        let read = || match queue {
            None => endpoint.read_error(),
            Some(queue) => queue.read_error(),
        };
        let mut ended: Vec<_> = std::iter::from_fn(read).collect();
        ended.sort_by_key(|error| error.entry.context);
        let contexts: Vec<_> = ended.iter().map(|error| error.entry.context).collect();
        assert_eq!(contexts, [77, 78, 79], "each once, queue {}", queue.is_some());
        let is_right =
            |flags: CompletionFlags, code| flags.contains(CompletionFlags::RECEIVE) && code == ErrorCode::Canceled;
        assert!(ended.iter().all(|error| is_right(error.entry.flags, error.error)));
    }
}

#[test]
fn late_canceled_safe_operation_reports_only_to_its_handle() {
    let queue = CompletionQueue::default();
    let receiving = Mutex::new(None);
    let post = |endpoint: &'static SharedEndpoint, counter: &Counter| {
        *receiving.lock().unwrap() = Some(endpoint.recv(vec![7; 64]).when(counter, 5).start().unwrap());
    };
    closed_in_the_drop(Some(&queue), post);
    let receiving = pin!(receiving.into_inner().unwrap().unwrap());
    let Poll::Ready(Err(error)) = receiving.poll(&mut Context::from_waker(Waker::noop())) else { panic!("not ended") };
    assert_eq!(error.into_buffer().expect("the error returns the buffer").len(), 64);
    assert!(queue.read_error().is_none(), "the operation's number is not the context of another operation");
}

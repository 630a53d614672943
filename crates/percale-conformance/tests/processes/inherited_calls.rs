//! Every public call on inherited objects, each in a separate forked child. The call must return an error. It must not
//! hang or end the child by a signal. Threads of the parent are in the middle of such calls when it forks.

#![expect(unsafe_code, reason = "an alarm that ends a child which hangs; the block states its reason")]

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use percale::endpoint::safe::{Cause, Operation, OperationError, OperationSet, Received};
use percale::endpoint::{Owned, Ownership};
use percale::{
    Access, AddressVector, Buffer, CompletionQueue, Counter, Domain, Endpoint, Entry, Event, EventQueue, PeerAddress,
    PollSet, PostError, Region, SharedEndpoint, WaitSet,
};
use percale_conformance::peers::open_as_told;
use percale_conformance::process::{Helper, fork};
use percale_conformance::watchdog::Watchdog;
use rustix::process::{Pid, WaitOptions, waitpid};

crate::on!(shm, tcp: {
    calls_on_inherited_objects_are_rejected,
});

/// Requirements: FLT-010.
fn calls_on_inherited_objects_are_rejected(kind: &str) {
    let _watchdog = Watchdog::new("calls on inherited objects are rejected");
    Helper::start("inherited-calls", &[("PERCALE_FABRIC", kind)]).end();
}

/// A short time, within which every call on an inherited object must return.
pub(crate) const MOMENT: Duration = Duration::from_millis(100);

/// Makes a call in a forked child. `call` returns whether the call returned an error.
pub(crate) fn case(name: &str, call: impl FnOnce() -> bool) {
    let child = fork(|| {
        // SAFETY: if the call hangs, this ends only this child.
        unsafe { libc::alarm(20) };
        call()
    });
    let child = Pid::from_raw(child).expect("a process id");
    let (_, status) = waitpid(Some(child), WaitOptions::empty()).expect("a child").expect("the child's status");
    assert_eq!(status.terminating_signal(), None, "{name}: ended by a signal (14: it hung)");
    assert_eq!(status.exit_status(), Some(0), "{name}: not refused");
    println!("{name}: refused");
}

pub(crate) fn polled<F: Future>(future: &mut Pin<Box<F>>) -> Option<F::Output> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(out) => Some(out),
        Poll::Pending => None,
    }
}

/// The calls of an endpoint with one owner, or of a shared endpoint.
macro_rules! endpoint_calls {
    ($who:literal, $endpoint:expr, $peer:expr) => {{
        let (endpoint, peer) = ($endpoint, $peer);
        case(concat!($who, ": progress"), || !endpoint.progress());
        case(concat!($who, ": try_wait"), || !endpoint.try_wait());
        case(concat!($who, ": wait"), || !endpoint.wait(None));
        case(concat!($who, ": poll"), || endpoint.poll(&mut [Entry::default()]) == Ok(0));
        case(concat!($who, ": read_error"), || endpoint.read_error().is_none());
        case(concat!($who, ": poll_lingering"), || endpoint.poll_lingering(&mut [Entry::default()]) == Ok(0));
        case(concat!($who, ": cancel"), || !endpoint.cancel(1));
        case(concat!($who, ": inject"), || endpoint.inject(peer, b"child") == Err(PostError::Forked));
        case(concat!($who, ": describe_peers"), || endpoint.describe_peers().is_empty());
        case(concat!($who, ": is_connected"), || !endpoint.is_connected(peer));
        case(concat!($who, ": network_address"), || endpoint.network_address(peer).is_none());
        case(concat!($who, ": disconnect"), || !endpoint.disconnect(peer));
        case(concat!($who, ": shut"), || {
            endpoint.shut();
            endpoint.inject(peer, b"child") == Err(PostError::Forked)
        });
        case(concat!($who, ": naming_bytes"), || endpoint.naming_bytes() == 0);
        case(concat!($who, ": remains"), || endpoint.remains().is_empty());
        case(concat!($who, ": send"), || endpoint.send(peer, vec![1]).wait().is_err());
        case(concat!($who, ": recv"), || endpoint.recv(vec![1]).wait().is_err());
        case(concat!($who, ": recv many"), || endpoint.recv(vec![0; 64]).many().is_err());
        case(concat!($who, ": a new future"), || {
            polled(&mut Box::pin(endpoint.recv(vec![0; 8]).into_future())).is_some_and(|end| end.is_err())
        });
        let receive = || endpoint.recv(vec![0; 8]).start().expect("a receive");
        let held = receive();
        case(concat!($who, ": is_ready of a handle"), || held.is_ready());
        case(concat!($who, ": cancel of a handle"), || !held.cancel());
        let mut taken = Some(receive());
        case(concat!($who, ": wait of a handle"), || taken.take().is_some_and(|mut held| held.wait().is_err()));
        case(concat!($who, ": wait_for of a handle"), || {
            taken.take().is_some_and(|mut held| held.wait_for(MOMENT).is_err())
        });
        case(concat!($who, ": drop of a handle"), || taken.take().is_some());
        let mut future = Box::pin(receive());
        assert!(polled(&mut future).is_none());
        case(concat!($who, ": an inherited future"), || polled(&mut future).is_some_and(|end| end.is_err()));
        let mut many = endpoint.recv(vec![0; 64]).many().expect("a receive");
        case(concat!($who, ": wait of many"), || many.wait().is_err());
    }};
}

/// Makes the calls of sets of operations.
fn operation_set_calls<A: Ownership>(endpoint: &Endpoint<A>) {
    let receive = || endpoint.recv(vec![0; 8]).start().expect("a receive");
    let is_rejected = |next: Option<(u64, Result<Received, OperationError>)>| {
        next.is_some_and(|(key, end)| {
            key == 1 && end.is_err_and(|error| matches!(error.cause(), Cause::Post(PostError::Forked)))
        })
    };
    let mut set = endpoint.operation_set(4);
    set.push(receive(), 1).expect("there is room");
    let mut another = Some(receive());
    case("operation set: push", || {
        let pushed = set.push(another.take().expect("a receive"), 1);
        pushed.is_ok() && is_rejected(set.next()) && is_rejected(set.next()) && set.next().is_none()
    });
    case("operation set: next", || is_rejected(set.next()) && set.next().is_none());
    case("operation set: next_for", || set.next_for(MOMENT).is_ok_and(is_rejected));
    case("operation set: next_until", || set.next_until(None).is_ok_and(is_rejected));
    case("operation set: try_next", || is_rejected(set.try_next()));
    case("operation set: poll_next", || match set.poll_next(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(next) => is_rejected(next),
        Poll::Pending => false,
    });
    assert!(polled(&mut Box::pin(set.next_ended())).is_none());
    case("operation set: next_ended", || polled(&mut Box::pin(set.next_ended())).is_some_and(is_rejected));
    case("operation set: cancel_all", || set.cancel_all() == 0);
    case("operation set: len", || set.len() == 1);
    case("endpoint: operation_set", || {
        let mut empty: OperationSet<_, Received, u64> = endpoint.operation_set(4);
        empty.next().is_none() && empty.is_empty()
    });
    let mut set = Some(set);
    case("operation set: drop", || set.take().is_some());
}

/// Exchanges a message. Returns the handles of the receive and the send, both of which have ended.
fn exchange<'e>(
    one: &'e Endpoint,
    two: &'e Endpoint,
    to_two: PeerAddress,
) -> (Operation<&'e Owned, Received>, Operation<&'e Owned, Buffer>) {
    let (got, sent) = (two.recv(vec![0; 8]).start(), one.send(to_two, vec![1; 8]).start());
    let (got, sent) = (got.expect("a receive"), sent.expect("a send"));
    while !got.is_ready() || !sent.is_ready() {
        one.progress();
        two.progress();
    }
    (got, sent)
}

/// A shared endpoint, with its queues and its counter.
struct SharedObjects {
    endpoint: SharedEndpoint,
    events: EventQueue,
    counter: Counter,
    queue: CompletionQueue,
}

impl SharedObjects {
    fn open(domain: &Domain, vector: &AddressVector) -> Self {
        let queue = CompletionQueue::default();
        let counter = Counter::new();
        let events = EventQueue::new(16);
        let builder =
            domain.endpoint().vector(vector).receive_queue(&queue).receive_counter(&counter).event_queue(&events);
        let endpoint = builder.bind_shared("127.0.0.1:0").expect("an endpoint");
        Self { endpoint, events, counter, queue }
    }

    /// Makes the calls on all objects, while threads of the parent are in the middle of such calls.
    fn call_while_busy(&self, peer: PeerAddress) {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let busy = |what: &'static (dyn Fn(&SharedEndpoint, &CompletionQueue, &EventQueue) + Sync)| {
                let (shared, queue, events) = (self.endpoint.clone(), self.queue.clone(), self.events.clone());
                let over = &over;
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        what(&shared, &queue, &events);
                    }
                });
            };
            busy(&|shared, _, _| _ = shared.progress());
            busy(&|_, queue, _| _ = queue.read(&mut [Entry::default()]));
            busy(&|_, _, events| {
                events.push(Event::Lost { count: 1 });
                drop(events.read());
            });
            for _ in 0..3 {
                endpoint_calls!("shared endpoint", &self.endpoint, peer);
                case("endpoint of many threads: drive_for", || self.endpoint.drive_for(&Counter::new()).is_err());
                self.queue_calls();
                self.counter_calls();
                self.event_calls();
            }
            over.store(true, Ordering::Relaxed);
        });
    }

    /// Makes the calls of the completion queue.
    fn queue_calls(&self) {
        let queue = &self.queue;
        case("queue: read", || queue.read(&mut [Entry::default()]) == Ok(0));
        case("queue: wait", || queue.wait(&mut [Entry::default()], None).is_err());
        case("queue: read_error", || queue.read_error().is_none());
        case("queue: len", || queue.is_empty());
        case("queue: try_wait", || queue.try_wait().is_err());
        case("queue: signal", || {
            queue.signal();
            true
        });
    }

    /// Makes the calls of the counter.
    fn counter_calls(&self) {
        let counter = &self.counter;
        case("counter: wait", || counter.wait(u64::MAX, None).is_err());
        case("counter: add", || {
            counter.add(1);
            true
        });
        case("counter: try_wait", || counter.try_wait().is_err());
    }

    /// Makes the calls of the event queue.
    fn event_calls(&self) {
        let events = &self.events;
        case("events: read", || events.read().is_none());
        case("events: peek", || events.peek().is_none());
        case("events: wait", || events.wait(None).is_err());
        case("events: write", || events.write(1, Vec::new()).is_err());
        case("events: len", || events.is_empty());
    }
}

/// Makes the calls of regions. Returns the regions that the parent still uses.
fn region_calls(domain: &Domain) -> Option<(Region, Region)> {
    let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let region = domain.register(domain.allocate(1 << 20).expect("memory"), both).expect("a region");
    let heap = domain.register(vec![0; 4096], both).expect("a region");
    // Calls that cannot return an error panic, as documented, because the memory does not exist in the child.
    case("region: read of memory that a child does not have", || {
        std::panic::set_hook(Box::new(|_| ()));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| region.read(0, &mut [0; 8]))).is_err()
    });
    case("region: read of a copy", || {
        heap.read(0, &mut [0; 8]);
        true
    });
    let mut regions = Some((region, heap));
    case("region: close", || {
        let (region, heap) = regions.take().expect("regions");
        (drop(region.close()), drop(heap.close())) == ((), ())
    });
    regions
}

/// Opens two endpoints of a domain, and a vector with both.
pub(crate) fn two_endpoints(domain: &Domain) -> (AddressVector, Endpoint, Endpoint) {
    let vector = domain.address_vector().build().expect("a vector");
    let bind = || domain.endpoint().vector(&vector).bind("127.0.0.1:0").expect("an endpoint");
    let (one, two) = (bind(), bind());
    (vector, one, two)
}

/// The role of the parent process. Its children make the calls.
pub(crate) fn parent() {
    let open = open_as_told();
    let domain = &open.domain;
    let (vector, one, two) = two_endpoints(domain);
    let to_two = vector.insert(two.address()).expect("an address");
    let _inherited = exchange(&one, &two, to_two);
    endpoint_calls!("endpoint", &one, to_two);
    operation_set_calls(&one);

    let shared = SharedObjects::open(domain, &vector);
    shared.call_while_busy(to_two);
    operation_set_calls(&shared.endpoint);
    case("shared endpoint: drop", || {
        drop(shared.endpoint.clone());
        true
    });

    let set = WaitSet::new();
    set.add(&shared.queue).expect("a member");
    case("wait set: wait", || set.wait(None).is_err());
    let polls = PollSet::new();
    polls.add(&shared.queue, 1_u32).expect("a member");
    case("poll set: poll", || polls.poll(&mut [0]) == 0);

    let _regions = region_calls(domain);
    let mut endpoint: Option<Endpoint> =
        Some(domain.endpoint().vector(&vector).bind("127.0.0.1:0").expect("an endpoint"));
    case("endpoint: drop", || endpoint.take().is_some());
    // The parent continues.
    let (mut got, mut sent) = exchange(&one, &two, to_two);
    got.wait().expect("the message");
    sent.wait().expect("the send");
}

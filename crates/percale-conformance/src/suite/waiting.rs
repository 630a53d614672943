//! Calls that wait, futures, endpoints shared by threads, and automatic progress.

use std::future::IntoFuture;
use std::sync::Barrier;
use std::time::Duration;

use percale::domain::DomainBuilder;
use percale::endpoint::EndpointBuilder;
use percale::{
    AddressVector, CompletionQueue, Counter, Domain, Endpoint, Entry, PeerAddress, PostError, Progress, SharedEndpoint,
};

use crate::fabric::{Fabric, Peers, Real};
use crate::memory::{content, same};
use crate::mesh::Mesh;
use crate::watchdog::Watchdog;

/// The only peer in a vector.
pub(super) const PEER: PeerAddress = PeerAddress(0);

/// Opens a domain and a vector.
fn open<F: Fabric>(fabric: &F, adjust: impl FnOnce(DomainBuilder) -> DomainBuilder) -> (Domain, AddressVector) {
    let domain = fabric.domain(adjust);
    let vector = domain.address_vector().build().expect("a vector");
    (domain, vector)
}

/// Opens two endpoints, each in the other's vector.
pub(super) fn two<F: Fabric>() -> (Endpoint, Endpoint) {
    two_in::<F>(|domain| domain)
}

/// Like [`two`], with adjusted domains.
pub(super) fn two_in<F: Fabric>(adjust: fn(DomainBuilder) -> DomainBuilder) -> (Endpoint, Endpoint) {
    let fabric = F::new(1);
    let [(a, to_a), (b, to_b)] = [0, 1].map(|_| {
        let (domain, vector) = open(&fabric, adjust);
        let endpoint = domain.endpoint().vector(&vector).bind(fabric.address()).expect("an endpoint");
        (endpoint, vector)
    });
    to_a.insert(b.address()).expect("an address");
    to_b.insert(a.address()).expect("an address");
    (a, b)
}

/// Opens two shared endpoints, each in the other's vector. On a transport without other endpoints, both are the same
/// endpoint.
pub(super) fn two_shared<F: Fabric>(
    progress: Progress,
    adjust: impl for<'d> Fn(EndpointBuilder<'d>) -> EndpointBuilder<'d>,
) -> (SharedEndpoint, SharedEndpoint) {
    let fabric = F::new(1);
    let bind = || {
        let (domain, vector) = open(&fabric, |domain| domain.progress(progress));
        let builder = adjust(domain.endpoint().vector(&vector));
        (builder.bind_shared(fabric.address()).expect("an endpoint"), vector)
    };
    let (a, to_a) = bind();
    if F::ALONE {
        to_a.insert(a.address()).expect("an address");
        return (a.clone(), a);
    }
    let (b, to_b) = bind();
    to_a.insert(b.address()).expect("an address");
    to_b.insert(a.address()).expect("an address");
    (a, b)
}

pub(super) fn inject<A: percale::endpoint::Ownership>(endpoint: &Endpoint<A>, tag: u64, bytes: &[u8]) {
    while let Err(error) = endpoint.tagged_inject(PEER, tag, bytes) {
        assert_eq!(error, PostError::Again);
        endpoint.progress();
    }
}

/// A wait for a counter or a queue drives the shared endpoints that report to it. A wait for a counter ends when the
/// counter reaches the value, when an operation fails, or when the timeout expires.
///
/// Requirements: CMP-013, CMP-016.
pub fn waits_on_counters_and_queues_make_progress<F: Real>() {
    let _watchdog = Watchdog::new("waits on counters and queues make progress");
    let (queue, counter) = (CompletionQueue::default(), Counter::new());
    let (a, b) = two_shared::<F>(Progress::Manual, |endpoint| endpoint.receive_queue(&queue).receive_counter(&counter));
    let late = counter.wait(1, Some(Duration::from_millis(5))).expect_err("nothing was sent");
    assert_eq!((late.errno(), counter.value()), (libc::ETIMEDOUT, 0));
    let mut entries = [Entry::default(); 4];
    assert_eq!(
        queue.wait(&mut entries, Some(Duration::from_millis(5))).map_err(|error| error.errno()),
        Err(libc::EAGAIN)
    );
    for len in [8, 100_000] {
        counter.set(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(10));
                let sends: Vec<_> = (0..10).map(|_| a.send(PEER, content(1, len)).start().expect("a send")).collect();
                sends.into_iter().for_each(|mut sending| drop(sending.wait().expect("a send")));
            });
            let receives: Vec<_> = (0..10).map(|_| b.recv(vec![0; len]).start().expect("a receive")).collect();
            counter.wait(10, None).expect("ten messages");
            assert!(counter.value() >= 10);
            for mut receiving in receives {
                same(&receiving.wait().expect("a message").to_vec(), &content(1, len), "a message");
            }
            // The receiver is no longer driven. Its sender must be able to finish nevertheless.
        });
    }
    // A failure ends the wait.
    let mut receiving = b.recv(vec![0; 1]).start().expect("a receive");
    let errors = counter.read_error();
    std::thread::scope(|scope| {
        scope.spawn(|| a.send(PEER, "too long").wait().expect("the send"));
        let error = counter.wait_since(1_000_000, errors, None).expect_err("the message is truncated");
        assert_eq!((error.errno(), counter.read_error()), (259, errors + 1));
    });
    receiving.wait().expect_err("the message is truncated");
}

/// Only the two blocked threads make progress.
///
/// Requirements: CMP-016.
pub fn blocking_calls_make_progress<F: Peers + Real>() {
    let _watchdog = Watchdog::new("blocking calls make progress");
    let (a, b) = two::<F>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for len in [0, 8, 2048, 9000, F::BULK, 5 * F::BULK] {
                let got = b.recv(vec![0; len]).wait().expect("a message");
                same(&got.to_vec(), &content(1, len), "the message");
                b.send(PEER, got.buffer).delivered().wait().expect("the echo");
            }
            let late = b.recv(vec![0; 1]).start().expect("a receive").wait_for(Duration::from_millis(20));
            late.expect_err("there is no message");
            assert!(!b.wait(Some(Duration::from_millis(1))));
            b.send(PEER, "end").wait().expect("the end");
        });
        for len in [0, 8, 2048, 9000, F::BULK, 5 * F::BULK] {
            a.send(PEER, content(1, len)).wait().expect("a send");
            let got = a.recv(vec![0; len]).wait().expect("the echo");
            same(&got.to_vec(), &content(1, len), "the echo");
        }
        assert_eq!(a.recv(vec![0; 3]).wait().expect("the end").to_vec(), b"end");
    });
}

/// Futures in a single-threaded runtime yield to other tasks while they wait.
pub fn futures_work_with_tokio<F: Real>() {
    let mesh = Mesh::<F>::new(2);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let (a, b) = (mesh.endpoint(0), mesh.endpoint(1));
    runtime.block_on(async {
        for len in [0, 8, 2048, 9000, F::BULK] {
            let receive = b.tagged_recv(0, !0, vec![0; len]).into_future();
            let send = a.tagged_send(mesh.peer(1), 3, content(1, len)).into_future();
            let (got, sent) = tokio::join!(receive, send);
            same(&got.expect("a message").to_vec(), &content(1, len), "the message");
            sent.expect("the send");
        }
        // A waiting future sleeps, so timers run. Dropping it cancels the receive.
        let none = tokio::time::timeout(Duration::from_millis(20), b.recv(vec![0; 8]).into_future()).await;
        assert!(none.is_err(), "nothing was sent");
        // Exchange many messages in turn, with both sides waiting for each other.
        let give = async {
            for number in 0..200 {
                a.send(mesh.peer(1), content(number, 64)).await.expect("a send");
                let back = a.tagged_recv(number, 0, vec![0; 64]).await.expect("the echo");
                assert_eq!(back.to_vec(), content(number, 64));
            }
        };
        let echo = async {
            for number in 0..200 {
                let got = b.recv(vec![0; 64]).await.expect("a message");
                b.tagged_send(mesh.peer(0), number, got.to_vec()).await.expect("the echo");
            }
        };
        tokio::join!(give, echo);
    });
}

/// An endpoint with one owner becomes shared while an unexpected message and a long message are in transfer. From then
/// on, a thread that waits on a counter drives the endpoint.
///
/// Requirements: CMP-016.
pub fn endpoint_can_be_shared_with_messages_in_transfer<F: Peers + Real>() {
    let _watchdog = Watchdog::new("endpoint can be shared with messages in transfer");
    let fabric = F::new(1);
    let counter = Counter::new();
    let open = |counter: Option<&Counter>| {
        let (domain, vector) = open(&fabric, |domain| domain);
        let builder = domain.endpoint().vector(&vector);
        let builder = counter.into_iter().fold(builder, |builder, counter| builder.receive_counter(counter));
        (builder.bind(fabric.address()).expect("an endpoint"), vector)
    };
    let ((a, to_a), (b, to_b)) = (open(Some(&counter)), open(None));
    to_a.insert(b.address()).expect("an address");
    to_b.insert(a.address()).expect("an address");
    let begun = Barrier::new(2);
    std::thread::scope(|scope| {
        let begun = &begun;
        scope.spawn(move || {
            inject(&b, 1, b"early");
            let mut long = b.tagged_send(PEER, 2, content(2, F::BULK)).start().expect("a send");
            begun.wait();
            long.wait().expect("the long message");
            for number in 0..20 {
                b.tagged_send(PEER, 3, content(number, 100)).wait().expect("a send");
            }
            b.recv(vec![0; 3]).wait().expect("the end");
        });
        begun.wait();
        for _ in 0..1000 {
            a.progress();
        }
        let a = a.share().expect("a shared endpoint");
        assert_eq!(a.tagged_recv(1, 0, vec![0; 8]).wait().expect("the early message").to_vec(), b"early");
        let long = a.tagged_recv(2, 0, vec![0; F::BULK]).wait().expect("the long message");
        same(&long.to_vec(), &content(2, F::BULK), "the long message");
        let half = |a: &SharedEndpoint| {
            for _ in 0..10 {
                assert_eq!(a.tagged_recv(3, 0, vec![0; 100]).wait().expect("a message").len, 100);
            }
        };
        let other = a.clone();
        let second = scope.spawn(move || half(&other));
        half(&a);
        second.join().expect("ten messages");
        counter.wait(22, None).expect("all messages are counted");
        a.send(PEER, "end").wait().expect("the end");
    });
}

/// On each side, four threads are blocked in calls. Each pair of threads uses its own tags.
pub fn four_threads_share_an_endpoint<F: Real>() {
    let _watchdog = Watchdog::new("four threads share an endpoint");
    let (a, b) = two_shared::<F>(Progress::Manual, |endpoint| endpoint);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (a, b) = (a.clone(), b.clone());
            let len = |round: u64| [8, 2048, 30_000][(round % 3) as usize];
            scope.spawn(move || {
                for round in 0..150 {
                    let got = b.tagged_recv(thread, 0, vec![0; len(round)]).wait().expect("a message");
                    b.tagged_send(PEER, thread + 100, got.buffer).wait().expect("the echo");
                }
            });
            scope.spawn(move || {
                for round in 0..150 {
                    let bytes = content(round * 4 + thread, len(round));
                    let mut echo = a.tagged_recv(thread + 100, 0, vec![0; bytes.len()]).start().expect("a receive");
                    a.tagged_send(PEER, thread, bytes.clone()).wait().expect("a send");
                    same(&echo.wait().expect("the echo").to_vec(), &bytes, "the echo");
                }
            });
        }
    });
}

/// The receiver posts a receive and makes no further call. The message arrives and its send completes.
pub fn automatic_progress_needs_no_calls<F: Peers + Real>() {
    let _watchdog = Watchdog::new("automatic progress needs no calls");
    let (a, b) = two_shared::<F>(Progress::Automatic, |endpoint| endpoint);
    let (barrier, done) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut receiving = b.recv(vec![0; 3 * F::BULK]).start().expect("a receive");
            barrier.wait();
            done.wait(); // This thread makes no call into percale until the delivery is reported to the sender.
            same(&receiving.wait().expect("a message").to_vec(), &content(1, 3 * F::BULK), "the message");
        });
        barrier.wait();
        std::thread::sleep(Duration::from_millis(5));
        a.send(PEER, content(1, 3 * F::BULK)).delivered().wait().expect("the message is delivered without calls");
        done.wait();
    });
    let domain = F::new(1).domain(|domain| domain.progress(Progress::Automatic));
    assert!(domain.endpoint().bind("127.0.0.1:0").is_err(), "an endpoint with one owner makes no automatic progress");
}

/// All objects are opened, used and closed a thousand times. Runs in a separate process, see the helper
/// `open-and-close`.
///
/// Requirements: RES-002.
pub fn opening_and_closing_leaks_nothing<F: Real>() {
    let mut helper = crate::process::Helper::start("open-and-close", &[("PERCALE_FABRIC", F::NAME)]);
    println!("{}: {}", F::NAME, helper.receive_line());
    helper.end();
}

//! Wakers are application code. All other operations continue, regardless of what a waker does when it is called or
//! dropped.

use std::cell::RefCell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use percale::endpoint::Ownership;
use percale::{Endpoint, PeerAddress, PostError, Progress, SharedEndpoint};

use super::waiting::{PEER, two, two_shared};
use crate::fabric::{Peers, Real};
use crate::memory::content;
use crate::watchdog::Watchdog;

thread_local! {
    /// The function that wakers call when they are called or dropped in this thread.
    static CALL: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
}

fn call() {
    let call = CALL.with(|call| call.borrow().clone());
    if let Some(call) = call {
        CALLED.fetch_add(1, Ordering::SeqCst);
        call();
    }
}

static CALLED: AtomicU32 = AtomicU32::new(0);

/// Runs `run`. Each waker that is called or dropped in this thread meanwhile calls `each`. There must be at least one
/// such call.
fn while_wakers(each: Rc<dyn Fn()>, run: impl FnOnce()) {
    CALL.with(|call| *call.borrow_mut() = Some(each));
    let before = CALLED.load(Ordering::SeqCst);
    run();
    CALL.with(|call| *call.borrow_mut() = None);
    assert!(CALLED.load(Ordering::SeqCst) > before, "no waker of this thread was called or dropped");
}

/// A waker that calls the function whenever it is called or dropped.
struct Busy;

impl Wake for Busy {
    fn wake(self: Arc<Self>) {
        call();
    }

    fn wake_by_ref(self: &Arc<Self>) {}
}

impl Drop for Busy {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            call();
        }
    }
}

fn busy() -> Waker {
    Waker::from(Arc::new(Busy))
}

/// Polls until the future waits for its descriptor.
fn polled<F: Future + Unpin>(future: &mut F, waker: &Waker) {
    for _ in 0..60 {
        assert!(Pin::new(&mut *future).poll(&mut Context::from_waker(waker)).is_pending());
    }
}

/// Wakers call the endpoint, end other operations of it, and panic. They do so when they are called, replaced, and
/// dropped with their futures.
fn wakers_do_anything<A: Ownership>(endpoint: &'static Endpoint<A>, other: &(impl Fn(u64) + Copy)) {
    let receive = |tag| endpoint.tagged_recv(tag, 0, vec![0; 8]).start().expect("a receive");
    let uses = move || {
        endpoint.progress();
        drop(endpoint.tagged_recv(99, 0, vec![0; 8]).start().expect("a receive"));
        let mut nested = endpoint.tagged_recv(98, 0, vec![0; 8]).start().expect("a receive");
        polled(&mut nested, Waker::noop());
        assert!(nested.cancel() && nested.wait().is_err());
    };
    let doings: [Rc<dyn Fn()>; 2] = [Rc::new(uses), Rc::new(|| panic!("a waker that panics"))];
    for doing in doings {
        // The waker is replaced.
        let mut receiving = receive(1);
        polled(&mut receiving, &busy());
        while_wakers(Rc::clone(&doing), || polled(&mut receiving, Waker::noop()));
        // The waker is dropped with its future.
        polled(&mut receiving, &busy());
        while_wakers(Rc::clone(&doing), || drop(receiving));
        // The waker is called while another operation is awaited.
        let mut woken = receive(2);
        polled(&mut woken, &busy());
        let mut waited = receive(3);
        while_wakers(Rc::clone(&doing), || {
            other(2);
            other(3);
            assert_eq!(waited.wait().expect("a message").to_vec(), content(3, 8));
            assert_eq!(woken.wait().expect("a message").to_vec(), content(2, 8));
        });
        // The operation is cancelled.
        let mut cancelled = receive(4);
        polled(&mut cancelled, &busy());
        while_wakers(Rc::clone(&doing), || {
            assert!(cancelled.cancel());
            cancelled.wait().expect_err("the operation was cancelled");
        });
    }
}

/// Tests endpoints with one owner and shared endpoints.
pub fn wakers_may_call_the_endpoint_and_panic<F: Peers + Real>() {
    let _watchdog = Watchdog::new("wakers may call the endpoint and panic");
    fn inject<A: Ownership>(endpoint: &Endpoint<A>, tag: u64) {
        while let Err(error) = endpoint.tagged_inject(PEER, tag, &content(tag, 8)) {
            assert_eq!(error, PostError::Again);
            endpoint.progress();
        }
        (0..100).for_each(|_| _ = endpoint.progress());
    }
    fn meet<A: Ownership>(a: &Endpoint<A>, b: &Endpoint<A>) {
        let met = b.recv(vec![0; 8]).start().expect("a receive");
        inject_untagged(a);
        while !met.is_ready() {
            a.progress();
            std::thread::yield_now();
        }
    }
    fn inject_untagged<A: Ownership>(endpoint: &Endpoint<A>) {
        endpoint.inject(PEER, &[0; 8]).expect("room");
    }
    let (a, b) = two::<F>();
    let (a, b): (&'static Endpoint, &'static Endpoint) = (Box::leak(Box::new(a)), Box::leak(Box::new(b)));
    meet(a, b);
    wakers_do_anything(b, &|tag| inject(a, tag));
    let (a, b) = two_shared::<F>(Progress::Manual, |endpoint| endpoint);
    let (a, b): (&'static Endpoint<_>, &'static Endpoint<_>) = (Box::leak(Box::new(a)), Box::leak(Box::new(b)));
    meet(a, b);
    wakers_do_anything(b, &|tag| inject(a, tag));
}

/// A waker that panics in each thread except that of the test.
struct PanicsElsewhere(std::thread::ThreadId, AtomicBool);

impl Wake for PanicsElsewhere {
    fn wake(self: Arc<Self>) {
        if std::thread::current().id() != self.0 {
            self.1.store(true, Ordering::SeqCst);
            panic!("a waker that panics in the thread that calls it");
        }
    }
}

struct Sends(Mutex<mpsc::Sender<()>>);

impl Wake for Sends {
    fn wake(self: Arc<Self>) {
        self.0.lock().expect("no panic").send(()).ok();
    }
}

/// Polls a future only when its waker is called.
pub(super) fn driven_by_its_waker<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let (sends, woken) = mpsc::channel();
    let waker = Waker::from(Arc::new(Sends(Mutex::new(sends))));
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return result;
        }
        woken.recv_timeout(Duration::from_secs(60)).expect("the waker is called");
    }
}

/// A waker that panics in the thread that wakes tasks does not stop other tasks of the process.
pub fn a_waker_that_panics_stops_no_other_task<F: Peers + Real>() {
    let _watchdog = Watchdog::new("a waker that panics does not stop other tasks");
    let (a, b) = two_shared::<F>(Progress::Manual, |endpoint| endpoint);
    let panics = Arc::new(PanicsElsewhere(std::thread::current().id(), AtomicBool::new(false)));
    let mut first = b.tagged_recv(1, 0, vec![0; 8]).start().expect("a receive");
    polled(&mut first, &Waker::from(Arc::clone(&panics)));
    while !panics.1.load(Ordering::SeqCst) {
        // No message is needed, because wakers are occasionally called spuriously.
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::scope(|scope| {
        for round in 0..5 {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                a.tagged_send(PEER, 2, content(1, 8)).wait().expect("a send");
            });
            let got = driven_by_its_waker(b.tagged_recv(2, 0, vec![0; 8]).start().expect("a receive"));
            assert_eq!(got.expect("a message").to_vec(), content(1, 8), "in round {round}");
        }
    });
}

/// A future that ends or is dropped also drops its waker, regardless of what its endpoint does later.
pub fn futures_that_are_dropped_leave_no_waker<F: Real>() {
    let _watchdog = Watchdog::new("futures that are dropped also drop their wakers");
    let (_a, b) = two::<F>();
    let counts = Arc::new(PanicsElsewhere(std::thread::current().id(), AtomicBool::new(false)));
    for _ in 0..200 {
        let waker = Waker::from(Arc::clone(&counts));
        let mut dropped = b.tagged_recv(1, 0, vec![0; 8]).start().expect("a receive");
        polled(&mut dropped, &waker);
        drop((dropped, waker));
        // The thread that wakes tasks may be about to call a waker that it took earlier.
        while Arc::strong_count(&counts) > 1 {
            std::thread::sleep(Duration::from_millis(1));
            assert!(!b.progress(), "the endpoint has nothing to do, and its descriptor is not readable");
        }
    }
    let waker = Waker::from(Arc::clone(&counts));
    let mut cancelled = b.tagged_recv(1, 0, vec![0; 8]).start().expect("a receive");
    polled(&mut cancelled, &waker);
    assert!(cancelled.cancel());
    cancelled.wait().expect_err("the operation was cancelled");
    drop(waker);
    while Arc::strong_count(&counts) > 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Wakers of shared receives are dropped and called without a lock.
pub fn wakers_of_shared_receives_may_use_the_context<F: Real>() {
    let _watchdog = Watchdog::new("wakers of shared receives may use the context");
    let fabric = F::new(3);
    let domain = fabric.domain(|domain| domain);
    let (vector, shared) = (domain.address_vector().build().expect("a vector"), domain.shared_receive());
    let builder = domain.endpoint().vector(&vector).shared_receive(&shared);
    let endpoint = builder.bind(fabric.address()).expect("an endpoint");
    let me: PeerAddress = vector.insert(endpoint.address()).expect("an address");
    let uses = shared.clone();
    let doings: [Rc<dyn Fn()>; 2] = [
        Rc::new(move || drop(uses.tagged_recv(99, 0, vec![0; 8]).expect("a receive"))),
        Rc::new(|| panic!("a waker that panics")),
    ];
    for doing in doings {
        let poll = |receiving: &mut percale::SharedReceiving, waker: &Waker| {
            Pin::new(receiving).poll(&mut Context::from_waker(waker))
        };
        let mut receiving = shared.tagged_recv(1, 0, vec![0; 8]).expect("a receive");
        assert!(poll(&mut receiving, &busy()).is_pending());
        while_wakers(Rc::clone(&doing), || assert!(poll(&mut receiving, Waker::noop()).is_pending()));
        assert!(poll(&mut receiving, &busy()).is_pending());
        while_wakers(Rc::clone(&doing), || {
            endpoint.tagged_inject(me, 1, &content(1, 8)).expect("room");
            while !receiving.is_ready() {
                fabric.tick();
                endpoint.progress();
            }
        });
        let Poll::Ready(got) = poll(&mut receiving, Waker::noop()) else { panic!("the receive is ready") };
        assert_eq!(got.expect("a message").to_vec(), content(1, 8));
        let mut receiving = shared.tagged_recv(1, 0, vec![0; 8]).expect("a receive");
        assert!(poll(&mut receiving, &busy()).is_pending());
        while_wakers(Rc::clone(&doing), || drop(receiving));
    }
}

/// Bytes with a destructor that calls the endpoint.
struct Owner {
    endpoint: SharedEndpoint,
    bytes: Vec<u8>,
    dropped: mpsc::Sender<()>,
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        assert!(!self.endpoint.is_closed());
        self.dropped.send(()).ok();
    }
}

/// The owner of the bytes of a send may call the endpoint when it is dropped, even if the endpoint drops it because the
/// handle of the send was dropped before.
pub fn owners_of_sent_bytes_may_call_the_endpoint<F: Peers + Real>() {
    const LEN: usize = 1 << 20;
    let _watchdog = Watchdog::new("owners of sent bytes may call the endpoint");
    let (a, b) = two_shared::<F>(Progress::Manual, |endpoint| endpoint);
    for round in 0..3 {
        let (dropped, was_dropped) = mpsc::channel();
        let owner = Owner { endpoint: a.clone(), bytes: content(round, LEN), dropped };
        let mut sending = a.tagged_send(PEER, 1, Bytes::from_owner(owner)).start().expect("a send");
        let mut receiving = b.tagged_recv(1, 0, vec![0; LEN]).start().expect("a receive");
        if round > 0 {
            // The first round connects the endpoints. A send that has not begun would be canceled.
            drop(sending);
        } else {
            while !(sending.is_ready() & receiving.is_ready()) {}
            drop(sending.wait());
        }
        while !receiving.is_ready() {
            let _happened: bool = a.progress();
        }
        assert_eq!(receiving.wait().expect("a message").to_vec(), content(round, LEN));
        while was_dropped.try_recv().is_err() {
            let _happened: bool = a.progress();
        }
    }
}

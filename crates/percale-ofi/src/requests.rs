//! Connection requests that wait for the client's answer, and their handles (`fi_info::handle`, fi_cm(3)).
//!
//! A handle is the address of a `fid` of class FI_CLASS_CONNREQ. Clients may use a handle after its request was
//! answered: they can pass an `fi_info` to fi_endpoint again, or its handle to fi_reject. Therefore:
//! 1. A handle is looked up by its address in the table of requests. Only its class is read through it
//!    (fi_endpoint(3)).
//! 2. The memory of a handle is never freed. It is reused for another request only after [`REUSE_AFTER`] further
//!    requests.
//! 3. A request is in the table until it is accepted or rejected, or its listener is closed. An endpoint that is opened
//!    for a request keeps only the handle.
//! 4. If the last endpoint of a request was closed without an answer, the request is rejected after [`GRACE`]. Until
//!    then it can still be answered, by fi_reject or with another endpoint. A separate thread rejects it, because the
//!    client may sleep in fi_eq_sread or on the descriptor of a queue. If the thread cannot be created, the next
//!    look-up of a request or the next read of events rejects it.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use percale::endpoint::connection::ConnectionRequest;
use percale_memory::system::forked::{PerProcess, Process};
use percale_memory::system::thread;

use crate::abi::{FI_CLASS_CONNREQ, FI_LOG_EQ, fi_ops, fid, fid_t};
use crate::{log, object};

/// The number of requests after which the handle of an answered request may be reused.
const REUSE_AFTER: usize = 1 << 14;

/// The time for which a request can still be answered after its endpoints were closed.
const GRACE: Duration = Duration::from_secs(1);

static OPS: fi_ops = fi_ops::REFUSING;

/// Identifies a request by the address of its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Handle(usize);

impl Handle {
    /// Converts a handle that a client passed. It may be null, stale, or the address of another object.
    pub(crate) fn from_client(handle: fid_t) -> Self {
        Self(handle.expose_provenance())
    }

    /// Returns the handle for the client.
    pub(crate) fn for_client(self) -> fid_t {
        std::ptr::with_exposed_provenance_mut(self.0)
    }
}

/// A request that has not been answered.
#[derive(Debug)]
struct PendingRequest {
    request: ConnectionRequest,
    /// The number of endpoints that are open for the request.
    endpoints: usize,
    /// The time at which the request is rejected unless an endpoint is opened for it before.
    until: Option<Instant>,
}

#[derive(Default)]
struct Table {
    waiting: HashMap<Handle, PendingRequest>,
    /// The handles of answered requests, oldest first.
    free: VecDeque<Handle>,
    /// The process in which a thread rejects abandoned requests.
    rejecting: Option<Process>,
}

/// The table of this process. A forked child starts with an empty one: the requests of its parent are answered there,
/// and a thread of the parent may have held the lock of the parent's table at the fork.
static TABLE: PerProcess<Mutex<Table>> = PerProcess::new();
/// The number of requests in the table that have an `until`, and in a forked child also those of its parent. While it
/// is 0, reading events does not check for expired requests.
static ABANDONED: AtomicUsize = AtomicUsize::new(0);

fn with<R>(f: impl FnOnce(&mut Table) -> R) -> R {
    /// The table that is used if the process cannot be distinguished from its forked children.
    static SHARED: OnceLock<Mutex<Table>> = OnceLock::new();
    let table = TABLE.get_or_make().unwrap_or_else(|_| SHARED.get_or_init(Mutex::default));
    f(&mut table.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Table {
    fn take(&mut self, handle: Handle) -> Option<ConnectionRequest> {
        let PendingRequest { request, until, .. } = self.waiting.remove(&handle)?;
        if until.is_some() {
            ABANDONED.fetch_sub(1, Ordering::Relaxed);
        }
        self.free.push_back(handle);
        Some(request)
    }

    /// Starts the thread that rejects abandoned requests, unless it is running.
    fn start_rejecting(&mut self) -> io::Result<()> {
        if self.rejecting.is_none_or(|process| !process.is_here()) {
            let process = Process::current()?;
            thread::start_thread("percale-reject", reject_abandoned)?;
            self.rejecting = Some(process);
        }
        Ok(())
    }

    /// Returns the time at which the next abandoned request must be rejected. Returns `None` if there is none; the
    /// calling thread then ends.
    fn next_rejection(&mut self) -> Option<Instant> {
        let next = self.waiting.values().filter_map(|waiting| waiting.until).min();
        if next.is_none() {
            self.rejecting = None;
        }
        next
    }

    fn take_all(&mut self, which: impl Fn(&PendingRequest) -> bool) -> Vec<ConnectionRequest> {
        let found: Vec<_> = self.waiting.iter().filter(|(_, waiting)| which(waiting)).map(|(at, _)| *at).collect();
        found.into_iter().filter_map(|handle| self.take(handle)).collect()
    }
}

/// Keeps a request until it is answered. Returns its handle.
pub(crate) fn keep(request: ConnectionRequest) -> Handle {
    with(|table| {
        let old = if table.free.len() > REUSE_AFTER { table.free.pop_front() } else { None };
        let handle = old.unwrap_or_else(|| {
            let fid = object::head(FI_CLASS_CONNREQ, std::ptr::null_mut(), &OPS);
            Handle(std::ptr::from_mut::<fid>(Box::leak(Box::new(fid))).expose_provenance())
        });
        table.waiting.insert(handle, PendingRequest { request, endpoints: 0, until: None });
        handle
    })
}

/// Returns the request if it has not been answered.
pub(crate) fn find(handle: Handle) -> Option<ConnectionRequest> {
    expire();
    with(|table| table.waiting.get(&handle).map(|waiting| waiting.request.clone()))
}

/// Removes a request that was answered or will not be answered. Dropping an unanswered request rejects it.
pub(crate) fn take(handle: Handle) -> Option<ConnectionRequest> {
    with(|table| table.take(handle))
}

/// Counts an endpoint that is opened for the request. Returns the request if it has not been answered.
pub(crate) fn open_endpoint(handle: Handle) -> Option<ConnectionRequest> {
    expire();
    with(|table| {
        let waiting = table.waiting.get_mut(&handle)?;
        waiting.endpoints += 1;
        if waiting.until.take().is_some() {
            ABANDONED.fetch_sub(1, Ordering::Relaxed);
        }
        Some(waiting.request.clone())
    })
}

/// Counts a closed endpoint of the request.
pub(crate) fn close_endpoint(handle: Handle) {
    let started = with(|table| {
        let Some(waiting) = table.waiting.get_mut(&handle) else { return Ok(()) };
        waiting.endpoints = waiting.endpoints.saturating_sub(1);
        if waiting.endpoints > 0 || waiting.until.is_some() {
            return Ok(());
        }
        waiting.until = Some(Instant::now() + GRACE);
        ABANDONED.fetch_add(1, Ordering::Relaxed);
        table.start_rejecting()
    });
    // Logging may call the client, so the table is not locked here.
    if let Err(error) = started {
        log::warning!(
            FI_LOG_EQ,
            "a connection request without an answer is rejected only when events are read: {error}"
        );
    }
}

/// The body of the thread that rejects abandoned requests. It ends when there is none.
fn reject_abandoned() {
    while let Some(until) = with(Table::next_rejection) {
        thread::pause(until.saturating_duration_since(Instant::now()));
        expire();
    }
}

/// Rejects the requests that have expired.
pub(crate) fn expire() {
    if ABANDONED.load(Ordering::Relaxed) == 0 {
        return;
    }
    let now = Instant::now();
    // The requests are dropped, and so rejected, after the lock is released.
    drop(with(|table| table.take_all(|waiting| waiting.until.is_some_and(|until| until <= now))));
}

/// Removes the requests to a closed listener. They cannot be answered any more.
pub(crate) fn forget_listener(at: SocketAddr) {
    drop(with(|table| table.take_all(|waiting| waiting.request.listener() == at)));
}

#[cfg(test)]
mod tests {
    use percale::{Domain, Endpoint, Event, EventQueue, Info, Listener, TransportKind};
    use percale_memory::system::forked::in_a_child;

    use super::*;

    #[test]
    fn child_does_not_wait_for_the_table_of_its_parent() {
        let held = TABLE.get_or_make().unwrap().lock().unwrap();
        assert!(in_a_child(|| {
            ABANDONED.fetch_add(1, Ordering::Relaxed);
            expire();
            find(Handle(1)).is_none()
        }));
        drop(held);
    }

    /// A listener and its event queue.
    struct Listening {
        domain: Domain,
        listener: Listener,
        events: EventQueue,
        until: Instant,
    }

    impl Listening {
        fn new() -> Self {
            let domain = Info::discover().unwrap().domain().transport(TransportKind::Tcp).open().unwrap();
            let events = EventQueue::default();
            let listener = domain.listener().events(&events).bind("127.0.0.1:0").unwrap();
            Self { domain, listener, events, until: Instant::now() + Duration::from_secs(60) }
        }

        /// Makes a connection request. Returns the endpoint that requests it, and the handle of the request.
        fn request(&self) -> (Endpoint, Handle) {
            let client = EventQueue::default();
            let address = self.listener.address().to_string();
            let client = self.domain.endpoint().event_queue(&client).connect(address, b"").unwrap();
            let request = self.wait(&client, || match self.events.read() {
                Some(Event::ConnectionRequest(request)) => Some(request),
                _ => None,
            });
            (client, keep(request))
        }

        /// Calls `done` until it returns a result. Reads no events and looks up no requests.
        fn wait<T>(&self, client: &Endpoint, mut done: impl FnMut() -> Option<T>) -> T {
            loop {
                if let Some(done) = done() {
                    return done;
                }
                assert!(Instant::now() < self.until, "a request does not arrive, or is not rejected");
                _ = self.listener.progress();
                client.progress();
                thread::pause(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn an_abandoned_request_is_rejected_although_no_events_are_read() {
        let listening = Listening::new();
        let (client, handle) = listening.request();
        assert!(open_endpoint(handle).is_some());
        close_endpoint(handle);
        listening.wait(&client, || (listening.listener.pending() == 0).then_some(()));
        assert!(take(handle).is_none());
    }

    #[test]
    fn a_request_with_an_open_endpoint_is_not_rejected() {
        let listening = Listening::new();
        let (client, handle) = loop {
            let (client, handle) = listening.request();
            assert!(open_endpoint(handle).is_some());
            close_endpoint(handle);
            // On a busy machine, the request may be rejected before the second endpoint is opened.
            if open_endpoint(handle).is_some() {
                break (client, handle);
            }
        };
        // The thread ends when no request has to be rejected any more.
        listening.wait(&client, || with(|table| table.rejecting.is_none()).then_some(()));
        assert!(take(handle).is_some());
    }
}

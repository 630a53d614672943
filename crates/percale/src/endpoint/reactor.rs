//! Wakes tasks. One thread sleeps on the descriptors of all endpoints that have waiting futures.
//!
//! percale works with any async runtime, so it has its own reactor. When an endpoint has no work, the task's poll arms
//! the endpoint's descriptor and stores the task's waker here. The thread wakes the task, and the next poll of the task
//! makes progress. The thread starts with the first waiting future.
//!
//! 1. A waker is stored as long as its future waits. A future that ends or is dropped removes its waker ([`unwatch`]).
//! 2. A peer can suppress a wake-up of an endpoint: it may die or misbehave after it cleared the sleeper's mark and
//!    before it wrote the event. So every [`LOOK`] one task of each endpoint is woken without an event, and its poll
//!    checks everything that the endpoint handles. If no task of an endpoint has polled since the previous check, the
//!    task that was woken then does not poll the endpoint, so all tasks of the endpoint are woken.
//! 3. The thread never ends. It calls and drops wakers without holding the lock, and catches their panics.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use crate::deferred_actions::{self, DeferredActions};
use crate::system::call::call;
use crate::system::event::EventDescriptor;
use crate::system::forked::PerProcess;
use crate::system::thread::start_thread;

/// The maximum time that tasks sleep before one of them checks the endpoint.
const LOOK: Duration = super::engine::sleep::SLEEP;

/// The key of the thread's own event in its epoll set. Keys of endpoints are assigned from 1 upwards.
const STARTED: u64 = u64::MAX;

/// The tasks that wait for one endpoint.
#[derive(Debug)]
struct WaitingTasks {
    /// Keeps the descriptor open while it is watched.
    fd: Arc<OwnedFd>,
    /// The wakers, by the ID of the operation.
    wakers: HashMap<u64, Waker>,
    /// Whether a task has polled since the last check.
    polled: bool,
}

/// The reactor.
#[derive(Debug)]
struct Reactor {
    epoll: OwnedFd,
    /// Wakes the thread from a sleep without a timeout. The thread sleeps without a timeout while no task waits.
    started: EventDescriptor,
    waiting: Mutex<HashMap<u64, WaitingTasks>>,
}

/// The reactor of this process. A forked child starts its own, because threads do not survive a fork and the inherited
/// epoll set belongs to the parent.
static REACTOR: PerProcess<OnceLock<io::Result<&'static Reactor>>> = PerProcess::new();

impl Reactor {
    fn start() -> io::Result<&'static Self> {
        let epoll = call("epoll_create1", || epoll::create(epoll::CreateFlags::CLOEXEC))?;
        let started = EventDescriptor::new()?;
        let data = epoll::EventData::new_u64(STARTED);
        call("epoll_ctl", || epoll::add(&epoll, &started, data, epoll::EventFlags::IN))?;
        let reactor: &'static Self = Box::leak(Box::new(Self { epoll, started, waiting: Mutex::default() }));
        start_thread("percale-wake", || {
            crate::transport::background::reset_scheduling();
            reactor.run();
        })?;
        Ok(reactor)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, WaitingTasks>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut events = Vec::with_capacity(64);
        let mut look: Option<Instant> = None;
        loop {
            events.clear();
            let rest = look.map(|at| at.saturating_duration_since(Instant::now()));
            let rest = rest.map(|rest| Timespec { tv_sec: rest.as_secs() as i64, tv_nsec: rest.subsec_nanos().into() });
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), rest.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    // The wait fails, for example, if the application closed the descriptor. The periodic checks
                    // continue.
                    let every = LOOK;
                    crate::later::later!(error: %error, ?every, "the reactor cannot wait; futures are woken at intervals");
                    std::thread::sleep(LOOK);
                    look = Some(Instant::now());
                }
            }
            for event in &events {
                match event.data.u64() {
                    STARTED => self.started.clear().unwrap_or_default(),
                    id => self.wake(id),
                }
            }
            if look.is_some_and(|at| Instant::now() >= at) {
                self.wake_tasks();
                look = None;
            }
            if look.is_none() && !self.lock().is_empty() {
                look = Some(Instant::now() + LOOK);
            }
        }
    }

    /// Wakes every task that waits for an endpoint with a readable descriptor.
    fn wake(&self, id: u64) {
        let mut waiting = self.lock();
        let woken = waiting.remove(&id);
        self.unwatch(woken.as_ref());
        drop(waiting);
        woken.into_iter().flat_map(|woken| woken.wakers.into_values()).for_each(deferred_actions::wake);
    }

    /// Wakes a task of each endpoint.
    fn wake_tasks(&self) {
        let mut deferred_actions = DeferredActions::default();
        for waiting in self.lock().values_mut() {
            if std::mem::take(&mut waiting.polled) {
                let any = waiting.wakers.keys().next().copied();
                deferred_actions.wake(any.and_then(|any| waiting.wakers.remove(&any)));
            } else {
                waiting.wakers.drain().for_each(|(_, waker)| deferred_actions.wake(Some(waker)));
            }
        }
        deferred_actions.run();
        let mut waiting = self.lock();
        waiting.retain(|_, waiting| {
            if waiting.wakers.is_empty() {
                self.unwatch(Some(&*waiting));
            }
            !waiting.wakers.is_empty()
        });
    }

    /// Removes an endpoint's descriptor from the epoll set. This happens under the lock, so that the descriptor is not
    /// added again at the same time.
    fn unwatch(&self, gone: Option<&WaitingTasks>) {
        if let Some(gone) = gone {
            epoll::delete(&self.epoll, &gone.fd).ok(); // It may have been closed by the application.
        }
    }
}

fn running() -> Option<&'static Reactor> {
    REACTOR.get().and_then(OnceLock::get)?.as_ref().ok().copied()
}

/// Wakes `waker` when `fd`, the descriptor of the endpoint `id`, is readable. The operation `key` waits with this
/// waker.
pub(super) fn wake_when_readable(id: u64, fd: &Arc<OwnedFd>, key: u64, waker: &Waker) -> io::Result<()> {
    let reactor = match REACTOR.get_or_make()?.get_or_init(Reactor::start) {
        Ok(reactor) => *reactor,
        Err(error) => return Err(io::Error::new(error.kind(), error.to_string())),
    };
    let mut fresh = None;
    loop {
        let mut endpoints = reactor.lock();
        let first = endpoints.is_empty();
        if let Some(known) = endpoints.get_mut(&id) {
            known.polled = true;
            if known.wakers.get(&key).is_some_and(|other| other.will_wake(waker)) {
                break;
            }
        }
        let Some(ours) = fresh.take() else {
            drop(endpoints);
            fresh = Some(waker.clone());
            continue;
        };
        if !endpoints.contains_key(&id)
            && let Err(error) =
                epoll::add(&reactor.epoll, fd.as_fd(), epoll::EventData::new_u64(id), epoll::EventFlags::IN)
        {
            drop(endpoints);
            deferred_actions::discard(ours);
            return Err(error.into());
        }
        let known = endpoints.entry(id).or_insert_with(|| WaitingTasks {
            fd: Arc::clone(fd),
            wakers: HashMap::new(),
            polled: true,
        });
        let replaced = known.wakers.insert(key, ours);
        drop(endpoints);
        deferred_actions::discard(replaced);
        if first {
            reactor.started.signal().ok();
        }
        break;
    }
    deferred_actions::discard(fresh);
    Ok(())
}

/// Removes the waker of the operation `key` of endpoint `id`.
pub(super) fn unwatch(id: u64, key: u64) {
    let Some(reactor) = running() else { return };
    let mut endpoints = reactor.lock();
    let Some(known) = endpoints.get_mut(&id) else { return };
    let waker = known.wakers.remove(&key);
    let last = known.wakers.is_empty().then(|| endpoints.remove(&id)).flatten();
    reactor.unwatch(last.as_ref());
    drop(endpoints);
    deferred_actions::discard(waker);
}

/// Removes the endpoint `id`, which is being closed, and drops the reactor's reference to its descriptor. The returned
/// deferred actions wake the tasks that waited for the endpoint.
pub(crate) fn forget(id: u64) -> DeferredActions {
    let mut deferred_actions = DeferredActions::default();
    let Some(reactor) = running() else { return deferred_actions };
    let mut endpoints = reactor.lock();
    let forgotten = endpoints.remove(&id);
    reactor.unwatch(forgotten.as_ref());
    drop(endpoints);
    forgotten
        .into_iter()
        .flat_map(|forgotten| forgotten.wakers.into_values())
        .for_each(|waker| deferred_actions.wake(Some(waker)));
    deferred_actions
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::Context;

    use super::*;
    use crate::Info;
    use crate::endpoint::ownership::reach::EngineAccess as _;

    /// Returns whether the reactor has a waker for the endpoint `id`, and so watches its descriptor.
    fn is_watched(id: u64) -> bool {
        running().is_some_and(|reactor| reactor.lock().contains_key(&id))
    }

    #[test]
    fn operation_that_has_ended_leaves_no_waker() {
        for transport in ["loopback", "shm", "tcp"] {
            let domain = Info::discover().unwrap().domain().transport(transport.parse().unwrap()).open().unwrap();
            let endpoint = domain.endpoint().bind("127.0.0.1:0").unwrap();
            let id = endpoint.access.with_here(|engine| engine.id());
            for is_polled in [false, true] {
                let mut receive = endpoint.recv(vec![0; 8]).start().unwrap();
                let mut context = Context::from_waker(Waker::noop());
                // The first polls do not store the waker, and the thread removes it from time to time.
                while !is_watched(id) {
                    assert!(Pin::new(&mut receive).poll(&mut context).is_pending());
                }
                assert!(receive.cancel());
                if is_polled {
                    assert!(Pin::new(&mut receive).poll(&mut context).is_ready());
                } else {
                    receive.wait().unwrap_err();
                }
                assert!(!is_watched(id), "{transport}");
            }
        }
    }
}

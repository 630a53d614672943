//! Wakes tasks: one thread that sleeps on the descriptors of all endpoints whose futures are waiting.
//!
//! Any async runtime will do, so percale brings its own reactor: an endpoint that has nothing to do arms its descriptor and
//! leaves its waker here; the thread wakes the task, whose next poll makes progress. It starts with the first waiting future.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Waker;

use rustix::event::epoll;

use crate::memory::forked::PerProcess;

/// Who waits for one endpoint.
#[derive(Debug)]
struct Waiting {
    /// Keeps the descriptor open while it is watched.
    fd: Arc<OwnedFd>,
    wakers: Vec<Waker>,
}

/// The reactor.
#[derive(Debug)]
struct Reactor {
    epoll: OwnedFd,
    waiting: Mutex<HashMap<u64, Waiting>>,
}

/// The one reactor of this process. A forked child starts its own: threads do not survive a fork, and the epoll set that it inherits
/// is its parent's.
static REACTOR: PerProcess<OnceLock<io::Result<&'static Reactor>>> = PerProcess::new();

impl Reactor {
    fn start() -> io::Result<&'static Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let reactor: &'static Self = Box::leak(Box::new(Self { epoll, waiting: Mutex::default() }));
        std::thread::Builder::new().name("percale-wake".into()).spawn(|| {
            crate::transport::connect::background::step_back();
            reactor.run();
        })?;
        Ok(reactor)
    }

    fn run(&self) {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return tracing::error!(%error, "the reactor cannot wait; futures wake no more"),
            }
            for event in &events {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                let woken = waiting.remove(&event.data.u64());
                if let Some(woken) = &woken
                    && let Err(error) = epoll::delete(&self.epoll, &woken.fd)
                {
                    tracing::debug!(%error, "a watched descriptor was gone already");
                }
                drop(waiting);
                woken.into_iter().flat_map(|woken| woken.wakers).for_each(Waker::wake);
            }
        }
    }
}

/// Wakes `waker` once `fd`, the descriptor of endpoint `id`, is readable.
pub(crate) fn wake_when_readable(id: u64, fd: &Arc<OwnedFd>, waker: &Waker) -> io::Result<()> {
    let reactor = match REACTOR.get_or_make()?.get_or_init(Reactor::start) {
        Ok(reactor) => *reactor,
        Err(error) => return Err(io::Error::new(error.kind(), error.to_string())),
    };
    let mut waiting = reactor.waiting.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = waiting.get_mut(&id) {
        if !known.wakers.iter().any(|other| other.will_wake(waker)) {
            known.wakers.push(waker.clone());
        }
        return Ok(());
    }
    epoll::add(&reactor.epoll, fd.as_fd(), epoll::EventData::new_u64(id), epoll::EventFlags::IN)?;
    waiting.insert(id, Waiting { fd: Arc::clone(fd), wakers: vec![waker.clone()] });
    Ok(())
}

/// Endpoint `id` is being closed: nobody waits for it any more, and its descriptor is kept no longer.
pub(crate) fn forget(id: u64) {
    let Some(Ok(reactor)) = REACTOR.get().and_then(OnceLock::get) else { return };
    let forgotten = reactor.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    if let Some(forgotten) = forgotten
        && let Err(error) = epoll::delete(&reactor.epoll, &forgotten.fd)
    {
        tracing::debug!(%error, "a watched descriptor was gone already");
    }
}

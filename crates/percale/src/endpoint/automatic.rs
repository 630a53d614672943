//! The drivers of a shared endpoint other than its users: threads that read or wait for its queues, and the progress
//! thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::engine::core::Core;
use super::engine::{Engine, deferred_cleanup};
use super::ownership::reach::EngineAccess;
use super::ownership::{Shared, WeakShared};
use crate::completion::counter::Counter;
use crate::completion::event::EventQueue;
use crate::completion::queue::CompletionQueue;
use crate::completion::wait::Driven;

/// The driver of a shared endpoint. It is attached to the queues and counters that the endpoint reports to.
pub(super) struct EndpointDriver {
    endpoint: WeakShared,
    descriptor: Arc<OwnedFd>,
}

impl Driven for EndpointDriver {
    fn progress(&self) {
        deferred_cleanup::settle();
        if let Some(endpoint) = self.endpoint.upgrade() {
            endpoint.with(Engine::progress);
        }
    }

    fn arm(&self) -> bool {
        let endpoint = self.endpoint.upgrade();
        endpoint.is_none_or(|endpoint| endpoint.with(Engine::watch_in_time))
    }

    fn automate(&self) -> io::Result<()> {
        self.endpoint.upgrade().map_or(Ok(()), |endpoint| endpoint.automate())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.descriptor.as_fd())
    }
}

/// The queues and counters that an endpoint reports to.
struct Waits {
    queues: Vec<CompletionQueue>,
    counters: Vec<Counter>,
    events: Option<EventQueue>,
}

impl Waits {
    /// Returns the queues and counters that the endpoint reports to.
    fn of(core: &Core) -> Self {
        Self {
            queues: core.reporting.queues().into_iter().flatten().collect(),
            counters: core.reporting.counters().all().cloned().collect(),
            events: core.reporting.events().cloned(),
        }
    }

    fn attach(&self, driver: &Arc<dyn Driven>) -> io::Result<()> {
        self.queues.iter().try_for_each(|queue| queue.attach(driver))?;
        self.counters.iter().try_for_each(|counter| counter.attach(driver))?;
        self.events.iter().try_for_each(|events| events.attach(driver))
    }

    fn detach(&self, driver: &Arc<dyn Driven>) {
        self.queues.iter().for_each(|queue| queue.detach(driver));
        self.counters.iter().for_each(|counter| counter.detach(driver));
        self.events.iter().for_each(|events| events.detach(driver));
    }
}

/// Lets counters begin operations of the endpoint, and lets threads that read or wait for its queues and counters drive
/// it.
pub(super) fn attach(endpoint: &Shared, descriptor: &Arc<OwnedFd>) -> io::Result<()> {
    let parts =
        endpoint.with(|engine| Some((Waits::of(&engine.core), Arc::clone(engine.core.triggered.submissions()))));
    let Some((waits, submissions)) = parts else { return Ok(()) };
    let driver: Arc<dyn Driven> =
        Arc::new(EndpointDriver { endpoint: endpoint.downgrade(), descriptor: Arc::clone(descriptor) });
    if let Err(error) = waits.attach(&driver) {
        waits.detach(&driver);
        return Err(error);
    }
    endpoint.keep(driver);
    submissions.share(endpoint.downgrade());
    Ok(())
}

/// The progress thread sleeps for at most this long before it checks whether its endpoint still exists.
const LOOK: Duration = Duration::from_millis(200);

/// Starts the thread that makes progress on an endpoint until the endpoint is closed.
pub(super) fn start(endpoint: WeakShared) -> io::Result<()> {
    crate::system::thread::start_thread("percale-progress", move || run(&endpoint)).map(drop)
}

fn run(endpoint: &WeakShared) {
    if let Some(shared) = endpoint.upgrade() {
        shared.with(|engine| engine.core.triggered.submissions().progressing());
    }
    let mut idle_since: Option<Instant> = None;
    loop {
        deferred_cleanup::settle();
        let Some(shared) = endpoint.upgrade() else { return };
        if shared.with(Engine::progress) {
            idle_since = None;
            continue;
        }
        let since = *idle_since.get_or_insert_with(Instant::now);
        if since.elapsed() < crate::system::spin::BUDGET {
            drop(shared);
            std::thread::yield_now();
            continue;
        }
        let armed = shared.with(|engine| engine.arm(engine.results()));
        drop(shared);
        if let Some(armed) = armed {
            armed.sleep(Some(Instant::now() + LOOK));
            idle_since = None;
            if let Some(shared) = endpoint.upgrade() {
                shared.with(|engine| engine.disarm(&armed));
            }
        }
    }
}

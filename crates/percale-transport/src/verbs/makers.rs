//! The thread pool of a domain that creates and destroys queue pairs for accesses. A device needs milliseconds to
//! create a queue pair, and if a peer's port is not found, the kernel spends a second on the search. There are only a
//! few such threads, regardless of the number of requests of peers, and they exist only while there is work.

use std::io;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, Weak};

use crate::background::{Job, WorkerPool};

/// An object to be created or destroyed.
pub(super) struct Task {
    work: Box<dyn FnOnce() + Send>,
    /// If this has expired, the work is dropped without being started.
    wanted: Option<Weak<()>>,
}

impl Job for Task {
    fn run(self) {
        (self.work)();
    }

    fn is_wanted(&self) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| wanted.strong_count() > 0)
    }
}

/// The thread pool of a domain.
pub(super) type Makers = Arc<WorkerPool<Task>>;

/// Creates the thread pool of a new domain.
pub(super) fn makers() -> Makers {
    WorkerPool::new("percale-pairs")
}

/// An object that is being created. If this is dropped before the creation has started, the object is not created.
#[derive(Debug)]
pub(super) struct Making<T> {
    result: Receiver<io::Result<T>>,
    _alive: Arc<()>,
}

impl<T: Send + 'static> Making<T> {
    /// Starts the creation.
    pub(super) fn start(makers: &Makers, make: impl FnOnce() -> io::Result<T> + Send + 'static) -> Self {
        let (made, result) = sync_channel(1);
        let alive = Arc::new(());
        let wanted = Some(Arc::downgrade(&alive));
        // A result that is no longer wanted is dropped on the thread of the pool.
        makers.start(Task { work: Box::new(move || drop(made.send(make()))), wanted });
        Self { result, _alive: alive }
    }

    /// Returns the result once it is available. It must not be called again after that.
    pub(super) fn result(&self) -> Option<io::Result<T>> {
        match self.result.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(io::ErrorKind::OutOfMemory.into())),
        }
    }
}

/// Drops an object on a thread of the pool, so that the caller does not wait for it.
pub(super) fn end(makers: &Makers, what: impl Send + 'static) {
    makers.start(Task { work: Box::new(move || drop(what)), wanted: None });
}

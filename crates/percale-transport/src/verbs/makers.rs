//! The threads of a domain that make and end queue pairs for accesses. A device takes milliseconds for one, and where a peer's port is not found the
//! kernel looks for it for a second. There are a few such threads, while there is something to do, whatever peers ask for.

use std::io;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, Weak};

use crate::background::{Crew, Job};

/// Something to be made or ended.
pub(super) struct Task {
    work: Box<dyn FnOnce() + Send>,
    /// The work is dropped unstarted once this has expired.
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

/// The threads of a domain.
pub(super) type Makers = Arc<Crew<Task>>;

/// Makes the thread pool of a new domain.
pub(super) fn makers() -> Makers {
    Crew::new("percale-pairs")
}

/// Something being made. If it is dropped before that has begun, it is not made.
#[derive(Debug)]
pub(super) struct Making<T> {
    result: Receiver<io::Result<T>>,
    _alive: Arc<()>,
}

impl<T: Send + 'static> Making<T> {
    /// Begins.
    pub(super) fn start(makers: &Makers, make: impl FnOnce() -> io::Result<T> + Send + 'static) -> Self {
        let (made, result) = sync_channel(1);
        let alive = Arc::new(());
        let wanted = Some(Arc::downgrade(&alive));
        // A result that is no longer wanted is dropped on that thread.
        makers.start(Task { work: Box::new(move || drop(made.send(make()))), wanted });
        Self { result, _alive: alive }
    }

    /// Returns the result, once.
    pub(super) fn result(&self) -> Option<io::Result<T>> {
        match self.result.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(io::ErrorKind::OutOfMemory.into())),
        }
    }
}

/// Ends something without waiting for it.
pub(super) fn end(makers: &Makers, what: impl Send + 'static) {
    makers.start(Task { work: Box::new(move || drop(what)), wanted: None });
}

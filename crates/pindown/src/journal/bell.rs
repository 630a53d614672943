//! How those who wait for changes are woken: by a descriptor that becomes readable, rung only while somebody waits.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::event::EventfdFlags;

/// A monitor's bell, as those who wait have it. [`Waiting`] calls these in order.
pub(crate) trait Bell: fmt::Debug + Send + Sync {
    /// From now on changes ring: either a look at the journal finds a change, or the change finds somebody waiting.
    fn join(&self);

    /// Somebody waits no more.
    fn leave(&self);

    /// Readable once a change was told.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// What was rung is about to be looked at; what comes from now on rings again.
    fn silence(&self);
}

/// Somebody who waits.
#[derive(Debug)]
pub(crate) struct Waiting<'a>(&'a dyn Bell);

impl<'a> Waiting<'a> {
    /// From now on changes ring.
    pub(crate) fn on(bell: &'a dyn Bell) -> Self {
        bell.join();
        Self(bell)
    }

    /// Readable once a change was told.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }

    /// What was rung is about to be looked at.
    pub(crate) fn silence(&self) {
        self.0.silence();
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// The bell of a monitor in this process: an event descriptor.
#[derive(Debug)]
pub(crate) struct EventBell {
    waiting: AtomicU32,
    event: OwnedFd,
}

impl EventBell {
    /// # Errors
    /// No descriptor.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = rustix::event::eventfd(0, flags).map_err(crate::calls::named("eventfd2"))?;
        Ok(Self { waiting: AtomicU32::new(0), event })
    }

    /// A change has been told. Allocates nothing, and calls the kernel only if somebody waits.
    pub(crate) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) != 0 {
            // A full counter has woken everybody already.
            rustix::io::write(&self.event, &1_u64.to_ne_bytes()).ok();
        }
    }
}

impl Bell for EventBell {
    fn join(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        // Pairs with the fence in `ring`.
        fence(Ordering::SeqCst);
    }

    fn leave(&self) {
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn silence(&self) {
        let mut count = [0; 8];
        // Nothing to read if another waiter has.
        rustix::io::read(&self.event, &mut count).ok();
    }
}

//! Wakes threads that wait for changes, by a descriptor that becomes readable. It is rung only while a thread waits.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::event::EventfdFlags;

/// A monitor's bell, as seen by waiting threads. [`Waiting`] calls these functions in order.
pub(crate) trait Bell: fmt::Debug + Send + Sync {
    /// Registers a waiting thread. From now on changes ring: either the thread's look at the journal finds a change, or
    /// the change finds a waiting thread.
    fn join(&self);

    /// Unregisters a waiting thread.
    fn leave(&self);

    /// The descriptor, which is readable once a change was reported.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Resets the descriptor, before the caller looks at the journal; later changes ring again.
    fn silence(&self);
}

/// A thread that waits for changes.
#[derive(Debug)]
pub(crate) struct Waiting<'a>(&'a dyn Bell);

impl<'a> Waiting<'a> {
    /// From now on changes ring.
    pub(crate) fn on(bell: &'a dyn Bell) -> Self {
        bell.join();
        Self(bell)
    }

    /// The descriptor, which is readable once a change was reported.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }

    /// Resets the descriptor, before the caller looks at the journal.
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

    /// Wakes the waiting threads after a change was reported. Allocates nothing, and calls the kernel only if a thread waits.
    pub(crate) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) != 0 {
            // A full counter has woken all waiting threads already.
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

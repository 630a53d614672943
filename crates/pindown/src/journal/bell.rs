//! How a monitor in this process wakes those who wait for changes: an event descriptor, rung only while somebody waits.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::event::EventfdFlags;

/// Rung after a change was told.
#[derive(Debug)]
pub(crate) struct Bell {
    waiting: AtomicU32,
    event: OwnedFd,
}

/// Somebody who waits.
#[derive(Debug)]
pub(crate) struct Waiting<'a>(&'a Bell);

impl Bell {
    /// # Errors
    /// No descriptor.
    pub(crate) fn new() -> io::Result<Self> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { waiting: AtomicU32::new(0), event })
    }

    /// From now on changes ring.
    pub(crate) fn listen(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        // Pairs with the fence in `ring`: either the change is found by a look at the journal, or this is seen there.
        fence(Ordering::SeqCst);
        Waiting(self)
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

impl Waiting<'_> {
    /// Readable once a change was told.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }

    /// What was rung is about to be looked at.
    pub(crate) fn silence(&self) {
        let mut count = [0; 8];
        // Nothing to read if another waiter has.
        rustix::io::read(&self.0.event, &mut count).ok();
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

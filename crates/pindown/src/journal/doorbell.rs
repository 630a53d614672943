//! Wakes threads that wait for changes through a descriptor that becomes readable. It is written only while a thread
//! waits.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::event::EventfdFlags;

/// The interface of a monitor's doorbell for waiting threads. [`WaitingThread`] calls these functions in order.
pub(crate) trait MonitorDoorbell: fmt::Debug + Send + Sync {
    /// Registers a waiting thread. Either the thread then finds an earlier change in the journal, or the thread that
    /// reports the change finds a waiting thread and rings.
    fn join(&self);

    /// Unregisters a waiting thread.
    fn leave(&self);

    /// Returns the descriptor, which is readable once a change was reported.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Resets the descriptor. Called before the waiting thread reads the journal; later changes ring again.
    fn silence(&self);
}

/// A thread that waits for changes.
#[derive(Debug)]
pub(crate) struct WaitingThread<'a>(&'a dyn MonitorDoorbell);

impl<'a> WaitingThread<'a> {
    /// Registers the calling thread, so that changes ring.
    pub(crate) fn on(doorbell: &'a dyn MonitorDoorbell) -> Self {
        doorbell.join();
        Self(doorbell)
    }

    /// Returns the descriptor, which is readable once a change was reported.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }

    /// Resets the descriptor. Called before the waiting thread reads the journal.
    pub(crate) fn silence(&self) {
        self.0.silence();
    }
}

impl Drop for WaitingThread<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// The doorbell of a monitor in this process: an eventfd.
#[derive(Debug)]
pub(crate) struct EventDoorbell {
    waiting: AtomicU32,
    event: OwnedFd,
}

impl EventDoorbell {
    /// Creates the eventfd.
    ///
    /// # Errors
    /// Errors of eventfd2(2).
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = rustix::event::eventfd(0, flags).map_err(crate::calls::named("eventfd2"))?;
        Ok(Self { waiting: AtomicU32::new(0), event })
    }

    /// Wakes the waiting threads after a change was reported. Allocates no memory, and makes a system call only if a
    /// thread waits.
    pub(crate) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) != 0 {
            // If the counter is full, all waiting threads have been woken already.
            rustix::io::write(&self.event, &1_u64.to_ne_bytes()).ok();
        }
    }
}

impl MonitorDoorbell for EventDoorbell {
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
        // The descriptor is empty if another waiting thread has read it.
        rustix::io::read(&self.event, &mut count).ok();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_change_rings_for_any_number_of_waiting_threads() {
        let doorbell = EventDoorbell::new().expect("a descriptor");
        let rings = || {
            doorbell.ring();
            let mut count = [0; 8];
            rustix::io::read(&doorbell.event, &mut count).is_ok()
        };
        let mut waiting = Vec::new();
        assert!(!rings(), "no thread waits");
        for count in 1..4 {
            waiting.push(WaitingThread::on(&doorbell));
            assert!(rings(), "{count} threads wait");
        }
        for count in (0..3).rev() {
            waiting.pop();
            assert_eq!(rings(), count != 0, "{count} threads wait");
        }
    }
}

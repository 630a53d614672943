//! Waits for several queues and counters at once.

use std::io;
use std::sync::{Arc, Mutex, Weak};

use super::{Driven, Wait, lock};

/// A [`Wait`] that follows others. Every endpoint that feeds a followed `Wait` also feeds the follower, and a wake-up
/// of the followed one's sleeping threads also wakes those of the follower.
pub(in crate::completion) trait Follower: Send + Sync {
    /// Called when `driver` was attached to a followed `Wait`.
    ///
    /// # Errors
    /// If the system cannot watch the driver's descriptor.
    fn attached(&self, driver: &Arc<dyn Driven>) -> io::Result<()>;

    /// Called when `driver` was detached from a followed `Wait`, or when this follower stops following a `Wait` with
    /// that driver.
    fn detached(&self, driver: &Arc<dyn Driven>);

    /// Called when a followed `Wait` that was armed is notified.
    fn woken(&self);
}

/// The followers of one [`Wait`].
#[derive(Default)]
pub(super) struct Followers {
    list: Mutex<Vec<Weak<dyn Follower>>>,
}

impl Followers {
    /// Returns the live followers, so that they can be called without the lock.
    pub(super) fn all(&self) -> Vec<Arc<dyn Follower>> {
        lock(&self.list).iter().filter_map(Weak::upgrade).collect()
    }
}

impl Wait {
    /// Reports all attachments, detachments and notifications to `follower` from now on, as long as it exists.
    ///
    /// # Errors
    /// If a driver cannot be attached to the follower, or this `Wait` was inherited from a parent process.
    pub(in crate::completion) fn follow(&self, follower: &Arc<dyn Follower>) -> io::Result<()> {
        self.check_process()?;
        let mut list = lock(&self.followers.list);
        list.retain(|other| other.strong_count() > 0);
        list.push(Arc::downgrade(follower));
        drop(list);
        // The follower is already in the list, so a driver that is attached at the same time may be attached to it
        // twice, which has the same effect as once.
        self.drivers().iter().filter_map(Weak::upgrade).try_for_each(|driver| follower.attached(&driver))
    }

    /// Stops reporting to `follower`.
    pub(in crate::completion) fn leave(&self, follower: &Arc<dyn Follower>) {
        if !self.is_here() {
            return; // Nothing of this process follows it.
        }
        let gone = Arc::downgrade(follower);
        lock(&self.followers.list).retain(|other| other.strong_count() > 0 && !other.ptr_eq(&gone));
        self.drivers().iter().filter_map(Weak::upgrade).for_each(|driver| follower.detached(&driver));
    }

    /// Arms this `Wait` for a follower that arms the drivers itself.
    pub(in crate::completion) fn mark(&self) {
        self.armed.set(0);
    }

    /// Returns whether `driver` is attached.
    pub(in crate::completion) fn is_driven_by(&self, driver: &Arc<dyn Driven>) -> bool {
        if !self.is_here() {
            return false;
        }
        let driver = Arc::downgrade(driver);
        self.drivers().iter().any(|other| other.ptr_eq(&driver))
    }
}

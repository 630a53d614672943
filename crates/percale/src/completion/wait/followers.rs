//! Waiting for several queues and counters at once.

use std::io;
use std::sync::{Arc, Mutex, Weak};

use super::{Progress, Wait, lock};

/// A [`Wait`] that follows others: every endpoint that feeds one of them feeds it too, and a wake-up of their sleepers also wakes
/// its own.
pub(in crate::completion) trait Follower: Send + Sync {
    /// Called when `driver` was attached to a `Wait` that this follows.
    ///
    /// # Errors
    /// If the system refuses to watch the driver's descriptor.
    fn attached(&self, driver: &Arc<dyn Progress>) -> io::Result<()>;

    /// Called when `driver` was detached from a `Wait` that this follows, or when this stops following a `Wait` with that driver.
    fn detached(&self, driver: &Arc<dyn Progress>);

    /// Called when a `Wait` that this follows was armed, and there is something.
    fn woken(&self);
}

/// The followers of one [`Wait`].
#[derive(Default)]
pub(super) struct Followers {
    list: Mutex<Vec<Weak<dyn Follower>>>,
}

impl Followers {
    /// The followers that are alive, to be called without the lock.
    pub(super) fn all(&self) -> Vec<Arc<dyn Follower>> {
        lock(&self.list).iter().filter_map(Weak::upgrade).collect()
    }
}

impl Wait {
    /// Reports to `follower` all that happens here from now on, for as long as it lives.
    ///
    /// # Errors
    /// If a driver cannot be attached to the follower.
    pub(in crate::completion) fn follow(&self, follower: &Arc<dyn Follower>) -> io::Result<()> {
        let mut list = lock(&self.followers.list);
        list.retain(|other| other.strong_count() > 0);
        list.push(Arc::downgrade(follower));
        drop(list);
        // After the follower is on the list: a driver that is attached meanwhile is attached to it twice, which has the same effect
        // as once.
        self.drivers().iter().filter_map(Weak::upgrade).try_for_each(|driver| follower.attached(&driver))
    }

    /// Stops reporting to `follower`.
    pub(in crate::completion) fn leave(&self, follower: &Arc<dyn Follower>) {
        let gone = Arc::downgrade(follower);
        lock(&self.followers.list).retain(|other| other.strong_count() > 0 && !other.ptr_eq(&gone));
        self.drivers().iter().filter_map(Weak::upgrade).for_each(|driver| follower.detached(&driver));
    }

    /// Arms on behalf of the followers, for a follower that arms the drivers itself.
    pub(in crate::completion) fn mark(&self) {
        self.armed.set(0);
    }

    /// Whether `driver` is attached.
    pub(in crate::completion) fn is_driven_by(&self, driver: &Arc<dyn Progress>) -> bool {
        let driver = Arc::downgrade(driver);
        self.drivers().iter().any(|other| other.ptr_eq(&driver))
    }
}

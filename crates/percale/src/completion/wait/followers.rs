//! Who waits at several places at once.

use std::io;
use std::sync::{Arc, Mutex, Weak};

use super::{Progress, Wait, lock};

/// A place that follows others: whoever feeds one of them feeds it too, and whoever wakes those who sleep there wakes those who
/// sleep here.
pub(in crate::completion) trait Follower: Send + Sync {
    /// A place that it follows is fed by this.
    ///
    /// # Errors
    /// If the system refuses to watch its descriptor.
    fn attached(&self, driver: &Arc<dyn Progress>) -> io::Result<()>;

    /// A place that it followed is no longer fed by this.
    fn detached(&self, driver: &Arc<dyn Progress>);

    /// Somebody had asked to be told of a place that it follows, and there is something.
    fn woken(&self);
}

/// The followers of one place.
#[derive(Default)]
pub(super) struct Followers {
    list: Mutex<Vec<Weak<dyn Follower>>>,
}

impl Followers {
    /// Those that live, so that they are called without the lock.
    pub(super) fn all(&self) -> Vec<Arc<dyn Follower>> {
        lock(&self.list).iter().filter_map(Weak::upgrade).collect()
    }
}

impl Wait {
    /// `follower` hears of all that happens here from now on, for as long as it lives.
    ///
    /// # Errors
    /// If it cannot be fed as this place is.
    pub(in crate::completion) fn follow(&self, follower: &Arc<dyn Follower>) -> io::Result<()> {
        let mut list = lock(&self.followers.list);
        list.retain(|other| other.strong_count() > 0);
        list.push(Arc::downgrade(follower));
        drop(list);
        // After it is on the list: who is attached meanwhile is attached there twice, which is as good as once.
        self.drivers().iter().filter_map(Weak::upgrade).try_for_each(|driver| follower.attached(&driver))
    }

    /// `follower` hears no more of this place.
    pub(in crate::completion) fn leave(&self, follower: &Arc<dyn Follower>) {
        let gone = Arc::downgrade(follower);
        lock(&self.followers.list).retain(|other| other.strong_count() > 0 && !other.ptr_eq(&gone));
        self.drivers().iter().filter_map(Weak::upgrade).for_each(|driver| follower.detached(&driver));
    }

    /// Asks that followers be told, for one of them that arms the drivers itself.
    pub(in crate::completion) fn mark(&self) {
        self.armed.set(0);
    }

    /// Whether this is attached.
    pub(in crate::completion) fn is_driven_by(&self, driver: &Arc<dyn Progress>) -> bool {
        let driver = Arc::downgrade(driver);
        self.drivers().iter().any(|other| other.ptr_eq(&driver))
    }
}

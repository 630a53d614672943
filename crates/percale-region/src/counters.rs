//! The counters of a region (fi_mr(3), fi_mr_bind). Each counter counts the writes of peers.

use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// A counter of accesses, in the form that regions use. The counters of programs are in a crate that depends on this
/// one.
pub trait AccessCounter: std::fmt::Debug + Send + Sync {
    /// Adds to the number of accesses. This may begin operations.
    fn add(&self, count: u64);

    /// Returns a number that is the same for all handles to one counter. No other counter has this number as long as
    /// the counter exists.
    fn identity(&self) -> usize;
}

/// The counters that are bound to a region. Counters are added and never removed. The first is found without a lock,
/// because most regions have at most one.
#[derive(Debug, Default)]
pub struct RegionCounters {
    first: OnceLock<Arc<dyn AccessCounter>>,
    others: RwLock<Vec<Arc<dyn AccessCounter>>>,
}

impl RegionCounters {
    /// Creates a list of these counters without duplicates.
    #[inline]
    pub(super) fn of(counters: &[Arc<dyn AccessCounter>]) -> Self {
        let made = Self::default();
        counters.iter().for_each(|counter| made.add(counter));
        made
    }

    /// Adds a counter, unless it is already in the list.
    pub(super) fn add(&self, counter: &Arc<dyn AccessCounter>) {
        let first = self.first.get_or_init(|| Arc::clone(counter));
        if first.identity() == counter.identity() {
            return;
        }
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        if !others.iter().any(|other| other.identity() == counter.identity()) {
            others.push(Arc::clone(counter));
        }
    }

    /// Returns whether there are no counters.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first.get().is_none()
    }

    /// Calls `then` for each counter. No lock is held during the calls, because counting may start operations.
    pub fn each(&self, mut then: impl FnMut(&Arc<dyn AccessCounter>)) {
        let Some(first) = self.first.get() else { return };
        then(first);
        // The lock is released at the end of this statement.
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner).clone();
        others.iter().for_each(then);
    }

    /// Returns whether this counter is in the list.
    pub fn have(&self, counter: &impl AccessCounter) -> bool {
        let Some(first) = self.first.get() else { return false };
        let others = || self.others.read().unwrap_or_else(PoisonError::into_inner);
        first.identity() == counter.identity() || others().iter().any(|other| other.identity() == counter.identity())
    }
}

impl Clone for RegionCounters {
    fn clone(&self) -> Self {
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner).clone();
        Self { first: self.first.clone(), others: RwLock::new(others) }
    }
}

//! The counters of a region (fi_mr(3), fi_mr_bind). Each counts the writes of peers.

use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use crate::completion::counter::Counter;

/// The counters bound to a region. Counters are added and never removed. The first is found without a lock, because
/// most regions have at most one.
#[derive(Debug, Default)]
pub(crate) struct RegionCounters {
    first: OnceLock<Arc<Counter>>,
    others: RwLock<Vec<Arc<Counter>>>,
}

impl RegionCounters {
    /// Creates a list of these counters without duplicates.
    pub(super) fn of(counters: &[Arc<Counter>]) -> Self {
        let made = Self::default();
        counters.iter().for_each(|counter| made.add(counter));
        made
    }

    /// Adds a counter, unless it is in the list already.
    pub(super) fn add(&self, counter: &Arc<Counter>) {
        let first = self.first.get_or_init(|| Arc::clone(counter));
        if first.is_same(counter) {
            return;
        }
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        if !others.iter().any(|other| other.is_same(counter)) {
            others.push(Arc::clone(counter));
        }
    }

    /// Returns whether there are no counters.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.get().is_none()
    }

    /// Calls `then` for each counter. No lock is held during the calls, because counting may start operations.
    pub(crate) fn each(&self, mut then: impl FnMut(&Arc<Counter>)) {
        let Some(first) = self.first.get() else { return };
        then(first);
        // The lock is released at the end of this statement.
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner).clone();
        others.iter().for_each(then);
    }

    /// Returns whether this counter is in the list.
    pub(crate) fn have(&self, counter: &Arc<Counter>) -> bool {
        let Some(first) = self.first.get() else { return false };
        let others = || self.others.read().unwrap_or_else(PoisonError::into_inner);
        first.is_same(counter) || others().iter().any(|other| other.is_same(counter))
    }
}

impl Clone for RegionCounters {
    fn clone(&self) -> Self {
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner).clone();
        Self { first: self.first.clone(), others: RwLock::new(others) }
    }
}

//! Limits on one kind of resource of the helper's users: connections, address spaces, or watched files.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The limits that a helper imposes on its clients.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// The maximum number of connections, and of address spaces, of one user. Also applies to root.
    pub per_user: usize,
    /// The maximum number of connections, and of address spaces, of all users together. At most 4,096.
    pub total: usize,
    /// The maximum number of watched files of one user: each address space counts each of its files.
    pub files_per_user: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { per_user: 256, total: 2048, files_per_user: 1024 }
    }
}

/// The limits of one kind of resource, and the units in use.
#[derive(Debug)]
pub(super) struct Quota<K> {
    each: usize,
    total: usize,
    all: Arc<AtomicUsize>,
    by_key: HashMap<K, Arc<AtomicUsize>>,
}

/// The limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReachedLimit {
    /// The limit of one user.
    Each,
    /// The limit of all users together.
    Total,
}

/// One unit of a quota. It is returned when this value is dropped, on any thread.
#[derive(Debug)]
pub(super) struct Charge([Arc<AtomicUsize>; 2]);

impl Drop for Charge {
    fn drop(&mut self) {
        for count in &self.0 {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl<K: Eq + Hash> Quota<K> {
    pub(super) fn new(each: usize, total: usize) -> Self {
        Self { each, total, all: Arc::default(), by_key: HashMap::new() }
    }

    /// Takes one unit for `key`. Called by one thread at a time.
    pub(super) fn take(&mut self, key: K) -> Result<Charge, ReachedLimit> {
        if self.all.load(Ordering::Relaxed) >= self.total {
            return Err(ReachedLimit::Total);
        }
        // Keys without units are removed before the table grows.
        if self.by_key.len() == self.by_key.capacity() {
            self.by_key.retain(|_, count| count.load(Ordering::Relaxed) > 0);
        }
        let count = self.by_key.entry(key).or_default();
        if count.load(Ordering::Relaxed) >= self.each {
            return Err(ReachedLimit::Each);
        }
        let charge = Charge([Arc::clone(count), Arc::clone(&self.all)]);
        for count in &charge.0 {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(charge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirements: MON-034.
    #[test]
    fn quota_is_counted_per_user_and_in_total() {
        let mut quota = Quota::new(2, 3);
        let first = [quota.take(1), quota.take(1)].map(|taken| taken.expect("within both limits"));
        assert_eq!(quota.take(1).expect_err("a third connection of one user"), ReachedLimit::Each);
        let other = quota.take(2).expect("another user's first");
        assert_eq!(quota.take(2).expect_err("a fourth connection of all users"), ReachedLimit::Total);
        drop(first);
        let again = [quota.take(1), quota.take(2)].map(|taken| taken.expect("two were given back"));
        drop((other, again));
        assert_eq!(quota.all.load(Ordering::Relaxed), 0);
        for user in 0..1000 {
            quota.take(user).expect("given back at once");
        }
        assert!(quota.by_key.len() < 100, "users that have nothing are forgotten");
    }
}

//! The statistics of a cache.

use crate::monitor::Refusal;

/// Counts since the cache was opened, and the number and size of its current registrations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Look-ups that found a registration without a lock.
    pub hits: u64,
    /// Look-ups that found a registration in the table, under its lock: after a change, or at a new address in a
    /// registered range.
    pub slow_hits: u64,
    /// Look-ups that made a registration that was kept.
    pub misses: u64,
    /// Registrations that are kept now.
    pub entries: u64,
    /// Bytes of the registrations that are kept now.
    pub bytes: u64,
    /// Registrations removed from the cache but not yet unpinned, because their last use has not ended or the cache has
    /// not checked it.
    pub retired: u64,
    /// Bytes of those registrations.
    pub retired_bytes: u64,
    /// Look-ups that made a registration for one use, by reason.
    pub single_uses: [u64; Refusal::ALL.len()],
    /// Look-ups that failed because the registrar returned an error, or because a callback panicked.
    pub failures: u64,
    /// Registrations dropped to make room.
    pub evictions: u64,
    /// Registrations dropped because their memory may have changed, because the process lost a right, or by
    /// [`Cache::flush`](crate::Cache::flush).
    pub invalidations: u64,
    /// Registrations dropped because a larger one replaced them ([`Builder::merging`](crate::Builder::merging)).
    pub merged: u64,
    /// The number of times that all registrations were dropped because the changed addresses were unknown.
    pub flushes: u64,
    /// Registrations made by [`Cache::register`](crate::Cache::register) that the application has not deregistered.
    pub own: u64,
}

impl Stats {
    /// Returns the number of look-ups that were served for one use only, for this reason.
    #[must_use]
    pub fn single_uses_for(&self, reason: Refusal) -> u64 {
        self.single_uses[reason.index()]
    }
}

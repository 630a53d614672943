//! What a cache has done.

use crate::monitor::Refusal;

/// Counts since the cache was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Look-ups that found a registration without a lock.
    pub hits: u64,
    /// Look-ups that found one in the table behind its lock: after a change, or at a new place of a registered range.
    pub slow_hits: u64,
    /// Look-ups that made a registration and kept it.
    pub misses: u64,
    /// Registrations kept now.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Registrations taken out of the cache but not yet unpinned, because their last use has not ended or has not been
    /// checked.
    pub retired: u64,
    /// Their bytes.
    pub retired_bytes: u64,
    /// Look-ups that made a registration for one use, by reason.
    pub single_uses: [u64; Refusal::ALL.len()],
    /// Look-ups that the registrar refused.
    pub failures: u64,
    /// Registrations dropped for want of room.
    pub evictions: u64,
    /// Registrations dropped because their memory changed.
    pub invalidations: u64,
    /// Registrations dropped because a larger one took their place ([`Builder::merging`](crate::Builder::merging)).
    pub merged: u64,
    /// How often everything was dropped because it was not known what had changed.
    pub flushes: u64,
    /// Registrations of the application's own that it has not undone.
    pub own: u64,
}

impl Stats {
    /// Look-ups served for one use only, for this reason.
    #[must_use]
    pub fn single_uses_for(&self, reason: Refusal) -> u64 {
        self.single_uses[reason.index()]
    }
}

//! The statistics of a cache, for C.

use std::ffi::c_int;

use super::error::answer;
use super::sized::CallersStructure;
use super::{OpenCache, own, place};
use crate::cache::Stats;

/// `struct pindown_stats`.
#[repr(C)]
#[derive(Clone, Copy, Debug, zerocopy::Immutable, zerocopy::IntoBytes)]
pub struct Counts {
    pub(super) size: usize,
    pub(super) hits: u64,
    pub(super) slow_hits: u64,
    pub(super) misses: u64,
    pub(super) failures: u64,
    pub(super) evictions: u64,
    pub(super) invalidations: u64,
    pub(super) flushes: u64,
    pub(super) own: u64,
    pub(super) entries: u64,
    pub(super) bytes: u64,
    pub(super) retired: u64,
    pub(super) retired_bytes: u64,
    pub(super) single_not_caching: u64,
    pub(super) single_too_large: u64,
    pub(super) single_not_watchable: u64,
    pub(super) single_in_use: u64,
    pub(super) single_changed: u64,
    pub(super) single_monitor_ended: u64,
}

impl Counts {
    fn of(stats: Stats, size: usize) -> Self {
        let Stats { hits, slow_hits, misses, single_uses, failures, evictions, invalidations, flushes, .. } = stats;
        let Stats { own, entries, bytes, retired, retired_bytes, .. } = stats;
        let [single_not_caching, single_too_large, single_not_watchable, single_in_use, single_changed, ended] =
            single_uses;
        Self {
            size,
            hits,
            slow_hits,
            misses,
            failures,
            evictions,
            invalidations,
            flushes,
            own,
            entries,
            bytes,
            retired,
            retired_bytes,
            single_not_caching,
            single_too_large,
            single_not_watchable,
            single_in_use,
            single_changed,
            single_monitor_ended: ended,
        }
    }
}

/// Fills in the counts for which the caller's structure has fields.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pindown_read_stats(cache: *const OpenCache, stats: *mut Counts) -> c_int {
    // SAFETY: the caller meets the same requirements.
    answer(unsafe { own(cache) }.and_then(|own| {
        let stats = place(stats, "stats")?;
        // SAFETY: the caller guarantees that a structure of the given size is there.
        let stats = unsafe { CallersStructure::new(stats, size_of::<usize>(), "stats") }?;
        // SAFETY: as above; only the caller's thread accesses the structure during the call.
        unsafe { stats.write(&Counts::of(own.cache.stats(), stats.size())) };
        Ok(0)
    }))
}

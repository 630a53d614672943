//! Counts, in tests only, the entries that searches look at: proof that a search does not walk entries without need.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts one entry, or one bin of a hash chain, that was looked at.
#[inline]
pub(super) fn step() {
    #[cfg(test)]
    STEPS.set(STEPS.get() + 1);
}

/// Steps of this thread since the last call.
#[cfg(test)]
pub(super) fn taken() -> u64 {
    STEPS.replace(0)
}

//! Counts, in tests only, the entries that searches examine, to verify that searches do not walk entries unnecessarily.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts one entry, or one bin of a hash chain, that was examined.
#[inline]
pub(super) fn step() {
    #[cfg(test)]
    STEPS.set(STEPS.get() + 1);
}

/// Returns the number of steps of this thread since the last call.
#[cfg(test)]
pub(super) fn taken() -> u64 {
    STEPS.replace(0)
}

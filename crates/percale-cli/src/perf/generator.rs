//! A random number generator with negligible cost in measurements.

/// Returns a number below `count`, from the upper half of Knuth's multiplicative generator. It does not depend on
/// values that the caller has read, so a processor can compute it in advance.
#[inline]
pub(super) const fn next(state: &mut u64, count: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*state >> 32) * count) >> 32
}

//! A generator of numbers that costs next to nothing beside what is measured.

/// Any number below `count`, cheaply, and not by what was read before (Knuth's multiplicative generator, its upper half).
#[inline]
pub(super) const fn next(state: &mut u64, count: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*state >> 32) * count) >> 32
}

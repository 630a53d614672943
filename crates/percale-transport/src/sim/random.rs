//! A small deterministic random number generator (SplitMix64). It must not be used for secrets.

/// A sequence of numbers that is determined by its seed.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    /// Creates a generator with this seed.
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Creates another generator, which differs for each `index`.
    pub(super) fn fork(&self, index: u64) -> Self {
        let mut other = Self(self.0 ^ index.wrapping_add(1).wrapping_mul(0xd1b5_4a32_d192_ed03));
        other.next();
        other
    }

    /// Returns the next number.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Returns a number from `low` to `high` (inclusive).
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        let span = high.saturating_sub(low).saturating_add(1);
        low.saturating_add(self.next() % span)
    }

    /// Returns true with a probability of `per_million` per million.
    pub(super) fn chance(&mut self, per_million: u32) -> bool {
        self.next() % 1_000_000 < u64::from(per_million)
    }
}

//! Pseudorandom numbers from a seed (SplitMix64).

/// A random number generator.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Makes another generator, for another thread.
    pub(super) fn fork(&mut self) -> Self {
        Self(self.below(u64::MAX))
    }

    /// Returns a number below the bound.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % bound.max(1)
    }

    /// Returns true once in `count` calls on average.
    pub(super) fn once_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// Returns a random element of `all`, which must not be empty.
    pub(super) fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }
}

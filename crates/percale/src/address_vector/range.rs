//! Ranges: consecutive entries that have the addresses of a block.

use std::sync::atomic::{AtomicU64, Ordering};

use super::block::{Block, WORDS};

/// The number of words of a range: its first index, its number of entries, the number of addresses of its block before
/// them, and the block.
pub(super) const RANGE: usize = 3 + WORDS;

/// Consecutive entries with the addresses of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) first: u64,
    pub(super) count: u64,
    pub(super) skip: u64,
    pub(super) block: Block,
}

impl Range {
    /// Writes the range to its words.
    pub(super) fn write(&self, words: &[AtomicU64]) {
        let values = [self.first, self.count, self.skip].into_iter().chain(self.block.pack());
        for (word, value) in words.iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Decodes a range from words. Returns `None` if they do not encode one.
    #[inline]
    pub(super) fn read(words: &[AtomicU64]) -> Option<Self> {
        let words: &[AtomicU64; RANGE] = words.first_chunk()?;
        let word = |at: usize| words[at].load(Ordering::Relaxed);
        let block = Block::unpack(std::array::from_fn(|at| word(3 + at)))?;
        Some(Self { first: word(0), count: word(1), skip: word(2), block })
    }
}

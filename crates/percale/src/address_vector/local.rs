//! The words of a vector that is local to this process.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::paged::Paged;
use super::range::{RANGE, Range};

/// The number of directories of ranges. They hold 1, 2, 4, … ranges.
const DIRECTORIES: usize = 32;

type RangeWords = [AtomicU64; RANGE];

/// The words of a local vector.
#[derive(Debug)]
pub(super) struct LocalStore {
    pub(super) entries: Paged,
    pub(super) records: Paged,
    counts: Paged,
    ranges: [OnceLock<Box<[RangeWords]>>; DIRECTORIES],
}

impl LocalStore {
    /// Creates the words for the expected number of entries or more.
    pub(super) fn new(expected: usize) -> Self {
        Self {
            entries: Paged::new(expected),
            records: Paged::new(expected.saturating_mul(2)),
            counts: Paged::new(0),
            ranges: [const { OnceLock::new() }; DIRECTORIES],
        }
    }

    /// Returns the number of entries of a page that are marked as removed.
    pub(super) fn count(&self, page: usize) -> u64 {
        self.counts.get(page).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Adds to the number of removed entries of a page.
    pub(super) fn add_count(&self, page: usize, more: i64) {
        if let Some(count) = self.counts.make(page) {
            count.store(count.load(Ordering::Relaxed).wrapping_add_signed(more), Ordering::Relaxed);
        }
    }

    /// Returns the words of a range.
    #[inline]
    pub(super) fn range(&self, number: usize) -> Option<&[AtomicU64]> {
        let (directory, at) = place(number);
        self.ranges.get(directory)?.get()?.get(at).map(|words| &words[..])
    }

    /// Writes a range. Returns whether there is room for it.
    pub(super) fn write_range(&self, number: usize, range: &Range) -> bool {
        let (directory, at) = place(number);
        let Some(directory_at) = self.ranges.get(directory) else { return false };
        let make = || std::iter::repeat_with(|| [const { AtomicU64::new(0) }; RANGE]).take(1 << directory).collect();
        range.write(&directory_at.get_or_init(make)[at]);
        true
    }
}

/// Returns the directory of a range, and its index in that directory.
const fn place(number: usize) -> (usize, usize) {
    let directory = (number + 1).ilog2() as usize;
    (directory, number + 1 - (1 << directory))
}

//! Where a vector's words are: in this process, or shared with others.
//!
//! Both have the same parts, all of them 64-bit words that begin as 0: *cells*, one for each number that the table keeps
//! about itself; *entries* and, at twice their index, *records* of IPv6 addresses, in pages that exist or do not; one
//! *count* for each page of entries; and *ranges*, a few words each.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::block::{Block, WORDS};
use super::error::AddressError;
use super::paged::{LIMIT, Paged};

/// What a table keeps about itself.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(super) enum Cell {
    /// Entries up to here may be in use.
    End,
    /// Entries in use.
    Used,
    /// Entries below the end that are free.
    Removed,
    /// No free entry is before this one.
    Hint,
    /// Ranges that are complete.
    Ranges,
    /// The tag of the IPv6 entry that was written last.
    Tag,
    /// Changes so far.
    Changes,
    /// Removals so far, twice; odd while one is under way.
    Removals,
    /// A writer is at work, or died at it.
    Writing,
}

/// Cells.
pub(super) const CELLS: usize = Cell::Writing as usize + 1;

/// Words of a range: its first index, how many entries it has, how many addresses of its block come before them, and
/// the block.
pub(super) const RANGE: usize = 3 + WORDS;

/// Consecutive entries with the addresses of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) first: u64,
    pub(super) count: u64,
    pub(super) skip: u64,
    pub(super) block: Block,
}

/// Directories of ranges, of 1, 2, 4, … each.
const DIRECTORIES: usize = 32;

type RangeWords = [AtomicU64; RANGE];

/// The words.
#[derive(Debug)]
pub(super) struct Store {
    cells: [AtomicU64; CELLS],
    entries: Paged,
    records: Paged,
    counts: Paged,
    ranges: [OnceLock<Box<[RangeWords]>>; DIRECTORIES],
}

impl Store {
    /// Words of this process.
    pub(super) fn local() -> Self {
        Self {
            cells: [const { AtomicU64::new(0) }; CELLS],
            entries: Paged::new(),
            records: Paged::new(),
            counts: Paged::new(),
            ranges: [const { OnceLock::new() }; DIRECTORIES],
        }
    }

    /// Entries that there can be.
    #[inline]
    pub(super) const fn limit(&self) -> usize {
        LIMIT
    }

    #[inline]
    pub(super) fn cell(&self, cell: Cell) -> &AtomicU64 {
        &self.cells[cell as usize]
    }

    /// The entry at `index`, if its page exists.
    #[inline]
    pub(super) fn entry(&self, index: usize) -> Option<&AtomicU64> {
        self.entries.get(index)
    }

    /// A page of entries, if it exists.
    pub(super) fn page(&self, page: usize) -> Option<&[AtomicU64]> {
        self.entries.page(page)
    }

    /// The entry at `index`, whose page is made if need be.
    pub(super) fn make_entry(&self, index: usize) -> Result<&AtomicU64, AddressError> {
        self.entries.make(index).ok_or(AddressError::Full)
    }

    /// The record at `index`: high and low bits.
    #[inline]
    pub(super) fn record(&self, index: usize) -> Option<(&AtomicU64, &AtomicU64)> {
        Some((self.records.get(2 * index)?, self.records.get(2 * index + 1)?))
    }

    /// The record at `index`, whose page is made if need be.
    pub(super) fn make_record(&self, index: usize) -> Result<(&AtomicU64, &AtomicU64), AddressError> {
        let make = |at| self.records.make(at).ok_or(AddressError::Full);
        Ok((make(2 * index)?, make(2 * index + 1)?))
    }

    /// How many entries of a page are marked as removed.
    pub(super) fn count(&self, page: usize) -> u64 {
        self.counts.get(page).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Adds to that number.
    pub(super) fn add_count(&self, page: usize, more: i64) {
        if let Some(count) = self.counts.make(page) {
            count.store(count.load(Ordering::Relaxed).wrapping_add_signed(more), Ordering::Relaxed);
        }
    }

    /// The range with this number.
    #[inline]
    pub(super) fn range(&self, number: usize) -> Option<Range> {
        let words = self.range_words(number)?;
        let word = |at: usize| words[at].load(Ordering::Relaxed);
        let block = Block::unpack(std::array::from_fn(|at| word(3 + at)))?;
        Some(Range { first: word(0), count: word(1), skip: word(2), block })
    }

    /// Where the range with this number begins.
    #[inline]
    pub(super) fn range_start(&self, number: usize) -> Option<u64> {
        self.range_words(number).map(|words| words[0].load(Ordering::Relaxed))
    }

    #[inline]
    fn range_words(&self, number: usize) -> Option<&RangeWords> {
        let (directory, at) = range_place(number);
        self.ranges.get(directory)?.get()?.get(at)
    }

    /// Writes the range with this number; whether there is room for it.
    pub(super) fn write_range(&self, number: usize, range: &Range) -> bool {
        let (directory, at) = range_place(number);
        let Some(directory_at) = self.ranges.get(directory) else { return false };
        let make = || std::iter::repeat_with(|| [const { AtomicU64::new(0) }; RANGE]).take(1 << directory).collect();
        let words: &RangeWords = &directory_at.get_or_init(make)[at];
        let values = [range.first, range.count, range.skip].into_iter().chain(range.block.pack());
        for (word, value) in words.iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
        true
    }
}

/// Which directory, and which place in it, has a range.
const fn range_place(number: usize) -> (usize, usize) {
    let directory = (number + 1).ilog2() as usize;
    (directory, number + 1 - (1 << directory))
}

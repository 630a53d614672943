//! Where a vector's words are: in this process, or shared with others.
//!
//! Both have the same parts, all of them 64-bit words that begin as 0: *cells*, one for each number that the table keeps
//! about itself; *entries* and, at twice their index, *records* of IPv6 addresses, in pages that exist or do not; one
//! *count* for each page of entries; and *ranges*, a few words each.

use std::sync::atomic::{AtomicU64, Ordering};

use super::block::{Block, WORDS};
use super::error::AddressError;
use super::local::Local;
use super::paged::LIMIT;
use super::shared::Shared;
use crate::memory::words::Array;

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

/// What is found without asking whose it is.
pub(super) type Cells = Array<CELLS>;

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

impl Range {
    /// Writes it to its words.
    pub(super) fn write(&self, words: &[AtomicU64]) {
        let values = [self.first, self.count, self.skip].into_iter().chain(self.block.pack());
        for (word, value) in words.iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// The range that words say, if they say one.
    #[inline]
    fn read(words: &[AtomicU64]) -> Option<Self> {
        let words: &[AtomicU64; RANGE] = words.first_chunk()?;
        let word = |at: usize| words[at].load(Ordering::Relaxed);
        let block = Block::unpack(std::array::from_fn(|at| word(3 + at)))?;
        Some(Self { first: word(0), count: word(1), skip: word(2), block })
    }
}

/// The words.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) cells: Cells,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Here(Box<Local>),
    Shared(Shared),
}

use Place::{Here, Shared as There};

impl Store {
    /// Words of this process, for so many entries, or more.
    pub(super) fn local(expected: usize) -> Self {
        Self { cells: Cells::here(), place: Here(Box::new(Local::new(expected))) }
    }

    /// Words that others use as well.
    pub(super) fn shared(shared: Shared) -> Self {
        Self { cells: shared.cells(), place: There(shared) }
    }

    /// What is shared, if it is.
    pub(super) fn as_shared(&self) -> Option<&Shared> {
        match &self.place {
            Here(_) => None,
            There(shared) => Some(shared),
        }
    }

    /// Entries that there can be.
    #[inline]
    pub(super) fn limit(&self) -> usize {
        match &self.place {
            Here(_) => LIMIT,
            There(shared) => shared.capacity(),
        }
    }

    #[inline]
    pub(super) fn cell(&self, cell: Cell) -> &AtomicU64 {
        &self.cells[cell as usize]
    }

    /// The entry at `index`, if its page exists.
    #[inline]
    pub(super) fn entry(&self, index: usize) -> Option<&AtomicU64> {
        match &self.place {
            Here(local) => local.entries.get(index),
            There(shared) => shared.entry(index),
        }
    }

    /// The entry at `index`, if it is where most are.
    #[inline]
    pub(super) fn near(&self, index: u64) -> Option<&AtomicU64> {
        match &self.place {
            Here(local) => local.entries.near(index),
            There(shared) => shared.entry(usize::try_from(index).ok()?),
        }
    }

    /// A page of entries, if it exists.
    pub(super) fn page(&self, page: usize) -> Option<&[AtomicU64]> {
        match &self.place {
            Here(local) => local.entries.page(page),
            There(shared) => shared.page(page),
        }
    }

    /// The entry at `index`, whose page is made if need be.
    #[inline]
    pub(super) fn make_entry(&self, index: usize) -> Result<&AtomicU64, AddressError> {
        match &self.place {
            Here(local) => local.entries.make(index).ok_or(AddressError::Full),
            There(shared) => shared.make_entry(index),
        }
    }

    /// The record at `index`: high and low bits.
    #[inline]
    pub(super) fn record(&self, index: usize) -> Option<(&AtomicU64, &AtomicU64)> {
        match &self.place {
            Here(local) => Some((local.records.get(2 * index)?, local.records.get(2 * index + 1)?)),
            There(shared) => shared.record(index),
        }
    }

    /// The record at `index`, whose page is made if need be.
    pub(super) fn make_record(&self, index: usize) -> Result<(&AtomicU64, &AtomicU64), AddressError> {
        match &self.place {
            Here(local) => {
                let make = |at| local.records.make(at).ok_or(AddressError::Full);
                Ok((make(2 * index)?, make(2 * index + 1)?))
            }
            There(shared) => shared.make_record(index),
        }
    }

    /// Sees to the numbers of all entries before `end` being in memory, where that is for others to see.
    #[inline]
    pub(super) fn number(&self, end: usize) -> Result<(), AddressError> {
        match &self.place {
            Here(_) => Ok(()),
            There(shared) => shared.number(end),
        }
    }

    /// How many entries of a page are marked as removed.
    pub(super) fn count(&self, page: usize) -> u64 {
        match &self.place {
            Here(local) => local.count(page),
            There(shared) => shared.count(page),
        }
    }

    /// Adds to that number.
    pub(super) fn add_count(&self, page: usize, more: i64) {
        match &self.place {
            Here(local) => local.add_count(page, more),
            There(shared) => shared.add_count(page, more),
        }
    }

    /// The range with this number.
    #[inline]
    pub(super) fn range(&self, number: usize) -> Option<Range> {
        Range::read(self.range_words(number)?)
    }

    /// Where the range with this number begins.
    #[inline]
    pub(super) fn range_start(&self, number: usize) -> Option<u64> {
        self.range_words(number)?.first().map(|word| word.load(Ordering::Relaxed))
    }

    #[inline]
    fn range_words(&self, number: usize) -> Option<&[AtomicU64]> {
        match &self.place {
            Here(local) => local.range(number),
            There(shared) => shared.range(number),
        }
    }

    /// Writes the range with this number; whether there is room for it.
    pub(super) fn write_range(&self, number: usize, range: &Range) -> bool {
        match &self.place {
            Here(local) => local.write_range(number, range),
            There(shared) => shared.range(number).is_some_and(|words| {
                range.write(words);
                true
            }),
        }
    }
}

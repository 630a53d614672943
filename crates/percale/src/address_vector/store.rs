//! The storage of a vector's words, in this process or shared with others.
//!
//! Both kinds have the same parts, all of which are 64-bit words that start as 0: *cells*, one for each count or mark
//! of the table; *entries* and, at twice their index, *records* of IPv6 addresses, in pages that may or may not exist;
//! one *count* for each page of entries; and *ranges* of a few words each.

use std::sync::atomic::{AtomicU64, Ordering};

use super::cells::{TableField, TableFields};
use super::error::AddressError;
use super::local::LocalStore;
use super::paged::LIMIT;
use super::range::Range;
use super::shared::SharedStore;

/// The words of a vector.
#[derive(Debug)]
pub(super) struct VectorStore {
    pub(super) cells: TableFields,
    /// The local words. Empty if the words are shared.
    local: LocalStore,
    shared: Option<SharedStore>,
}

impl VectorStore {
    /// Creates words that are local to this process, for the expected number of entries or more.
    pub(super) fn local(expected: usize) -> Self {
        Self { cells: TableFields::here(), local: LocalStore::new(expected), shared: None }
    }

    /// Uses words that other processes use as well.
    pub(super) fn shared(shared: SharedStore) -> Self {
        Self { cells: shared.cells(), local: LocalStore::new(0), shared: Some(shared) }
    }

    /// Returns the shared words, if the words are shared.
    pub(super) fn as_shared(&self) -> Option<&SharedStore> {
        self.shared.as_ref()
    }

    /// Returns the maximum number of entries.
    #[inline]
    pub(super) fn limit(&self) -> usize {
        match &self.shared {
            None => LIMIT,
            Some(shared) => shared.capacity(),
        }
    }

    #[inline]
    pub(super) fn cell(&self, cell: TableField) -> &AtomicU64 {
        &self.cells[cell as usize]
    }

    /// Returns the entry at `index` if its page exists.
    #[inline]
    pub(super) fn entry(&self, index: usize) -> Option<&AtomicU64> {
        match &self.shared {
            None => self.local.entries.get(index),
            Some(shared) => shared.entry(index),
        }
    }

    /// Returns the first local entries, which include most entries. Returns an empty slice if the words are shared.
    #[inline]
    pub(super) fn near(&self) -> &[AtomicU64] {
        self.local.entries.near()
    }

    /// Returns a page of entries if it exists.
    pub(super) fn page(&self, page: usize) -> Option<&[AtomicU64]> {
        match &self.shared {
            None => self.local.entries.page(page),
            Some(shared) => shared.page(page),
        }
    }

    /// Returns the entry at `index`. Creates its page if necessary.
    #[inline]
    pub(super) fn make_entry(&self, index: usize) -> Result<&AtomicU64, AddressError> {
        match &self.shared {
            None => self.local.entries.make(index).ok_or(AddressError::Full),
            Some(shared) => shared.make_entry(index),
        }
    }

    /// Returns the record at `index`: its high and low bits.
    #[inline]
    pub(super) fn record(&self, index: usize) -> Option<(&AtomicU64, &AtomicU64)> {
        match &self.shared {
            None => Some((self.local.records.get(2 * index)?, self.local.records.get(2 * index + 1)?)),
            Some(shared) => shared.record(index),
        }
    }

    /// Returns the record at `index`. Creates its page if necessary.
    pub(super) fn make_record(&self, index: usize) -> Result<(&AtomicU64, &AtomicU64), AddressError> {
        match &self.shared {
            None => {
                let make = |at| self.local.records.make(at).ok_or(AddressError::Full);
                Ok((make(2 * index)?, make(2 * index + 1)?))
            }
            Some(shared) => shared.make_record(index),
        }
    }

    /// Writes the numbers of all entries before `end`, if the words are shared.
    #[inline]
    pub(super) fn number(&self, end: usize) -> Result<(), AddressError> {
        match &self.shared {
            None => Ok(()),
            Some(shared) => shared.number(end),
        }
    }

    /// Returns the number of entries of a page that are marked as removed.
    pub(super) fn count(&self, page: usize) -> u64 {
        match &self.shared {
            None => self.local.count(page),
            Some(shared) => shared.count(page),
        }
    }

    /// Adds to the number of removed entries of a page.
    pub(super) fn add_count(&self, page: usize, more: i64) {
        match &self.shared {
            None => self.local.add_count(page, more),
            Some(shared) => shared.add_count(page, more),
        }
    }

    /// Returns the range with this number.
    #[inline]
    pub(super) fn range(&self, number: usize) -> Option<Range> {
        Range::read(self.range_words(number)?)
    }

    /// Returns the first index of the range with this number.
    #[inline]
    pub(super) fn range_start(&self, number: usize) -> Option<u64> {
        self.range_words(number)?.first().map(|word| word.load(Ordering::Relaxed))
    }

    #[inline]
    fn range_words(&self, number: usize) -> Option<&[AtomicU64]> {
        match &self.shared {
            None => self.local.range(number),
            Some(shared) => shared.range(number),
        }
    }

    /// Writes the range with this number. Returns whether there is room for it.
    pub(super) fn write_range(&self, number: usize, range: &Range) -> bool {
        match &self.shared {
            None => self.local.write_range(number, range),
            Some(shared) => shared.range(number).is_some_and(|words| {
                range.write(words);
                true
            }),
        }
    }
}

//! The table of a vector: access to entries and ranges by index, and the search for free indices.
//!
//! **Reading takes no lock.** The word at an index determines the address. If the word was never written, the range
//! that contains the index determines it. Ranges are only added, each behind all existing entries, so they are sorted
//! by index.
//!
//! **An IPv6 address** is in the record with the index of its word. The record is rewritten only while the word marks
//! the index as empty, and each word for an IPv6 address has a unique tag. So a reader that finds the same word before
//! and after reading the record has read the record that belongs to the word.
//!
//! **Writers** take a lock, and publish an entry's word last. A removed address is marked in its word, even within a
//! range, and counted by page. These counts are used to find the lowest free index.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV6};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::block::Block;
use super::cells::TableField;
use super::entry::{TableEntry, canonical, fold_scope, unfold_scope};
use super::error::AddressError;
use super::paged::{LIMIT, PAGE};
use super::range::Range;
use super::store::VectorStore;

/// A block of at least this many addresses is stored as a range.
const RANGE_FROM: u64 = 9;

/// The maximum number of attempts to read a record. If more attempts fail, the memory is shared with a process that
/// does not follow this protocol.
const TRIES: usize = 10_000;

impl VectorStore {
    /// Returns the address at an index, if there is one.
    #[inline]
    pub(super) fn load(&self, index: usize) -> Option<SocketAddr> {
        match self.entry(index) {
            Some(word) => self.read(index, word),
            None => self.in_range(index),
        }
    }

    /// Returns the address at an index if it is an IPv4 address, which fits in a register.
    #[inline]
    pub(super) fn load_v4(&self, index: usize) -> Option<(Ipv4Addr, u16)> {
        let word = self.entry(index).map_or(TableEntry::Untouched.pack(), |word| word.load(Ordering::Acquire));
        if word != TableEntry::Untouched.pack() {
            return TableEntry::unpack_v4(word);
        }
        let (range, at) = self.range_at(index)?;
        range.block.get_v4(at)
    }

    #[inline]
    fn read(&self, index: usize, word: &AtomicU64) -> Option<SocketAddr> {
        match TableEntry::unpack(word.load(Ordering::Acquire)) {
            TableEntry::V4(ip, port) => Some(SocketAddr::new(ip.into(), port)),
            TableEntry::Untouched => self.in_range(index),
            TableEntry::Removed => None,
            TableEntry::V6(..) => self.read_record(index, word),
        }
    }

    fn read_record(&self, index: usize, word: &AtomicU64) -> Option<SocketAddr> {
        for _ in 0..TRIES {
            // Acquire: the record was written before the word that names it.
            let before = word.load(Ordering::Acquire);
            let TableEntry::V6(port, _) = TableEntry::unpack(before) else { return self.read(index, word) };
            let (high, low) = self.record(index)?;
            let (high, low) = (high.load(Ordering::Relaxed), low.load(Ordering::Relaxed));
            // Pairs with the writer's fence: a reader that has read any part of a later record then reads the changed
            // word.
            fence(Ordering::Acquire);
            if word.load(Ordering::Relaxed) == before {
                return Some(unfold_scope(u128::from(high) << 64 | u128::from(low), port));
            }
        }
        None
    }

    /// Returns the address of an index that is in a range.
    fn in_range(&self, index: usize) -> Option<SocketAddr> {
        let (range, at) = self.range_at(index)?;
        Some(range.block.get(at))
    }

    /// Returns the range that contains this index, and the position of the address in its block.
    #[inline]
    fn range_at(&self, index: usize) -> Option<(Range, u64)> {
        let index = index as u64;
        let range = self.range_around(index)?;
        Some((range, index.wrapping_sub(range.first).wrapping_add(range.skip)))
    }

    /// Returns the range that contains this index.
    #[inline]
    fn range_around(&self, index: u64) -> Option<Range> {
        let mut low = 0;
        // Acquire: the ranges that the count covers were written before it.
        let mut high = self.cell(TableField::Ranges).load(Ordering::Acquire).checked_sub(1)? as usize;
        // The last range that begins at or before the index, if there is one, is one of `low..=high`. Usually there is
        // only one range.
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.range_start(middle)? <= index { low = middle } else { high = middle - 1 }
        }
        let range = self.range(low)?;
        (index.wrapping_sub(range.first) < range.count).then_some(range)
    }

    /// Returns the lowest index of an address.
    pub(super) fn find(&self, address: SocketAddr) -> Option<usize> {
        let wanted = canonical(&address);
        let in_range = self.find_in_ranges(&wanted);
        let end = self.cell(TableField::End).load(Ordering::Acquire).min(LIMIT as u64) as usize;
        let end = in_range.map_or(end, |found| found.min(end));
        self.find_in_pages(&wanted, end).or(in_range)
    }

    fn find_in_ranges(&self, wanted: &SocketAddr) -> Option<usize> {
        let count = self.cell(TableField::Ranges).load(Ordering::Acquire) as usize;
        for number in 0..count {
            let range = self.range(number)?;
            let position = range.block.position(wanted).and_then(|at| at.checked_sub(range.skip));
            let Some(position) = position.filter(|position| *position < range.count) else { continue };
            let index = usize::try_from(range.first.wrapping_add(position)).ok()?;
            let word = self.entry(index).map_or(0, |word| word.load(Ordering::Acquire));
            if TableEntry::unpack(word) == TableEntry::Untouched {
                return Some(index);
            }
        }
        None
    }

    fn find_in_pages(&self, wanted: &SocketAddr, end: usize) -> Option<usize> {
        let word = match wanted {
            SocketAddr::V4(v4) => TableEntry::V4(*v4.ip(), v4.port()).pack(),
            SocketAddr::V6(_) => 0,
        };
        for start in (0..end).step_by(PAGE) {
            let Some(page) = self.page(start / PAGE) else { continue };
            for (at, entry) in page.iter().enumerate().take(end - start) {
                let found = entry.load(Ordering::Acquire);
                let equal = match TableEntry::unpack(found) {
                    TableEntry::V4(..) => found == word,
                    TableEntry::V6(port, _) if port == wanted.port() => {
                        self.read(start + at, entry).is_some_and(|address| canonical(&address) == *wanted)
                    }
                    _ => false,
                };
                if equal {
                    return Some(start + at);
                }
            }
        }
        None
    }
}

/// Write access to the table under the writers' lock, for one batch of insertions or a removal.
///
/// Within a batch indices only increase. An address that fails leaves its index unused, so that it does not shift the
/// others.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    store: &'a VectorStore,
    /// The index at which the search for the next index begins. This batch no longer uses any index below it.
    cursor: usize,
    /// The first index that was skipped.
    skipped: Option<usize>,
    inserted: u64,
}

impl<'a> Writer<'a> {
    /// Begins a batch. The caller holds the writers' lock.
    pub(super) fn new(store: &'a VectorStore) -> Self {
        Self { store, cursor: usize::try_from(store.get(TableField::Hint)).unwrap_or(0), skipped: None, inserted: 0 }
    }

    /// Stores an address, which was [checked](super::entry::check), at the next index.
    pub(super) fn insert(&mut self, address: &SocketAddr) -> Result<usize, AddressError> {
        let hole = self.next_hole();
        let index = hole.unwrap_or_else(|| self.store.end());
        let word = self.store.make_entry(index)?;
        self.store.number(index + 1)?;
        match address {
            SocketAddr::V4(v4) => word.store(TableEntry::V4(*v4.ip(), v4.port()).pack(), Ordering::Release),
            SocketAddr::V6(v6) => self.write_v6(index, word, v6)?,
        }
        if hole.is_some() {
            self.filled(index);
        } else {
            self.store.set(TableField::End, index as u64 + 1);
        }
        self.cursor = index + 1;
        self.inserted += 1;
        Ok(index)
    }

    fn write_v6(&self, index: usize, word: &AtomicU64, v6: &SocketAddrV6) -> Result<(), AddressError> {
        let bits = fold_scope(v6).ok_or(AddressError::NotAnEndpoint(SocketAddr::V6(*v6)))?;
        let (high, low) = self.store.make_record(index)?;
        let tag = self.store.get(TableField::Tag).wrapping_add(1);
        self.store.set(TableField::Tag, tag);
        // A reader that reads any part of the record that is written below then also reads the word that marks the
        // index as empty, or a later word. Neither equals the word that it read first, so it reads again.
        fence(Ordering::Release);
        high.store((bits >> 64) as u64, Ordering::Relaxed);
        low.store(bits as u64, Ordering::Relaxed);
        word.store(TableEntry::V6(v6.port(), tag).pack(), Ordering::Release);
        Ok(())
    }

    /// Leaves the next index unused, because its address is invalid.
    pub(super) fn skip(&mut self) {
        let hole = self.next_hole();
        let index = hole.unwrap_or_else(|| self.store.end());
        if hole.is_none() {
            let Ok(word) = self.store.make_entry(index) else { return };
            word.store(TableEntry::Removed.pack(), Ordering::Release);
            self.store.set(TableField::End, index as u64 + 1);
            self.emptied(index);
        }
        self.skipped.get_or_insert(index);
        self.cursor = index + 1;
    }

    /// Stores the addresses of a block at the next indices. Calls `report` for each run of indices with its first index
    /// and its length.
    pub(super) fn insert_block(
        &mut self,
        block: &Block,
        mut report: impl FnMut(usize, u64),
    ) -> Result<(), AddressError> {
        let mut done = 0;
        while done < block.len() {
            let left = block.len() - done;
            if left >= RANGE_FROM && self.next_hole().is_none() && self.append_range(block, done)? {
                report(self.cursor - left as usize, left);
                return Ok(());
            }
            report(self.insert(&block.get(done))?, 1);
            done += 1;
        }
        Ok(())
    }

    /// Adds the rest of a block, beginning with address `skip`, behind all entries. Returns false if there is no room
    /// for a range.
    fn append_range(&mut self, block: &Block, skip: u64) -> Result<bool, AddressError> {
        let (first, count) = (self.store.end() as u64, block.len() - skip);
        let end = first.checked_add(count).filter(|end| *end <= self.store.limit() as u64).ok_or(AddressError::Full)?;
        self.store.number(end as usize)?;
        let number = self.store.get(TableField::Ranges);
        if !self.store.write_range(number as usize, &Range { first, count, skip, block: *block }) {
            return Ok(false);
        }
        self.store.set(TableField::Ranges, number + 1);
        self.store.set(TableField::End, end);
        self.cursor = end as usize;
        self.inserted += count;
        Ok(true)
    }

    /// Removes the address at an index. Returns false if there is none.
    pub(super) fn remove(&mut self, index: usize) -> Result<bool, AddressError> {
        let there = match self.store.entry(index).map(|word| TableEntry::unpack(word.load(Ordering::Relaxed))) {
            Some(TableEntry::V4(..) | TableEntry::V6(..)) => true,
            Some(TableEntry::Removed) => false,
            Some(TableEntry::Untouched) | None => self.store.range_around(index as u64).is_some(),
        };
        if !there {
            return Ok(false);
        }
        let word = self.store.make_entry(index)?;
        let removals = self.store.get(TableField::Removals) | 1;
        self.store.set(TableField::Removals, removals);
        word.store(TableEntry::Removed.pack(), Ordering::Release);
        self.emptied(index);
        self.store.add(TableField::Used, -1);
        self.store.set(TableField::Hint, self.store.get(TableField::Hint).min(index as u64));
        self.store.set(TableField::Removals, removals + 1);
        self.store.add(TableField::Changes, 1);
        Ok(true)
    }

    /// Returns the lowest index, not below the cursor, whose entry is marked as removed.
    fn next_hole(&mut self) -> Option<usize> {
        if self.store.get(TableField::Removed) == 0 {
            return None;
        }
        let end = self.store.end();
        while self.cursor < end {
            let page = self.cursor / PAGE;
            if self.store.count(page) > 0
                && let Some(words) = self.store.page(page)
            {
                let from = self.cursor % PAGE;
                let until = PAGE.min(end - page * PAGE);
                let free = |word: &AtomicU64| word.load(Ordering::Relaxed) == TableEntry::Removed.pack();
                if let Some(at) = words.get(from..until)?.iter().position(free) {
                    self.cursor += at;
                    return Some(self.cursor);
                }
            }
            self.cursor = ((page + 1) * PAGE).min(end);
        }
        None
    }

    fn emptied(&self, index: usize) {
        self.store.add_count(index / PAGE, 1);
        self.store.add(TableField::Removed, 1);
    }

    fn filled(&self, index: usize) {
        self.store.add_count(index / PAGE, -1);
        self.store.add(TableField::Removed, -1);
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        if self.inserted > 0 {
            self.store.add(TableField::Used, self.inserted as i64);
            self.store.add(TableField::Changes, 1);
        }
        if self.inserted > 0 || self.skipped.is_some() {
            // All indices from the old hint to the cursor are in use, except those that were skipped.
            self.store.set(TableField::Hint, self.skipped.unwrap_or(self.cursor) as u64);
        }
    }
}

impl VectorStore {
    /// Restores the table after a writer died. Entries that it had not published become free.
    pub(super) fn mend(&self) {
        let ranges = self.get(TableField::Ranges) as usize;
        let behind = ranges.checked_sub(1).and_then(|last| self.range(last));
        let behind = behind.map_or(0, |range| range.first.saturating_add(range.count));
        self.set(TableField::End, self.get(TableField::End).max(behind).min(self.limit() as u64));
        let end = self.end();
        let mut free = 0;
        if let Some(shared) = self.as_shared() {
            // The writer may have written many pages without publishing them.
            for page in 0..self.limit().div_ceil(PAGE) {
                let here = end.saturating_sub(page * PAGE).min(PAGE);
                free += shared.mend_page(page, here, |index| self.range_around(index as u64).is_some());
            }
        }
        self.set(TableField::Removed, free);
        self.set(TableField::Used, (end as u64).saturating_sub(free));
        self.set(TableField::Hint, 0);
        self.set(TableField::Removals, (self.get(TableField::Removals) | 1).wrapping_add(1));
        self.add(TableField::Changes, 1);
    }

    pub(super) fn get(&self, cell: TableField) -> u64 {
        self.cell(cell).load(Ordering::Relaxed)
    }

    fn set(&self, cell: TableField, value: u64) {
        self.cell(cell).store(value, Ordering::Release);
    }

    fn add(&self, cell: TableField, more: i64) {
        self.set(cell, self.get(cell).wrapping_add_signed(more));
    }

    /// Returns the end of the entries that may be in use.
    fn end(&self) -> usize {
        usize::try_from(self.get(TableField::End)).unwrap_or(LIMIT).min(self.limit())
    }
}

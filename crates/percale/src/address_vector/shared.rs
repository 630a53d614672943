//! The words of a vector that several processes use. They are in one sealed memfd, which each process maps.
//!
//! It has room for a fixed number of entries, but physical pages only for those that were written. The layout is, in
//! order: one page with the cells and the description of the memory itself; counts of pages of entries; ranges;
//! entries; records; numbers. A count contains the number of the page's entries that are marked as removed, and one bit
//! each for whether the page exists and whether the page's records exist. The numbers of the entries are at the end,
//! for callers that read them from memory. The number of an entry is its index.
//!
//! **Readers** take no lock and change nothing. **Writers** lock the file (flock(2), with a separate file description,
//! so that the lock ends with the process), and set a cell while they write. If a writer finds the cell already set,
//! the previous writer died while it was writing. The new writer first restores the table by recomputing every count
//! from the entries.
//!
//! Another process of this user may write anything to this memory. Every number is checked against the size of the
//! memory. A wrong value can only lead to wrong or missing addresses.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::cells::{CELLS, TableField, TableFields};
use super::entry::TableEntry;
use super::error::AddressError;
use super::paged::PAGE;
use super::range::RANGE;
use crate::local_memory::mapping::{Mapping, back, sealed_memfd};
use crate::local_memory::words::Words;

/// The magic number that identifies the memory of a vector. It is stored after the cells.
const MARK: u64 = 0x7065_7263_2d61_7631;
/// The offset of the magic number and of the number of entries.
const MARK_AT: usize = 256;
const CAPACITY_AT: usize = 257;
/// The offset of the count of written numbers.
const NUMBERED_AT: usize = 258;
const _: () = assert!(CELLS <= MARK_AT, "cells come first");

/// The number of words of a page of memory.
const HEAD: usize = 512;
/// The maximum number of ranges.
const RANGES: usize = 4096;
/// The smallest capacity in entries. It is a multiple of the number of entries that one page of counts covers.
const LEAST: usize = 1 << 22;
/// The largest capacity.
const MOST: usize = 1 << 32;

/// The bit of a count for whether the page exists, and the bit for whether its records exist.
const PRESENT: u64 = 1 << 63;
const RECORDS: u64 = 1 << 62;
const NUMBER: u64 = RECORDS - 1;

/// The maximum time to wait for a writer. A writer that takes longer is assumed to be stopped.
const WRITER_TIMEOUT: Duration = Duration::from_secs(20);

/// The offsets of the parts, in words.
#[derive(Clone, Copy, Debug)]
struct Layout {
    capacity: usize,
    ranges: usize,
    entries: usize,
    records: usize,
    numbers: usize,
    end: usize,
}

impl Layout {
    const fn of(capacity: usize) -> Self {
        let ranges = HEAD + capacity / PAGE;
        let entries = ranges + RANGES * RANGE;
        let records = entries + capacity;
        let numbers = records + 2 * capacity;
        Self { capacity, ranges, entries, records, numbers, end: numbers + capacity }
    }
}

/// The words of a shared vector.
#[derive(Debug)]
pub(super) struct SharedStore {
    words: Words,
    fd: OwnedFd,
    layout: Layout,
    read_only: bool,
}

impl SharedStore {
    /// Creates memory for at least `expected` entries, under a name that other processes can see.
    pub(super) fn create(name: &str, expected: usize) -> io::Result<Self> {
        let capacity = expected.saturating_mul(2).clamp(LEAST, MOST).next_power_of_two();
        let layout = Layout::of(capacity);
        let bytes = layout.end * size_of::<u64>();
        let fd = sealed_memfd(name, bytes, HEAD * size_of::<u64>())?;
        rustix::fs::fchmod(&fd, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
        let words = Words::of(Mapping::of(fd.as_fd(), bytes)?)?;
        for (at, value) in [(CAPACITY_AT, capacity as u64), (MARK_AT, MARK)] {
            words.get(at).ok_or(io::ErrorKind::InvalidData)?.store(value, Ordering::Release);
        }
        Ok(Self { words, fd, layout, read_only: false })
    }

    /// Opens memory that another process created. `fd` has its own file description.
    pub(super) fn open(fd: OwnedFd, read_only: bool) -> io::Result<Self> {
        let bytes = usize::try_from(rustix::fs::fstat(&fd)?.st_size).map_err(|_| io::ErrorKind::InvalidData)?;
        let mapping = if read_only { Mapping::read_only(fd.as_fd(), bytes)? } else { Mapping::of(fd.as_fd(), bytes)? };
        let words = Words::of(mapping)?;
        let word = |at| words.get(at).map_or(0, |word| word.load(Ordering::Acquire));
        let capacity = usize::try_from(word(CAPACITY_AT)).unwrap_or(0);
        let sound = word(MARK_AT) == MARK && (LEAST..=MOST).contains(&capacity) && capacity.is_power_of_two();
        let layout = Layout::of(if sound { capacity } else { LEAST });
        if !sound || layout.end * size_of::<u64>() != bytes {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not an address vector of this version"));
        }
        Ok(Self { words, fd, layout, read_only })
    }

    pub(super) fn cells(&self) -> TableFields {
        self.words.array().unwrap_or_else(|| unreachable!("the memory is longer than its first page"))
    }

    pub(super) const fn capacity(&self) -> usize {
        self.layout.capacity
    }

    /// Returns the count of the page with this number.
    #[inline]
    fn count_word(&self, page: usize) -> Option<&AtomicU64> {
        if page < self.layout.capacity / PAGE { self.words.get(HEAD + page) } else { None }
    }

    #[inline]
    fn has(&self, page: usize, bits: u64) -> bool {
        self.count_word(page).is_some_and(|count| count.load(Ordering::Acquire) & bits == bits)
    }

    #[inline]
    pub(super) fn entry(&self, index: usize) -> Option<&AtomicU64> {
        if self.has(index / PAGE, PRESENT) { self.words.get(self.layout.entries + index) } else { None }
    }

    pub(super) fn page(&self, page: usize) -> Option<&[AtomicU64]> {
        if !self.has(page, PRESENT) {
            return None;
        }
        self.words.slice(self.layout.entries + page * PAGE, PAGE)
    }

    pub(super) fn make_entry(&self, index: usize) -> Result<&AtomicU64, AddressError> {
        self.make_page(index / PAGE, PRESENT, self.layout.entries, PAGE)?;
        self.entry(index).ok_or(AddressError::Full)
    }

    #[inline]
    pub(super) fn record(&self, index: usize) -> Option<(&AtomicU64, &AtomicU64)> {
        let at = self.layout.records + 2 * index;
        if !self.has(index / PAGE, RECORDS) {
            return None;
        }
        Some((self.words.get(at)?, self.words.get(at + 1)?))
    }

    pub(super) fn make_record(&self, index: usize) -> Result<(&AtomicU64, &AtomicU64), AddressError> {
        self.make_page(index / PAGE, RECORDS, self.layout.records, 2 * PAGE)?;
        self.record(index).ok_or(AddressError::Full)
    }

    /// Allocates the memory of a page of entries or records, of `words` words, and sets `bit` in the page's count.
    fn make_page(&self, page: usize, bit: u64, part: usize, words: usize) -> Result<(), AddressError> {
        let count = self.count_word(page).ok_or(AddressError::Full)?;
        let before = count.load(Ordering::Relaxed);
        if before & bit == 0 {
            let (at, len) = ((part + page * words) * size_of::<u64>(), words * size_of::<u64>());
            back(self.fd.as_fd(), at, len).map_err(|error| {
                crate::later::later!(warn: %error, "cannot allocate memory for a shared address vector");
                AddressError::Full
            })?;
            count.store(before | bit, Ordering::Release);
        }
        Ok(())
    }

    pub(super) fn count(&self, page: usize) -> u64 {
        self.count_word(page).map_or(0, |count| count.load(Ordering::Relaxed) & NUMBER)
    }

    pub(super) fn add_count(&self, page: usize, more: i64) {
        if let Some(count) = self.count_word(page) {
            let before = count.load(Ordering::Relaxed);
            let number = (before & NUMBER).wrapping_add_signed(more) & NUMBER;
            count.store(before & !NUMBER | number, Ordering::Release);
        }
    }

    #[inline]
    pub(super) fn range(&self, number: usize) -> Option<&[AtomicU64]> {
        if number < RANGES { self.words.slice(self.layout.ranges + number * RANGE, RANGE) } else { None }
    }

    /// Writes the numbers of all entries before `end`, in whole pages.
    pub(super) fn number(&self, end: usize) -> Result<(), AddressError> {
        let Some(numbered) = self.words.get(NUMBERED_AT) else { return Ok(()) };
        let from = usize::try_from(numbered.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        if from >= end {
            return Ok(());
        }
        let until = end.next_multiple_of(PAGE).min(self.layout.capacity);
        let bytes = |words: usize| words * size_of::<u64>();
        back(self.fd.as_fd(), bytes(self.layout.numbers + from), bytes(until - from)).map_err(|error| {
            crate::later::later!(warn: %error, "cannot allocate memory for a shared address vector");
            AddressError::Full
        })?;
        let words = self.words.slice(self.layout.numbers + from, until - from).ok_or(AddressError::Full)?;
        for (word, number) in words.iter().zip(from as u64..) {
            word.store(number, Ordering::Relaxed);
        }
        numbered.store(until as u64, Ordering::Release);
        Ok(())
    }

    /// Returns the address of the numbers in this process's memory.
    pub(super) fn numbers(&self) -> usize {
        self.words.get(self.layout.numbers).map_or(0, |word| std::ptr::from_ref(word).expose_provenance())
    }

    /// Locks the memory against other writers. Returns true if the previous writer died while it wrote.
    pub(super) fn lock(&self) -> Result<bool, AddressError> {
        if self.read_only {
            return Err(AddressError::ReadOnly);
        }
        let deadline = Instant::now() + WRITER_TIMEOUT;
        let mut tries = 0;
        loop {
            match rustix::fs::flock(&self.fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {}
                Err(Errno::WOULDBLOCK | Errno::INTR) => return Err(AddressError::Busy),
                Err(error) => {
                    crate::later::later!(error: %error, "a shared address vector cannot be locked");
                    return Err(AddressError::Busy);
                }
            }
            tries += 1;
            if tries < 100 {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        let writing = self.words.get(TableField::Writing as usize);
        Ok(writing.is_some_and(|writing| writing.swap(1, Ordering::AcqRel) != 0))
    }

    /// Releases the lock.
    pub(super) fn unlock(&self) {
        if let Some(writing) = self.words.get(TableField::Writing as usize) {
            writing.store(0, Ordering::Release);
        }
        if let Err(error) = rustix::fs::flock(&self.fd, FlockOperation::Unlock) {
            crate::later::later!(error: %error, "a shared address vector cannot be unlocked");
        }
    }

    /// Restores one page after a writer died. `here` is the number of its entries that are or were in use. Returns how
    /// many of them are free.
    pub(super) fn mend_page(&self, page: usize, here: usize, in_range: impl Fn(usize) -> bool) -> u64 {
        let Some(words) = self.page(page) else { return 0 };
        let mut removed = 0;
        for (at, word) in words.iter().enumerate() {
            if at >= here {
                word.store(0, Ordering::Release); // The writer did not publish this entry.
                continue;
            }
            let untouched = word.load(Ordering::Relaxed) == 0 && !in_range(page * PAGE + at);
            if untouched {
                word.store(TableEntry::Removed.pack(), Ordering::Release);
            }
            if TableEntry::unpack(word.load(Ordering::Relaxed)) == TableEntry::Removed {
                removed += 1;
            }
        }
        self.add_count(page, removed as i64 - self.count(page) as i64);
        removed
    }
}

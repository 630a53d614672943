//! Regions' lines by key: what a check needs is found without a lock, mostly in one cache miss.
//!
//! A line lies where its key's hash says, or in the next free place behind; at least half of the places are free, of a small table three
//! quarters, so it is not far.
//! One thread at a time writes, under the table's lock.
//!
//! * A line that is found says its key, so it is never the wrong one.
//! * A key that is not found is only believed if nothing was taken out meanwhile, since then others move up; else the reader begins
//!   again. (Loom models below.)
//! * A table that becomes too small is copied to one of twice the size. Who still reads the old one sees what was there when it
//!   began. Old tables stay: all together they are no larger than the one in use.

use std::sync::OnceLock;

use super::access::{Access, Refusal};
use super::line::{Line, Said};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The first table has 2^this lines.
const FIRST: u32 = if cfg!(loom) { 1 } else { 7 };
/// Lines of a table that a processor keeps for itself: to miss a key's place costs more there than room.
const SMALL: usize = if cfg!(loom) { 0 } else { 1 << 13 };
/// Tables for 2^25 keys.
const LEVELS: usize = 20;

/// The lines of regions, by the hash of their keys.
#[derive(Debug)]
pub(super) struct Hashed {
    /// Each twice as long as the one before.
    levels: [OnceLock<Box<[Line]>>; LEVELS],
    /// The one in use.
    level: AtomicU32,
    /// Grows when lines move up; odd while they do.
    changes: AtomicU64,
}

impl Default for Hashed {
    fn default() -> Self {
        let level = AtomicU32::new(0);
        let hashed = Self { levels: [const { OnceLock::new() }; LEVELS], level, changes: AtomicU64::new(0) };
        hashed.make(0);
        hashed
    }
}

/// Keys may be chosen by whoever likes collisions: not by peers, who register nothing here.
#[inline]
pub(super) const fn hash(key: u64) -> u64 {
    (key ^ key >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A table, whose length is a power of two.
#[derive(Clone, Copy, Debug)]
struct Table<'a> {
    lines: &'a [Line],
    /// Of a hash, so that what is left is a place.
    shift: u32,
}

impl Table<'_> {
    /// Where a key belongs.
    #[inline(always)]
    const fn home(&self, key: u64) -> usize {
        (hash(key) >> self.shift) as usize
    }

    /// Keys that it takes.
    const fn room(&self) -> usize {
        self.lines.len() / if self.lines.len() <= SMALL { 4 } else { 2 }
    }

    /// The place behind another.
    #[inline(always)]
    const fn next(&self, at: usize) -> usize {
        (at + 1) & self.lines.len().wrapping_sub(1)
    }

    /// What a line says to its writer.
    fn said(&self, at: usize) -> Said {
        self.lines[at].read().unwrap_or_default()
    }

    /// The place of a key, for its writer.
    fn place(&self, key: u64) -> Option<usize> {
        let mut at = self.home(key);
        while !self.said(at).is(key) {
            if !self.said(at).is_owned() {
                return None;
            }
            at = self.next(at);
        }
        Some(at)
    }

    fn put(&self, said: &Said) {
        let mut at = self.home(said.key());
        while self.said(at).is_owned() {
            at = self.next(at);
        }
        self.lines[at].write(said);
    }
}

impl Hashed {
    fn make(&self, level: u32) -> Option<Table<'_>> {
        let lines = 1_usize << (level + FIRST);
        let lines = self.levels.get(level as usize)?.get_or_init(|| (0..lines).map(|_| Line::default()).collect());
        Some(Table { lines, shift: 64 - FIRST - level })
    }

    /// The one in use.
    #[inline(always)]
    fn table(&self) -> Table<'_> {
        let level = self.level.load(Ordering::Acquire);
        let lines = self.levels.get(level as usize).and_then(OnceLock::get);
        Table { lines: lines.map_or(&[], |lines| lines), shift: (64 - FIRST).wrapping_sub(level) & 63 }
    }

    /// The line where this key belongs.
    #[inline(always)]
    fn first(&self, key: u64) -> Option<&Line> {
        let table = self.table();
        table.lines.get(table.home(key))
    }

    /// What this key gives, if its line lies where it belongs and is not being written.
    #[inline(always)]
    pub(super) fn glance(&self, key: u64) -> Option<Said> {
        self.first(key).filter(|line| line.may_be(key))?.read().filter(|said| said.is(key))
    }

    /// Checks an access by this key, if its line lies where it belongs, and [as](Line::check_open) with that.
    #[inline(always)]
    pub(super) fn check_open(
        &self,
        key: u64,
        authority: u64,
        part: (u64, u64),
        wanted: Access,
    ) -> Option<Result<u64, Refusal>> {
        self.first(key)?.check_open(key, authority, part, wanted)
    }

    /// What this key gives; `Err` if it must be looked for again.
    pub(super) fn look(&self, key: u64) -> Result<Option<Said>, ()> {
        let before = self.changes.load(Ordering::Acquire);
        let table = self.table();
        let mut at = table.home(key);
        // No longer than the table: a reader may be led about by changes.
        for _ in 0..table.lines.len() {
            let Some(line) = table.lines.get(at) else { return Err(()) };
            if line.may_be(key) {
                let said = line.read().ok_or(())?;
                if said.is(key) {
                    return Ok(Some(said));
                }
            }
            if line.was_free() {
                break;
            }
            at = table.next(at);
        }
        fence(Ordering::Acquire);
        let same = before & 1 == 0 && self.changes.load(Ordering::Relaxed) == before;
        if same { Ok(None) } else { Err(()) }
    }

    /// Whether no other key has the place of this one, for the writer. It stays so in larger tables.
    pub(super) fn is_vacant(&self, key: u64) -> bool {
        self.first(key).is_some_and(Line::was_free)
    }

    /// A key is there, the last of `live`, which had none before. False if there is no room.
    #[must_use]
    pub(super) fn insert(&self, said: &Said, live: usize) -> bool {
        let table = self.table();
        if live <= table.room() {
            table.put(said);
            return true;
        }
        let level = self.level.load(Ordering::Relaxed) + 1;
        let Some(more) = self.make(level) else { return false };
        for said in (0..table.lines.len()).map(|at| table.said(at)).filter(Said::is_owned) {
            more.put(&said);
        }
        more.put(said);
        self.level.store(level, Ordering::Release);
        true
    }

    /// A key that is there gives something else.
    pub(super) fn replace(&self, said: &Said) {
        let table = self.table();
        if let Some(at) = table.place(said.key()) {
            table.lines[at].write(said);
        }
    }

    /// A key is there no more.
    pub(super) fn remove(&self, key: u64) {
        let table = self.table();
        let Some(mut hole) = table.place(key) else { return };
        let mask = table.lines.len() - 1;
        let changes = self.changes.load(Ordering::Relaxed);
        self.changes.store(changes.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        let mut at = hole;
        loop {
            at = table.next(at);
            let said = table.said(at);
            if !said.is_owned() {
                break;
            }
            // It moves up, unless the hole is before its own place.
            let own = table.home(said.key());
            if hole.wrapping_sub(own) & mask < at.wrapping_sub(own) & mask {
                table.lines[hole].write(&said);
                hole = at;
            }
        }
        table.lines[hole].write(&Said::default());
        self.changes.store(changes.wrapping_add(2), Ordering::Release);
    }

    /// Tables that were made.
    #[cfg(all(test, not(loom)))]
    pub(super) fn levels(&self) -> u32 {
        self.level.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, loom))]
#[path = "hashed_model.rs"]
mod model;

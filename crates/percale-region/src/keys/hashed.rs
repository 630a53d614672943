//! A hash table of the regions' lines by key. A check finds its line without a lock, and in most cases with one cache
//! miss.
//!
//! A line is in the slot given by the hash of its key (its *home slot*), or in the next free slot after it. At least
//! half of the slots are free (three quarters in a small table), so a line is near its home slot. Only one thread at a
//! time writes, and holds the table's lock.
//!
//! 1. A line contains its key, so a reader never uses the wrong line.
//! 2. A reader that does not find a key accepts this result only if nothing was removed in the meantime, because a
//!    removal moves other lines. Otherwise the reader starts again. (See the loom models.)
//! 3. A table that becomes too small is copied to one of twice the size. A reader that still uses the old table finds
//!    every key that was there when it started, because the old table does not change after the copy. Old tables are
//!    kept. All together they are no larger than the current one.

use std::sync::OnceLock;

use super::line::{KeyCacheLine, KeySnapshot};
use crate::local_memory::access::{Access, Refusal};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The binary logarithm of the number of lines in the first table.
const FIRST: u32 = if cfg!(loom) { 1 } else { 7 };
/// The maximum number of lines of a small table, which fits into a processor's own cache. In such a table, lines
/// outside their home slots cost more than the additional memory of a sparse table.
const SMALL: usize = if cfg!(loom) { 0 } else { 1 << 13 };
/// The number of tables, sufficient for 2^25 keys.
const LEVELS: usize = 20;

/// The lines of regions, by the hash of their keys.
#[derive(Debug)]
pub(super) struct Hashed {
    /// The tables. Each is twice as long as the one before.
    levels: [OnceLock<Box<[KeyCacheLine]>>; LEVELS],
    /// The index of the current table.
    level: AtomicU32,
    /// Increases when lines are moved. Odd during a move.
    changes: AtomicU64,
}

impl Default for Hashed {
    #[inline]
    fn default() -> Self {
        let level = AtomicU32::new(0);
        let hashed = Self { levels: [const { OnceLock::new() }; LEVELS], level, changes: AtomicU64::new(0) };
        hashed.make(0);
        hashed
    }
}

/// Returns the hash of a key. It does not resist keys that are chosen to collide. Peers cannot choose such keys,
/// because they cannot register anything here.
#[inline]
pub(super) const fn hash(key: u64) -> u64 {
    (key ^ key >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A table. Its length is a power of two.
#[derive(Clone, Copy, Debug)]
struct Table<'a> {
    lines: &'a [KeyCacheLine],
    /// The shift that reduces a hash to a slot.
    shift: u32,
}

impl Table<'_> {
    /// Returns the home slot of a key.
    #[inline(always)]
    const fn home(&self, key: u64) -> usize {
        (hash(key) >> self.shift) as usize
    }

    /// Returns the maximum number of keys.
    #[inline]
    const fn room(&self) -> usize {
        self.lines.len() / if self.lines.len() <= SMALL { 4 } else { 2 }
    }

    /// Returns the slot after this one.
    #[inline(always)]
    const fn next(&self, at: usize) -> usize {
        (at + 1) & self.lines.len().wrapping_sub(1)
    }

    /// Returns the content of a line, for the writer.
    #[inline]
    fn snapshot(&self, at: usize) -> KeySnapshot {
        self.lines[at].read().unwrap_or_default()
    }

    /// Returns the slot of a key, for the writer.
    #[inline]
    fn place(&self, key: u64) -> Option<usize> {
        let mut at = self.home(key);
        while !self.snapshot(at).is(key) {
            if !self.snapshot(at).is_owned() {
                return None;
            }
            at = self.next(at);
        }
        Some(at)
    }

    #[inline]
    fn put(&self, snapshot: &KeySnapshot) {
        let mut at = self.home(snapshot.key());
        while self.snapshot(at).is_owned() {
            at = self.next(at);
        }
        self.lines[at].write(snapshot);
    }
}

impl Hashed {
    #[inline]
    fn make(&self, level: u32) -> Option<Table<'_>> {
        let lines = 1_usize << (level + FIRST);
        let lines =
            self.levels.get(level as usize)?.get_or_init(|| (0..lines).map(|_| KeyCacheLine::default()).collect());
        Some(Table { lines, shift: 64 - FIRST - level })
    }

    /// Returns the current table.
    #[inline(always)]
    fn table(&self) -> Table<'_> {
        let level = self.level.load(Ordering::Acquire);
        let lines = self.levels.get(level as usize).and_then(OnceLock::get);
        Table { lines: lines.map_or(&[], |lines| lines), shift: (64 - FIRST).wrapping_sub(level) & 63 }
    }

    /// Returns the line in this key's home slot.
    #[inline(always)]
    fn first(&self, key: u64) -> Option<&KeyCacheLine> {
        let table = self.table();
        table.lines.get(table.home(key))
    }

    /// Returns the line of this key, if it is in its home slot and is not being written.
    #[inline(always)]
    pub(super) fn find_in_home_slot(&self, key: u64) -> Option<KeySnapshot> {
        self.first(key).filter(|line| line.may_be(key))?.read().filter(|snapshot| snapshot.is(key))
    }

    /// Checks an access with this key like [`KeyCacheLine::check_open`]. Returns `None` if the line is not in its home
    /// slot, or for the reasons of [`KeyCacheLine::check_open`].
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

    /// Searches for the line of this key. Returns `Err` if the caller has to try again.
    pub(super) fn look(&self, key: u64) -> Result<Option<KeySnapshot>, ()> {
        let before = self.changes.load(Ordering::Acquire);
        let table = self.table();
        let mut at = table.home(key);
        // Makes at most as many steps as the length of the table, because concurrent changes could keep a reader in the
        // loop.
        for _ in 0..table.lines.len() {
            let Some(line) = table.lines.get(at) else { return Err(()) };
            if line.may_be(key) {
                let snapshot = line.read().ok_or(())?;
                if snapshot.is(key) {
                    return Ok(Some(snapshot));
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

    /// Returns whether this key's home slot is free, for the writer. If so, it is also free in larger tables.
    #[inline]
    pub(super) fn is_vacant(&self, key: u64) -> bool {
        self.first(key).is_some_and(KeyCacheLine::was_free)
    }

    /// Adds a key that is not in the table. After that the table has `live` keys. Returns false if there is no room.
    #[must_use]
    #[inline]
    pub(super) fn insert(&self, snapshot: &KeySnapshot, live: usize) -> bool {
        let table = self.table();
        if live <= table.room() {
            table.put(snapshot);
            return true;
        }
        let level = self.level.load(Ordering::Relaxed) + 1;
        let Some(more) = self.make(level) else { return false };
        for snapshot in (0..table.lines.len()).map(|at| table.snapshot(at)).filter(KeySnapshot::is_owned) {
            more.put(&snapshot);
        }
        more.put(snapshot);
        self.level.store(level, Ordering::Release);
        true
    }

    /// Replaces the line of a key that is in the table.
    #[inline]
    pub(super) fn replace(&self, snapshot: &KeySnapshot) {
        let table = self.table();
        if let Some(at) = table.place(snapshot.key()) {
            table.lines[at].write(snapshot);
        }
    }

    /// Removes a key.
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
            let snapshot = table.snapshot(at);
            if !snapshot.is_owned() {
                break;
            }
            // Moves the line to the hole, unless the hole is before its home slot.
            let own = table.home(snapshot.key());
            if hole.wrapping_sub(own) & mask < at.wrapping_sub(own) & mask {
                table.lines[hole].write(&snapshot);
                hole = at;
            }
        }
        table.lines[hole].write(&KeySnapshot::default());
        self.changes.store(changes.wrapping_add(2), Ordering::Release);
    }

    /// Returns the index of the current table, which is how often the table has grown.
    #[cfg(all(test, not(loom)))]
    pub(super) fn levels(&self) -> u32 {
        self.level.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, loom))]
#[path = "hashed_model.rs"]
mod model;

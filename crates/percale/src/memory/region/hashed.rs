//! Regions' lines by key: what a check needs is found without a lock, mostly in one cache miss.
//!
//! A line lies where its key's hash says, or in the next free place behind; at least half of the places are free, so it is not far.
//! One thread at a time writes, under the table's lock.
//!
//! * A line that is found says its key, so it is never the wrong one.
//! * A key that is not found is only believed if nothing was taken out meanwhile, since then others move up; else the reader begins
//!   again. (Loom models below.)
//! * A table that becomes too small is copied to one of twice the size. Who still reads the old one sees what was there when it
//!   began. Old tables stay: all together they are no larger than the one in use.

use std::sync::OnceLock;

use super::line::{Glance, Line, Said};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The first table has 2^this lines.
const FIRST: u32 = if cfg!(loom) { 1 } else { 6 };
/// Tables for 2^25 keys.
const LEVELS: usize = 21;

/// See the module.
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

/// Where a key belongs in a table of this length, which is a power of two.
#[inline]
const fn home(key: u64, lines: usize) -> usize {
    (hash(key) >> (64 - lines.ilog2())) as usize
}

impl Hashed {
    fn make(&self, level: u32) -> Option<&[Line]> {
        let lines = 1_usize << (level + FIRST);
        let level = self.levels.get(level as usize)?;
        Some(level.get_or_init(|| (0..lines).map(|_| Line::default()).collect()))
    }

    #[inline]
    fn lines(&self) -> &[Line] {
        let level = self.levels.get(self.level.load(Ordering::Acquire) as usize);
        level.and_then(OnceLock::get).map_or(&[], |lines| lines)
    }

    /// What this key gives; `Err` if it must be looked for again.
    #[inline(always)]
    pub(super) fn look(&self, key: u64) -> Result<Option<Said>, ()> {
        let before = self.changes.load(Ordering::Acquire);
        let lines = self.lines();
        let mut at = home(key, lines.len());
        // No longer than the table: a reader may be led about by changes.
        for _ in lines {
            let Some(line) = lines.get(at) else { return Err(()) };
            match line.glance(key) {
                // It may have been taken out between the two.
                Glance::Same => return line.read().filter(|said| said.is(key)).map(Some).ok_or(()),
                Glance::Other => at = (at + 1) & (lines.len() - 1),
                Glance::Free => break,
            }
        }
        fence(Ordering::Acquire);
        let same = before & 1 == 0 && self.changes.load(Ordering::Relaxed) == before;
        if same { Ok(None) } else { Err(()) }
    }

    /// What a line says to its writer.
    fn said(line: &Line) -> Said {
        line.read().unwrap_or_default()
    }

    /// The place of a key, for its writer.
    fn place(lines: &[Line], key: u64) -> Option<usize> {
        let places = (0..lines.len()).map(|step| (home(key, lines.len()) + step) & (lines.len() - 1));
        let mut until_free = places.take_while(|at| Self::said(&lines[*at]).is_owned());
        until_free.find(|at| Self::said(&lines[*at]).is(key))
    }

    fn put(lines: &[Line], said: &Said) {
        let mut at = home(said.key(), lines.len());
        while Self::said(&lines[at]).is_owned() {
            at = (at + 1) & (lines.len() - 1);
        }
        lines[at].write(said);
    }

    /// A key is there, the last of `live`, which had none before. False if there is no room.
    #[must_use]
    pub(super) fn insert(&self, said: &Said, live: usize) -> bool {
        let lines = self.lines();
        if live * 2 <= lines.len() {
            Self::put(lines, said);
            return true;
        }
        let level = self.level.load(Ordering::Relaxed) + 1;
        let Some(more) = self.make(level) else { return false };
        for said in lines.iter().map(Self::said).filter(Said::is_owned) {
            Self::put(more, &said);
        }
        Self::put(more, said);
        self.level.store(level, Ordering::Release);
        true
    }

    /// A key that is there gives something else.
    pub(super) fn replace(&self, said: &Said) {
        let lines = self.lines();
        if let Some(at) = Self::place(lines, said.key()) {
            lines[at].write(said);
        }
    }

    /// A key is there no more.
    pub(super) fn remove(&self, key: u64) {
        let lines = self.lines();
        let Some(mut hole) = Self::place(lines, key) else { return };
        let mask = lines.len() - 1;
        let changes = self.changes.load(Ordering::Relaxed);
        self.changes.store(changes.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let said = Self::said(&lines[at]);
            if !said.is_owned() {
                break;
            }
            // It moves up, unless the hole is before its own place.
            let own = home(said.key(), lines.len());
            if hole.wrapping_sub(own) & mask < at.wrapping_sub(own) & mask {
                lines[hole].write(&said);
                hole = at;
            }
        }
        lines[hole].write(&Said::default());
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

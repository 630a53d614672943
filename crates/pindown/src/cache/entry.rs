//! Registrations that hits may find: where they lie and what they allow, one cache line each.
//!
//! Entries stand in segments that are never moved or freed, and are used again. A reader holds no lock: it has announced
//! itself ([`super::grace`]), and an entry is filled again only when everybody who had announced himself before it was
//! taken out has gone. So what a reader finds LIVE is one whole registration, and stays it until the reader is done.

use std::sync::OnceLock;

use crate::access::Access;
use crate::range::Range;
use crate::registrar::Pinned;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Not in use, being filled, or no longer valid.
const DEAD: u32 = 0;
/// Valid as long as the monitor has told nothing of it.
const LIVE: u32 = 1;

/// No watched file.
pub(crate) const NO_INODE: u32 = u32::MAX;

/// One registration.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Entry {
    state: AtomicU32,
    access: AtomicU32,
    start: AtomicU64,
    end: AtomicU64,
    local_key: AtomicU64,
    remote_key: AtomicU64,
    /// The count of the watched file when the pages were pinned.
    inode: AtomicU64,
    /// Which watched file, or [`NO_INODE`].
    inode_slot: AtomicU32,
    /// When it was last used, in misses of the cache.
    touched: AtomicU32,
}

/// The watched file of a shared mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchedInode {
    /// Which counter of the monitor's page.
    pub(crate) slot: u32,
    /// What it read before the pages were pinned.
    pub(crate) count: u64,
}

impl Entry {
    fn new() -> Self {
        Self {
            state: AtomicU32::new(DEAD),
            access: AtomicU32::new(0),
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            local_key: AtomicU64::new(0),
            remote_key: AtomicU64::new(0),
            inode: AtomicU64::new(0),
            inode_slot: AtomicU32::new(NO_INODE),
            touched: AtomicU32::new(0),
        }
    }

    /// Fills an entry that nobody can find.
    pub(crate) fn fill<P>(&self, range: Range, access: Access, pinned: &Pinned<P>, inode: Option<WatchedInode>) {
        self.access.store(access.bits(), Ordering::Relaxed);
        self.start.store(range.start(), Ordering::Relaxed);
        self.end.store(range.end(), Ordering::Relaxed);
        self.local_key.store(pinned.local_key, Ordering::Relaxed);
        self.remote_key.store(pinned.remote_key, Ordering::Relaxed);
        self.inode.store(inode.map_or(0, |inode| inode.count), Ordering::Relaxed);
        self.inode_slot.store(inode.map_or(NO_INODE, |inode| inode.slot), Ordering::Relaxed);
    }

    /// From now on hits find it.
    pub(crate) fn publish(&self, now: u32) {
        self.touched.store(now, Ordering::Relaxed);
        self.state.store(LIVE, Ordering::Release);
    }

    /// From now on no hit finds it. Whether it was live.
    pub(crate) fn kill(&self) -> bool {
        // Only under the table's lock, so this needs no exchange.
        let live = self.is_live();
        self.state.store(DEAD, Ordering::Release);
        live
    }

    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        self.state.load(Ordering::Acquire) == LIVE
    }

    /// Whether it is live and allows this.
    #[inline]
    pub(crate) fn serves(&self, range: Range, access: Access) -> bool {
        self.is_live()
            && self.start.load(Ordering::Relaxed) <= range.start()
            && range.end() <= self.end.load(Ordering::Relaxed)
            && access.bits() & !self.access.load(Ordering::Relaxed) == 0
    }

    /// Marks it used at this time. Writes only when the time has changed: threads that hit the same entry share its line.
    #[inline]
    pub(crate) fn touch(&self, now: u32) {
        if self.touched.load(Ordering::Relaxed) != now {
            self.touched.store(now, Ordering::Relaxed);
        }
    }

    pub(crate) fn touched(&self) -> u32 {
        self.touched.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn keys(&self) -> (u64, u64) {
        (self.local_key.load(Ordering::Relaxed), self.remote_key.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn inode(&self) -> Option<WatchedInode> {
        let slot = self.inode_slot.load(Ordering::Relaxed);
        (slot != NO_INODE).then(|| WatchedInode { slot, count: self.inode.load(Ordering::Relaxed) })
    }

    pub(crate) fn range(&self) -> Range {
        let (start, end) = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        Range::between(start, end).unwrap_or(Range::ALL)
    }
}

/// All entries, by number.
#[derive(Debug)]
pub(crate) struct Entries {
    /// Each twice as long as the one before.
    segments: [OnceLock<Box<[Entry]>>; SEGMENTS],
}

#[cfg(not(loom))]
const FIRST: u32 = 256;
#[cfg(loom)]
const FIRST: u32 = 4;
const SEGMENTS: usize = 22;

impl Entries {
    /// As many as there can be.
    pub(crate) const MOST: u32 = FIRST * ((1 << SEGMENTS) - 1);

    pub(crate) fn new() -> Self {
        Self { segments: [const { OnceLock::new() }; SEGMENTS] }
    }

    /// Which segment, and which of it.
    #[inline]
    fn place(number: u32) -> (usize, usize) {
        let above = number + FIRST;
        let segment = above.ilog2() - FIRST.ilog2();
        (segment as usize, (above - (FIRST << segment)) as usize)
    }

    /// Entry `number`, if it was ever made.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&Entry> {
        let (segment, index) = Self::place(number);
        self.segments.get(segment)?.get()?.get(index)
    }

    /// Entry `number`, made with its segment if need be.
    pub(crate) fn make(&self, number: u32) -> &Entry {
        let (segment, index) = Self::place(number);
        let made = self.segments[segment].get_or_init(|| (0..FIRST << segment).map(|_| Entry::new()).collect());
        &made[index]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_place_of_its_own() {
        let mut next = (0, 0);
        for number in 0..FIRST * 7 {
            let place = Entries::place(number);
            if place.1 == 0 && place.0 > next.0 {
                assert_eq!(next.1, FIRST as usize * (1 << next.0), "the segment before is full");
                next = (place.0, 0);
            }
            assert_eq!(place, next, "{number}");
            next.1 += 1;
        }
        assert_eq!(Entries::place(Entries::MOST - 1).0, SEGMENTS - 1);
        assert_eq!(size_of::<Entry>(), 64);
    }
}

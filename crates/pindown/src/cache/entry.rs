//! Registrations that hits may find: where they lie and what they allow, two to a cache line.
//!
//! Entries are never moved or freed, and are used again. A reader holds no lock: it has announced
//! itself ([`super::grace`]), and an entry is filled again only when everybody who had announced himself before it was
//! taken out has gone. So what a reader finds LIVE is one whole registration, and stays it until the reader is done.
//!
//! Registrations are whole pages: what stands below a page of their first address and of the one after their last is free
//! for the little that a hit asks or leaves. Which file is watched for it lies apart: few hits ask that.

use std::io;

use crate::access::Access;
use crate::range::Range;
use crate::registrar::Pinned;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// What an address of a page leaves free.
const BELOW: u64 = (1 << PAGE_SHIFT) - 1;

/// log2 of the bytes of the smallest page.
pub(super) const PAGE_SHIFT: u32 = 12;

/// Below the first address: valid as long as the monitor has told nothing of it; an entry without it is not in use, being
/// filled, or no longer valid.
const LIVE: u64 = 1 << 11;

/// Below the first address: valid only while the watched file's count stands.
const WATCHED: u64 = 1 << 10;

const _: () = assert!((Access::all().bits() as u64) < WATCHED);

/// One registration. All zero is none.
#[derive(Debug)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros, zerocopy::KnownLayout))]
#[repr(C, align(32))]
pub(crate) struct Entry {
    /// Its first address; below it [`LIVE`], [`WATCHED`] and the rights, so that one load brings all and one comparison asks
    /// for all of them.
    start: AtomicU64,
    /// The address after its last; below it the [time](Age) when it was last used.
    end: AtomicU64,
    local_key: AtomicU64,
    remote_key: AtomicU64,
}

/// A time, as entries keep it: what of the table's fits below a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Age(u64);

impl Age {
    pub(crate) const fn of(time: u64) -> Self {
        Self(time & BELOW)
    }

    /// The last time, at `now` or before, that reads so.
    pub(crate) const fn before(self, now: u64) -> u64 {
        now.saturating_sub(now.wrapping_sub(self.0) & BELOW)
    }
}

/// The watched file of a shared mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchedInode {
    /// Which counter of the monitor's page.
    pub(crate) slot: u32,
    /// What it read before the pages were pinned.
    pub(crate) count: u64,
}

/// The time that it is, for those who use entries.
#[derive(Debug)]
pub(crate) struct Clock(AtomicU64);

impl Clock {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[inline(always)]
    pub(crate) fn now(&self) -> Age {
        Age(self.0.load(Ordering::Relaxed))
    }

    pub(crate) fn set(&self, now: Age) {
        self.0.store(now.0, Ordering::Relaxed);
    }
}

/// The watched file of an entry. All zero is none.
#[derive(Debug)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros, zerocopy::KnownLayout))]
#[repr(C)]
struct Inode {
    count: AtomicU64,
    /// Plus one.
    slot: AtomicU64,
}

/// The uses that an entry is [held](Entries::hold) by.
#[derive(Debug)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros, zerocopy::KnownLayout))]
#[repr(C)]
struct Holds(AtomicU32);

/// What a look-up has read of an entry that serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Serves {
    /// It does if its [watched file's](Entries::inode) count stands.
    pub(crate) watched: bool,
    /// With what stands below it.
    end: u64,
}

impl Entry {
    /// From now on hits find it.
    pub(crate) fn publish(&self, now: Age) {
        self.end.store(self.end.load(Ordering::Relaxed) & !BELOW | now.0, Ordering::Relaxed);
        self.start.store(self.start.load(Ordering::Relaxed) | LIVE, Ordering::Release);
    }

    /// From now on no hit finds it. Whether it was live.
    pub(crate) fn kill(&self) -> bool {
        // Only under the table's lock, so this needs no exchange.
        let start = self.start.load(Ordering::Relaxed);
        self.start.store(start & !LIVE, Ordering::Release);
        start & LIVE != 0
    }

    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        self.start.load(Ordering::Acquire) & LIVE != 0
    }

    /// Whether it is live and allows this.
    #[inline]
    pub(crate) fn serves(&self, range: Range, access: Access) -> bool {
        self.how_serves(range, access).is_some()
    }

    /// The same, and what [`Self::touch`] needs.
    #[inline(always)]
    pub(crate) fn how_serves(&self, range: Range, access: Access) -> Option<Serves> {
        let wanted = LIVE | u64::from(access.bits());
        let start = self.start.load(Ordering::Acquire);
        let end = self.end.load(Ordering::Relaxed);
        // Both ends of a registration are those of pages, so the last bytes of the range's pages compare with them as the
        // range does, whatever stands below them.
        if start > range.start() | BELOW || (range.end() - 1) | BELOW >= end {
            return None;
        }
        // Most are not watched: one comparison says all of those.
        if start & (wanted | WATCHED) == wanted {
            return Some(Serves { watched: false, end });
        }
        (start & wanted == wanted).then_some(Serves { watched: true, end })
    }

    /// What it allows.
    pub(crate) fn rights(&self) -> Access {
        Access::from_bits_truncate(self.start.load(Ordering::Relaxed) as u32)
    }

    /// Whether a file is watched for it.
    pub(crate) fn is_watched(&self) -> bool {
        self.start.load(Ordering::Relaxed) & WATCHED != 0
    }

    /// Marks it used at this time. Writes only when the time has changed: threads that hit the same entry share its line.
    /// For those alone who keep it from being filled again: they have announced themselves, or have the table's lock.
    #[inline(always)]
    pub(crate) fn touch(&self, read: Serves, now: Age) {
        if (read.end ^ now.0) & BELOW != 0 {
            self.end.store(read.end & !BELOW | now.0, Ordering::Relaxed);
        }
    }

    pub(crate) fn touched(&self) -> Age {
        Age::of(self.end.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn keys(&self) -> (u64, u64) {
        (self.local_key.load(Ordering::Relaxed), self.remote_key.load(Ordering::Relaxed))
    }

    pub(crate) fn range(&self) -> Range {
        let [start, end] = [&self.start, &self.end].map(|word| word.load(Ordering::Relaxed) & !BELOW);
        Range::between(start, end).unwrap_or(Range::ALL)
    }
}

/// All entries, by number: as many as the cache may keep, after one that is never valid, which stands for none. They take
/// no memory before they are used.
#[derive(Debug)]
pub(crate) struct Entries {
    entries: Box<[Entry]>,
    inodes: Box<[Inode]>,
    holds: Box<[Holds]>,
    /// An entry that was taken out has lost its last hold since somebody asked.
    released: AtomicBool,
}

impl Entries {
    /// As many as there can be.
    pub(crate) const MOST: u32 = 1 << 24;

    /// # Errors
    /// No memory.
    pub(crate) fn new(count: u32) -> io::Result<Self> {
        #[cfg(not(loom))]
        let (entries, inodes, holds) = {
            use zerocopy::FromZeros;
            let count = count as usize + 1;
            let (entries, inodes) =
                (<[Entry]>::new_box_zeroed_with_elems(count), <[Inode]>::new_box_zeroed_with_elems(count));
            (entries, inodes, <[Holds]>::new_box_zeroed_with_elems(count))
        };
        #[cfg(loom)]
        let (entries, inodes, holds) = {
            let zero = || AtomicU64::new(0);
            let entry = |_| Entry { start: zero(), end: zero(), local_key: zero(), remote_key: zero() };
            let inode = |_| Inode { count: zero(), slot: zero() };
            let holds = (0..=count).map(|_| Holds(AtomicU32::new(0)));
            let (entries, inodes) = ((0..=count).map(entry).collect(), (0..=count).map(inode).collect());
            (Ok::<_, ()>(entries), Ok::<_, ()>(inodes), Ok::<_, ()>(holds.collect()))
        };
        match (entries, inodes, holds) {
            (Ok(entries), Ok(inodes), Ok(holds)) => {
                Ok(Self { entries, inodes, holds, released: AtomicBool::new(false) })
            }
            _ => Err(io::ErrorKind::OutOfMemory.into()),
        }
    }

    /// Fills an entry that nobody can find.
    pub(crate) fn fill<P>(
        &self,
        number: u32,
        range: Range,
        access: Access,
        pinned: &Pinned<P>,
        watched: Option<WatchedInode>,
    ) {
        let place = number as usize + 1;
        let (Some(entry), Some(inode)) = (self.entries.get(place), self.inodes.get(place)) else { return };
        let state = u64::from(access.bits()) | if watched.is_some() { WATCHED } else { 0 };
        entry.start.store(range.start() & !BELOW | state, Ordering::Relaxed);
        entry.end.store(range.end() & !BELOW, Ordering::Relaxed);
        entry.local_key.store(pinned.local_key, Ordering::Relaxed);
        entry.remote_key.store(pinned.remote_key, Ordering::Relaxed);
        inode.count.store(watched.map_or(0, |watched| watched.count), Ordering::Relaxed);
        inode.slot.store(watched.map_or(0, |watched| u64::from(watched.slot) + 1), Ordering::Relaxed);
    }

    /// Entry `number`, if there is one.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&Entry> {
        self.entries.get(number as usize + 1)
    }

    /// The entry whose number plus one this is; one that is never valid for 0.
    #[inline]
    pub(crate) fn after(&self, number: u32) -> Option<&Entry> {
        self.entries.get(number as usize)
    }

    /// The file that is watched for entry `number`.
    #[inline]
    pub(crate) fn inode(&self, number: u32) -> Option<WatchedInode> {
        let inode = self.inodes.get(number as usize + 1)?;
        let slot = inode.slot.load(Ordering::Relaxed).checked_sub(1)?;
        Some(WatchedInode { slot: slot as u32, count: inode.count.load(Ordering::Relaxed) })
    }

    /// Bytes of the registration that entry `number` stands, or stood last, for.
    pub(crate) fn len_of(&self, number: u32) -> u64 {
        self.get(number).map_or(0, |entry| entry.range().len())
    }

    /// Somebody who has announced himself goes on using entry `number`, and will not be announced all that time.
    pub(crate) fn hold(&self, number: u32) {
        if let Some(Holds(holds)) = self.holds.get(number as usize + 1) {
            holds.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// He does so no more.
    pub(crate) fn release(&self, number: u32) {
        let Some(Holds(holds)) = self.holds.get(number as usize + 1) else { return };
        if holds.fetch_sub(1, Ordering::Release) == 1 {
            // Whoever takes the entry out kills it, fences, and looks at its holds then: he sees none, or it is seen killed here.
            fence(Ordering::SeqCst);
            if !self.get(number).is_some_and(Entry::is_live) {
                self.released.store(true, Ordering::Release);
            }
        }
    }

    /// Whether somebody does. Final, if not, once the entry was taken out and everybody announced before has gone.
    pub(crate) fn is_held(&self, number: u32) -> bool {
        self.holds.get(number as usize + 1).is_some_and(|Holds(holds)| holds.load(Ordering::Acquire) != 0)
    }

    /// Whether an entry that was taken out may have lost its last hold since the last call.
    pub(crate) fn were_released(&self) -> bool {
        self.released.load(Ordering::Relaxed) && self.released.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - 1
    }
}

#[cfg(all(test, not(loom)))]
const _: () = assert!(size_of::<Entry>() == 32);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_the_last_time_that_reads_so() {
        for (then, now) in [(0, 0), (5, 5), (5, 4100), (4095, 4096), (4096, 4096), (10_000, 14_095)] {
            assert_eq!(Age::of(then).before(now), then, "{then} seen at {now}");
        }
        assert_eq!(Age::of(5).before(4101), 4101, "older ones seem younger");
    }

    #[test]
    fn what_stands_below_the_addresses_is_not_of_the_range() {
        let entries = Entries::new(2).expect("memory");
        let range = Range::between(0x7f00_0000_1000, 0x7f00_0000_4000).expect("a range");
        let pinned = Pinned { pin: (), local_key: 1, remote_key: 2 };
        let watched = WatchedInode { slot: 3, count: 4 };
        entries.fill(1, range, Access::all(), &pinned, Some(watched));
        let entry = entries.get(1).expect("is there");
        assert!(!entry.serves(range, Access::empty()), "not published");
        entry.publish(Age::of(4095));
        let at =
            |start: u64, end: u64| Range::between(0x7f00_0000_0000 + start, 0x7f00_0000_0000 + end).expect("a range");
        assert_eq!(entry.how_serves(range, Access::all()).map(|serves| serves.watched), Some(true));
        assert!(entry.serves(at(0x1000, 0x1001), Access::empty()) && entry.serves(at(0x3fff, 0x4000), Access::empty()));
        assert!(
            !entry.serves(at(0xfff, 0x1001), Access::empty()) && !entry.serves(at(0x3fff, 0x4001), Access::empty())
        );
        assert_eq!((entry.range(), entry.rights(), entry.keys()), (range, Access::all(), (1, 2)));
        assert_eq!((entry.touched(), entries.inode(1)), (Age::of(4095), Some(watched)));
        assert!(entry.kill() && !entry.kill() && !entry.serves(range, Access::empty()));
        assert_eq!((entry.range(), entries.inode(0)), (range, None), "as long as it is not filled again");
    }
}

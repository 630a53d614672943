//! All entries of a cache. Each registration has one entry, identified by its *number*, and copies of that entry. Code
//! that holds the table's lock uses the entry. Look-ups without the lock find the copies, or the entry itself through
//! the [front](super::front).
//!
//! The place of a copy is given by the hash of the page by which its registration was looked up, so a hit reads one
//! cache line and waits for one load. A copy is made when a look-up has found the registration under the lock, so a
//! registration that is looked up by many pages has many copies. A copy is published after its entry, under the table's
//! lock. It is invalidated and becomes free with the entry, or earlier if the copy of a larger registration replaces
//! it. There are many more places than registrations, so the place of a copy is rarely in use already. If it is, the
//! copy is put in a neighbouring place. If no neighbouring place is free for a page, or if the registration already has
//! the maximum number of copies, the page is looked up through the front.

use std::io;

use super::entry::{Age, Entry, HIGHEST_START};
use crate::access::Access;
use crate::monitor::WatchedInode;
use crate::range::Range;
use crate::registrar::Pinned;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// The number of places of copies for each registration. With this number, the place is already in use for about 2 % of
/// the looked-up pages. A look-up of such a page takes as long as ten other look-ups, because the branch is
/// mispredicted.
const EACH: usize = if cfg!(loom) { 1 } else { 32 };

/// The number of places, of 32 bytes each, above which the places exceed what the processor's TLB covers. Caches of
/// more than 8,192 registrations have fewer places for each registration, down to two.
const MANY: usize = 1 << 18;

/// The number of neighbouring places in which a copy may be: four cache lines. A processor often fetches two lines
/// together.
const NEAR: u32 = if cfg!(loom) { 2 } else { 8 };

/// The maximum number of copies of one entry. A thread that removes the entry, or reads the time of its last use,
/// visits all copies under the table's lock.
const MOST_COPIES: u32 = 1024;

/// The place of an entry, which is either a copy or the registration's own entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryPosition(u32);

impl EntryPosition {
    /// Returns the place as a number.
    pub(crate) const fn to_u32(self) -> u32 {
        self.0
    }

    /// Restores a place from the number that [`Self::to_u32`] returned.
    pub(crate) const fn from_u32(number: u32) -> Self {
        Self(number)
    }

    const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the places in which a copy may be for a page with this first place.
    pub(crate) fn near(self) -> impl Iterator<Item = Self> {
        (0..NEAR).map(move |step| Self(self.0 ^ step))
    }
}

/// Hashes the page of an address by multiplication with 2^52 divided by the golden ratio (for page numbers, this is
/// 2^64 divided by it). The upper bits of the products differ for addresses at the usual strides. The hash has no
/// secret key, because a program that chooses colliding addresses only slows down its own look-ups.
#[inline]
pub(super) const fn hash(address: u64) -> u64 {
    // The look-up combines the address with these bits in any case.
    (address | HIGHEST_START).wrapping_mul(0x9_e377_9b97_f4a7)
}

/// The watched file of an entry. All zero means that no file is watched.
#[derive(Debug)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros, zerocopy::KnownLayout))]
#[repr(C)]
struct Inode {
    count: AtomicU64,
    /// The slot, plus one.
    slot: AtomicU64,
}

/// Further data of a copy. Written under the table's lock.
#[derive(Debug)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros, zerocopy::KnownLayout))]
#[repr(C)]
struct CopyRecord {
    /// The number of the entry that was copied.
    of: AtomicU32,
    /// The place of the next copy of the same entry, plus one.
    next: AtomicU32,
}

/// Further data of an entry.
#[derive(Debug)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros, zerocopy::KnownLayout))]
#[repr(C)]
struct EntryRecord {
    /// The place of the first copy, plus one. Written under the table's lock.
    copy: AtomicU32,
    /// The number of copies in that list. Written under the table's lock.
    copies: AtomicU32,
    /// The number of uses that [hold](Entries::hold) the entry.
    holds: AtomicU32,
    inode: Inode,
}

/// A neighbouring place for a copy.
enum NeighbourSlot {
    /// Holds a copy of the same entry, made for this or another page.
    Its(EntryPosition),
    Free(EntryPosition),
}

/// All entries of a cache.
#[derive(Debug)]
pub(crate) struct Entries {
    /// The copies, by place, then one entry for each number. All of this memory is written when the cache is opened:
    /// its alignment is greater than the allocator's own, so it is zeroed explicitly. The other arrays take no memory
    /// before they are used.
    entries: Box<[Entry]>,
    /// The number of bits by which a hash is shifted right to give a place.
    shift: u32,
    /// Data of copies, by place.
    copied: Box<[CopyRecord]>,
    /// The number of places of copies.
    places: u32,
    /// Data of entries, by number.
    known: Box<[EntryRecord]>,
    /// The current number of copies. Written under the table's lock.
    copies: AtomicU32,
    /// Whether the last hold of a removed entry has ended since [`Self::take_released`] was last called.
    released: AtomicBool,
}

impl Entries {
    /// The maximum number of registrations.
    pub(crate) const MOST: u32 = 1 << 24;

    /// Allocates entries for `count` registrations.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(crate) fn new(count: u32) -> io::Result<Self> {
        let count = count as usize;
        let places = (EACH * count).clamp(NEAR as usize, MANY.max(2 * count)).next_power_of_two();
        #[cfg(not(loom))]
        let (entries, copied, known) = {
            use zerocopy::FromZeros;
            (
                <[Entry]>::new_box_zeroed_with_elems(places + count),
                <[CopyRecord]>::new_box_zeroed_with_elems(places),
                <[EntryRecord]>::new_box_zeroed_with_elems(count),
            )
        };
        #[cfg(loom)]
        let (entries, copied, known) = {
            let zero = || AtomicU32::new(0);
            let inode = || Inode { count: AtomicU64::new(0), slot: AtomicU64::new(0) };
            let copied = |_| CopyRecord { of: zero(), next: zero() };
            let known = |_| EntryRecord { copy: zero(), copies: zero(), holds: zero(), inode: inode() };
            (
                Ok::<_, ()>((0..places + count).map(|_| Entry::zero()).collect()),
                Ok::<_, ()>((0..places).map(copied).collect()),
                Ok::<_, ()>((0..count).map(known).collect()),
            )
        };
        let (Ok(entries), Ok(copied), Ok(known)) = (entries, copied, known) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        let shift = 64 - places.ilog2();
        Ok(Self {
            entries,
            shift,
            copied,
            places: places as u32,
            known,
            copies: AtomicU32::new(0),
            released: AtomicBool::new(false),
        })
    }

    /// Returns the first place for the copy of this page.
    #[inline]
    pub(crate) fn home(&self, address: u64) -> EntryPosition {
        EntryPosition((hash(address) >> self.shift) as u32)
    }

    /// Returns the entry at a place.
    #[inline]
    pub(crate) fn at(&self, place: EntryPosition) -> Option<&Entry> {
        self.entries.get(place.index())
    }

    /// Returns whether a further copy of an entry may be put at this place. Half of the places are reserved for entries
    /// that have no copy yet.
    #[inline]
    pub(crate) fn has_room(&self, place: EntryPosition) -> bool {
        let copies = self.copies.load(Ordering::Relaxed);
        self.is_vacant(place) && copies < self.places / 2
    }

    /// Returns whether the first place for this page holds a copy. If it holds none, a copy that is put there is found
    /// before those in neighbouring places.
    #[inline]
    pub(crate) fn is_taken(&self, address: u64) -> bool {
        !self.is_vacant(self.home(address))
    }

    #[inline]
    fn is_vacant(&self, place: EntryPosition) -> bool {
        self.at(place).is_some_and(Entry::is_vacant)
    }

    /// Returns entry `number`, if there is one.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&Entry> {
        self.at(self.place(number))
    }

    /// Returns the place of entry `number` itself.
    pub(crate) const fn place(&self, number: u32) -> EntryPosition {
        EntryPosition(self.places + number)
    }

    /// Returns the number of the entry at a place. The caller must prevent the entry from being filled again.
    #[inline]
    pub(crate) fn number(&self, place: EntryPosition) -> u32 {
        match self.copied(place) {
            Some(copied) => copied.of.load(Ordering::Relaxed),
            None => place.0 - self.places,
        }
    }

    /// Returns the further data of a copy; `None` for an entry that is not a copy.
    #[inline]
    fn copied(&self, place: EntryPosition) -> Option<&CopyRecord> {
        self.copied.get(place.index())
    }

    /// Fills entry `number`, which is free.
    #[inline]
    pub(crate) fn fill<P>(
        &self,
        number: u32,
        range: Range,
        access: Access,
        pinned: &Pinned<P>,
        watched: Option<WatchedInode>,
    ) {
        let (Some(entry), Some(known)) = (self.get(number), self.known.get(number as usize)) else { return };
        known.inode.count.store(watched.map_or(0, |watched| watched.count), Ordering::Relaxed);
        known.inode.slot.store(watched.map_or(0, |watched| u64::from(watched.slot) + 1), Ordering::Relaxed);
        entry.fill(range, access, pinned, watched.is_some());
    }

    /// Makes a copy of entry `number`, which is live, so that look-ups by this page find it. Returns the place of the
    /// copy. Returns `None` if there is no room for a copy, or if the entry has too many. Called under the table's
    /// lock.
    #[inline]
    pub(crate) fn copy(&self, number: u32, address: u64, now: Age) -> Option<EntryPosition> {
        let (entry, known) = (self.get(number)?, self.known.get(number as usize)?);
        let first = known.copy.load(Ordering::Relaxed);
        let copies = known.copies.load(Ordering::Relaxed);
        let home = self.home(address);
        let place = if copies < MOST_COPIES && self.is_free(home, first == 0) {
            home
        } else {
            match self.beside(number, home)? {
                NeighbourSlot::Its(place) => return Some(place),
                NeighbourSlot::Free(place) => place,
            }
        };
        let (copy, copied) = (self.at(place)?, self.copied(place)?);
        copied.of.store(number, Ordering::Relaxed);
        copied.next.store(first, Ordering::Relaxed);
        known.copy.store(place.0 + 1, Ordering::Relaxed);
        known.copies.store(copies + 1, Ordering::Relaxed);
        self.copies.store(self.copies.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        copy.copy(entry);
        copy.publish(now);
        Some(place)
    }

    /// Returns whether a copy may be put at this place. `is_first` is true for the first copy of an entry.
    #[inline]
    fn is_free(&self, place: EntryPosition, is_first: bool) -> bool {
        if is_first { self.is_vacant(place) } else { self.has_room(place) }
    }

    /// Returns a neighbouring place for a copy of entry `number` if the copy is not put at `home`.
    #[cold]
    fn beside(&self, number: u32, home: EntryPosition) -> Option<NeighbourSlot> {
        let is_its =
            |place: &EntryPosition| self.number(*place) == number && self.at(*place).is_some_and(Entry::is_live);
        if let Some(its) = home.near().find(is_its) {
            return Some(NeighbourSlot::Its(its));
        }
        let known = self.known.get(number as usize)?;
        if known.copies.load(Ordering::Relaxed) >= MOST_COPIES {
            return None;
        }
        let is_first = known.copy.load(Ordering::Relaxed) == 0;
        home.near().find(|place| self.is_free(*place, is_first)).map(NeighbourSlot::Free)
    }

    /// Returns the copies of other entries that a copy of entry `number` for this page makes unnecessary: copies in the
    /// places that a look-up of this page searches, with a range and rights that entry `number` includes. Called under
    /// the table's lock.
    pub(crate) fn outdone(&self, number: u32, address: u64) -> impl Iterator<Item = EntryPosition> {
        let live = |place: &EntryPosition| self.at(*place).is_some_and(Entry::is_live);
        let serves_less = move |place: &EntryPosition| match (self.get(number), self.at(*place)) {
            (Some(entry), Some(copy)) => entry.range().contains(copy.range()) && entry.rights().contains(copy.rights()),
            _ => false,
        };
        // The filters are in this order because most places are vacant.
        let others = move |place: &EntryPosition| self.number(*place) != number;
        self.home(address).near().filter(live).filter(serves_less).filter(others)
    }

    /// Hides a copy from look-ups. Users that have found it already may use it until it is
    /// [vacated](Self::vacate_copy). Called under the table's lock.
    pub(crate) fn retire_copy(&self, place: EntryPosition) {
        let number = self.number(place);
        let next = |place: EntryPosition| self.copied(place).map(|copied| &copied.next);
        let Some(known) = self.known.get(number as usize) else { return };
        let mut link = Some(&known.copy);
        while let Some(word) = link {
            match word.load(Ordering::Relaxed).checked_sub(1).map(EntryPosition) {
                Some(found) if found == place => {
                    let after = next(place).map_or(0, |next| next.load(Ordering::Relaxed));
                    word.store(after, Ordering::Relaxed);
                    known.copies.store(known.copies.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
                    break;
                }
                found => link = found.and_then(next),
            }
        }
        self.at(place).map(Entry::kill);
    }

    /// Frees a retired copy that has no more users, so that its place may be filled again. Called under the table's
    /// lock.
    pub(crate) fn vacate_copy(&self, place: EntryPosition) {
        if let Some(entry) = self.at(place) {
            entry.vacate();
        }
        self.copies.store(self.copies.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }

    /// Returns the places of an entry's copies. Called under the table's lock.
    fn copies_of(&self, number: u32) -> impl Iterator<Item = EntryPosition> {
        let mut next = self.known.get(number as usize).map_or(0, |known| known.copy.load(Ordering::Relaxed));
        std::iter::from_fn(move || {
            let place = EntryPosition(next.checked_sub(1)?);
            next = self.copied(place)?.next.load(Ordering::Relaxed);
            Some(place)
        })
    }

    /// Hides entry `number` and its copies from look-ups. Returns whether the entry was live. Called under the table's
    /// lock.
    pub(crate) fn kill(&self, number: u32) -> bool {
        for place in self.copies_of(number) {
            self.at(place).map(Entry::kill);
        }
        self.get(number).is_some_and(Entry::kill)
    }

    /// Frees the copies of entry `number` when its registration has no more users. Called under the table's lock.
    pub(crate) fn vacate(&self, number: u32) {
        self.copies_of(number).for_each(|place| self.vacate_copy(place));
        if let Some(known) = self.known.get(number as usize) {
            known.copy.store(0, Ordering::Relaxed);
            known.copies.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the time of the last use of entry `number`, as of `now`. Called under the table's lock.
    pub(crate) fn touched(&self, number: u32, now: u64) -> u64 {
        let all = self.copies_of(number).chain([self.place(number)]);
        all.filter_map(|place| self.at(place)).map(|entry| entry.touched().before(now)).max().unwrap_or(0)
    }

    /// Returns the file that is watched for entry `number`.
    #[inline]
    pub(crate) fn inode(&self, number: u32) -> Option<WatchedInode> {
        let inode = &self.known.get(number as usize)?.inode;
        let slot = inode.slot.load(Ordering::Relaxed).checked_sub(1)?;
        Some(WatchedInode { slot: slot as u32, count: inode.count.load(Ordering::Relaxed) })
    }

    /// Returns the size in bytes of the current registration of entry `number`, or of its last one.
    pub(crate) fn len_of(&self, number: u32) -> u64 {
        self.get(number).map_or(0, |entry| entry.range().len())
    }

    /// Returns the range of the current registration of entry `number`, or of its last one.
    pub(crate) fn range_of(&self, number: u32) -> Option<Range> {
        self.get(number).map(|entry| entry.range())
    }

    /// Counts a hold of entry `number`: an announced user continues to use the entry after its announcement has ended.
    pub(crate) fn hold(&self, number: u32) {
        if let Some(known) = self.known.get(number as usize) {
            known.holds.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends a hold of entry `number`.
    pub(crate) fn release(&self, number: u32) {
        let Some(known) = self.known.get(number as usize) else { return };
        if known.holds.fetch_sub(1, Ordering::Release) == 1 {
            // The thread that removes the entry invalidates it, executes a fence, and then loads its holds. Either that
            // thread sees that the last hold has ended, or this thread sees that the entry is dead.
            fence(Ordering::SeqCst);
            if !self.get(number).is_some_and(Entry::is_live) {
                self.released.store(true, Ordering::Release);
            }
        }
    }

    /// Returns whether entry `number` is held. `false` is final if the entry was removed and every use that was
    /// announced before the removal has ended.
    pub(crate) fn is_held(&self, number: u32) -> bool {
        self.known.get(number as usize).is_some_and(|known| known.holds.load(Ordering::Acquire) != 0)
    }

    /// Returns whether the last hold of a removed entry may have ended since [`Self::take_released`].
    #[inline]
    pub(crate) fn were_released(&self) -> bool {
        self.released.load(Ordering::Relaxed)
    }

    /// Like [`Self::were_released`], but also resets the result.
    pub(crate) fn take_released(&self) -> bool {
        self.were_released() && self.released.swap(false, Ordering::AcqRel)
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn filled(entries: &Entries, number: u32, range: Range) {
        let pinned = Pinned { pin: (), local_key: u64::from(number), remote_key: 2 };
        entries.fill(number, range, Access::empty(), &pinned, None);
        entries.get(number).expect("an entry").publish(Age::of(1));
    }

    fn range(start: u64, len: u64) -> Range {
        Range::new(0x7f00_0000_0000 + start * PAGE, len * PAGE).expect("a range")
    }

    #[test]
    fn copies_are_placed_near_and_removed_with_their_entry() {
        let entries = Entries::new(64).expect("memory");
        let address = range(5, 1).start();
        let home = entries.home(address + 0xfff);
        assert_eq!(home, entries.home(address));
        let copies: Vec<_> = (0..NEAR)
            .map(|number| {
                filled(&entries, number, range(5, 1));
                entries.copy(number, address, Age::of(number.into())).expect("room")
            })
            .collect();
        assert!(home.near().eq(copies.iter().copied()));
        assert_eq!(entries.copy(2, address, Age::of(9)), Some(copies[2]), "the existing copy is returned");
        filled(&entries, NEAR, range(5, 1));
        assert_eq!(entries.copy(NEAR, address, Age::of(9)), None, "all places are taken");
        assert_eq!((entries.number(copies[3]), entries.number(entries.place(3))), (3, 3));
        assert!(entries.kill(3) && !entries.kill(3));
        assert!(!entries.at(copies[3]).expect("an entry").is_live());
        assert_eq!(entries.copy(NEAR, address, Age::of(9)), None, "the entry may be in use");
        entries.vacate(3);
        assert_eq!(entries.copy(NEAR, address, Age::of(9)), Some(copies[3]));
        assert_eq!(entries.at(copies[3]).map(Entry::keys), Some((NEAR.into(), 2)));
    }

    #[test]
    fn last_use_of_an_entry_includes_its_copies() {
        let entries = Entries::new(64).expect("memory");
        filled(&entries, 7, range(0, 4));
        for (page, now) in [(0, 3), (1, 9), (3, 5)] {
            assert!(entries.copy(7, range(page, 1).start(), Age::of(now)).is_some());
        }
        assert_eq!(entries.touched(7, 20), 9);
        entries.kill(7);
        entries.vacate(7);
        assert_eq!(entries.touched(7, 20), 1, "only the age of the entry itself");
    }

    #[test]
    fn copy_of_a_part_is_replaced_by_the_whole() {
        let entries = Entries::new(64).expect("memory");
        let address = range(5, 1).start();
        for (number, pages) in [(1, 1), (2, 4), (3, 2)] {
            filled(&entries, number, range(5, pages));
        }
        let part = entries.copy(1, address, Age::of(1)).expect("room");
        let others = entries.copy(1, range(9, 1).start(), Age::of(1)).expect("room");
        assert!(entries.outdone(1, address).eq([]), "an entry does not replace its own copies");
        assert!(entries.outdone(2, address).eq([part]));
        entries.retire_copy(part);
        assert_ne!(entries.copy(2, address, Age::of(1)), Some(part), "the entry may be in use");
        assert!(entries.copies_of(1).eq([others]));
        assert_eq!(entries.number(part), 1, "the number is kept for threads that use the entry");
        entries.kill(1);
        entries.vacate(1);
        assert!(!entries.at(part).expect("an entry").is_vacant());
        entries.vacate_copy(part);
        assert_eq!(entries.copy(2, address, Age::of(1)), Some(part));
        assert!(entries.outdone(3, address).eq([]), "entry 3 covers fewer pages");
        assert_eq!(entries.copies.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn copies_of_one_entry_are_limited() {
        for (count, copies) in [(16, 256), (64, 1024), (1024, 1024)] {
            let entries = Entries::new(count).expect("memory");
            filled(&entries, 0, range(0, 100_000));
            let places: Vec<_> =
                (0..100_000).filter_map(|page| entries.copy(0, range(page, 1).start(), Age::of(1))).collect();
            assert_eq!(entries.copies_of(0).count(), copies);
            entries.retire_copy(places[0]);
            entries.vacate_copy(places[0]);
            assert_eq!(entries.copy(0, range(0, 1).start(), Age::of(1)), Some(places[0]), "there is room again");
            assert_eq!(entries.copies_of(0).count(), copies);
            filled(&entries, 1, range(200_000, 1));
            assert!(entries.copy(1, range(200_000, 1).start(), Age::of(1)).is_some());
            entries.kill(0);
            entries.vacate(0);
            filled(&entries, 0, range(0, 1));
            assert!(
                entries.copy(0, range(0, 1).start(), Age::of(1)).is_some(),
                "the next registration has its own copies"
            );
        }
    }
}

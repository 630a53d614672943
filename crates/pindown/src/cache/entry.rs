//! The entry of a registration, as read by look-ups: its addresses, rights and keys. Two entries fit in a cache line.
//!
//! Entries are never moved or freed, but are filled again ([`super::entries`]). A reader holds no lock. It reads either
//! all words of one registration or none, for these reasons:
//!
//! 1. A reader announces itself ([`super::grace`]) before it loads a word.
//! 2. The first word that it loads is `start`, which shows whether the entry is live. It loads the other words only if the
//!    entry is live.
//! 3. `start` becomes live only after the other words were written, and stays live until the registration is removed.
//! 4. A removed entry is filled again only after every use that was announced before a certain fence has ended. The
//!    thread that removes the entry executes this fence on all threads after it has marked the entry dead. So a reader
//!    that announces itself later finds the entry dead.
//!
//! So a reader that finds the entry live prevents it from being filled again, and all words that it loads later belong
//! to the same registration. The order in 2 is essential: a reader that loaded `end` first could load the end of a dead
//! registration, and then the start of a registration that was filled in later. (Checked by loom models,
//! `model::loom_a_reader_against_an_entry_that_is_filled_again_*`, and by tests with threads, `tests/racing.rs`.)
//!
//! Registrations are whole pages below 2^62. So the bits below the page size in the first address and in the address
//! after the last are available for flags that a hit reads or writes, and so are the upper two bits. The watched file
//! of a registration is stored elsewhere, because few hits need it.
//!
//! An entry that was never filled is all zero, which means dead.

use crate::access::Access;
use crate::range::Range;
use crate::registrar::Pinned;
use crate::sync::{AtomicU64, Ordering};

/// The bits that are always 0 in the address of a page.
pub(super) const BELOW: u64 = (1 << PAGE_SHIFT) - 1;

/// log2 of the size in bytes of the smallest page.
pub(super) const PAGE_SHIFT: u32 = 12;

/// A bit above the first address. If it is set, the registration is valid as long as the monitor has reported no change
/// of it. Without this bit the entry is unused, is being filled, or is no longer valid. As a signed number a live start
/// is less than every start that is not live, so one comparison checks both this bit and the address.
const LIVE: u64 = 1 << 63;

/// A bit above the first address. If it is set, the registration is valid only while the count of its watched file is
/// unchanged. Such a start is greater than every live start that is not watched.
const WATCHED: u64 = 1 << 62;

/// Registrations that end above this address are not kept: the kernel maps nothing there.
pub(super) const HIGHEST_END: u64 = WATCHED - 1;

/// The flag bits of the word with the first address.
const BESIDE: u64 = LIVE | WATCHED | BELOW;

/// The greatest `start` of a live entry without a watched file that begins on the page of an address is the address
/// combined with these bits.
pub(super) const HIGHEST_START: u64 = LIVE | BELOW;

const _: () = assert!((Access::all().bits() as u64) < BELOW);

/// One registration. An entry that is all zero contains none.
#[derive(Debug)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros, zerocopy::KnownLayout))]
#[repr(C, align(32))]
pub(crate) struct Entry {
    /// The first address. Above it are [`LIVE`] and [`WATCHED`]; below it are the rights that the registration lacks.
    /// So one load reads all of them, and a look-up checks whether one of the rights that it needs is missing.
    start: AtomicU64,
    /// The address after the last. Below it is the [time](Age) of the last use. 0 if the entry may be filled.
    end: AtomicU64,
    local_key: AtomicU64,
    remote_key: AtomicU64,
}

/// A time as stored in entries: the bits of the table's time that fit below the page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Age(u64);

impl Age {
    pub(crate) const fn of(time: u64) -> Self {
        Self(time & BELOW)
    }

    /// Returns the latest time, not after `now`, that has these bits.
    pub(crate) const fn before(self, now: u64) -> u64 {
        now.saturating_sub(now.wrapping_sub(self.0) & BELOW)
    }
}

/// The current time, read by users of entries.
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

    #[inline]
    pub(crate) fn set(&self, now: Age) {
        self.0.store(now.0, Ordering::Relaxed);
    }
}

/// The words that a look-up has read from an entry that serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryMatch {
    /// Whether the entry serves the look-up only if the count of its [watched file](Entries::inode) is unchanged.
    pub(crate) watched: bool,
    /// The end, with the bits below it.
    end: u64,
}

impl Entry {
    #[cfg(loom)]
    pub(super) fn zero() -> Self {
        let zero = || AtomicU64::new(0);
        Self { start: zero(), end: zero(), local_key: zero(), remote_key: zero() }
    }

    /// Makes the entry visible to look-ups.
    #[inline]
    pub(crate) fn publish(&self, now: Age) {
        self.end.store(self.end.load(Ordering::Relaxed) & !BELOW | now.0, Ordering::Relaxed);
        self.start.store(self.start.load(Ordering::Relaxed) | LIVE, Ordering::Release);
    }

    /// Hides the entry from look-ups. Returns whether it was live.
    pub(crate) fn kill(&self) -> bool {
        // Called only under the table's lock, so this needs no atomic exchange.
        let start = self.start.load(Ordering::Relaxed);
        self.start.store(start & !LIVE, Ordering::Release);
        start & LIVE != 0
    }

    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        self.start.load(Ordering::Acquire) & LIVE != 0
    }

    /// Fills the entry. It is not published yet, so look-ups do not find it.
    #[inline]
    pub(super) fn fill<P>(&self, range: Range, access: Access, pinned: &Pinned<P>, is_watched: bool) {
        let state = u64::from((!access).bits()) | if is_watched { WATCHED } else { 0 };
        self.set([range.start() & !BESIDE | state, range.end() & !BELOW, pinned.local_key, pinned.remote_key]);
    }

    /// Fills the entry with the words of another entry.
    #[inline]
    pub(super) fn copy(&self, from: &Self) {
        let words = [&from.start, &from.end, &from.local_key, &from.remote_key];
        self.set(words.map(|word| word.load(Ordering::Relaxed)));
    }

    #[inline]
    fn set(&self, [start, end, local_key, remote_key]: [u64; 4]) {
        self.start.store(start & !LIVE, Ordering::Relaxed);
        self.local_key.store(local_key, Ordering::Relaxed);
        self.remote_key.store(remote_key, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
    }

    /// Marks the entry as free to be filled: it was removed and has no more users.
    pub(super) fn vacate(&self) {
        self.end.store(0, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn is_vacant(&self) -> bool {
        self.end.load(Ordering::Relaxed) == 0
    }

    /// Returns whether the entry is live, contains the range and has these rights.
    #[inline]
    pub(crate) fn serves(&self, range: Range, access: Access) -> bool {
        self.how_serves(range, access).is_some()
    }

    /// Like [`Self::serves`], but returns what [`Self::touch`] needs.
    #[inline(always)]
    pub(crate) fn how_serves(&self, range: Range, access: Access) -> Option<EntryMatch> {
        // The first load checks whether the entry is live; see the module documentation.
        let start = self.start.load(Ordering::Acquire);
        let highest = range.start() | HIGHEST_START;
        // Most entries are not watched, and the same comparison also checks this.
        if start.cast_signed() <= highest.cast_signed() {
            self.reaches(start, range, access).map(|end| EntryMatch { watched: false, end })
        } else if (start & !WATCHED).cast_signed() <= highest.cast_signed() {
            self.reaches(start, range, access).map(|end| EntryMatch { watched: true, end })
        } else {
            None
        }
    }

    /// Returns the end with the bits below it, if the end and the rights are sufficient. The entry must have been found
    /// live.
    #[inline(always)]
    fn reaches(&self, start: u64, range: Range, access: Access) -> Option<u64> {
        let end = self.end.load(Ordering::Relaxed);
        // Both ends of a registration are page boundaries, so comparing the last byte of the range's last page gives
        // the same result as comparing the range, independent of the bits below.
        let serves = (range.end() - 1) | BELOW < end && start & u64::from(access.bits()) == 0;
        serves.then_some(end)
    }

    /// Returns the rights of the registration.
    pub(crate) fn rights(&self) -> Access {
        Access::from_bits_truncate(!self.start.load(Ordering::Relaxed) as u32)
    }

    /// Returns whether a file is watched for the registration.
    pub(crate) fn is_watched(&self) -> bool {
        self.start.load(Ordering::Relaxed) & WATCHED != 0
    }

    /// Marks the entry as used at this time. Writes only when the time has changed, because threads that hit the same
    /// entry share its cache line. The caller must prevent the entry from being filled again, by announcing itself or
    /// by holding the table's lock.
    #[inline(always)]
    pub(crate) fn touch(&self, read: EntryMatch, now: Age) {
        if (read.end ^ now.0) & BELOW != 0 {
            self.touch_again(read, now);
        }
    }

    #[cold]
    #[inline(never)]
    fn touch_again(&self, read: EntryMatch, now: Age) {
        self.end.store(read.end & !BELOW | now.0, Ordering::Relaxed);
    }

    pub(crate) fn touched(&self) -> Age {
        Age::of(self.end.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn keys(&self) -> (u64, u64) {
        (self.local_key.load(Ordering::Relaxed), self.remote_key.load(Ordering::Relaxed))
    }

    pub(crate) fn range(&self) -> Range {
        let [start, end] = [&self.start, &self.end].map(|word| word.load(Ordering::Relaxed) & !BESIDE);
        Range::between(start, end).unwrap_or(Range::ALL)
    }
}

#[cfg(all(test, not(loom)))]
const _: () = assert!(size_of::<Entry>() == 32);

#[cfg(all(test, not(loom)))]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn age_is_the_latest_matching_time() {
        for (then, now) in [(0, 0), (5, 5), (5, 4100), (4095, 4096), (4096, 4096), (10_000, 14_095)] {
            assert_eq!(Age::of(then).before(now), then, "{then} seen at {now}");
        }
        assert_eq!(Age::of(5).before(4101), 4101, "older ages appear younger");
    }

    #[test]
    fn low_address_bits_do_not_affect_the_range() {
        let entry = Entry::new_zeroed();
        let range = Range::between(0x7f00_0000_1000, 0x7f00_0000_4000).expect("a range");
        assert!(!entry.serves(range, Access::empty()) && !entry.is_live() && entry.is_vacant(), "never filled");
        entry.fill(range, Access::all(), &Pinned { pin: (), local_key: 1, remote_key: 2 }, true);
        assert!(!entry.serves(range, Access::empty()) && !entry.is_vacant(), "not published");
        entry.publish(Age::of(4095));
        let at =
            |start: u64, end: u64| Range::between(0x7f00_0000_0000 + start, 0x7f00_0000_0000 + end).expect("a range");
        assert_eq!(entry.how_serves(range, Access::all()).map(|serves| serves.watched), Some(true));
        assert!(entry.serves(at(0x1000, 0x1001), Access::empty()) && entry.serves(at(0x3fff, 0x4000), Access::empty()));
        assert!(
            !entry.serves(at(0xfff, 0x1001), Access::empty()) && !entry.serves(at(0x3fff, 0x4001), Access::empty())
        );
        assert_eq!((entry.range(), entry.rights(), entry.keys()), (range, Access::all(), (1, 2)));
        assert_eq!((entry.touched(), entry.is_watched()), (Age::of(4095), true));
        let copy = Entry::new_zeroed();
        copy.copy(&entry);
        assert!(!copy.is_live(), "not published");
        copy.publish(Age::of(1));
        assert_eq!(
            (copy.range(), copy.rights(), copy.keys(), copy.touched()),
            (range, Access::all(), (1, 2), Age::of(1))
        );
        assert!(entry.kill() && !entry.kill() && !entry.serves(range, Access::empty()));
        assert_eq!(entry.range(), range, "the range is kept until the entry is filled again");
        entry.vacate();
        assert!(entry.is_vacant() && !entry.serves(range, Access::empty()));
    }

    #[test]
    fn entry_serves_exactly_its_rights() {
        let entry = Entry::new_zeroed();
        let range = Range::between(0x1000, 0x2000).expect("a range");
        let some = Access::LOCAL_WRITE | Access::REMOTE_READ;
        entry.fill(range, some, &Pinned { pin: (), local_key: 0, remote_key: 0 }, false);
        entry.publish(Age::of(0));
        assert_eq!(entry.rights(), some);
        for wanted in 0..=Access::all().bits() {
            let wanted = Access::from_bits_truncate(wanted);
            assert_eq!(entry.serves(range, wanted), some.contains(wanted), "{wanted:?}");
        }
    }
}

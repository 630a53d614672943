//! Merging: a miss may register more than the requested pages, so that one registration replaces several.
//!
//! The new registration starts with the requested pages. It is extended by each kept registration that has the same
//! rights and overlaps or adjoins it, if the rest of the merged registration is at least as large as the added one.
//! This is repeated with the larger registration until nothing more can be added. So each page that a merge registers
//! again is then in a registration of at least twice the size. If n pages are requested one by one, the total size of
//! all registrations made is at most n · (1 + log2 n) pages, and not n²/2. If they are requested in order, at most 1 +
//! log2 n registrations remain.
//!
//! Only pages that look-ups have requested are registered. Registrations of shared files are not merged, because they
//! are watched one at a time.

use super::entries::Entries;
use super::entry::Entry;
use super::table::Table;
use crate::access::Access;
use crate::range::Range;

/// The maximum size in bytes of a merged registration, because some devices reject larger ones.
const MOST_BYTES: u64 = 1 << 30;

/// The maximum number of passes that extend a merged registration.
const PASSES: usize = 32;

impl<P> Table<P> {
    /// Returns the range to register for these pages.
    pub(super) fn widened(&self, pages: Range, access: Access, entries: &Entries) -> Range {
        let most = MOST_BYTES.min(self.limits().bytes / 4);
        let mut wide = pages;
        for _ in 0..PASSES {
            let mut next = wide;
            self.each_near(wide, &mut |number| {
                let Some(entry) = entries.get(number).filter(|entry| Self::merges(entry, access)) else { return };
                let own = entry.range();
                let both = wide.end().min(own.end()).saturating_sub(wide.start().max(own.start()));
                if wide.len() - both >= own.len() && next.union(own).len() <= most {
                    next = next.union(own);
                }
            });
            if next == wide {
                break;
            }
            wide = next;
        }
        wide
    }

    /// Removes the entries that `winner` replaces. As always, uses that are under way keep them pinned.
    pub(super) fn absorb(&mut self, winner: u32, entries: &Entries) {
        let Some(range) = entries.get(winner).map(Entry::range) else { return };
        let Some(access) = entries.get(winner).map(Entry::rights) else { return };
        let mut absorbed = Vec::new();
        self.each_near(range, &mut |number| {
            let goes = |entry: &&Entry| Self::merges(entry, access) && range.contains(entry.range());
            if number != winner && entries.get(number).is_some_and(|entry| goes(&entry)) {
                absorbed.push(number);
            }
        });
        for number in absorbed {
            self.replace(number, entries);
        }
    }

    /// Returns whether an entry may be merged into one with these rights.
    fn merges(entry: &Entry, access: Access) -> bool {
        entry.is_live() && entry.rights() == access && !entry.is_watched()
    }
}

//! Merging: a miss may register more than was asked for, so that one registration takes the place of several.
//!
//! The registration begins as the pages that were asked for. Into it go those that the cache keeps with the same rights and
//! that overlap it or adjoin it, if what they would be registered with, beside themselves, is at least as large as they
//! are; then those that the larger one reaches in the same way, and so on. So each page that is registered again by a merge
//! is from then on in a registration of at least twice the size: n pages that are sent from one by one cost n · (1 + log2 n)
//! pages in registrations at most, and not n²/2; in order, they end as 1 + log2 n registrations at most.
//!
//! No byte is registered that no look-up asked for. Shared files are left out: they are watched one at a time.

use super::entries::Entries;
use super::entry::Entry;
use super::table::Table;
use crate::access::Access;
use crate::range::Range;

/// Bytes that no merge exceeds: more than this some devices refuse.
const MOST_BYTES: u64 = 1 << 30;

/// How often a merge reaches further.
const PASSES: usize = 32;

impl<P> Table<P> {
    /// The range that is to be registered for these pages.
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

    /// Takes out the entries that `winner` replaces. Uses of them that are under way keep them pinned, as always.
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

    /// Whether an entry may go into one with these rights.
    fn merges(entry: &Entry, access: Access) -> bool {
        entry.is_live() && entry.rights() == access && !entry.is_watched()
    }
}

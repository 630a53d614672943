//! Addresses at which pages were dropped, as recorded by the reading thread. That thread must not allocate, so the
//! number of ranges is fixed.
//!
//! The words of a range may be read while the range is merged with another. The result may then lack the new addresses,
//! and never the old ones, because a range only grows. That is sufficient: the reading thread reports the change in the
//! journal after it has recorded the range (Release), so a registration that did not find it is dropped, and the next
//! look-up, which has read the journal (Acquire), finds the range.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::range::Range;

#[derive(Debug)]
pub(super) struct Removed {
    count: AtomicUsize,
    ranges: [(AtomicU64, AtomicU64); MOST],
}

const MOST: usize = 4096;

impl Removed {
    pub(super) fn new() -> Self {
        Self { count: AtomicUsize::new(0), ranges: std::array::from_fn(|_| Default::default()) }
    }

    /// Adds a range. Called only by the reading thread.
    pub(super) fn add(&self, range: Range) {
        let count = self.count.load(Ordering::Relaxed);
        for (start, end) in &self.ranges[..count.min(MOST)] {
            let known = (start.load(Ordering::Relaxed), end.load(Ordering::Relaxed));
            if known.0 <= range.start() && range.end() <= known.1 {
                return;
            }
            // Adjoining ranges are merged, because an allocator returns its arenas in pieces.
            if known.0 <= range.end() && range.start() <= known.1 {
                start.store(known.0.min(range.start()), Ordering::Relaxed);
                end.store(known.1.max(range.end()), Ordering::Release);
                return;
            }
        }
        if let Some((start, end)) = self.ranges.get(count) {
            start.store(range.start(), Ordering::Relaxed);
            end.store(range.end(), Ordering::Relaxed);
        }
        self.count.store(count + 1, Ordering::Release);
    }

    /// Returns whether pages of the range were dropped, or may have been dropped because there was no room to record
    /// all ranges.
    pub(super) fn overlaps(&self, range: Range) -> bool {
        let count = self.count.load(Ordering::Acquire);
        count > MOST
            || self.ranges[..count].iter().any(|(start, end)| {
                let known = Range::between(start.load(Ordering::Relaxed), end.load(Ordering::Acquire));
                known.is_none_or(|known| known.overlaps(range))
            })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pages(start: u64, count: u64) -> Range {
        Range::between(start * 4096, (start + count) * 4096).expect("a range")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Compares the recorded ranges with the set of the dropped pages: below, above, inside, around and next to
        /// each other.
        #[test]
        fn exactly_the_dropped_pages_are_recorded(drops in prop::collection::vec((0..40_u64, 1..8_u64), 1..24)) {
            let removed = Removed::new();
            let mut dropped = [false; 48];
            for (start, count) in drops {
                removed.add(pages(start, count));
                dropped[start as usize..(start + count) as usize].fill(true);
                for (page, dropped) in dropped.iter().enumerate() {
                    prop_assert_eq!(removed.overlaps(pages(page as u64, 1)), *dropped, "page {}", page);
                }
            }
        }
    }

    #[test]
    fn more_ranges_than_there_is_room_for_are_all_memory() {
        let removed = Removed::new();
        for number in 0..MOST as u64 {
            removed.add(pages(2 * number, 1));
        }
        let all = |wanted: bool| (0..MOST as u64).all(|number| removed.overlaps(pages(2 * number + 1, 1)) == wanted);
        assert!(all(false) && removed.overlaps(pages(2 * MOST as u64 - 2, 1)));
        removed.add(pages(4 * MOST as u64, 1));
        assert!(all(true));
    }
}

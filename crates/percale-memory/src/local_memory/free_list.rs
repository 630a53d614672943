//! The list of the free ranges of an arena.
//!
//! The list is in ordinary memory, never in the arena, because peers map the arena and can write it. Allocation is
//! first fit by offset. Adjacent free ranges are always merged. The list has no lock: the owner's lock protects it.

use std::collections::BTreeMap;

/// The free ranges of one arena.
#[derive(Debug)]
pub(super) struct FreeList {
    /// The length of each range, indexed by offset. Ranges neither overlap nor touch.
    ranges: BTreeMap<usize, usize>,
    size: usize,
    free: usize,
}

impl FreeList {
    /// Creates the list of an arena of `size` bytes, all free.
    pub(super) fn new(size: usize) -> Self {
        Self { ranges: BTreeMap::from([(0, size)]), size, free: size }
    }

    /// Takes `len` bytes (not 0) at a multiple of `align` (a power of two). Returns `None` if no free range is large
    /// enough.
    pub(super) fn take(&mut self, len: usize, align: usize) -> Option<usize> {
        let (start, have, at) = self.ranges.iter().find_map(|(&start, &have)| {
            let at = start.checked_next_multiple_of(align)?;
            (at.checked_add(len)? <= start + have).then_some((start, have, at))
        })?;
        self.ranges.remove(&start);
        if at > start {
            self.ranges.insert(start, at - start);
        }
        if start + have > at + len {
            self.ranges.insert(at + len, start + have - at - len);
        }
        self.free -= len;
        Some(at)
    }

    /// Returns `len` bytes at `offset` to the list. They must have been taken before and not returned yet.
    pub(super) fn give(&mut self, offset: usize, len: usize) {
        let (mut start, mut end) = (offset, offset + len);
        if let Some((&before, &have)) = self.ranges.range(..offset).next_back() {
            debug_assert!(before + have <= offset, "the range was freed twice");
            if before + have == offset {
                start = before;
            }
        }
        if let Some(have) = self.ranges.remove(&end) {
            end += have;
        }
        self.ranges.insert(start, end - start);
        self.free += len;
    }

    /// Returns whether all bytes are free.
    pub(super) const fn is_unused(&self) -> bool {
        self.free == self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn free_list_ranges_never_overlap_and_are_all_returned(
            steps in proptest::collection::vec((1usize..900, 0u32..3, any::<proptest::sample::Index>()), 1..200)
        ) {
            let mut list = FreeList::new(8192);
            let mut live: Vec<(usize, usize)> = Vec::new();
            for (len, action, which) in steps {
                if action == 0 && !live.is_empty() {
                    let (at, len) = live.swap_remove(which.index(live.len()));
                    list.give(at, len);
                } else {
                    let align = if action == 1 { 64 } else { 512 };
                    if let Some(at) = list.take(len, align) {
                        prop_assert_eq!(at % align, 0);
                        prop_assert!(at + len <= 8192);
                        prop_assert!(live.iter().all(|&(other, size)| at + len <= other || other + size <= at));
                        live.push((at, len));
                    } else {
                        // Returning `None` is correct only if every gap is too small after alignment.
                        live.sort_unstable();
                        let mut from = 0usize;
                        for &(at, size) in live.iter().chain([&(8192, 0)]) {
                            prop_assert!(from.next_multiple_of(align) + len > at);
                            from = at + size;
                        }
                    }
                }
            }
            for (at, len) in live {
                list.give(at, len);
            }
            prop_assert!(list.is_unused());
            prop_assert_eq!(list.ranges.len(), 1);
        }
    }
}

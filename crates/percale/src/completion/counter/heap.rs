//! A priority queue for thresholds: a radix heap with sorted small buckets.
//!
//! Work that waits for a counter is removed in the order of thresholds, and counters usually increase, so no new
//! threshold is below one that was already removed. For this case a radix heap needs few comparisons. An item is in the
//! bucket of the highest bit in which its threshold differs from [`floor`](Heap::floor). When all items before it have
//! been removed, the lowest bucket is distributed over the buckets below it. So an item moves down at most 64 times,
//! and usually only a few times. Many items are moved together, in sequence, and a push is one store (R. Ahuja et al.,
//! "Faster algorithms for the shortest path problem", 1990, section 4). A bucket of a few items is sorted into the
//! `front` instead, from which items are removed. A bucket of many items that were pushed in order, as is usual for
//! thresholds, becomes the `run` unchanged, from which items are removed too.
//!
//! Items at or below the floor wait separately in a binary heap. They belong to work with a condition that is already
//! met, which is removed immediately, or to a counter that was set back.
//!
//! Items with equal thresholds keep their order. In the buckets they are always in the same bucket, and distributing
//! and sorting keep their order. Items in the front or in the run were pushed before equal items in the buckets, and
//! before those at the floor that wait separately. Stamps decide between the front and the run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Bucket n holds the items for which bit n is the highest bit that differs from the floor.
const BUCKETS: usize = u64::BITS as usize;
/// A bucket of at most this many items is sorted.
const FEW: usize = if cfg!(test) { 8 } else { 256 };

/// The distance, in items removed from the run, between the announcement of an item (`soon`) and its removal.
const AHEAD: usize = 8;

/// An item of the heap: a threshold, and the information that the owner needs to find its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HeapItem {
    pub(crate) threshold: u64,
    pub(crate) slot: u32,
    /// The insertion stamp. It orders two items if fewer than 2^31 items were inserted between them. (Otherwise items
    /// with equal thresholds may be removed out of order.)
    pub(crate) stamp: u32,
}

impl HeapItem {
    pub(crate) const fn was_queued_before(&self, other: &Self) -> bool {
        (self.stamp.wrapping_sub(other.stamp) as i32) < 0
    }
}

/// Ordered items, some of which have been removed.
#[derive(Debug, Default)]
struct SortedRun {
    items: Vec<HeapItem>,
    /// The number of items that have been removed.
    taken: usize,
}

impl SortedRun {
    fn len(&self) -> usize {
        self.items.len() - self.taken
    }

    #[inline]
    fn first(&self) -> Option<&HeapItem> {
        self.items.get(self.taken)
    }

    /// Takes `first`, which the caller has determined to be the first item.
    #[inline]
    fn take(&mut self, first: HeapItem) -> HeapItem {
        self.taken += 1;
        if self.taken == self.items.len() {
            self.items.clear();
            self.taken = 0;
        }
        first
    }

    /// Discards the items that have been removed.
    fn tidy(&mut self) -> &mut Vec<HeapItem> {
        self.items.drain(..std::mem::take(&mut self.taken));
        &mut self.items
    }
}

/// A radix heap of items ordered by threshold.
#[derive(Debug)]
pub(crate) struct Heap {
    /// All items in the front, in the run and in the buckets are at or above the floor.
    floor: u64,
    front: SortedRun,
    run: SortedRun,
    /// One bit for each bucket, which is set if the bucket is not empty.
    filled: u64,
    buckets: [Bucket; BUCKETS],
    /// The items at the floor or below it, by threshold and order of insertion.
    below: BinaryHeap<Reverse<(u64, u64, HeapItem)>>,
    /// The number of items that were inserted into `below`.
    came: u64,
    len: usize,
}

#[derive(Debug)]
struct Bucket {
    items: Vec<HeapItem>,
    /// The lowest threshold of the items. It is meaningless if there are none.
    least: u64,
    /// Whether the items were inserted in order.
    sorted: bool,
}

impl Default for Heap {
    fn default() -> Self {
        Self {
            floor: 0,
            front: SortedRun::default(),
            run: SortedRun::default(),
            filled: 0,
            buckets: [const { Bucket { items: Vec::new(), least: u64::MAX, sorted: true } }; BUCKETS],
            below: BinaryHeap::new(),
            came: 0,
            len: 0,
        }
    }
}

impl Heap {
    /// Returns the number of items.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Adds an item, after those with the same threshold.
    pub(crate) fn push(&mut self, item: HeapItem) {
        if self.len == 0 {
            self.floor = 0;
        }
        if self.filled == 0 && self.is_last(item.threshold) {
            // Nothing else is needed for a short queue that grows at its end.
            if self.front.items.len() >= FEW {
                self.front.tidy();
            }
            self.front.items.push(item);
        } else if item.threshold > self.floor {
            self.put(item);
        } else {
            self.below.push(Reverse((item.threshold, self.came, item)));
            self.came += 1;
        }
        self.len += 1;
    }

    /// Returns whether an item may be appended to the front: the item is above the floor, and the front holds few
    /// items, none of them above it.
    #[inline]
    fn is_last(&self, threshold: u64) -> bool {
        threshold > self.floor
            && self.front.len() < FEW / 2
            && self.front.items.last().is_none_or(|last| last.threshold <= threshold)
    }

    /// Puts an item that is above the floor into its bucket.
    #[inline]
    fn put(&mut self, item: HeapItem) {
        let number = (item.threshold ^ self.floor).ilog2() as usize;
        let bucket = &mut self.buckets[number];
        match bucket.items.last() {
            None => {
                (bucket.least, bucket.sorted) = (item.threshold, true);
                self.filled |= 1 << number;
            }
            Some(last) => {
                bucket.sorted &= last.threshold <= item.threshold;
                bucket.least = bucket.least.min(item.threshold);
            }
        }
        bucket.items.push(item);
    }

    /// Empties the lowest bucket into the buckets below it, or into the front or the run. Items that are already in the
    /// front are above the least item of the bucket, and were inserted before equal items in it.
    fn split_bucket(&mut self, soon: impl Fn(u32)) {
        let from = self.filled.trailing_zeros() as usize;
        let bucket = &mut self.buckets[from];
        self.filled &= !(1 << from);
        self.floor = bucket.least;
        if bucket.items.len() <= FEW {
            bucket.items.iter().for_each(|item| soon(item.slot));
            let front = self.front.tidy();
            if front.is_empty() {
                std::mem::swap(front, &mut bucket.items);
            } else {
                front.append(&mut bucket.items);
            }
            front.sort_by_key(|item| item.threshold);
            return;
        }
        if bucket.sorted && self.run.items.is_empty() {
            std::mem::swap(&mut self.run.items, &mut bucket.items);
            return;
        }
        let mut items = std::mem::take(&mut bucket.items);
        let mut first = Vec::new();
        for item in items.drain(..) {
            if item.threshold == self.floor { first.push(item) } else { self.put(item) }
        }
        self.front.tidy().splice(..0, first);
        self.buckets[from].items = items; // Its memory is reused.
    }

    /// Returns the lowest threshold in the buckets.
    #[inline]
    fn least(&self) -> Option<u64> {
        (self.filled != 0).then(|| self.buckets[self.filled.trailing_zeros() as usize].least)
    }

    /// Returns the lowest threshold.
    #[inline]
    pub(crate) fn next(&self) -> Option<u64> {
        if self.len == 0 {
            return None;
        }
        let below = self.below.peek().map_or(u64::MAX, |Reverse((threshold, ..))| *threshold);
        let [front, run] = [&self.front, &self.run].map(|line| line.first().map_or(u64::MAX, |item| item.threshold));
        Some(below.min(front).min(run).min(self.least().unwrap_or(u64::MAX)))
    }

    /// Returns the first item without removing it.
    #[cold]
    pub(crate) fn first(&mut self) -> Option<HeapItem> {
        let least = self.next()?;
        loop {
            let lines = [&self.front, &self.run].map(|line| line.first().filter(|item| item.threshold == least));
            let first = match lines {
                [Some(front), Some(run)] => Some(if front.was_queued_before(run) { front } else { run }),
                [front, run] => front.or(run),
            };
            if let Some(first) = first.or_else(|| self.below.peek().map(|Reverse((.., item))| item)) {
                return Some(*first);
            }
            self.split_bucket(|_| ());
        }
    }

    /// Removes the first item if its threshold is at most `reached`. Passes the slots of other items that will be
    /// removed soon to `soon`.
    #[inline]
    pub(crate) fn pop(&mut self, reached: u64, soon: impl Fn(u32)) -> Option<HeapItem> {
        let least = self.next().filter(|least| *least <= reached)?;
        self.len -= 1;
        loop {
            let is_least = |item: &HeapItem| item.threshold == least;
            let front = self.front.first().copied().filter(is_least);
            let run = self.run.first().copied().filter(is_least);
            match (front, run) {
                (Some(item), run) if run.is_none_or(|run| item.was_queued_before(&run)) => {
                    return Some(self.front.take(item));
                }
                (_, Some(item)) => {
                    let next = self.run.items.get(self.run.taken + AHEAD);
                    next.into_iter().for_each(|next| soon(next.slot));
                    return Some(self.run.take(item));
                }
                _ => {}
            }
            // The items in `below` are at most at the floor, so they are below the buckets.
            if let Some(Reverse((.., item))) = self.below.pop() {
                return Some(item);
            }
            self.split_bucket(&soon);
        }
    }

    /// Removes the items for which `keep` returns false.
    pub(crate) fn retain(&mut self, keep: impl Fn(&HeapItem) -> bool) {
        self.front.tidy().retain(&keep);
        self.run.tidy().retain(&keep);
        self.below.retain(|Reverse((.., item))| keep(item));
        self.filled = 0;
        self.len = self.front.len() + self.run.len() + self.below.len();
        for (number, bucket) in self.buckets.iter_mut().enumerate() {
            bucket.items.retain(&keep);
            if let Some(least) = bucket.items.iter().map(|item| item.threshold).min() {
                bucket.least = least;
                self.filled |= 1 << number;
                self.len += bucket.items.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Push(u64),
        /// A number of pushes, each with a threshold that is higher than the previous one by the same step.
        PushUpward(u64, u8, u64),
        /// Raises the reached value, and pops.
        Pop(u64),
        /// Sets the reached value, possibly to a lower one.
        Set(u64),
        /// Removes the items with this remainder modulo 5.
        Remove(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        let number = prop_oneof![0_u64..20, 0_u64..2000, any::<u64>(), 0_u64..3];
        prop_oneof![
            4 => number.clone().prop_map(Step::Push),
            2 => (0_u64..2000, any::<u8>(), 0_u64..3).prop_map(|(first, count, by)| Step::PushUpward(first, count, by)),
            4 => (0_u64..40).prop_map(Step::Pop),
            1 => number.prop_map(Step::Set),
            1 => (0_u32..5).prop_map(Step::Remove),
        ]
    }

    proptest! {
        /// Requirements: TRIG-009, TRIG-011.
        #[test]
        fn items_are_popped_by_threshold_then_in_order(
            steps in prop::collection::vec(step(), 1..400),
            looks: bool,
        ) {
            let mut heap = Heap::default();
            let mut model = BTreeMap::new();
            let mut reached = 0_u64;
            const FIRST: u32 = u32::MAX - 1000; // Stamps wrap around.
            let mut number = FIRST;
            for step in steps {
                match step {
                    Step::Push(first) | Step::PushUpward(first, ..) => {
                        let (count, by) = if let Step::PushUpward(_, count, by) = step { (count, by) } else { (1, 0) };
                        for at in 0..u64::from(count) {
                            let (threshold, order) = (first.saturating_add(at * by), number.wrapping_sub(FIRST));
                            heap.push(HeapItem { threshold, slot: order, stamp: number });
                            model.insert((threshold, order), ());
                            number = number.wrapping_add(1);
                        }
                    }
                    Step::Pop(more) => {
                        reached = reached.saturating_add(more);
                        let first = model.keys().next().copied().filter(|(threshold, _)| *threshold <= reached);
                        prop_assert_eq!(heap.pop(reached, |_| ()).map(|item| (item.threshold, item.slot)), first);
                        first.map(|first| model.remove(&first));
                    }
                    Step::Set(value) => reached = value,
                    Step::Remove(remainder) => {
                        heap.retain(|item| item.slot % 5 != remainder);
                        model.retain(|(_, number), ()| number % 5 != remainder);
                    }
                }
                prop_assert_eq!(heap.len(), model.len());
                prop_assert_eq!(heap.next(), model.keys().next().map(|first| first.0));
                if looks {
                    let first = heap.first().map(|item| (item.threshold, item.slot));
                    prop_assert_eq!(first, model.keys().next().copied());
                }
            }
        }
    }

    #[test]
    fn extreme_thresholds_are_ordered() {
        let mut heap = Heap::default();
        for threshold in [u64::MAX, 0, u64::MAX, 1] {
            heap.push(HeapItem { threshold, slot: 0, stamp: 0 });
        }
        let order: Vec<_> = std::iter::from_fn(|| heap.pop(u64::MAX, |_| ())).map(|item| item.threshold).collect();
        assert_eq!(order, [0, 1, u64::MAX, u64::MAX]);
    }
}

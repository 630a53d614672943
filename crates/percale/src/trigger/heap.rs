//! An ordered queue for thresholds: a radix heap.
//!
//! What waits for a counter leaves in the order of thresholds, and counters mostly rise: no threshold that comes lies below
//! one that has left. For that case a radix heap needs no comparisons: an item lies in the bucket that is named by the
//! highest bit in which its threshold differs from [`floor`](Heap::floor), the last one that left. To pop, the lowest bucket
//! that is not empty is dealt out anew over those below it. An item moves down at most 64 times, mostly a few, and each
//! move is one of many in a row; pushing is one store. (R. Ahuja et al., "Faster algorithms for the shortest path
//! problem", 1990, section 4.)
//!
//! Equal thresholds stay in order: they are always in one bucket, and dealing out keeps its order.
//!
//! A counter that was set back may get thresholds below the floor. Then everything is dealt out once from floor 0, where none
//! lies below.

/// Bucket 0 has what equals the floor; bucket n what differs from it in bit n - 1 first.
const BUCKETS: usize = 65;

/// What is ordered: an item's threshold and how the owner finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) threshold: u64,
    pub(crate) slot: u32,
    pub(crate) stamp: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Heap {
    floor: u64,
    /// The buckets that are not empty, a bit each.
    filled: u128,
    buckets: [Bucket; BUCKETS],
    /// Items of bucket 0 that have left.
    taken: usize,
    len: usize,
}

#[derive(Debug)]
struct Bucket {
    items: Vec<Item>,
    /// Of its items; of no meaning if there are none.
    least: u64,
}

impl Default for Heap {
    fn default() -> Self {
        let buckets = [const { Bucket { items: Vec::new(), least: u64::MAX } }; BUCKETS];
        Self { floor: 0, filled: 0, buckets, taken: 0, len: 0 }
    }
}

impl Heap {
    /// Items.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Adds an item behind those of its threshold.
    pub(crate) fn push(&mut self, item: Item) {
        if item.threshold < self.floor {
            self.restart();
        }
        self.put(item);
        self.len += 1;
    }

    #[inline]
    fn put(&mut self, item: Item) {
        let number = (u64::BITS - (item.threshold ^ self.floor).leading_zeros()) as usize;
        let bucket = &mut self.buckets[number];
        bucket.least = if bucket.items.is_empty() { item.threshold } else { bucket.least.min(item.threshold) };
        bucket.items.push(item);
        self.filled |= 1 << number;
    }

    /// Forgets what has left bucket 0.
    fn trim(&mut self) {
        self.buckets[0].items.drain(..std::mem::take(&mut self.taken));
        if self.buckets[0].items.is_empty() {
            self.filled &= !1;
        }
    }

    /// Deals everything out from floor 0.
    #[cold]
    fn restart(&mut self) {
        self.trim();
        self.floor = 0;
        for from in 0..BUCKETS {
            self.deal(from);
        }
    }

    /// Deals one bucket out anew. What stays in it stays in order, and in front of what comes.
    fn deal(&mut self, from: usize) {
        let mut items = std::mem::take(&mut self.buckets[from].items);
        self.filled &= !(1 << from);
        items.drain(..).for_each(|item| self.put(item));
        if self.buckets[from].items.capacity() == 0 {
            self.buckets[from].items = items; // Its memory serves again.
        }
    }

    /// The least threshold.
    #[inline]
    pub(crate) fn next(&self) -> Option<u64> {
        (self.filled != 0).then(|| self.buckets[self.filled.trailing_zeros() as usize].least)
    }

    /// Takes the first item, if its threshold is at most `reached`.
    #[inline]
    pub(crate) fn pop(&mut self, reached: u64) -> Option<Item> {
        let least = self.next().filter(|least| *least <= reached)?;
        if self.filled & 1 == 0 {
            self.floor = least;
            self.deal(self.filled.trailing_zeros() as usize);
        }
        let first = &mut self.buckets[0].items;
        let item = first[self.taken];
        self.taken += 1;
        self.len -= 1;
        if self.taken == first.len() {
            first.clear();
            self.taken = 0;
            self.filled &= !1;
        }
        Some(item)
    }

    /// Removes items.
    pub(crate) fn retain(&mut self, keep: impl Fn(&Item) -> bool) {
        self.trim();
        (self.filled, self.len) = (0, 0);
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
        /// Raises what is reached, and pops.
        Pop(u64),
        /// Sets what is reached, back perhaps.
        Set(u64),
        /// Removes what has this remainder by 5.
        Remove(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        let number = prop_oneof![0_u64..20, 0_u64..2000, any::<u64>()];
        prop_oneof![
            4 => number.clone().prop_map(Step::Push),
            4 => (0_u64..40).prop_map(Step::Pop),
            1 => number.prop_map(Step::Set),
            1 => (0_u32..5).prop_map(Step::Remove),
        ]
    }

    proptest! {
        #[test]
        fn trig_009_trig_011_items_leave_by_threshold_and_then_in_order(steps in prop::collection::vec(step(), 1..400)) {
            let mut heap = Heap::default();
            let mut model = BTreeMap::new();
            let mut reached = 0_u64;
            for (number, step) in steps.into_iter().enumerate() {
                let number = number as u32;
                match step {
                    Step::Push(threshold) => {
                        heap.push(Item { threshold, slot: number, stamp: 0 });
                        model.insert((threshold, number), ());
                    }
                    Step::Pop(more) => {
                        reached = reached.saturating_add(more);
                        let first = model.keys().next().copied().filter(|(threshold, _)| *threshold <= reached);
                        prop_assert_eq!(heap.pop(reached).map(|item| (item.threshold, item.slot)), first);
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
            }
        }
    }

    #[test]
    fn thresholds_at_the_ends_of_the_numbers() {
        let mut heap = Heap::default();
        for threshold in [u64::MAX, 0, u64::MAX, 1] {
            heap.push(Item { threshold, slot: 0, stamp: 0 });
        }
        let order: Vec<_> = std::iter::from_fn(|| heap.pop(u64::MAX)).map(|item| item.threshold).collect();
        assert_eq!(order, [0, 1, u64::MAX, u64::MAX]);
    }
}

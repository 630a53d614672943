//! The work that waits for a counter.

use std::cmp::Reverse;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

use slab::Slab;

use super::due::Due;
use super::fire::drop_all;
use super::heap::{Heap, HeapItem};

/// The condition that a counter has to meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// This many successes: triggered operations (fi_trigger(3), FI_TRIGGER_THRESHOLD).
    Successes(u64),
    /// This many successes and errors: deferred work (fi_trigger(3), fi_deferred_work).
    Ends(u64),
}

/// The identifier of waiting work. It is valid until the work is due or canceled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WaitId {
    /// The line's id. Another counter may be created at the address of a former one.
    line: u64,
    slot: u32,
    stamp: u32,
}

impl WaitId {
    pub(crate) const fn to_words(self) -> [u64; 2] {
        [self.line, (self.slot as u64) << 32 | self.stamp as u64]
    }

    pub(crate) const fn from_words([line, entry]: [u64; 2]) -> Self {
        Self { line, slot: (entry >> 32) as u32, stamp: entry as u32 }
    }
}

#[derive(Debug)]
struct WaitingEntry {
    /// The number of the work in the sequence of all work that was queued here, modulo 2^32.
    stamp: u32,
    /// The domain that queued the work; `None` if an endpoint's owner posted it.
    owner: Option<NonZeroU32>,
    due: Due,
}

/// An entry is at most half a cache line, because a million entries may wait.
const _: () = assert!(size_of::<WaitingEntry>() <= 32);

/// All work that waits for a counter, in order of (threshold, submission). Canceled work leaves its item in the heap
/// until that item is popped, or until a cancellation finds that such items outnumber those of waiting work by more
/// than 64.
#[derive(Debug)]
pub(crate) struct WaitQueue {
    /// A number that differs from the id of every other line.
    id: u64,
    successes: Heap,
    ends: Heap,
    entries: Slab<WaitingEntry>,
    /// The owner of the work that was queued last.
    last: Option<NonZeroU32>,
    /// The next stamp. Stamps distinguish entries of one slot and determine their order.
    stamp: u32,
}

impl Default for WaitQueue {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { id, successes: Heap::default(), ends: Heap::default(), entries: Slab::new(), last: None, stamp: 0 }
    }
}

impl Drop for WaitQueue {
    fn drop(&mut self) {
        if !self.entries.is_empty() {
            drop_all(self.entries.drain().map(|entry| entry.due).collect());
        }
    }
}

impl WaitQueue {
    /// Queues work. Also returns whether the previously queued work had the same owner and some work still waits. If
    /// so, the owner already has a record of this line.
    pub(crate) fn push(&mut self, condition: Condition, owner: Option<NonZeroU32>, due: Due) -> (WaitId, bool) {
        let known = std::mem::replace(&mut self.last, owner) == owner && !self.entries.is_empty();
        let stamp = self.stamp;
        self.stamp = stamp.wrapping_add(1);
        let slot = self.entries.insert(WaitingEntry { stamp, owner, due }) as u32;
        match condition {
            Condition::Successes(threshold) => self.successes.push(HeapItem { threshold, slot, stamp }),
            Condition::Ends(threshold) => self.ends.push(HeapItem { threshold, slot, stamp }),
        }
        (WaitId { line: self.id, slot, stamp }, known)
    }

    /// Returns a lower bound of the thresholds for which work waits, or `u64::MAX` if no work waits.
    pub(crate) fn next(&self) -> u64 {
        let next = |heap: &Heap| heap.next().unwrap_or(u64::MAX);
        next(&self.successes).min(next(&self.ends))
    }

    /// Returns whether no work waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of items, including those of canceled work.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn items(&self) -> usize {
        self.successes.len() + self.ends.len()
    }

    /// Takes the first work in the line if the counter has reached its threshold.
    pub(crate) fn pop(&mut self, successes: u64, ends: u64) -> Option<Due> {
        loop {
            let (first, second) = (self.successes.next(), self.ends.next());
            let first = first.filter(|threshold| *threshold <= successes);
            let second = second.filter(|threshold| *threshold <= ends);
            // Entries are stored apart from the items that order them, so several are loaded into the cache ahead of
            // time.
            let entries = &self.entries;
            let soon = |slot: u32| _ = black_box(entries.get(slot as usize).map(|entry| entry.stamp));
            let item = match (first, second) {
                (Some(first), Some(second)) if second < first => self.ends.pop(ends, soon),
                (Some(first), Some(second)) if second == first && comes_first(&mut self.ends, &mut self.successes) => {
                    self.ends.pop(ends, soon)
                }
                (Some(_), _) => self.successes.pop(successes, soon),
                (None, _) => self.ends.pop(ends, soon),
            }?;
            // If the stamps differ, the work was canceled.
            if self.entries.get(item.slot as usize).is_some_and(|entry| entry.stamp == item.stamp) {
                return Some(self.entries.remove(item.slot as usize).due);
            }
        }
    }

    /// Cancels work. Returns `None` if it is due already or was canceled.
    pub(crate) fn cancel(&mut self, ticket: WaitId, owner: Option<NonZeroU32>) -> Option<Due> {
        let slot = ticket.slot as usize;
        let live =
            |entry: &&WaitingEntry| entry.stamp == ticket.stamp && entry.owner == owner && ticket.line == self.id;
        self.entries.get(slot).filter(live)?;
        let due = self.entries.remove(slot).due;
        self.sweep();
        Some(due)
    }

    /// Cancels all work that `wanted` accepts, in the order in which it was queued.
    pub(crate) fn cancel_all(&mut self, mut wanted: impl FnMut(Option<NonZeroU32>, &Due) -> bool) -> Vec<Due> {
        let slots: Vec<_> =
            self.entries.iter().filter(|(_, entry)| wanted(entry.owner, &entry.due)).map(|(slot, _)| slot).collect();
        let mut entries: Vec<_> = slots.into_iter().map(|slot| self.entries.remove(slot)).collect();
        entries.sort_by_key(|entry| Reverse(self.age(entry)));
        self.sweep();
        entries.into_iter().map(|entry| entry.due).collect()
    }

    /// Cancels the first work that `wanted` accepts, in the order in which it was queued.
    pub(crate) fn cancel_first(&mut self, mut wanted: impl FnMut(&Due) -> bool) -> Option<Due> {
        let found = self.entries.iter().filter(|(_, entry)| wanted(&entry.due));
        let slot = found.max_by_key(|(_, entry)| self.age(entry))?.0;
        let due = self.entries.remove(slot).due;
        self.sweep();
        Some(due)
    }

    /// Returns the number of entries that were queued since this one, including this one.
    const fn age(&self, entry: &WaitingEntry) -> u32 {
        self.stamp.wrapping_sub(entry.stamp)
    }

    /// Removes the items of canceled work, if they outnumber those of waiting work by more than 64.
    fn sweep(&mut self) {
        if self.successes.len() + self.ends.len() > 2 * self.entries.len() + 64 {
            let live =
                |item: &HeapItem| self.entries.get(item.slot as usize).is_some_and(|entry| entry.stamp == item.stamp);
            self.successes.retain(live);
            self.ends.retain(live);
        }
    }
}

/// Returns whether the first item of one heap was queued before the first item of the other.
#[cold]
fn comes_first(one: &mut Heap, other: &mut Heap) -> bool {
    match (one.first(), other.first()) {
        (Some(one), Some(other)) => one.was_queued_before(&other),
        (one, _) => one.is_some(),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::completion::counter::Counter;

    #[test]
    fn repeated_queue_and_cancel_uses_bounded_memory() {
        let mut waiting = WaitQueue::default();
        for threshold in 0..100_000_u64 {
            let due = Due::Add(Counter::new(), 1);
            let (ticket, _) = waiting.push(Condition::Ends(1000 + threshold), None, due);
            assert!(waiting.cancel(ticket, None).is_some());
        }
        assert!(waiting.is_empty() && waiting.items() < 200, "{} items", waiting.items());
    }

    fn add(number: u64) -> Due {
        Due::Add(Counter::new(), number)
    }

    fn number(due: Option<Due>) -> Option<u64> {
        due.map(|due| match due {
            Due::Add(_, number) => number,
            other => unreachable!("{other:?} was not queued"),
        })
    }

    /// Work of two counters may have the same slot and the same stamp.
    #[test]
    fn identifier_cancels_no_work_of_another_counter() {
        let [mut one, mut other] = [WaitQueue::default(), WaitQueue::default()];
        let (of_one, _) = one.push(Condition::Ends(1), None, add(1));
        let (of_other, _) = other.push(Condition::Ends(1), None, add(2));
        assert_eq!((of_one.slot, of_one.stamp), (of_other.slot, of_other.stamp));
        assert!(one.cancel(of_other, None).is_none() && other.cancel(of_one, None).is_none());
        assert_eq!((number(one.cancel(of_one, None)), number(other.cancel(of_other, None))), (Some(1), Some(2)));
    }

    #[test]
    fn work_is_cancelled_in_the_order_in_which_it_was_queued() {
        let mut waiting = WaitQueue::default();
        let (first, _) = waiting.push(Condition::Ends(9), None, add(0));
        waiting.push(Condition::Ends(3), None, add(1));
        waiting.push(Condition::Successes(2), None, add(2));
        assert_eq!(number(waiting.cancel(first, None)), Some(0));
        // It takes the slot of the first work.
        waiting.push(Condition::Ends(1), None, add(3));
        for expected in [Some(1), Some(2), Some(3), None] {
            assert_eq!(number(waiting.cancel_first(|_| true)), expected);
        }
    }

    proptest::proptest! {
        /// Work that waits for successes, and work that waits for successes and errors, is taken in one common order.
        ///
        /// Requirements: TRIG-009.
        #[test]
        fn work_starts_by_threshold_then_in_order_for_both_conditions(
            steps in proptest::collection::vec((0_u8..6, 0_u64..12), 1..200),
        ) {
            let mut waiting = WaitQueue::default();
            let mut model: Vec<(u64, u64, bool)> = Vec::new();
            let (mut successes, mut errors, count) = (0, 0, Counter::new());
            for (number, (step, value)) in steps.into_iter().enumerate() {
                match step {
                    0..4 => {
                        let ends = step % 2 == 0;
                        let condition = if ends { Condition::Ends(value) } else { Condition::Successes(value) };
                        waiting.push(condition, None, Due::Add(count.clone(), number as u64));
                        model.push((value, number as u64, ends));
                    }
                    4 => successes += value / 6,
                    _ => errors += value / 6,
                }
                model.sort_unstable();
                while let Some(due) = waiting.pop(successes, successes + errors) {
                    let Due::Add(_, begun) = due else { unreachable!() };
                    let is_due = |(threshold, _, ends): &(u64, u64, bool)| {
                        *threshold <= if *ends { successes + errors } else { successes }
                    };
                    let first = model.iter().position(is_due).map(|at| model.remove(at).1);
                    proptest::prop_assert_eq!(Some(begun), first);
                    if step % 2 == 0 {
                        break; // In half of the steps, other calls come before the next `pop`.
                    }
                }
            }
        }
    }
}

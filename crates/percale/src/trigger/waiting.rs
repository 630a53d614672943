//! What waits for one counter.

use std::cmp::Reverse;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use slab::Slab;

use super::fire::drop_all;
use super::heap::{Heap, Item};
use super::submissions::{Submissions, Transfer};
use crate::completion::counter::Counter;

/// What a counter has to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// So many successes: triggered operations (fi_trigger(3), FI_TRIGGER_THRESHOLD).
    Successes(u64),
    /// So many successes and errors: deferred work (fi_trigger(3), fi_deferred_work).
    Ends(u64),
}

/// What is done once that is reached.
#[derive(Debug)]
pub(crate) enum Due {
    /// Adds to a counter.
    Add(Counter, u64),
    /// Sets a counter's value.
    Set(Counter, u64),
    /// Begins an operation of an endpoint.
    Transfer(Arc<Submissions>, Box<Transfer>),
}

/// Names something that waits, until it is due or taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ticket {
    /// Of which line: another counter may come to lie where one was.
    line: u64,
    slot: u32,
    stamp: u32,
}

impl Ticket {
    pub(super) const fn to_words(self) -> [u64; 2] {
        [self.line, (self.slot as u64) << 32 | self.stamp as u64]
    }

    pub(super) const fn from_words([line, entry]: [u64; 2]) -> Self {
        Self { line, slot: (entry >> 32) as u32, stamp: entry as u32 }
    }
}

#[derive(Debug)]
struct Entry {
    /// Its place among all that was ever queued here, modulo 2^32.
    stamp: u32,
    /// The domain whose work it is; `None` if an endpoint's owner posted it.
    owner: Option<NonZeroU32>,
    due: Due,
}

/// Half a cache line: a million of them wait at times.
const _: () = assert!(size_of::<Entry>() <= 32);

/// Everything that waits for a counter, in order of (threshold, submission). What is taken back leaves its item in the heap
/// until that is popped, or until there are more such items than others.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Unlike that of any other line.
    id: u64,
    successes: Heap,
    ends: Heap,
    entries: Slab<Entry>,
    /// The owner of what was queued last.
    last: Option<NonZeroU32>,
    /// The next stamp. Stamps tell entries of one slot apart, and which came first.
    stamp: u32,
}

impl Default for Waiting {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { id, successes: Heap::default(), ends: Heap::default(), entries: Slab::new(), last: None, stamp: 0 }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.entries.is_empty() {
            drop_all(self.entries.drain().map(|entry| entry.due).collect());
        }
    }
}

impl Waiting {
    /// Puts it in line. Says too whether the one before was of the same owner, and some wait still: then that owner knows this line.
    pub(crate) fn push(&mut self, condition: Condition, owner: Option<NonZeroU32>, due: Due) -> (Ticket, bool) {
        let known = std::mem::replace(&mut self.last, owner) == owner && !self.entries.is_empty();
        let stamp = self.stamp;
        self.stamp = stamp.wrapping_add(1);
        let slot = self.entries.insert(Entry { stamp, owner, due }) as u32;
        match condition {
            Condition::Successes(threshold) => self.successes.push(Item { threshold, slot, stamp }),
            Condition::Ends(threshold) => self.ends.push(Item { threshold, slot, stamp }),
        }
        (Ticket { line: self.id, slot, stamp }, known)
    }

    /// A number that nothing waits below; `u64::MAX` also if nothing waits.
    pub(crate) fn next(&self) -> u64 {
        let next = |heap: &Heap| heap.next().unwrap_or(u64::MAX);
        next(&self.successes).min(next(&self.ends))
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Items, with those of what was taken back.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn items(&self) -> usize {
        self.successes.len() + self.ends.len()
    }

    /// Takes what is first in line, if the counter has reached that.
    pub(crate) fn pop(&mut self, successes: u64, ends: u64) -> Option<Due> {
        loop {
            let (first, second) = (self.successes.next(), self.ends.next());
            let first = first.filter(|threshold| *threshold <= successes);
            let second = second.filter(|threshold| *threshold <= ends);
            // Entries lie apart from the items that order them: several are brought near at a time.
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
            // Else it was taken back.
            if self.entries.get(item.slot as usize).is_some_and(|entry| entry.stamp == item.stamp) {
                return Some(self.entries.remove(item.slot as usize).due);
            }
        }
    }

    /// Takes something back; `None` if it is due already, or was taken back.
    pub(crate) fn cancel(&mut self, ticket: Ticket, owner: Option<NonZeroU32>) -> Option<Due> {
        let slot = ticket.slot as usize;
        let live = |entry: &&Entry| entry.stamp == ticket.stamp && entry.owner == owner && ticket.line == self.id;
        self.entries.get(slot).filter(live)?;
        let due = self.entries.remove(slot).due;
        self.sweep();
        Some(due)
    }

    /// Takes back all that `wanted` says, in the order in which it was queued.
    pub(crate) fn cancel_all(&mut self, mut wanted: impl FnMut(Option<NonZeroU32>, &Due) -> bool) -> Vec<Due> {
        let slots: Vec<_> =
            self.entries.iter().filter(|(_, entry)| wanted(entry.owner, &entry.due)).map(|(slot, _)| slot).collect();
        let mut entries: Vec<_> = slots.into_iter().map(|slot| self.entries.remove(slot)).collect();
        entries.sort_by_key(|entry| Reverse(self.age(entry)));
        self.sweep();
        entries.into_iter().map(|entry| entry.due).collect()
    }

    /// Takes back the first that `wanted` says, in the order in which it was queued.
    pub(crate) fn cancel_first(&mut self, mut wanted: impl FnMut(&Due) -> bool) -> Option<Due> {
        let found = self.entries.iter().filter(|(_, entry)| wanted(&entry.due));
        let slot = found.max_by_key(|(_, entry)| self.age(entry))?.0;
        let due = self.entries.remove(slot).due;
        self.sweep();
        Some(due)
    }

    /// How many were queued since.
    const fn age(&self, entry: &Entry) -> u32 {
        self.stamp.wrapping_sub(entry.stamp)
    }

    /// Forgets the items of what was taken back, once they are the greater part.
    fn sweep(&mut self) {
        if self.successes.len() + self.ends.len() > 2 * self.entries.len() + 64 {
            let live =
                |item: &Item| self.entries.get(item.slot as usize).is_some_and(|entry| entry.stamp == item.stamp);
            self.successes.retain(live);
            self.ends.retain(live);
        }
    }
}

/// Whether the first item of one heap came before the first one of the other.
#[cold]
fn comes_first(one: &mut Heap, other: &mut Heap) -> bool {
    match (one.first(), other.first()) {
        (Some(one), Some(other)) => one.came_before(&other),
        (one, _) => one.is_some(),
    }
}

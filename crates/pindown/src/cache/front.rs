//! The hits' table: from the page of an address to the number of an entry, without a lock.
//!
//! It is only a hint. Whoever follows it checks the entry in full ([`super::entry::Entry::serves`]), so a slot may be
//! overwritten by anybody, point to an entry that is no longer valid, or to one that means something else by now; nothing
//! has to be cleared when a registration goes. A line holds eight slots: the one that the hash names is tried first.

use crate::sync::{AtomicU64, Ordering};

/// Slots of a cache line.
const WAYS: usize = 8;

/// Slots of the largest table: 8 MiB.
const MOST_SLOTS: usize = 1 << 20;

/// log2 of the bytes of the smallest page: what the slots are told apart by.
const PAGE_SHIFT: u32 = 12;

#[derive(Debug)]
#[repr(align(64))]
struct Line([AtomicU64; WAYS]);

/// The table. A slot holds the tag of an address in its upper half and the number of an entry, plus one, in its lower.
#[derive(Debug)]
pub(crate) struct Front {
    lines: Box<[Line]>,
}

/// Where an address is looked for.
#[derive(Clone, Copy, Debug)]
struct Place {
    line: usize,
    way: usize,
    tag: u64,
}

impl Front {
    /// Room for so many entries at a quarter full, so that hardly any line overflows.
    pub(crate) fn new(entries: usize) -> Self {
        let slots = entries.saturating_mul(4).clamp(64, MOST_SLOTS).next_power_of_two();
        let empty = |_| Line(std::array::from_fn(|_| AtomicU64::new(0)));
        Self { lines: (0..slots / WAYS).map(empty).collect() }
    }

    #[inline]
    fn place(&self, address: u64) -> Place {
        // 2^64 divided by the golden ratio: neighbouring pages spread well, and nobody gains by choosing addresses.
        let hash = (address >> PAGE_SHIFT).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let line = (hash >> 40) as usize & (self.lines.len() - 1);
        Place { line, way: (hash >> 37) as usize % WAYS, tag: hash & 0xffff_ffff_0000_0000 | (hash & 0xffff) << 32 }
    }

    /// The first entry found for this address that `serves`.
    #[inline]
    pub(crate) fn find(&self, address: u64, serves: impl Fn(u32) -> bool) -> Option<u32> {
        let place = self.place(address);
        let line = &self.lines[place.line].0;
        // The slot of the hash first, then the others in turn.
        for step in 0..WAYS {
            let slot = line[(place.way + step) % WAYS].load(Ordering::Acquire);
            if slot & TAG == place.tag & TAG && slot & NUMBER != 0 {
                let number = (slot & NUMBER) as u32 - 1;
                if serves(number) {
                    return Some(number);
                }
            }
        }
        None
    }

    /// From now on this address is looked for at this entry. `useless` says which of the slots may be overwritten.
    pub(crate) fn put(&self, address: u64, number: u32, useless: impl Fn(u32) -> bool) {
        let place = self.place(address);
        let line = &self.lines[place.line].0;
        let slots = (0..WAYS).map(|step| &line[(place.way + step) % WAYS]);
        let free = slots.clone().find(|slot| {
            let slot = slot.load(Ordering::Relaxed);
            slot & NUMBER == 0 || useless((slot & NUMBER) as u32 - 1)
        });
        // All eight serve others: the hash's own goes.
        let slot = free.unwrap_or(&line[place.way]);
        slot.store(place.tag & TAG | (u64::from(number) + 1), Ordering::Release);
    }
}

const TAG: u64 = 0xffff_ffff_0000_0000;
const NUMBER: u64 = 0xffff_ffff;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_is_found_again_until_its_line_is_full() {
        let front = Front::new(4096);
        for n in 0..4096_u32 {
            front.put(u64::from(n) * 0x5000 + 0x7f00_0000_0000, n, |_| false);
        }
        let found = |n: u32| front.find(u64::from(n) * 0x5000 + 0x7f00_0000_0fff, |number| number == n);
        let lost = (0..4096_u32).filter(|n| found(*n).is_none()).count();
        assert!(lost < 4096 / 100, "{lost} of 4096 fell out of their lines");
        assert_eq!(front.find(0x1000, |_| true), None);
    }

    #[test]
    fn several_entries_of_one_page_are_kept_apart_by_what_they_serve() {
        let front = Front::new(64);
        for number in 0..8 {
            front.put(0x10_0000, number, |_| false);
        }
        for number in 0..8 {
            assert_eq!(front.find(0x10_0fff, |found| found == number), Some(number));
        }
        front.put(0x10_0000, 8, |old| old == 5);
        assert_eq!(front.find(0x10_0000, |found| found == 5), None, "the useless one went");
        assert_eq!(front.find(0x10_0000, |found| found == 8), Some(8));
    }
}

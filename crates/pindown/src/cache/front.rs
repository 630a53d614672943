//! The hits' table: from the page of an address to the number of an entry, without a lock.
//!
//! It is only a hint. Whoever follows it checks the entry in full ([`super::entry::Entry::serves`]), so a slot may be
//! overwritten by anybody, point to an entry that is no longer valid, or to one that means something else by now; nothing
//! has to be cleared when a registration goes. A line is sixteen slots, of which the hash names one: nearly every
//! entry is there, since the table is sparse, and the others are looked at apart. Slots are small, and hold no part of the
//! address, so that large tables do not outgrow what the processor translates without a walk.

use std::io;

use super::entry::PAGE_SHIFT;
use crate::sync::{AtomicU32, Ordering};

/// Slots of a line: so many as a cache line has.
const WAYS: usize = 16;

/// Slots of the largest table: 16 MiB.
const MOST_SLOTS: usize = 1 << 22;

/// The table. A slot holds the number of an entry, plus one.
#[derive(Debug)]
pub(crate) struct Front {
    slots: Box<[AtomicU32]>,
    /// What of a hash is not the number of a slot.
    shift: u32,
}

impl Front {
    /// Room for so many entries: sixteen slots each, a cache line. Two entries at one slot cost whoever looks up the
    /// second of them as much as ten look-ups, for the processor has guessed otherwise; three in a hundred are such.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn new(entries: u32) -> io::Result<Self> {
        let slots = (entries as usize * 16).clamp(64, MOST_SLOTS).next_power_of_two();
        let shift = 64 - slots.ilog2();
        #[cfg(not(loom))]
        let slots = <[AtomicU32] as zerocopy::FromZeros>::new_box_zeroed_with_elems(slots);
        #[cfg(loom)]
        let slots = Ok::<_, io::Error>((0..slots).map(|_| AtomicU32::new(0)).collect::<Box<[_]>>());
        let slots = slots.map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(Self { slots, shift })
    }

    /// The number of the slot where an address is looked for first.
    #[inline]
    fn place(&self, address: u64) -> usize {
        // 2^64 divided by the golden ratio: the upper bits of its multiples keep apart for addresses at any stride, and
        // nobody gains by choosing addresses.
        let hash = (address >> PAGE_SHIFT).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> self.shift) as usize
    }

    /// What the slot holds where this address is looked for first: the number of an entry plus one, or 0.
    #[inline]
    pub(crate) fn first(&self, address: u64) -> u32 {
        let slot = self.slots.get(self.place(address));
        slot.map_or(0, |slot| slot.load(Ordering::Acquire))
    }

    /// The slots of a line.
    fn line(&self, place: usize) -> &[AtomicU32] {
        let start = place / WAYS * WAYS;
        &self.slots[start..start + WAYS]
    }

    /// An entry of the address' line that `serves`.
    #[cold]
    pub(crate) fn find(&self, address: u64, serves: impl Fn(u32) -> bool) -> Option<u32> {
        let place = self.place(address);
        let line = self.line(place);
        nearest(place % WAYS).filter_map(|way| number(&line[way])).find(|number| serves(*number))
    }

    /// From now on this address is looked for at this entry. `useless` says which entries need no slot any more.
    pub(crate) fn put(&self, address: u64, entry: u32, useless: impl Fn(u32) -> bool) {
        let place = self.place(address);
        let (line, way) = (self.line(place), place % WAYS);
        let own = &line[way];
        let goes = |slot: &AtomicU32| number(slot).is_none_or(&useless);
        if !goes(own) {
            // The one before moves aside, if there is room.
            if let Some(free) = nearest(way).skip(1).map(|way| &line[way]).find(|slot| goes(slot)) {
                free.store(own.load(Ordering::Relaxed), Ordering::Release);
            }
        }
        own.store(entry + 1, Ordering::Release);
    }
}

/// The ways of a line, this one first: in which order what moved aside is looked for, so that few others are looked at.
fn nearest(way: usize) -> impl Iterator<Item = usize> {
    (0..WAYS).map(move |step| way ^ step)
}

/// The entry that a slot names.
#[inline]
fn number(slot: &AtomicU32) -> Option<u32> {
    slot.load(Ordering::Acquire).checked_sub(1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_is_found_again_until_its_line_is_full() {
        let front = Front::new(4096).expect("memory");
        for n in 0..4096_u32 {
            front.put(u64::from(n) * 0x5000 + 0x7f00_0000_0000, n, |_| false);
        }
        let found = |n: u32| front.find(u64::from(n) * 0x5000 + 0x7f00_0000_0fff, |number| number == n);
        let lost = (0..4096_u32).filter(|n| found(*n).is_none()).count();
        assert!(lost < 4096 / 100, "{lost} of 4096 fell out of their lines");
        assert_eq!(front.find(0x7f00_0000_1000, |number| number == 4096), None);
    }

    #[test]
    fn several_entries_of_one_page_are_kept_apart_by_what_they_serve() {
        let front = Front::new(64).expect("memory");
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

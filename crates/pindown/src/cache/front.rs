//! Maps a page to the place of an entry, without a lock, for entries that have no [copy](super::entries) for that page.
//!
//! The table is only a hint. A look-up that follows it checks the entry in full ([`super::entry::Entry::serves`]). So
//! any thread may overwrite a slot, and a slot may point to an entry that is no longer valid or that has been filled
//! with another registration; removing a registration does not clear its slot. A line is sixteen slots, and the hash
//! selects one of them. Nearly every entry is in its selected slot, because the table is sparse. The other slots of the
//! line are searched only if the selected slot does not contain a suitable entry. Slots are small, and contain no part
//! of the address, so that large tables do not exceed what the processor's TLB covers.

use std::io;

use super::entries::{EntryPosition, hash};
use crate::sync::{AtomicBool, AtomicU32, Ordering};

/// The number of slots of a line: as many as fit in a cache line.
const WAYS: usize = 16;

/// The number of slots of the largest table: 16 MiB.
const MOST_SLOTS: usize = 1 << 22;

/// The table. A slot holds the place of an entry, plus one.
#[derive(Debug)]
pub(crate) struct Front {
    slots: Box<[AtomicU32]>,
    /// The number of bits by which a hash is shifted right to give the number of a slot.
    shift: u32,
    /// Whether the table has ever been written. Usually it has not, and then a miss does not search it.
    is_used: AtomicBool,
}

impl Front {
    /// Allocates a table for this number of entries, with sixteen slots (a cache line) for each.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(crate) fn new(entries: u32) -> io::Result<Self> {
        let slots = (entries as usize * 16).clamp(64, MOST_SLOTS).next_power_of_two();
        let shift = 64 - slots.ilog2();
        #[cfg(not(loom))]
        let slots = <[AtomicU32] as zerocopy::FromZeros>::new_box_zeroed_with_elems(slots);
        #[cfg(loom)]
        let slots = Ok::<_, io::Error>((0..slots).map(|_| AtomicU32::new(0)).collect::<Box<[_]>>());
        let slots = slots.map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(Self { slots, shift, is_used: AtomicBool::new(false) })
    }

    /// Returns the number of the first slot for an address.
    #[inline]
    fn slot(&self, address: u64) -> usize {
        (hash(address) >> self.shift) as usize
    }

    /// Returns the slots of the line that contains this slot.
    fn line(&self, slot: usize) -> &[AtomicU32] {
        let start = slot / WAYS * WAYS;
        &self.slots[start..start + WAYS]
    }

    /// Returns an entry of the address's line for which `serves` returns true.
    #[inline]
    pub(crate) fn find(&self, address: u64, serves: impl Fn(EntryPosition) -> bool) -> Option<EntryPosition> {
        if self.is_used.load(Ordering::Relaxed) { self.find_used(address, serves) } else { None }
    }

    #[cold]
    fn find_used(&self, address: u64, serves: impl Fn(EntryPosition) -> bool) -> Option<EntryPosition> {
        let slot = self.slot(address);
        let line = self.line(slot);
        nearest(slot % WAYS).filter_map(|way| place(&line[way])).find(|place| serves(*place))
    }

    /// Inserts this entry for this address. `useless` returns whether an entry no longer needs a slot.
    pub(crate) fn put(&self, address: u64, entry: EntryPosition, useless: impl Fn(EntryPosition) -> bool) {
        let slot = self.slot(address);
        let (line, way) = (self.line(slot), slot % WAYS);
        let own = &line[way];
        let goes = |slot: &AtomicU32| place(slot).is_none_or(&useless);
        if !goes(own) {
            // The previous entry moves to another slot of the line, if one is free.
            if let Some(free) = nearest(way).skip(1).map(|way| &line[way]).find(|slot| goes(slot)) {
                free.store(own.load(Ordering::Relaxed), Ordering::Release);
            }
        }
        own.store(entry.to_u32() + 1, Ordering::Release);
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
    }
}

/// Returns the ways of a line, starting with this one. An entry is moved to the first free way in this order, so a
/// search in the same order finds it after few steps.
fn nearest(way: usize) -> impl Iterator<Item = usize> {
    (0..WAYS).map(move |step| way ^ step)
}

/// Returns the place in a slot.
#[inline]
fn place(slot: &AtomicU32) -> Option<EntryPosition> {
    slot.load(Ordering::Acquire).checked_sub(1).map(EntryPosition::from_u32)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn entry_is_found_until_its_line_is_full() {
        let front = Front::new(4096).expect("memory");
        for n in 0..4096_u32 {
            front.put(u64::from(n) * 0x5000 + 0x7f00_0000_0000, EntryPosition::from_u32(n), |_| false);
        }
        let at = |n: u32| move |place: EntryPosition| place.to_u32() == n;
        let found = |n: u32| front.find(u64::from(n) * 0x5000 + 0x7f00_0000_0fff, at(n));
        let lost = (0..4096_u32).filter(|n| found(*n).is_none()).count();
        assert!(lost < 4096 / 100, "{lost} of 4096 were displaced from their lines");
        assert_eq!(front.find(0x7f00_0000_1000, at(4096)), None);
    }

    #[test]
    fn entries_of_one_page_are_distinguished_by_predicate() {
        let front = Front::new(64).expect("memory");
        let all: Vec<EntryPosition> = (0..9).map(EntryPosition::from_u32).collect();
        for place in &all[..8] {
            front.put(0x10_0000, *place, |_| false);
        }
        for place in &all[..8] {
            assert_eq!(front.find(0x10_0fff, |found| found == *place), Some(*place));
        }
        front.put(0x10_0000, all[8], |old| old == all[5]);
        assert_eq!(front.find(0x10_0000, |found| found == all[5]), None, "the useless entry was replaced");
        assert_eq!(front.find(0x10_0000, |found| found == all[8]), Some(all[8]));
    }
}

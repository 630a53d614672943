//! The windows of a domain by index. This is a part of the domain's key table, under the same lock.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::cell::WindowCell;
use super::{WindowError, WindowType};
use crate::system::random::fill;
use crate::{KeyLines, above_small_numbers};

/// The number of indices, which have 24 bits.
const INDICES: u32 = 1 << 24;

/// The number of indices that must be free before one of them is reused, as long as there are indices that were never
/// used.
const REST: usize = 1 << 10;

/// The range of a table's keys within 64 bits, and the start of the indices within it. Both are random. So windows have
/// a separate name space, and a key that an application chooses for its regions is unlikely to be in it. A key of
/// another process, or of an earlier process at the same address, does not identify a window.
#[derive(Clone, Copy, Debug)]
pub struct WindowOrigin {
    /// The upper half of each key.
    upper: u32,
    /// The first index.
    index: u32,
    /// The low byte of the last key of an index that was never used.
    low: u8,
}

impl WindowOrigin {
    /// Returns whether this is a key of windows.
    #[inline(always)]
    pub const fn covers(self, key: u64) -> bool {
        (key >> 32) as u32 == self.upper
    }

    /// Returns the lower half of a key if it is a key of windows. The domain identifies the key by this half.
    #[inline]
    pub fn short(self, key: u64) -> Option<u32> {
        self.covers(key).then_some(key as u32)
    }

    /// Returns the key with this lower half.
    #[inline]
    pub const fn long(self, key: u32) -> u64 {
        (self.upper as u64) << 32 | key as u64
    }

    /// Returns the slot of the window that would own this key.
    #[inline]
    pub const fn place_of(self, key: u32) -> u32 {
        (key >> 8).wrapping_sub(self.index) & (INDICES - 1)
    }

    fn key_of(self, place: u32) -> u32 {
        (self.index.wrapping_add(place) & (INDICES - 1)) << 8 | u32::from(self.low)
    }
}

impl Default for WindowOrigin {
    fn default() -> Self {
        let mut random = [0; 8];
        if cfg!(not(loom)) && fill(&mut random).is_err() {
            random = [0x5A; 8]; // Then keys are more predictable, and those of two domains may be equal.
        }
        let random = u64::from_le_bytes(random);
        let upper = above_small_numbers((random >> 32) as u32);
        Self { upper, index: (random as u32) >> 8, low: random as u8 }
    }
}

#[derive(Debug, Default)]
struct Slot {
    /// The window, while it is allocated. It owns the 256 keys of its index.
    cell: Option<Arc<WindowCell>>,
    /// The last key of the index.
    key: u32,
}

/// The windows of a domain, found by index.
#[derive(Debug, Default)]
pub struct WindowTable {
    origin: WindowOrigin,
    /// The slots of the indices, in the order of first use.
    slots: Vec<Slot>,
    free: VecDeque<u32>,
    /// For each index, the number of regions with a key that a window of this index would own.
    taken: HashMap<u32, u32>,
}

impl WindowTable {
    /// Creates a table of keys with this origin.
    #[inline]
    pub fn new(origin: WindowOrigin) -> Self {
        Self { origin, ..Self::default() }
    }

    fn slot(&self, key: u64) -> Option<&Slot> {
        self.slots.get(self.origin.place_of(self.origin.short(key)?) as usize).filter(|slot| slot.cell.is_some())
    }

    /// Returns whether a window owns this key.
    #[inline]
    pub fn owns(&self, key: u64) -> bool {
        self.slot(key).is_some()
    }

    /// Returns all windows of type 2.
    #[inline]
    pub fn type_two(&self) -> Vec<Arc<WindowCell>> {
        let windows = self.slots.iter().filter_map(|slot| slot.cell.as_ref());
        windows.filter(|cell| cell.kind() != WindowType::One).cloned().collect()
    }

    /// Records that a region has this key.
    #[inline]
    pub fn region_came(&mut self, key: u64) {
        if let Some(index) = self.index_of(key) {
            *self.taken.entry(index).or_default() += 1;
        }
    }

    /// Records that a region no longer has this key.
    pub fn region_went(&mut self, key: u64) {
        if let Some(index) = self.index_of(key)
            && let Some(count) = self.taken.get_mut(&index)
        {
            *count -= 1;
            if *count == 0 {
                self.taken.remove(&index);
            }
        }
    }

    /// Returns the index of the window that would own this key.
    fn index_of(&self, key: u64) -> Option<u32> {
        self.origin.short(key).map(|key| key >> 8)
    }

    fn place(&self, index: u32) -> u32 {
        self.origin.place_of(index << 8)
    }

    /// Removes and returns a free index. No region has a key of that index.
    fn free_index(&mut self) -> Option<u32> {
        let fresh = (self.slots.len() as u32) < INDICES;
        for _ in 0..self.free.len() {
            if fresh && self.free.len() < REST {
                break;
            }
            let index = self.free.pop_front()?;
            if !self.taken.contains_key(&index) {
                return Some(index);
            }
            self.free.push_back(index);
        }
        while (self.slots.len() as u32) < INDICES {
            let key = self.origin.key_of(self.slots.len() as u32);
            self.slots.push(Slot { key, ..Slot::default() });
            let index = key >> 8;
            if !self.taken.contains_key(&index) {
                return Some(index);
            }
            self.free.push_back(index);
        }
        None
    }

    /// Allocates a window.
    pub fn allocate(&mut self, lines: &KeyLines, kind: WindowType) -> Result<Arc<WindowCell>, WindowError> {
        let index = self.free_index().ok_or(WindowError::Exhausted)?;
        let place = self.place(index);
        let slot = &mut self.slots[place as usize];
        let cell = Arc::new(WindowCell::new(slot.key, kind));
        slot.cell = Some(Arc::clone(&cell));
        lines.set_window(place, Some(&cell));
        Ok(cell)
    }

    /// Deallocates a window. `key` is its last key.
    #[inline]
    pub fn free(&mut self, lines: &KeyLines, index: u32, key: u32) {
        let place = self.place(index);
        let Some(slot) = self.slots.get_mut(place as usize) else { return };
        (slot.cell, slot.key) = (None, key);
        lines.set_window(place, None);
        self.free.push_back(index);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Requirements: MW-008.
    #[test]
    fn window_keys_differ_between_domains() {
        let keys = || -> Vec<u64> {
            let lines = KeyLines::default();
            let origin = WindowOrigin::default();
            let mut table = WindowTable::new(origin);
            (0..8).map(|_| origin.long(table.allocate(&lines, WindowType::One).unwrap().query().0)).collect()
        };
        let (one, other) = (keys(), keys());
        assert!(one.iter().all(|key| !other.contains(key)), "{one:x?} {other:x?}");
        assert!(one.iter().chain(&other).all(|key| key >> 32 >= 1 << 28), "small keys are left to applications");
    }
}

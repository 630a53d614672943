//! The windows of a domain, by index: a part of its table of keys, under the same lock.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::cell::Cell;
use super::{WindowError, WindowType};
use crate::memory::region::Lines;

/// Indices have 24 bits.
const INDICES: u32 = 1 << 24;

/// The first index that is given away: small keys are what applications choose for their regions.
const FIRST: u32 = 1 << 16;

/// An index rests until so many others are free.
const REST: usize = 1 << 10;

#[derive(Debug, Default)]
struct Slot {
    /// The window, while it is allocated; it owns the 256 keys of its index.
    cell: Option<Arc<Cell>>,
    /// The last key.
    key: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// By index, beginning with [`FIRST`] and round to it.
    slots: Vec<Slot>,
    free: VecDeque<u32>,
    /// How many regions have keys that a window of this index would own.
    taken: HashMap<u32, u32>,
}

const fn place(index: u32) -> usize {
    (index.wrapping_sub(FIRST) & (INDICES - 1)) as usize
}

/// The place of the window that would own this key; `None` if the key has more than 32 bits.
#[inline]
pub(crate) fn place_of(key: u64) -> Option<u32> {
    (key <= u64::from(u32::MAX)).then(|| place(key as u32 >> 8) as u32)
}

/// The index whose window would own this key.
fn index_of(key: u64) -> Option<u32> {
    u32::try_from(key).ok().map(|key| key >> 8)
}

impl Table {
    fn slot(&self, key: u64) -> Option<&Slot> {
        self.slots.get(place(index_of(key)?)).filter(|slot| slot.cell.is_some())
    }

    /// Whether a window owns this key.
    pub(crate) fn owns(&self, key: u64) -> bool {
        self.slot(key).is_some()
    }

    /// All windows of type 2.
    pub(crate) fn type_two(&self) -> Vec<Arc<Cell>> {
        let windows = self.slots.iter().filter_map(|slot| slot.cell.as_ref());
        windows.filter(|cell| cell.kind() != WindowType::One).cloned().collect()
    }

    /// A region has a key.
    pub(crate) fn region_came(&mut self, key: u64) {
        if let Some(index) = index_of(key) {
            *self.taken.entry(index).or_default() += 1;
        }
    }

    /// A region has it no more.
    pub(crate) fn region_went(&mut self, key: u64) {
        if let Some(index) = index_of(key)
            && let Some(count) = self.taken.get_mut(&index)
        {
            *count -= 1;
            if *count == 0 {
                self.taken.remove(&index);
            }
        }
    }

    /// An index of which no region has a key.
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
            let index = (self.slots.len() as u32).wrapping_add(FIRST) & (INDICES - 1);
            self.slots.push(Slot { key: index << 8, ..Slot::default() });
            if !self.taken.contains_key(&index) {
                return Some(index);
            }
            self.free.push_back(index);
        }
        None
    }

    /// A new window.
    pub(crate) fn allocate(&mut self, lines: &Lines, kind: WindowType) -> Result<Arc<Cell>, WindowError> {
        let index = self.free_index().ok_or(WindowError::Exhausted)?;
        let slot = &mut self.slots[place(index)];
        let cell = Arc::new(Cell::new(slot.key, kind));
        slot.cell = Some(Arc::clone(&cell));
        lines.set_window(place(index) as u32, Some(&cell));
        Ok(cell)
    }

    /// A window is deallocated, whose last key was this.
    pub(crate) fn free(&mut self, lines: &Lines, index: u32, key: u32) {
        let Some(slot) = self.slots.get_mut(place(index)) else { return };
        (slot.cell, slot.key) = (None, key);
        lines.set_window(place(index) as u32, None);
        self.free.push_back(index);
    }
}

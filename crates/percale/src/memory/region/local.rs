//! Local keys: what a verbs-like program names its own memory with (L_Key; MW-009, MW-011).
//!
//! 32 bits, as window keys have them: an index, and below it 8 bits that change when the index is used again. They are a name space of
//! their own, and mean nothing to peers; windows have none.

use std::sync::{Arc, PoisonError, RwLock, Weak};

use super::registered::Registered;
use crate::memory::volatile::Segment;

#[derive(Debug, Default)]
struct Slot {
    key: u32,
    region: Weak<Registered>,
}

#[derive(Debug, Default)]
struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

/// The local keys of a domain.
#[derive(Debug, Default)]
pub(super) struct LocalKeys {
    table: RwLock<Table>,
}

impl LocalKeys {
    /// The key of a region; one is made when it is first asked for.
    pub(super) fn key(&self, region: &Arc<Registered>) -> u32 {
        *region.local.get_or_init(|| {
            let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
            let index = match table.free.pop() {
                Some(index) => index,
                None => {
                    let index = table.slots.len() as u32;
                    table.slots.push(Slot { key: index << 8, ..Slot::default() });
                    index
                }
            };
            let slot = &mut table.slots[index as usize];
            slot.key = index << 8 | (slot.key.wrapping_add(1) & 0xFF);
            slot.region = Arc::downgrade(region);
            slot.key
        })
    }

    /// A region that has a key is another [`Registered`] now.
    pub(super) fn follow(&self, region: &Arc<Registered>) {
        let Some(key) = region.local.get() else { return };
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.slots[(key >> 8) as usize].region = Arc::downgrade(region);
    }

    /// A region is closed.
    pub(super) fn forget(&self, region: &Registered) {
        let Some(key) = region.local.get() else { return };
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.slots[(key >> 8) as usize].region = Weak::new();
        table.free.push(key >> 8);
    }

    /// The memory at an address of this process, if the key's region has all of it, and (to be `written`) may be written by us.
    pub(super) fn find(&self, key: u32, address: u64, len: u64, written: bool) -> Option<Segment> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let slot = table.slots.get((key >> 8) as usize).filter(|slot| slot.key == key)?;
        let region = slot.region.upgrade()?;
        if written && !region.windows.may_change() {
            return None;
        }
        region.memory.as_slice().iter().find_map(|piece| {
            let offset = address.checked_sub(piece.as_ptr().addr() as u64)?;
            let whole = piece.len() as u64;
            (offset <= whole && len <= whole - offset).then(|| piece.slice(offset as usize, len as usize))
        })
    }
}

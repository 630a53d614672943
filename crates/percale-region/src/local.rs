//! Local keys, by which programs that use the verbs API identify their own memory (L_Key).
//!
//! A local key has 32 bits, like the keys of windows. It consists of an index and, below it, 8 bits that change when
//! the index is reused. Local keys are a separate name space and have no meaning for peers. Windows do not have local
//! keys.

use std::sync::{Arc, PoisonError, RwLock, Weak};

use super::RegisterError;
use super::registered::Registered;
use crate::local_memory::volatile::Segment;
use percale_device::DeviceError;

/// The number of indices, which have 24 bits.
const INDICES: usize = 1 << 24;

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

impl Table {
    /// Returns an unused index below `indices`.
    fn free_index(&mut self, indices: usize) -> Option<u32> {
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        let index = self.slots.len() as u32;
        if self.slots.len() == indices {
            return None;
        }
        self.slots.push(Slot { key: index << 8, ..Slot::default() });
        Some(index)
    }
}

/// The local keys of a domain.
#[derive(Debug)]
pub(super) struct LocalKeys {
    table: RwLock<Table>,
    indices: usize,
}

impl Default for LocalKeys {
    fn default() -> Self {
        Self { table: RwLock::default(), indices: INDICES }
    }
}

impl LocalKeys {
    /// Returns the key of a region, which is chosen at the first call. Fails if all keys are in use, or if the memory
    /// belongs to a device.
    pub(super) fn key(&self, region: &Arc<Registered>) -> Result<u32, RegisterError> {
        if region.device.is_some() {
            return Err(DeviceError::Lacks("local keys for device memory (operations use its address)").into());
        }
        // The lock is taken even if the region has a key, so that a region never gets two keys.
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = region.local.get() {
            return Ok(*key);
        }
        let index = table.free_index(self.indices).ok_or(RegisterError::LocalKeys)?;
        let slot = &mut table.slots[index as usize];
        slot.key = index << 8 | (slot.key.wrapping_add(1) & 0xFF);
        slot.region = Arc::downgrade(region);
        Ok(*region.local.get_or_init(|| slot.key))
    }

    /// Records that a region with a local key has been replaced by this [`Registered`].
    pub(super) fn follow(&self, region: &Arc<Registered>) {
        let Some(key) = region.local.get() else { return };
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.slots[(key >> 8) as usize].region = Arc::downgrade(region);
    }

    /// Frees the key of a region that is closed.
    pub(super) fn forget(&self, region: &Registered) {
        let Some(key) = region.local.get() else { return };
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.slots[(key >> 8) as usize].region = Weak::new();
        table.free.push(key >> 8);
    }

    /// Returns the memory at an address of this process, if the key's region contains all of it. If `written` is true,
    /// this process must also have the right to write to it.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::local_memory::volatile::Segments;

    /// Requirements: MW-009.
    #[test]
    fn no_two_regions_share_a_local_key_when_all_are_in_use() {
        let keys = LocalKeys { indices: 2, ..LocalKeys::default() };
        let regions: [_; 3] = std::array::from_fn(|_| Registered::for_test(Segments::EMPTY));
        let [first, second] = [0, 1].map(|at: usize| keys.key(&regions[at]).unwrap());
        assert_ne!(first >> 8, second >> 8);
        assert!(matches!(keys.key(&regions[2]), Err(RegisterError::LocalKeys)));
        assert_eq!(keys.key(&regions[0]).unwrap(), first, "a region keeps its key");
        keys.forget(&regions[0]);
        let third = keys.key(&regions[2]).unwrap();
        assert!(third >> 8 == first >> 8 && third != first, "the index is used again, with another key");
    }
}

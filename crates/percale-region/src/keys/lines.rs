//! The lines of a domain's keys. They are found without a lock, with about one cache miss if there are a million lines.
//!
//! A window's line is found by its index, a region's line by the hash of its key ([`hashed`](super::hashed)). A
//! separate lock, which is never held for long, protects the region or window of a line. A reader that gets the region
//! compares its key, because the row may have been reused since the line was read.

use std::sync::{Arc, PoisonError, RwLock};

use super::hashed::Hashed;
use super::line::{KeyCacheLine, KeySnapshot};
use super::rows::Rows;
use crate::access_origin::AccessOrigin;
use crate::local_memory::access::{Access, Refusal};
use crate::registered::Registered;
use crate::window::{WindowCell, WindowOrigin};

/// The number of collisions with a writer after which a reader yields its processor.
const SPINS: u32 = 64;

/// A slot for a value that readers share.
type Slot<T> = RwLock<Option<Arc<T>>>;

fn take<T>(slot: &Slot<T>) -> Option<Arc<T>> {
    slot.read().unwrap_or_else(PoisonError::into_inner).clone()
}

fn put<T>(slot: &Slot<T>, what: Option<&Arc<T>>) {
    *slot.write().unwrap_or_else(PoisonError::into_inner) = what.cloned();
}

/// The row of a window index.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(C))]
struct WindowRow {
    line: KeyCacheLine,
    /// The window that has the index, if any.
    cell: Slot<WindowCell>,
}

/// The lines of a domain's keys, which are found without a lock.
#[derive(Debug, Default)]
pub struct KeyLines {
    origin: WindowOrigin,
    windows: Rows<WindowRow>,
    lines: Hashed,
    regions: Rows<Slot<Registered>>,
}

/// The allocation of the rows of regions. The table's lock protects it.
#[derive(Debug, Default)]
pub(super) struct RowAllocator {
    free: Vec<u32>,
    next: u32,
}

/// The location of the region or window of a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum RowOwner<'a> {
    Window(&'a Slot<WindowCell>),
    Region(&'a Rows<Slot<Registered>>, u32),
}

impl RowOwner<'_> {
    /// Returns the region that is there at the moment, which may differ from the region at the time when the line was
    /// read.
    #[inline]
    pub(super) fn region(self) -> Option<Arc<Registered>> {
        match self {
            RowOwner::Window(cell) => cell.read().unwrap_or_else(PoisonError::into_inner).as_ref()?.bound(),
            RowOwner::Region(rows, row) => take(rows.get(row)?),
        }
    }
}

impl KeyLines {
    /// Returns the range of the windows' keys.
    #[inline]
    pub(super) const fn origin(&self) -> WindowOrigin {
        self.origin
    }

    /// Returns the line of a region's key, if it is in its home slot. Otherwise the caller uses [`find`](Self::find).
    #[inline(always)]
    pub(super) fn find_in_home_slot(&self, key: u64) -> Option<KeySnapshot> {
        if self.origin.covers(key) { None } else { self.lines.find_in_home_slot(key) }
    }

    /// Checks an access to a region that is open to all endpoints. Returns `None` if no such line is found in the key's
    /// home slot.
    #[inline(always)]
    pub(super) fn check_open(
        &self,
        key: u64,
        via: AccessOrigin,
        part: (u64, u64),
        wanted: Access,
    ) -> Option<Result<u64, Refusal>> {
        if self.origin.covers(key) { None } else { self.lines.check_open(key, via.authority, part, wanted) }
    }

    /// Returns the result of `make` for the line of a key, or `None` if no line has the key.
    pub(super) fn find<R>(&self, key: u64, make: impl Fn(&KeySnapshot, RowOwner<'_>) -> R) -> Option<R> {
        for tries in 1_u32.. {
            if let Ok(found) = self.try_find(key, &make) {
                return found;
            }
            if tries % SPINS == 0 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        None
    }

    fn try_find<R>(&self, key: u64, make: impl Fn(&KeySnapshot, RowOwner<'_>) -> R) -> Result<Option<R>, ()> {
        if let Some(row) = self.origin.short(key).and_then(|key| self.window_row(key)) {
            let snapshot = row.line.read().ok_or(())?;
            if snapshot.is_owned() {
                return Ok(snapshot.is(key).then(|| make(&snapshot, RowOwner::Window(&row.cell))));
            }
        }
        let snapshot = self.lines.look(key)?;
        Ok(snapshot.map(|snapshot| make(&snapshot, self.owner(&snapshot))))
    }

    /// Returns the location of the region that has a key.
    #[inline]
    pub(super) fn owner(&self, snapshot: &KeySnapshot) -> RowOwner<'_> {
        RowOwner::Region(&self.regions, snapshot.row())
    }

    #[inline]
    fn window_row(&self, key: u32) -> Option<&WindowRow> {
        self.windows.get(self.origin.place_of(key))
    }

    /// Calls `then` with the window that owns this key. A deallocation of the window waits for the call.
    pub(super) fn with_window<R>(&self, key: u32, then: impl FnOnce(&Arc<WindowCell>) -> R) -> Option<R> {
        let row = self.window_row(key)?;
        row.cell.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(then)
    }

    /// Sets or removes the window of an index. Called under the table's lock.
    #[inline]
    pub fn set_window(&self, place: u32, cell: Option<&Arc<WindowCell>>) {
        let Some(row) = self.windows.make(place) else { return };
        put(&row.cell, cell);
        row.line.write(&if cell.is_some() { KeySnapshot::owned() } else { KeySnapshot::default() });
    }

    /// Records that an allocated window is bound, or is no longer bound. Called under the window's lock.
    #[inline]
    pub(super) fn set_bound(&self, key: u32, bound: Option<&Registered>) {
        if let Some(row) = self.window_row(key) {
            row.line.write(&bound.map_or_else(KeySnapshot::owned, |window| snapshot(window, 0)));
        }
    }

    /// Returns whether a region has this key. Like the next four methods, this is called under the table's lock.
    #[inline]
    pub(super) fn has_region(&self, key: u64) -> bool {
        matches!(self.lines.look(key), Ok(Some(_)))
    }

    /// Returns whether the home slot of a region's key is free.
    #[inline]
    pub(super) fn is_vacant(&self, key: u64) -> bool {
        self.lines.is_vacant(key)
    }

    /// Adds a region. Returns false if there is no room.
    #[must_use]
    #[inline]
    pub(super) fn add(&self, used: &mut RowAllocator, region: &Arc<Registered>) -> bool {
        let number = used.free.last().copied().unwrap_or(used.next);
        let Some(row) = self.regions.make(number) else { return false };
        let live = used.next as usize - used.free.len() + 1;
        put(row, Some(region));
        if !self.lines.insert(&snapshot(region, number), live) {
            put(row, None);
            return false;
        }
        if used.free.pop().is_none() {
            used.next += 1;
        }
        true
    }

    /// Replaces the region of a key.
    #[inline]
    pub(super) fn replace(&self, region: &Arc<Registered>) {
        let Ok(Some(old)) = self.lines.look(region.key) else { return };
        if let Some(row) = self.regions.get(old.row()) {
            put(row, Some(region));
            self.lines.replace(&snapshot(region, old.row()));
        }
    }

    /// Removes the region of a key. Returns false if there is none.
    #[inline]
    pub(super) fn remove(&self, used: &mut RowAllocator, key: u64) -> bool {
        let Ok(Some(old)) = self.lines.look(key) else { return false };
        self.lines.remove(key);
        if let Some(row) = self.regions.get(old.row()) {
            put(row, None);
        }
        used.free.push(old.row());
        true
    }
}

#[inline]
fn snapshot(region: &Registered, row: u32) -> KeySnapshot {
    KeySnapshot::live(region.key, region.rights, (region.base, region.len), region.through)
        .under(region.authority)
        .at(row)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::hashed::hash;
    use super::*;
    use crate::local_memory::volatile::Segments;

    fn region(key: u64) -> Arc<Registered> {
        let mut region = Registered::for_test(Segments::EMPTY);
        Arc::get_mut(&mut region).unwrap().key = key;
        region
    }

    fn has(owner: RowOwner<'_>, key: u64) -> bool {
        owner.region().is_some_and(|region| region.key == key)
    }

    /// Adds and removes random keys, and compares the result with a set. Another thread always finds the keys that
    /// stay.
    ///
    /// Requirements: KEY-004, MR-032.
    #[test]
    fn keys_are_found_while_others_come_and_go() {
        let (lines, mut used) = (KeyLines::default(), RowAllocator::default());
        let mut live = HashSet::new();
        let stay: Vec<u64> = (1..200).map(|key| key * 0x1_0000_0001).collect();
        for key in &stay {
            assert!(lines.add(&mut used, &region(*key)) && live.insert(*key));
        }
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let seek = || {
                let mut looks = 0_u64;
                while !over.load(Ordering::Relaxed) || looks == 0 {
                    for key in &stay {
                        let found = lines.find(*key, |snapshot, owner| snapshot.is(*key) && has(owner, *key));
                        assert_eq!(found, Some(true), "a key that is never removed");
                        looks += 1;
                    }
                }
            };
            scope.spawn(seek);
            let mut random = 9_u64;
            for _ in 0..30_000 {
                random = hash(random + 1);
                let key = random % 3000 + (1 << 40);
                assert_eq!(lines.find(key, |_, owner| has(owner, key)), live.contains(&key).then_some(true));
                if live.remove(&key) {
                    assert!(lines.remove(&mut used, key));
                    assert!(lines.find(key, |_, _| ()).is_none() && !lines.remove(&mut used, key));
                } else {
                    assert!(live.insert(key) && lines.add(&mut used, &region(key)));
                    assert_eq!(lines.find(key, |_, owner| has(owner, key)), Some(true));
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        assert!(lines.lines.levels() > 2, "the table never grew");
        for key in live {
            assert!(lines.remove(&mut used, key));
        }
        assert!(stay.iter().all(|key| !lines.has_region(*key)));
    }
}

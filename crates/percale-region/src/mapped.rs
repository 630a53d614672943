//! Mapped raw keys of peers. Operations identify a peer's region by these keys after its raw key was mapped.
//!
//! A mapped key is a number that this domain assigns. Its upper half and the first lower half are random numbers that
//! are drawn when the domain is opened. Lower halves are assigned consecutively, starting at the first one. A mapped
//! key in an operation is translated when the operation is posted, so an operation with a key that is no longer mapped
//! fails at once. Any other number is the peer's own key (regions may have any 64-bit key). The probability that such a
//! key equals a mapped one is 2^-64 for each mapped key.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use crate::system::random::fill;

/// The mapped keys of a domain.
#[derive(Debug)]
pub struct MappedKeys {
    /// The upper half of all mapped keys.
    upper: u32,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    keys: HashMap<u32, u64>,
    /// The first number that is assigned.
    first: u32,
    /// The number of assignments so far. A number that was released is not assigned again soon.
    given: u64,
}

impl Table {
    fn gave(&self, key: u64) -> bool {
        u64::from((key as u32).wrapping_sub(self.first)) < self.given
    }
}

impl Default for MappedKeys {
    fn default() -> Self {
        let mut random = [0; 8];
        if cfg!(not(loom)) && fill(&mut random).is_err() {
            // Without random numbers, an application that chooses such keys for its regions causes collisions.
            random = [0xA5; 8];
        }
        let random = u64::from_ne_bytes(random);
        let table = Table { keys: HashMap::new(), first: random as u32, given: 0 };
        Self { upper: above_small_numbers((random >> 32) as u32), table: Mutex::new(table) }
    }
}

/// Returns an upper half of keys that differs from the upper halves of small numbers, of addresses, and of numbers just
/// below 2^64.
#[inline]
pub const fn above_small_numbers(random: u32) -> u32 {
    const FIRST: u32 = 1 << 28;
    FIRST + random % (0xFFFF_0000 - FIRST)
}

impl MappedKeys {
    /// Returns whether the number may be a mapped key. If the result is false, it is not one.
    #[inline]
    pub const fn covers(&self, key: u64) -> bool {
        (key >> 32) as u32 == self.upper
    }

    /// Returns whether the number is, or was, a mapped key.
    #[inline]
    pub fn gave(&self, key: u64) -> bool {
        self.covers(key) && self.with(|table| table.gave(key))
    }

    fn with<R>(&self, f: impl FnOnce(&mut Table) -> R) -> R {
        f(&mut self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the peer's key for this mapped key.
    #[inline]
    pub fn find(&self, key: u64) -> Option<u64> {
        self.with(|table| table.keys.get(&(key as u32)).copied())
    }

    /// Assigns a mapped key to a peer's key. Returns `None` if all numbers are in use.
    pub fn map(&self, key: u64) -> Option<u64> {
        self.with(|table| {
            if u32::try_from(table.keys.len()).is_err() {
                return None;
            }
            loop {
                let number = table.first.wrapping_add(table.given as u32);
                table.given = table.given.saturating_add(1);
                if let Entry::Vacant(vacant) = table.keys.entry(number) {
                    vacant.insert(key);
                    return Some(u64::from(self.upper) << 32 | u64::from(number));
                }
            }
        })
    }

    /// Releases a mapped key.
    #[inline]
    pub fn unmap(&self, key: u64) {
        self.with(|table| table.keys.remove(&(key as u32)));
    }
}

/// The mapped keys of a domain, for its endpoints.
pub type Keyring = Arc<MappedKeys>;

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirements: KEY-012, KEY-016.
    #[test]
    fn mapped_keys_are_unique_and_invalid_after_unmap() {
        let mapped = MappedKeys::default();
        let first = mapped.map(5).unwrap();
        let second = mapped.map(5).unwrap();
        assert!(first != second && mapped.gave(first) && mapped.gave(second) && !mapped.gave(second + 1));
        assert_eq!((mapped.find(first), mapped.find(second)), (Some(5), Some(5)));
        mapped.unmap(first);
        assert_eq!((mapped.find(first), mapped.find(second)), (None, Some(5)));
        let third = mapped.map(6).unwrap();
        assert!(third != first && third != second, "a released number is not reused at once");
        assert_eq!(mapped.find(third), Some(6));
        mapped.with(|table| table.given = 1 << 32);
        assert_eq!(mapped.map(7), Some(first), "the number is reused eventually");
        assert_ne!(mapped.map(8), Some(second), "a number in use is not reused");
    }

    /// Requirements: KEY-020.
    #[test]
    fn mapped_keys_avoid_application_keys() {
        let (one, other) = (MappedKeys::default(), MappedKeys::default());
        assert_ne!(one.map(1), other.map(1), "two domains");
        for half in [0, 1, u32::MAX / 3, u32::MAX - 1, u32::MAX] {
            let upper = above_small_numbers(half);
            assert!((1 << 28..0xFFFF_0000).contains(&upper), "{upper:#x}");
        }
    }
}

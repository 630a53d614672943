//! Raw keys of peers that were mapped: what operations name a peer's region by, once its raw key is known here.
//!
//! A mapped key is a number of this domain's, in a range that no region's key is in; an operation that names one is translated when it is
//! posted. So a key that is mapped no more fails here, at once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use super::RemoteMemory;
use super::raw_key::{RAW_KEY_BYTES, wire_key};
use crate::domain::Domain;

/// The upper half of every mapped key.
const UPPER: u64 = 0xFFFF_FFFE;

/// Whether operations that name this key are to be translated.
#[inline]
pub(crate) const fn is_mapped(key: u64) -> bool {
    key >> 32 == UPPER
}

/// Whether no region may have this key: those of mapped keys, and what stands for no key at all (AMB-06).
pub(crate) const fn is_reserved(key: u64) -> bool {
    is_mapped(key) || key == u64::MAX
}

/// Why a raw key was not mapped.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// Raw keys have 8 or 32 bytes.
    #[error("a raw key has 8 or {RAW_KEY_BYTES} bytes, not {0}")]
    Length(usize),
    /// The domain has as many as there can be.
    #[error("2^32 keys are mapped; unmap some")]
    Full,
    /// The process is a fork of the one that opened the domain.
    #[error("this process was forked from the one that opened the domain; open a domain of its own in it")]
    Forked,
}

impl MapError {
    /// The libfabric code.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Length(_) => libc::EINVAL,
            Self::Full => libc::ENOSPC,
            Self::Forked => libc::ECHILD,
        }
    }
}

/// The mapped keys of a domain.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    keys: HashMap<u32, u64>,
    /// The number that is tried next: one that was given back is not given out soon again.
    next: u32,
}

impl Mapped {
    fn with<R>(&self, f: impl FnOnce(&mut Table) -> R) -> R {
        f(&mut self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The peer's key that this one stands for.
    pub(crate) fn find(&self, key: u64) -> Option<u64> {
        self.with(|table| table.keys.get(&(key as u32)).copied())
    }

    fn map(&self, key: u64) -> Option<u64> {
        self.with(|table| {
            if u32::try_from(table.keys.len()).is_err() {
                return None;
            }
            loop {
                let number = table.next;
                table.next = number.wrapping_add(1);
                if let Entry::Vacant(vacant) = table.keys.entry(number) {
                    vacant.insert(key);
                    return Some(UPPER << 32 | u64::from(number));
                }
            }
        })
    }

    fn unmap(&self, key: u64) {
        self.with(|table| table.keys.remove(&(key as u32)));
    }
}

/// A peer's raw key, mapped: operations may use its [`key`](Self::key) until this is dropped (KEY-012, KEY-016). It keeps its domain
/// open (KEY-017).
#[derive(Debug)]
#[must_use = "the key is unmapped when this is dropped"]
pub struct MappedKey {
    domain: Domain,
    key: u64,
}

impl MappedKey {
    /// What operations name the peer's region by.
    #[must_use]
    pub const fn key(&self) -> u64 {
        self.key
    }

    /// A part of the peer's region. Addresses are as its owner has them: from 0, or from its base.
    #[must_use]
    pub const fn remote(&self, address: u64, len: u64) -> RemoteMemory {
        RemoteMemory { key: self.key, address, len }
    }
}

impl Drop for MappedKey {
    fn drop(&mut self) {
        if self.domain.inner.is_here() {
            self.domain.inner.mapped.unmap(self.key);
        }
    }
}

impl Domain {
    /// Makes a key for operations of a raw key that a peer sent ([`Region::raw_key`](super::Region::raw_key)). Whether the peer has such a
    /// region is found out by the first operation.
    ///
    /// # Errors
    /// If it is no raw key by its length, or this is a forked child.
    pub fn map_raw(&self, raw_key: &[u8]) -> Result<MappedKey, MapError> {
        if !self.inner.is_here() {
            return Err(MapError::Forked);
        }
        let key = wire_key(raw_key).ok_or(MapError::Length(raw_key.len()))?;
        let key = self.inner.mapped.map(key).ok_or(MapError::Full)?;
        Ok(MappedKey { domain: self.clone(), key })
    }
}

/// The mapped keys of a domain, for its endpoints.
pub(crate) type Keyring = Arc<Mapped>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_012_key_016_numbers_are_given_out_in_turn_and_die_when_given_back() {
        let mapped = Mapped::default();
        let first = mapped.map(5).unwrap();
        let second = mapped.map(5).unwrap();
        assert!(first != second && is_mapped(first) && is_mapped(second));
        assert_eq!((mapped.find(first), mapped.find(second)), (Some(5), Some(5)));
        mapped.unmap(first);
        assert_eq!((mapped.find(first), mapped.find(second)), (None, Some(5)));
        let third = mapped.map(6).unwrap();
        assert!(third != first && third != second, "a number that was given back rests");
        assert_eq!(mapped.find(third), Some(6));
        mapped.with(|table| table.next = 0);
        assert_eq!(mapped.map(7), Some(first), "in the end it comes again");
        assert_ne!(mapped.map(8), Some(second), "but not before it was given back");
    }

    #[test]
    fn key_004_what_stands_for_no_key_is_reserved() {
        assert!(is_reserved(u64::MAX) && is_reserved(UPPER << 32) && is_reserved(UPPER << 32 | 0xFFFF_FFFF));
        assert!(!is_reserved(0) && !is_reserved((UPPER << 32) - 1) && !is_reserved(u64::MAX - 1));
    }
}

//! Mapped raw keys of peers: handles for the keys that operations use for a peer's region.

use super::{MapError, RemoteMemory};
use crate::domain::Domain;
use crate::region::raw_key::wire_key;

/// A mapped raw key of a peer. Operations may use its [`key`](Self::key) until it is dropped. It keeps its domain open.
#[must_use = "the key is unmapped when this is dropped"]
pub struct MappedKey {
    domain: Domain,
    key: u64,
}

crate::short_debug!(MappedKey, "MappedKey");

impl MappedKey {
    /// Returns the key that operations use for the peer's region.
    #[must_use]
    pub const fn key(&self) -> u64 {
        self.key
    }

    /// Returns the description of a part of the peer's region. Addresses are those of its owner: they start at 0, or at
    /// the base of the region.
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
    /// Maps a raw key that a peer sent ([`Region::raw_key`](super::Region::raw_key)) to a key for operations. Whether
    /// the peer has such a region is not checked before the first operation.
    ///
    /// # Errors
    /// If the length is not that of a raw key, if 2^32 keys are mapped, or in a forked child.
    pub fn map_raw(&self, raw_key: &[u8]) -> Result<MappedKey, MapError> {
        if !self.inner.is_here() {
            return Err(MapError::Forked);
        }
        let key = wire_key(raw_key).ok_or(MapError::Length(raw_key.len()))?;
        let key = self.inner.mapped.map(key).ok_or(MapError::Full)?;
        Ok(MappedKey { domain: self.clone(), key })
    }
}

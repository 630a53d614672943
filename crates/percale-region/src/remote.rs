//! The names of regions that peers use to access them.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::ops::RangeBounds;

use percale_memory::types::span;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The value that means that there is no key. The library never chooses it as a key, but an application may.
pub(super) const NO_KEY: u64 = u64::MAX;

/// The name of a peer's region or of a part of it, as its owner made it known (`Region::remote`). It is plain data, to
/// be sent to the peers that may use it, as [bytes](Self::to_bytes).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// The key of the region.
    pub key: u64,
    /// The address of the first byte. It is counted from the region's first byte, unless the region was registered with
    /// another base (`Registration::base`).
    pub address: u64,
    /// The length in bytes.
    pub len: u64,
}

crate::short_debug!(RemoteMemory, "RemoteMemory", address: |this| this.address, len: |this| this.len);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Bytes {
    key: U64,
    address: U64,
    len: U64,
}

impl RemoteMemory {
    /// The length of the [byte form](Self::to_bytes).
    pub const BYTES: usize = size_of::<Bytes>();

    /// Returns the name of a part of this memory.
    ///
    /// ```
    /// # use percale_region::RemoteMemory;
    /// # fn main() -> Result<(), percale_region::RemoteMemoryError> {
    /// # let memory = RemoteMemory { key: 7, address: 0, len: 100 };
    /// assert_eq!(memory.slice(8..)?.len, 92);
    /// assert!(memory.slice(8..101).is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`RemoteMemoryError::Range`] if the start of the range is after its end, or the range is not within this memory.
    #[inline]
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<Self, RemoteMemoryError> {
        let (start, end) =
            span(&range, self.len).map_err(|(start, end)| RemoteMemoryError::Range { start, end, len: self.len })?;
        // Neither wraps: the end is at most the length of memory that begins at the address.
        Ok(Self { key: self.key, address: self.address.wrapping_add(start), len: end.wrapping_sub(start) })
    }

    /// Returns the name of a part of this memory, for a range that the program knows to be within it, such as a
    /// constant. Use [`slice`](Self::slice) if the range, or the length of this memory, depends on a peer.
    ///
    /// # Panics
    /// If the range is not within this memory. The message contains the range and the length.
    #[must_use]
    #[track_caller]
    #[inline]
    pub fn at(&self, range: impl RangeBounds<u64>) -> Self {
        match self.slice(range) {
            Ok(part) => part,
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns the bytes to send to a peer. This is version 1 of the byte form: 24 bytes, which are the key, the
    /// address and the length, each in 8 bytes, the least significant byte first. It is the same on every machine and
    /// in every release. Another version would have another length, which [`from_bytes`](Self::from_bytes) rejects.
    #[must_use]
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let bytes = Bytes { key: self.key.into(), address: self.address.into(), len: self.len.into() };
        zerocopy::transmute!(bytes)
    }

    /// Decodes the [byte form](Self::to_bytes), which a peer sent.
    ///
    /// # Errors
    /// [`RemoteMemoryError::Length`] if there are not [`BYTES`](Self::BYTES) bytes, [`RemoteMemoryError::Wraps`] if the
    /// range ends beyond the last address, where there can be no region.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RemoteMemoryError> {
        let read = Bytes::read_from_bytes(bytes).map_err(|_| RemoteMemoryError::Length(bytes.len()))?;
        let (key, address, len) = (read.key.get(), read.address.get(), read.len.get());
        if len > 1 && address.checked_add(len.saturating_sub(1)).is_none() {
            return Err(RemoteMemoryError::Wraps { address, len });
        }
        Ok(Self { key, address, len })
    }
}

/// The reason why bytes do not encode a [`RemoteMemory`], or a range is not within it.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteMemoryError {
    /// The number of bytes is wrong.
    #[error("not a description of remote memory: {0} bytes instead of {expected}", expected = RemoteMemory::BYTES)]
    Length(usize),
    /// The end is beyond the last address.
    #[error("{len} bytes at remote address {address:#x} exceed the address space")]
    Wraps {
        /// The address of the first byte.
        address: u64,
        /// The length in bytes.
        len: u64,
    },
    /// The start of the range is after its end, or the range extends beyond the memory.
    #[error("{start}..{end} is out of range for {len} bytes of remote memory")]
    Range {
        /// The start of the range.
        start: u64,
        /// The end of the range (exclusive).
        end: u64,
        /// The length of the memory in bytes.
        len: u64,
    },
}

impl RemoteMemoryError {
    /// Returns the libfabric error code (positive) of this error.
    #[must_use]
    #[inline]
    pub const fn errno(&self) -> i32 {
        libc::EINVAL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_memory_round_trips_and_can_be_sliced() {
        let memory = RemoteMemory { key: 7, address: u64::MAX - 99, len: 100 };
        assert_eq!(RemoteMemory::from_bytes(&memory.to_bytes()), Ok(memory));
        let part = RemoteMemory { key: 7, address: u64::MAX - 94, len: 95 };
        assert_eq!((memory.slice(5..100), memory.at(5..)), (Ok(part), part));
        assert_eq!(memory.slice(100..100).map(|part| part.len), Ok(0));
        assert_eq!(memory.at(..), memory);
    }

    #[test]
    fn byte_form_is_three_little_endian_words() {
        let memory = RemoteMemory { key: 0x0807_0605_0403_0201, address: 0x100F_0E0D_0C0B_0A09, len: 0x1817 };
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 0x17, 0x18, 0, 0, 0, 0, 0, 0];
        assert_eq!(memory.to_bytes(), bytes);
        assert_eq!(RemoteMemory::from_bytes(&bytes), Ok(memory));
    }

    #[test]
    fn invalid_remote_memory_is_rejected_without_panic() {
        let bytes = RemoteMemory { key: 7, address: 1, len: 100 }.to_bytes();
        for len in (0..64).filter(|len| *len != RemoteMemory::BYTES) {
            let sent: Vec<u8> = bytes.iter().copied().cycle().take(len).collect();
            assert_eq!(RemoteMemory::from_bytes(&sent), Err(RemoteMemoryError::Length(len)));
        }
        let wraps = RemoteMemory { key: 7, address: u64::MAX - 98, len: 101 };
        assert!(matches!(RemoteMemory::from_bytes(&wraps.to_bytes()), Err(RemoteMemoryError::Wraps { .. })));
        let edges = [0, 1, 99, 100, 101, 1 << 63, u64::MAX - 1, u64::MAX];
        for address in edges {
            for len in edges {
                let memory = RemoteMemory { key: 7, address, len };
                let read = RemoteMemory::from_bytes(&memory.to_bytes());
                assert_eq!(read.is_ok(), len < 2 || address.checked_add(len - 1).is_some(), "{memory:?}");
                for (start, end) in edges.into_iter().flat_map(|start| edges.map(|end| (start, end))) {
                    let part = memory.slice(start..end);
                    assert_eq!(part.is_ok(), start <= end && end <= len, "{start}..{end} of {memory:?}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "1..101 is out of range for 100 bytes of remote memory")]
    fn constant_range_beyond_remote_memory_panics() {
        assert_eq!(RemoteMemory { key: 7, address: 0, len: 100 }.at(1..101).len, 100);
    }
}

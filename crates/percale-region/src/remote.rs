//! The names of regions that peers use to access them.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::ops::Range;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The value that means that there is no key. The library never chooses it as a key, but an application may.
pub(super) const NO_KEY: u64 = u64::MAX;

/// The name of a peer's region or of a part of it, as its owner made it known (`Region::remote`). It is plain data, to
/// be sent to the peers that may use it.
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
    /// The length of the result of [`to_bytes`](Self::to_bytes).
    pub const BYTES: usize = size_of::<Bytes>();

    /// Returns the name of a part of this memory.
    ///
    /// # Panics
    /// If the range is not within this memory. If a peer supplied the range, or this name, use
    /// [`checked_slice`](Self::checked_slice).
    #[must_use]
    #[track_caller]
    #[inline]
    pub fn slice(&self, range: Range<u64>) -> Self {
        match self.checked_slice(range) {
            Ok(part) => part,
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns the name of a part of this memory, for a range that may be invalid.
    ///
    /// # Errors
    /// [`RemoteMemoryError::Range`] if the start of the range is after its end, or the range is not within this memory.
    pub fn checked_slice(&self, range: Range<u64>) -> Result<Self, RemoteMemoryError> {
        let outside = RemoteMemoryError::Range { start: range.start, end: range.end, len: self.len };
        if range.end > self.len {
            return Err(outside);
        }
        let len = range.end.checked_sub(range.start).ok_or(outside)?;
        Ok(Self { key: self.key, address: self.address.wrapping_add(range.start), len })
    }

    /// Returns the bytes to send to a peer.
    #[must_use]
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let bytes = Bytes { key: self.key.into(), address: self.address.into(), len: self.len.into() };
        zerocopy::transmute!(bytes)
    }

    /// Decodes the bytes that a peer sent.
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
        assert_eq!(memory.slice(5..100), RemoteMemory { key: 7, address: u64::MAX - 94, len: 95 });
        assert_eq!(memory.checked_slice(100..100).map(|part| part.len), Ok(0));
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
                    let part = memory.checked_slice(start..end);
                    assert_eq!(part.is_ok(), start <= end && end <= len, "{start}..{end} of {memory:?}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn slice_beyond_remote_memory_panics() {
        assert_eq!(RemoteMemory { key: 7, address: 0, len: 100 }.slice(1..101).len, 100);
    }
}

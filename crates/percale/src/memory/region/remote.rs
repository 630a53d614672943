//! How a region is named by those who may reach it.

use std::ops::Range;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A part of a peer's region, as its owner made it known ([`Region::remote`](super::Region::remote)): plain data, to be sent
/// to whoever may use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// The region's key.
    pub key: u64,
    /// The address of the first byte: counted from the region's first byte, unless the region was registered with another
    /// base ([`Registration::base`](super::Registration::base)).
    pub address: u64,
    /// Bytes.
    pub len: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Bytes {
    key: U64,
    address: U64,
    len: U64,
}

impl RemoteMemory {
    /// Length of [`to_bytes`](Self::to_bytes).
    pub const BYTES: usize = size_of::<Bytes>();

    /// A part of it.
    ///
    /// # Panics
    /// If the range is not within it.
    #[must_use]
    #[track_caller]
    pub fn slice(&self, range: Range<u64>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} is out of range for {} bytes of remote memory",
            self.len
        );
        Self { key: self.key, address: self.address.wrapping_add(range.start), len: range.end - range.start }
    }

    /// To be sent to a peer.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let bytes = Bytes { key: self.key.into(), address: self.address.into(), len: self.len.into() };
        zerocopy::transmute!(bytes)
    }

    /// What a peer sent; `None` if it is too short.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (bytes, _) = Bytes::read_from_prefix(bytes).ok()?;
        Some(Self { key: bytes.key.get(), address: bytes.address.get(), len: bytes.len.get() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_travels_and_is_cut() {
        let memory = RemoteMemory { key: 7, address: u64::MAX - 4, len: 100 };
        assert_eq!(RemoteMemory::from_bytes(&memory.to_bytes()), Some(memory));
        assert_eq!(RemoteMemory::from_bytes(&[0; 23]), None);
        assert_eq!(memory.slice(5..100), RemoteMemory { key: 7, address: 0, len: 95 });
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn it_is_not_extended() {
        assert_eq!(RemoteMemory { key: 7, address: 0, len: 100 }.slice(1..101).len, 100);
    }
}

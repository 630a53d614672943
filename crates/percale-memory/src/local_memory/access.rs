//! Rights to a region.

use bitflags::bitflags;

use crate::types::ErrorCode;

bitflags! {
    /// Rights to a region (fi_mr(3), "access"). Remote rights are checked for every access by a peer, on every
    /// transport. Local rights state the purpose of a region. The values are libfabric's.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u64 {
        /// Results of this endpoint's own reads and fetching atomics are written to the region.
        const READ = 1 << 8;
        /// This endpoint's own writes and atomics read their source from the region.
        const WRITE = 1 << 9;
        /// Messages are received into the region.
        const RECEIVE = 1 << 10;
        /// Messages are sent from the region.
        const SEND = 1 << 11;
        /// Peers may read the region (and fetch with atomics, if they may also write).
        const REMOTE_READ = 1 << 12;
        /// Peers may write the region, and change it with atomics.
        const REMOTE_WRITE = 1 << 13;
        /// Peers may change and fetch values of the region with atomics. This right alone does not permit reads and
        /// writes. libfabric does not have this right, but verbs does.
        const REMOTE_ATOMIC = 1 << 62;
        /// Peers may fetch with atomics. Implied by other rights.
        #[doc(hidden)]
        const REMOTE_FETCH = 1 << 61;
    }
}

/// The rights of peers in an [`Access`]. This is for the crates of percale, not for programs.
#[doc(hidden)]
pub trait AccessExt: Sized {
    /// Returns all rights of peers. The right to write implies the right to change memory with atomics, and the right
    /// to read implies the right to fetch with atomics.
    fn remote_rights(self) -> Self;

    /// Returns whether peers may change the memory in any way.
    fn changes(self) -> bool;
}

impl AccessExt for Access {
    #[inline]
    fn remote_rights(self) -> Self {
        let mut rights = self & (Self::REMOTE_READ | Self::REMOTE_WRITE | Self::REMOTE_ATOMIC);
        rights.set(Self::REMOTE_FETCH, self.intersects(Self::REMOTE_READ | Self::REMOTE_ATOMIC));
        rights.set(Self::REMOTE_ATOMIC, self.intersects(Self::REMOTE_WRITE | Self::REMOTE_ATOMIC));
        rights
    }

    #[inline]
    fn changes(self) -> bool {
        self.intersects(Self::REMOTE_WRITE.union(Self::REMOTE_ATOMIC))
    }
}

/// Checks an access to the `len` bytes that start at `address`. The region has `size` bytes that start at `base`.
/// `right` is set if the region grants the right. Returns the offset of the first byte of the access.
#[inline(always)]
pub const fn admit(right: bool, (base, size): (u64, u64), (address, len): (u64, u64)) -> Result<u64, Refusal> {
    if !right {
        return Err(Refusal::Right);
    }
    // Neither subtraction wraps, because the first is checked and the second follows a comparison.
    match address.checked_sub(base) {
        Some(offset) if offset <= size && len <= size - offset => Ok(offset),
        _ => Err(Refusal::Range),
    }
}

/// The reasons why a remote access is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The domain has no region with this key, or the region was closed.
    #[error("no region of the peer's domain has this key")]
    Key,
    /// The region does not grant peers this right.
    #[error("the region does not grant this right to peers")]
    Right,
    /// A part of the access is outside the region.
    #[error("the access is outside the region")]
    Range,
    /// The memory of the region is not accessible at the target.
    #[error("the region's memory is not accessible at the target")]
    Fault,
    /// The target of an atomic operation is not aligned to its size.
    #[error("the target of an atomic operation is not aligned to its size")]
    Misaligned,
    /// The target cannot allocate memory for an intermediate copy.
    #[error("the peer is out of memory")]
    Memory,
}

impl Refusal {
    /// Returns libfabric's positive error code with which the access completes.
    #[must_use]
    #[inline]
    pub const fn errno(self) -> i32 {
        match self {
            Self::Key => libc::EKEYREJECTED,
            Self::Right | Self::Range => libc::EACCES,
            Self::Fault => libc::EFAULT,
            Self::Misaligned => libc::EINVAL,
            Self::Memory => libc::ENOMEM,
        }
    }
}

/// The representation of a [`Refusal`] on the wire. This is for the crates of percale, not for programs.
#[doc(hidden)]
pub trait RefusalExt: Sized {
    /// Returns the error code of the operation that was refused.
    fn code(self) -> ErrorCode;

    /// Returns the number on the wire, in `Kind::Done`. It is never 0.
    fn number(self) -> u64;

    /// Decodes the number on the wire. Returns `None` if it is invalid.
    fn from_number(number: u64) -> Option<Self>;
}

impl RefusalExt for Refusal {
    fn code(self) -> ErrorCode {
        match self {
            Self::Key => ErrorCode::KeyRejected,
            Self::Right | Self::Range => ErrorCode::Denied,
            Self::Fault => ErrorCode::Fault,
            Self::Misaligned => ErrorCode::Misaligned,
            Self::Memory => ErrorCode::NoMemory,
        }
    }

    #[inline]
    fn number(self) -> u64 {
        match self {
            Self::Key => 1,
            Self::Right => 2,
            Self::Range => 3,
            Self::Fault => 4,
            Self::Misaligned => 5,
            Self::Memory => 6,
        }
    }

    #[inline]
    fn from_number(number: u64) -> Option<Self> {
        Some(match number {
            1 => Self::Key,
            2 => Self::Right,
            3 => Self::Range,
            4 => Self::Fault,
            5 => Self::Misaligned,
            6 => Self::Memory,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_round_trip_as_numbers() {
        let mut known = 0;
        for number in 0..100 {
            if let Some(refusal) = Refusal::from_number(number) {
                assert_eq!(refusal.number(), number);
                known += 1;
            }
        }
        assert_eq!((known, Refusal::from_number(0)), (6, None));
    }
}

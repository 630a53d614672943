//! The location of a region, as its owner reports it to a peer that may access it by RDMA
//! ([`FrameKind::Located`](super::head::FrameKind::Located)).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The owner's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocateAnswer {
    /// The peer can access the region through its queue pair for accesses.
    Granted(AccessGrant),
    /// The owner executes each access itself.
    Executed,
    /// The owner has no region with this key, or cannot grant access at the moment. The peer does not store this
    /// answer.
    Unknown,
}

/// A region that a peer can access.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AccessGrant {
    /// The owner's number of the grant.
    pub number: u32,
    /// Whether the peer may read.
    pub reads: bool,
    /// Whether the peer may write.
    pub writes: bool,
    /// The region's key for the device.
    pub remote_key: u32,
    /// The first byte's address as used by peers.
    pub base: u64,
    /// The length in bytes. It is not 0, and so small that the address of the last byte fits in 64 bits, from either
    /// base.
    pub len: u64,
    /// The first byte's address for the device.
    pub address: u64,
}

// Keys are secrets.
percale_memory::short_debug!(AccessGrant, "AccessGrant", number: |this| this.number, reads: |this| this.reads, writes: |this| this.writes, len: |this| this.len);
percale_memory::short_debug!(LocatedBytes, "LocatedBytes");

/// The wire representation of [`LocateAnswer`].
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LocatedBytes {
    status: u8,
    /// The rights of the peer: 1 to read, 2 to write.
    rights: u8,
    reserved: U16,
    number: U32,
    remote_key: U32,
    reserved_too: U32,
    base: U64,
    len: U64,
    address: U64,
}

const GRANTED: u8 = 1;
const EXECUTED: u8 = 2;
const UNKNOWN: u8 = 3;
const READS: u8 = 1;
const WRITES: u8 = 2;

impl LocatedBytes {
    /// Returns the wire representation.
    #[must_use]
    pub fn of(located: &LocateAnswer) -> Self {
        let grant = match located {
            LocateAnswer::Granted(grant) => grant,
            LocateAnswer::Executed => return Self { status: EXECUTED, ..Self::default() },
            LocateAnswer::Unknown => return Self { status: UNKNOWN, ..Self::default() },
        };
        Self {
            status: GRANTED,
            rights: if grant.reads { READS } else { 0 } | if grant.writes { WRITES } else { 0 },
            number: grant.number.into(),
            remote_key: grant.remote_key.into(),
            base: grant.base.into(),
            len: grant.len.into(),
            address: grant.address.into(),
            ..Self::default()
        }
    }

    /// Parses the wire representation. Returns `None` if it is invalid.
    #[must_use]
    pub fn parse(&self) -> Option<LocateAnswer> {
        let located = match self.status {
            GRANTED => LocateAnswer::Granted(AccessGrant {
                number: self.number.get(),
                reads: self.rights & READS != 0,
                writes: self.rights & WRITES != 0,
                remote_key: self.remote_key.get(),
                base: self.base.get(),
                len: self.len.get(),
                address: self.address.get(),
            }),
            EXECUTED => LocateAnswer::Executed,
            UNKNOWN => LocateAnswer::Unknown,
            _ => return None,
        };
        if let LocateAnswer::Granted(AccessGrant { reads, writes, base, len, address, .. }) = located {
            let last = len.checked_sub(1)?;
            base.checked_add(last)?;
            address.checked_add(last)?;
            if !reads && !writes {
                return None;
            }
        }
        // No other field is set.
        (Self::of(&located).as_bytes() == self.as_bytes()).then_some(located)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn located_message_round_trips(
            number: u32, remote_key: u32, base in 0..u64::MAX / 2, address in 0..u64::MAX / 2, len in 1..u64::MAX / 2,
            rights in 1u8..=3,
        ) {
            let (reads, writes) = (rights & READS != 0, rights & WRITES != 0);
            let grant = AccessGrant { number, reads, writes, remote_key, base, len, address };
            for located in [LocateAnswer::Granted(grant), LocateAnswer::Executed, LocateAnswer::Unknown] {
                prop_assert_eq!(LocatedBytes::of(&located).parse(), Some(located));
            }
        }

        #[test]
        fn arbitrary_located_bytes_parse_or_are_rejected(bytes: [u8; size_of::<LocatedBytes>()], calm: bool) {
            let mut read = LocatedBytes::read_from_bytes(&bytes).expect("an array of this size");
            if calm {
                // For most fields nearly all random values are invalid, so choose these here.
                (read.status, read.rights, read.reserved, read.reserved_too) = (1, read.rights % 5, 0.into(), 0.into());
            }
            if let Some(located) = read.parse() {
                let written = LocatedBytes::of(&located);
                prop_assert_eq!(written.as_bytes(), read.as_bytes());
                if let LocateAnswer::Granted(AccessGrant { base, len, address, .. }) = located {
                    prop_assert!(len > 0 && base.checked_add(len - 1).is_some() && address.checked_add(len - 1).is_some());
                }
            }
        }
    }

    #[test]
    fn wrapping_ranges_are_rejected() {
        let grant = AccessGrant { number: 1, reads: true, writes: false, remote_key: 2, base: 0, len: 8, address: 0 };
        for bad in [
            AccessGrant { len: 0, ..grant },
            AccessGrant { base: u64::MAX - 6, ..grant },
            AccessGrant { address: u64::MAX - 6, ..grant },
            AccessGrant { reads: false, ..grant },
        ] {
            assert_eq!(LocatedBytes::of(&LocateAnswer::Granted(bad)).parse(), None, "{bad:?}");
        }
        let last = AccessGrant { base: u64::MAX - 7, address: u64::MAX - 7, ..grant };
        assert_eq!(LocatedBytes::of(&LocateAnswer::Granted(last)).parse(), Some(LocateAnswer::Granted(last)));
    }
}

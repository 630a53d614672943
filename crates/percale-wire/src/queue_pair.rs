//! The identities of queue pairs, which two endpoints exchange over TCP after a verdict for verbs. The initiator sends
//! first.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::malformed::Malformed;

/// An address of a port: 128 bits, in network order.
pub type Gid = [u8; 16];

/// One end of a connection, as described to the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairEnd {
    /// The number of the queue pair (24 bits).
    pub pair: u32,
    /// The number of its first packet (24 bits).
    pub sequence: u32,
    /// The local identifier (LID) of its port, or 0 with Ethernet.
    pub lid: u16,
    /// The GID of its port.
    pub gid: Gid,
    /// The MTU of its port as a number from 1 (256 bytes) to 5 (4,096 bytes). Each number doubles the MTU.
    pub mtu: u8,
}

/// A queue pair that was created, or the errno (not 0) that is the reason why none was.
pub type Offered = Result<QueuePairEnd, u32>;

/// The wire representation of [`Offered`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OfferedBytes {
    errno: U32,
    pair: U32,
    sequence: U32,
    lid: U16,
    mtu: u8,
    reserved: u8,
    gid: Gid,
}

impl OfferedBytes {
    /// Returns the wire representation.
    #[must_use]
    pub fn of(offered: &Offered) -> Self {
        let nothing = QueuePairEnd { pair: 0, sequence: 0, lid: 0, gid: [0; 16], mtu: 0 };
        let (errno, end) = match offered {
            Ok(end) => (0, *end),
            Err(errno) => ((*errno).max(1), nothing),
        };
        Self {
            errno: U32::new(errno),
            pair: U32::new(end.pair),
            sequence: U32::new(end.sequence),
            lid: U16::new(end.lid),
            mtu: end.mtu,
            reserved: 0,
            gid: end.gid,
        }
    }

    /// Parses the wire representation.
    ///
    /// # Errors
    /// If a field has an invalid value.
    pub fn parse(&self) -> Result<Offered, Malformed> {
        let errno = self.errno.get();
        if errno != 0 {
            let blank = Self::of(&Err(errno));
            let same = blank.as_bytes() == self.as_bytes();
            return if same {
                Ok(Err(errno))
            } else {
                Err(Malformed::Field("a queue pair that was not created has a number"))
            };
        }
        let end = QueuePairEnd {
            pair: self.pair.get(),
            sequence: self.sequence.get(),
            lid: self.lid.get(),
            gid: self.gid,
            mtu: self.mtu,
        };
        if end.pair >> 24 != 0 || end.sequence >> 24 != 0 || !(1..=5).contains(&end.mtu) || self.reserved != 0 {
            return Err(Malformed::Field("invalid description of a queue pair"));
        }
        Ok(Ok(end))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn impossible_queue_pairs_are_rejected() {
        let end = QueuePairEnd { pair: 1, sequence: 2, lid: 3, gid: [4; 16], mtu: 5 };
        let parsed = |end| OfferedBytes::of(&Ok(end)).parse();
        assert_eq!(parsed(end), Ok(Ok(end)));
        for wrong in [
            QueuePairEnd { mtu: 0, ..end },
            QueuePairEnd { mtu: 6, ..end },
            QueuePairEnd { mtu: u8::MAX, ..end },
            QueuePairEnd { pair: 1 << 24, ..end },
            QueuePairEnd { sequence: 1 << 24, ..end },
        ] {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
        assert!(OfferedBytes { reserved: 1, ..OfferedBytes::of(&Ok(end)) }.parse().is_err());
    }

    proptest! {
        #[test]
        fn queue_pair_offer_round_trips(
            pair in 0u32..1 << 24, sequence in 0u32..1 << 24, lid: u16, gid: [u8; 16], mtu in 1u8..=5, errno in 1u32..,
        ) {
            for offered in [Ok(QueuePairEnd { pair, sequence, lid, gid, mtu }), Err(errno)] {
                prop_assert_eq!(OfferedBytes::of(&offered).parse(), Ok(offered));
            }
        }

        #[test]
        fn arbitrary_offer_bytes_parse_or_are_rejected(bytes: [u8; size_of::<OfferedBytes>()], calm: bool) {
            let mut read = OfferedBytes::read_from_bytes(&bytes).expect("of this size");
            if calm {
                // For most fields nearly all random values are invalid, so choose these here.
                (read.errno, read.reserved, read.mtu) = (U32::new(0), 0, read.mtu % 7);
                (read.pair, read.sequence) = (U32::new(read.pair.get() >> 7), U32::new(read.sequence.get() >> 8));
            }
            if let Ok(offered) = read.parse() {
                let written = OfferedBytes::of(&offered);
                prop_assert_eq!(written.as_bytes(), read.as_bytes());
            }
        }
    }
}

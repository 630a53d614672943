//! The messages that the members of a list exchange when they join a group (see
//! [`FrameKind::Collective`](super::head::FrameKind::Collective)).
//!
//! Such a message is a message of a group without payload. Its tag is a digest of the list, and its data is a [`Join`].

/// The minimum value of data that is a [`Join`]. The maximum is below [`ABORT`](super::head::ABORT).
pub const JOIN: u64 = 1 << 63;

/// The position of the kind of the message, in the bits below the mark.
const KIND: u32 = 61;
/// The bits below the kind, which are the content of the message.
const REST: u64 = (1 << KIND) - 1;
/// The number of bits of the number of a failed attempt. The number of the error is above these bits.
const NUMBER: u32 = 45;

/// A control message that the members of a group exchange when they join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// Sent to the member above the sender. The sender and all members below it have joined. Contains the number of the
    /// sender's attempt.
    Ready(u64),
    /// Sent to a member below the sender, for its attempt. All members have joined. Contains the name of the group.
    Agreed(u64),
    /// Sent to the members above and below the sender. The sender's attempt with this number has failed.
    Failed {
        /// The number of the attempt.
        number: u64,
        /// The number of the error.
        error: u16,
    },
}

impl Join {
    /// Returns the wire representation.
    #[must_use]
    #[inline]
    pub const fn to_data(self) -> u64 {
        JOIN | match self {
            Self::Ready(number) => number & REST,
            Self::Agreed(name) => 1 << KIND | name & REST,
            Self::Failed { number, error } => 2 << KIND | (error as u64) << NUMBER | number & ((1 << NUMBER) - 1),
        }
    }

    /// Decodes the wire representation. Returns `None` if the value is invalid.
    #[must_use]
    #[inline]
    pub const fn from_data(data: u64) -> Option<Self> {
        let rest = data & REST;
        match data >> KIND {
            0b100 => Some(Self::Ready(rest)),
            0b101 => Some(Self::Agreed(rest)),
            0b110 => Some(Self::Failed { number: rest & ((1 << NUMBER) - 1), error: (rest >> NUMBER) as u16 }),
            _ => None,
        }
    }

    /// Returns the name of a group, which is the transmitted part of a digest.
    #[must_use]
    #[inline]
    pub const fn name(digest: u64) -> u64 {
        digest & REST
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::ABORT;

    #[test]
    fn join_messages_round_trip() {
        for said in [
            Join::Ready(1),
            Join::Ready(REST),
            Join::Agreed(0),
            Join::Agreed(Join::name(u64::MAX)),
            Join::Failed { number: (1 << NUMBER) - 1, error: u16::MAX },
            Join::Failed { number: 7, error: 104 },
        ] {
            let data = said.to_data();
            assert!((JOIN..ABORT).contains(&data), "{said:?} must be outside the range of aborts and group messages");
            assert_eq!(Join::from_data(data), Some(said));
        }
        assert_eq!([0, JOIN - 1, ABORT, u64::MAX, 7 << KIND].map(Join::from_data), [None; 5]);
    }
}

//! The packets that two endpoints on one host exchange at their meeting, on an abstract Unix socket. Each message is
//! one packet: `MeetingOffer` →, ← `MeetingAnswer`, `Confirm` →. The first two carry descriptors. The last one commits
//! the connection.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::hello::Token;
use super::refusal_reason::RefusalReason;

/// The first bytes of every packet of a meeting.
const MEETING: U32 = U32::new(0x6d65_6574);

/// One side's part of a meeting. It is passed together with that side's descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MeetingHalf {
    /// The bit of its doorbell that the peer sets.
    pub bit: U32,
    /// Always 0.
    pub reserved: U32,
    /// The address of a word in its memory that the peer may try to read.
    pub word_address: U64,
    /// The value of that word.
    pub word_value: U64,
    /// A random number that the peer returns, which proves that the peer was alive after its pidfd was opened.
    pub challenge: U64,
}

/// The initiator's packet, which carries the pair memory, its doorbell page and its eventfd.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MeetingOffer {
    magic: U32,
    reserved: U32,
    /// The token from the verdict.
    pub token: Token,
    /// The initiator's part.
    pub half: MeetingHalf,
}

// The token is a secret.
percale_memory::short_debug!(MeetingOffer, "MeetingOffer");

impl MeetingOffer {
    /// Creates the packet for this connection.
    #[must_use]
    #[inline]
    pub const fn new(token: Token, half: MeetingHalf) -> Self {
        Self { magic: MEETING, reserved: U32::new(0), token, half }
    }

    /// Returns whether every fixed field has its value.
    #[must_use]
    #[inline]
    pub fn is_sound(&self) -> bool {
        self.magic == MEETING && self.reserved.get() == 0 && self.half.reserved.get() == 0
    }
}

/// The acceptor's packet, which carries its doorbell page and its eventfd, or no descriptors and the reason.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MeetingAnswer {
    magic: U32,
    why: u8,
    reserved: [u8; 3],
    errno: U32,
    reserved_too: U32,
    /// The challenge of the offer.
    pub echo: U64,
    /// The acceptor's part.
    pub half: MeetingHalf,
}

impl MeetingAnswer {
    /// Creates a packet with the outcome of the meeting.
    #[must_use]
    #[inline]
    pub const fn new(why: RefusalReason, errno: u32, echo: U64, half: MeetingHalf) -> Self {
        let (errno, reserved_too) = (U32::new(errno), U32::new(0));
        Self { magic: MEETING, why: why as u8, reserved: [0; 3], errno, reserved_too, echo, half }
    }

    /// Returns the outcome, which is [`RefusalReason::SameHost`] on success, and the kernel's error number. Returns
    /// `None` if the packet is malformed.
    #[must_use]
    #[inline]
    pub fn outcome(&self) -> Option<(RefusalReason, u32)> {
        let reserved = self.reserved == [0; 3] && self.reserved_too.get() == 0 && self.half.reserved.get() == 0;
        let sound = self.magic == MEETING && reserved;
        if sound { Some((RefusalReason::from_u8(self.why)?, self.errno.get())) } else { None }
    }
}

/// The initiator's last packet. From this packet on the pair uses shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Confirm {
    magic: U32,
    reserved: U32,
    /// The challenge of the answer.
    pub echo: U64,
}

impl Confirm {
    /// Creates the packet that returns this challenge.
    #[must_use]
    #[inline]
    pub const fn new(echo: U64) -> Self {
        Self { magic: MEETING, reserved: U32::new(0), echo }
    }
}

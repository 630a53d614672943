//! The payload of a `Pull` frame between shared-memory links. It has 40 bytes, so that the frame fits one line.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::local_memory::volatile::IOV_LIMIT;
use crate::wire::form::RING_PULL;

/// The destination of a pull, and the slot that contains the state of both sides.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct PullRequest {
    /// The puller's slot, or [`NO_SLOT`] if no bytes are requested.
    pub(super) slot: u8,
    /// 1 if the puller can copy the payload itself.
    pub(super) puller_copies: u8,
    /// The number of segments of the destination. The destination can be written from outside only if it has one
    /// segment. 0 for a destination that can be revoked.
    pub(super) pieces: u8,
    pub(super) reserved: u8,
    /// The length of a chunk in bytes.
    pub(super) chunk: U32,
    /// The number of bytes requested, from the source's beginning.
    pub(super) wanted: U64,
    /// The address of the destination's first byte in the puller.
    pub(super) address: U64,
    /// The puller's arena that contains the destination, or 0. `offset` is the position in that arena.
    pub(super) arena: U32,
    pub(super) reserved2: U32,
    pub(super) offset: U64,
}

const _: () = assert!(size_of::<PullRequest>() == RING_PULL);

impl PullRequest {
    /// Returns whether the fields fit together. A destination has a location only if it has one segment.
    pub(super) const fn is_sound(&self) -> bool {
        let located = self.address.get() != 0 || self.arena.get() != 0;
        self.reserved == 0
            && self.reserved2.get() == 0
            && self.puller_copies <= 1
            && (!located || self.pieces == 1)
            && (self.offset.get() == 0 || self.arena.get() != 0)
            && self.pieces as usize <= IOV_LIMIT
    }
}

/// The slot number of a pull of zero bytes.
pub(super) const NO_SLOT: u8 = 0xFF;

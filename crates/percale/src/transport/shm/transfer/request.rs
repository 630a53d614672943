//! The payload of a `Pull` frame between shared-memory links: 40 bytes, so that the frame is one line.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Where the puller wants the payload, and in which slot both account for it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Request {
    /// The puller's slot, or [`NO_SLOT`] if nothing is wanted.
    pub(super) slot: u8,
    /// 1 if the puller can copy by itself.
    pub(super) puller_copies: u8,
    /// Segments of the destination. It can be written from outside only if there is one; a destination that can be revoked
    /// says 0.
    pub(super) pieces: u8,
    pub(super) reserved: u8,
    /// Bytes in a chunk.
    pub(super) chunk: U32,
    /// Bytes wanted, from the source's beginning.
    pub(super) wanted: U64,
    /// The destination's first byte, in the puller.
    pub(super) address: U64,
    /// The puller's arena that the destination lies in, or 0; and where.
    pub(super) arena: U32,
    pub(super) reserved2: U32,
    pub(super) offset: U64,
}

const _: () = assert!(size_of::<Request>() == 40);

/// The slot of a pull of nothing.
pub(super) const NO_SLOT: u8 = 0xFF;

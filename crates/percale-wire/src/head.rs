//! The head at the start of every frame.

use bitflags::bitflags;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum FrameKind {
    /// An untagged message with its payload. `tag` is not read.
    #[default]
    Message = 1,
    /// A tagged message with its payload.
    Tagged = 2,
    /// An untagged message. Its payload stays with the sender for now. The frame's payload is an offer ([`Offer`]).
    MessageOffer = 3,
    /// A tagged message. Its payload stays with the sender for now, as for [`MessageOffer`](Self::MessageOffer).
    TaggedOffer = 4,
    /// The receiver requests the payload of an offer. `id` is the sender's operation, and `tag` the receiver's token.
    /// The payload is the transport's description of the destination.
    Pull = 5,
    /// Bytes that a pull requested. `id` is the receiver's token, and `tag` the offset of these bytes. Without bytes,
    /// at offset [`GONE`], the frame ends the pull as failed. In this case `data` is 0 or, for an expected read, the
    /// number of the refusal.
    Data = 6,
    /// The receiver does not need any more of an offer. `id` is the sender's operation.
    Pulled = 7,
    /// A message that requested an acknowledgement (`Flags::ACK`) was delivered. `id` is the sender's operation. `tag`
    /// is 0, or the error code if the message was not delivered.
    Ack = 8,
    /// The receiver's unexpected messages fill their share of memory, and the peer must offer messages instead of
    /// sending them (`id` = 1). With `id` = 0 the peer need no longer do so.
    Offers = 9,
    /// The sender closes the connection normally. No further frames follow.
    Bye = 10,
    /// An empty frame, which keeps the transport's bookkeeping up to date.
    Nothing = 11,
    /// A frame of the transport. It announces resources that follow on the transport's control channel, or a change of
    /// its rings.
    Transport = 12,
    /// Bytes to be written to a region. `data` is its key, `tag` the address, and `id` the initiator's part.
    Write = 13,
    /// Like [`Write`](Self::Write), but the bytes wait at the initiator, and the payload is an [`Offer`].
    WriteOffer = 14,
    /// A request for bytes of a region. `data`, `tag` and `id` are as for [`Write`](Self::Write). The payload is a
    /// [`ReadHead`].
    Read = 15,
    /// Bytes that a read requested, or values that an atomic operation fetched. `id` is the initiator's part, which
    /// this frame completes. `data` (with [`Flags::DATA`]) is as for [`Done`](Self::Done).
    ReadData = 16,
    /// The bytes that a read requested wait at the target. `id` is the initiator's part, `tag` the target's operation,
    /// and the payload an [`Offer`].
    ReadOffer = 17,
    /// An atomic operation on a region. `data`, `tag` and `id` are as for [`Write`](Self::Write). The payload is an
    /// [`AtomicHead`] and the operands.
    Atomic = 18,
    /// A part of a remote access is complete. `id` is the initiator's part, and `tag` is 0 or the number of the
    /// refusal. If a [`Wrote`](Self::Wrote) may follow, `data` (with [`Flags::DATA`]) is the generation of the region
    /// that was changed.
    Done = 19,
    /// A peer has written or read a region. `tag` is the key, `data` (with [`Flags::DATA`]) the remote completion data,
    /// and `id` a [`Counts`] with the counters that the target still has to update. The payload is a [`WriteNotice`].
    Wrote = 20,
    /// For local transports: a query for direct access to the region with the key `data`. `id` is chosen by the sender.
    Resolve = 21,
    /// The answer to [`Resolve`](Self::Resolve).
    Resolved = 22,
    /// For local transports: the initiator makes a long access to the region with the key `data`, at the address `tag`,
    /// with its number `id`. The target may help.
    Assist = 23,
    /// The sender counts accesses of these kinds to its regions (`id` is a [`Counts`]), so the receiver must report
    /// accesses that the sender does not execute. This is the first frame of a connection.
    Counts = 24,
    /// A message about a connection of endpoints that each have a single connection (see [`control`](super::control)).
    Control = 25,
    /// A message of a group. `tag` identifies the group, and `data` the operation to which it belongs. A message
    /// without payload has another meaning if `data` is large. From [`ABORT`] on, the group is broken, and the low half
    /// is the error number. From [`JOIN`](super::join::JOIN) on, `data` is a [`Join`](super::join::Join), and `tag`
    /// identifies a list of members.
    Collective = 26,
    /// Like [`Collective`](Self::Collective), but the payload stays with the sender for now.
    CollectiveOffer = 27,
    /// Only over verbs, like the next three kinds. The identity of a queue pair for accesses by the requesting side
    /// (`id` 0), or of the queue pair at its other end (`id` 1). The payload is an
    /// [`OfferedBytes`](super::queue_pair::OfferedBytes).
    QueuePair = 28,
    /// A query for the location of the region with the key `data`, for RDMA. `id` is chosen by the sender.
    Locate = 29,
    /// The answer to [`Locate`](Self::Locate): a [`LocateAnswer`](super::located::LocateAnswer).
    Located = 30,
    /// The grant with the number `id`, of the region with the key `data`, is revoked (`tag` 0). The initiator answers
    /// with the same frame and `tag` 1, once none of its posted operations uses the grant any more. With `tag` 2, and
    /// neither `id` nor `data`, the target's end of the queue pair for granted accesses is in error. The grants stay
    /// valid over another queue pair.
    Revoked = 31,
}

impl FrameKind {
    /// Returns whether frames of this kind begin an operation. Their sender can delay them. So when the queue of a link
    /// is full, the frames that the link still accepts are reserved for completing operations that are in progress.
    #[must_use]
    #[inline]
    pub const fn begins(self) -> bool {
        use FrameKind::{Atomic, Message, MessageOffer, Read, Tagged, TaggedOffer, Write, WriteOffer};
        matches!(self, Message | Tagged | MessageOffer | TaggedOffer | Write | WriteOffer | Read | Atomic)
            || matches!(self, Self::Collective | Self::CollectiveOffer)
    }

    /// Returns the kind with this number, if there is one.
    #[must_use]
    #[inline]
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            1 => Self::Message,
            2 => Self::Tagged,
            3 => Self::MessageOffer,
            4 => Self::TaggedOffer,
            5 => Self::Pull,
            6 => Self::Data,
            7 => Self::Pulled,
            8 => Self::Ack,
            9 => Self::Offers,
            10 => Self::Bye,
            11 => Self::Nothing,
            12 => Self::Transport,
            13 => Self::Write,
            14 => Self::WriteOffer,
            15 => Self::Read,
            16 => Self::ReadData,
            17 => Self::ReadOffer,
            18 => Self::Atomic,
            19 => Self::Done,
            20 => Self::Wrote,
            21 => Self::Resolve,
            22 => Self::Resolved,
            23 => Self::Assist,
            24 => Self::Counts,
            25 => Self::Control,
            26 => Self::Collective,
            27 => Self::CollectiveOffer,
            28 => Self::QueuePair,
            29 => Self::Locate,
            30 => Self::Located,
            31 => Self::Revoked,
            _ => return None,
        })
    }
}

bitflags! {
    /// Flags of a frame. They describe its contents and requests.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Flags: u8 {
        /// `data` has a value: 8 bytes of remote completion data, or as defined by [`FrameKind`].
        const DATA = 1;
        /// `id` has a value.
        const ID = 2;
        /// The receiver answers with [`FrameKind::Ack`] once the message is in its application's buffer. Implies `ID`.
        const ACK = 4;
        /// For a [`FrameKind::Write`]: the last 8 bytes of the payload are completion data for the target.
        const TELLS = 8;
        /// The frame is one of several parts of an access, and the target does not count it.
        const PART = 16;
        /// For a message: `data` is the key of a window that the receiver invalidates first. Always set together with
        /// [`ACK`](Self::ACK).
        const INVALIDATE = 32;
    }
}

bitflags! {
    /// The counters of the target that count an access.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Counts: u32 {
        /// The region, if it has a counter.
        const REGION = 1;
        /// The endpoint, if it counts writes and non-fetching atomic operations.
        const WRITES = 2;
        /// The endpoint, if it counts reads and fetching atomic operations.
        const READS = 4;
    }
}

/// The payload of a [`FrameKind::Wrote`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WriteNotice {
    /// The generation of the region that was accessed, because its key may have been assigned to another region since
    /// then. It is 0 if the initiator does not have it, which is possible for reads. In this case nothing is reported,
    /// and only the endpoint's counters are updated.
    pub generation: U64,
    /// The number of bytes that were accessed.
    pub len: U64,
}

/// The maximum number of bytes of a region in one [`FrameKind::ReadData`] frame, and in one [`FrameKind::Write`] frame,
/// unless a link that is a stream carries longer frames. Longer transfers are offered.
pub const RMA_EAGER: usize = 16 << 10;

/// The start of the range of `data` in which a [`FrameKind::Collective`] frame aborts its group.
pub const ABORT: u64 = 0xffff_ffff_0000_0000;

/// The offset of a [`FrameKind::Data`] frame that announces that no bytes follow.
pub const GONE: u64 = u64::MAX;

/// The head of a frame, as plain values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The kind of the frame.
    pub kind: FrameKind,
    /// Its flags.
    pub flags: Flags,
    /// The length of the payload in this frame, in bytes.
    pub len: u32,
    /// The tag of a tagged message, otherwise as defined by [`FrameKind`].
    pub tag: u64,
    /// Remote completion data with [`Flags::DATA`], otherwise as defined by [`FrameKind`]. Over shared memory it is 0
    /// without [`Flags::DATA`].
    pub data: u64,
    /// An operation or token, as defined by [`FrameKind`], or 0 without [`Flags::ID`].
    pub id: u32,
}

/// The representation of a head on a byte stream.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HeadBytes {
    kind: u8,
    flags: u8,
    reserved: [u8; 2],
    len: U32,
    id: U32,
    check: U32,
    tag: U64,
    data: U64,
}

/// The size of a head on a byte stream, in bytes.
pub const HEAD_BYTES: usize = size_of::<HeadBytes>();

/// The check word of every head, which detects a lost position in the stream at once.
const CHECK: u32 = 0x7065_7263;

impl Head {
    /// Returns the representation on a byte stream.
    #[must_use]
    #[inline]
    pub fn to_bytes(&self) -> HeadBytes {
        HeadBytes {
            kind: self.kind as u8,
            flags: self.flags.bits(),
            reserved: [0; 2],
            len: U32::new(self.len),
            id: U32::new(self.id),
            check: U32::new(CHECK),
            tag: U64::new(self.tag),
            data: U64::new(self.data),
        }
    }

    /// Parses the representation on a byte stream. Returns `None` if it is not a head of this version.
    #[must_use]
    #[inline]
    pub fn from_bytes(bytes: &HeadBytes) -> Option<Self> {
        if bytes.check.get() != CHECK || bytes.reserved != [0; 2] {
            return None;
        }
        Some(Self {
            kind: FrameKind::from_u8(bytes.kind)?,
            flags: Flags::from_bits(bytes.flags)?,
            len: bytes.len.get(),
            tag: bytes.tag.get(),
            data: bytes.data.get(),
            id: bytes.id.get(),
        })
    }
}

/// The payload of the frames that offer data, such as [`FrameKind::MessageOffer`]. It contains the length of the
/// waiting data, and its location for a local peer. The receiver may read a source directly only if it is one piece
/// (`pieces`). A vectored source has more pieces. A source that may be revoked in the meantime has 0 pieces, and its
/// address and arena are 0. In both cases the sender pushes or sends the data.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Offer {
    /// The number of bytes that wait at the sender.
    pub len: U64,
    /// The address of the first byte in the sender, or 0 if the receiver cannot use it.
    pub address: U64,
    /// The sealed arena that contains the source, or 0 if `address` is ordinary memory.
    pub arena: U32,
    /// The number of segments of the source, or 0 if only the sender may read it.
    pub pieces: U32,
    /// The offset of the first byte in that arena.
    pub offset: U64,
}

impl Offer {
    /// Checks that the fields fit together. `longest` is the length of the longest payload that can be offered, and
    /// `pieces` the largest number of segments.
    ///
    /// # Errors
    /// A description of the defect.
    pub fn check(&self, longest: u64, pieces: u32) -> Result<(), &'static str> {
        if self.len.get() > longest {
            return Err("an offer of more bytes than a message may have");
        }
        if self.pieces.get() > pieces {
            return Err("an offer with too many pieces");
        }
        let located = self.address.get() != 0 || self.arena.get() != 0;
        if (located && self.pieces.get() != 1) || (self.offset.get() != 0 && self.arena.get() == 0) {
            return Err("an offer with an invalid location");
        }
        Ok(())
    }
}

/// The payload of a [`FrameKind::Read`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReadHead {
    /// The number of bytes.
    pub len: U64,
    /// 0, or one more than the token of a pull that the initiator has begun for these bytes. The target then sends them
    /// at once as the data of that pull. This is used only over links that are streams.
    pub expected: U64,
}

/// The start of the payload of a [`FrameKind::Atomic`]. The operands follow, and after them (for a compare) the same
/// number of compare values.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AtomicHead {
    /// The number of the operation.
    pub op: u8,
    /// The number of the data type.
    pub datatype: u8,
    /// 0 if nothing is returned, 1 if the previous values are returned, and 2 if in addition compare values follow.
    pub kind: u8,
    /// Always 0.
    pub reserved: u8,
    /// The number of elements.
    pub count: U32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_with_reserved_bytes_or_another_check_word_is_invalid() {
        let head = Head { kind: FrameKind::Tagged, flags: Flags::DATA, len: 1, tag: 2, data: 3, id: 0 };
        let bytes = head.to_bytes();
        assert!(Head::from_bytes(&bytes).is_some_and(|read| read == head));
        for reserved in [[1, 0], [0, 1], [255; 2]] {
            assert!(Head::from_bytes(&HeadBytes { reserved, ..bytes }).is_none(), "{reserved:?}");
        }
        assert!(Head::from_bytes(&HeadBytes { check: U32::new(CHECK ^ 1), ..bytes }).is_none());
    }

    /// Frames of the other kinds complete operations, so their sender must not wait for room.
    #[test]
    fn frames_that_begin_operations_can_be_delayed() {
        use FrameKind::{
            Atomic, Collective, CollectiveOffer, Message, MessageOffer, Read, Tagged, TaggedOffer, Write, WriteOffer,
        };
        let begins =
            [Message, Tagged, MessageOffer, TaggedOffer, Write, WriteOffer, Read, Atomic, Collective, CollectiveOffer];
        let kinds = (0..=u8::MAX).filter_map(FrameKind::from_u8);
        assert!(kinds.clone().count() > begins.len());
        kinds.for_each(|kind| assert_eq!(kind.begins(), begins.contains(&kind), "{kind:?}"));
    }
}

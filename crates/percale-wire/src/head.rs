//! The head that every frame starts with.

use bitflags::bitflags;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Kind {
    /// An untagged message, payload included.
    #[default]
    Message = 1,
    /// A tagged message, payload included.
    Tagged = 2,
    /// An untagged message with a payload that waits at its sender: the frame's payload is an offer ([`Offer`]).
    MessageOffer = 3,
    /// A tagged message with a payload that waits at its sender, as for [`MessageOffer`](Self::MessageOffer).
    TaggedOffer = 4,
    /// The receiver asks for the payload of an offer: `id` is the sender's operation, `tag` the receiver's token; the
    /// payload is the transport's own description of where to put it.
    Pull = 5,
    /// Bytes that a pull asked for: `id` is the receiver's token, `tag` the offset of these bytes. Without bytes, at offset
    /// [`GONE`]: the pull is over and has failed; `data` is then 0 or, for an expected read, the number of the refusal.
    Data = 6,
    /// The receiver has all it wanted of an offer: `id` is the sender's operation.
    Pulled = 7,
    /// A message that asked for it (`Flags::ACK`) was delivered: `id` is the sender's operation; `tag` is 0, or the
    /// error code with which it was not.
    Ack = 8,
    /// The receiver's unexpected messages fill their share of memory: offer, do not send (`id` = 1), or no more so (0).
    Offers = 9,
    /// The sender closes the connection in good order; nothing follows.
    Bye = 10,
    /// Nothing: keeps the transport's own bookkeeping going.
    Nothing = 11,
    /// The transport's own: which resources follow on its control channel, or how its rings change.
    Transport = 12,
    /// Bytes to be written to a region: `data` is its key, `tag` the address, `id` the initiator's part.
    Write = 13,
    /// Like [`Write`](Self::Write), but the bytes wait at the initiator: the payload is an [`Offer`].
    WriteOffer = 14,
    /// A request for bytes of a region: `data`, `tag` and `id` as for [`Write`](Self::Write), the payload is a [`ReadHead`].
    Read = 15,
    /// Bytes that a read asked for, or what an atomic fetched: `id` is the initiator's part, which ends with this. `data` (with
    /// [`Flags::DATA`]) as for [`Done`](Self::Done).
    ReadData = 16,
    /// The bytes that a read asked for wait at the target: `id` is the initiator's part, `tag` the target's operation, the
    /// payload an [`Offer`].
    ReadOffer = 17,
    /// An atomic operation on a region: `data`, `tag` and `id` as for [`Write`](Self::Write), the payload is an
    /// [`AtomicHead`] and the operands.
    Atomic = 18,
    /// A part of a remote access is over: `id` is the initiator's part, `tag` 0 or the number of the refusal. Where a
    /// [`Wrote`](Self::Wrote) may follow, `data` (with [`Flags::DATA`]) is the generation of the region that was changed.
    Done = 19,
    /// A peer wrote a region, or read it: `tag` is the key, `data` (with [`Flags::DATA`]) the remote completion data, `id` what the
    /// target has yet to count, as [`Counts`] has it. The payload is a [`Notice`].
    Wrote = 20,
    /// Local transports: how can the region with the key `data` be reached without the target? `id` is the asker's.
    Resolve = 21,
    /// The answer to [`Resolve`](Self::Resolve).
    Resolved = 22,
    /// Local transports: the initiator makes a long access to the region with the key `data`, at the address `tag`, as its number
    /// `id`; the target may help.
    Assist = 23,
    /// The sender counts accesses to its regions, of these kinds (`id`, as [`Counts`] has them): the receiver has to report those that the sender
    /// does not execute. First of all frames of a connection.
    Counts = 24,
    /// About a connection of endpoints that have one each: see [`control`](super::control).
    Control = 25,
    /// A message of a group: `tag` names the group, `data` the operation that it belongs to. Without payload, and with `data` from
    /// [`ABORT`] on: the group is broken, with the error of that number (the low half); from [`JOIN`](super::join::JOIN) on: a
    /// [`Join`](super::join::Join), and `tag` names a list of members.
    Collective = 26,
    /// Like [`Collective`](Self::Collective), but the payload waits at its sender.
    CollectiveOffer = 27,
    /// Over verbs, as the next three: names a queue pair for accesses of the side that asks (`id` 0), or the one at its other end (`id` 1). The
    /// payload is an [`OfferedBytes`](super::queue_pair::OfferedBytes).
    QueuePair = 28,
    /// Where does the region with the key `data` lie, for RDMA? `id` is the asker's.
    Locate = 29,
    /// The answer to [`Locate`](Self::Locate): a [`Located`](super::located::Located).
    Located = 30,
    /// The grant with the number `id`, of the region with the key `data`, is gone (`tag` 0). Answered by the same with `tag` 1, once
    /// nothing that the initiator posted names it any more. With `tag` 2, and neither `id` nor `data`: the target's end of the queue pair by
    /// which grants are reached is in error; the grants stand, over another one.
    Revoked = 31,
}

impl Kind {
    /// Returns whether frames of this kind begin an operation. Their sender can keep them back, so what a link still takes when its
    /// queue is full is not meant for them but for what operations under way need to end.
    #[must_use]
    #[inline]
    pub const fn begins(self) -> bool {
        use Kind::{Atomic, Message, MessageOffer, Read, Tagged, TaggedOffer, Write, WriteOffer};
        matches!(self, Message | Tagged | MessageOffer | TaggedOffer | Write | WriteOffer | Read | Atomic)
            || matches!(self, Self::Collective | Self::CollectiveOffer)
    }

    /// The kind with this number, if there is one.
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
    /// What a frame carries or asks for besides its payload.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Flags: u8 {
        /// `data` holds 8 bytes of remote completion data.
        const DATA = 1;
        /// `id` is meaningful.
        const ID = 2;
        /// The receiver answers with [`Kind::Ack`] once the message is in its application's buffer. Implies `ID`.
        const ACK = 4;
        /// Of a [`Kind::Write`]: the last 8 bytes of the payload are completion data for the target.
        const TELLS = 8;
        /// This is one of several parts of an access: the target does not count it.
        const PART = 16;
        /// Of a message: `data` is the key of a window that the receiver invalidates first; [`ACK`](Self::ACK) goes with it.
        const INVALIDATE = 32;
    }
}

bitflags! {
    /// What counts an access at its target.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Counts: u32 {
        /// The region, if it has a counter.
        const REGION = 1;
        /// The endpoint, if it counts writes and atomic operations that fetch nothing.
        const WRITES = 2;
        /// The endpoint, if it counts reads and atomic operations that fetch.
        const READS = 4;
    }
}

/// The payload of a [`Kind::Wrote`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Notice {
    /// The generation of the region that was accessed: another may have its key by now. 0 if the initiator does not know it, of
    /// reads: then nothing is reported, and nothing counted but what the endpoint counts.
    pub generation: U64,
    /// The bytes that were accessed.
    pub len: U64,
}

/// The most bytes of a region that travel in one [`Kind::ReadData`] frame, and in one [`Kind::Write`] frame unless a link that is
/// a stream carries longer ones; longer ones are offered.
pub const RMA_EAGER: usize = 16 << 10;

/// See [`Kind::Collective`].
pub const ABORT: u64 = 0xffff_ffff_0000_0000;

/// The offset of a [`Kind::Data`] frame that announces that no bytes follow.
pub const GONE: u64 = u64::MAX;

/// What every frame starts with, as plain values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// What the frame is.
    pub kind: Kind,
    /// What it carries besides.
    pub flags: Flags,
    /// Payload bytes in this frame.
    pub len: u32,
    /// The tag of a tagged message, else as defined by [`Kind`].
    pub tag: u64,
    /// Remote completion data, 0 without [`Flags::DATA`].
    pub data: u64,
    /// An operation or token, as defined by [`Kind`]; 0 without [`Flags::ID`].
    pub id: u32,
}

/// A head as it travels over a byte stream.
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

/// Bytes of a head on a byte stream.
pub const HEAD_BYTES: usize = size_of::<HeadBytes>();

/// Stands in every head, so that a stream that lost its place is noticed at once.
const CHECK: u32 = 0x7065_7263;

impl Head {
    /// The head as it travels.
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

    /// Parses what travelled; `None` if no percale of this version wrote it.
    #[must_use]
    #[inline]
    pub fn from_bytes(bytes: &HeadBytes) -> Option<Self> {
        if bytes.check.get() != CHECK || bytes.reserved != [0; 2] {
            return None;
        }
        Some(Self {
            kind: Kind::from_u8(bytes.kind)?,
            flags: Flags::from_bits(bytes.flags)?,
            len: bytes.len.get(),
            tag: bytes.tag.get(),
            data: bytes.data.get(),
            id: bytes.id.get(),
        })
    }
}

/// The payload of a [`Kind::MessageOffer`], [`Kind::TaggedOffer`] or [`Kind::CollectiveOffer`]: how much waits, and where a local peer finds it. A
/// source may be read directly only if `pieces` is 1. A vectored one has more; one that may be revoked meanwhile has 0 there, and its address and
/// arena are 0: the sender pushes or sends those.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Offer {
    /// Bytes that wait at the sender.
    pub len: U64,
    /// The first byte's address in the sender, 0 if it is of no use to the receiver.
    pub address: U64,
    /// The sealed arena that holds the source, or 0: then `address` is ordinary memory.
    pub arena: U32,
    /// Segments of the source, or 0 if only the sender may read it.
    pub pieces: U32,
    /// Offset of the first byte in that arena.
    pub offset: U64,
}

/// The payload of a [`Kind::Read`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReadHead {
    /// How many bytes.
    pub len: U64,
    /// 0, or one more than the token of a pull that the initiator has begun for them: they are sent as its data at once. Only
    /// over links that are streams.
    pub expected: U64,
}

/// What the payload of a [`Kind::Atomic`] starts with; the operands follow, then (for a compare) as many compare values.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AtomicHead {
    /// The operation's number.
    pub op: u8,
    /// The data type's number.
    pub datatype: u8,
    /// 0: nothing comes back; 1: the values before; 2: the same, and compare values follow.
    pub kind: u8,
    /// 0.
    pub reserved: u8,
    /// Elements.
    pub count: U32,
}

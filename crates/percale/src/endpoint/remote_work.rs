//! The operations that access peers' regions (one-sided operations).

use super::work::OpFlags;
use crate::local_memory::atomic::{AtomicOp, Datatype};
use crate::local_memory::volatile::{IOV_LIMIT, Segment, Segments};
use crate::region::RemoteMemory;
use crate::types::PeerAddress;

/// The maximum number of operand bytes of one atomic operation.
pub const ATOMIC_LIMIT: usize = 1000;

/// Up to [`IOV_LIMIT`] parts of a peer's regions, in order (fi_rma(3), `rma_iov`).
#[derive(Clone, Copy, Debug)]
pub struct RemotePieces {
    list: [RemoteMemory; IOV_LIMIT],
    count: u8,
    len: u64,
}

impl RemotePieces {
    /// Creates a list of one piece.
    #[must_use]
    #[inline]
    pub const fn one(piece: RemoteMemory) -> Self {
        let none = RemoteMemory { key: 0, address: 0, len: 0 };
        Self { list: [piece, none, none, none], count: 1, len: piece.len }
    }

    /// Creates a list of several pieces. Returns `None` if the list is empty or has more than [`IOV_LIMIT`] pieces, or
    /// if the total length exceeds 2^64 - 1 bytes.
    #[must_use]
    pub fn new(pieces: &[RemoteMemory]) -> Option<Self> {
        let mut list = [RemoteMemory::default(); IOV_LIMIT];
        list.get_mut(..pieces.len())?.copy_from_slice(pieces);
        let len = pieces.iter().try_fold(0_u64, |sum, piece| sum.checked_add(piece.len))?;
        (!pieces.is_empty()).then_some(Self { list, count: pieces.len() as u8, len })
    }

    /// Replaces each piece by another one of the same length.
    pub(crate) fn try_map<E>(mut self, each: impl Fn(RemoteMemory) -> Result<RemoteMemory, E>) -> Result<Self, E> {
        for piece in &mut self.list[..usize::from(self.count)] {
            *piece = each(*piece)?;
        }
        Ok(self)
    }

    /// Returns the pieces.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[RemoteMemory] {
        &self.list[..usize::from(self.count)]
    }

    /// Returns the total length in bytes.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the total length is 0.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A read or a write (fi_rma(3)). Local and remote memory have the same length.
#[derive(Clone, Copy, Debug)]
pub struct RmaWork {
    /// The peer that owns the remote memory.
    pub peer: PeerAddress,
    /// The local memory: the source of a write, the destination of a read.
    pub local: Segments,
    /// The peer's memory.
    pub remote: RemotePieces,
    /// Only for a write: 8 bytes that the peer's completion queue reports after the data has arrived. With `None` the
    /// peer gets no completion.
    pub data: Option<u64>,
    /// The context, which is returned in the completion.
    pub context: u64,
    /// The flags. A write completes when its bytes are in the peer's memory, whichever completion level is requested.
    /// Only a write over verbs may complete earlier, when the device acknowledges it, unless DELIVERY_COMPLETE is set.
    pub flags: OpFlags,
}

/// A read or write of one piece, with the same information as [`RmaWork`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct RmaOne {
    pub(crate) write: bool,
    pub(crate) peer: PeerAddress,
    pub(crate) local: Segment,
    pub(crate) remote: RemoteMemory,
    pub(crate) context: u64,
    pub(crate) flags: OpFlags,
}

impl From<RmaOne> for RmaWork {
    fn from(one: RmaOne) -> Self {
        let RmaOne { peer, local, remote, context, flags, .. } = one;
        let (local, remote) = (Segments::one(local), RemotePieces::one(remote));
        Self { peer, local, remote, data: None, context, flags }
    }
}

/// An atomic operation on one word of 8 bytes that fetches the previous value: an addition or a compare-and-swap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WordOne {
    pub(crate) peer: PeerAddress,
    pub(crate) operand: Segment,
    pub(crate) compare: Option<Segment>,
    pub(crate) result: Segment,
    pub(crate) remote: RemoteMemory,
    pub(crate) context: u64,
    pub(crate) flags: OpFlags,
}

impl From<WordOne> for AtomicWork {
    fn from(one: WordOne) -> Self {
        let WordOne { peer, operand, compare, result, remote, context, flags } = one;
        Self {
            peer,
            op: if compare.is_some() { AtomicOp::Cswap } else { AtomicOp::Sum },
            datatype: Datatype::U64,
            operand: Segments::one(operand),
            compare: compare.map(Segments::one),
            result: Some(Segments::one(result)),
            remote,
            data: None,
            context,
            flags,
        }
    }
}

/// An atomic operation on an array of elements (fi_atomic(3)). The length of the remote memory determines their number.
/// Each element is updated atomically. The order of the updates is not defined.
#[derive(Clone, Copy, Debug)]
pub struct AtomicWork {
    /// The peer that owns the remote memory.
    pub peer: PeerAddress,
    /// The operation.
    pub op: AtomicOp,
    /// The type of the elements.
    pub datatype: Datatype,
    /// One operand for each element. [`AtomicOp::Read`] ignores it.
    pub operand: Segments,
    /// The values that the elements are compared with, for the operations that compare.
    pub compare: Option<Segments>,
    /// The memory for the previous values of the elements. It is required if `compare` is set.
    pub result: Option<Segments>,
    /// The peer's memory, aligned to the element's size.
    pub remote: RemoteMemory,
    /// See [`RmaWork::data`].
    pub data: Option<u64>,
    /// The context, which is returned in the completion.
    pub context: u64,
    /// The flags.
    pub flags: OpFlags,
}

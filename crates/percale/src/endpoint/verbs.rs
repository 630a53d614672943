//! Work requests as in RDMA verbs: local memory is identified by its address and a local key, and both are checked.

#![expect(unsafe_code, reason = "the caller fulfils the safety contract, which covers each unsafe block")]

use super::Endpoint;
use super::engine::types::{Notify, Side};
use super::ownership::Ownership;
use super::remote_work::{AtomicWork, RemotePieces, RmaWork};
use super::work::{OpFlags, PostError, ReceiveWork, SendWork};
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode, ErrorEntry};
use crate::local_memory::atomic::{AtomicOp, Datatype};
use crate::local_memory::volatile::{IOV_LIMIT, Segment, Segments, SegmentsExt as _};
use crate::region::RemoteMemory;
use crate::types::PeerAddress;

/// A piece of this process's memory (verbs: a scatter/gather entry).
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct LocalPiece {
    /// The address of the first byte of the piece, in this process.
    pub address: u64,
    /// The length of the piece in bytes.
    pub len: u64,
    /// The key of a region that contains the whole piece ([`Region::local_key`](crate::Region::local_key)). A window
    /// has no local key.
    pub key: u32,
}

crate::short_debug!(LocalPiece, "LocalPiece", address: |this| this.address, len: |this| this.len);

/// An operation on local memory in one to [`IOV_LIMIT`] pieces.
#[derive(Clone, Copy, Debug)]
pub enum WorkRequest {
    /// Sends a message. With a key, the peer invalidates that key first ([`OpFlags::INVALIDATE`]).
    Send(Option<u32>),
    /// Receives a message.
    Receive,
    /// Writes to a peer's memory, which has the same length.
    Write(RemoteMemory),
    /// Reads from a peer's memory, which has the same length.
    Read(RemoteMemory),
    /// Adds a number to 8 bytes of a peer's memory. Their previous value is stored in the local memory.
    FetchAdd(RemoteMemory, u64),
}

impl WorkRequest {
    /// Returns whether the operation writes the local memory.
    const fn writes_here(&self) -> bool {
        matches!(self, Self::Receive | Self::Read(_) | Self::FetchAdd(..))
    }

    const fn side(&self) -> Side {
        if matches!(self, Self::Receive) { Side::Receive } else { Side::Transmit }
    }

    const fn flags(&self) -> CompletionFlags {
        match self {
            Self::Send(_) => CompletionFlags::SEND.union(CompletionFlags::MESSAGE),
            Self::Receive => CompletionFlags::RECEIVE.union(CompletionFlags::MESSAGE),
            Self::Write(_) => CompletionFlags::RMA.union(CompletionFlags::WRITE),
            Self::Read(_) => CompletionFlags::RMA.union(CompletionFlags::READ),
            Self::FetchAdd(..) => CompletionFlags::ATOMIC.union(CompletionFlags::READ),
        }
    }
}

impl<A: Ownership> Endpoint<A> {
    /// Posts a work request. If the local key does not cover a piece, or does not permit writing a piece that the
    /// request writes, the request completes with the error [`ErrorCode::Denied`], and no memory was read or written
    /// and no message was sent.
    ///
    /// # Errors
    /// See [`PostError`]. After an error, the operation was not started. [`PostError::Flags`] for more than
    /// [`IOV_LIMIT`] pieces.
    ///
    /// # Safety
    /// The regions of the keys stay open until the operation has completed. Until then the memory that the operation
    /// sends is not written, and the memory that it writes is not accessed.
    pub unsafe fn post_work(
        &self,
        peer: PeerAddress,
        request: WorkRequest,
        pieces: &[LocalPiece],
        context: u64,
        flags: OpFlags,
    ) -> Result<(), PostError> {
        if pieces.len() > IOV_LIMIT {
            return Err(PostError::Flags("a work request has at most IOV_LIMIT pieces"));
        }
        let keys = &self.domain().inner.keys;
        let mut local = [Segment::EMPTY; IOV_LIMIT];
        for (at, piece) in pieces.iter().enumerate() {
            match keys.find_local(piece.key, piece.address, piece.len, request.writes_here()) {
                Some(segment) => local[at] = segment,
                None => return self.refuse_work(&request, at, context, flags),
            }
        }
        let segments = Segments::new(&local[..pieces.len()]).unwrap_or(Segments::EMPTY);
        match request {
            WorkRequest::Send(invalidates) => {
                let flags = if invalidates.is_some() { flags | OpFlags::INVALIDATE } else { flags };
                let data = invalidates.map(u64::from);
                // SAFETY: the caller keeps the regions open, and their memory with them.
                unsafe { self.post_send(&SendWork { peer, segments, tag: None, data, context, flags }) }
            }
            WorkRequest::Receive => {
                // SAFETY: as above.
                unsafe { self.post_recv(&ReceiveWork { from: peer, segments, tag: None, context, flags }) }
            }
            WorkRequest::Write(remote) => {
                let remote = RemotePieces::one(remote);
                // SAFETY: as above.
                unsafe { self.post_write(&RmaWork { peer, local: segments, remote, data: None, context, flags }) }
            }
            WorkRequest::Read(remote) => {
                let remote = RemotePieces::one(remote);
                // SAFETY: as above.
                unsafe { self.post_read(&RmaWork { peer, local: segments, remote, data: None, context, flags }) }
            }
            WorkRequest::FetchAdd(remote, value) => Segments::lend(&value.to_ne_bytes(), |operand| {
                let work = AtomicWork {
                    peer,
                    op: AtomicOp::Sum,
                    datatype: Datatype::U64,
                    operand: *operand,
                    compare: None,
                    result: Some(segments),
                    remote,
                    data: None,
                    context,
                    flags: flags | OpFlags::INJECT,
                };
                // SAFETY: as above; the operand is copied before the call returns.
                unsafe { self.post_atomic(&work) }
            }),
        }
    }

    fn refuse_work(&self, request: &WorkRequest, piece: usize, context: u64, flags: OpFlags) -> Result<(), PostError> {
        self.access.with(|engine| {
            let (side, notify) = (request.side(), Notify::from_flags(flags));
            engine.core.reserve(side, notify).map_err(|_| PostError::Again)?;
            let entry = Entry { context, flags: request.flags(), ..Entry::default() };
            let text = format!("the local key of piece {piece} does not permit this access");
            engine.core.fail(side, notify, ErrorEntry::new(entry, ErrorCode::Denied).with_text(text));
            Ok(())
        })
    }
}

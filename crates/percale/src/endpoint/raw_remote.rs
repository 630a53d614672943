//! The raw API of one-sided operations (fi_rma(3), fi_atomic(3)).

#![expect(unsafe_code, reason = "the callers fulfil the safety contracts")]

use super::Endpoint;
use super::engine::Engine;
use super::engine::types::{Notify, Side};
use super::ownership::Ownership;
use super::ownership::reach::EngineCall;
use super::remote_work::{AtomicWork, RemotePieces, RmaOne, RmaWork, WordOne};
use super::work::{OpFlags, PostError};
use crate::local_memory::volatile::{Segment, Segments, SegmentsExt as _};
use crate::region::RemoteMemory;
use crate::types::PeerAddress;

impl<A: Ownership> Endpoint<A> {
    /// Posts a write to a peer's memory (fi_writemsg(3)).
    ///
    /// # Errors
    /// See [`PostError`]. After an error, the operation was not started.
    ///
    /// # Safety
    /// The local memory stays allocated and unwritten until the operation has completed; with [`OpFlags::INJECT`] until
    /// the call returns.
    #[inline]
    pub unsafe fn post_write(&self, work: &RmaWork) -> Result<(), PostError> {
        self.access.with(|engine| engine.post_raw(work.flags, |engine, notify| engine.post_rma(true, work, notify)))
    }

    /// Posts a read of a peer's memory (fi_readmsg(3)).
    ///
    /// # Errors
    /// See [`PostError`]. After an error, the operation was not started.
    ///
    /// # Safety
    /// The local memory stays allocated, and is neither read nor written, until the operation has completed.
    #[inline]
    pub unsafe fn post_read(&self, work: &RmaWork) -> Result<(), PostError> {
        self.access.with(|engine| engine.post_raw(work.flags, |engine, notify| engine.post_rma(false, work, notify)))
    }

    /// Like [`post_write`](Self::post_write), but for one segment on each side. This is the shortest path if the write
    /// can be made immediately.
    ///
    /// # Errors
    /// Those of [`post_write`](Self::post_write).
    ///
    /// # Safety
    /// As for [`post_write`](Self::post_write).
    #[inline(always)]
    pub unsafe fn post_write_one(
        &self,
        peer: PeerAddress,
        local: Segment,
        remote: RemoteMemory,
        context: u64,
        flags: OpFlags,
    ) -> Result<(), PostError> {
        self.access.run(RmaOne { write: true, peer, local, remote, context, flags })
    }

    /// Like [`post_read`](Self::post_read), but for one segment on each side. This is the shortest path if the read can
    /// be made immediately.
    ///
    /// # Errors
    /// Those of [`post_read`](Self::post_read).
    ///
    /// # Safety
    /// As for [`post_read`](Self::post_read).
    #[inline(always)]
    pub unsafe fn post_read_one(
        &self,
        peer: PeerAddress,
        local: Segment,
        remote: RemoteMemory,
        context: u64,
        flags: OpFlags,
    ) -> Result<(), PostError> {
        self.access.run(RmaOne { write: false, peer, local, remote, context, flags })
    }

    /// Posts an atomic operation on a peer's memory (fi_atomicmsg(3), fi_fetch_atomicmsg(3), fi_compare_atomicmsg(3)).
    ///
    /// # Errors
    /// See [`PostError`]. After an error, the operation was not started.
    ///
    /// # Safety
    /// Operands and compare values stay allocated and unwritten until the operation has completed. The memory for the
    /// result stays allocated, and is neither read nor written, until then. With [`OpFlags::INJECT`] the requirement
    /// for the operands ends when the call returns.
    #[inline]
    pub unsafe fn post_atomic(&self, work: &AtomicWork) -> Result<(), PostError> {
        self.access.with(|engine| engine.post_raw(work.flags, |engine, notify| engine.post_atomic(work, notify)))
    }

    /// Posts an addition to 8 bytes of a peer's memory that fetches the previous value. This is like
    /// [`post_atomic`](Self::post_atomic) with [`AtomicOp::Sum`](crate::AtomicOp::Sum) and one
    /// [`Datatype::U64`](crate::Datatype::U64), but takes the shortest path if the operation can be made immediately.
    /// Operand and result have 8 bytes each.
    ///
    /// # Errors
    /// Those of [`post_atomic`](Self::post_atomic).
    ///
    /// # Safety
    /// As for [`post_atomic`](Self::post_atomic).
    #[inline(always)]
    pub unsafe fn post_fetch_add(
        &self,
        peer: PeerAddress,
        operand: Segment,
        result: Segment,
        remote: RemoteMemory,
        context: u64,
        flags: OpFlags,
    ) -> Result<(), PostError> {
        self.access.run(WordOne { peer, operand, compare: None, result, remote, context, flags })
    }

    /// Posts a compare-and-swap of 8 bytes of a peer's memory that fetches the previous value. This is like
    /// [`post_fetch_add`](Self::post_fetch_add), but with [`AtomicOp::Cswap`](crate::AtomicOp::Cswap). The first
    /// argument is `compare`, the second is the value that replaces it.
    ///
    /// # Errors
    /// Those of [`post_atomic`](Self::post_atomic).
    ///
    /// # Safety
    /// As for [`post_atomic`](Self::post_atomic).
    #[inline(always)]
    pub unsafe fn post_compare_swap(
        &self,
        peer: PeerAddress,
        [compare, operand]: [Segment; 2],
        result: Segment,
        remote: RemoteMemory,
        context: u64,
        flags: OpFlags,
    ) -> Result<(), PostError> {
        self.access.run(WordOne { peer, operand, compare: Some(compare), result, remote, context, flags })
    }

    /// Writes up to [`INJECT_LIMIT`](super::work::INJECT_LIMIT) bytes to the same number of bytes of a peer's memory
    /// (fi_inject_write(3), fi_inject_writedata(3)). The caller may reuse the bytes when the call returns. There is no
    /// completion unless the write fails.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline]
    pub fn inject_write(
        &self,
        peer: PeerAddress,
        bytes: &[u8],
        remote: RemoteMemory,
        data: Option<u64>,
    ) -> Result<(), PostError> {
        Segments::lend(bytes, |local| {
            let remote = RemotePieces::one(remote);
            let work = RmaWork { peer, local: *local, remote, data, context: 0, flags: OpFlags::INJECT };
            self.access
                .with(|engine| engine.post_raw(work.flags, |engine, notify| engine.post_rma(true, &work, notify)))
        })
    }
}

impl EngineCall for RmaOne {
    type Result = Result<(), PostError>;
    const LOOKS_FOR_EVENTS: bool = false;

    #[inline(always)]
    fn call(self, engine: &mut Engine) -> Result<(), PostError> {
        match engine.access_in_place(&self) {
            Some(result) => result,
            // A new value: by the address of `self`, all its fields would stay in memory on the fast path too.
            None => {
                let Self { write, peer, local, remote: RemoteMemory { key, address, len }, context, flags } = self;
                let remote = RemoteMemory { key, address, len };
                engine.post_other_access(Self { write, peer, local, remote, context, flags })
            }
        }
    }
}

impl EngineCall for WordOne {
    type Result = Result<(), PostError>;
    const LOOKS_FOR_EVENTS: bool = false;

    #[inline(always)]
    fn call(self, engine: &mut Engine) -> Result<(), PostError> {
        match engine.word_in_place(&self) {
            Some(result) => result,
            // As for `RmaOne`.
            None => {
                let Self { peer, operand, compare, result, remote: RemoteMemory { key, address, len }, context, flags } =
                    self;
                let remote = RemoteMemory { key, address, len };
                engine.post_other_atomic(Self { peer, operand, compare, result, remote, context, flags })
            }
        }
    }
}

impl Engine {
    #[inline(never)]
    fn post_other_atomic(&mut self, one: WordOne) -> Result<(), PostError> {
        let work = AtomicWork::from(one);
        let result = self.post_raw(work.flags, |engine, notify| engine.post_atomic(&work, notify));
        self.core.operations.note_events();
        result
    }

    #[inline(never)]
    fn post_other_access(&mut self, one: RmaOne) -> Result<(), PostError> {
        let work = RmaWork::from(one);
        let result = self.post_raw(work.flags, |engine, notify| engine.post_rma(one.write, &work, notify));
        self.core.operations.note_events();
        result
    }

    /// Posts an access that reports to a completion queue.
    #[inline]
    pub(super) fn post_raw(
        &mut self,
        flags: OpFlags,
        post: impl FnOnce(&mut Self, Notify) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let notify = Notify::from_flags(flags);
        self.core.reserve(Side::Transmit, notify).map_err(|_| PostError::Again)?;
        let result = post(self, notify);
        if result.is_err() {
            self.core.unreserve(Side::Transmit, notify);
        }
        result
    }
}

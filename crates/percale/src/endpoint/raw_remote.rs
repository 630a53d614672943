//! The raw face of one-sided operations (fi_rma(3), fi_atomic(3)).

#![expect(unsafe_code, reason = "its contracts are the callers' to keep; nothing here uses them up")]

use super::Endpoint;
use super::access::Access;
use super::engine::Engine;
use super::engine::types::{Notify, Side};
use super::remote_work::{AtomicWork, RemotePieces, RmaWork};
use super::work::{OpFlags, PostError};
use crate::address::PeerAddress;
use crate::memory::region::RemoteMemory;
use crate::memory::volatile::Segments;

impl<A: Access> Endpoint<A> {
    /// Posts a write to a peer's memory (fi_writemsg(3)).
    ///
    /// # Errors
    /// As [`PostError`] says; then nothing was done.
    ///
    /// # Safety
    /// The local memory stays allocated and unwritten until the operation has completed; with [`OpFlags::INJECT`] until the call
    /// returns.
    #[inline]
    pub unsafe fn post_write(&self, work: &RmaWork) -> Result<(), PostError> {
        self.access.with(|engine| engine.post_raw(work.flags, |engine, notify| engine.post_rma(true, work, notify)))
    }

    /// Posts a read of a peer's memory (fi_readmsg(3)).
    ///
    /// # Errors
    /// As [`PostError`] says; then nothing was done.
    ///
    /// # Safety
    /// The local memory stays allocated, and is neither read nor written, until the operation has completed.
    #[inline]
    pub unsafe fn post_read(&self, work: &RmaWork) -> Result<(), PostError> {
        self.access.with(|engine| engine.post_raw(work.flags, |engine, notify| engine.post_rma(false, work, notify)))
    }

    /// Posts an atomic operation on a peer's memory (fi_atomicmsg(3), fi_fetch_atomicmsg(3), fi_compare_atomicmsg(3)).
    ///
    /// # Errors
    /// As [`PostError`] says; then nothing was done.
    ///
    /// # Safety
    /// Operands and compare values stay allocated and unwritten, the result's memory also unread, until the operation has
    /// completed; the operands with [`OpFlags::INJECT`] until the call returns.
    #[inline]
    pub unsafe fn post_atomic(&self, work: &AtomicWork) -> Result<(), PostError> {
        self.access.with(|engine| engine.post_raw(work.flags, |engine, notify| engine.post_atomic(work, notify)))
    }

    /// Writes up to [`INJECT_LIMIT`](super::work::INJECT_LIMIT) bytes that may be reused when the call returns, to as many bytes
    /// of a peer's memory (fi_inject_write(3), fi_inject_writedata(3)). There is no completion, unless it fails.
    ///
    /// # Errors
    /// As [`PostError`] says.
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

impl Engine {
    /// An access whose result goes to a completion queue.
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

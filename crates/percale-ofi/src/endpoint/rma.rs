//! Access to remote memory (fi_rma(3)).

use std::ffi::c_void;

use percale::memory::volatile::IOV_LIMIT;
use percale::trigger::RawOperation;
use percale::{OpFlags, RemoteMemory, RemotePieces, RmaWork, Segments};

use super::calls::{Const, Descs, Iov, Void, calls, table};
use super::flags::TRIGGERED;
use super::trigger::StartMode;
use super::{Endpoint, answer, local};
use crate::abi::{FI_REMOTE_CQ_DATA, fi_addr_t, fi_msg_rma, fi_ops_rma, fi_rma_iov};

pub(super) const TABLE: fi_ops_rma =
    table!(fi_ops_rma { read, readv, readmsg, write, writev, writemsg, inject, writedata, injectdata });

/// The memory of a peer.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) peer: fi_addr_t,
    pub(super) address: u64,
    pub(super) key: u64,
}

impl Target {
    /// Returns one remote piece that is as long as the local memory.
    #[inline]
    fn as_long_as(self, local: &Segments) -> RemotePieces {
        RemotePieces::one(RemoteMemory { key: self.key, address: self.address, len: local.len() as u64 })
    }
}

/// Returns the pieces of a peer's memory.
///
/// # Safety
/// `pieces` is null or readable for `count` pieces.
unsafe fn remotes(pieces: *const fi_rma_iov, count: usize) -> Result<RemotePieces, isize> {
    let mut list = [RemoteMemory::default(); IOV_LIMIT];
    let invalid = -(libc::EINVAL as isize);
    let list = list.get_mut(..count).filter(|_| !pieces.is_null() || count == 0).ok_or(invalid)?;
    for (at, piece) in list.iter_mut().enumerate() {
        // SAFETY: `at` is less than `count`.
        let fi_rma_iov { addr, len, key } = unsafe { pieces.add(at).read() };
        *piece = RemoteMemory { key, address: addr, len: len as u64 };
    }
    RemotePieces::new(list).ok_or(invalid)
}

impl Endpoint {
    /// Posts a write if `writes` is set, and a read otherwise. All memory belongs to the client, which keeps it valid
    /// as fi_rma(3) requires.
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "the C function has as many arguments")]
    fn access(
        &self,
        writes: bool,
        local: Segments,
        peer: fi_addr_t,
        remote: RemotePieces,
        data: Option<u64>,
        context: *mut c_void,
        flags: OpFlags,
    ) -> isize {
        let port = match self.port() {
            Ok(port) => port,
            Err(refused) => return refused,
        };
        if let (&[local], &[remote], None) = (local.as_slice(), remote.as_slice(), data)
            && !flags.contains(TRIGGERED)
        {
            let (peer, context) = (self.peer(peer), local::context(context));
            // SAFETY: the client keeps the memory valid until the operation has completed.
            return answer(unsafe { port.access_one(writes, peer, local, remote, context, flags) });
        }
        let work = RmaWork { peer: self.peer(peer), local, remote, data, context: local::context(context), flags };
        if flags.contains(TRIGGERED) {
            let operation = if writes { RawOperation::Write(work) } else { RawOperation::Read(work) };
            // SAFETY: the flags state that the context belongs to a triggered operation.
            return unsafe { self.post_triggered(Ok(operation), context) };
        }
        // SAFETY: the client keeps the memory valid until the operation has completed.
        answer(if writes { unsafe { port.write(&work) } } else { unsafe { port.read(&work) } })
    }

    /// Builds a read or a write that begins later.
    ///
    /// # Safety
    /// `msg` meets the requirements of fi_rma(3).
    pub(crate) unsafe fn rma_operation(
        &self,
        writes: bool,
        msg: *const fi_msg_rma,
        begins: StartMode,
        flags: u64,
    ) -> Result<RawOperation, isize> {
        // SAFETY: the caller guarantees this.
        let msg = unsafe { &*msg };
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
        // SAFETY: the caller guarantees this.
        let local = unsafe { local::several(msg.msg_iov, msg.iov_count) }?;
        // SAFETY: the caller guarantees this.
        let remote = unsafe { remotes(msg.rma_iov, msg.rma_iov_count) }?;
        let flags = self.flags_for(&self.transmit, begins, flags)?;
        let (peer, context) = (self.peer(msg.addr), local::context(msg.context));
        let work = RmaWork { peer, local, remote, data, context, flags };
        Ok(if writes { RawOperation::Write(work) } else { RawOperation::Read(work) })
    }

    /// Posts a read or a write from the client's structure.
    ///
    /// # Safety
    /// `msg` meets the requirements of fi_rma(3).
    unsafe fn access_as(&self, writes: bool, msg: *const fi_msg_rma, flags: u64) -> isize {
        if StartMode::of(flags) == StartMode::Triggered {
            // SAFETY: the caller upholds the same contract.
            let operation = unsafe { self.rma_operation(writes, msg, StartMode::Triggered, flags) };
            // SAFETY: the caller upholds the same contract.
            return unsafe { self.post_triggered(operation, (*msg).context) };
        }
        // SAFETY: the caller guarantees this.
        let msg = unsafe { &*msg };
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
        // SAFETY: the caller guarantees this.
        let (local, remote) =
            unsafe { (local::several(msg.msg_iov, msg.iov_count), remotes(msg.rma_iov, msg.rma_iov_count)) };
        match (local, remote, self.transmit_flags(flags)) {
            (Ok(local), Ok(remote), Ok(flags)) => {
                self.access(writes, local, msg.addr, remote, data, msg.context, flags)
            }
            (Err(refused), ..) | (_, Err(refused), _) | (.., Err(refused)) => refused,
        }
    }

    /// Accesses one piece of a peer's memory with the endpoint's default flags. An invalid list of local pieces is
    /// rejected.
    #[inline(always)]
    fn access_own(
        &self,
        writes: bool,
        local: Result<Segments, isize>,
        target: Target,
        data: Option<u64>,
        context: *mut c_void,
    ) -> isize {
        match local {
            Ok(local) => {
                let remote = target.as_long_as(&local);
                self.access(writes, local, target.peer, remote, data, context, self.own_transmit())
            }
            Err(refused) => refused,
        }
    }

    /// Writes to one piece of a peer's memory without a completion. The client may reuse its memory when the call
    /// returns.
    #[inline(always)]
    fn inject_write(&self, local: Segments, target: Target, data: Option<u64>) -> isize {
        let remote = target.as_long_as(&local);
        self.access(true, local, target.peer, remote, data, std::ptr::null_mut(), self.transmit.injecting())
    }
}

calls! { impl Endpoint {
    fn read(endpoint, buf: Void, len: usize, _desc: Void, peer: fi_addr_t, address: u64, key: u64, context: Void) {
        // SAFETY: the client passed a valid buffer.
        endpoint.access_own(false, Ok(unsafe { local::one(buf, len) }), Target { peer, address, key }, None, context)
    }

    fn readv(endpoint, iov: Iov, _desc: Descs, count: usize, peer: fi_addr_t, address: u64, key: u64, context: Void) {
        // SAFETY: the client passed valid buffers.
        endpoint.access_own(false, unsafe { local::several(iov, count) }, Target { peer, address, key }, None, context)
    }

    fn readmsg(endpoint, msg: *const fi_msg_rma, flags: u64) {
        // SAFETY: the client passed a valid message structure.
        unsafe { endpoint.access_as(false, msg, flags) }
    }

    fn write(endpoint, buf: Const, len: usize, _desc: Void, peer: fi_addr_t, address: u64, key: u64, context: Void) {
        // SAFETY: the client passed a valid buffer.
        endpoint.access_own(true, Ok(unsafe { local::one(buf, len) }), Target { peer, address, key }, None, context)
    }

    fn writev(endpoint, iov: Iov, _desc: Descs, count: usize, peer: fi_addr_t, address: u64, key: u64, context: Void) {
        // SAFETY: the client passed valid buffers.
        endpoint.access_own(true, unsafe { local::several(iov, count) }, Target { peer, address, key }, None, context)
    }

    fn writemsg(endpoint, msg: *const fi_msg_rma, flags: u64) {
        // SAFETY: the client passed a valid message structure.
        unsafe { endpoint.access_as(true, msg, flags) }
    }

    fn inject(endpoint, buf: Const, len: usize, peer: fi_addr_t, address: u64, key: u64) {
        // SAFETY: the client passed a valid buffer.
        endpoint.inject_write(unsafe { local::one(buf, len) }, Target { peer, address, key }, None)
    }

    fn writedata(
        endpoint, buf: Const, len: usize, _desc: Void, data: u64, peer: fi_addr_t, address: u64, key: u64, context: Void
    ) {
        // SAFETY: the client passed a valid buffer.
        let local = Ok(unsafe { local::one(buf, len) });
        endpoint.access_own(true, local, Target { peer, address, key }, Some(data), context)
    }

    fn injectdata(endpoint, buf: Const, len: usize, data: u64, peer: fi_addr_t, address: u64, key: u64) {
        // SAFETY: the client passed a valid buffer.
        endpoint.inject_write(unsafe { local::one(buf, len) }, Target { peer, address, key }, Some(data))
    }
} }

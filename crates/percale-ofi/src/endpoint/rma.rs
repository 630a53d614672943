//! Access to remote memory (fi_rma(3)).

use std::ffi::c_void;

use percale::memory::volatile::IOV_LIMIT;
use percale::trigger::Operation;
use percale::{OpFlags, RemoteMemory, RemotePieces, RmaWork, Segments};

use super::flags::TRIGGERED;
use super::trigger::Begins;
use super::{Endpoint, answer, local};
use crate::abi::{FI_REMOTE_CQ_DATA, fi_addr_t, fi_msg_rma, fi_ops_rma, fi_rma_iov, fid_ep};
use crate::object::Object;

pub(super) const TABLE: fi_ops_rma = fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read: Some(read),
    readv: Some(readv),
    readmsg: Some(readmsg),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    writedata: Some(writedata),
    injectdata: Some(injectdata),
};

/// One piece of a peer's memory, as long as ours.
#[inline]
fn remote(address: u64, key: u64, local: &Segments) -> RemotePieces {
    RemotePieces::one(RemoteMemory { key, address, len: local.len() as u64 })
}

/// The pieces of a peer's memory.
///
/// # Safety
/// `pieces` is null, or readable for `count` of them.
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
    #[inline]
    fn rma_work(
        &self,
        local: Segments,
        peer: fi_addr_t,
        remote: RemotePieces,
        data: Option<u64>,
        context: *mut c_void,
        flags: OpFlags,
    ) -> RmaWork {
        RmaWork { peer: self.peer(peer), local, remote, data, context: local::context(context), flags }
    }

    /// Posts a write if it `writes`, else a read. All memory is the client's, which keeps it valid as fi_rma(3)
    /// requires.
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "the calls of C have as many")]
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
            // SAFETY: the client keeps the memory until the operation has completed.
            return answer(unsafe { port.access_one(writes, peer, local, remote, context, flags) });
        }
        let work = self.rma_work(local, peer, remote, data, context, flags);
        if flags.contains(TRIGGERED) {
            let operation = if writes { Operation::Write(work) } else { Operation::Read(work) };
            // SAFETY: the client says by its flags that the context is one of a triggered operation.
            return unsafe { self.post_triggered(Ok(operation), context) };
        }
        // SAFETY: the client keeps the memory until the operation has completed.
        answer(if writes { unsafe { port.write(&work) } } else { unsafe { port.read(&work) } })
    }

    /// # Safety
    /// `msg` is as fi_rma(3) has it.
    pub(crate) unsafe fn rma_operation(
        &self,
        writes: bool,
        msg: *const fi_msg_rma,
        begins: Begins,
        flags: u64,
    ) -> Result<Operation, isize> {
        // SAFETY: promised by the caller.
        let msg = unsafe { &*msg };
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
        // SAFETY: promised by the caller.
        let local = unsafe { local::several(msg.msg_iov, msg.iov_count) }?;
        // SAFETY: promised by the caller.
        let remote = unsafe { remotes(msg.rma_iov, msg.rma_iov_count) }?;
        let flags = self.flags_for(&self.transmit, begins, flags)?;
        let work = self.rma_work(local, msg.addr, remote, data, msg.context, flags);
        Ok(if writes { Operation::Write(work) } else { Operation::Read(work) })
    }

    /// # Safety
    /// `msg` is as fi_rma(3) has it.
    unsafe fn access_as(&self, writes: bool, msg: *const fi_msg_rma, flags: u64) -> isize {
        if Begins::of(flags) == Begins::Triggered {
            // SAFETY: passed on.
            let operation = unsafe { self.rma_operation(writes, msg, Begins::Triggered, flags) };
            // SAFETY: passed on.
            return unsafe { self.post_triggered(operation, (*msg).context) };
        }
        // SAFETY: promised by the caller.
        let msg = unsafe { &*msg };
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
        // SAFETY: promised by the caller.
        let (local, remote) =
            unsafe { (local::several(msg.msg_iov, msg.iov_count), remotes(msg.rma_iov, msg.rma_iov_count)) };
        match (local, remote, self.transmit_flags(flags)) {
            (Ok(local), Ok(remote), Ok(flags)) => {
                self.access(writes, local, msg.addr, remote, data, msg.context, flags)
            }
            (Err(refused), ..) | (_, Err(refused), _) | (.., Err(refused)) => refused,
        }
    }
}

pub(super) unsafe extern "C" fn read(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffer.
    let (endpoint, local) = unsafe { (Endpoint::of(ep), local::one(buf, len)) };
    endpoint.access(false, local, peer, remote(address, key, &local), None, context, endpoint.own_transmit())
}

pub(super) unsafe extern "C" fn readv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffers.
    let (endpoint, local) = unsafe { (Endpoint::of(ep), local::several(iov, count)) };
    match local {
        Ok(local) => {
            endpoint.access(false, local, peer, remote(address, key, &local), None, context, endpoint.own_transmit())
        }
        Err(refused) => refused,
    }
}

pub(super) unsafe extern "C" fn readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: an endpoint of ours, and the client's description.
    unsafe { Endpoint::of(ep).access_as(false, msg, flags) }
}

pub(super) unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffer.
    let (endpoint, local) = unsafe { (Endpoint::of(ep), local::one(buf, len)) };
    endpoint.access(true, local, peer, remote(address, key, &local), None, context, endpoint.own_transmit())
}

pub(super) unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffers.
    let (endpoint, local) = unsafe { (Endpoint::of(ep), local::several(iov, count)) };
    match local {
        Ok(local) => {
            endpoint.access(true, local, peer, remote(address, key, &local), None, context, endpoint.own_transmit())
        }
        Err(refused) => refused,
    }
}

pub(super) unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: an endpoint of ours, and the client's description.
    unsafe { Endpoint::of(ep).access_as(true, msg, flags) }
}

pub(super) unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    peer: fi_addr_t,
    address: u64,
    key: u64,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffer.
    let (endpoint, local) = unsafe { (Endpoint::of(ep), local::one(buf, len)) };
    endpoint.access(
        true,
        local,
        peer,
        remote(address, key, &local),
        None,
        std::ptr::null_mut(),
        endpoint.transmit.injecting(),
    )
}

pub(super) unsafe extern "C" fn writedata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffer.
    let (endpoint, local) = unsafe { (Endpoint::of(ep), local::one(buf, len)) };
    endpoint.access(true, local, peer, remote(address, key, &local), Some(data), context, endpoint.own_transmit())
}

pub(super) unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    peer: fi_addr_t,
    address: u64,
    key: u64,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffer.
    let (endpoint, local) = unsafe { (Endpoint::of(ep), local::one(buf, len)) };
    endpoint.access(
        true,
        local,
        peer,
        remote(address, key, &local),
        Some(data),
        std::ptr::null_mut(),
        endpoint.transmit.injecting(),
    )
}

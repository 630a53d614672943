//! Atomic operations on remote memory (fi_atomic(3)).

use std::ffi::c_void;

use percale::memory::volatile::IOV_LIMIT;
use percale::trigger::Operation;
use percale::{AtomicOp, AtomicWork, OpFlags, RemoteMemory, Segment, Segments};

use super::atomic_valid::{What, compwritevalid, readwritevalid, writevalid};
use super::flags::TRIGGERED;
use super::trigger::Begins;
use super::{Endpoint, answer, local};
use crate::abi::{
    FI_ATOMIC_READ, FI_LOG_EP_CTRL, FI_REMOTE_CQ_DATA, fi_addr_t, fi_ioc, fi_msg_atomic, fi_ops_atomic, fid_ep,
};
use crate::log;
use crate::object::Object;

pub(super) const TABLE: fi_ops_atomic = fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    readwrite: Some(readwrite),
    readwritev: Some(readwritev),
    readwritemsg: Some(readwritemsg),
    compwrite: Some(compwrite),
    compwritev: Some(compwritev),
    compwritemsg: Some(compwritemsg),
    writevalid: Some(writevalid),
    readwritevalid: Some(readwritevalid),
    compwritevalid: Some(compwritevalid),
};

const INVALID: isize = -(libc::EINVAL as isize);

impl What {
    /// Elements from `buf` on. The operand of a read is not there.
    ///
    /// # Safety
    /// As of [`Segment::new`].
    #[inline]
    unsafe fn one(self, buf: *const c_void, count: usize) -> Segments {
        // SAFETY: passed on.
        unsafe { local::one(buf, count.saturating_mul(self.datatype.size())) }
    }

    /// Elements in several pieces.
    ///
    /// # Safety
    /// `iov` is null, or readable for `count` pieces, each as of [`Segment::new`].
    unsafe fn several(self, iov: *const fi_ioc, count: usize) -> Result<Segments, isize> {
        let mut pieces = [Segment::EMPTY; IOV_LIMIT];
        let pieces = pieces.get_mut(..count).filter(|_| !iov.is_null() || count == 0).ok_or(INVALID)?;
        for (at, piece) in pieces.iter_mut().enumerate() {
            // SAFETY: `at` is less than `count`.
            let fi_ioc { addr, count } = unsafe { iov.add(at).read() };
            let len = count.checked_mul(self.datatype.size()).ok_or(INVALID)?;
            // SAFETY: passed on.
            *piece = unsafe { Segment::new(addr.cast(), len) };
        }
        Segments::new(pieces).ok_or(INVALID)
    }
}

/// What is changed.
#[derive(Clone, Copy)]
struct Target {
    peer: fi_addr_t,
    address: u64,
    key: u64,
}

/// The memory of an operation.
#[derive(Clone, Copy)]
struct Operands {
    operand: Segments,
    compare: Option<Segments>,
    result: Option<Segments>,
}

impl Endpoint {
    /// All memory is the client's, which keeps it valid as fi_atomic(3) requires.
    #[inline]
    fn atomic(
        &self,
        what: What,
        target: Target,
        operands: Operands,
        data: Option<u64>,
        context: *mut c_void,
        flags: OpFlags,
    ) -> isize {
        let port = match self.port() {
            Ok(port) => port,
            Err(refused) => return refused,
        };
        let work = self.atomic_work(what, target, operands, data, context, flags);
        if flags.contains(TRIGGERED) {
            // SAFETY: the client says by its flags that the context is one of a triggered operation.
            return unsafe { self.post_triggered(Ok(Operation::Atomic(work)), context) };
        }
        // SAFETY: the client keeps the memory until the operation has completed.
        answer(unsafe { port.atomic(&work) })
    }

    #[inline]
    fn atomic_work(
        &self,
        what: What,
        target: Target,
        operands: Operands,
        data: Option<u64>,
        context: *mut c_void,
        flags: OpFlags,
    ) -> AtomicWork {
        let Operands { operand, compare, result } = operands;
        // The operand of a read is ignored, and may be null.
        let len = match result {
            Some(result) if what.op == AtomicOp::Read => result.len(),
            _ => operand.len(),
        };
        let operand = if what.op == AtomicOp::Read { Segments::EMPTY } else { operand };
        AtomicWork {
            peer: self.peer(target.peer),
            op: what.op,
            datatype: what.datatype,
            operand,
            compare,
            result,
            remote: RemoteMemory { key: target.key, address: target.address, len: len as u64 },
            data,
            context: local::context(context),
            flags,
        }
    }

    /// # Safety
    /// `msg` is as fi_atomic(3) has it, and so are the pieces of the others, if they are given.
    unsafe fn atomic_as(
        &self,
        msg: *const fi_msg_atomic,
        compare: Option<(*const fi_ioc, usize)>,
        result: Option<(*mut fi_ioc, usize)>,
        flags: u64,
    ) -> Result<isize, isize> {
        let begins = Begins::of(flags);
        // SAFETY: passed on.
        let work = unsafe { self.described_atomic(msg, compare, result, begins, flags) };
        if begins == Begins::Triggered {
            // SAFETY: passed on.
            return Ok(unsafe { self.post_triggered(work.map(Operation::Atomic), (*msg).context) });
        }
        let work = work?;
        // SAFETY: the client keeps the memory until the operation has completed.
        Ok(answer(unsafe { self.port()?.atomic(&work) }))
    }

    /// Reads an atomic operation that begins later.
    ///
    /// # Safety
    /// As of `atomic_as`.
    pub(crate) unsafe fn atomic_operation(
        &self,
        msg: *const fi_msg_atomic,
        compare: Option<(*const fi_ioc, usize)>,
        result: Option<(*mut fi_ioc, usize)>,
        begins: Begins,
        flags: u64,
    ) -> Result<Operation, isize> {
        // SAFETY: passed on.
        unsafe { self.described_atomic(msg, compare, result, begins, flags) }.map(Operation::Atomic)
    }

    /// # Safety
    /// As of `atomic_as`.
    #[inline]
    unsafe fn described_atomic(
        &self,
        msg: *const fi_msg_atomic,
        compare: Option<(*const fi_ioc, usize)>,
        result: Option<(*mut fi_ioc, usize)>,
        begins: Begins,
        flags: u64,
    ) -> Result<AtomicWork, isize> {
        // SAFETY: promised by the caller.
        let msg = unsafe { &*msg };
        let what = What::of(msg.datatype, msg.op)?;
        if msg.rma_iov_count != 1 || msg.rma_iov.is_null() {
            log::warning!(
                FI_LOG_EP_CTRL,
                "fi_atomicmsg: {} pieces of remote memory; rma_iov_limit is 1 for atomics",
                msg.rma_iov_count
            );
            return Err(INVALID);
        }
        // SAFETY: promised by the caller.
        let remote = unsafe { msg.rma_iov.read() };
        let operands = Operands {
            operand: if msg.op == FI_ATOMIC_READ {
                Segments::EMPTY
            } else {
                // SAFETY: promised by the caller.
                unsafe { what.several(msg.msg_iov, msg.iov_count) }?
            },
            // SAFETY: promised by the caller.
            compare: compare.map(|(iov, count)| unsafe { what.several(iov, count) }).transpose()?,
            // SAFETY: promised by the caller.
            result: result.map(|(iov, count)| unsafe { what.several(iov, count) }).transpose()?,
        };
        let here = match result {
            Some(_) if what.op == AtomicOp::Read => operands.result.map_or(0, |result| result.len()),
            _ => operands.operand.len(),
        };
        if remote.count.checked_mul(what.datatype.size()) != Some(here) {
            let here = here / what.datatype.size();
            log::warning!(FI_LOG_EP_CTRL, "fi_atomicmsg: {here} elements here and {} there (rma_iov)", remote.count);
            return Err(INVALID);
        }
        let target = Target { peer: msg.addr, address: remote.addr, key: remote.key };
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
        let flags = self.flags_for(&self.transmit, begins, flags)?;
        Ok(self.atomic_work(what, target, operands, data, msg.context, flags))
    }
}

/// Merges a result: either side is the code to return.
fn either(result: Result<isize, isize>) -> isize {
    result.unwrap_or_else(|refused| refused)
}

pub(super) unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours.
    let endpoint = unsafe { Endpoint::of(ep) };
    either(What::of(datatype, op).map(|what| {
        // SAFETY: the client's buffer.
        let operands = Operands { operand: unsafe { what.one(buf, count) }, compare: None, result: None };
        endpoint.atomic(what, Target { peer, address, key }, operands, None, context, endpoint.own_transmit())
    }))
}

pub(super) unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours.
    let endpoint = unsafe { Endpoint::of(ep) };
    either(What::of(datatype, op).and_then(|what| {
        // SAFETY: the client's buffers.
        let operands = Operands { operand: unsafe { what.several(iov, count) }?, compare: None, result: None };
        Ok(endpoint.atomic(what, Target { peer, address, key }, operands, None, context, endpoint.own_transmit()))
    }))
}

pub(super) unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> isize {
    // SAFETY: an endpoint of ours, and the client's description.
    either(unsafe { Endpoint::of(ep).atomic_as(msg, None, None, flags) })
}

pub(super) unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    datatype: u32,
    op: u32,
) -> isize {
    // SAFETY: an endpoint of ours.
    let endpoint = unsafe { Endpoint::of(ep) };
    either(What::of(datatype, op).map(|what| {
        // SAFETY: the client's buffer.
        let operands = Operands { operand: unsafe { what.one(buf, count) }, compare: None, result: None };
        endpoint.atomic(
            what,
            Target { peer, address, key },
            operands,
            None,
            std::ptr::null_mut(),
            endpoint.transmit.injecting(),
        )
    }))
}

pub(super) unsafe extern "C" fn readwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours.
    let endpoint = unsafe { Endpoint::of(ep) };
    either(What::of(datatype, op).map(|what| {
        // SAFETY: the client's buffers.
        let (operand, result) = unsafe { (what.one(buf, count), what.one(result, count)) };
        let operands = Operands { operand, compare: None, result: Some(result) };
        endpoint.atomic(what, Target { peer, address, key }, operands, None, context, endpoint.own_transmit())
    }))
}

pub(super) unsafe extern "C" fn readwritev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours.
    let endpoint = unsafe { Endpoint::of(ep) };
    either(What::of(datatype, op).and_then(|what| {
        let count = if what.op == AtomicOp::Read { 0 } else { count };
        // SAFETY: the client's buffers.
        let (operand, result) = unsafe { (what.several(iov, count)?, what.several(resultv, result_count)?) };
        let operands = Operands { operand, compare: None, result: Some(result) };
        Ok(endpoint.atomic(what, Target { peer, address, key }, operands, None, context, endpoint.own_transmit()))
    }))
}

pub(super) unsafe extern "C" fn readwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's description.
    either(unsafe { Endpoint::of(ep).atomic_as(msg, None, Some((resultv, result_count)), flags) })
}

pub(super) unsafe extern "C" fn compwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    compare: *const c_void,
    _compare_desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours.
    let endpoint = unsafe { Endpoint::of(ep) };
    either(What::of(datatype, op).map(|what| {
        // SAFETY: the client's buffers.
        let [operand, compare, result] = [buf, compare, result.cast_const()].map(|buf| unsafe { what.one(buf, count) });
        let operands = Operands { operand, compare: Some(compare), result: Some(result) };
        endpoint.atomic(what, Target { peer, address, key }, operands, None, context, endpoint.own_transmit())
    }))
}

pub(super) unsafe extern "C" fn compwritev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    comparev: *const fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    peer: fi_addr_t,
    address: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours.
    let endpoint = unsafe { Endpoint::of(ep) };
    either(What::of(datatype, op).and_then(|what| {
        // SAFETY: the client's buffers.
        let operand = unsafe { what.several(iov, count) }?;
        // SAFETY: as above.
        let compare = unsafe { what.several(comparev, compare_count) }?;
        // SAFETY: as above.
        let result = unsafe { what.several(resultv, result_count) }?;
        let operands = Operands { operand, compare: Some(compare), result: Some(result) };
        Ok(endpoint.atomic(what, Target { peer, address, key }, operands, None, context, endpoint.own_transmit()))
    }))
}

pub(super) unsafe extern "C" fn compwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    comparev: *const fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let (compare, result) = (Some((comparev, compare_count)), Some((resultv, result_count)));
    // SAFETY: an endpoint of ours, and the client's description.
    either(unsafe { Endpoint::of(ep).atomic_as(msg, compare, result, flags) })
}

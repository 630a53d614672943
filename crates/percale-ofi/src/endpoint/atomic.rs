//! Atomic operations on remote memory (fi_atomic(3)).

use std::ffi::c_void;

use percale::memory::volatile::IOV_LIMIT;
use percale::trigger::RawOperation;
use percale::{AtomicOp, AtomicWork, OpFlags, RemoteMemory, Segment, Segments};

use super::atomic_valid::{AtomicParameters, compwritevalid, readwritevalid, writevalid};
use super::calls::{Const, Descs, Ioc, Void, calls, table};
use super::rma::Target;
use super::trigger::StartMode;
use super::{Endpoint, answer, local};
use crate::abi::{FI_ATOMIC_READ, FI_LOG_EP_CTRL, FI_REMOTE_CQ_DATA, fi_addr_t, fi_ioc, fi_msg_atomic, fi_ops_atomic};
use crate::log;

pub(super) const TABLE: fi_ops_atomic = table!(fi_ops_atomic {
    write,
    writev,
    writemsg,
    inject,
    readwrite,
    readwritev,
    readwritemsg,
    compwrite,
    compwritev,
    compwritemsg,
    writevalid,
    readwritevalid,
    compwritevalid
});

const INVALID: isize = -(libc::EINVAL as isize);

impl AtomicParameters {
    /// Returns `count` elements, starting at `buf`. The operand of a read is ignored, and its `buf` may be null.
    ///
    /// # Safety
    /// The requirements of [`Segment::new`] apply.
    #[inline]
    unsafe fn one(self, buf: *const c_void, count: usize) -> Segments {
        // SAFETY: the caller upholds the same contract.
        unsafe { local::one(buf, count.saturating_mul(self.datatype.size())) }
    }

    /// Returns elements in several pieces.
    ///
    /// # Safety
    /// `iov` is null or readable for `count` pieces, each of which meets the requirements of [`Segment::new`].
    unsafe fn several(self, iov: *const fi_ioc, count: usize) -> Result<Segments, isize> {
        let mut pieces = [Segment::EMPTY; IOV_LIMIT];
        let pieces = pieces.get_mut(..count).filter(|_| !iov.is_null() || count == 0).ok_or(INVALID)?;
        for (at, piece) in pieces.iter_mut().enumerate() {
            // SAFETY: `at` is less than `count`.
            let fi_ioc { addr, count } = unsafe { iov.add(at).read() };
            let len = count.checked_mul(self.datatype.size()).ok_or(INVALID)?;
            // SAFETY: the caller upholds the same contract.
            *piece = unsafe { Segment::new(addr.cast(), len) };
        }
        Segments::new(pieces).ok_or(INVALID)
    }
}

/// An operation in the structures that the client passed.
#[derive(Clone, Copy)]
pub(crate) struct Description {
    pub(crate) msg: *const fi_msg_atomic,
    /// The pieces to compare with, and their number.
    pub(crate) compare: Option<(*const fi_ioc, usize)>,
    /// The pieces for the previous contents, and their number.
    pub(crate) result: Option<(*mut fi_ioc, usize)>,
}

/// The memory of an operation.
#[derive(Clone, Copy)]
struct Operands {
    operand: Segments,
    compare: Option<Segments>,
    result: Option<Segments>,
}

impl Endpoint {
    /// Posts an atomic operation. All memory belongs to the client, which keeps it valid as fi_atomic(3) requires.
    #[inline]
    fn atomic(
        &self,
        what: AtomicParameters,
        target: Target,
        operands: Operands,
        context: *mut c_void,
        flags: OpFlags,
    ) -> isize {
        let work = self.atomic_work(what, target, operands, None, context, flags);
        // SAFETY: the client keeps the memory valid until the operation has completed.
        self.post(work, flags, context, RawOperation::Atomic, |port, work| unsafe { port.atomic(work) })
    }

    #[inline]
    fn atomic_work(
        &self,
        what: AtomicParameters,
        target: Target,
        operands: Operands,
        data: Option<u64>,
        context: *mut c_void,
        flags: OpFlags,
    ) -> AtomicWork {
        let Operands { operand, compare, result } = operands;
        // The operand of a read is ignored and may be null.
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

    /// Posts an atomic operation from the client's structures.
    ///
    /// # Safety
    /// The description meets the requirements of fi_atomic(3).
    unsafe fn atomic_as(&self, description: Description, flags: u64) -> Result<isize, isize> {
        let begins = StartMode::of(flags);
        // SAFETY: the caller upholds the same contract.
        let work = unsafe { self.described_atomic(description, begins, flags) };
        if begins == StartMode::Triggered {
            // SAFETY: the caller upholds the same contract.
            return Ok(unsafe { self.post_triggered(work.map(RawOperation::Atomic), (*description.msg).context) });
        }
        let work = work?;
        // SAFETY: the client keeps the memory valid until the operation has completed.
        Ok(answer(unsafe { self.port()?.atomic(&work) }))
    }

    /// Builds an atomic operation that begins later.
    ///
    /// # Safety
    /// The requirements of `atomic_as` apply.
    pub(crate) unsafe fn atomic_operation(
        &self,
        description: Description,
        begins: StartMode,
        flags: u64,
    ) -> Result<RawOperation, isize> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.described_atomic(description, begins, flags) }.map(RawOperation::Atomic)
    }

    /// Builds an atomic operation from the client's structures.
    ///
    /// # Safety
    /// The requirements of `atomic_as` apply.
    #[inline]
    unsafe fn described_atomic(
        &self,
        Description { msg, compare, result }: Description,
        begins: StartMode,
        flags: u64,
    ) -> Result<AtomicWork, isize> {
        // SAFETY: the caller guarantees this.
        let msg = unsafe { &*msg };
        let what = AtomicParameters::of(msg.datatype, msg.op)?;
        if msg.rma_iov_count != 1 || msg.rma_iov.is_null() {
            log::warning!(
                FI_LOG_EP_CTRL,
                "fi_atomicmsg: {} pieces of remote memory; rma_iov_limit is 1 for atomics",
                msg.rma_iov_count
            );
            return Err(INVALID);
        }
        // SAFETY: the caller guarantees this.
        let remote = unsafe { msg.rma_iov.read() };
        let operands = Operands {
            operand: if msg.op == FI_ATOMIC_READ {
                Segments::EMPTY
            } else {
                // SAFETY: the caller guarantees this.
                unsafe { what.several(msg.msg_iov, msg.iov_count) }?
            },
            // SAFETY: the caller guarantees this.
            compare: compare.map(|(iov, count)| unsafe { what.several(iov, count) }).transpose()?,
            // SAFETY: the caller guarantees this.
            result: result.map(|(iov, count)| unsafe { what.several(iov, count) }).transpose()?,
        };
        let here = match result {
            Some(_) if what.op == AtomicOp::Read => operands.result.map_or(0, |result| result.len()),
            _ => operands.operand.len(),
        };
        if remote.count.checked_mul(what.datatype.size()) != Some(here) {
            let here = here / what.datatype.size();
            log::warning!(
                FI_LOG_EP_CTRL,
                "fi_atomicmsg: {here} local elements but {} remote elements (rma_iov)",
                remote.count
            );
            return Err(INVALID);
        }
        let target = Target { peer: msg.addr, address: remote.addr, key: remote.key };
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
        let flags = self.flags_for(&self.transmit, begins, flags)?;
        Ok(self.atomic_work(what, target, operands, data, msg.context, flags))
    }
}

/// Merges a result. Both variants contain the code to return.
fn either(result: Result<isize, isize>) -> isize {
    result.unwrap_or_else(|refused| refused)
}

impl Endpoint {
    /// Posts an operation with the endpoint's default flags. `datatype` and `op` are the client's data type and
    /// operation, and `operands` builds the local memory.
    #[inline(always)]
    fn atomic_own(
        &self,
        (datatype, op): (u32, u32),
        target: Target,
        context: *mut c_void,
        operands: impl FnOnce(AtomicParameters) -> Result<Operands, isize>,
    ) -> isize {
        either(
            AtomicParameters::of(datatype, op)
                .and_then(|what| Ok(self.atomic(what, target, operands(what)?, context, self.own_transmit()))),
        )
    }
}

calls! { impl Endpoint {
    fn write(
        endpoint, buf: Const, count: usize, _desc: Void, peer: fi_addr_t, address: u64, key: u64, datatype: u32, op: u32,
        context: Void
    ) {
        endpoint.atomic_own((datatype, op), Target { peer, address, key }, context, |what| {
            // SAFETY: the client passed a valid buffer.
            Ok(Operands { operand: unsafe { what.one(buf, count) }, compare: None, result: None })
        })
    }

    fn writev(
        endpoint, iov: Ioc, _desc: Descs, count: usize, peer: fi_addr_t, address: u64, key: u64, datatype: u32, op: u32,
        context: Void
    ) {
        endpoint.atomic_own((datatype, op), Target { peer, address, key }, context, |what| {
            // SAFETY: the client passed valid buffers.
            Ok(Operands { operand: unsafe { what.several(iov, count) }?, compare: None, result: None })
        })
    }

    fn writemsg(endpoint, msg: *const fi_msg_atomic, flags: u64) {
        // SAFETY: the client passed a valid message structure.
        either(unsafe { endpoint.atomic_as(Description { msg, compare: None, result: None }, flags) })
    }

    fn inject(
        endpoint, buf: Const, count: usize, peer: fi_addr_t, address: u64, key: u64, datatype: u32, op: u32
    ) {
        either(AtomicParameters::of(datatype, op).map(|what| {
            // SAFETY: the client passed a valid buffer.
            let operands = Operands { operand: unsafe { what.one(buf, count) }, compare: None, result: None };
            let flags = endpoint.transmit.injecting();
            endpoint.atomic(what, Target { peer, address, key }, operands, std::ptr::null_mut(), flags)
        }))
    }

    fn readwrite(
        endpoint, buf: Const, count: usize, _desc: Void, result: Void, _result_desc: Void, peer: fi_addr_t, address: u64,
        key: u64, datatype: u32, op: u32, context: Void
    ) {
        endpoint.atomic_own((datatype, op), Target { peer, address, key }, context, |what| {
            // SAFETY: the client passed valid buffers.
            let (operand, result) = unsafe { (what.one(buf, count), what.one(result, count)) };
            Ok(Operands { operand, compare: None, result: Some(result) })
        })
    }

    fn readwritev(
        endpoint, iov: Ioc, _desc: Descs, count: usize, resultv: *mut fi_ioc, _result_desc: Descs, result_count: usize,
        peer: fi_addr_t, address: u64, key: u64, datatype: u32, op: u32, context: Void
    ) {
        endpoint.atomic_own((datatype, op), Target { peer, address, key }, context, |what| {
            let count = if what.op == AtomicOp::Read { 0 } else { count };
            // SAFETY: the client passed valid buffers.
            let (operand, result) = unsafe { (what.several(iov, count)?, what.several(resultv, result_count)?) };
            Ok(Operands { operand, compare: None, result: Some(result) })
        })
    }

    fn readwritemsg(
        endpoint, msg: *const fi_msg_atomic, resultv: *mut fi_ioc, _result_desc: Descs, result_count: usize, flags: u64
    ) {
        let result = Some((resultv, result_count));
        // SAFETY: the client passed a valid message structure.
        either(unsafe { endpoint.atomic_as(Description { msg, compare: None, result }, flags) })
    }

    fn compwrite(
        endpoint, buf: Const, count: usize, _desc: Void, compare: Const, _compare_desc: Void, result: Void,
        _result_desc: Void, peer: fi_addr_t, address: u64, key: u64, datatype: u32, op: u32, context: Void
    ) {
        endpoint.atomic_own((datatype, op), Target { peer, address, key }, context, |what| {
            let buffers = [buf, compare, result.cast_const()];
            // SAFETY: the client passed valid buffers.
            let [operand, compare, result] = buffers.map(|buf| unsafe { what.one(buf, count) });
            Ok(Operands { operand, compare: Some(compare), result: Some(result) })
        })
    }

    fn compwritev(
        endpoint, iov: Ioc, _desc: Descs, count: usize, comparev: Ioc, _compare_desc: Descs, compare_count: usize,
        resultv: *mut fi_ioc, _result_desc: Descs, result_count: usize, peer: fi_addr_t, address: u64, key: u64,
        datatype: u32, op: u32, context: Void
    ) {
        endpoint.atomic_own((datatype, op), Target { peer, address, key }, context, |what| {
            // SAFETY: the client passed valid buffers.
            let operand = unsafe { what.several(iov, count) }?;
            // SAFETY: as above.
            let compare = unsafe { what.several(comparev, compare_count) }?;
            // SAFETY: as above.
            let result = unsafe { what.several(resultv, result_count) }?;
            Ok(Operands { operand, compare: Some(compare), result: Some(result) })
        })
    }

    fn compwritemsg(
        endpoint, msg: *const fi_msg_atomic, comparev: Ioc, _compare_desc: Descs, compare_count: usize,
        resultv: *mut fi_ioc, _result_desc: Descs, result_count: usize, flags: u64
    ) {
        let (compare, result) = (Some((comparev, compare_count)), Some((resultv, result_count)));
        // SAFETY: the client passed a valid message structure.
        either(unsafe { endpoint.atomic_as(Description { msg, compare, result }, flags) })
    }
} }

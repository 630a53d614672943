//! The posting calls of domains with FI_MR_LOCAL. Operations pass descriptors of their local memory. An operation is
//! rejected with -FI_EINVAL before anything else is done if its memory has no descriptor, the descriptor of another
//! region, or no access right for the operation (MR-037, MR-038).
//!
//! These tables replace the usual ones, so that other domains do not pay for the checks. The access right for one kind
//! of transfer also permits the other kind in the same direction (MR-054): FI_SEND and FI_WRITE read the memory,
//! FI_RECV and FI_READ write to it.

use std::ffi::c_void;

use percale::device::{Device, Interface};
use percale::{Access, Datatype};

use super::calls::{Const, Descs, Ioc, Iov, Void, table};
use super::{Endpoint, atomic, message, rma, tagged};
use crate::abi::{
    FI_ATOMIC_READ, FI_INJECT, FI_LOG_EP_DATA, fi_addr_t, fi_ioc, fi_msg, fi_msg_atomic, fi_msg_rma, fi_msg_tagged,
    fi_ops_atomic, fi_ops_msg, fi_ops_rma, fi_ops_tagged, fid_ep,
};
use crate::log;
use crate::object::Object;

pub(super) const MESSAGES: fi_ops_msg =
    table!(fi_ops_msg { recv, recvv, recvmsg, send, sendv, sendmsg, senddata; ..message::TABLE });
pub(super) const TAGGED: fi_ops_tagged = table!(fi_ops_tagged {
    recv: tagged_recv,
    recvv: tagged_recvv,
    recvmsg: tagged_recvmsg,
    send: tagged_send,
    sendv: tagged_sendv,
    sendmsg: tagged_sendmsg,
    senddata: tagged_senddata;
    ..tagged::TABLE
});
pub(super) const RMA: fi_ops_rma =
    table!(fi_ops_rma { read, readv, readmsg, write, writev, writemsg, writedata; ..rma::TABLE });
pub(super) const ATOMIC: fi_ops_atomic = table!(fi_ops_atomic {
    write: atomic_write,
    writev: atomic_writev,
    writemsg: atomic_writemsg,
    readwrite,
    readwritev,
    readwritemsg,
    compwrite,
    compwritev,
    compwritemsg;
    ..atomic::TABLE
});

/// The access rights that permit reading local memory. One of them is sufficient.
pub(super) const FROM: Access = Access::SEND.union(Access::WRITE);
/// The access rights that permit writing to local memory. One of them is sufficient.
pub(super) const INTO: Access = Access::RECEIVE.union(Access::READ);

/// Checks descriptors against those of the endpoint's domain.
struct Check<'e>(&'e Endpoint);

impl Check<'_> {
    fn one(&self, description: *mut c_void, buf: *const c_void, len: usize, rights: Access) -> bool {
        let domain = self.0.setup.domain();
        domain.descriptions.cover(description, buf.addr(), len, rights)
            || domain.devices && description.is_null() && self.is_devices(buf, len)
    }

    /// Returns whether memory without a descriptor is device memory that need not be registered. With FI_MR_HMEM all
    /// device memory must be registered (HMEM-012).
    #[cold]
    fn is_devices(&self, buf: *const c_void, len: usize) -> bool {
        // SAFETY: the memory is not accessed.
        let memory = unsafe { percale::Segment::new(buf.cast_mut().cast(), len) };
        !self.0.setup.domain().regions.devices && matches!(Device::of(Interface::Cuda, memory), Ok(Some(_)))
    }

    /// # Safety
    /// `iov` is null or readable for `count` pieces, and `descriptions` is null or readable for `count` descriptors.
    unsafe fn several(&self, descriptions: Descs, iov: Iov, count: usize, rights: Access) -> bool {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.all(descriptions, iov, count, rights, |piece| (piece.iov_base, piece.iov_len)) }
    }

    /// # Safety
    /// The requirements of [`several`](Self::several) apply.
    unsafe fn elements(&self, descriptions: Descs, iov: Ioc, count: usize, datatype: u32, rights: Access) -> bool {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.all(descriptions, iov, count, rights, |piece| (piece.addr, bytes(piece.count, datatype))) }
    }

    /// Checks each piece of a list. `memory` returns the address and the length of a piece.
    ///
    /// # Safety
    /// The requirements of [`several`](Self::several) apply.
    #[inline(always)]
    unsafe fn all<P>(
        &self,
        descriptions: Descs,
        iov: *const P,
        count: usize,
        rights: Access,
        memory: impl Fn(P) -> (Void, usize),
    ) -> bool {
        (!iov.is_null() || count == 0)
            && (0..count).all(|at| {
                // SAFETY: the caller guarantees this.
                let (piece, description) = unsafe { (iov.add(at).read(), nth(descriptions, at)) };
                let (buf, len) = memory(piece);
                self.one(description, buf, len, rights)
            })
    }
}

/// Returns an entry of a list, or null if the list is null.
///
/// # Safety
/// `list` is null or has more than `at` entries.
pub(super) unsafe fn nth(list: *mut *mut c_void, at: usize) -> *mut c_void {
    // SAFETY: the caller guarantees this.
    if list.is_null() { std::ptr::null_mut() } else { unsafe { list.add(at).read() } }
}

/// Returns the length of the elements in bytes, or 0 for an invalid type, which the call itself rejects with the right
/// error code.
fn bytes(count: usize, datatype: u32) -> usize {
    let datatype = u8::try_from(datatype).ok().and_then(Datatype::from_u8);
    datatype.map_or(0, |datatype| count.saturating_mul(datatype.size()))
}

#[cold]
fn refuse() -> isize {
    log::warning!(
        FI_LOG_EP_DATA,
        "an operation was not posted: with FI_MR_LOCAL, desc must be the fi_mr_desc of a region that contains the memory"
    );
    -(libc::EINVAL as isize)
}

/// Runs one check of a single buffer or of a list.
macro_rules! looks {
    ($check:ident.one($($arg:expr),*)) => { $check.one($($arg),*) };
    ($check:ident.$list:ident($($arg:expr),*)) => {
        // SAFETY: the client's lists have the lengths that the call states.
        unsafe { $check.$list($($arg),*) }
    };
}

/// Defines calls that check descriptors and then call the usual function.
macro_rules! described {
    ($($name:ident => $call:path, ($($arg:ident: $type:ty),*), $($look:ident($($what:expr),*) $(unless $without:expr)?),+;)*) => {$(
        unsafe extern "C" fn $name(ep: *mut fid_ep, $($arg: $type),*) -> isize {
            // SAFETY: the pointer is an endpoint of this provider.
            let check = Check(unsafe { Endpoint::of(ep) });
            if !($(($($without ||)? looks!(check.$look($($what),*)))) &&+) {
                return refuse();
            }
            // SAFETY: the caller upholds the same contract.
            unsafe { $call(ep, $($arg),*) }
        }
    )*};
}

/// Like the macro above, for calls that take the memory in a structure.
macro_rules! described_as {
    ($($name:ident => $call:path, $msg:ident: $structure:ty, ($($arg:ident: $type:ty),*),
       $($look:ident($($what:expr),*) $(unless $without:expr)?),+;)*) => {$(
        unsafe extern "C" fn $name(ep: *mut fid_ep, $msg: *const $structure, $($arg: $type),*) -> isize {
            // SAFETY: the pointer is an endpoint of this provider.
            let check = Check(unsafe { Endpoint::of(ep) });
            let given = $msg;
            // SAFETY: the client passed a valid structure.
            let $msg = unsafe { &*given };
            if !($(($($without ||)? looks!(check.$look($($what),*)))) &&+) {
                return refuse();
            }
            // SAFETY: the caller upholds the same contract.
            unsafe { $call(ep, given, $($arg),*) }
        }
    )*};
}

described! {
    recv => message::recv, (buf: Void, len: usize, desc: Void, from: fi_addr_t, context: Void), one(desc, buf, len, INTO);
    recvv => message::recvv, (iov: Iov, desc: Descs, count: usize, from: fi_addr_t, context: Void),
        several(desc, iov, count, INTO);
    send => message::send, (buf: Const, len: usize, desc: Void, peer: fi_addr_t, context: Void), one(desc, buf, len, FROM);
    sendv => message::sendv, (iov: Iov, desc: Descs, count: usize, peer: fi_addr_t, context: Void),
        several(desc, iov, count, FROM);
    senddata => message::senddata, (buf: Const, len: usize, desc: Void, data: u64, peer: fi_addr_t, context: Void),
        one(desc, buf, len, FROM);

    tagged_recv => tagged::recv,
        (buf: Void, len: usize, desc: Void, from: fi_addr_t, tag: u64, ignore: u64, context: Void),
        one(desc, buf, len, INTO);
    tagged_recvv => tagged::recvv,
        (iov: Iov, desc: Descs, count: usize, from: fi_addr_t, tag: u64, ignore: u64, context: Void),
        several(desc, iov, count, INTO);
    tagged_send => tagged::send, (buf: Const, len: usize, desc: Void, peer: fi_addr_t, tag: u64, context: Void),
        one(desc, buf, len, FROM);
    tagged_sendv => tagged::sendv, (iov: Iov, desc: Descs, count: usize, peer: fi_addr_t, tag: u64, context: Void),
        several(desc, iov, count, FROM);
    tagged_senddata => tagged::senddata,
        (buf: Const, len: usize, desc: Void, data: u64, peer: fi_addr_t, tag: u64, context: Void),
        one(desc, buf, len, FROM);

    read => rma::read, (buf: Void, len: usize, desc: Void, peer: fi_addr_t, address: u64, key: u64, context: Void),
        one(desc, buf, len, INTO);
    readv => rma::readv, (iov: Iov, desc: Descs, count: usize, peer: fi_addr_t, address: u64, key: u64, context: Void),
        several(desc, iov, count, INTO);
    write => rma::write, (buf: Const, len: usize, desc: Void, peer: fi_addr_t, address: u64, key: u64, context: Void),
        one(desc, buf, len, FROM);
    writev => rma::writev, (iov: Iov, desc: Descs, count: usize, peer: fi_addr_t, address: u64, key: u64, context: Void),
        several(desc, iov, count, FROM);
    writedata => rma::writedata,
        (buf: Const, len: usize, desc: Void, data: u64, peer: fi_addr_t, address: u64, key: u64, context: Void),
        one(desc, buf, len, FROM);

    atomic_write => atomic::write,
        (buf: Const, count: usize, desc: Void, peer: fi_addr_t, address: u64, key: u64, datatype: u32, op: u32,
         context: Void),
        one(desc, buf, bytes(count, datatype), FROM);
    atomic_writev => atomic::writev,
        (iov: Ioc, desc: Descs, count: usize, peer: fi_addr_t, address: u64, key: u64, datatype: u32, op: u32,
         context: Void),
        elements(desc, iov, count, datatype, FROM);
    readwrite => atomic::readwrite,
        (buf: Const, count: usize, desc: Void, result: Void, result_desc: Void, peer: fi_addr_t, address: u64, key: u64,
         datatype: u32, op: u32, context: Void),
        one(desc, buf, bytes(count, datatype), FROM) unless op == FI_ATOMIC_READ,
        one(result_desc, result, bytes(count, datatype), INTO);
    readwritev => atomic::readwritev,
        (iov: Ioc, desc: Descs, count: usize, resultv: *mut fi_ioc, result_desc: Descs, result_count: usize,
         peer: fi_addr_t, address: u64, key: u64, datatype: u32, op: u32, context: Void),
        elements(desc, iov, count, datatype, FROM) unless op == FI_ATOMIC_READ,
        elements(result_desc, resultv, result_count, datatype, INTO);
    compwrite => atomic::compwrite,
        (buf: Const, count: usize, desc: Void, compare: Const, compare_desc: Void, result: Void, result_desc: Void,
         peer: fi_addr_t, address: u64, key: u64, datatype: u32, op: u32, context: Void),
        one(desc, buf, bytes(count, datatype), FROM),
        one(compare_desc, compare, bytes(count, datatype), FROM),
        one(result_desc, result, bytes(count, datatype), INTO);
    compwritev => atomic::compwritev,
        (iov: Ioc, desc: Descs, count: usize, comparev: Ioc, compare_desc: Descs, compare_count: usize,
         resultv: *mut fi_ioc, result_desc: Descs, result_count: usize, peer: fi_addr_t, address: u64, key: u64,
         datatype: u32, op: u32, context: Void),
        elements(desc, iov, count, datatype, FROM),
        elements(compare_desc, comparev, compare_count, datatype, FROM),
        elements(result_desc, resultv, result_count, datatype, INTO);
}

// Injected memory is copied before the call returns, so it needs no registration.
described_as! {
    recvmsg => message::recvmsg, msg: fi_msg, (flags: u64), several(msg.desc, msg.msg_iov, msg.iov_count, INTO);
    sendmsg => message::sendmsg, msg: fi_msg, (flags: u64),
        several(msg.desc, msg.msg_iov, msg.iov_count, FROM) unless flags & FI_INJECT != 0;
    tagged_recvmsg => tagged::recvmsg, msg: fi_msg_tagged, (flags: u64),
        several(msg.desc, msg.msg_iov, msg.iov_count, INTO);
    tagged_sendmsg => tagged::sendmsg, msg: fi_msg_tagged, (flags: u64),
        several(msg.desc, msg.msg_iov, msg.iov_count, FROM) unless flags & FI_INJECT != 0;
    readmsg => rma::readmsg, msg: fi_msg_rma, (flags: u64), several(msg.desc, msg.msg_iov, msg.iov_count, INTO);
    writemsg => rma::writemsg, msg: fi_msg_rma, (flags: u64),
        several(msg.desc, msg.msg_iov, msg.iov_count, FROM) unless flags & FI_INJECT != 0;
    atomic_writemsg => atomic::writemsg, msg: fi_msg_atomic, (flags: u64),
        elements(msg.desc, msg.msg_iov, msg.iov_count, msg.datatype, FROM) unless flags & FI_INJECT != 0;
    readwritemsg => atomic::readwritemsg, msg: fi_msg_atomic,
        (resultv: *mut fi_ioc, result_desc: Descs, result_count: usize, flags: u64),
        elements(msg.desc, msg.msg_iov, msg.iov_count, msg.datatype, FROM)
            unless flags & FI_INJECT != 0 || msg.op == FI_ATOMIC_READ,
        elements(result_desc, resultv, result_count, msg.datatype, INTO);
    compwritemsg => atomic::compwritemsg, msg: fi_msg_atomic,
        (comparev: Ioc, compare_desc: Descs, compare_count: usize, resultv: *mut fi_ioc, result_desc: Descs,
         result_count: usize, flags: u64),
        elements(msg.desc, msg.msg_iov, msg.iov_count, msg.datatype, FROM) unless flags & FI_INJECT != 0,
        elements(compare_desc, comparev, compare_count, msg.datatype, FROM),
        elements(result_desc, resultv, result_count, msg.datatype, INTO);
}

//! Checks of atomic operations, and queries for the supported ones (fi_atomic(3), fi_query_atomic(3)).

use std::ffi::c_int;

use percale::endpoint::remote_work::ATOMIC_LIMIT;
use percale::memory::atomic::{AtomicKind, is_valid};
use percale::{AtomicOp, Datatype};

use crate::abi::{FI_COMPARE_ATOMIC, FI_FETCH_ATOMIC, fi_atomic_attr, fid_domain, fid_ep};

/// The parameters of an operation, as percale types.
#[derive(Clone, Copy)]
pub(super) struct AtomicParameters {
    pub(super) op: AtomicOp,
    pub(super) datatype: Datatype,
}

impl AtomicParameters {
    #[inline]
    pub(super) fn of(datatype: u32, op: u32) -> Result<Self, isize> {
        let op = u8::try_from(op).ok().and_then(AtomicOp::from_u8);
        let datatype = u8::try_from(datatype).ok().and_then(Datatype::from_u8);
        match (op, datatype) {
            (Some(op), Some(datatype)) => Ok(Self { op, datatype }),
            _ => Err(-(libc::EOPNOTSUPP as isize)),
        }
    }
}

/// Returns the maximum number of elements of one operation and their size, or -FI_EOPNOTSUPP if the operation is not
/// supported.
fn most(datatype: u32, op: u32, kind: AtomicKind) -> Result<(usize, usize), c_int> {
    let what = AtomicParameters::of(datatype, op).map_err(|code| code as c_int)?;
    if !is_valid(kind, what.op, what.datatype) {
        return Err(-libc::EOPNOTSUPP);
    }
    Ok((ATOMIC_LIMIT / what.datatype.size(), what.datatype.size()))
}

/// Writes the maximum number of elements. Returns a negative error code if the operation is not supported.
///
/// # Safety
/// `count` is null or writable.
unsafe fn valid(datatype: u32, op: u32, kind: AtomicKind, count: *mut usize) -> c_int {
    match most(datatype, op, kind) {
        Ok((most, _)) => {
            if !count.is_null() {
                // SAFETY: the caller guarantees this.
                unsafe { count.write(most) };
            }
            0
        }
        Err(code) => code,
    }
}

pub(super) unsafe extern "C" fn writevalid(_ep: *mut fid_ep, datatype: u32, op: u32, count: *mut usize) -> c_int {
    // SAFETY: the client passed a writable location for the count.
    unsafe { valid(datatype, op, AtomicKind::Plain, count) }
}

pub(super) unsafe extern "C" fn readwritevalid(_ep: *mut fid_ep, datatype: u32, op: u32, count: *mut usize) -> c_int {
    // SAFETY: the client passed a writable location for the count.
    unsafe { valid(datatype, op, AtomicKind::Fetch, count) }
}

pub(super) unsafe extern "C" fn compwritevalid(_ep: *mut fid_ep, datatype: u32, op: u32, count: *mut usize) -> c_int {
    // SAFETY: the client passed a writable location for the count.
    unsafe { valid(datatype, op, AtomicKind::Compare, count) }
}

/// Implements fi_query_atomic(3).
pub(crate) unsafe extern "C" fn query(
    _domain: *mut fid_domain,
    datatype: u32,
    op: u32,
    attr: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    let kind = match flags & (FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC) {
        0 => AtomicKind::Plain,
        FI_FETCH_ATOMIC => AtomicKind::Fetch,
        FI_COMPARE_ATOMIC => AtomicKind::Compare,
        _ => return -libc::EINVAL,
    };
    match most(datatype, op, kind) {
        Ok((count, size)) => {
            if !attr.is_null() {
                // SAFETY: the client passed a writable location for the result.
                unsafe { attr.write(fi_atomic_attr { count, size }) };
            }
            0
        }
        Err(code) => code,
    }
}

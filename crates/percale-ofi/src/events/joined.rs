//! The head of a group's object, in which the group is entered when it is known (fi_join_collective).

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use percale::GroupId;

use crate::abi::{FI_CLASS_MC, fi_ops, fid_mc, fid_t};
use crate::object;

/// The number that stands for no group.
const NONE: u64 = u64::MAX;

/// The first field of a group's object.
#[repr(C)]
pub(crate) struct Joined {
    pub(crate) fid: fid_mc,
    /// The group, once it is known: set by the first of the return of the call that joins it and the reader of its event.
    pub(crate) group: AtomicU64,
}

impl Joined {
    /// The head of an object with a group that is not known yet.
    pub(crate) const fn new(context: *mut c_void, ops: &'static fi_ops) -> Self {
        let fid = fid_mc { fid: object::head(FI_CLASS_MC, context, ops), fi_addr: NONE };
        Self { fid, group: AtomicU64::new(NONE) }
    }
}

/// Sets the group of a client's object.
///
/// # Safety
/// `group` is an object that begins with a [`Joined`] and is not being closed.
pub(super) unsafe fn name(group: fid_t, id: GroupId) {
    let group = group.cast::<Joined>();
    // SAFETY: promised by the caller; the word is an atomic.
    unsafe { &(*group).group }.store(id.to_u64(), Ordering::Relaxed);
    // SAFETY: promised by the caller; the word is aligned, and only this function writes it, as an atomic.
    unsafe { AtomicU64::from_ptr(&raw mut (*group).fid.fi_addr) }.store(id.to_u64(), Ordering::Release);
}

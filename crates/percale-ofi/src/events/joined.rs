//! The head of a group object. It stores the group ID once that is known (fi_join_collective).

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use percale::GroupId;

use crate::abi::{FI_CLASS_MC, fi_ops, fid_mc, fid_t};
use crate::object;

/// The value for an unknown group.
const NONE: u64 = u64::MAX;

/// The first field of a group's object.
#[repr(C)]
pub(crate) struct Joined {
    pub(crate) fid: fid_mc,
    /// The group ID, once it is known. It is set when the joining call returns or when its event is read, whichever is
    /// first.
    pub(crate) group: AtomicU64,
}

impl Joined {
    /// Creates the head of an object for a group that is not known yet.
    pub(crate) const fn new(context: *mut c_void, ops: &'static fi_ops) -> Self {
        let fid = fid_mc { fid: object::head(FI_CLASS_MC, context, ops), fi_addr: NONE };
        Self { fid, group: AtomicU64::new(NONE) }
    }
}

/// Stores the group ID in a client's object.
///
/// # Safety
/// `group` is an object that begins with a [`Joined`] and is not being closed.
pub(super) unsafe fn name(group: fid_t, id: GroupId) {
    let group = group.cast::<Joined>();
    // SAFETY: the caller guarantees this, and the word is an atomic.
    unsafe { &(*group).group }.store(id.to_u64(), Ordering::Relaxed);
    // SAFETY: the caller guarantees this. The word is aligned, and only this function writes it, atomically.
    unsafe { AtomicU64::from_ptr(&raw mut (*group).fid.fi_addr) }.store(id.to_u64(), Ordering::Release);
}

//! `fid_av_set`: an ordered set of a vector's addresses (fi_av_set(3)).

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use percale::address::vector::VectorType;
use percale::{AddressSet, PeerAddress};

use super::{Vector, VectorShared};
use crate::abi::{
    FI_ADDR_NOTAVAIL, FI_ALLGATHER_SET, FI_ALLREDUCE_SET, FI_ALLTOALL_SET, FI_BARRIER_SET, FI_BROADCAST_SET,
    FI_CLASS_AV_SET, FI_GATHER_SET, FI_LOG_AV, FI_REDUCE_SCATTER_SET, FI_REDUCE_SET, FI_SCATTER_SET, FI_UNIVERSE,
    fi_addr_t, fi_av_set_attr, fi_ops, fi_ops_av_set, fid, fid_av, fid_av_set,
};
use crate::log;
use crate::object::{self, Object};

/// The supported collectives.
const HERE: u64 = FI_BARRIER_SET
    | FI_BROADCAST_SET
    | FI_ALLTOALL_SET
    | FI_ALLREDUCE_SET
    | FI_ALLGATHER_SET
    | FI_REDUCE_SCATTER_SET
    | FI_REDUCE_SET
    | FI_SCATTER_SET
    | FI_GATHER_SET;

/// The maximum number of indices that are examined for a range.
const RANGE: u64 = 1 << 24;

#[repr(C)]
pub(crate) struct Set {
    fid: fid_av_set,
    part: Arc<SetMembers>,
}

struct SetMembers {
    vector: Arc<VectorShared>,
    members: Mutex<AddressSet>,
}

// SAFETY: the type is `repr(C)`, and `fid` is its first field.
unsafe impl Object for Set {
    const CLASS: usize = FI_CLASS_AV_SET;
}

static FI: fi_ops = fi_ops { close: Some(close), ..fi_ops::REFUSING };
static OPS: fi_ops_av_set = fi_ops_av_set {
    size: size_of::<fi_ops_av_set>(),
    set_union: Some(union),
    intersect: Some(intersect),
    diff: Some(diff),
    insert: Some(insert),
    remove: Some(remove),
    addr: Some(address),
};

impl Set {
    /// Locks and returns the members.
    pub(crate) fn members(&self) -> MutexGuard<'_, AddressSet> {
        self.part.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the set belongs to this vector.
    pub(crate) fn is_of(&self, vector: &Arc<VectorShared>) -> bool {
        Arc::ptr_eq(&self.part.vector, vector)
    }
}

/// Opens an address set.
pub(super) unsafe extern "C" fn open(
    av: *mut fid_av,
    attr: *mut fi_av_set_attr,
    set: *mut *mut fid_av_set,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the pointer is an address vector of this provider.
    let vector = unsafe { Vector::of(av) }.shared();
    // SAFETY: the pointer is null or the client's attributes.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return -libc::EINVAL };
    let members = match members(vector, attr) {
        Ok(members) => members,
        Err(code) => return -code,
    };
    let fid = fid_av_set { fid: object::head(FI_CLASS_AV_SET, context, &FI), ops: std::ptr::from_ref(&OPS).cast_mut() };
    let part = Arc::new(SetMembers { vector: Arc::clone(vector), members: Mutex::new(members) });
    // SAFETY: the client passed a writable location for the set.
    unsafe { Set { fid, part }.give(set) };
    0
}

/// Returns the initial members of a set, or the positive error code if its attributes are invalid.
fn members(vector: &VectorShared, attr: &fi_av_set_attr) -> Result<AddressSet, i32> {
    let refuse = |why: &str| {
        log::warning!(FI_LOG_AV, "fi_av_set: {why}");
        Err(libc::EINVAL)
    };
    if attr.comm_key_size != 0 {
        log::warning!(FI_LOG_AV, "fi_av_set: communication keys are not supported");
        return Err(libc::ENOSYS);
    }
    if attr.flags & !(HERE | FI_UNIVERSE) != 0 {
        return refuse("unknown flags");
    }
    let percale = &vector.percale;
    let ranged = (attr.start_addr, attr.end_addr) != (FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL);
    if attr.flags & FI_UNIVERSE != 0 || ranged {
        if percale.options().kind != VectorType::Table {
            return refuse("ranges need FI_AV_TABLE; insert the addresses of an FI_AV_MAP one by one");
        }
        let (start, end, stride) = match ranged {
            true => (attr.start_addr, attr.end_addr, attr.stride),
            // After addresses were removed, the largest index in use may exceed the number of addresses.
            false => (0, u64::MAX, 1),
        };
        if stride == 0 || start > end {
            return refuse("invalid range: start_addr, end_addr and stride do not match");
        }
        let (mut set, mut found, mut at) = (AddressSet::new(), 0, start);
        let all = percale.len();
        while at <= end && at - start < RANGE && found < all {
            if percale.lookup(PeerAddress(at)).is_some() {
                set.insert(PeerAddress(at));
                found += 1;
            }
            let Some(next) = at.checked_add(stride) else { break };
            at = next;
        }
        if attr.count != 0 && set.len() > attr.count {
            return refuse("the range has more addresses than count");
        }
        return Ok(set);
    }
    Ok(AddressSet::new())
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the pointer is a set of this provider, and the client no longer uses it.
    unsafe { Set::close(fid, |set| &set.part) }
}

/// Changes a set with the members of another set.
///
/// # Safety
/// Both are open sets.
unsafe fn by(dst: *mut fid_av_set, src: *const fid_av_set, change: impl FnOnce(&mut AddressSet, &AddressSet)) -> c_int {
    if src.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: the caller guarantees this.
    let (dst, src) = unsafe { (Set::of(dst), Set::of(src.cast_mut())) };
    if !src.is_of(&dst.part.vector) {
        log::warning!(FI_LOG_AV, "fi_av_set: the sets belong to different address vectors");
        return -libc::EINVAL;
    }
    // The two sets may be the same.
    let other = src.members().clone();
    change(&mut dst.members(), &other);
    0
}

unsafe extern "C" fn union(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int {
    // SAFETY: the client passed valid address sets.
    unsafe { by(dst, src, AddressSet::union) }
}

unsafe extern "C" fn intersect(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int {
    // SAFETY: the client passed valid address sets.
    unsafe { by(dst, src, AddressSet::intersect) }
}

unsafe extern "C" fn diff(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int {
    // SAFETY: the client passed valid address sets.
    unsafe { by(dst, src, AddressSet::diff) }
}

unsafe extern "C" fn insert(set: *mut fid_av_set, address: fi_addr_t) -> c_int {
    // SAFETY: the pointer is a set of this provider.
    let set = unsafe { Set::of(set) };
    let known = set.part.vector.percale.lookup(PeerAddress(address)).is_some();
    if known && set.members().insert(PeerAddress(address)) { 0 } else { -libc::EINVAL }
}

unsafe extern "C" fn remove(set: *mut fid_av_set, address: fi_addr_t) -> c_int {
    // SAFETY: the pointer is a set of this provider.
    if unsafe { Set::of(set) }.members().remove(PeerAddress(address)) { 0 } else { -libc::EINVAL }
}

/// Returns the address of the set itself. It is the set's address in memory, and therefore unique. A join uses the set,
/// not this address.
unsafe extern "C" fn address(set: *mut fid_av_set, address: *mut fi_addr_t) -> c_int {
    if address.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: the client passed a writable location.
    unsafe { address.write(set.addr() as fi_addr_t) };
    0
}

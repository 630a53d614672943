//! Opening fabrics, and the calls on a fabric that open domains, passive endpoints, event queues and wait sets
//! (fi_fabric(3)).

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::abi::{
    FI_CLASS_FABRIC, FI_LOG_FABRIC, fi_eq_attr, fi_fabric_attr, fi_info, fi_ops, fi_ops_fabric, fi_wait_attr, fid,
    fid_domain, fid_eq, fid_fabric, fid_pep, fid_wait,
};
use crate::fabric::{Fabric, FabricShared};
use crate::object::{self, Object};
use crate::{domain_ops, events, log, passive, try_wait, wait_set};

static FI: fi_ops = fi_ops { close: Some(close), ..fi_ops::REFUSING };
static OPS: fi_ops_fabric = fi_ops_fabric {
    size: size_of::<fi_ops_fabric>(),
    domain: Some(open_domain),
    passive_ep: Some(open_passive),
    eq_open: Some(open_events),
    wait_open: Some(open_wait_set),
    trywait: Some(try_wait::try_wait),
    domain2: Some(open_domain_flagged),
};

/// Opens the fabric (`fi_provider::fabric`).
///
/// # Safety
/// `attr` is readable and `fabric` is writable, as fi_fabric(3) requires.
pub(crate) unsafe extern "C" fn open(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric passes the attributes of an `fi_info` that this provider returned.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return -libc::EINVAL };
    let fid = fid_fabric {
        fid: object::head(FI_CLASS_FABRIC, context, &FI),
        ops: std::ptr::from_ref(&OPS).cast_mut(),
        api_version: attr.api_version,
    };
    let shared = Arc::new(FabricShared { api_version: attr.api_version });
    // SAFETY: the caller passed a writable location for the fabric.
    unsafe { Fabric::new(fid, shared).give(fabric) };
    0
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the pointer is a fabric of this provider, and the client no longer uses it.
    unsafe { Fabric::close(fid, Fabric::shared) }
}

unsafe extern "C" fn open_domain(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the client passes the arguments that fi_domain(3) requires.
    unsafe { domain_ops::open(Fabric::of(fabric).shared(), info, domain, context) }
}

unsafe extern "C" fn open_domain_flagged(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        log::warning!(FI_LOG_FABRIC, "fi_domain2: flags {flags:#x} are not supported");
        return -libc::EOPNOTSUPP;
    }
    // SAFETY: as above.
    unsafe { domain_ops::open(Fabric::of(fabric).shared(), info, domain, context) }
}

unsafe extern "C" fn open_passive(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    pep: *mut *mut fid_pep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the client passes the arguments that fi_passive_ep(3) requires.
    unsafe { passive::open(Fabric::of(fabric).shared(), info, pep, context) }
}

unsafe extern "C" fn open_events(
    fabric: *mut fid_fabric,
    attr: *mut fi_eq_attr,
    eq: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the client passes the arguments that fi_eq(3) requires.
    unsafe { events::open(Fabric::of(fabric).shared(), attr, eq, context) }
}

unsafe extern "C" fn open_wait_set(
    fabric: *mut fid_fabric,
    attr: *mut fi_wait_attr,
    waitset: *mut *mut fid_wait,
) -> c_int {
    // SAFETY: the client passes the arguments that fi_poll(3) requires.
    unsafe { wait_set::open(Fabric::of(fabric).shared(), attr, waitset) }
}

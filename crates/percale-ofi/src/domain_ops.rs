//! Opening domains, and the calls on a domain (fi_domain(3)).

use std::ffi::{CStr, c_int, c_void};
use std::sync::{Arc, PoisonError};

use crate::abi::{
    FI_CLASS_DOMAIN, FI_EBADFLAGS, FI_LOG_DOMAIN, FI_REG_MR, fi_info, fi_ops, fi_ops_domain, fid, fid_domain,
};
use crate::domain::{self, Domain, DomainShared};
use crate::events::Events;
use crate::object::{self, Object};
use crate::{address, cache, counter, endpoint, fabric, log, poll_set, queue, region, settings, vector, work};

static FI: fi_ops = fi_ops {
    close: Some(close),
    bind: Some(bind),
    control: Some(work::control),
    ops_open: Some(cache::open_ops),
    ..fi_ops::REFUSING
};
static OPS: fi_ops_domain = fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open: Some(vector::open),
    cq_open: Some(queue::open),
    endpoint: Some(endpoint::open),
    scalable_ep: Some(endpoint::scalable::open),
    stx_ctx: Some(endpoint::shared::open_transmit),
    srx_ctx: Some(endpoint::shared::open_receive),
    cntr_open: Some(counter::open),
    poll_open: Some(poll_set::open),
    query_atomic: Some(endpoint::query),
    query_collective: Some(endpoint::query_collective),
    endpoint2: Some(endpoint::open_flagged),
    ..fi_ops_domain::REFUSING
};

/// Opens a domain (fi_domain(3)).
///
/// # Safety
/// `info` is readable with everything that it points to, and `domain` is writable.
pub(crate) unsafe fn open(
    fabric: &Arc<fabric::FabricShared>,
    info: *const fi_info,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller guarantees this.
    let Some(info) = (unsafe { info.as_ref() }) else { return -libc::EINVAL };
    // SAFETY: as above.
    let Some(attr) = (unsafe { info.domain_attr.as_ref() }) else { return -libc::EINVAL };
    // SAFETY: the caller guarantees this.
    let mut builder = match unsafe { settings::configure(attr) } {
        Ok(builder) => builder,
        Err(code) => return -code,
    };
    if domain::is_automatic(attr) {
        builder = builder.progress(percale::Progress::Automatic);
    }
    let percale = match builder.open() {
        Ok(domain) => domain,
        Err(error) => {
            log::warning!(FI_LOG_DOMAIN, "fi_domain: {error}");
            return -error.errno();
        }
    };
    // SAFETY: the source address of an info has the stated length.
    let source = unsafe { address::read(info.src_addr, info.src_addrlen) };
    // SAFETY: the pointer is null or the client's string.
    let name = (!attr.name.is_null()).then(|| unsafe { CStr::from_ptr(attr.name) }.to_string_lossy().into_owned());
    let name = name.unwrap_or_default();
    let shared = Arc::new(DomainShared::new(Arc::clone(fabric), percale, name, source, info, attr));
    let fid = fid_domain {
        fid: object::head(FI_CLASS_DOMAIN, context, &FI),
        ops: std::ptr::from_ref(&OPS).cast_mut(),
        mr: std::ptr::from_ref(&region::OPS).cast_mut(),
    };
    if shared.regions.raw {
        // The client may have requested raw keys after fi_getinfo(3). The attributes must then state their length.
        // SAFETY: the client passed the attributes, and fi_domain(3) does not declare them constant.
        unsafe { (&raw mut (*info.domain_attr).mr_key_size).write(percale::memory::region::RAW_KEY_BYTES) };
    }
    // SAFETY: the caller passed a writable location for the domain.
    unsafe { Domain::new(fid, shared).give(domain) };
    0
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the pointer is a domain of this provider.
    let shared = unsafe { Domain::of(fid) }.shared();
    let mapped = shared.mapped.lock().unwrap_or_else(PoisonError::into_inner).len();
    if mapped != 0 {
        log::warning!(FI_LOG_DOMAIN, "fi_close: {mapped} keys of peers are mapped; unmap them first (fi_mr_unmap_key)");
        return -libc::EBUSY;
    }
    // SAFETY: the client no longer uses the object.
    unsafe { Domain::close(fid, Domain::shared) }
}

/// Binds an event queue that reports completed registrations from now on (FI_REG_MR). Without flags, the binding has no
/// effect.
unsafe extern "C" fn bind(domain: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: the client passed an open object.
    let Some(events) = (unsafe { Events::of_class(other) }) else { return -libc::EINVAL };
    // SAFETY: the pointer is a domain of this provider.
    let shared = unsafe { Domain::of(domain) }.shared();
    if !events.shared().is_of(&shared.fabric) {
        log::warning!(FI_LOG_DOMAIN, "fi_domain_bind: the event queue belongs to another fabric");
        return -libc::EINVAL;
    }
    if flags & !FI_REG_MR != 0 {
        log::warning!(FI_LOG_DOMAIN, "fi_domain_bind: unsupported flags {flags:#x}; only FI_REG_MR is supported");
        return -FI_EBADFLAGS;
    }
    if flags & FI_REG_MR != 0 && shared.registrations.set(Arc::clone(events.shared())).is_err() {
        log::warning!(FI_LOG_DOMAIN, "fi_domain_bind: the domain already has an event queue for registrations");
        return -libc::EINVAL;
    }
    0
}

//! `fid_domain`: a percale domain, as the client's attributes ask for it (fi_domain(3)).

use std::ffi::{CStr, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

use percale::device::Interface;
use percale::pindown::monitor::imported::Notifier;

use crate::abi::{
    FI_CLASS_DOMAIN, FI_EBADFLAGS, FI_HMEM, FI_LOG_DOMAIN, FI_PROGRESS_AUTO, FI_REG_MR, FI_RMA_EVENT,
    FI_THREAD_COMPLETION, FI_THREAD_DOMAIN, fi_domain_attr, fi_info, fi_ops, fi_ops_domain, fid, fid_domain,
};
use crate::endpoint::port::Port;
use crate::fabric::{self, Fabric};
use crate::object::{self, Object};
use crate::params::Params;
use crate::region::descriptions::Descriptions;
use crate::region::mode::RegionMode;
use crate::region::raw_key;
use crate::{cache, counter, endpoint, events, log, poll_set, queue, region, vector, work};

/// What the objects of a domain know of it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) fabric: Arc<fabric::Shared>,
    pub(crate) percale: percale::Domain,
    /// As the info has it.
    pub(crate) name: String,
    /// The client serializes what it does with an endpoint and what that completes to.
    pub(crate) serialized: bool,
    pub(crate) regions: RegionMode,
    /// The application names the kinds of memory that it registers.
    pub(crate) hmem: bool,
    /// It did, and a driver of devices is here: operations' memory may be theirs.
    pub(crate) devices: bool,
    /// Some endpoint may count what peers write: it was opened with FI_RMA_EVENT, or the domain was.
    pub(crate) rma_events: AtomicBool,
    pub(crate) descriptions: Descriptions,
    /// Raw keys of peers.
    pub(crate) mapped: raw_key::Mapped,
    /// Where registrations end, if they do so with an event.
    pub(crate) registrations: OnceLock<Arc<events::Shared>>,
    /// Addresses are IPv6.
    pub(crate) ipv6: bool,
    /// FI_AV_ of vectors whose client does not care.
    pub(crate) av_type: u32,
    /// By which the client tells registration caches what changed, if it imported a monitor.
    pub(crate) notifier: OnceLock<Notifier>,
    /// The endpoints that are enabled.
    ports: RwLock<Vec<Weak<Port>>>,
}

impl Shared {
    /// Any address.
    pub(crate) fn wildcard(&self) -> SocketAddr {
        let ip: IpAddr = if self.ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        SocketAddr::new(ip, 0)
    }

    /// An endpoint was enabled.
    pub(crate) fn opened(&self, port: &Arc<Port>) {
        let mut ports = self.ports.write().unwrap_or_else(PoisonError::into_inner);
        ports.retain(|port| port.strong_count() > 0);
        ports.push(Arc::downgrade(port));
    }

    /// Whether a collective may use these bytes, as far as the domain's mode wants to know.
    pub(crate) fn covers_collective(
        &self,
        description: *mut c_void,
        address: usize,
        len: usize,
        rights: percale::Access,
    ) -> bool {
        let RegionMode { local, collective, .. } = self.regions;
        !(local || collective) || self.descriptions.cover_for(description, address, len, rights, collective)
    }

    /// Makes progress on every endpoint: what waits for the writes of peers waits for any of them.
    pub(crate) fn progress(&self) {
        for port in self.ports.read().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade) {
            port.progress();
        }
    }
}

#[repr(C)]
pub(crate) struct Domain {
    fid: fid_domain,
    shared: Arc<Shared>,
}

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Object for Domain {
    const CLASS: usize = FI_CLASS_DOMAIN;
}

impl Domain {
    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

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

/// A percale domain as parameters and attributes have it, not opened yet.
///
/// # Safety
/// The attributes' name and key are readable.
pub(crate) unsafe fn configure(attr: &fi_domain_attr) -> Result<percale::DomainBuilder, i32> {
    let params = Params::read().map_err(|error| {
        log::warning!(FI_LOG_DOMAIN, "{error}");
        libc::EINVAL
    })?;
    let here = percale::Info::discover().map_err(|error| {
        log::warning!(FI_LOG_DOMAIN, "{error}");
        libc::EIO
    })?;
    let mut builder = params.apply(here.domain()).registration_cache(cache::settings());
    if params.interface.is_none() && !attr.name.is_null() {
        // Endpoints bound to any address advertise that of the interface that the domain is named after.
        // SAFETY: a domain's name ends with a zero byte.
        let name = unsafe { CStr::from_ptr(attr.name) };
        builder = builder.interface(name.to_string_lossy());
    }
    if attr.auth_key_size > 0 && !attr.auth_key.is_null() {
        // SAFETY: the client gives so many bytes.
        let key = unsafe { std::slice::from_raw_parts(attr.auth_key, attr.auth_key_size) };
        builder = builder.authorization_key(key);
    }
    Ok(builder)
}

/// Opens a domain (fi_domain(3)).
///
/// # Safety
/// `info` is readable with all it points to, `domain` writable.
pub(crate) unsafe fn open(
    fabric: &Fabric,
    info: *const fi_info,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: promised by the caller.
    let Some(info) = (unsafe { info.as_ref() }) else { return -libc::EINVAL };
    // SAFETY: as above.
    let Some(attr) = (unsafe { info.domain_attr.as_ref() }) else { return -libc::EINVAL };
    let automatic = attr.data_progress == FI_PROGRESS_AUTO || attr.control_progress == FI_PROGRESS_AUTO;
    // SAFETY: promised by the caller.
    let mut builder = match unsafe { configure(attr) } {
        Ok(builder) => builder,
        Err(code) => return -code,
    };
    if automatic {
        builder = builder.progress(percale::Progress::Automatic);
    }
    let percale = match builder.open() {
        Ok(domain) => domain,
        Err(error) => {
            log::warning!(FI_LOG_DOMAIN, "fi_domain: {error}");
            return -error.errno();
        }
    };
    // SAFETY: an info's source address is as long as it says.
    let source = unsafe { crate::address::read(info.src_addr, info.src_addrlen) };
    // SAFETY: null, or the client's string.
    let name = (!attr.name.is_null()).then(|| unsafe { CStr::from_ptr(attr.name) }.to_string_lossy().into_owned());
    let shared = Arc::new(Shared {
        fabric: Arc::clone(fabric.shared()),
        percale,
        name: name.unwrap_or_default(),
        serialized: matches!(attr.threading, FI_THREAD_DOMAIN | FI_THREAD_COMPLETION) && !automatic,
        regions: RegionMode::of(attr.mr_mode, info.mode),
        hmem: info.caps & FI_HMEM != 0,
        devices: info.caps & FI_HMEM != 0 && Interface::Cuda.driver().is_ok(),
        rma_events: AtomicBool::new(info.caps & FI_RMA_EVENT != 0),
        descriptions: Descriptions::default(),
        mapped: raw_key::Mapped::default(),
        registrations: OnceLock::new(),
        ipv6: source.is_some_and(|address| matches!(address, SocketAddr::V6(_))),
        av_type: attr.av_type,
        notifier: OnceLock::new(),
        ports: RwLock::default(),
    });
    let fid = fid_domain {
        fid: object::head(FI_CLASS_DOMAIN, context, &FI),
        ops: std::ptr::from_ref(&OPS).cast_mut(),
        mr: std::ptr::from_ref(&region::OPS).cast_mut(),
    };
    if shared.regions.raw {
        // The client may have asked for raw keys after fi_getinfo: now the attributes say how long they are.
        // SAFETY: the client's attributes, which fi_domain(3) does not have as constant.
        unsafe { (&raw mut (*info.domain_attr).mr_key_size).write(percale::memory::region::RAW_KEY_BYTES) };
    }
    // SAFETY: the caller wants the domain there.
    unsafe { Domain { fid, shared }.give(domain) };
    0
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: a domain of ours.
    let shared = unsafe { Domain::of(fid) }.shared();
    let mapped = shared.mapped.lock().unwrap_or_else(PoisonError::into_inner).len();
    if mapped != 0 {
        log::warning!(FI_LOG_DOMAIN, "fi_close: {mapped} keys of peers are mapped; unmap them first (fi_mr_unmap_key)");
        return -libc::EBUSY;
    }
    // SAFETY: the client gives it up.
    unsafe { Domain::close(fid, Domain::shared) }
}

/// An event queue, in which registrations end from then on (FI_REG_MR). Bound without flags it is for nothing that there is.
unsafe extern "C" fn bind(domain: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: some open object of the client's.
    let Some(events) = (unsafe { events::Events::of_class(other) }) else { return -libc::EINVAL };
    if flags & !FI_REG_MR != 0 {
        log::warning!(FI_LOG_DOMAIN, "fi_domain_bind: flags {flags:#x} are not all supported; FI_REG_MR is");
        return -FI_EBADFLAGS;
    }
    // SAFETY: a domain of ours.
    let shared = unsafe { Domain::of(domain) }.shared();
    if flags & FI_REG_MR != 0 && shared.registrations.set(Arc::clone(events.shared())).is_err() {
        log::warning!(FI_LOG_DOMAIN, "fi_domain_bind: the domain has an event queue for registrations");
        return -libc::EINVAL;
    }
    0
}

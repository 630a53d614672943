//! `fid_domain`: a percale domain, opened with the client's attributes (fi_domain(3)).

use std::ffi::{CStr, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

use percale::device::Interface;
use percale::pindown::monitor::imported::Notifier;

use crate::abi::{
    FI_CLASS_DOMAIN, FI_EBADFLAGS, FI_HMEM, FI_LOG_DOMAIN, FI_PROGRESS_AUTO, FI_REG_MR, FI_RMA_EVENT,
    FI_THREAD_COMPLETION, FI_THREAD_DOMAIN, fi_info, fi_ops, fi_ops_domain, fid, fid_domain,
};
use crate::fabric;
use crate::object::{self, Object};
use crate::port::Port;
use crate::region::raw_key;
use crate::registration::descriptions::Descriptions;
use crate::registration::mode::RegionMode;
use crate::{cache, counter, endpoint, events, log, poll_set, queue, region, settings, vector, work};

/// The part of a domain that its objects share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) fabric: Arc<fabric::Shared>,
    pub(crate) percale: percale::Domain,
    /// The name in the info.
    pub(crate) name: String,
    /// What the client serializes.
    pub(crate) serialized: Serialized,
    pub(crate) regions: RegionMode,
    /// The application names the kinds of memory that it registers.
    pub(crate) hmem: bool,
    /// As `hmem`, and a device driver is installed: operations may use device memory.
    pub(crate) devices: bool,
    /// Some endpoint may count what peers write: it was opened with FI_RMA_EVENT, or the domain was.
    pub(crate) rma_events: AtomicBool,
    pub(crate) descriptions: Descriptions,
    /// Raw keys of peers.
    pub(crate) mapped: raw_key::Mapped,
    /// The event queue that reports the ends of registrations, if one is bound for that (FI_REG_MR).
    pub(crate) registrations: OnceLock<Arc<events::Shared>>,
    /// Addresses are IPv6.
    pub(crate) ipv6: bool,
    /// The type (FI_AV_) of address vectors that are opened without one.
    pub(crate) av_type: u32,
    /// Reports memory changes of the client to registration caches; set if the client imported a monitor.
    pub(crate) notifier: OnceLock<Notifier>,
    /// The endpoints that are enabled.
    ports: RwLock<Vec<Weak<Port>>>,
    /// Counters of regions that threads sleep on.
    region_sleepers: RwLock<Vec<Weak<counter::Shared>>>,
}

/// Which of its calls the client promises to make one at a time (`fi_domain_attr::threading`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serialized {
    /// None.
    Nothing,
    /// Those on an endpoint, and on the completion queues and counters that are bound to it.
    Completions,
    /// All in the domain.
    Domain,
}

impl Serialized {
    /// Converts an FI_THREAD_; `automatic`: threads of ours make progress.
    const fn of(threading: u32, automatic: bool) -> Self {
        match threading {
            FI_THREAD_COMPLETION if !automatic => Self::Completions,
            FI_THREAD_DOMAIN if !automatic => Self::Domain,
            _ => Self::Nothing,
        }
    }

    /// Whether a completion queue or a counter is used by one thread at a time, and so are the endpoints that are bound to it.
    pub(crate) fn has_completions(self) -> bool {
        self != Self::Nothing
    }
}

impl Shared {
    /// Any address.
    pub(crate) fn wildcard(&self) -> SocketAddr {
        let ip: IpAddr = if self.ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        SocketAddr::new(ip, 0)
    }

    /// Registers an endpoint that was enabled. Its counters of regions drive it, if it counts for them.
    ///
    /// # Errors
    /// The positive code, if the system has no descriptors for sleeping threads.
    pub(crate) fn opened(&self, port: &Arc<Port>) -> Result<(), i32> {
        let mut ports = self.ports.write().unwrap_or_else(PoisonError::into_inner);
        ports.retain(|port| port.strong_count() > 0);
        for counter in self.region_sleepers().iter().filter_map(Weak::upgrade) {
            self.wakes(port, &counter)?;
        }
        ports.push(Arc::downgrade(port));
        Ok(())
    }

    fn region_sleepers(&self) -> std::sync::RwLockReadGuard<'_, Vec<Weak<counter::Shared>>> {
        self.region_sleepers.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether threads sleep on counters of regions.
    pub(crate) fn sleeps_for_regions(&self) -> bool {
        self.region_sleepers().iter().any(|counter| counter.strong_count() > 0)
    }

    /// Registers a counter of a region on which threads sleep: counting by any endpoint wakes them from now on.
    ///
    /// # Errors
    /// The positive code, if the system has no descriptors for that.
    pub(crate) fn sleep_for_regions(&self, counter: &Arc<counter::Shared>) -> Result<(), i32> {
        // Endpoints are opened under this lock.
        let ports = self.ports.write().unwrap_or_else(PoisonError::into_inner);
        if self.region_sleepers().iter().any(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(counter))) {
            return Ok(());
        }
        for port in ports.iter().filter_map(Weak::upgrade) {
            self.wakes(&port, counter)?;
        }
        let mut sleepers = self.region_sleepers.write().unwrap_or_else(PoisonError::into_inner);
        sleepers.retain(|other| other.strong_count() > 0);
        sleepers.push(Arc::downgrade(counter));
        Ok(())
    }

    /// Makes reading and waiting for the counter drive the endpoint.
    fn wakes(&self, port: &Port, counter: &counter::Shared) -> Result<(), i32> {
        // Other threads may be in an endpoint without a lock, unless the client serializes all of the domain. Such an endpoint counts
        // nothing for regions.
        if port.is_shared() || self.serialized == Serialized::Domain {
            port.drive_for(&counter.percale)?;
        }
        Ok(())
    }

    /// Whether a collective may use these bytes, if the domain's mode requires that check.
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

    /// Makes progress on every endpoint through which peers' writes may be counted.
    pub(crate) fn progress(&self) {
        // `endpoint::drivers` decides which threads may use an endpoint at once: another thread may be using one without a lock now, unless the
        // client serializes the whole domain.
        let all = self.serialized == Serialized::Domain;
        for port in self.ports.read().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade) {
            if all || port.is_shared() {
                port.progress();
            }
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

/// Opens a domain (fi_domain(3)).
///
/// # Safety
/// `info` is readable with all it points to, `domain` writable.
pub(crate) unsafe fn open(
    fabric: &Arc<fabric::Shared>,
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
    let mut builder = match unsafe { settings::configure(attr) } {
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
        fabric: Arc::clone(fabric),
        percale,
        name: name.unwrap_or_default(),
        serialized: Serialized::of(attr.threading, automatic),
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
        region_sleepers: RwLock::default(),
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

/// Binds an event queue, which reports the ends of registrations from then on (FI_REG_MR). Without flags the binding has no effect.
unsafe extern "C" fn bind(domain: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: some open object of the client's.
    let Some(events) = (unsafe { events::Events::of_class(other) }) else { return -libc::EINVAL };
    // SAFETY: a domain of ours.
    let shared = unsafe { Domain::of(domain) }.shared();
    if !events.shared().is_of(&shared.fabric) {
        log::warning!(FI_LOG_DOMAIN, "fi_domain_bind: the event queue is another fabric's");
        return -libc::EINVAL;
    }
    if flags & !FI_REG_MR != 0 {
        log::warning!(FI_LOG_DOMAIN, "fi_domain_bind: flags {flags:#x} are not all supported; FI_REG_MR is");
        return -FI_EBADFLAGS;
    }
    if flags & FI_REG_MR != 0 && shared.registrations.set(Arc::clone(events.shared())).is_err() {
        log::warning!(FI_LOG_DOMAIN, "fi_domain_bind: the domain has an event queue for registrations");
        return -libc::EINVAL;
    }
    0
}

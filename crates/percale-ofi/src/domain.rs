//! `fid_domain`, and the part of a domain that its objects share. Its calls are in `domain_ops`.

use std::collections::HashMap;
use std::ffi::c_void;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};

use percale::device::Interface;
use percale::pindown::monitor::imported::Notifier;
use percale::{Counter, MappedKey};

use crate::abi::{
    FI_CLASS_DOMAIN, FI_HMEM, FI_PROGRESS_AUTO, FI_RMA_EVENT, FI_THREAD_COMPLETION, FI_THREAD_DOMAIN, fi_domain_attr,
    fi_info, fid_domain,
};
use crate::events;
use crate::fabric;
use crate::object;
use crate::port::Port;
use crate::registration::descriptions::Descriptions;
use crate::registration::mode::RegionMode;

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
    /// The raw keys of peers that the client mapped, and has not unmapped.
    pub(crate) mapped: Mutex<HashMap<u64, MappedKey>>,
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
    region_sleepers: RwLock<Vec<Weak<Sleeper>>>,
}

/// A counter that was opened for threads to sleep on. Its object holds this until it is closed.
#[derive(Debug)]
pub(crate) struct Sleeper(pub(crate) Arc<Counter>);

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

/// Whether threads of ours make progress.
pub(crate) const fn is_automatic(attr: &fi_domain_attr) -> bool {
    attr.data_progress == FI_PROGRESS_AUTO || attr.control_progress == FI_PROGRESS_AUTO
}

impl Shared {
    /// The part of a domain that is opened with these attributes.
    pub(crate) fn new(
        fabric: Arc<fabric::Shared>,
        percale: percale::Domain,
        name: String,
        source: Option<SocketAddr>,
        info: &fi_info,
        attr: &fi_domain_attr,
    ) -> Self {
        Self {
            fabric,
            percale,
            name,
            serialized: Serialized::of(attr.threading, is_automatic(attr)),
            regions: RegionMode::of(attr.mr_mode, info.mode),
            hmem: info.caps & FI_HMEM != 0,
            devices: info.caps & FI_HMEM != 0 && Interface::Cuda.driver().is_ok(),
            rma_events: AtomicBool::new(info.caps & FI_RMA_EVENT != 0),
            descriptions: Descriptions::default(),
            mapped: Mutex::default(),
            registrations: OnceLock::new(),
            ipv6: source.is_some_and(|address| matches!(address, SocketAddr::V6(_))),
            av_type: attr.av_type,
            notifier: OnceLock::new(),
            ports: RwLock::default(),
            region_sleepers: RwLock::default(),
        }
    }

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

    fn region_sleepers(&self) -> std::sync::RwLockReadGuard<'_, Vec<Weak<Sleeper>>> {
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
    pub(crate) fn sleep_for_regions(&self, counter: &Arc<Sleeper>) -> Result<(), i32> {
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
    fn wakes(&self, port: &Port, counter: &Sleeper) -> Result<(), i32> {
        // Other threads may be in an endpoint without a lock, unless the client serializes all of the domain. Such an endpoint counts
        // nothing for regions.
        if port.is_shared() || self.serialized == Serialized::Domain {
            port.drive_for(&counter.0)?;
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

object::object!(pub(crate) Domain: FI_CLASS_DOMAIN, fid_domain, Shared);

impl Domain {
    pub(crate) const fn new(fid: fid_domain, shared: Arc<Shared>) -> Self {
        Self { fid, shared }
    }
}

//! `fid_domain`, and the part of a domain that its objects share. The calls on a domain are in `domain_ops`.

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
pub(crate) struct DomainShared {
    pub(crate) fabric: Arc<fabric::FabricShared>,
    pub(crate) percale: percale::Domain,
    /// The domain name in the `fi_info`.
    pub(crate) name: String,
    /// The calls that the client serializes.
    pub(crate) serialized: Serialized,
    pub(crate) regions: RegionMode,
    /// Set if the application names the kind of memory in its registrations (FI_HMEM).
    pub(crate) hmem: bool,
    /// Set if `hmem` is set and a device driver is installed: operations may use device memory.
    pub(crate) devices: bool,
    /// Set if some endpoint may count the writes of peers: the domain or the endpoint was opened with FI_RMA_EVENT.
    pub(crate) rma_events: AtomicBool,
    pub(crate) descriptions: Descriptions,
    /// The raw keys of peers that the client has mapped and not yet unmapped.
    pub(crate) mapped: Mutex<HashMap<u64, MappedKey>>,
    /// The event queue that reports completed registrations, if one is bound for that (FI_REG_MR).
    pub(crate) registrations: OnceLock<Arc<events::EventQueueShared>>,
    /// Set if addresses are IPv6.
    pub(crate) ipv6: bool,
    /// The type (`FI_AV_*`) of address vectors that are opened without a type.
    pub(crate) av_type: u32,
    /// Reports memory changes to registration caches. Set if the client imported a memory monitor.
    pub(crate) notifier: OnceLock<Notifier>,
    /// The enabled endpoints.
    ports: RwLock<Vec<Weak<Port>>>,
    /// Counters of regions on which threads may sleep.
    region_sleepers: RwLock<Vec<Weak<Sleeper>>>,
}

/// A counter that was opened for threads to sleep on. The counter's object holds a reference to this value until the
/// counter is closed.
#[derive(Debug)]
pub(crate) struct Sleeper(pub(crate) Counter);

/// The calls that the client promises to serialize (`fi_domain_attr::threading`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serialized {
    /// No calls.
    Nothing,
    /// The calls on an endpoint and on the completion queues and counters that are bound to it.
    Completions,
    /// All calls in the domain.
    Domain,
}

impl Serialized {
    /// Converts an `FI_THREAD_*` value. `automatic` states that threads of the library make progress.
    const fn of(threading: u32, automatic: bool) -> Self {
        match threading {
            FI_THREAD_COMPLETION if !automatic => Self::Completions,
            FI_THREAD_DOMAIN if !automatic => Self::Domain,
            _ => Self::Nothing,
        }
    }

    /// Returns whether completion queues, counters and the endpoints bound to them are used by one thread at a time.
    pub(crate) fn has_completions(self) -> bool {
        self != Self::Nothing
    }
}

/// Returns whether threads of the library make progress.
pub(crate) const fn is_automatic(attr: &fi_domain_attr) -> bool {
    attr.data_progress == FI_PROGRESS_AUTO || attr.control_progress == FI_PROGRESS_AUTO
}

impl DomainShared {
    /// Creates the shared part of a domain with these attributes.
    pub(crate) fn new(
        fabric: Arc<fabric::FabricShared>,
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

    /// Returns the wildcard address of the domain's address family.
    pub(crate) fn wildcard(&self) -> SocketAddr {
        let ip: IpAddr = if self.ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        SocketAddr::new(ip, 0)
    }

    /// Registers an enabled endpoint. From now on, the counters of regions on which threads sleep drive it, if other
    /// threads may use it.
    ///
    /// # Errors
    /// Returns the positive error code if the system has no descriptors left for sleeping threads.
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

    /// Returns whether threads sleep on counters of regions.
    pub(crate) fn sleeps_for_regions(&self) -> bool {
        self.region_sleepers().iter().any(|counter| counter.strong_count() > 0)
    }

    /// Registers a region's counter on which threads sleep. From now on they are woken up when any endpoint counts.
    ///
    /// # Errors
    /// Returns the positive error code if the system has no descriptors left.
    pub(crate) fn sleep_for_regions(&self, counter: &Arc<Sleeper>) -> Result<(), i32> {
        // Endpoints are opened under the same lock.
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

    /// Makes reads of the counter, and waits for it, drive the endpoint.
    fn wakes(&self, port: &Port, counter: &Sleeper) -> Result<(), i32> {
        // Other threads may be using an endpoint without a lock, unless the client serializes the whole domain. Such an
        // endpoint does not count for regions.
        if port.is_shared() || self.serialized == Serialized::Domain {
            port.drive_for(&counter.0)?;
        }
        Ok(())
    }

    /// Returns whether a collective may use these bytes. Always true if the domain's mode does not require the check.
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

    /// Makes progress on the endpoints of the domain, which may count the writes of peers.
    pub(crate) fn progress(&self) {
        // Another thread may be using an endpoint without a lock now, unless the client serializes the whole domain.
        // `endpoint::drivers` decides which threads may use an endpoint concurrently.
        let all = self.serialized == Serialized::Domain;
        for port in self.ports.read().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade) {
            if all || port.is_shared() {
                port.progress();
            }
        }
    }
}

object::object!(pub(crate) Domain: FI_CLASS_DOMAIN, fid_domain, DomainShared);

impl Domain {
    pub(crate) const fn new(fid: fid_domain, shared: Arc<DomainShared>) -> Self {
        Self { fid, shared }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;
    use crate::abi::{FI_REMOTE_WRITE, FI_RMA, FI_THREAD_ENDPOINT, FI_THREAD_FID, FI_THREAD_SAFE, FI_WAIT_FD};
    use crate::counter::Count;
    use crate::object::Object;
    use crate::testing::{self, Client};

    #[test]
    fn progress_threads_of_the_library_are_not_serialized_by_the_client() {
        for threading in [FI_THREAD_SAFE, FI_THREAD_FID, FI_THREAD_DOMAIN, FI_THREAD_COMPLETION, FI_THREAD_ENDPOINT] {
            assert_eq!(Serialized::of(threading, true), Serialized::Nothing, "{threading}");
        }
        assert_eq!(Serialized::of(FI_THREAD_SAFE, false), Serialized::Nothing);
        assert_eq!(Serialized::of(FI_THREAD_COMPLETION, false), Serialized::Completions);
        assert_eq!(Serialized::of(FI_THREAD_DOMAIN, false), Serialized::Domain);
    }

    #[test]
    fn counter_of_a_region_drives_endpoints_that_are_opened_later() {
        let client = Client::open(|hints| hints.info.caps = FI_RMA | FI_RMA_EVENT);
        let (vector, queue, key) = (client.vector(), client.queue(), 7);
        let counter = client.counter(FI_WAIT_FD, null_mut());
        let mut memory = [0_u8; 8];
        let region = client.region(memory.as_mut_ptr(), memory.len(), FI_REMOTE_WRITE, key, FI_RMA_EVENT);
        assert_eq!(testing::bind(region, counter, FI_REMOTE_WRITE), 0);
        let [writer, target] = [(); 2].map(|()| client.endpoint(vector, queue, queue));
        let peer = testing::insert(vector, target);
        // SAFETY: the endpoint is open, and the memory is copied during the call.
        let written = unsafe { (*(*writer).rma).inject.unwrap()(writer, [1_u8; 8].as_ptr().cast(), 8, peer, 0, key) };
        assert_eq!(written, 0);
        // SAFETY: the counter is open.
        let count = &unsafe { Count::of(counter) }.shared().percale;
        for _ in 0..1000 {
            testing::port(writer).progress();
        }
        assert_eq!(count.value(), 0, "the target is driven without the counter");
        testing::wait_until("the counter does not drive the target", || {
            testing::port(writer).progress();
            count.read() == 1
        });
        for ep in [writer, target] {
            assert_eq!(testing::close(ep), 0);
        }
        assert_eq!((testing::close(counter), testing::close(region)), (0, 0));
        assert_eq!((testing::close(queue), testing::close(vector)), (0, 0));
    }
}

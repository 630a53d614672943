//! The transports, devices and limits of this machine, and why some are unavailable.
//!
//! The functions of this module try each facility instead of reading version numbers, because a container may forbid
//! facilities that its kernel supports.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::TransportKind;
use super::probe;
use crate::device;
use crate::domain::{DomainBuilder, OpenError};
use crate::local_memory::kernel;
use crate::local_memory::volatile::IOV_LIMIT;
use crate::transport::connect::{Facility, facilities, tcp_listens};
use crate::transport::host::{self, InterfaceAddress};
use crate::transport::verbs::Adapter;
use crate::wire::limits::INJECT_LIMIT;

/// A transport, and whether it works here.
#[derive(Clone, PartialEq, Eq)]
pub struct TransportInfo {
    /// The transport.
    pub kind: TransportKind,
    /// Whether the transport can be used.
    pub available: bool,
    /// The reason why it is unavailable, or, if it is available, its capabilities and limitations on this machine.
    pub reason: String,
}

crate::short_debug!(TransportInfo, "TransportInfo", kind: |this| this.kind, available: |this| this.available);

/// A device or facility that moves or holds bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The name.
    pub name: String,
    /// The kind: `interface`, `memory`, or a `facility` of the system, such as those that shared memory needs.
    pub kind: &'static str,
    /// Whether the device or facility can be used.
    pub available: bool,
    /// The addresses or system calls, or the reason why it cannot be used.
    pub detail: String,
}

crate::short_debug!(DeviceInfo, "DeviceInfo");

/// A limit of the machine or of the library.
#[derive(Clone, PartialEq, Eq)]
pub struct LimitInfo {
    /// The name of the limit.
    pub name: &'static str,
    /// The limit. `None`: no limit.
    pub value: Option<u64>,
    /// The consequence of the limit.
    pub meaning: &'static str,
}

crate::short_debug!(LimitInfo, "LimitInfo");

/// The transports, devices and limits of this machine.
#[derive(Clone)]
pub struct Info {
    transports: Vec<TransportInfo>,
    devices: Vec<DeviceInfo>,
    limits: Vec<LimitInfo>,
    shm: bool,
    tcp: bool,
    verbs: Option<Arc<Adapter>>,
    cma: Result<(), String>,
    interfaces: Vec<InterfaceAddress>,
    unlisted: Option<String>,
}

crate::short_debug!(Info, "Info");

/// The reason why discovery failed.
#[derive(Debug, thiserror::Error)]
#[error("the machine's interfaces cannot be listed: {0}")]
pub struct DiscoverError(io::Error);

impl From<io::Error> for DiscoverError {
    fn from(error: io::Error) -> Self {
        Self(error)
    }
}

impl DiscoverError {
    /// Returns the libfabric code for this error (positive).
    #[must_use]
    pub fn errno(&self) -> i32 {
        crate::system::call::errno(&self.0).unwrap_or(libc::EIO)
    }
}

impl Info {
    /// Tests every transport, in about one millisecond.
    ///
    /// # Errors
    /// None at present. If the network interfaces cannot be listed, [`interfaces_error`](Self::interfaces_error)
    /// returns the reason.
    pub fn discover() -> Result<Self, DiscoverError> {
        // If the interfaces cannot be listed, an endpoint can still be bound to an explicit address.
        let (interfaces, unlisted) = match host::interfaces() {
            Ok(interfaces) => (interfaces, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let cma = probe::cma();
        let facilities = facilities();
        let shm = shm_works(&facilities, &cma);
        let tcp = tcp_works(&interfaces, unlisted.as_deref());
        let verbs = Adapter::open();
        let transports = vec![
            TransportInfo {
                kind: TransportKind::Loopback,
                available: true,
                reason: "an endpoint can always send to itself".into(),
            },
            transport(TransportKind::Shm, &shm),
            transport(
                TransportKind::Verbs,
                &verbs.as_ref().map(|adapter| adapter.describe_all()).map_err(Clone::clone),
            ),
            transport(TransportKind::Tcp, &tcp),
        ];
        Ok(Self {
            transports,
            devices: devices(&interfaces, &facilities, &cma),
            limits: limits(),
            shm: shm.is_ok(),
            tcp: tcp.is_ok(),
            verbs: verbs.ok(),
            cma,
            interfaces,
            unlisted,
        })
    }

    /// Returns all transports, available or not, best first.
    #[must_use]
    pub fn transports(&self) -> &[TransportInfo] {
        &self.transports
    }

    /// Returns network interfaces, kinds of memory, and the facilities of the system that shared memory uses. If one of
    /// them is missing, TCP is used. Only the last one, copies between processes, is not needed: without it, long
    /// messages from ordinary memory are copied through shared buffers.
    #[must_use]
    pub fn devices(&self) -> &[DeviceInfo] {
        &self.devices
    }

    /// Returns the addresses of network interfaces, best first, in the order in which a wildcard bind prefers them.
    /// IPv4 comes before IPv6. Link-local addresses of IPv6 are omitted, because they are meaningless without their
    /// interface.
    #[must_use]
    pub fn interfaces(&self) -> Vec<&InterfaceAddress> {
        host::best_first(&self.interfaces)
    }

    /// Returns the reason, including the system call, why the network interfaces could not be listed. Endpoints can
    /// then be bound only to explicit addresses. Returns `None` if they were listed.
    #[must_use]
    pub fn interfaces_error(&self) -> Option<&str> {
        self.unlisted.as_deref()
    }

    /// Returns limits that may affect an application.
    #[must_use]
    pub fn limits(&self) -> &[LimitInfo] {
        &self.limits
    }

    /// Returns the address that an endpoint bound to the IPv4 wildcard would advertise, and the reason for this choice.
    #[must_use]
    pub fn advertised(&self) -> String {
        match host::advertised(Ipv4Addr::UNSPECIFIED.into(), None, &self.interfaces) {
            Ok((ip, why)) => format!("{ip} ({why})"),
            Err(error) => error.to_string(),
        }
    }

    /// Returns the settings of a domain with all transports that work here. They can be changed before the domain is
    /// opened.
    pub fn domain(&self) -> DomainBuilder {
        let missing = self.transports.iter().filter(|one| !one.available);
        let missing: Vec<String> = missing.map(|one| format!("{}: {}", one.kind, one.reason)).collect();
        let shm = self.transports.iter().find(|one| one.kind == TransportKind::Shm && !one.available);
        let why = shm.map(|one| one.reason.as_str());
        DomainBuilder::new(self.shm, self.verbs.clone(), self.tcp, self.cma.is_ok(), missing.join("; "))
            .shm_missing(why)
    }

    /// Like [`domain`](Self::domain), but checks that some transport to other endpoints works.
    ///
    /// # Errors
    /// If no transport to other endpoints works. The message contains the reasons.
    pub fn best(&self) -> Result<DomainBuilder, OpenError> {
        if self.shm || self.verbs.is_some() || self.tcp {
            return Ok(self.domain());
        }
        let reasons: Vec<&str> = self.transports.iter().map(|one| one.reason.as_str()).collect();
        Err(OpenError::NoTransport(reasons.join("; ")))
    }
}

fn transport(kind: TransportKind, works: &Result<String, String>) -> TransportInfo {
    let (available, reason) = match works {
        Ok(detail) => (true, detail.clone()),
        Err(reason) => (false, reason.clone()),
    };
    TransportInfo { kind, available, reason }
}

/// Checks that all facilities that shared memory needs are available.
fn shm_works(facilities: &[Facility], cma: &Result<(), String>) -> Result<String, String> {
    if let Some((one, error)) = facilities.iter().find_map(|one| Some((one, one.result.as_ref().err()?))) {
        return Err(format!("{} is not available: {error}", one.name));
    }
    Ok(match cma {
        Ok(()) => "rings in sealed memory; long messages are copied directly between processes".into(),
        Err(why) => format!(
            "rings in sealed memory; long messages from ordinary memory go through the ring, since the kernel does not copy \
             between processes here ({why})"
        ),
    })
}

/// Checks that an interface that TCP can use is up.
fn tcp_works(interfaces: &[InterfaceAddress], unlisted: Option<&str>) -> Result<String, String> {
    let v4 = tcp_listens(Ipv4Addr::UNSPECIFIED.into());
    let v6 = tcp_listens(Ipv6Addr::UNSPECIFIED.into());
    let running = |v4: bool| interfaces.iter().any(|one| one.running && one.ip.is_ipv4() == v4);
    match (v4, v6) {
        (Err(v4), Err(v6)) => Err(format!("no TCP socket can be opened (IPv4: {v4}; IPv6: {v6})")),
        _ if unlisted.is_some() => Ok(format!("only at explicit addresses: {}", unlisted.unwrap_or_default())),
        _ if interfaces.is_empty() => Err("no network interface has an address, not even lo (is it down?)".into()),
        _ if !running(true) && !running(false) => Err("no network interface is up, not even lo".into()),
        (Ok(_), Ok(_)) if running(true) && running(false) => Ok("IPv4 and IPv6".into()),
        (Ok(_), Ok(_)) if running(true) => Ok("IPv4; no interface that is up has an IPv6 address".into()),
        (Ok(_), Ok(_)) => Ok("IPv6; no interface that is up has an IPv4 address".into()),
        (Ok(_), Err(error)) => Ok(format!("IPv4; IPv6 does not work here ({error})")),
        (Err(error), Ok(_)) => Ok(format!("IPv6; IPv4 does not work here ({error})")),
    }
}

fn devices(interfaces: &[InterfaceAddress], facilities: &[Facility], cma: &Result<(), String>) -> Vec<DeviceInfo> {
    let mut all: Vec<DeviceInfo> = Vec::new();
    for one in interfaces {
        if let Some(known) = all.iter_mut().find(|device| device.name == one.name) {
            known.detail = format!("{}, {}", known.detail, one.ip);
        } else {
            let available = one.running;
            let detail = if available { one.ip.to_string() } else { format!("{} (down, or no carrier)", one.ip) };
            all.push(DeviceInfo { name: one.name.clone(), kind: "interface", available, detail });
        }
    }
    let detail = "ordinary memory, and memory that percale allocates for local peers to map".into();
    all.push(DeviceInfo { name: "host".into(), kind: "memory", available: true, detail });
    all.extend(not_built());
    all.extend(facilities.iter().map(|one| DeviceInfo {
        name: one.name.into(),
        kind: "facility",
        available: one.result.is_ok(),
        detail: one.result.as_ref().map_or_else(ToString::to_string, |()| one.calls.into()),
    }));
    all.push(DeviceInfo {
        name: "copies between processes".into(),
        kind: "facility",
        available: cma.is_ok(),
        detail: cma.as_ref().map_or_else(String::clone, |()| "process_vm_readv, process_vm_writev".into()),
    });
    all
}

/// Returns the devices that this build cannot use because it lacks a feature. A device that it supports is detected by
/// the code that uses it, because detection takes time.
fn not_built() -> Vec<DeviceInfo> {
    let mut all = Vec::new();
    let mut add = |name: &str, kind, why: String| {
        all.push(DeviceInfo { name: name.into(), kind, available: false, detail: why });
    };
    if cfg!(not(feature = "cuda"))
        && let Err(why) = device::Interface::Cuda.driver()
    {
        add("cuda", "memory", why.to_string());
    }
    #[cfg(not(loom))]
    if cfg!(not(feature = "io-uring"))
        && let Err(why) = device::BufferTable::new(1)
    {
        add("io_uring", "facility", why.to_string());
    }
    all
}

fn limits() -> Vec<LimitInfo> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    vec![
        LimitInfo {
            name: "cores",
            value: Some(cores),
            meaning: "with more busy processes than this, waiting threads yield the processor early",
        },
        LimitInfo {
            name: "open files",
            value: kernel::limit(libc::RLIMIT_NOFILE),
            meaning: "each peer needs 4 descriptors over shared memory, 1 over TCP (ulimit -n)",
        },
        LimitInfo {
            name: "page size",
            value: Some(rustix::param::page_size() as u64),
            meaning: "page size of shared memory, in bytes",
        },
        LimitInfo {
            name: "segments",
            value: Some(IOV_LIMIT as u64),
            meaning: "pieces of memory that one operation gathers or scatters",
        },
        LimitInfo {
            name: "inject size",
            value: Some(INJECT_LIMIT as u64),
            meaning: "longest message whose buffer is free when the call returns, in bytes",
        },
        LimitInfo {
            name: "remote completion data",
            value: Some(8),
            meaning: "bytes that a message may add to its receiver's completion",
        },
    ]
}

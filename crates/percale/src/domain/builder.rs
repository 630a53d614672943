//! The settings of a domain, and the call that opens it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::{Domain, Inner, Progress, Settings, Trust};
use crate::region::window::TypeTwo;
use crate::transport::connect::ConnectTimeouts;
use crate::transport::connect::Service;
use crate::transport::kind::TransportKind;
#[cfg(any(test, feature = "sim"))]
use crate::transport::sim::Network;
use crate::transport::verbs::Adapter;

/// The number of bytes of unexpected messages that are kept before senders have to offer messages instead of sending
/// them.
const UNEXPECTED_CAP: usize = 64 << 20;

/// The error if [`TransportKind::Sim`] is chosen.
const SIM_CHOSEN: &str = if cfg!(any(test, feature = "sim")) {
    "the simulated network is for tests; pass it with `simulated`"
} else {
    "this build has no `sim` support: build with the feature `sim`"
};

/// The reason why a domain could not be opened.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No transport is available.
    #[error("no transport is available: {0}")]
    NoTransport(String),
    /// A requested transport is unknown or cannot be used in this way.
    #[error("{0}")]
    Transport(String),
    /// The system could not provide a thread, a descriptor, memory, or random numbers.
    #[error("cannot open the domain: {0}")]
    System(io::Error),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl OpenError {
    /// Returns whether the same call may succeed later although neither it nor the program is changed, which is the
    /// case if the system had no memory, descriptors or threads left.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        matches!(self, Self::System(error) if crate::system::call::is_shortage(error))
    }

    /// Returns the libfabric code.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoTransport(_) => libc::ENODATA,
            Self::Transport(_) => libc::EINVAL,
            Self::System(error) => crate::system::call::errno(error).unwrap_or(libc::EIO),
        }
    }
}

/// The settings of a domain that will be opened. Created by [`Info::domain`](crate::fabric::Info::domain).
#[derive(Clone)]
#[must_use = "no domain is opened until `open` is called"]
pub struct DomainBuilder {
    settings: Settings,
    /// The transports that are unavailable, for the error message if no transport is left.
    missing: String,
    chosen: Vec<TransportKind>,
}

crate::short_debug!(DomainBuilder, "DomainBuilder");

impl DomainBuilder {
    pub(crate) fn new(shm: bool, verbs: Option<Arc<Adapter>>, tcp: bool, cma: bool, missing: String) -> Self {
        let settings = Settings {
            shm,
            shm_missing: None,
            verbs,
            tcp,
            cma,
            progress: Progress::Manual,
            authorization_key: None,
            connect_timeouts: ConnectTimeouts::DEFAULT,
            peer_timeout: Duration::from_secs(20),
            interface: None,
            unexpected_cap: UNEXPECTED_CAP,
            socket_buffers: None,
            sim: None,
            trust: Trust::SameUser,
            type_two: TypeTwo::default(),
            revoke_timeout: Duration::from_secs(1),
            #[cfg(not(loom))]
            cache: super::CacheSettings::default(),
        };
        Self { settings, missing, chosen: Vec::new() }
    }

    /// Sets the reason why shared memory is unavailable.
    pub(crate) fn shm_missing(mut self, why: Option<&str>) -> Self {
        self.settings.shm_missing = why.map(Into::into);
        self
    }

    /// Allows only this transport for connections to other endpoints (an endpoint can always send to itself). Several
    /// calls allow several transports. Without a call, the environment variable `PERCALE_TRANSPORT` (names separated by
    /// commas) determines the transports. If it is not set, all except verbs are allowed.
    pub fn transport(mut self, kind: TransportKind) -> Self {
        self.chosen.push(kind);
        self
    }

    /// Sets the kind of type 2 windows of the domain, in addition to windows of type 1. Default: 2B.
    pub const fn windows(mut self, two: TypeTwo) -> Self {
        self.settings.type_two = two;
        self
    }

    /// Sets how progress is made. Automatic progress is available for shared endpoints only.
    pub const fn progress(mut self, progress: Progress) -> Self {
        self.settings.progress = progress;
        self
    }

    /// Sets the authorization key. Endpoints communicate only with peers that have the same key, and both sides prove
    /// that they have it. Data is not encrypted.
    pub fn authorization_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.settings.authorization_key = Some(key.into());
        self
    }

    /// Sets how long establishing a connection may take in total. Default: 5 s until the peer's host has accepted it,
    /// which does not involve the peer process, and 3 minutes in total ([`handshake_timeout`](Self::handshake_timeout))
    /// until the peer process has answered.
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeouts = ConnectTimeouts::of(timeout);
        self
    }

    /// Sets how long the peer process may take to answer, counted from the start of the attempt. A process answers late
    /// if it is stopped, or if many processes start at once. Default: 3 minutes, or the
    /// [`connect_timeout`](Self::connect_timeout) that was set before.
    pub const fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeouts.process = timeout;
        self
    }

    /// Sets how long a TCP peer may be unreachable before it counts as dead. Default: 20 s.
    pub const fn peer_timeout(mut self, timeout: Duration) -> Self {
        self.settings.peer_timeout = timeout;
        self
    }

    /// Sets the network interface that provides the advertised address of a wildcard bind. Default: the first real
    /// interface that is up.
    pub fn interface(mut self, name: impl Into<String>) -> Self {
        self.settings.interface = Some(name.into());
        self
    }

    /// Sets whether the kernel may copy peers' memory (process_vm_readv and process_vm_writev). Default: yes, if it is
    /// available.
    pub const fn cma(mut self, allowed: bool) -> Self {
        self.settings.cma = self.settings.cma && allowed;
        self
    }

    /// Sets whether local peers may access this domain's regions directly. Default: peers of the same user may.
    pub const fn trust(mut self, trust: Trust) -> Self {
        self.settings.trust = trust;
        self
    }

    /// Sets how long closing a region waits for a peer that is in the middle of an access. An access takes
    /// microseconds, unless the peer process is stopped. Default: 1 s.
    pub const fn revoke_timeout(mut self, timeout: Duration) -> Self {
        self.settings.revoke_timeout = timeout;
        self
    }

    /// Sets how many bytes of one peer's unexpected messages are kept. Beyond that the peer has to offer messages
    /// instead of sending them, and waits for receives. A message counts as its length plus 384 bytes. The limit
    /// applies to each peer separately. Default: 64 MiB.
    pub const fn unexpected_cap(mut self, bytes: usize) -> Self {
        self.settings.unexpected_cap = bytes;
        self
    }

    /// Sets the sizes of the send buffer and the receive buffer of TCP sockets, in bytes. Default: 512 KiB each.
    pub const fn socket_buffers(mut self, bytes: usize) -> Self {
        self.settings.socket_buffers = Some(bytes);
        self
    }

    /// Sets the configuration of the domain's registration caches. Default:
    /// [`CacheSettings::default`](super::CacheSettings::default). The environment has an effect only through
    /// [`CacheSettings::from_environment`](super::CacheSettings::from_environment).
    #[cfg(not(loom))]
    pub const fn registration_cache(mut self, settings: super::CacheSettings) -> Self {
        self.settings.cache = settings;
        self
    }

    /// Uses a simulated network, for tests (feature `sim`).
    #[cfg(any(test, feature = "sim"))]
    pub fn simulated(mut self, network: &Network) -> Self {
        self.settings.sim = Some(network.clone());
        self
    }

    /// Opens the domain and starts its service thread.
    ///
    /// # Errors
    /// * [`OpenError::NoTransport`] if no allowed transport to other endpoints works, unless only loopback was
    ///   requested.
    /// * [`OpenError::Transport`] if `PERCALE_TRANSPORT` contains an unknown name; if [`TransportKind::Sim`] was
    ///   requested without `simulated`; or if verbs is to be used and this process is a fork of the one that opened the
    ///   RDMA device.
    /// * [`OpenError::System`] if the system cannot provide the service thread, a descriptor, memory, or random
    ///   numbers.
    pub fn open(mut self) -> Result<Domain, OpenError> {
        if self.settings.sim.is_some() {
            return Ok(Inner::domain(self.settings, None)?);
        }
        if self.chosen.is_empty()
            && let Ok(names) = std::env::var("PERCALE_TRANSPORT")
        {
            for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
                let kind = name.parse().map_err(|error: crate::transport::kind::UnknownTransport| {
                    OpenError::Transport(format!("PERCALE_TRANSPORT: {error}"))
                })?;
                self.chosen.push(kind);
            }
        }
        if self.chosen.contains(&TransportKind::Sim) {
            return Err(OpenError::Transport(SIM_CHOSEN.into()));
        }
        if !self.chosen.is_empty() {
            if !self.chosen.contains(&TransportKind::Shm) {
                (self.settings.shm, self.settings.shm_missing) = (false, None);
            }
            self.settings.verbs.take_if(|_| !self.chosen.contains(&TransportKind::Verbs));
            self.settings.tcp &= self.chosen.contains(&TransportKind::Tcp);
        } else {
            // Verbs has only been tested with software devices so far, so it is used only on request.
            self.settings.verbs = None;
        }
        let loopback_only = self.chosen == [TransportKind::Loopback];
        if !self.settings.shm && self.settings.verbs.is_none() && !self.settings.tcp && !loopback_only {
            return Err(OpenError::NoTransport(self.missing));
        }
        if self.settings.verbs.as_ref().is_some_and(|adapter| !adapter.is_here()) {
            let why =
                "the RDMA device was opened by the parent process of this fork; call Info::discover in this process";
            return Err(OpenError::Transport(why.into()));
        }
        let service = Service::start()?;
        Ok(Inner::domain(self.settings, Some(service))?)
    }
}

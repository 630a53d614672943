//! How a domain is to behave.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::{Domain, Inner, Progress, Settings, Trust};
use crate::fabric::TransportKind;
use crate::memory::window::TypeTwo;
use crate::transport::connect::ConnectTimeouts;
use crate::transport::connect::Service;
use crate::transport::sim::Network;
use crate::transport::verbs::Adapter;

/// Unexpected messages are kept up to this many bytes before senders are told to offer rather than to send.
const UNEXPECTED_CAP: usize = 64 << 20;

/// Why a domain could not be opened.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No transport is left to use.
    #[error("no transport is available: {0}")]
    NoTransport(String),
    /// The transport cannot be chosen.
    #[error("{0}")]
    Transport(String),
    /// The system refused a thread or a descriptor.
    #[error("the system refused what a domain needs: {0}")]
    System(io::Error),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl OpenError {
    /// The libfabric code.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoTransport(_) => libc::ENODATA,
            Self::Transport(_) => libc::EINVAL,
            Self::System(error) => crate::memory::call::errno(error).unwrap_or(libc::EIO),
        }
    }
}

/// Collects the settings of a domain. [`Info::domain`](crate::fabric::Info::domain) makes one.
#[derive(Clone)]
#[must_use = "nothing is opened before `open`"]
pub struct DomainBuilder {
    settings: Settings,
    /// What the machine lacks, for the error if that is too much.
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

    /// Why shared memory does not work here.
    pub(crate) fn shm_missing(mut self, why: Option<&str>) -> Self {
        self.settings.shm_missing = why.map(Into::into);
        self
    }

    /// Allows only this transport to other endpoints (sending to oneself always works). Several calls allow several. Without a
    /// call, the environment variable `PERCALE_TRANSPORT` (names separated by commas) chooses, else all are allowed.
    pub fn transport(mut self, kind: TransportKind) -> Self {
        self.chosen.push(kind);
        self
    }

    /// Which windows of type 2 the domain has, besides those of type 1 (MW-034). Default: 2B.
    pub const fn windows(mut self, two: TypeTwo) -> Self {
        self.settings.type_two = two;
        self
    }

    /// Who makes progress. Automatic progress is for shared endpoints.
    pub const fn progress(mut self, progress: Progress) -> Self {
        self.settings.progress = progress;
        self
    }

    /// Only peers with the same key are talked to; both sides prove that they know it. It does not encrypt anything.
    pub fn authorization_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.settings.authorization_key = Some(key.into());
        self
    }

    /// How long a connection may take to be made, all in all. Default: 5 s until the peer's host has accepted the call, which it does by
    /// itself, and then 3 minutes ([`handshake_timeout`](Self::handshake_timeout)) until the peer's process has answered.
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeouts = ConnectTimeouts::of(timeout);
        self
    }

    /// How long the peer's process may take to answer once its host has accepted the call; a process answers late if it is stopped, or busy
    /// because many start at once. Default 3 minutes, or the [`connect_timeout`](Self::connect_timeout) that was set before.
    pub const fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeouts.process = timeout;
        self
    }

    /// How long a TCP peer may be unreachable before it counts as dead. Default 20 s.
    pub const fn peer_timeout(mut self, timeout: Duration) -> Self {
        self.settings.peer_timeout = timeout;
        self
    }

    /// Which interface's address a wildcard bind advertises. Default: the first real one that is up.
    pub fn interface(mut self, name: impl Into<String>) -> Self {
        self.settings.interface = Some(name.into());
        self
    }

    /// Whether peers' memory may be copied by the kernel (process_vm_readv and process_vm_writev). Default: if that works here.
    pub const fn cma(mut self, allowed: bool) -> Self {
        self.settings.cma = self.settings.cma && allowed;
        self
    }

    /// Whether local peers may reach this domain's regions by themselves. Default: those of the same user may.
    pub const fn trust(mut self, trust: Trust) -> Self {
        self.settings.trust = trust;
        self
    }

    /// How long closing a region waits for a peer that is in the middle of an access. Default 1 s; an access takes microseconds,
    /// unless its process is stopped.
    pub const fn revoke_timeout(mut self, timeout: Duration) -> Self {
        self.settings.revoke_timeout = timeout;
        self
    }

    /// How many bytes of one peer's unexpected messages are kept before that peer has to wait for receives: it is asked to offer what it
    /// would send. A message counts as its length and 256 bytes. One peer's messages do not count for another. Default 64 MiB.
    pub const fn unexpected_cap(mut self, bytes: usize) -> Self {
        self.settings.unexpected_cap = bytes;
        self
    }

    /// Sizes of TCP sockets' buffers, in bytes. Default: what measured best.
    pub const fn socket_buffers(mut self, bytes: usize) -> Self {
        self.settings.socket_buffers = Some(bytes);
        self
    }

    /// How the domain's registration caches are to be; as [`CacheSettings::default`](super::CacheSettings::default) unless
    /// told otherwise. The environment counts only if it is asked, by
    /// [`CacheSettings::from_environment`](super::CacheSettings::from_environment).
    #[cfg(not(loom))]
    pub const fn registration_cache(mut self, settings: super::CacheSettings) -> Self {
        self.settings.cache = settings;
        self
    }

    /// A domain of a simulated network, for tests.
    pub fn simulated(mut self, network: &Network) -> Self {
        self.settings.sim = Some(network.clone());
        self
    }

    /// Opens the domain: starts its service thread.
    ///
    /// # Errors
    /// If no transport is left, or the system refuses a thread or descriptors.
    pub fn open(mut self) -> Result<Domain, OpenError> {
        if self.settings.sim.is_some() {
            return Ok(Inner::domain(self.settings, None)?);
        }
        if self.chosen.is_empty()
            && let Ok(names) = std::env::var("PERCALE_TRANSPORT")
        {
            for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
                let kind = name.parse().map_err(|error: crate::fabric::UnknownTransport| {
                    OpenError::Transport(format!("PERCALE_TRANSPORT: {error}"))
                })?;
                self.chosen.push(kind);
            }
        }
        if self.chosen.contains(&TransportKind::Sim) {
            return Err(OpenError::Transport("the simulated network is for tests: give it with `simulated`".into()));
        }
        if !self.chosen.is_empty() {
            if !self.chosen.contains(&TransportKind::Shm) {
                (self.settings.shm, self.settings.shm_missing) = (false, None);
            }
            self.settings.verbs.take_if(|_| !self.chosen.contains(&TransportKind::Verbs));
            self.settings.tcp &= self.chosen.contains(&TransportKind::Tcp);
        } else {
            // Proven in software only so far: for who asks for it.
            self.settings.verbs = None;
        }
        let loopback_only = self.chosen == [TransportKind::Loopback];
        if !self.settings.shm && self.settings.verbs.is_none() && !self.settings.tcp && !loopback_only {
            return Err(OpenError::NoTransport(self.missing));
        }
        if self.settings.verbs.as_ref().is_some_and(|adapter| !adapter.is_here()) {
            let why = "the RDMA device was opened by a process that this one is a fork of: discover what is here anew";
            return Err(OpenError::Transport(why.into()));
        }
        let service = Service::start()?;
        Ok(Inner::domain(self.settings, Some(service))?)
    }
}

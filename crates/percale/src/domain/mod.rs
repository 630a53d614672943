//! A domain: what endpoints share.
//!
//! A domain (verbs: protection domain) holds the settings under which endpoints are opened and the service thread that makes
//! their connections and watches their peers. It lives as long as anything that was opened in it. No lock is taken on it after
//! endpoints are open.

mod builder;

use std::sync::Arc;
use std::time::Duration;

pub use self::builder::{DomainBuilder, OpenError};
use crate::address::VectorBuilder;
use crate::endpoint::EndpointBuilder;
use crate::fabric::TransportKind;
use crate::memory::sealed::{self, AllocateError, Allocation};
use crate::transport::connect::Service;
use crate::transport::sim::Network;

/// Who makes progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// The application's own calls (FI_PROGRESS_MANUAL). The cheapest.
    #[default]
    Manual,
    /// A thread of percale's, for shared endpoints: operations advance while the application does something else
    /// (FI_PROGRESS_AUTO).
    Automatic,
}

/// The settings of a domain.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) shm: bool,
    pub(crate) tcp: bool,
    pub(crate) cma: bool,
    pub(crate) progress: Progress,
    pub(crate) authorization_key: Option<Vec<u8>>,
    pub(crate) connect_timeout: Duration,
    pub(crate) peer_timeout: Duration,
    pub(crate) interface: Option<String>,
    pub(crate) unexpected_cap: usize,
    pub(crate) socket_buffers: Option<usize>,
    pub(crate) sim: Option<Network>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) settings: Settings,
    /// `None` in a simulated network.
    pub(crate) service: Option<Arc<Service>>,
}

/// A domain; a handle, cheap to clone.
#[derive(Clone, Debug)]
pub struct Domain {
    pub(crate) inner: Arc<Inner>,
}

impl Domain {
    /// A new address vector.
    pub fn address_vector(&self) -> VectorBuilder {
        VectorBuilder::default()
    }

    /// A new endpoint.
    pub fn endpoint(&self) -> EndpointBuilder<'_> {
        EndpointBuilder::new(self)
    }

    /// Memory that local peers can map: long messages from and to it are copied by both sides at once.
    ///
    /// # Errors
    /// If the system has no memory or descriptor left.
    pub fn allocate(&self, len: usize) -> Result<Allocation, AllocateError> {
        sealed::allocate(len)
    }

    /// The transports that endpoints of this domain may use, best first.
    #[must_use]
    pub fn transports(&self) -> Vec<TransportKind> {
        let settings = &self.inner.settings;
        if settings.sim.is_some() {
            return vec![TransportKind::Loopback, TransportKind::Sim];
        }
        let mut all = vec![TransportKind::Loopback];
        all.extend(settings.shm.then_some(TransportKind::Shm));
        all.extend(settings.tcp.then_some(TransportKind::Tcp));
        all
    }
}

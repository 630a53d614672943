//! Domains, which hold the resources that endpoints share.
//!
//! A domain (verbs: protection domain) holds the settings with which endpoints are opened, and the service thread that
//! makes their connections and watches their peers. It exists as long as any object that was opened in it exists.
//! Posting an operation takes no lock of the domain, unless it uses a mapped raw key, concerns a window or is deferred
//! work.

mod builder;
#[cfg(not(loom))]
mod cache;
mod key;

use std::sync::Arc;
use std::time::Duration;

use hmac_sha256::Hash as Sha256;

pub use self::builder::{DomainBuilder, OpenError};
#[cfg(not(loom))]
pub use self::cache::{AlreadyImported, CacheMonitor, CacheNote, CacheSettings, OpenedCache, UnknownMonitor};
pub use self::key::{KEY_LIMIT, read_authorization_key};
use crate::address_vector::VectorBuilder;
use crate::local_memory::access::Access;
use crate::local_memory::buffer_pool::{BufferPool, BufferPoolExt as _};
use crate::local_memory::sealed::{self, AllocateError, Allocation};
use crate::local_memory::typed_memory::{Plain, TypedAllocation};
use crate::region::window::TypeTwo;
use crate::region::{AccessOrigin, Keyring, Keys, RemoteMemory, Secret};
use crate::system::forked::Process;
use crate::transport::connect::ConnectTimeouts;
use crate::transport::connect::Service;
use crate::transport::doorbell_allocator::WaitState;
use crate::transport::kind::TransportKind;
use crate::transport::sim::Network;
#[cfg(all(not(loom), feature = "verbs"))]
use crate::transport::verbs::EarlyRegistration;
use crate::transport::verbs::{Adapter, Pins};

/// The threads that make progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// The application's threads make progress in their own calls (FI_PROGRESS_MANUAL). This is the fastest mode.
    #[default]
    Manual,
    /// A thread of the library makes progress on shared endpoints. Operations advance while the application does other
    /// work (FI_PROGRESS_AUTO).
    Automatic,
}

/// The trust in peers that access this domain's regions. This applies to local peers (processes of the same user), and
/// to peers over verbs, where the device checks accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Peers may access regions directly, through mapped memory or the kernel. percale then checks keys, ranges and
    /// rights in the peer process. These checks prevent mistakes, but not attacks (a process of the same user could
    /// trace this process).
    #[default]
    SameUser,
    /// No peer is trusted: this process checks and performs every access. Peers get no mapping of a region, no address
    /// and, over verbs, no registration.
    None,
}

/// The settings of a domain.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) shm: bool,
    /// The reason why shared memory is unavailable. `None` if it is available, or not allowed.
    pub(crate) shm_missing: Option<Arc<str>>,
    /// The RDMA port to use. `None` if verbs is not used.
    pub(crate) verbs: Option<Arc<Adapter>>,
    pub(crate) tcp: bool,
    pub(crate) cma: bool,
    pub(crate) progress: Progress,
    pub(crate) authorization_key: Option<Vec<u8>>,
    pub(crate) connect_timeouts: ConnectTimeouts,
    pub(crate) peer_timeout: Duration,
    pub(crate) interface: Option<String>,
    pub(crate) unexpected_cap: usize,
    pub(crate) socket_buffers: Option<usize>,
    pub(crate) sim: Option<Network>,
    pub(crate) trust: Trust,
    pub(crate) type_two: TypeTwo,
    pub(crate) revoke_timeout: Duration,
    #[cfg(not(loom))]
    pub(crate) cache: CacheSettings,
}

impl Settings {
    /// Returns the number that represents an authorization key when regions and endpoints are compared: 0 for the
    /// domain's own key, otherwise a digest.
    pub(crate) fn authority(&self, key: &[u8]) -> u64 {
        if self.authorization_key.as_deref() == Some(key) {
            return 0;
        }
        let mut hash = Sha256::new();
        hash.update(b"percale authority");
        hash.update(key);
        let digest = hash.finalize();
        let word = digest
            .first_chunk()
            .map_or_else(|| unreachable!("digests have 32 bytes"), |word| u64::from_le_bytes(*word));
        word.max(1)
    }
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) settings: Settings,
    /// The service thread. `None` in a simulated network.
    pub(crate) service: Option<Arc<Service>>,
    /// Regions, by key.
    pub(crate) keys: Arc<Keys>,
    /// The work that waits for counters.
    pub(crate) deferred: crate::conditions::lines::DeferredWorkList,
    /// The variables that devices write to begin operations.
    pub(crate) variables: Arc<crate::conditions::variable::Variables>,
    /// The raw keys of peers that were mapped.
    pub(crate) mapped: Keyring,
    /// The secret for the raw keys of this domain's regions.
    pub(crate) secret: Secret,
    /// In a simulated network, the descriptors on which all endpoints of the domain sleep.
    wait_state: std::sync::OnceLock<WaitState>,
    /// The process that opened the domain. The domain's threads exist only in this process.
    process: Process,
    /// The application's own monitor, for registration caches that are opened later.
    #[cfg(not(loom))]
    imported: Arc<std::sync::OnceLock<pindown::monitor::imported::Imported>>,
    /// Registers the memory of operations with the RDMA device.
    pub(crate) pins: Pins,
}

impl Inner {
    /// Returns whether this is the process that opened the domain, and not a fork of it.
    pub(crate) fn is_here(&self) -> bool {
        self.process.is_here()
    }

    /// Returns the [`WaitState`] on which a new endpoint sleeps. Peers can wake the endpoint through it if shared
    /// memory is allowed and available. If shared memory is unavailable, peers use another transport, if one is
    /// allowed, and the second value is the reason.
    pub(crate) fn wait_state(&self) -> std::io::Result<(WaitState, Option<Arc<str>>)> {
        let settings = &self.settings;
        if settings.sim.is_none() && settings.shm {
            return match WaitState::shared() {
                Err(error) if settings.tcp || settings.verbs.is_some() => {
                    crate::later::later!(warn: %error, "cannot set up shared memory for an endpoint");
                    Ok((WaitState::private()?, Some(error.to_string().into())))
                }
                result => Ok((result?, None)),
            };
        }
        if !settings.sim.as_ref().is_some_and(Network::shares_descriptors) {
            return Ok((WaitState::private()?, settings.shm_missing.clone()));
        }
        if self.wait_state.get().is_none() {
            // If another thread has set the value first, that value is used.
            drop(self.wait_state.set(WaitState::private()?));
        }
        let wait_state = self.wait_state.get().cloned().ok_or(std::io::ErrorKind::NotFound)?;
        Ok((wait_state, None))
    }

    fn domain(settings: Settings, service: Option<Arc<Service>>) -> std::io::Result<Domain> {
        let process = Process::current()?;
        let keys = Arc::new(Keys::new(settings.revoke_timeout, process));
        #[cfg(not(loom))]
        let imported = Arc::default();
        #[cfg(all(not(loom), feature = "verbs"))]
        let pins: Pins = Arc::new(cache::DeviceMemory::new(&settings.cache, &imported));
        #[cfg(all(loom, feature = "verbs"))]
        let pins = ();
        #[cfg(not(feature = "verbs"))]
        let pins = Pins;
        let inner = Self {
            settings,
            service,
            keys,
            deferred: Default::default(),
            variables: Arc::default(),
            mapped: Keyring::default(),
            wait_state: Default::default(),
            process,
            secret: Secret::new()?,
            #[cfg(not(loom))]
            imported,
            pins,
        };
        Ok(Domain { inner: Arc::new(inner) })
    }
}

/// A handle to a domain. It is cheap to clone.
#[derive(Clone)]
pub struct Domain {
    pub(crate) inner: Arc<Inner>,
}

crate::short_debug!(Domain, "Domain");

impl Domain {
    /// Builds an address vector.
    pub fn address_vector(&self) -> VectorBuilder {
        VectorBuilder::default().domain(self.inner.settings.interface.clone().unwrap_or_default())
    }

    /// Allocates memory that local peers can map. Both sides can copy long messages from and to it at the same time.
    ///
    /// # Errors
    /// If the system has no memory or descriptors left.
    pub fn allocate(&self, len: usize) -> Result<Allocation, AllocateError> {
        sealed::allocate(len)
    }

    /// Allocates memory for `count` plain values, all bytes 0, which local peers can map. The values are aligned.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn allocate_of<T: Plain>(&self, count: usize) -> Result<TypedAllocation<T>, AllocateError> {
        TypedAllocation::new(count)
    }

    /// Creates a pool of `count` buffers of `len` bytes each, in one allocation, for operations that should neither
    /// allocate nor register memory. If the domain uses an RDMA device, all of the memory is registered now.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use percale::Info;
    /// # let domain = Info::discover()?.best()?.open()?;
    /// # let vector = domain.address_vector().build()?;
    /// # let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
    /// # let peer = vector.insert(endpoint.address())?;
    /// let pool = domain.buffer_pool(16, 4096)?;
    /// let mut receive = endpoint.recv(pool.take().ok_or("all buffers are in use")?).start()?;
    ///
    /// let mut buffer = pool.take().ok_or("all buffers are in use")?;
    /// let len = buffer.copy_from(0, b"hello");
    /// buffer.truncate(len); // sends 5 of the 4096 bytes
    /// drop(endpoint.send(peer, buffer).wait()?); // the buffer returns to the pool
    ///
    /// let received = receive.wait()?;
    /// let mut start = [0; 5];
    /// received.buffer.copy_to(0, &mut start);
    /// assert_eq!((received.len, &start), (5, b"hello"));
    /// assert_eq!(pool.available(), 15);
    /// drop(received);
    /// assert_eq!(pool.available(), 16);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// If the system has no memory or descriptors left, or if there would be 2^32 buffers or more, or buffers of 4 GiB
    /// or more.
    pub fn buffer_pool(&self, count: usize, len: usize) -> Result<BufferPool, AllocateError> {
        let pool = BufferPool::new(count, len)?;
        #[cfg(all(not(loom), feature = "verbs"))]
        if let Some(adapter) = &self.inner.settings.verbs
            && self.inner.is_here()
            && let Some(registration) = EarlyRegistration::new(&self.inner.pins, adapter, pool.segment())
        {
            pool.keep(Box::new(registration));
        }
        Ok(pool)
    }

    /// Returns whether this domain's key table permits an access by any peer through any endpoint, according to key,
    /// right and range. It is for tests and measurements; real accesses are checked in the same way. Keys of type 2
    /// windows are valid only for one pair of endpoints, so this returns false for them. Returns false in a forked
    /// child.
    #[must_use]
    #[inline]
    pub fn allows(&self, name: RemoteMemory, access: Access) -> bool {
        let RemoteMemory { key, address, len } = name;
        self.inner.keys.is_here() && self.inner.keys.check(key, AccessOrigin::default(), address, len, access).is_ok()
    }

    /// Returns the transports that endpoints of this domain may use, best first.
    #[must_use]
    pub fn transports(&self) -> Vec<TransportKind> {
        let settings = &self.inner.settings;
        if settings.sim.is_some() {
            return vec![TransportKind::Loopback, TransportKind::Sim];
        }
        let mut all = vec![TransportKind::Loopback];
        all.extend(settings.shm.then_some(TransportKind::Shm));
        all.extend(settings.verbs.is_some().then_some(TransportKind::Verbs));
        all.extend(settings.tcp.then_some(TransportKind::Tcp));
        all
    }
}

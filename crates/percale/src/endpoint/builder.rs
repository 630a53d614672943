//! Opens endpoints.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use super::counted::Counted;
use super::engine::admission::Admission;
use super::engine::core::Core;
use super::engine::listening::Listening;
use super::engine::local::LocalRegions;
use super::engine::messages::Messages;
use super::engine::peers::Peers;
use super::engine::reporting::{Reporting, Targets};
use super::engine::role::Role;
use super::engine::shared::SharedReceives;
use super::engine::single::Single;
use super::engine::triggered::TriggeredOperations;
use super::engine::{Connector, Engine, Start};
use super::operations::Operations;
use super::ownership::reach::EngineAccess;
use super::ownership::{Owned, Shared};
use super::scalable::{ContextSlot, SharedAddress};
use super::shared_receive::SharedReceive;
use super::{Endpoint, SharedEndpoint, automatic};
use crate::address_vector::vector::{AddressVector, VectorOptions};
use crate::completion::counter::Counter;
use crate::completion::event::EventQueue;
use crate::completion::queue::CompletionQueue;
use crate::domain::{Domain, Progress, Trust};
use crate::system::call::is_shortage;
use crate::transport::connect::{EndpointOptions, EndpointRegistration, LocalDoorbell, Mailbox, Naming, Transports};
use crate::transport::doorbell_allocator::DoorbellAllocator;
use crate::transport::sim::{Network, SimPort};
use crate::transport::tcp::TcpOptions;
use crate::types::PeerAddress;
use crate::wire::hello::Incarnation;

/// The reason why an endpoint could not be opened.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The text is not an address.
    #[error("cannot bind to {0:?}: {1}; use HOST:PORT, with port 0 for any free port")]
    Address(String, String),
    /// The address cannot be bound.
    #[error("cannot bind to {address}: {error}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// A scalable endpoint has no such context.
    #[error("context {index} does not exist: the endpoint has {contexts}, counted from 0")]
    NoContext {
        /// The requested context.
        index: u16,
        /// The number of contexts.
        contexts: u16,
    },
    /// The context is already open.
    #[error("context {0} is already open")]
    ContextOpen(u16),
    /// An endpoint cannot have this number of contexts.
    #[error("invalid number of contexts {0}: must be 1 to {limit}", limit = super::scalable::CONTEXT_LIMIT)]
    Contexts(u16),
    /// The system refused descriptors or memory.
    #[error("cannot open the endpoint: {0}")]
    System(io::Error),
    /// Automatic progress needs an endpoint that the progress thread can access.
    #[error("automatic progress needs a shared endpoint: use bind_shared")]
    NotShared,
    /// The process is a fork of the one that opened the domain.
    #[error("the domain belongs to the parent process of this fork; open one in this process")]
    Forked,
}

impl From<io::Error> for BindError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl BindError {
    /// Returns whether the same call may succeed later although neither it nor the program is changed. This is the case
    /// if the [address is in use](Self::Bind), a context [is open](Self::ContextOpen), or the system had no memory or
    /// descriptors left.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::Bind { error, .. } => error.kind() == io::ErrorKind::AddrInUse || is_shortage(error),
            Self::System(error) => is_shortage(error),
            Self::ContextOpen(_) => true,
            Self::Address(..) | Self::NotShared | Self::NoContext { .. } | Self::Contexts(_) | Self::Forked => false,
        }
    }

    /// Returns the libfabric code.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Address(..) | Self::NotShared | Self::NoContext { .. } | Self::Contexts(_) => libc::EINVAL,
            Self::ContextOpen(_) => libc::EBUSY,
            Self::Forked => libc::ECHILD,
            Self::Bind { error, .. } | Self::System(error) => crate::system::call::errno(error).unwrap_or(libc::EIO),
        }
    }
}

/// Builds an endpoint.
#[must_use = "nothing is opened before `bind`"]
pub struct EndpointBuilder<'d> {
    pub(super) domain: &'d Domain,
    vector: Option<AddressVector>,
    reports_to: Targets,
    multi_minimum: usize,
    answer_timeout: Option<Duration>,
    answer_only: bool,
    connection_addresses: bool,
    pub(super) authorization_key: Option<Vec<u8>>,
    shared_receive: Option<SharedReceive>,
    /// Set for a context of a scalable endpoint.
    pub(super) context_slot: Option<ContextSlot>,
}

crate::short_debug!(EndpointBuilder<'_>, "EndpointBuilder");

/// The peers that an endpoint serves.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// Any number of peers.
    Many,
    /// One peer.
    Single,
    /// Peers that request connections; at most this many requests may wait.
    Listener(usize),
}

impl Purpose {
    /// Returns the address by which operations refer to the peer, if there is only one. It is the first entry of the
    /// endpoint's own vector.
    const fn peer(self) -> PeerAddress {
        match self {
            Self::Single => PeerAddress(0),
            Self::Many | Self::Listener(_) => PeerAddress::UNSPECIFIED,
        }
    }

    /// Returns the role of a listener or of an endpoint of one connection, and `None` for other endpoints. `anywhere`
    /// states whether the endpoint is bound to a wildcard address.
    fn role(self, anywhere: bool) -> Option<Role> {
        match self {
            Self::Many => None,
            Self::Single => Some(Role::Single(Single::new(anywhere))),
            Self::Listener(backlog) => Some(Role::Listener(Listening::new(backlog, anywhere))),
        }
    }
}

/// The default number of bytes below which a multi-receive buffer is released.
pub(super) const MULTI_MINIMUM: usize = 64;

impl Domain {
    /// Builds an endpoint.
    pub fn endpoint(&self) -> EndpointBuilder<'_> {
        EndpointBuilder::new(self)
    }
}

impl<'d> EndpointBuilder<'d> {
    pub(super) fn new(domain: &'d Domain) -> Self {
        let (vector, multi_minimum, answer_timeout) = (None, MULTI_MINIMUM, None);
        Self {
            domain,
            vector,
            reports_to: Targets::default(),
            multi_minimum,
            answer_timeout,
            answer_only: false,
            connection_addresses: true,
            authorization_key: None,
            shared_receive: None,
            context_slot: None,
        }
    }

    /// Sets the endpoint's authorization key, in place of the domain's
    /// ([`DomainBuilder::authorization_key`](crate::DomainBuilder::authorization_key)). The endpoint communicates only
    /// with peers that have the same key, and these peers can access regions that were registered for this key.
    pub fn authorization_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.authorization_key = Some(key.into());
        self
    }

    /// Sets the shared receive context of the endpoint. A message can match a receive of this context as well as the
    /// endpoint's own receives.
    pub fn shared_receive(mut self, context: &SharedReceive) -> Self {
        self.shared_receive = Some(context.clone());
        self
    }

    /// Sets the address vector that contains the addresses of the endpoint's peers. Several endpoints may share a
    /// vector.
    pub fn vector(mut self, vector: &AddressVector) -> Self {
        self.vector = Some(vector.clone());
        self
    }

    /// Sets the queue that reports the operations that the endpoint begins (all except receives), in place of the
    /// endpoint's own queue.
    pub fn transmit_queue(mut self, queue: &CompletionQueue) -> Self {
        self.reports_to.transmit = Some(queue.clone());
        self
    }

    /// Sets the queue that reports received messages, in place of the endpoint's own queue.
    pub fn receive_queue(mut self, queue: &CompletionQueue) -> Self {
        self.reports_to.receive = Some(queue.clone());
        self
    }

    /// Counts all operations of this endpoint that send, read or write (FI_TRANSMIT).
    pub fn transmit_counter(self, counter: &Counter) -> Self {
        self.send_counter(counter).read_counter(counter).write_counter(counter)
    }

    /// Counts sends, tagged or untagged, when they complete (FI_SEND). One counter may count several kinds of
    /// operations.
    pub fn send_counter(mut self, counter: &Counter) -> Self {
        self.reports_to.counters.set(Counted::SENDS, counter);
        self
    }

    /// Counts receives of messages, tagged or untagged, when they complete (FI_RECV). Peeks are not counted.
    pub fn receive_counter(mut self, counter: &Counter) -> Self {
        self.reports_to.counters.set(Counted::RECEIVES, counter);
        self
    }

    /// Counts reads of peers' memory and fetching atomic operations when they complete (FI_READ).
    pub fn read_counter(mut self, counter: &Counter) -> Self {
        self.reports_to.counters.set(Counted::READS, counter);
        self
    }

    /// Counts writes to peers' memory and non-fetching atomic operations when they complete (FI_WRITE).
    pub fn write_counter(mut self, counter: &Counter) -> Self {
        self.reports_to.counters.set(Counted::WRITES, counter);
        self
    }

    /// Counts reads and fetching atomic operations by peers that arrive through this endpoint, for any region of its
    /// domain (FI_REMOTE_READ). Rejected accesses are not counted. A peer that accesses a region directly notifies this
    /// endpoint afterwards, which costs the peer one frame for each such access. The endpoint counts the access when it
    /// makes progress.
    pub fn remote_read_counter(mut self, counter: &Counter) -> Self {
        self.reports_to.counters.set(Counted::REMOTE_READS, counter);
        self
    }

    /// Counts writes by peers, when their bytes have arrived, and non-fetching atomic operations by peers
    /// (FI_REMOTE_WRITE). In all other respects it is like [`remote_read_counter`](Self::remote_read_counter). If this
    /// counter is also the [counter](crate::memory::region::Registration::counter) of a region, each access to that
    /// region is counted only once.
    pub fn remote_write_counter(mut self, counter: &Counter) -> Self {
        self.reports_to.counters.set(Counted::REMOTE_WRITES, counter);
        self
    }

    /// Sets whether a message of a peer that is not in the vector has a source (default: true). This source identifies
    /// the peer's connection, is valid at this endpoint until the connection ends, and can be used like an address of
    /// the vector, except in collectives. If set to false, or if the vector reserves more than 16 bits for receive
    /// contexts, the source of such a message is unspecified.
    pub const fn connection_addresses(mut self, enabled: bool) -> Self {
        self.connection_addresses = enabled;
        self
    }

    /// Sets the queue that reports events of peers.
    pub fn event_queue(mut self, events: &EventQueue) -> Self {
        self.reports_to.events = Some(events.clone());
        self
    }

    /// Sets the number of bytes below which a multi-receive buffer is released (FI_OPT_MIN_MULTI_RECV). Default 64.
    pub const fn multi_receive_minimum(mut self, bytes: usize) -> Self {
        self.multi_minimum = bytes;
        self
    }

    /// Sets how long a connection request may take from [`connect`](Self::connect) until the connection is up. The
    /// owner of the listener has to answer within that time. Default: the longest time that establishing a connection
    /// may take in the domain (usually its [`handshake_timeout`](crate::domain::DomainBuilder::handshake_timeout)).
    pub const fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.answer_timeout = Some(timeout);
        self
    }

    /// Makes the endpoint serve peers only over connections that the peers made. It makes no connections itself.
    /// Operations to a peer that is not connected fail with
    /// [`ErrorCode::NotConnected`](crate::ErrorCode::NotConnected), and a receive that is directed at a peer ends when
    /// the connection of that peer ends. The endpoint never connects to an address that a peer claims, except to verify
    /// that the peer's own connection was made from that address.
    pub const fn answer_only(mut self) -> Self {
        self.answer_only = true;
        self
    }

    /// Opens the endpoint at `address` (`HOST:PORT`; port 0 for any free one), for one owner. A port can be bound again
    /// as soon as its former endpoint is closed or its former process has ended, even if connections of that port are
    /// still in the state TIME_WAIT (SO_REUSEADDR is set).
    ///
    /// # Errors
    /// If the address cannot be bound, or the system refuses descriptors.
    pub fn bind(self, address: impl AsRef<str>) -> Result<Endpoint, BindError> {
        self.owned(resolve(address.as_ref())?, Purpose::Many)
    }

    /// Opens an endpoint for one owner.
    pub(super) fn owned(self, address: SocketAddr, purpose: Purpose) -> Result<Endpoint, BindError> {
        if self.domain.inner.settings.progress == Progress::Automatic {
            return Err(BindError::NotShared);
        }
        let (domain, answer_timeout) = (self.domain.clone(), self.effective_answer_timeout());
        let engine = self.engine(address, purpose)?;
        let descriptor = Arc::clone(engine.descriptor());
        Ok(Endpoint { access: Owned::new(engine), descriptor, domain, answer_timeout, peer: purpose.peer() })
    }

    /// Sets whether [counters of regions](crate::memory::region::Registration::counter) count writes by peers through
    /// this endpoint (FI_RMA_EVENT). They do by default.
    pub const fn region_counters(mut self, count: bool) -> Self {
        self.reports_to.counters.count_regions(count);
        self
    }

    /// Opens the endpoint at `address`, for many threads. Threads that read or wait for the shared queues and counters
    /// to which the endpoint reports make progress on it.
    ///
    /// # Errors
    /// If the address cannot be bound, or the system refuses descriptors or a thread.
    pub fn bind_shared(self, address: impl AsRef<str>) -> Result<SharedEndpoint, BindError> {
        self.shared(resolve(address.as_ref())?, Purpose::Many)
    }

    /// Opens an endpoint for many threads.
    pub(super) fn shared(self, address: SocketAddr, purpose: Purpose) -> Result<SharedEndpoint, BindError> {
        let (domain, answer_timeout) = (self.domain.clone(), self.effective_answer_timeout());
        let engine = self.engine(address, purpose)?;
        let descriptor = Arc::clone(engine.descriptor());
        let access = Shared::new(engine);
        automatic::attach(&access, &descriptor)?;
        if domain.inner.settings.progress == Progress::Automatic {
            access.automate()?;
        }
        Ok(Endpoint { access, descriptor, domain, answer_timeout, peer: purpose.peer() })
    }

    fn effective_answer_timeout(&self) -> Duration {
        self.answer_timeout.unwrap_or(self.domain.inner.settings.connect_timeouts.longest())
    }

    /// Returns whether the endpoint is for a simulated network.
    pub(super) fn is_simulated(&self) -> bool {
        self.domain.inner.settings.sim.is_some()
    }

    /// Opens the engine.
    fn engine(mut self, bind: SocketAddr, purpose: Purpose) -> Result<Engine, BindError> {
        let domain = &self.domain.inner;
        if !domain.is_here() {
            return Err(BindError::Forked); // No thread would make connections in this process.
        }
        super::engine::deferred_cleanup::settle();
        let role = purpose.role(bind.ip().is_unspecified());
        if matches!(purpose, Purpose::Single) {
            // The vector of an endpoint of one connection holds only its peer.
            self.vector = AddressVector::new(VectorOptions::default()).ok();
        }
        let (wait_state, shm_missing) = domain.wait_state()?;
        let core = self.core(purpose, &wait_state.doorbell_allocator);
        let context = self.context_slot.as_ref().map_or(0, |context_slot| context_slot.index);
        if let Some(network) = &domain.settings.sim {
            let port = self.port(network, bind)?;
            let (address, incarnation) = (port.address(), port.incarnation());
            let start =
                Start { core, role, connector: Connector::Sim(port), wait_state, address, context, incarnation };
            return Ok(Engine::new(start)?);
        }
        let naming = if role.is_some() {
            Naming::None
        } else {
            let vector = core.peers.vector().cloned();
            Naming::Of(Arc::new(move |address| vector.as_ref().is_some_and(|vector| vector.find(address).is_some())))
        };
        let doorbell = Arc::clone(wait_state.doorbell_allocator.doorbell());
        let mailbox = Mailbox::new(move || doorbell.wake());
        let registration = self.register(bind, naming, &wait_state.doorbell_allocator, shm_missing, &mailbox)?;
        let (address, incarnation) = (registration.address(), u128::from_be_bytes(registration.incarnation().0));
        let tcp = self.tcp_options();
        let connector = Connector::Service { registration, mailbox, tcp, answer_only: self.answer_only };
        Ok(Engine::new(Start { core, role, connector, wait_state, address, context, incarnation })?)
    }

    /// Creates the part of the endpoint's state that does not depend on how it connects. Takes the vector, the queues
    /// and the counters out of the builder.
    fn core(&mut self, purpose: Purpose, doorbell_allocator: &DoorbellAllocator) -> Core {
        let (domain, settings) = (&self.domain.inner, &self.domain.inner.settings);
        let (many, single) = (matches!(purpose, Purpose::Many), matches!(purpose, Purpose::Single));
        let vector = self.vector.take();
        let targets = std::mem::take(&mut self.reports_to);
        let shared = self.shared_receive.as_ref().filter(|_| !matches!(purpose, Purpose::Listener(_)));
        let pool =
            shared.map(|shared| shared.pool.join(vector.as_ref().filter(|_| !single), doorbell_allocator.doorbell()));
        let mut peers = Peers::new(vector, single, settings.unexpected_cap);
        peers.use_connection_addresses(self.connection_addresses);
        Core {
            peers,
            messages: Messages::new(self.multi_minimum),
            remote: Default::default(),
            left: Default::default(),
            local: LocalRegions::new(
                Arc::clone(&domain.keys),
                self.authorization_key.as_deref().map_or(0, |key| settings.authority(key)),
                Arc::clone(&domain.mapped),
                if matches!(purpose, Purpose::Listener(_)) { Trust::None } else { settings.trust },
                domain.pins.clone(),
            ),
            reporting: Reporting::new(targets, !many || self.shared_receive.is_some()),
            shared: SharedReceives::new(pool),
            operations: Operations::default(),
            admission: if many { Admission::default() } else { Admission::closed() },
            triggered: TriggeredOperations::new(Arc::clone(doorbell_allocator.doorbell())),
            groups: Default::default(),
        }
    }

    /// Opens the endpoint's port in a simulated network.
    fn port(&self, network: &Network, bind: SocketAddr) -> Result<SimPort, BindError> {
        let port = match &self.context_slot {
            Some(ContextSlot { place: SharedAddress::Sim(site), index, .. }) => network.port_of(site, *index),
            _ => network.port(bind),
        };
        port.map_err(|error| self.failed(bind, error))
    }

    /// Registers the endpoint with the domain's service thread.
    fn register(
        &self,
        bind: SocketAddr,
        naming: Naming,
        doorbell_allocator: &Arc<DoorbellAllocator>,
        shm_missing: Option<Arc<str>>,
        mailbox: &Arc<Mailbox>,
    ) -> Result<EndpointRegistration, BindError> {
        let settings = &self.domain.inner.settings;
        let Some(service) = &self.domain.inner.service else {
            return Err(BindError::System(io::ErrorKind::NotConnected.into()));
        };
        let mut transports = Transports::empty();
        transports.set(Transports::SHM, settings.shm && doorbell_allocator.descriptors().is_some());
        transports.set(Transports::TCP, settings.tcp);
        let options = EndpointOptions {
            bind,
            interface: settings.interface.clone(),
            incarnation: Incarnation::random()?,
            transports,
            authorization_key: self.authorization_key.clone().or_else(|| settings.authorization_key.clone()),
            timeouts: settings.connect_timeouts,
            cma_allowed: settings.cma,
            verbs: settings.verbs.clone(),
            doorbell: Some(Arc::clone(doorbell_allocator) as _),
            shm_missing,
            context: match &self.context_slot {
                Some(ContextSlot { place: SharedAddress::Service(site), index, .. }) => {
                    Some((Arc::clone(site), *index))
                }
                _ => None,
            },
            naming,
        };
        service.open(options, mailbox).map_err(|error| self.failed(bind, error))
    }

    /// Returns the options of the endpoint's TCP connections.
    fn tcp_options(&self) -> TcpOptions {
        let settings = &self.domain.inner.settings;
        let mut tcp = TcpOptions { timeout: settings.peer_timeout, ..TcpOptions::default() };
        if let Some(bytes) = settings.socket_buffers {
            tcp.send_buffer = Some(bytes);
            tcp.receive_buffer = Some(bytes);
        }
        tcp
    }

    /// Returns the error for an address, or a context, that cannot be opened.
    fn failed(&self, bind: SocketAddr, error: io::Error) -> BindError {
        match &self.context_slot {
            Some(context_slot) => context_slot.error(bind, error),
            None => BindError::Bind { address: bind, error },
        }
    }
}

/// Resolves an address given as text to its first socket address.
pub(super) fn resolve(text: &str) -> Result<SocketAddr, BindError> {
    let wrong = |why: &dyn std::fmt::Display| BindError::Address(text.into(), why.to_string());
    text.to_socket_addrs().map_err(|error| wrong(&error))?.next().ok_or_else(|| wrong(&"it has no IP address"))
}

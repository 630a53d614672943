//! The handles of a domain's service and of an endpoint's registration with it.
//!
//! Threads do not survive fork. In a forked child these handles do nothing, because the connections belong to the
//! parent.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use super::ConnectTimeouts;
use super::commands::{Command, InitialState, RunningGuard, ServiceState};
use super::handshake::AuthorizationKey;
use super::listen::Listeners;
use super::mailbox::{LocalDoorbell, Mailbox};
use super::naming::Naming;
use super::reactor::Reactor;
use crate::later::later;
use crate::system::forked::ProcessMutex;
use crate::system::thread::start_thread;
use crate::verbs::Adapter;
use crate::wire::contexts::Contexts;
use crate::wire::hello::{HelloFlags, Incarnation};
use crate::{background, host};
use bitflags::bitflags;

bitflags! {
    /// The transports that an endpoint may use towards its peers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Transports: u8 {
        /// Shared memory.
        const SHM = 1;
        /// TCP.
        const TCP = 2;
    }
}

/// The options of an endpoint for connection set-up.
pub struct EndpointOptions {
    /// The address on which to listen. Port 0 selects a free port; a wildcard address listens on all interfaces.
    pub bind: SocketAddr,
    /// The interface that provides the advertised address, if `bind` is a wildcard. `None` selects the best one.
    pub interface: Option<String>,
    /// The incarnation of this endpoint.
    pub incarnation: Incarnation,
    /// The transports that may be used.
    pub transports: Transports,
    /// The authorization key. Peers must have the same one.
    pub authorization_key: Option<Vec<u8>>,
    /// The timeouts of a connection attempt, from [`EndpointRegistration::connect`] to its notice.
    pub timeouts: ConnectTimeouts,
    /// Whether links may read and write peers' memory directly.
    pub cma_allowed: bool,
    /// The port of the RDMA device. If it is `None`, the endpoint does not use verbs.
    pub verbs: Option<Arc<Adapter>>,
    /// The endpoint's doorbell. If it is `None`, the endpoint does not use shared memory.
    pub doorbell: Option<Arc<dyn LocalDoorbell>>,
    /// The reason why the endpoint has no shared memory, unless its owner has disabled it.
    pub shm_missing: Option<Arc<str>>,
    /// The site and the index, if the endpoint is a context. It is then reached at the site's address.
    pub context: Option<(Arc<Site>, u16)>,
    /// Whether callers are identified by their addresses.
    pub naming: Naming,
}

impl fmt::Debug for EndpointOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointOptions")
            .field("bind", &self.bind)
            .field("interface", &self.interface)
            .field("incarnation", &self.incarnation)
            .field("transports", &self.transports)
            .field("timeouts", &self.timeouts)
            .finish_non_exhaustive()
    }
}

impl EndpointOptions {
    /// Creates options that allow shared memory and TCP, with the default timeouts, and without a key, a doorbell and a
    /// port of an RDMA device.
    #[must_use]
    pub const fn new(bind: SocketAddr, incarnation: Incarnation) -> Self {
        Self {
            bind,
            interface: None,
            incarnation,
            transports: Transports::all(),
            authorization_key: None,
            timeouts: ConnectTimeouts::DEFAULT,
            cma_allowed: true,
            verbs: None,
            doorbell: None,
            shm_missing: None,
            context: None,
            naming: Naming::None,
        }
    }
}

/// The connection service of one domain. Dropping it stops its thread and discards all set-ups and connections of its
/// endpoints that are in progress.
pub struct Service {
    shared: Arc<ServiceState>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Service")
    }
}

impl Service {
    /// Starts the service.
    ///
    /// # Errors
    /// If there is no descriptor or no thread left.
    pub fn start() -> io::Result<Arc<Self>> {
        let shared = Arc::new(ServiceState::new()?);
        let mut reactor = Reactor::new(Arc::clone(&shared))?;
        let running = RunningGuard(Arc::clone(&shared));
        let thread = start_thread("percale-connect", move || {
            background::reset_scheduling();
            reactor.run();
            // Close the sockets before the end of the thread is reported.
            drop(reactor);
            drop(running);
        })?;
        Ok(Arc::new(Self { shared, thread: Some(thread) }))
    }

    /// Opens the listeners of an endpoint. Its notices are posted to `mailbox`.
    ///
    /// # Errors
    /// The error of a system call, such as `bind`; `NotFound` if the requested interface has no address, or the site
    /// has no such context; `AddrInUse` if the context is already open.
    pub fn open(
        self: &Arc<Self>,
        options: EndpointOptions,
        mailbox: &Arc<Mailbox>,
    ) -> io::Result<EndpointRegistration> {
        self.enter(options, mailbox, None)
    }

    /// Opens an address that is shared by contexts. No context is open yet. The notices of this address itself are not
    /// read.
    ///
    /// # Errors
    /// Like [`open`](Self::open).
    pub fn open_site(self: &Arc<Self>, options: EndpointOptions, contexts: Contexts) -> io::Result<Arc<Site>> {
        let registration = self.enter(options, &Mailbox::new(|| ()), Some(contexts.named))?;
        Ok(Arc::new(Site { registration, contexts, taken: ProcessMutex::new(HashSet::new()) }))
    }

    fn enter(
        self: &Arc<Self>,
        options: EndpointOptions,
        mailbox: &Arc<Mailbox>,
        contexts: Option<u16>,
    ) -> io::Result<EndpointRegistration> {
        let shm = options.transports.contains(Transports::SHM) && options.doorbell.is_some();
        let unix = shm.then_some(&options.incarnation);
        let site = options.context.map(|(site, index)| ContextSlot::take(site, index)).transpose()?;
        let listeners = match &site {
            None => Listeners::open(options.bind, options.interface.as_deref(), unix)?,
            Some(ContextSlot { site, .. }) => {
                Listeners::of_context(site.registration.address, site.registration.explanation.clone(), unix)
            }
        };
        let mut flags = HelloFlags::empty();
        flags.set(HelloFlags::SHM, listeners.unix.is_some());
        flags.set(HelloFlags::TCP, options.transports.contains(Transports::TCP));
        flags.set(HelloFlags::VERBS, options.verbs.is_some());
        flags.set(HelloFlags::AUTHORIZATION, options.authorization_key.is_some());
        let (address, explanation) = (listeners.address, listeners.explanation.clone());
        let id = self.shared.number();
        self.shared.send(Command::Open(
            id,
            Box::new(InitialState {
                listeners,
                flags,
                place: host::place(),
                incarnation: options.incarnation,
                key: options.authorization_key.map(AuthorizationKey::new),
                timeouts: options.timeouts,
                cma: options.cma_allowed,
                verbs: options.verbs,
                doorbell: options.doorbell,
                shm_missing: options.shm_missing,
                site: site.as_ref().map(|context_slot| (context_slot.site.registration.id, context_slot.index)),
                contexts,
                naming: options.naming,
                mailbox: Arc::clone(mailbox),
            }),
        ));
        let service = Arc::clone(self);
        Ok(EndpointRegistration { service, id, address, explanation, incarnation: options.incarnation, _seat: site })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if !self.shared.is_home() {
            // The thread does not exist in this process; waiting for it would never end.
            std::mem::forget(self.thread.take());
            return;
        }
        self.shared.send(Command::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            later!(error: "the connection service panicked");
        }
    }
}

/// An address that several endpoints share, each as a context.
#[derive(Debug)]
pub struct Site {
    registration: EndpointRegistration,
    contexts: Contexts,
    /// The contexts that are open.
    taken: ProcessMutex<HashSet<u16>>,
}

impl Site {
    /// Returns the address.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.registration.address
    }
}

/// A reserved context of a site. The site exists as long as any of its contexts is reserved.
#[derive(Debug)]
struct ContextSlot {
    site: Arc<Site>,
    index: u16,
}

impl ContextSlot {
    fn take(site: Arc<Site>, index: u16) -> io::Result<Self> {
        let mut taken = site.taken.lock().ok_or_else(|| io::Error::from_raw_os_error(libc::ECHILD))?;
        if !site.contexts.has(index) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if !taken.insert(index) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        drop(taken);
        Ok(Self { site, index })
    }
}

impl Drop for ContextSlot {
    fn drop(&mut self) {
        if let Some(mut taken) = self.site.taken.lock() {
            taken.remove(&self.index);
        }
    }
}

/// The registration of an endpoint with the service. Dropping it closes the listeners and ends all attempts. When the
/// drop returns, the port is free.
#[derive(Debug)]
pub struct EndpointRegistration {
    service: Arc<Service>,
    id: u64,
    address: SocketAddr,
    explanation: String,
    incarnation: Incarnation,
    /// Released after the service has removed the endpoint.
    _seat: Option<ContextSlot>,
}

impl EndpointRegistration {
    /// Returns the address that is advertised to peers: a concrete IP address and the port.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the reason for that address.
    #[must_use]
    pub fn explanation(&self) -> &str {
        &self.explanation
    }

    /// Returns the incarnation of this endpoint.
    #[must_use]
    pub const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Starts a connection to `peer`. One notice about `attempt` follows: established, aliased or failed. The caller
    /// chooses the number of the attempt.
    pub fn connect(&self, attempt: u64, peer: SocketAddr) {
        self.connect_context(attempt, peer, 0);
    }

    /// Like [`connect`](Self::connect), to a context of `peer`.
    pub fn connect_context(&self, attempt: u64, peer: SocketAddr, context: u16) {
        self.service.shared.send(Command::Connect { endpoint: self.id, attempt, peer, context });
    }

    /// Reports that the endpoint has given up the connection `serial`. The service stops watching it, and the peer may
    /// connect again.
    pub fn closed(&self, serial: u64) {
        self.service.shared.send(Command::Closed { endpoint: self.id, serial });
    }
}

impl Drop for EndpointRegistration {
    fn drop(&mut self) {
        if !self.service.shared.is_home() {
            return;
        }
        let (done, closed) = mpsc::sync_channel(1);
        self.service.shared.send(Command::Close(self.id, done));
        // An error means that the thread has ended, and the listeners are closed.
        if closed.recv().is_err() {
            later!(debug: "the connection service ended before an endpoint");
        }
    }
}

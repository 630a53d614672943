//! The objects that are bound to an endpoint, and percale's endpoint, which is opened when the endpoint is enabled.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use percale::{Counted, Counter, EndpointBuilder};

use super::context_slot::{ContextSlot, EndpointKind};
use super::drivers::Drivers;
use super::flags::Direction;
use super::objects::Objects;
use super::origin::Origin;
use super::shared::{ReceiveContext, Receives, TransmitContext, Transmits};
use super::{Endpoint, RequestedProperties};
use crate::abi::{
    FI_EBADFLAGS, FI_ENOAV, FI_ENOCQ, FI_ENOEQ, FI_EOPBADSTATE, FI_EP_MSG, FI_EP_RDM, FI_LOG_EP_CTRL, FI_READ, FI_RECV,
    FI_REMOTE_READ, FI_REMOTE_WRITE, FI_SELECTIVE_COMPLETION, FI_SEND, FI_WRITE, fi_info, fid, fid_t,
};
use crate::counter::{self, Count};
use crate::domain;
use crate::events::{self, Events};
use crate::log;
use crate::object::{Object, code};
use crate::port::{MULTI_MINIMUM, Port};
use crate::queue::{self, Queue};
use crate::requests;
use crate::vector::{self, Vector};

/// The state that the aliases of an endpoint share.
pub(crate) struct Setup {
    domain: Arc<domain::DomainShared>,
    /// The endpoint type (`FI_EP_*`).
    kind: u32,
    /// Set if the endpoint may join groups.
    groups: bool,
    /// Set if the endpoint counts the writes of peers for counters of regions (FI_RMA_EVENT).
    region_events: bool,
    /// Locked before `bound`.
    objects: Objects,
    bound: Mutex<BoundObjects>,
    port: OnceLock<Arc<Port>>,
    /// Calls to make once percale's endpoint has its number.
    later: Mutex<Vec<DeferredCall>>,
    /// The context, if this is the setup of a context of a scalable endpoint.
    context_slot: Option<ContextSlot>,
}

/// The objects that were bound before the endpoint was enabled. They are held until it is closed.
#[derive(Default)]
struct BoundObjects {
    origin: Origin,
    vector: Option<Arc<vector::VectorShared>>,
    transmit: Option<QueueBinding>,
    receive: Option<QueueBinding>,
    counters: Vec<(u64, Arc<counter::CounterShared>)>,
    events: Option<Arc<events::EventQueueShared>>,
    multi_minimum: Option<usize>,
    shared_receive: Option<Arc<Receives>>,
    shared_transmit: Option<Arc<Transmits>>,
}

impl BoundObjects {
    /// Attaches the completion queues and counters to percale's endpoint. With `direct`, the single completion queue
    /// polls the endpoint itself.
    fn attach(&self, port: &Arc<Port>, direct: bool) {
        for reports in [&self.transmit, &self.receive].into_iter().flatten() {
            if direct {
                reports.queue.attach(port);
                break;
            }
            reports.queue.reported_to(port);
        }
        for (_, counter) in &self.counters {
            counter.attach(port);
        }
    }
}

#[derive(Clone)]
struct QueueBinding {
    queue: Arc<queue::QueueShared>,
    selective: bool,
}

/// A call that is deferred until an endpoint is enabled. Its argument is the endpoint's number.
type DeferredCall = Box<dyn FnOnce(u64) -> Result<(), i32> + Send>;

/// The kinds of operations that an endpoint's counters count.
const COUNTED: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

pub(super) unsafe extern "C" fn bind(ep: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: the pointer is an endpoint of this provider, and the client passed an open object.
    code(unsafe { Endpoint::of(ep).setup.bind(other, flags) })
}

impl Setup {
    /// Creates the setup of an endpoint from an info.
    ///
    /// # Errors
    /// Returns the positive error code if the info is invalid.
    ///
    /// # Safety
    /// The addresses and keys of the info have the stated lengths. Its handle is null, the handle of a request, or an
    /// open object.
    pub(super) unsafe fn new(
        domain: &Arc<domain::DomainShared>,
        info: &fi_info,
        wishes: &RequestedProperties,
    ) -> Result<Self, i32> {
        // SAFETY: the caller guarantees this.
        let origin = unsafe { Origin::read(info) }?;
        Ok(Self::with(domain, wishes, BoundObjects { origin, ..BoundObjects::default() }, None))
    }

    /// Creates the setup of a context of a scalable endpoint.
    pub(super) fn of_context(
        domain: &Arc<domain::DomainShared>,
        wishes: &RequestedProperties,
        context_slot: ContextSlot,
    ) -> Self {
        Self::with(domain, wishes, BoundObjects::default(), Some(context_slot))
    }

    fn with(
        domain: &Arc<domain::DomainShared>,
        wishes: &RequestedProperties,
        bound: BoundObjects,
        context_slot: Option<ContextSlot>,
    ) -> Self {
        Self {
            domain: Arc::clone(domain),
            kind: if context_slot.is_some() { FI_EP_RDM } else { wishes.kind },
            groups: wishes.groups && context_slot.is_none(),
            region_events: wishes.region_events,
            objects: Objects::default(),
            bound: Mutex::new(bound),
            port: OnceLock::new(),
            later: Mutex::default(),
            context_slot,
        }
    }

    /// Returns the half of a scalable endpoint that the endpoint belongs to.
    pub(crate) fn half(&self) -> EndpointKind {
        self.context_slot.as_ref().map_or(EndpointKind::Both, |context_slot| context_slot.half)
    }

    /// Adds an object of the client for this endpoint. Returns false if the endpoint was closed.
    pub(super) fn add_object(&self, object: fid_t) -> bool {
        self.objects.add(object)
    }

    /// Returns whether the last object was closed.
    pub(super) fn is_closed(&self) -> bool {
        self.objects.lock().is_released()
    }

    /// Closes an object of the client. Closing the last object also closes the endpoint.
    ///
    /// # Errors
    /// Returns the positive error code if windows of type 2A hold the endpoint (MW-039). The object then stays open.
    pub(super) fn close_object(&self, object: fid_t) -> Result<(), i32> {
        let mut objects = self.objects.lock();
        if objects.is_last(object) && self.port().is_some_and(|port| port.is_held_by_windows()) {
            log::warning!(
                FI_LOG_EP_CTRL,
                "fi_close: type 2A windows are bound through the endpoint; invalidate or close them first"
            );
            return Err(libc::EBUSY);
        }
        if objects.remove(object) {
            self.release();
            return Ok(());
        }
        // Events must name an open object.
        if let (Some(port), Some(events), Some(first)) = (self.port(), self.named_at(), objects.first()) {
            events.name_endpoint(port.id(), first);
        }
        Ok(())
    }

    /// Returns the event queue for events that name the endpoint. Only connected endpoints have one.
    fn named_at(&self) -> Option<Arc<events::EventQueueShared>> {
        self.events().filter(|_| self.kind == FI_EP_MSG)
    }

    fn bound(&self) -> MutexGuard<'_, BoundObjects> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) const fn domain(&self) -> &Arc<domain::DomainShared> {
        &self.domain
    }

    /// Returns percale's endpoint once the endpoint is enabled.
    pub(crate) fn port(&self) -> Option<&Arc<Port>> {
        self.port.get()
    }

    /// Returns the number of percale's endpoint. If that endpoint is not open yet, registers a call that runs when it
    /// is opened.
    pub(crate) fn id_or_later(&self, make: impl FnOnce() -> DeferredCall) -> Option<u64> {
        // The endpoint is opened under this lock.
        let _bound = self.bound();
        if let Some(port) = self.port() {
            return Some(port.id());
        }
        self.later.lock().unwrap_or_else(PoisonError::into_inner).push(make());
        None
    }

    /// Adds a counter to an open endpoint.
    fn count_late(&self, port: &Arc<Port>, flags: u64, counter: &Arc<counter::CounterShared>) -> Result<(), i32> {
        if counter.has_sleepers() {
            // The same rule as for counters that are bound before the endpoint is enabled (see `drivers`).
            port.share().map_err(|refused| -(refused as i32))?;
        }
        port.count(Counted::from_bits_truncate(flags), &counter.percale).map_err(|error| {
            log::warning!(FI_LOG_EP_CTRL, "fi_ep_bind: {error}");
            error.errno()
        })?;
        counter.attach(port);
        Ok(())
    }

    /// Returns the endpoint's address, once it has one.
    pub(super) fn name(&self) -> Option<SocketAddr> {
        let bound = self.bound();
        match (bound.origin.listener, self.port()) {
            (Some(listener), Some(port)) if listener.ip().is_unspecified() => {
                Some(SocketAddr::new(port.address().ip(), listener.port()))
            }
            (Some(listener), _) => Some(listener),
            (None, Some(port)) => Some(port.address()),
            (None, None) => bound.origin.source.filter(|address| address.port() != 0),
        }
    }

    /// Returns the event queue of the endpoint.
    pub(super) fn events(&self) -> Option<Arc<events::EventQueueShared>> {
        self.bound().events.clone()
    }

    /// Returns whether the bound address vector satisfies `is`.
    pub(super) fn uses(&self, is: impl FnOnce(&Arc<vector::VectorShared>) -> bool) -> bool {
        self.bound().vector.as_ref().is_some_and(is)
    }

    /// Returns the address to which the endpoint connects by default.
    pub(super) fn destination(&self) -> Option<SocketAddr> {
        self.bound().origin.destination
    }

    /// Returns the connection request for which the endpoint was opened.
    pub(super) fn request(&self) -> Option<requests::Handle> {
        self.bound().origin.request
    }

    /// Sets the address. Returns false if the endpoint is open already.
    pub(super) fn set_source(&self, address: SocketAddr) -> bool {
        // The endpoint is opened under this lock.
        let mut bound = self.bound();
        let free = self.port().is_none();
        if free {
            bound.origin.source = Some(address);
        }
        free
    }

    /// Returns the minimum free space of a multi-receive buffer. A buffer with less free space is released.
    pub(super) fn multi_minimum(&self) -> usize {
        self.bound().multi_minimum.unwrap_or(MULTI_MINIMUM)
    }

    pub(super) fn set_multi_minimum(&self, bytes: usize) {
        self.bound().multi_minimum = Some(bytes);
        if let Some(port) = self.port() {
            port.set_multi_minimum(bytes);
        }
    }

    /// Sets the completion options of an object's directions to those of the endpoint.
    pub(super) fn directions(&self, transmit: &Direction, receive: &Direction) {
        let bound = self.bound();
        for (direction, reports) in [(transmit, &bound.transmit), (receive, &bound.receive)] {
            direction.bind(reports.is_some(), reports.as_ref().is_some_and(|reports| reports.selective));
        }
    }

    /// Binds an object of the client.
    ///
    /// # Safety
    /// `other` is null or an open object of the client.
    unsafe fn bind(&self, other: *mut fid, flags: u64) -> Result<(), i32> {
        let mut bound = self.bound();
        // SAFETY: the caller guarantees this.
        let counts = unsafe { Count::of_class(other) }.is_some();
        if self.port().is_some() && !counts {
            log::warning!(FI_LOG_EP_CTRL, "fi_ep_bind: only counters can be bound after fi_enable");
            return Err(FI_EOPBADSTATE);
        }
        // SAFETY: the caller guarantees this.
        if let Some(queue) = unsafe { Queue::of_class(other) } {
            return self.bind_queue(&mut bound, queue, flags);
        }
        // SAFETY: the caller guarantees this.
        if let Some(vector) = unsafe { Vector::of_class(other) } {
            self.is_here(vector.shared().domain())?;
            return once(&mut bound.vector, vector.shared(), "address vector");
        }
        // SAFETY: the caller guarantees this.
        if let Some(counter) = unsafe { Count::of_class(other) } {
            return self.bind_counter(&mut bound, counter, flags);
        }
        // SAFETY: the caller guarantees this.
        if let Some(events) = unsafe { Events::of_class(other) } {
            if !events.shared().is_of(&self.domain.fabric) {
                log::warning!(FI_LOG_EP_CTRL, "fi_ep_bind: the event queue belongs to another fabric");
                return Err(libc::EINVAL);
            }
            return once(&mut bound.events, events.shared(), "event queue");
        }
        // SAFETY: the caller guarantees this.
        if let Some(context) = unsafe { ReceiveContext::of_class(other) } {
            self.half().allows(FI_RECV)?;
            self.is_here(context.shared().domain())?;
            return once(&mut bound.shared_receive, context.shared(), "shared receive context");
        }
        // SAFETY: the caller guarantees this.
        if let Some(context) = unsafe { TransmitContext::of_class(other) } {
            self.half().allows(FI_SEND)?;
            self.is_here(context.shared().domain())?;
            return once(&mut bound.shared_transmit, context.shared(), "shared transmit context");
        }
        log::warning!(FI_LOG_EP_CTRL, "fi_ep_bind: objects of this class cannot be bound to endpoints");
        Err(libc::EINVAL)
    }

    fn bind_queue(&self, bound: &mut BoundObjects, queue: &Queue, flags: u64) -> Result<(), i32> {
        if flags & !(FI_SEND | FI_RECV | FI_SELECTIVE_COMPLETION) != 0 || flags & (FI_SEND | FI_RECV) == 0 {
            log::warning!(
                FI_LOG_EP_CTRL,
                "fi_ep_bind: invalid flags {flags:#x} for a completion queue (use FI_TRANSMIT, FI_RECV or both)"
            );
            return Err(FI_EBADFLAGS);
        }
        self.half().allows(flags & (FI_SEND | FI_RECV))?;
        self.is_here(queue.shared().domain())?;
        let (transmits, receives) = (flags & FI_SEND != 0, flags & FI_RECV != 0);
        if transmits && bound.transmit.is_some() || receives && bound.receive.is_some() {
            log::warning!(FI_LOG_EP_CTRL, "fi_ep_bind: the endpoint already has a completion queue for this direction");
            return Err(libc::EINVAL);
        }
        let reports =
            QueueBinding { queue: Arc::clone(queue.shared()), selective: flags & FI_SELECTIVE_COMPLETION != 0 };
        if transmits {
            bound.transmit = Some(reports.clone());
        }
        if receives {
            bound.receive = Some(reports);
        }
        Ok(())
    }

    fn bind_counter(&self, bound: &mut BoundObjects, counter: &Count, flags: u64) -> Result<(), i32> {
        if flags & !COUNTED != 0 || flags == 0 {
            log::warning!(
                FI_LOG_EP_CTRL,
                "fi_ep_bind: invalid flags {flags:#x} for a counter (it counts sends, receives, reads and writes)"
            );
            return Err(FI_EBADFLAGS);
        }
        self.half().allows(flags)?;
        self.is_here(counter.shared().domain())?;
        if bound.counters.iter().any(|(others, _)| others & flags != 0) {
            log::warning!(FI_LOG_EP_CTRL, "fi_ep_bind: the endpoint already has a counter for some of {flags:#x}");
            return Err(libc::EINVAL);
        }
        if let Some(port) = self.port() {
            self.count_late(port, flags, counter.shared())?;
        }
        bound.counters.push((flags, Arc::clone(counter.shared())));
        Ok(())
    }

    /// Rejects objects of other domains.
    fn is_here(&self, domain: &Arc<domain::DomainShared>) -> Result<(), i32> {
        if Arc::ptr_eq(domain, &self.domain) {
            return Ok(());
        }
        log::warning!(FI_LOG_EP_CTRL, "fi_ep_bind: the object belongs to another domain");
        Err(libc::EINVAL)
    }

    /// Opens percale's endpoint (fi_enable(3)).
    pub(super) fn enable(&self) -> Result<(), i32> {
        if self.port().is_some() {
            return Ok(());
        }
        let objects = self.objects.lock();
        let mut bound = self.bound();
        if self.port().is_some() {
            return Ok(()); // Another thread has enabled the endpoint.
        }
        if let (None, Some(context_slot)) = (&bound.vector, &self.context_slot) {
            bound.vector = Some(context_slot.whole.vector()?);
        }
        self.check_bound(&bound)?;
        let direct = self.polls_directly(&bound);
        let port = self.open_port(&bound, self.builder(&bound, direct))?;
        self.domain.opened(&port)?;
        bound.attach(&port, direct);
        if let (FI_EP_MSG, Some(events), Some(first)) = (self.kind, &bound.events, objects.first()) {
            events.name_endpoint(port.id(), first);
        }
        let id = port.id();
        self.port.get_or_init(|| port);
        drop((bound, objects));
        let later = std::mem::take(&mut *self.later.lock().unwrap_or_else(PoisonError::into_inner));
        later.into_iter().map(|later| later(id)).fold(Ok(()), Result::and)
    }

    /// Checks that all objects that the endpoint needs are bound.
    fn check_bound(&self, bound: &BoundObjects) -> Result<(), i32> {
        if self.kind == FI_EP_RDM && bound.vector.is_none() {
            log::warning!(FI_LOG_EP_CTRL, "fi_enable: a reliable-datagram endpoint needs an address vector; bind one");
            return Err(FI_ENOAV);
        }
        if bound.transmit.is_none() && bound.receive.is_none() && bound.counters.is_empty() {
            log::warning!(FI_LOG_EP_CTRL, "fi_enable: the endpoint has neither completion queue nor counter; bind one");
            return Err(FI_ENOCQ);
        }
        if bound.shared_receive.is_some() && bound.receive.as_ref().is_none_or(|reports| reports.selective) {
            log::warning!(
                FI_LOG_EP_CTRL,
                "fi_enable: with a shared receive context the endpoint needs a completion queue for all receives; bind one with \
                 FI_RECV and without FI_SELECTIVE_COMPLETION"
            );
            return Err(FI_ENOCQ);
        }
        if self.kind == FI_EP_MSG && bound.events.is_none() {
            log::warning!(FI_LOG_EP_CTRL, "fi_enable: a connected endpoint needs an event queue; bind one");
            return Err(FI_ENOEQ);
        }
        Ok(())
    }

    /// Returns whether the completion queue polls percale's endpoint directly, without a percale queue between them.
    fn polls_directly(&self, bound: &BoundObjects) -> bool {
        match (&bound.transmit, &bound.receive) {
            (Some(transmit), Some(receive)) => {
                Arc::ptr_eq(&transmit.queue, &receive.queue) && transmit.queue.takes_directly()
            }
            (Some(only), None) | (None, Some(only)) => self.half() != EndpointKind::Both && only.queue.takes_directly(),
            (None, None) => false,
        }
    }

    /// Returns the event queue for percale's endpoint, if the endpoint reports events.
    fn reported_events<'b>(&self, bound: &'b BoundObjects) -> Option<&'b Arc<events::EventQueueShared>> {
        bound.events.as_ref().filter(|_| self.kind == FI_EP_MSG || self.groups)
    }

    /// Returns the builder of percale's endpoint with all bound objects. With `direct`, completions do not go to a
    /// percale queue.
    fn builder(&self, bound: &BoundObjects, direct: bool) -> EndpointBuilder<'_> {
        // libfabric reports FI_ADDR_NOTAVAIL for peers that are not in the vector.
        let mut builder = self.domain.percale.endpoint().connection_addresses(false);
        if let Some(key) = &bound.origin.authorization {
            builder = builder.authorization_key(key.clone());
        }
        if let Some(shared) = &bound.shared_receive {
            builder = builder.shared_receive(&shared.percale);
        }
        if let Some(vector) = &bound.vector {
            builder = builder.vector(&vector.percale);
        }
        if !direct {
            if let Some(reports) = &bound.transmit {
                builder = builder.transmit_queue(&reports.queue.percale);
            }
            if let Some(reports) = &bound.receive {
                builder = builder.receive_queue(&reports.queue.percale);
            }
        }
        for (flags, counter) in &bound.counters {
            builder = with_counter(builder, *flags, &counter.percale);
        }
        if let Some(events) = self.reported_events(bound) {
            builder = builder.event_queue(&events.percale);
        }
        builder = builder.region_counters(self.region_events);
        builder.multi_receive_minimum(bound.multi_minimum.unwrap_or(MULTI_MINIMUM))
    }

    /// Opens percale's endpoint. It gets a lock if threads that the client does not serialize may use it.
    fn open_port(&self, bound: &BoundObjects, builder: EndpointBuilder<'_>) -> Result<Arc<Port>, i32> {
        let source = bound.origin.source.unwrap_or_else(|| self.domain.wildcard());
        let drivers = Drivers {
            domain: &self.domain,
            queues: [&bound.transmit, &bound.receive].map(|reports| reports.as_ref().map(|reports| &reports.queue)),
            counters: &bound.counters,
            events: self.reported_events(bound).is_some(),
            regions: self.region_events,
        };
        let port = if let Some(context_slot) = &self.context_slot {
            context_slot.open(builder, drivers.need_a_lock())?
        } else if self.kind == FI_EP_MSG {
            builder.bind_single_shared(source.to_string()).map(Port::of_all)
        } else if drivers.need_a_lock() {
            builder.bind_shared(source.to_string()).map(Port::of_all)
        } else {
            // SAFETY: the client serializes all use of the endpoint and of the objects that drive it.
            builder.bind(source.to_string()).map(|endpoint| unsafe { Port::owned(endpoint) })
        };
        Ok(Arc::new(port.map_err(|error| {
            log::warning!(FI_LOG_EP_CTRL, "fi_enable: {error}");
            error.errno()
        })?))
    }

    /// Closes percale's endpoint when its last object is closed. Its operations end, and no results are read from it
    /// any more.
    fn release(&self) {
        let bound = std::mem::take(&mut *self.bound());
        if let Some(request) = bound.origin.request {
            requests::close_endpoint(request);
        }
        let Some(port) = self.port() else { return };
        if let Some(events) = bound.events {
            events.forget_endpoint(port.id());
        }
        for reports in [bound.transmit, bound.receive].into_iter().flatten() {
            reports.queue.detach(port);
        }
        for (_, counter) in bound.counters {
            counter.detach(port);
        }
        // Threads that drive the endpoint may still hold a reference to it, so it is closed explicitly.
        port.close();
    }
}

/// Adds a counter for the kinds of operations in `flags`.
fn with_counter<'d>(mut builder: EndpointBuilder<'d>, flags: u64, counter: &Counter) -> EndpointBuilder<'d> {
    let counted = |bit| flags & bit != 0;
    builder = if counted(FI_SEND) { builder.send_counter(counter) } else { builder };
    builder = if counted(FI_RECV) { builder.receive_counter(counter) } else { builder };
    builder = if counted(FI_READ) { builder.read_counter(counter) } else { builder };
    builder = if counted(FI_WRITE) { builder.write_counter(counter) } else { builder };
    builder = if counted(FI_REMOTE_READ) { builder.remote_read_counter(counter) } else { builder };
    if counted(FI_REMOTE_WRITE) { builder.remote_write_counter(counter) } else { builder }
}

/// Binds an object of a kind that can be bound only once.
fn once<T>(place: &mut Option<Arc<T>>, given: &Arc<T>, what: &str) -> Result<(), i32> {
    if place.is_some() {
        log::warning!(FI_LOG_EP_CTRL, "fi_ep_bind: one {what} is already bound to the endpoint");
        return Err(libc::EINVAL);
    }
    *place = Some(Arc::clone(given));
    Ok(())
}

//! What is bound to an endpoint, and its percale endpoint, opened when it is enabled.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use percale::Counted;
use percale::domain::KEY_LIMIT;
use percale::endpoint::connection::ConnectionRequest;

use super::flags::Direction;
use super::port::Port;
use super::scalable::Seat;
use super::shared::{ReceiveContext, Receives, TransmitContext, Transmits};
use super::{Endpoint, Wishes};
use crate::abi::{
    FI_EBADFLAGS, FI_ENOAV, FI_ENOCQ, FI_ENOEQ, FI_EOPBADSTATE, FI_EP_MSG, FI_EP_RDM, FI_LOG_EP_CTRL, FI_READ, FI_RECV,
    FI_REMOTE_READ, FI_REMOTE_WRITE, FI_SELECTIVE_COMPLETION, FI_SEND, FI_WRITE, fi_info, fid, fid_t,
};
use crate::counter::{self, Count};
use crate::domain;
use crate::events::{self, Events};
use crate::object::{Object, code};
use crate::passive::Request;
use crate::queue::{self, Queue};
use crate::vector::{self, Vector};
use crate::{address, log};

/// What the aliases of an endpoint share.
pub(crate) struct Setup {
    domain: Arc<domain::Shared>,
    /// FI_EP_
    kind: u32,
    /// It may join groups.
    groups: bool,
    bound: Mutex<Bound>,
    port: OnceLock<Arc<Port>>,
    /// What is done once percale's endpoint has its number.
    later: Mutex<Vec<Later>>,
    /// Regions count what peers write through it (FI_RMA_EVENT).
    region_events: bool,
    /// It is of a pair of contexts of a scalable endpoint.
    seat: Option<Seat>,
}

/// What was bound before the endpoint was enabled, and is held until it is closed.
#[derive(Default)]
struct Bound {
    source: Option<SocketAddr>,
    /// Whose connection request this endpoint takes.
    listener: Option<SocketAddr>,
    /// Where to connect to, if nobody says otherwise.
    destination: Option<SocketAddr>,
    /// The request that the endpoint was opened for.
    request: Option<ConnectionRequest>,
    vector: Option<Arc<vector::Shared>>,
    transmit: Option<Reports>,
    receive: Option<Reports>,
    counters: Vec<(u64, Arc<counter::Shared>)>,
    events: Option<Arc<events::Shared>>,
    multi_minimum: Option<usize>,
    shared_receive: Option<Arc<Receives>>,
    _shared_transmit: Option<Arc<Transmits>>,
    /// Its own authorization key, in the place of the domain's.
    authorization: Option<Vec<u8>>,
}

#[derive(Clone)]
struct Reports {
    queue: Arc<queue::Shared>,
    selective: bool,
}

/// What waits for an endpoint to be enabled; it is given the endpoint's number.
type Later = Box<dyn FnOnce(u64) -> Result<(), i32> + Send>;

/// What counters of endpoints count.
const COUNTED: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
/// A multi-receive buffer with less than this left is released, unless the client says otherwise.
pub(super) const MULTI_MINIMUM: usize = 64;

pub(super) unsafe extern "C" fn bind(ep: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: an endpoint of ours, and some open object of the client's.
    code(unsafe { Endpoint::of(ep).setup.bind(other, flags) })
}

/// The authorization key that an info has for its endpoint.
///
/// # Safety
/// It is as long as the info says.
pub(super) unsafe fn authorization(info: &fi_info) -> Option<Vec<u8>> {
    // SAFETY: null, or the info's attributes.
    let attr = unsafe { info.ep_attr.as_ref() }?;
    let (key, size) = (attr.auth_key, attr.auth_key_size);
    // SAFETY: promised by the caller.
    (!key.is_null() && (1..=KEY_LIMIT).contains(&size))
        .then(|| unsafe { std::slice::from_raw_parts(key, size) }.to_vec())
}

impl Setup {
    /// # Safety
    /// The info's addresses and keys are as long as it says, and its handle is null or an open object.
    pub(super) unsafe fn new(domain: &Arc<domain::Shared>, info: &fi_info, wishes: &Wishes) -> Self {
        // SAFETY: promised by the caller.
        let source = unsafe { address::read(info.src_addr, info.src_addrlen) };
        // SAFETY: promised by the caller.
        let destination = unsafe { address::read(info.dest_addr, info.dest_addrlen) };
        // SAFETY: promised by the caller.
        let request = unsafe { Request::take(info.handle) };
        // Who takes a connection has an address of its own, but is named as the listener is, as accepted sockets are: clients
        // compare these names.
        let listener = source.filter(|_| request.is_some());
        let source = listener.map_or(source, |listener| Some(SocketAddr::new(listener.ip(), 0)));
        // SAFETY: promised by the caller.
        let authorization = unsafe { authorization(info) };
        let bound = Bound { source, listener, destination, request, authorization, ..Bound::default() };
        Self {
            domain: Arc::clone(domain),
            kind: wishes.kind,
            groups: wishes.groups,
            bound: Mutex::new(bound),
            port: OnceLock::new(),
            later: Mutex::default(),
            region_events: wishes.region_events,
            seat: None,
        }
    }

    /// That of a pair of contexts.
    pub(super) fn of_context(domain: &Arc<domain::Shared>, seat: Seat) -> Self {
        let (bound, port, later) = (Mutex::default(), OnceLock::new(), Mutex::default());
        let region_events = seat.whole.region_events();
        let domain = Arc::clone(domain);
        Self { domain, kind: FI_EP_RDM, groups: false, bound, port, later, region_events, seat: Some(seat) }
    }

    pub(super) const fn seat(&self) -> Option<&Seat> {
        self.seat.as_ref()
    }

    /// percale's endpoint. Contexts of which only one is enabled are opened by the first operation.
    pub(super) fn opened(&self) -> Option<&Arc<Port>> {
        if self.port().is_none() && self.open_late().is_err() {
            return None;
        }
        self.port()
    }

    /// Opens contexts of which only one is enabled.
    pub(super) fn open_late(&self) -> Result<(), i32> {
        let begun = self.seat.as_ref().is_some_and(Seat::is_begun);
        if begun { self.enable(std::ptr::null_mut()) } else { Ok(()) }
    }

    fn bound(&self) -> MutexGuard<'_, Bound> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) const fn domain(&self) -> &Arc<domain::Shared> {
        &self.domain
    }

    /// percale's endpoint, once the endpoint is enabled.
    pub(crate) fn port(&self) -> Option<&Arc<Port>> {
        self.port.get()
    }

    /// The number of percale's endpoint; if that is not open yet, something is done once it is.
    pub(crate) fn id_or_later(&self, make: impl FnOnce() -> Later) -> Option<u64> {
        // The endpoint is opened under this lock.
        let _bound = self.bound();
        if let Some(port) = self.port() {
            return Some(port.id());
        }
        self.later.lock().unwrap_or_else(PoisonError::into_inner).push(make());
        None
    }

    /// Counts on an endpoint that is open.
    fn count_late(&self, port: &Arc<Port>, flags: u64, counter: &Arc<counter::Shared>) -> Result<(), i32> {
        port.count(Counted::from_bits_truncate(flags), &counter.percale).map_err(|error| {
            log::warning!(FI_LOG_EP_CTRL, "fi_ep_bind: {error}");
            error.errno()
        })?;
        counter.attach(port);
        Ok(())
    }

    /// The endpoint's address, once it has one.
    pub(super) fn name(&self) -> Option<SocketAddr> {
        let bound = self.bound();
        match (bound.listener, self.port()) {
            (Some(listener), Some(port)) if listener.ip().is_unspecified() => {
                Some(SocketAddr::new(port.address().ip(), listener.port()))
            }
            (Some(listener), _) => Some(listener),
            (None, Some(port)) => Some(port.address()),
            (None, None) => bound.source.filter(|address| address.port() != 0),
        }
    }

    /// Where the endpoint's events go.
    pub(crate) fn events(&self) -> Option<Arc<events::Shared>> {
        self.bound().events.clone()
    }

    /// Whether its vector is such.
    pub(crate) fn uses(&self, is: impl FnOnce(&Arc<vector::Shared>) -> bool) -> bool {
        self.bound().vector.as_ref().is_some_and(is)
    }

    /// Where to connect to, if nobody says otherwise.
    pub(super) fn destination(&self) -> Option<SocketAddr> {
        self.bound().destination
    }

    /// The request that the endpoint was opened for, once.
    pub(super) fn take_request(&self) -> Option<ConnectionRequest> {
        self.bound().request.take()
    }

    /// Fixes the address; false if it has one.
    pub(super) fn set_source(&self, address: SocketAddr) -> bool {
        self.bound().source = Some(address);
        self.port().is_none()
    }

    /// The room below which a multi-receive buffer is released.
    pub(super) fn multi_minimum(&self) -> usize {
        self.bound().multi_minimum.unwrap_or(MULTI_MINIMUM)
    }

    pub(super) fn set_multi_minimum(&self, bytes: usize) {
        self.bound().multi_minimum = Some(bytes);
        if let Some(port) = self.port() {
            port.set_multi_minimum(bytes);
        }
    }

    /// Tells an object's directions what they report.
    pub(super) fn directions(&self, transmit: &Direction, receive: &Direction) {
        let bound = self.bound();
        for (direction, reports) in [(transmit, &bound.transmit), (receive, &bound.receive)] {
            direction.bind(reports.is_some(), reports.as_ref().is_some_and(|reports| reports.selective));
        }
    }

    /// # Safety
    /// `other` is null or some open object of the client's.
    unsafe fn bind(&self, other: *mut fid, flags: u64) -> Result<(), i32> {
        let mut bound = self.bound();
        // SAFETY: promised by the caller.
        let counts = unsafe { Count::of_class(other) }.is_some();
        if self.port().is_some() && !counts {
            log::warning!(
                FI_LOG_EP_CTRL,
                "fi_ep_bind: the endpoint is enabled already: only counters are bound to it now"
            );
            return Err(FI_EOPBADSTATE);
        }
        // SAFETY: promised by the caller.
        if let Some(queue) = unsafe { Queue::of_class(other) } {
            if flags & !(FI_SEND | FI_RECV | FI_SELECTIVE_COMPLETION) != 0 || flags & (FI_SEND | FI_RECV) == 0 {
                log::warning!(
                    FI_LOG_EP_CTRL,
                    "fi_ep_bind: a completion queue is bound with FI_TRANSMIT, FI_RECV or both, not {flags:#x}"
                );
                return Err(FI_EBADFLAGS);
            }
            let reports =
                Reports { queue: Arc::clone(queue.shared()), selective: flags & FI_SELECTIVE_COMPLETION != 0 };
            for (bit, place) in [(FI_SEND, 0), (FI_RECV, 1)] {
                let place = if place == 0 { &mut bound.transmit } else { &mut bound.receive };
                if flags & bit != 0 && place.replace(reports.clone()).is_some() {
                    log::warning!(FI_LOG_EP_CTRL, "fi_ep_bind: the endpoint has a completion queue for this direction");
                    return Err(libc::EINVAL);
                }
            }
            return Ok(());
        }
        // SAFETY: promised by the caller.
        if let Some(vector) = unsafe { Vector::of_class(other) } {
            if bound.vector.replace(Arc::clone(vector.shared())).is_some() {
                log::warning!(FI_LOG_EP_CTRL, "fi_ep_bind: the endpoint has an address vector");
                return Err(libc::EINVAL);
            }
            return Ok(());
        }
        // SAFETY: promised by the caller.
        if let Some(counter) = unsafe { Count::of_class(other) } {
            if flags & !COUNTED != 0 || flags == 0 {
                log::warning!(
                    FI_LOG_EP_CTRL,
                    "fi_ep_bind: a counter counts sends, receives, reads and writes, not {flags:#x}"
                );
                return Err(FI_EBADFLAGS);
            }
            if bound.counters.iter().any(|(others, _)| others & flags != 0) {
                log::warning!(FI_LOG_EP_CTRL, "fi_ep_bind: the endpoint has a counter for some of {flags:#x}");
                return Err(libc::EINVAL);
            }
            if let Some(port) = self.port() {
                self.count_late(port, flags, counter.shared())?;
            }
            bound.counters.push((flags, Arc::clone(counter.shared())));
            return Ok(());
        }
        // SAFETY: promised by the caller.
        if let Some(events) = unsafe { Events::of_class(other) } {
            bound.events = Some(Arc::clone(events.shared()));
            return Ok(());
        }
        // SAFETY: promised by the caller.
        if let Some(context) = unsafe { ReceiveContext::of_class(other) } {
            bound.shared_receive = Some(Arc::clone(context.shared()));
            return Ok(());
        }
        // SAFETY: promised by the caller.
        if let Some(context) = unsafe { TransmitContext::of_class(other) } {
            bound._shared_transmit = Some(Arc::clone(context.shared()));
            return Ok(());
        }
        log::warning!(FI_LOG_EP_CTRL, "fi_ep_bind: objects of this class are not bound to endpoints");
        Err(libc::EINVAL)
    }

    /// Opens percale's endpoint (fi_enable(3)).
    pub(super) fn enable(&self, endpoint: fid_t) -> Result<(), i32> {
        if self.port().is_some() {
            return Ok(());
        }
        let mut bound = self.bound();
        if let (None, Some(seat)) = (&bound.vector, &self.seat) {
            bound.vector = Some(seat.whole.vector()?);
        }
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
        let direct = match (&bound.transmit, &bound.receive) {
            (Some(transmit), Some(receive)) => {
                Arc::ptr_eq(&transmit.queue, &receive.queue) && transmit.queue.takes_directly()
            }
            _ => false,
        };
        let mut builder = self.domain.percale.endpoint();
        if let Some(key) = &bound.authorization {
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
            let counted = |bit| flags & bit != 0;
            let counter = &counter.percale;
            builder = if counted(FI_SEND) { builder.send_counter(counter) } else { builder };
            builder = if counted(FI_RECV) { builder.receive_counter(counter) } else { builder };
            builder = if counted(FI_READ) { builder.read_counter(counter) } else { builder };
            builder = if counted(FI_WRITE) { builder.write_counter(counter) } else { builder };
            builder = if counted(FI_REMOTE_READ) { builder.remote_read_counter(counter) } else { builder };
            builder = if counted(FI_REMOTE_WRITE) { builder.remote_write_counter(counter) } else { builder };
        }
        let single = self.kind == FI_EP_MSG;
        if single {
            let Some(events) = &bound.events else {
                log::warning!(FI_LOG_EP_CTRL, "fi_enable: a connected endpoint needs an event queue; bind one");
                return Err(FI_ENOEQ);
            };
            builder = builder.event_queue(&events.percale);
        } else if self.groups
            && let Some(events) = &bound.events
        {
            builder = builder.event_queue(&events.percale);
        }
        builder = builder.region_counters(self.region_events);
        builder = builder.multi_receive_minimum(bound.multi_minimum.unwrap_or(MULTI_MINIMUM));
        let source = bound.source.unwrap_or_else(|| self.domain.wildcard());
        let whole = self.seat.as_ref().map(|seat| seat.whole.percale().map(|whole| (whole, seat.index))).transpose()?;
        let slept_on =
            [&bound.transmit, &bound.receive].into_iter().flatten().any(|reports| !reports.queue.takes_directly());
        let by_others = slept_on || self.groups && bound.events.is_some();
        // Reading an event queue drives connected endpoints, in whichever thread: queues belong to fabrics, not to domains, whose
        // use the client serializes.
        let port = if single {
            builder.bind_single_shared(source.to_string()).map(Port::of_all)
        } else if self.domain.serialized && !by_others {
            let opened = match &whole {
                Some((whole, index)) => whole.open(*index, builder),
                None => builder.bind(source.to_string()),
            };
            // SAFETY: the client serializes what it does with the endpoint and what that completes to.
            opened.map(|endpoint| unsafe { Port::owned(endpoint) })
        } else if let Some((whole, index)) = &whole {
            whole.open_shared(*index, builder).map(Port::of_all)
        } else {
            builder.bind_shared(source.to_string()).map(Port::of_all)
        };
        let port = Arc::new(port.map_err(|error| {
            log::warning!(FI_LOG_EP_CTRL, "fi_enable: {error}");
            error.errno()
        })?);
        for reports in [&bound.transmit, &bound.receive].into_iter().flatten() {
            if direct {
                reports.queue.attach(&port);
                break;
            }
            reports.queue.reported_to(&port);
        }
        for (_, counter) in &bound.counters {
            counter.attach(&port);
        }
        if single && let Some(events) = &bound.events {
            events.name_endpoint(port.id(), endpoint);
        }
        self.domain.opened(&port);
        let id = port.id();
        self.port.get_or_init(|| port);
        drop(bound);
        let later = std::mem::take(&mut *self.later.lock().unwrap_or_else(PoisonError::into_inner));
        later.into_iter().map(|later| later(id)).fold(Ok(()), Result::and)
    }

    /// The last object for the endpoint is closed: nothing is read from it any more.
    pub(super) fn release(&self) {
        let bound = std::mem::take(&mut *self.bound());
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
    }
}

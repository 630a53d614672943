//! `fid_ep`: an endpoint (fi_endpoint(3)).
//!
//! * [`setup`]: the objects that are bound to an endpoint, and enabling it, which opens percale's endpoint; [`origin`]:
//!   the addresses, the key and the handle that it is opened with
//! * [`objects`]: the endpoint and its aliases (closing the last of them releases the endpoint); [`drivers`]: the
//!   threads that may use it concurrently
//! * [`scalable`]: several contexts behind one address; [`context_slot`]: the part that these contexts share, and the
//!   place of each; [`halves`]: the tables of objects that only send or only receive
//! * [`shared`]: contexts that endpoints share; [`bare`]: objects with only a few of an endpoint's calls
//! * [`control`]: options, names, cancelling, aliases
//! * [`connection`]: the connection of an FI_EP_MSG endpoint
//! * [`message`], [`tagged`], [`rma`], [`atomic`]: the posting calls; [`calls`]: the macros that define them;
//!   [`described`]: posting calls that check descriptors first; [`trigger`]: operations that begin later;
//!   [`collective`]: the operations of groups; [`group`]: joining groups
//!
//! A posting call tests whether the endpoint is enabled, whether the operation is triggered and whether the endpoint
//! has a lock, and calls percale.

pub(crate) mod atomic;
mod atomic_valid;
mod bare;
mod calls;
mod client_message;
mod collective;
mod connection;
mod context_slot;
mod control;
mod described;
mod drivers;
mod flags;
mod group;
mod halves;
mod local;
pub(crate) mod message;
mod objects;
mod origin;
mod rma;
pub(crate) mod scalable;
mod setup;
pub(crate) mod shared;
mod tagged;
pub(crate) mod trigger;
mod windows;
mod xpu;

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use percale::{OpFlags, PeerAddress, PostError};

pub(crate) use self::atomic_valid::query;
pub(crate) use self::collective::query as query_collective;
use self::flags::Direction;
pub(crate) use self::setup::Setup;
pub(crate) use self::windows::Bound;
use crate::abi::{
    FI_CLASS_EP, FI_CLASS_RX_CTX, FI_CLASS_TX_CTX, FI_COLLECTIVE, FI_DIRECTED_RECV, FI_EBADFLAGS, FI_EOPBADSTATE,
    FI_EP_MSG, FI_EP_RDM, FI_LOG_EP_CTRL, FI_RMA_EVENT, FI_TRIGGER, FI_XPU, fi_addr_t, fi_info, fi_ops,
    fi_ops_collective, fi_ops_ep, fid, fid_domain, fid_ep,
};
use crate::domain::{self, Domain};
use crate::log;
use crate::object::{self, Object};
use crate::port::Port;

#[repr(C)]
pub(crate) struct Endpoint {
    fid: fid_ep,
    /// Set once the endpoint is enabled.
    port: OnceLock<Arc<Port>>,
    /// Set if a receive matches only messages from the source that it names. Otherwise it matches messages from any
    /// peer.
    directed: bool,
    /// Set if the endpoint has one peer, and the peer that an operation names is ignored.
    single: bool,
    /// Set if operations may wait for counters.
    triggers: bool,
    /// Set if devices may start operations.
    xpu: bool,
    /// Set if the endpoint may join groups.
    groups: bool,
    transmit: Direction,
    receive: Direction,
    setup: Arc<Setup>,
}

// SAFETY: the type is `repr(C)`, and `fid` is its first field.
unsafe impl Object for Endpoint {
    const CLASS: usize = FI_CLASS_EP;

    /// Also accepts contexts of scalable endpoints.
    unsafe fn of_class<'a>(pointer: *mut fid) -> Option<&'a Self> {
        // SAFETY: the caller guarantees this, and every object begins with a `fid`.
        let class = unsafe { pointer.as_ref() }?.fclass;
        // SAFETY: every object of this class has this type.
        matches!(class, FI_CLASS_EP | FI_CLASS_TX_CTX | FI_CLASS_RX_CTX).then(|| unsafe { Self::of(pointer) })
    }
}

/// The properties of an endpoint that an info requests.
#[derive(Clone, Copy, Debug)]
struct RequestedProperties {
    /// The endpoint type (`FI_EP_*`).
    kind: u32,
    /// A receive matches only messages from the source that it names.
    directed: bool,
    /// Set if operations may wait for counters.
    triggers: bool,
    /// Set if devices may start operations.
    xpu: bool,
    /// Set if the endpoint may join groups.
    groups: bool,
    /// Set if the endpoint counts the writes of peers for counters of regions (FI_RMA_EVENT).
    region_events: bool,
    /// The default flags of sends and receives.
    flags: [u64; 2],
}

impl RequestedProperties {
    /// Reads the properties. `call` names the function that the info was passed to.
    ///
    /// # Errors
    /// Returns the positive error code if there are unsupported default flags.
    ///
    /// # Safety
    /// The info is readable with everything that it points to.
    unsafe fn of(call: &str, info: &fi_info) -> Result<Self, i32> {
        // SAFETY: the caller guarantees this.
        let kind = unsafe { info.ep_attr.as_ref() }.map_or(FI_EP_RDM, |attr| attr.r#type);
        // SAFETY: the caller guarantees this.
        let transmit = unsafe { info.tx_attr.as_ref() };
        // SAFETY: the caller guarantees this.
        let receive = unsafe { info.rx_attr.as_ref() };
        let caps = receive.map_or(0, |attr| attr.caps) | info.caps;
        let flags = [transmit.map_or(0, |attr| attr.op_flags), receive.map_or(0, |attr| attr.op_flags)];
        flags::check(call, flags[0] | flags[1])?;
        Ok(Self {
            kind,
            directed: caps & FI_DIRECTED_RECV != 0 && kind != FI_EP_MSG,
            triggers: caps & FI_TRIGGER != 0,
            xpu: caps & FI_XPU != 0,
            groups: info.caps & FI_COLLECTIVE != 0 && kind == FI_EP_RDM,
            region_events: caps & FI_RMA_EVENT != 0,
            flags,
        })
    }

    /// Records in the domain that an endpoint with these properties is open.
    fn note(&self, domain: &domain::DomainShared) {
        if self.region_events {
            domain.rma_events.store(true, Ordering::Relaxed);
        }
    }
}

static FI: fi_ops =
    fi_ops { close: Some(close), bind: Some(setup::bind), control: Some(control::control), ..fi_ops::REFUSING };
static NO_COLLECTIVES: fi_ops_collective = fi_ops_collective::REFUSING;

/// Opens an endpoint.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    info: *mut fi_info,
    ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the pointer is a domain of this provider.
    let domain = unsafe { Domain::of(domain) }.shared();
    // SAFETY: the pointer is null or the client's.
    let Some(info) = (unsafe { info.as_ref() }) else { return -libc::EINVAL };
    // SAFETY: an info is readable with everything that it points to.
    let wishes = match unsafe { RequestedProperties::of("fi_endpoint: op_flags", info) } {
        Ok(wishes) => wishes,
        Err(code) => return -code,
    };
    let kind = wishes.kind;
    if kind != FI_EP_RDM && kind != FI_EP_MSG {
        log::warning!(
            FI_LOG_EP_CTRL,
            "fi_endpoint: endpoint type {kind} is not supported (FI_EP_RDM and FI_EP_MSG are)"
        );
        return -libc::EINVAL;
    }
    // SAFETY: the addresses of an info have the stated lengths.
    let setup = match unsafe { Setup::new(domain, info, &wishes) } {
        Ok(setup) => Arc::new(setup),
        Err(code) => return -code,
    };
    wishes.note(domain);
    Endpoint::new(FI_CLASS_EP, context, &control::OPS, wishes, setup).hand_out(ep)
}

/// Like [`open`], with flags; no flags are supported.
pub(crate) unsafe extern "C" fn open_flagged(
    domain: *mut fid_domain,
    info: *mut fi_info,
    ep: *mut *mut fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        log::warning!(FI_LOG_EP_CTRL, "fi_endpoint2: flags {flags:#x} are not supported");
        return -FI_EBADFLAGS;
    }
    // SAFETY: the caller upholds the same contract.
    unsafe { open(domain, info, ep, context) }
}

unsafe extern "C" fn close(ep: *mut fid) -> c_int {
    // SAFETY: the pointer is an endpoint of this provider.
    let endpoint = unsafe { Endpoint::of(ep) };
    if let Err(code) = endpoint.setup.close_object(ep) {
        return -code;
    }
    // SAFETY: `hand_out` created the pointer from a box, and the client no longer uses it.
    drop(unsafe { Box::from_raw(ep.cast::<Endpoint>()) });
    0
}

/// Converts the result of a post to libfabric's return value.
#[inline]
fn answer(result: Result<(), PostError>) -> isize {
    match result {
        Ok(()) => 0,
        Err(error) => refusal(&error),
    }
}

#[cold]
fn refusal(error: &PostError) -> isize {
    if !matches!(error, PostError::Again) {
        log::warning!(FI_LOG_EP_CTRL, "an operation was not posted: {error}");
    }
    -(error.errno() as isize)
}

#[cold]
fn unsupported(flags: u64) -> isize {
    log::warning!(FI_LOG_EP_CTRL, "an operation was not posted: unsupported flags {flags:#x}");
    -(FI_EBADFLAGS as isize)
}

impl Endpoint {
    fn new(
        class: usize,
        context: *mut c_void,
        ops: &'static fi_ops_ep,
        wishes: RequestedProperties,
        setup: Arc<Setup>,
    ) -> Self {
        let local = setup.domain().regions.local;
        let groups = wishes.groups && class == FI_CLASS_EP;
        let devices = setup.domain().devices;
        let tables = halves::tables(setup.half(), local);
        Self {
            fid: fid_ep {
                fid: object::head(class, context, &FI),
                ops: std::ptr::from_ref(ops).cast_mut(),
                cm: std::ptr::from_ref(&control::CM).cast_mut(),
                msg: std::ptr::from_ref(tables.messages).cast_mut(),
                rma: std::ptr::from_ref(tables.rma).cast_mut(),
                tagged: std::ptr::from_ref(tables.tagged).cast_mut(),
                atomic: std::ptr::from_ref(tables.atomic).cast_mut(),
                collective: std::ptr::from_ref(if groups { &collective::OPS } else { &NO_COLLECTIVES }).cast_mut(),
            },
            port: OnceLock::new(),
            directed: wishes.directed,
            single: wishes.kind == FI_EP_MSG,
            triggers: wishes.triggers,
            xpu: wishes.xpu,
            groups,
            transmit: Direction::new(wishes.flags[0], devices),
            receive: Direction::new(wishes.flags[1], devices),
            setup,
        }
    }

    /// Implements fi_enable(3).
    fn enable(&self) -> Result<(), i32> {
        self.setup.enable()?;
        if let Err(refused) = self.port() {
            log::note!(FI_LOG_EP_CTRL, "an enabled endpoint has no port: {refused}");
        }
        Ok(())
    }

    /// Returns the state that the aliases of the endpoint share.
    pub(crate) const fn setup(&self) -> &Arc<Setup> {
        &self.setup
    }

    fn hand_out(self, ep: *mut *mut fid_ep) -> c_int {
        let setup = Arc::clone(&self.setup);
        let object = Box::into_raw(Box::new(self));
        if !setup.add_object(object.cast()) {
            // SAFETY: the object was just created, and no other pointer to it exists.
            drop(unsafe { Box::from_raw(object) });
            return -FI_EOPBADSTATE; // Another thread has closed the endpoint at the same time.
        }
        // SAFETY: the client passed a writable location for the endpoint.
        unsafe { ep.write(object.cast()) };
        0
    }

    /// Returns percale's endpoint.
    #[inline]
    fn port(&self) -> Result<&Port, isize> {
        match self.port.get() {
            Some(port) => Ok(port),
            None => self.late_port(),
        }
    }

    /// Returns percale's endpoint to an alias that was created before the endpoint was enabled.
    #[cold]
    fn late_port(&self) -> Result<&Port, isize> {
        let Some(port) = self.setup.port() else {
            log::warning!(FI_LOG_EP_CTRL, "an operation was posted to an endpoint that is not enabled");
            return Err(-(FI_EOPBADSTATE as isize));
        };
        self.setup.directions(&self.transmit, &self.receive);
        Ok(self.port.get_or_init(|| Arc::clone(port)))
    }

    /// Returns the default flags of sends and accesses.
    #[inline]
    fn own_transmit(&self) -> OpFlags {
        self.is_ready();
        self.transmit.own()
    }

    /// Returns the default flags of receives.
    #[inline]
    fn own_receive(&self) -> OpFlags {
        self.is_ready();
        self.receive.own()
    }

    /// Returns whether operations can be posted. Before that, the directions do not have their completion options.
    #[inline]
    fn is_ready(&self) -> bool {
        self.port.get().is_some() || self.setup.port().is_some() && self.late_port().is_ok()
    }

    /// Returns percale's flags for the flags of a send or an access.
    #[inline]
    fn transmit_flags(&self, flags: u64) -> Result<OpFlags, isize> {
        self.is_ready();
        self.transmit.flags(flags).ok_or_else(|| unsupported(flags))
    }

    /// Returns percale's flags for the flags of a receive.
    #[inline]
    fn receive_flags(&self, flags: u64) -> Result<OpFlags, isize> {
        self.is_ready();
        self.receive.flags(flags).ok_or_else(|| unsupported(flags))
    }

    /// Returns the peer of an operation.
    #[inline]
    const fn peer(&self, named: fi_addr_t) -> PeerAddress {
        if self.single { PeerAddress(0) } else { PeerAddress(named) }
    }

    /// Returns the peers from which a receive accepts messages.
    #[inline]
    const fn from(&self, source: fi_addr_t) -> PeerAddress {
        if self.directed { PeerAddress(source) } else { PeerAddress::UNSPECIFIED }
    }
}

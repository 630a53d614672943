//! `fid_ep`: an endpoint (fi_endpoint(3)).
//!
//! * [`setup`]: the objects bound to it, and enabling it, which opens percale's endpoint; [`origin`]: the addresses, key and handle that it is opened
//!   with
//! * [`objects`]: it and its aliases; the last one releases it; [`drivers`]: the threads that may use it at once
//! * [`scalable`]: several of them behind one address; [`seat`]: what these share, and the place of each; [`halves`]: tables of those that only send
//!   or only receive
//! * [`shared`]: contexts that endpoints share; [`bare`]: objects that have few of an endpoint's calls
//! * [`control`]: options, names, cancelling, aliases
//! * [`connection`]: that of an endpoint of one connection
//! * [`message`], [`tagged`], [`rma`], [`atomic`]: the calls that post; [`calls`]: macros that define them; [`described`]: those that check descriptions first; [`trigger`]: their
//!   operations that begin later; [`collective`]: the operations of groups; [`group`]: joining these
//!
//! Posting takes one branch on whether the endpoint is enabled, one on whether it has a lock, and percale's call.

pub(crate) mod atomic;
mod atomic_valid;
mod bare;
mod calls;
mod client_message;
mod collective;
mod connection;
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
mod seat;
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
    /// There once the endpoint is enabled.
    port: OnceLock<Arc<Port>>,
    /// Receives take messages only from the source that they name; otherwise from any peer.
    directed: bool,
    /// It has one peer, whatever operations name.
    single: bool,
    /// Operations may wait for counters.
    triggers: bool,
    /// Devices may start operations.
    xpu: bool,
    /// It may join groups.
    groups: bool,
    transmit: Direction,
    receive: Direction,
    setup: Arc<Setup>,
}

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Object for Endpoint {
    const CLASS: usize = FI_CLASS_EP;

    /// Contexts of scalable endpoints are endpoints as well.
    unsafe fn of_class<'a>(pointer: *mut fid) -> Option<&'a Self> {
        // SAFETY: promised by the caller; every object begins with a `fid`.
        let class = unsafe { pointer.as_ref() }?.fclass;
        // SAFETY: an object of this class has this type.
        matches!(class, FI_CLASS_EP | FI_CLASS_TX_CTX | FI_CLASS_RX_CTX).then(|| unsafe { Self::of(pointer) })
    }
}

/// The properties that an info requests of endpoints.
#[derive(Clone, Copy, Debug)]
struct Wishes {
    /// FI_EP_
    kind: u32,
    /// Receives take messages only from the source that they name.
    directed: bool,
    /// Operations may wait for counters.
    triggers: bool,
    /// Devices may start operations.
    xpu: bool,
    /// It may join groups.
    groups: bool,
    /// Counters of regions count what peers write through it (FI_RMA_EVENT).
    region_events: bool,
    /// Default flags of sends and receives.
    flags: [u64; 2],
}

impl Wishes {
    /// Reads them; `call` names the function that the info was passed to.
    ///
    /// # Errors
    /// The positive code, if there are default flags that no operation can have.
    ///
    /// # Safety
    /// The info is readable with all it points to.
    unsafe fn of(call: &str, info: &fi_info) -> Result<Self, i32> {
        // SAFETY: promised by the caller.
        let kind = unsafe { info.ep_attr.as_ref() }.map_or(FI_EP_RDM, |attr| attr.r#type);
        // SAFETY: promised by the caller.
        let transmit = unsafe { info.tx_attr.as_ref() };
        // SAFETY: promised by the caller.
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

    /// Records that an endpoint with these is open.
    fn note(&self, domain: &domain::Shared) {
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
    // SAFETY: a domain of ours.
    let domain = unsafe { Domain::of(domain) }.shared();
    // SAFETY: null, or the client's.
    let Some(info) = (unsafe { info.as_ref() }) else { return -libc::EINVAL };
    // SAFETY: an info is readable with all it points to.
    let wishes = match unsafe { Wishes::of("fi_endpoint: op_flags", info) } {
        Ok(wishes) => wishes,
        Err(code) => return -code,
    };
    let kind = wishes.kind;
    if kind != FI_EP_RDM && kind != FI_EP_MSG {
        log::warning!(FI_LOG_EP_CTRL, "fi_endpoint: there are endpoints of types FI_EP_RDM and FI_EP_MSG, not {kind}");
        return -libc::EINVAL;
    }
    // SAFETY: an info's addresses are as long as it says.
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
    // SAFETY: passed on.
    unsafe { open(domain, info, ep, context) }
}

unsafe extern "C" fn close(ep: *mut fid) -> c_int {
    // SAFETY: an endpoint of ours.
    let endpoint = unsafe { Endpoint::of(ep) };
    if let Err(code) = endpoint.setup.close_object(ep) {
        return -code;
    }
    // SAFETY: `give` made it of a box, and the client gives it up.
    drop(unsafe { Box::from_raw(ep.cast::<Endpoint>()) });
    0
}

/// A result as libfabric returns it.
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
    log::warning!(FI_LOG_EP_CTRL, "an operation was not posted: its flags {flags:#x} are not all supported");
    -(FI_EBADFLAGS as isize)
}

impl Endpoint {
    fn new(class: usize, context: *mut c_void, ops: &'static fi_ops_ep, wishes: Wishes, setup: Arc<Setup>) -> Self {
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

    /// fi_enable(3).
    fn enable(&self) -> Result<(), i32> {
        self.setup.enable()?;
        if let Err(refused) = self.port() {
            log::note!(FI_LOG_EP_CTRL, "an enabled endpoint without a port: {refused}");
        }
        Ok(())
    }

    /// What its aliases share.
    pub(crate) const fn setup(&self) -> &Arc<Setup> {
        &self.setup
    }

    fn hand_out(self, ep: *mut *mut fid_ep) -> c_int {
        let setup = Arc::clone(&self.setup);
        let object = Box::into_raw(Box::new(self));
        if !setup.add_object(object.cast()) {
            // SAFETY: just made, and no other pointer to it exists.
            drop(unsafe { Box::from_raw(object) });
            return -FI_EOPBADSTATE; // Its endpoint is closed at once by another thread.
        }
        // SAFETY: the client wants the endpoint there.
        unsafe { ep.write(object.cast()) };
        0
    }

    /// percale's endpoint.
    #[inline]
    fn port(&self) -> Result<&Port, isize> {
        match self.port.get() {
            Some(port) => Ok(port),
            None => self.late_port(),
        }
    }

    /// An alias made before the endpoint was enabled finds it here.
    #[cold]
    fn late_port(&self) -> Result<&Port, isize> {
        let Some(port) = self.setup.port() else {
            log::warning!(FI_LOG_EP_CTRL, "an operation was posted to an endpoint that is not enabled");
            return Err(-(FI_EOPBADSTATE as isize));
        };
        self.setup.directions(&self.transmit, &self.receive);
        Ok(self.port.get_or_init(|| Arc::clone(port)))
    }

    /// The flags of sends and accesses that have none of their own.
    #[inline]
    fn own_transmit(&self) -> OpFlags {
        self.is_ready();
        self.transmit.own()
    }

    /// The flags of receives that have none of their own.
    #[inline]
    fn own_receive(&self) -> OpFlags {
        self.is_ready();
        self.receive.own()
    }

    /// Whether operations can be posted. Until then the directions do not know which completions they report.
    #[inline]
    fn is_ready(&self) -> bool {
        self.port.get().is_some() || self.setup.port().is_some() && self.late_port().is_ok()
    }

    /// percale's flags for those of a send's or an access' call.
    #[inline]
    fn transmit_flags(&self, flags: u64) -> Result<OpFlags, isize> {
        self.is_ready();
        self.transmit.flags(flags).ok_or_else(|| unsupported(flags))
    }

    /// percale's flags for those of a receive's call.
    #[inline]
    fn receive_flags(&self, flags: u64) -> Result<OpFlags, isize> {
        self.is_ready();
        self.receive.flags(flags).ok_or_else(|| unsupported(flags))
    }

    /// The peer that an operation is for.
    #[inline]
    const fn peer(&self, named: fi_addr_t) -> PeerAddress {
        if self.single { PeerAddress(0) } else { PeerAddress(named) }
    }

    /// The peers from which a receive takes messages.
    #[inline]
    const fn from(&self, source: fi_addr_t) -> PeerAddress {
        if self.directed { PeerAddress(source) } else { PeerAddress::UNSPECIFIED }
    }
}

//! Scalable endpoints: `fi_scalable_ep`, `fi_tx_context`, `fi_rx_context` (fi_endpoint(3)).
//!
//! Receive context i is context i of percale's scalable endpoint, and transmit context i is its sender i. Each is a
//! separate percale endpoint, which is opened when the context is enabled and closed with the context. The two share
//! only the address and the address vector: different threads may use them, each has its own completion queues and
//! counters, and closing one does not affect the other.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use percale::endpoint::scalable::CONTEXT_LIMIT;

use super::bare::bare;
use super::context_slot::{ContextSlot, EndpointKind, ScalableParts, ScalableState};
use super::{Endpoint, RequestedProperties, Setup, control, flags, origin};
use crate::abi::{
    FI_CLASS_RX_CTX, FI_CLASS_SEP, FI_CLASS_TX_CTX, FI_ENABLE, FI_EOPBADSTATE, FI_EP_RDM, FI_EP_UNSPEC, FI_ETOOSMALL,
    FI_LOG_EP_CTRL, fi_info, fi_ops, fi_ops_cm, fi_ops_ep, fi_rx_attr, fi_tx_attr, fid, fid_domain, fid_ep, fid_t,
};
use crate::address::{self, SocketAddress};
use crate::domain::Domain;
use crate::events::Events;
use crate::log;
use crate::object::{Object, code};
use crate::vector::Vector;

#[repr(C)]
pub(crate) struct Scalable {
    fid: fid_ep,
    wishes: RequestedProperties,
    /// The shared part, which the contexts also hold.
    whole: Arc<ScalableParts>,
    /// The setups of the open contexts, by half and index.
    setups: Mutex<[Vec<Weak<Setup>>; 2]>,
}

impl Scalable {
    fn setups(&self) -> MutexGuard<'_, [Vec<Weak<Setup>>; 2]> {
        self.setups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the setup of a context. It exists already if an object for the context is open.
    fn setup(&self, half: EndpointKind, index: u16) -> Arc<Setup> {
        let place = (usize::from(half == EndpointKind::Receive), usize::from(index));
        let known = self.setups()[place.0][place.1].upgrade();
        // The check takes a lock of the setup. The lock of `setups` is not held here.
        if let Some(setup) = known.filter(|setup| !setup.is_closed()) {
            return setup;
        }
        let context_slot = ContextSlot { whole: Arc::clone(&self.whole), half, index };
        let setup = Arc::new(Setup::of_context(&self.whole.domain, &self.wishes, context_slot));
        self.setups()[place.0][place.1] = Arc::downgrade(&setup);
        setup
    }
}

// SAFETY: the type is `repr(C)`, and `fid` is its first field.
unsafe impl Object for Scalable {
    const CLASS: usize = FI_CLASS_SEP;
}

static FI: fi_ops =
    fi_ops { close: Some(close), bind: Some(bind), control: Some(control_scalable), ..fi_ops::REFUSING };
static OPS: fi_ops_ep = fi_ops_ep { tx_ctx: Some(tx_context), rx_ctx: Some(rx_context), ..fi_ops_ep::REFUSING };
static CM: fi_ops_cm = fi_ops_cm { setname: Some(setname), getname: Some(getname), ..fi_ops_cm::REFUSING };

/// Returns the requested number of contexts, or `None` if the number is too large.
fn count(requested: usize) -> Option<u16> {
    u16::try_from(requested.max(1)).ok().filter(|count| *count <= CONTEXT_LIMIT)
}

/// Opens a scalable endpoint (fi_scalable_ep).
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    info: *mut fi_info,
    sep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the pointer is a domain of this provider.
    let domain = unsafe { Domain::of(domain) }.shared();
    // SAFETY: the pointer is null or the client's.
    let Some(info) = (unsafe { info.as_ref() }) else { return -libc::EINVAL };
    // SAFETY: as above.
    let attr = unsafe { info.ep_attr.as_ref() };
    if attr.is_some_and(|attr| attr.r#type != FI_EP_RDM && attr.r#type != FI_EP_UNSPEC) {
        log::warning!(FI_LOG_EP_CTRL, "fi_scalable_ep: scalable endpoints must have type FI_EP_RDM");
        return -libc::EINVAL;
    }
    let requested = attr.map_or([1, 1], |attr| [attr.tx_ctx_cnt, attr.rx_ctx_cnt]);
    let [Some(transmit), Some(receive)] = requested.map(count) else {
        log::warning!(
            FI_LOG_EP_CTRL,
            "fi_scalable_ep: {requested:?} contexts requested; must be 1 to {CONTEXT_LIMIT} of each kind"
        );
        return -libc::EINVAL;
    };
    // SAFETY: an info is readable with everything that it points to.
    let (wishes, authorization) = match unsafe {
        (RequestedProperties::of("fi_scalable_ep: op_flags", info), origin::authorization_of("fi_scalable_ep", info))
    } {
        (Ok(wishes), Ok(authorization)) => (wishes, authorization),
        (Err(code), _) | (_, Err(code)) => return -code,
    };
    // SAFETY: as above.
    let source = unsafe { address::read(info.src_addr, info.src_addrlen) };
    let setups = [transmit, receive].map(|count| (0..count).map(|_| Weak::new()).collect());
    wishes.note(domain);
    let whole = Arc::new(ScalableParts {
        domain: Arc::clone(domain),
        authorization,
        counts: [transmit, receive],
        state: Mutex::new(ScalableState { source, vector: None, percale: None }),
    });
    let fid = fid_ep { cm: std::ptr::from_ref(&CM).cast_mut(), ..bare(FI_CLASS_SEP, context, &FI, &OPS) };
    // SAFETY: the client passed a writable location.
    unsafe { Scalable { fid, wishes, whole, setups: Mutex::new(setups) }.give(sep) };
    0
}

unsafe extern "C" fn close(sep: fid_t) -> c_int {
    // SAFETY: the pointer is an endpoint of this provider, and the client no longer uses it.
    unsafe { Scalable::close(sep, |scalable| &scalable.whole) }
}

/// Binds an address vector for all contexts. An event queue is accepted, but there are no events for it.
unsafe extern "C" fn bind(sep: fid_t, other: *mut fid, _flags: u64) -> c_int {
    // SAFETY: the pointer is a scalable endpoint of this provider.
    let whole = &unsafe { Scalable::of(sep) }.whole;
    // SAFETY: the client passed an open object.
    if let Some(vector) = unsafe { Vector::of_class(other) } {
        if !Arc::ptr_eq(vector.shared().domain(), &whole.domain) {
            log::warning!(FI_LOG_EP_CTRL, "fi_scalable_ep_bind: the address vector belongs to another domain");
            return -libc::EINVAL;
        }
        let mut state = whole.state();
        if state.vector.is_some() {
            log::warning!(FI_LOG_EP_CTRL, "fi_scalable_ep_bind: the endpoint already has an address vector");
            return -libc::EINVAL;
        }
        state.vector = Some(Arc::clone(vector.shared()));
        return 0;
    }
    // SAFETY: as above.
    if let Some(events) = unsafe { Events::of_class(other) } {
        return if events.shared().is_of(&whole.domain.fabric) { 0 } else { -libc::EINVAL };
    }
    log::warning!(FI_LOG_EP_CTRL, "fi_scalable_ep_bind: only address vectors can be bound to scalable endpoints");
    -libc::EINVAL
}

unsafe extern "C" fn control_scalable(sep: fid_t, command: c_int, _argument: *mut c_void) -> c_int {
    // SAFETY: the pointer is a scalable endpoint of this provider.
    let whole = &unsafe { Scalable::of(sep) }.whole;
    if command == FI_ENABLE { code(whole.enable()) } else { -libc::ENOSYS }
}

unsafe extern "C" fn setname(sep: fid_t, address: *mut c_void, len: usize) -> c_int {
    // SAFETY: the pointer is a scalable endpoint of this provider, and the address is valid.
    let (scalable, address) = unsafe { (Scalable::of(sep), address::read(address, len)) };
    let Some(address) = address else { return -libc::EINVAL };
    let mut state = scalable.whole.state();
    if state.percale.is_some() {
        return -FI_EOPBADSTATE;
    }
    state.source = Some(address);
    0
}

unsafe extern "C" fn getname(sep: fid_t, to: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: the pointer is a scalable endpoint of this provider.
    match (unsafe { Scalable::of(sep) }).whole.percale() {
        // SAFETY: the client's buffer has the length that the client passed.
        Ok(percale) if unsafe { SocketAddress::from(percale.address()).copy(to, len) } => 0,
        Ok(_) => -FI_ETOOSMALL,
        Err(code) => -code,
    }
}

unsafe extern "C" fn tx_context(
    sep: *mut fid_ep,
    index: c_int,
    attr: *mut fi_tx_attr,
    ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the pointer is null or the client's attributes.
    let flags = unsafe { attr.as_ref() }.map(|attr| attr.op_flags);
    // SAFETY: the caller upholds the same contract.
    unsafe { open_context(sep, index, (FI_CLASS_TX_CTX, flags), ep, context) }
}

unsafe extern "C" fn rx_context(
    sep: *mut fid_ep,
    index: c_int,
    attr: *mut fi_rx_attr,
    ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the pointer is null or the client's attributes.
    let flags = unsafe { attr.as_ref() }.map(|attr| attr.op_flags);
    // SAFETY: the caller upholds the same contract.
    unsafe { open_context(sep, index, (FI_CLASS_RX_CTX, flags), ep, context) }
}

/// Opens a context, or another object for an open one.
///
/// # Safety
/// `sep` is an endpoint of this provider, and `ep` is writable.
unsafe fn open_context(
    sep: *mut fid_ep,
    index: c_int,
    (class, flags): (usize, Option<u64>),
    ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller guarantees this. Endpoints of other types have other tables.
    let scalable = unsafe { Scalable::of(sep) };
    let counts = scalable.whole.counts;
    let half = if class == FI_CLASS_RX_CTX { EndpointKind::Receive } else { EndpointKind::Transmit };
    let at = usize::from(half == EndpointKind::Receive);
    let Some(index) = u16::try_from(index).ok().filter(|index| *index < counts[at]) else {
        log::warning!(
            FI_LOG_EP_CTRL,
            "context {index} does not exist: the endpoint has {counts:?} contexts of each kind"
        );
        return -libc::EINVAL;
    };
    let mut wishes = scalable.wishes;
    wishes.flags[at] = flags.unwrap_or(wishes.flags[at]);
    if let Err(code) = flags::check("a context's op_flags", wishes.flags[at]) {
        return -code;
    }
    let setup = scalable.setup(half, index);
    Endpoint::new(class, context, &control::OPS, wishes, setup).hand_out(ep)
}

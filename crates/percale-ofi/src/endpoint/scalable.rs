//! Scalable endpoints: `fi_scalable_ep`, `fi_tx_context`, `fi_rx_context` (fi_endpoint(3)).
//!
//! Receive context i is context i of percale's scalable endpoint, and transmit context i is its sender i: each is a percale endpoint of its own,
//! which is opened when the context is enabled and closed with it. So the two share nothing: different threads may use them, each with its own
//! completion queues and counters, and closing one ends nothing of the other.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use percale::endpoint::BindError;
use percale::endpoint::scalable::CONTEXT_LIMIT;
use percale::{EndpointBuilder, ScalableEndpoint};

use super::port::Port;
use super::{Endpoint, Setup, Wishes, control, flags, origin};
use crate::abi::{
    FI_CLASS_RX_CTX, FI_CLASS_SEP, FI_CLASS_TX_CTX, FI_EBADFLAGS, FI_ENABLE, FI_ENOAV, FI_EOPBADSTATE, FI_EP_RDM,
    FI_EP_UNSPEC, FI_ETOOSMALL, FI_LOG_EP_CTRL, FI_READ, FI_RECV, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_SEND, FI_WRITE,
    fi_info, fi_ops, fi_ops_atomic, fi_ops_cm, fi_ops_collective, fi_ops_ep, fi_ops_msg, fi_ops_rma, fi_ops_tagged,
    fi_rx_attr, fi_tx_attr, fid, fid_domain, fid_ep, fid_t,
};
use crate::address::{self, Native};
use crate::domain::{self, Domain};
use crate::events::Events;
use crate::log;
use crate::object::{self, Object, code};
use crate::vector::{self, Vector};

/// The state that the contexts of an endpoint share.
pub(crate) struct Shared {
    domain: Arc<domain::Shared>,
    wishes: Wishes,
    authorization: Option<Vec<u8>>,
    /// How many transmit and receive contexts there are.
    counts: [u16; 2],
    state: Mutex<State>,
}

struct State {
    source: Option<SocketAddr>,
    vector: Option<Arc<vector::Shared>>,
    /// The open contexts, by half and index.
    setups: [Vec<Weak<Setup>>; 2],
    percale: Option<ScalableEndpoint>,
}

/// The kind of an endpoint: a whole one, or one of the contexts of a scalable endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    /// It sends and receives.
    Both,
    /// It sends and accesses peers' memory.
    Transmit,
    /// It receives, and peers access memory through it.
    Receive,
}

impl Half {
    /// Rejects flags of bindings that belong to the other half.
    pub(super) fn allows(self, flags: u64) -> Result<(), i32> {
        let others = match self {
            Self::Both => 0,
            Self::Transmit => FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE,
            Self::Receive => FI_SEND | FI_READ | FI_WRITE,
        };
        if flags & others == 0 {
            return Ok(());
        }
        log::warning!(
            FI_LOG_EP_CTRL,
            "fi_ep_bind: {self:?} context: nothing is bound to it with {:#x}",
            flags & others
        );
        Err(FI_EBADFLAGS)
    }

    /// Whether operations that receive, or that do not, can be posted to it.
    pub(crate) fn posts(self, receives: bool) -> bool {
        self == Self::Both || receives == (self == Self::Receive)
    }
}

/// A context of a scalable endpoint.
pub(super) struct Seat {
    pub(super) whole: Arc<Shared>,
    pub(super) half: Half,
    index: u16,
}

impl Seat {
    /// Opens percale's endpoint.
    ///
    /// # Errors
    /// The positive code, if the scalable endpoint cannot be opened; otherwise percale's reason.
    pub(super) fn open(&self, builder: EndpointBuilder<'_>, locked: bool) -> Result<Result<Port, BindError>, i32> {
        let whole = self.whole.percale()?;
        let sends = self.half == Half::Transmit;
        Ok(if locked {
            let opened = match sends {
                true => whole.open_sender_shared(self.index, builder),
                false => whole.open_shared(self.index, builder),
            };
            opened.map(Port::of_all)
        } else {
            let opened = match sends {
                true => whole.open_sender(self.index, builder),
                false => whole.open(self.index, builder),
            };
            // SAFETY: the client serializes what it does with the context, and with all that drives it (`drivers`).
            opened.map(|endpoint| unsafe { Port::owned(endpoint) })
        })
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The vector that was bound.
    pub(super) fn vector(&self) -> Result<Arc<vector::Shared>, i32> {
        self.state().vector.clone().ok_or_else(|| {
            log::warning!(FI_LOG_EP_CTRL, "fi_enable: a scalable endpoint needs an address vector; bind one");
            FI_ENOAV
        })
    }

    /// percale's, at its address.
    pub(super) fn percale(&self) -> Result<ScalableEndpoint, i32> {
        let mut state = self.state();
        if let Some(percale) = &state.percale {
            return Ok(percale.clone());
        }
        let source = state.source.unwrap_or_else(|| self.domain.wildcard());
        let [transmit, receive] = self.counts;
        let builder = self.domain.percale.scalable_endpoint();
        let mut builder = builder.contexts(receive).senders(transmit);
        if let Some(key) = &self.authorization {
            builder = builder.authorization_key(key.clone());
        }
        let percale = builder.bind(source.to_string()).map_err(|error| {
            log::warning!(FI_LOG_EP_CTRL, "fi_enable: {error}");
            error.errno()
        })?;
        Ok(state.percale.insert(percale).clone())
    }

    /// Returns the setup of a context; it exists already if an object for the context is open.
    fn setup(self: &Arc<Self>, half: Half, index: u16) -> Arc<Setup> {
        let place = (usize::from(half == Half::Receive), usize::from(index));
        let known = self.state().setups[place.0][place.1].upgrade();
        // Checked without the lock, which setups take while they hold their own.
        if let Some(setup) = known.filter(|setup| !setup.is_closed()) {
            return setup;
        }
        let seat = Seat { whole: Arc::clone(self), half, index };
        let setup = Arc::new(Setup::of_context(&self.domain, &self.wishes, seat));
        self.state().setups[place.0][place.1] = Arc::downgrade(&setup);
        setup
    }

    /// Takes the address (fi_enable(3)).
    fn enable(&self) -> Result<(), i32> {
        self.vector()?;
        self.percale().map(drop)
    }
}

#[repr(C)]
pub(crate) struct Scalable {
    fid: fid_ep,
    shared: Arc<Shared>,
}

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Object for Scalable {
    const CLASS: usize = FI_CLASS_SEP;
}

static FI: fi_ops = fi_ops { close: Some(close), bind: Some(bind), control: Some(control_whole), ..fi_ops::REFUSING };
static OPS: fi_ops_ep = fi_ops_ep { tx_ctx: Some(tx_context), rx_ctx: Some(rx_context), ..fi_ops_ep::REFUSING };
static CM: fi_ops_cm = fi_ops_cm { setname: Some(setname), getname: Some(getname), ..fi_ops_cm::REFUSING };
pub(super) static MESSAGES: fi_ops_msg = fi_ops_msg::REFUSING;
pub(super) static TAGGED: fi_ops_tagged = fi_ops_tagged::REFUSING;
pub(super) static RMA: fi_ops_rma = fi_ops_rma::REFUSING;
pub(super) static ATOMIC: fi_ops_atomic = fi_ops_atomic::REFUSING;
pub(super) static COLLECTIVE: fi_ops_collective = fi_ops_collective::REFUSING;

/// Makes an endpoint that has only the named parts.
pub(super) fn bare(class: usize, context: *mut c_void, fi: &'static fi_ops, ops: &'static fi_ops_ep) -> fid_ep {
    fid_ep {
        fid: object::head(class, context, fi),
        ops: std::ptr::from_ref(ops).cast_mut(),
        cm: std::ptr::from_ref(&CM_NONE).cast_mut(),
        msg: std::ptr::from_ref(&MESSAGES).cast_mut(),
        rma: std::ptr::from_ref(&RMA).cast_mut(),
        tagged: std::ptr::from_ref(&TAGGED).cast_mut(),
        atomic: std::ptr::from_ref(&ATOMIC).cast_mut(),
        collective: std::ptr::from_ref(&COLLECTIVE).cast_mut(),
    }
}

static CM_NONE: fi_ops_cm = fi_ops_cm::REFUSING;

/// Returns the requested number of contexts; `None` if there are not so many.
fn count(asked: usize) -> Option<u16> {
    u16::try_from(asked.max(1)).ok().filter(|count| *count <= CONTEXT_LIMIT)
}

/// Opens a scalable endpoint (fi_scalable_ep).
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    info: *mut fi_info,
    sep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: a domain of ours.
    let domain = unsafe { Domain::of(domain) }.shared();
    // SAFETY: null, or the client's.
    let Some(info) = (unsafe { info.as_ref() }) else { return -libc::EINVAL };
    // SAFETY: as above.
    let attr = unsafe { info.ep_attr.as_ref() };
    if attr.is_some_and(|attr| attr.r#type != FI_EP_RDM && attr.r#type != FI_EP_UNSPEC) {
        log::warning!(FI_LOG_EP_CTRL, "fi_scalable_ep: scalable endpoints are of type FI_EP_RDM");
        return -libc::EINVAL;
    }
    let asked = attr.map_or([1, 1], |attr| [attr.tx_ctx_cnt, attr.rx_ctx_cnt]);
    let [Some(transmit), Some(receive)] = asked.map(count) else {
        log::warning!(FI_LOG_EP_CTRL, "fi_scalable_ep: {asked:?} contexts; there may be 1 to {CONTEXT_LIMIT} of each");
        return -libc::EINVAL;
    };
    // SAFETY: an info is readable with all it points to.
    let (wishes, authorization) = match unsafe {
        (Wishes::of("fi_scalable_ep: op_flags", info), origin::authorization_of("fi_scalable_ep", info))
    } {
        (Ok(wishes), Ok(authorization)) => (wishes, authorization),
        (Err(code), _) | (_, Err(code)) => return -code,
    };
    // SAFETY: as above.
    let source = unsafe { address::read(info.src_addr, info.src_addrlen) };
    let setups = [transmit, receive].map(|count| (0..count).map(|_| Weak::new()).collect());
    wishes.note(domain);
    let shared = Arc::new(Shared {
        domain: Arc::clone(domain),
        wishes,
        authorization,
        counts: [transmit, receive],
        state: Mutex::new(State { source, vector: None, setups, percale: None }),
    });
    let fid = fid_ep { cm: std::ptr::from_ref(&CM).cast_mut(), ..bare(FI_CLASS_SEP, context, &FI, &OPS) };
    // SAFETY: the client wants it there.
    unsafe { Scalable { fid, shared }.give(sep) };
    0
}

unsafe extern "C" fn close(sep: fid_t) -> c_int {
    // SAFETY: a scalable endpoint of ours that the client gives up.
    unsafe { Scalable::close(sep, |scalable| &scalable.shared) }
}

/// Binds a vector, for all contexts. An event queue is accepted, but there are no events for it.
unsafe extern "C" fn bind(sep: fid_t, other: *mut fid, _flags: u64) -> c_int {
    // SAFETY: a scalable endpoint of ours.
    let shared = &unsafe { Scalable::of(sep) }.shared;
    // SAFETY: some open object of the client's.
    if let Some(vector) = unsafe { Vector::of_class(other) } {
        if !Arc::ptr_eq(vector.shared().domain(), &shared.domain) {
            log::warning!(FI_LOG_EP_CTRL, "fi_scalable_ep_bind: the address vector is another domain's");
            return -libc::EINVAL;
        }
        let mut state = shared.state();
        if state.vector.is_some() {
            log::warning!(FI_LOG_EP_CTRL, "fi_scalable_ep_bind: the endpoint has an address vector");
            return -libc::EINVAL;
        }
        state.vector = Some(Arc::clone(vector.shared()));
        return 0;
    }
    // SAFETY: as above.
    if let Some(events) = unsafe { Events::of_class(other) } {
        return if events.shared().is_of(&shared.domain.fabric) { 0 } else { -libc::EINVAL };
    }
    log::warning!(FI_LOG_EP_CTRL, "fi_scalable_ep_bind: address vectors are bound to scalable endpoints, nothing else");
    -libc::EINVAL
}

unsafe extern "C" fn control_whole(sep: fid_t, command: c_int, _argument: *mut c_void) -> c_int {
    // SAFETY: a scalable endpoint of ours.
    let shared = &unsafe { Scalable::of(sep) }.shared;
    if command == FI_ENABLE { code(shared.enable()) } else { -libc::ENOSYS }
}

unsafe extern "C" fn setname(sep: fid_t, address: *mut c_void, len: usize) -> c_int {
    // SAFETY: a scalable endpoint of ours, and the client's address.
    let (scalable, address) = unsafe { (Scalable::of(sep), address::read(address, len)) };
    let Some(address) = address else { return -libc::EINVAL };
    let mut state = scalable.shared.state();
    if state.percale.is_some() {
        return -FI_EOPBADSTATE;
    }
    state.source = Some(address);
    0
}

unsafe extern "C" fn getname(sep: fid_t, to: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: a scalable endpoint of ours.
    match (unsafe { Scalable::of(sep) }).shared.percale() {
        // SAFETY: the client's buffer, as long as it says.
        Ok(percale) if unsafe { Native::from(percale.address()).copy(to, len) } => 0,
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
    // SAFETY: null, or the client's attributes.
    let flags = unsafe { attr.as_ref() }.map(|attr| attr.op_flags);
    // SAFETY: passed on.
    unsafe { open_context(sep, index, (FI_CLASS_TX_CTX, flags), ep, context) }
}

unsafe extern "C" fn rx_context(
    sep: *mut fid_ep,
    index: c_int,
    attr: *mut fi_rx_attr,
    ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: null, or the client's attributes.
    let flags = unsafe { attr.as_ref() }.map(|attr| attr.op_flags);
    // SAFETY: passed on.
    unsafe { open_context(sep, index, (FI_CLASS_RX_CTX, flags), ep, context) }
}

/// # Safety
/// `sep` is an endpoint of ours, and `ep` writable.
unsafe fn open_context(
    sep: *mut fid_ep,
    index: c_int,
    (class, flags): (usize, Option<u64>),
    ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: promised by the caller; other endpoints have other tables.
    let shared = &unsafe { Scalable::of(sep) }.shared;
    let half = if class == FI_CLASS_RX_CTX { Half::Receive } else { Half::Transmit };
    let at = usize::from(half == Half::Receive);
    let Some(index) = u16::try_from(index).ok().filter(|index| *index < shared.counts[at]) else {
        log::warning!(FI_LOG_EP_CTRL, "there is no context {index}: the endpoint has {:?} of each kind", shared.counts);
        return -libc::EINVAL;
    };
    let mut wishes = shared.wishes;
    wishes.flags[at] = flags.unwrap_or(wishes.flags[at]);
    if let Err(code) = flags::check("a context's op_flags", wishes.flags[at]) {
        return -code;
    }
    let setup = shared.setup(half, index);
    Endpoint::new(class, context, &control::OPS, wishes, setup).hand_out(ep)
}

//! `fid_pep`: a passive endpoint, where connections are asked for (fi_passive_ep(3), fi_cm(3)).

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use percale::endpoint::connection::{ConnectionRequest, DATA_LIMIT, Listener};

use crate::abi::{
    FI_BACKLOG, FI_CLASS_CONNREQ, FI_CLASS_PEP, FI_EOPBADSTATE, FI_ETOOSMALL, FI_LOG_EP_CTRL, FI_OPT_CM_DATA_SIZE,
    FI_OPT_ENDPOINT, fi_info, fi_ops, fi_ops_cm, fi_ops_ep, fid, fid_pep, fid_t,
};
use crate::address::{self, Native};
use crate::events::{self, Events};
use crate::fabric::{self, Fabric};
use crate::info::Copied;
use crate::log;
use crate::object::{self, Object};

#[repr(C)]
pub(crate) struct Passive {
    fid: fid_pep,
    _fabric: Arc<fabric::Shared>,
    /// What the endpoints that take connections are like.
    info: Arc<Copied>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    source: Option<SocketAddr>,
    events: Option<Arc<events::Shared>>,
    backlog: Option<usize>,
    listener: Option<Listener>,
}

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Object for Passive {
    const CLASS: usize = FI_CLASS_PEP;
}

/// A connection that somebody asks for, as an `fi_info` carries it.
#[repr(C)]
pub(crate) struct Request {
    fid: fid,
    request: ConnectionRequest,
}

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Object for Request {
    const CLASS: usize = FI_CLASS_CONNREQ;
}

static REQUEST: fi_ops = fi_ops::REFUSING;

impl Request {
    /// A handle for clients.
    pub(crate) fn hand_out(request: ConnectionRequest) -> fid_t {
        let fid = object::head(FI_CLASS_CONNREQ, std::ptr::null_mut(), &REQUEST);
        Box::into_raw(Box::new(Self { fid, request })).cast()
    }

    /// Takes the request back.
    ///
    /// # Safety
    /// The handle is null or an open object of the client's, who uses it no more if it is of this class.
    pub(crate) unsafe fn take(handle: fid_t) -> Option<ConnectionRequest> {
        // SAFETY: promised by the caller.
        unsafe { Self::of_class(handle) }?;
        // SAFETY: of this class, so `hand_out` made it.
        Some(unsafe { Box::from_raw(handle.cast::<Self>()) }.request)
    }
}

static FI: fi_ops = fi_ops { close: Some(close), bind: Some(bind), control: Some(control), ..fi_ops::REFUSING };
static OPS: fi_ops_ep = fi_ops_ep { getopt: Some(getopt), ..fi_ops_ep::REFUSING };
static CM: fi_ops_cm = fi_ops_cm {
    setname: Some(setname),
    getname: Some(getname),
    listen: Some(listen),
    reject: Some(reject),
    ..fi_ops_cm::REFUSING
};

/// Opens a passive endpoint.
///
/// # Safety
/// `info` is an answer of libfabric's, `pep` writable.
pub(crate) unsafe fn open(
    fabric: &Fabric,
    info: *const fi_info,
    pep: *mut *mut fid_pep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: promised by the caller.
    let Some(given) = (unsafe { info.as_ref() }) else { return -libc::EINVAL };
    // SAFETY: promised by the caller.
    let source = unsafe { address::read(given.src_addr, given.src_addrlen) };
    // SAFETY: promised by the caller.
    let Some(copy) = (unsafe { Copied::of(info) }) else { return -libc::ENOMEM };
    let passive = Passive {
        fid: fid_pep {
            fid: object::head(FI_CLASS_PEP, context, &FI),
            ops: std::ptr::from_ref(&OPS).cast_mut(),
            cm: std::ptr::from_ref(&CM).cast_mut(),
        },
        _fabric: Arc::clone(fabric.shared()),
        info: Arc::new(copy),
        state: Mutex::new(State { source, ..State::default() }),
    };
    // SAFETY: the client wants the endpoint there.
    unsafe { passive.give(pep) };
    0
}

impl Passive {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

unsafe extern "C" fn close(pep: *mut fid) -> c_int {
    // SAFETY: an endpoint of ours.
    let state = std::mem::take(&mut *unsafe { Passive::of(pep) }.state());
    if let (Some(events), Some(listener)) = (&state.events, &state.listener) {
        events.forget_listener(listener.address());
    }
    drop(state);
    // SAFETY: `give` made it of a box, and the client gives it up.
    drop(unsafe { Box::from_raw(pep.cast::<Passive>()) });
    0
}

unsafe extern "C" fn bind(pep: *mut fid, other: *mut fid, _flags: u64) -> c_int {
    // SAFETY: an endpoint of ours, and an open object of the client's.
    let (passive, events) = unsafe { (Passive::of(pep), Events::of_class(other)) };
    let Some(events) = events else { return -libc::EINVAL };
    passive.state().events = Some(Arc::clone(events.shared()));
    0
}

unsafe extern "C" fn control(pep: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: an endpoint of ours.
    let passive = unsafe { Passive::of(pep) };
    if command != FI_BACKLOG {
        return -libc::ENOSYS;
    }
    // SAFETY: the argument of FI_BACKLOG.
    let Ok(requests) = usize::try_from(unsafe { argument.cast::<c_int>().read() }) else { return -libc::EINVAL };
    let mut state = passive.state();
    state.backlog = Some(requests);
    if let Some(listener) = &state.listener {
        listener.set_backlog(requests);
    }
    0
}

unsafe extern "C" fn getopt(_pep: fid_t, level: c_int, option: c_int, value: *mut c_void, len: *mut usize) -> c_int {
    if (level, option) != (FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE) {
        return -libc::ENOPROTOOPT;
    }
    // SAFETY: the client says how much room there is.
    if unsafe { len.read() } < size_of::<usize>() {
        return -FI_ETOOSMALL;
    }
    // SAFETY: the client wants a size_t there.
    unsafe { value.cast::<usize>().write_unaligned(DATA_LIMIT) };
    // SAFETY: as above.
    unsafe { len.write(size_of::<usize>()) };
    0
}

unsafe extern "C" fn setname(pep: fid_t, address: *mut c_void, len: usize) -> c_int {
    // SAFETY: an endpoint of ours, and the client's address.
    let (passive, address) = unsafe { (Passive::of(pep), address::read(address, len)) };
    let Some(address) = address else { return -libc::EINVAL };
    let mut state = passive.state();
    if state.listener.is_some() {
        return -FI_EOPBADSTATE;
    }
    state.source = Some(address);
    0
}

unsafe extern "C" fn getname(pep: fid_t, to: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: an endpoint of ours.
    let state = unsafe { Passive::of(pep) }.state();
    let address = match &state.listener {
        Some(listener) => Some(listener.address()),
        None => state.source.filter(|address| address.port() != 0),
    };
    let Some(address) = address else {
        log::warning!(FI_LOG_EP_CTRL, "fi_getname: the passive endpoint has no address before it listens");
        return -FI_EOPBADSTATE;
    };
    // SAFETY: the client's buffer, as long as it says.
    if unsafe { Native::from(address).copy(to, len) } { 0 } else { -FI_ETOOSMALL }
}

unsafe extern "C" fn listen(pep: *mut fid_pep) -> c_int {
    // SAFETY: an endpoint of ours.
    let passive = unsafe { Passive::of(pep) };
    let mut state = passive.state();
    if state.listener.is_some() {
        return 0;
    }
    let Some(events) = state.events.clone() else {
        log::warning!(FI_LOG_EP_CTRL, "fi_listen: the passive endpoint has no event queue; bind one");
        return -crate::abi::FI_ENOEQ;
    };
    let Some(attr) = passive.info.domain() else { return -libc::EINVAL };
    // SAFETY: libfabric copied the attributes with their name and key.
    let builder = match unsafe { crate::domain::configure(attr) } {
        Ok(builder) => builder,
        Err(code) => return -code,
    };
    let domain = match builder.open() {
        Ok(domain) => domain,
        Err(error) => {
            log::warning!(FI_LOG_EP_CTRL, "fi_listen: {error}");
            return -error.errno();
        }
    };
    let source = state.source.map_or_else(|| "0.0.0.0:0".to_owned(), |address| address.to_string());
    let mut builder = domain.listener().events(&events.percale);
    if let Some(requests) = state.backlog {
        builder = builder.backlog(requests);
    }
    match builder.bind(source) {
        Ok(listener) => {
            events.name_listener(listener.address(), pep.cast(), &passive.info);
            state.listener = Some(listener);
            0
        }
        Err(error) => {
            log::warning!(FI_LOG_EP_CTRL, "fi_listen: {error}");
            -error.errno()
        }
    }
}

unsafe extern "C" fn reject(_pep: *mut fid_pep, handle: fid_t, data: *const c_void, len: usize) -> c_int {
    // SAFETY: the handle of a request, which the client gives up.
    let Some(request) = (unsafe { Request::take(handle) }) else { return -libc::EINVAL };
    // SAFETY: the client gives so many bytes.
    match request.reject(unsafe { parameter(data, len) }) {
        Ok(()) => 0,
        Err(error) => {
            log::warning!(FI_LOG_EP_CTRL, "fi_reject: {error}");
            -error.errno()
        }
    }
}

/// The data that goes with a request or an answer.
///
/// # Safety
/// `data` is null or readable for `len` bytes while the result is used.
pub(crate) unsafe fn parameter<'a>(data: *const c_void, len: usize) -> &'a [u8] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: promised by the caller.
    unsafe { std::slice::from_raw_parts(data.cast(), len) }
}

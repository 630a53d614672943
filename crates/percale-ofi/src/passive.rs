//! `fid_pep`: a passive endpoint, which listens for connection requests (fi_passive_ep(3), fi_cm(3)).

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use percale::endpoint::connection::{DATA_LIMIT, Listener};

use crate::abi::{
    FI_BACKLOG, FI_CLASS_PEP, FI_EBADFLAGS, FI_EOPBADSTATE, FI_ETOOSMALL, FI_LOG_EP_CTRL, FI_OPT_CM_DATA_SIZE,
    FI_OPT_ENDPOINT, fi_info, fi_ops, fi_ops_cm, fi_ops_ep, fid, fid_pep, fid_t,
};
use crate::address::{self, SocketAddress};
use crate::events::{self, Events};
use crate::fabric;
use crate::info::Copied;
use crate::object::{self, Object};
use crate::requests::{self, Handle};
use crate::{log, settings};

#[repr(C)]
pub(crate) struct Passive {
    fid: fid_pep,
    fabric: Arc<fabric::FabricShared>,
    /// The attributes of the endpoints that accept connections.
    info: Arc<Copied>,
    state: Mutex<ListenerState>,
}

#[derive(Default)]
struct ListenerState {
    source: Option<SocketAddr>,
    events: Option<Arc<events::EventQueueShared>>,
    backlog: Option<usize>,
    listener: Option<Listener>,
    /// Set if an active endpoint has taken over the address. The passive endpoint can then only be closed.
    converted: bool,
}

// SAFETY: the type is `repr(C)`, and `fid` is its first field.
unsafe impl Object for Passive {
    const CLASS: usize = FI_CLASS_PEP;
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
/// `info` is an `fi_info` of libfabric, and `pep` is writable.
pub(crate) unsafe fn open(
    fabric: &Arc<fabric::FabricShared>,
    info: *const fi_info,
    pep: *mut *mut fid_pep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller guarantees this.
    let Some(given) = (unsafe { info.as_ref() }) else { return -libc::EINVAL };
    // SAFETY: the caller guarantees this.
    let source = unsafe { address::read(given.src_addr, given.src_addrlen) };
    // SAFETY: the caller guarantees this.
    let Some(copy) = (unsafe { Copied::of(info) }) else { return -libc::ENOMEM };
    let passive = Passive {
        fid: fid_pep {
            fid: object::head(FI_CLASS_PEP, context, &FI),
            ops: std::ptr::from_ref(&OPS).cast_mut(),
            cm: std::ptr::from_ref(&CM).cast_mut(),
        },
        fabric: Arc::clone(fabric),
        info: Arc::new(copy),
        state: Mutex::new(ListenerState { source, ..ListenerState::default() }),
    };
    // SAFETY: the client passed a writable location for the endpoint.
    unsafe { passive.give(pep) };
    0
}

impl Passive {
    fn state(&self) -> MutexGuard<'_, ListenerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes the address, if there is one, to an active endpoint. After that the passive endpoint can only be closed
    /// (fi_endpoint(3)).
    ///
    /// # Errors
    /// Returns the positive error code if the endpoint is listening or was converted before.
    pub(crate) fn convert(&self) -> Result<Option<SocketAddr>, i32> {
        let mut state = self.state();
        if state.listener.is_some() || state.converted {
            log::warning!(
                FI_LOG_EP_CTRL,
                "fi_endpoint: the passive endpoint is listening, or another endpoint uses its address"
            );
            return Err(FI_EOPBADSTATE);
        }
        state.converted = true;
        Ok(state.source)
    }
}

unsafe extern "C" fn close(pep: *mut fid) -> c_int {
    // SAFETY: the pointer is an endpoint of this provider.
    let state = std::mem::take(&mut *unsafe { Passive::of(pep) }.state());
    if let (Some(events), Some(listener)) = (&state.events, &state.listener) {
        events.forget_listener(listener.address());
        requests::forget_listener(listener.address());
    }
    drop(state);
    // SAFETY: `give` created the pointer from a box, and the client no longer uses it.
    drop(unsafe { Box::from_raw(pep.cast::<Passive>()) });
    0
}

unsafe extern "C" fn bind(pep: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: the pointer is an endpoint of this provider, and the client passed an open object.
    let (passive, events) = unsafe { (Passive::of(pep), Events::of_class(other)) };
    let Some(events) = events.filter(|events| events.shared().is_of(&passive.fabric)) else {
        log::warning!(FI_LOG_EP_CTRL, "fi_pep_bind: only event queues of the same fabric can be bound");
        return -libc::EINVAL;
    };
    if flags != 0 {
        log::warning!(FI_LOG_EP_CTRL, "fi_pep_bind: unsupported flags {flags:#x}");
        return -FI_EBADFLAGS;
    }
    let mut state = passive.state();
    if state.converted || state.listener.is_some() {
        return -FI_EOPBADSTATE;
    }
    if state.events.is_some() {
        log::warning!(FI_LOG_EP_CTRL, "fi_pep_bind: the passive endpoint already has an event queue");
        return -libc::EINVAL;
    }
    state.events = Some(Arc::clone(events.shared()));
    0
}

unsafe extern "C" fn control(pep: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the pointer is an endpoint of this provider.
    let passive = unsafe { Passive::of(pep) };
    if command != FI_BACKLOG {
        return -libc::ENOSYS;
    }
    // SAFETY: the argument of FI_BACKLOG is an int.
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
    // SAFETY: the client passed the size of its buffer.
    if unsafe { len.read() } < size_of::<usize>() {
        return -FI_ETOOSMALL;
    }
    // SAFETY: the client passed a writable location for a size_t.
    unsafe { value.cast::<usize>().write_unaligned(DATA_LIMIT) };
    // SAFETY: as above.
    unsafe { len.write(size_of::<usize>()) };
    0
}

unsafe extern "C" fn setname(pep: fid_t, address: *mut c_void, len: usize) -> c_int {
    // SAFETY: the pointer is an endpoint of this provider, and the address has the stated length.
    let (passive, address) = unsafe { (Passive::of(pep), address::read(address, len)) };
    let Some(address) = address else { return -libc::EINVAL };
    let mut state = passive.state();
    if state.listener.is_some() || state.converted {
        return -FI_EOPBADSTATE;
    }
    state.source = Some(address);
    0
}

unsafe extern "C" fn getname(pep: fid_t, to: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: the pointer is an endpoint of this provider.
    let state = unsafe { Passive::of(pep) }.state();
    let address = match &state.listener {
        Some(listener) => Some(listener.address()),
        None => state.source.filter(|address| address.port() != 0),
    };
    let Some(address) = address else {
        log::warning!(FI_LOG_EP_CTRL, "fi_getname: the passive endpoint has no address before it listens");
        return -FI_EOPBADSTATE;
    };
    // SAFETY: the client's buffer has the length that the client passed.
    if unsafe { SocketAddress::from(address).copy(to, len) } { 0 } else { -FI_ETOOSMALL }
}

unsafe extern "C" fn listen(pep: *mut fid_pep) -> c_int {
    // SAFETY: the pointer is an endpoint of this provider.
    let passive = unsafe { Passive::of(pep) };
    let mut state = passive.state();
    if state.listener.is_some() {
        return 0;
    }
    if state.converted {
        log::warning!(FI_LOG_EP_CTRL, "fi_listen: an endpoint uses the passive endpoint's address; close it");
        return -FI_EOPBADSTATE;
    }
    let Some(events) = state.events.clone() else {
        log::warning!(FI_LOG_EP_CTRL, "fi_listen: the passive endpoint has no event queue; bind one");
        return -crate::abi::FI_ENOEQ;
    };
    let Some(attr) = passive.info.domain() else { return -libc::EINVAL };
    // SAFETY: libfabric copied the attributes with their name and key.
    let builder = match unsafe { settings::configure(attr) } {
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
    let handle = Handle::from_client(handle);
    let Some(request) = requests::find(handle) else {
        log::warning!(FI_LOG_EP_CTRL, "fi_reject: the handle is not a pending connection request");
        return -libc::EINVAL;
    };
    // SAFETY: the client passed this number of readable bytes.
    let data = unsafe { parameter(data, len) };
    if let Err(code) = fits("fi_reject", data) {
        return -code;
    }
    let answered = request.reject(data);
    drop(requests::take(handle));
    match answered {
        Ok(()) => 0,
        Err(error) => {
            log::warning!(FI_LOG_EP_CTRL, "fi_reject: {error}");
            -error.errno()
        }
    }
}

/// Rejects data that is too long for a connection request or an answer, before anything else is done.
pub(crate) fn fits(call: &str, data: &[u8]) -> Result<(), i32> {
    if data.len() <= DATA_LIMIT {
        return Ok(());
    }
    log::warning!(FI_LOG_EP_CTRL, "{call}: {} bytes of connection data exceed the limit of {DATA_LIMIT}", data.len());
    Err(libc::EINVAL)
}

/// Returns the data for a connection request or an answer.
///
/// # Safety
/// `data` is null or readable for `len` bytes while the result is used.
pub(crate) unsafe fn parameter<'a>(data: *const c_void, len: usize) -> &'a [u8] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller guarantees this.
    unsafe { std::slice::from_raw_parts(data.cast(), len) }
}

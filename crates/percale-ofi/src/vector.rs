//! `fid_av`: an address vector (fi_av(3)).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use percale::address::vector::VectorType;
use percale::{AddressVector, PeerAddress};

use crate::abi::{
    FI_ADDR_NOTAVAIL, FI_AV_MAP, FI_AV_TABLE, FI_CLASS_AV, FI_EVENT, FI_LOG_AV, FI_MORE, FI_SYNC_ERR, fi_addr_t,
    fi_av_attr, fi_ops, fi_ops_av, fid, fid_av, fid_domain,
};
use crate::address::{self, Native};
use crate::domain::{self, Domain};
use crate::log;
use crate::object::{self, Object};

/// What endpoints know of their vector.
#[derive(Debug)]
pub(crate) struct Shared {
    domain: Arc<domain::Shared>,
    pub(crate) percale: AddressVector,
}

#[repr(C)]
pub(crate) struct Vector {
    fid: fid_av,
    shared: Arc<Shared>,
}

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Object for Vector {
    const CLASS: usize = FI_CLASS_AV;
}

impl Vector {
    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

static FI: fi_ops = fi_ops { close: Some(close), ..fi_ops::REFUSING };
static OPS: fi_ops_av = fi_ops_av {
    insert: Some(insert),
    insertsvc: Some(insert_service),
    remove: Some(remove),
    lookup: Some(lookup),
    straddr: Some(text),
    ..fi_ops_av::REFUSING
};

/// Opens a vector.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_av_attr,
    av: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    // SAFETY: a domain of ours.
    let domain = unsafe { Domain::of(domain) }.shared();
    // SAFETY: null, or the client's attributes.
    let Some(attr) = (unsafe { attr.as_mut() }) else { return -libc::EINVAL };
    if !attr.name.is_null() {
        log::warning!(FI_LOG_AV, "fi_av_open: named (shared) vectors are not supported");
        return -libc::ENOSYS;
    }
    if attr.flags & FI_EVENT != 0 {
        log::warning!(FI_LOG_AV, "fi_av_open: asynchronous insertion (FI_EVENT) is not supported");
        return -libc::ENOSYS;
    }
    let wanted = if attr.r#type == 0 { domain.av_type } else { attr.r#type };
    let kind = match wanted {
        FI_AV_MAP => VectorType::Map,
        0 | FI_AV_TABLE => VectorType::Table,
        other => {
            log::warning!(FI_LOG_AV, "fi_av_open: there is no vector of type {other}");
            return -libc::EINVAL;
        }
    };
    let Ok(bits) = u32::try_from(attr.rx_ctx_bits) else { return -libc::EINVAL };
    let vector = match domain.percale.address_vector().kind(kind).receive_context_bits(bits).build() {
        Ok(vector) => vector,
        Err(error) => {
            log::warning!(FI_LOG_AV, "fi_av_open: {error}");
            return -error.errno();
        }
    };
    // What was left open is answered (fi_av_open(3)).
    attr.r#type = if kind == VectorType::Map { FI_AV_MAP } else { FI_AV_TABLE };
    let fid = fid_av { fid: object::head(FI_CLASS_AV, context, &FI), ops: std::ptr::from_ref(&OPS).cast_mut() };
    let shared = Arc::new(Shared { domain: Arc::clone(domain), percale: vector });
    // SAFETY: the client wants the vector there.
    unsafe { Vector { fid, shared }.give(av) };
    0
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: a vector of ours that the client gives up.
    unsafe { Vector::close(fid, Vector::shared) }
}

/// Tells the outcome of inserting one address where the client wants it.
///
/// # Safety
/// `fi_addr` is null or writable at `at`, and so is `errors`.
unsafe fn tell(outcome: Result<PeerAddress, i32>, at: usize, fi_addr: *mut fi_addr_t, errors: *mut c_int) -> bool {
    let (peer, error) = match outcome {
        Ok(peer) => (peer.0, 0),
        Err(error) => (FI_ADDR_NOTAVAIL, error),
    };
    if !fi_addr.is_null() {
        // SAFETY: promised by the caller.
        unsafe { fi_addr.add(at).write(peer) };
    }
    if !errors.is_null() {
        // SAFETY: promised by the caller.
        unsafe { errors.add(at).write(error) };
    }
    error == 0
}

/// With FI_SYNC_ERR the context is an array of an int for each address.
fn errors_of(flags: u64, context: *mut c_void) -> *mut c_int {
    if flags & FI_SYNC_ERR != 0 { context.cast() } else { std::ptr::null_mut() }
}

unsafe extern "C" fn insert(
    av: *mut fid_av,
    addresses: *const c_void,
    count: usize,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: a vector of ours.
    let Shared { domain, percale } = &**unsafe { Vector::of(av) }.shared();
    if flags & !(FI_MORE | FI_SYNC_ERR) != 0 {
        log::warning!(FI_LOG_AV, "fi_av_insert: flags {flags:#x} are not supported");
        return -libc::EINVAL;
    }
    if addresses.is_null() && count > 0 {
        return -libc::EINVAL;
    }
    let each = if domain.ipv6 { size_of::<libc::sockaddr_in6>() } else { size_of::<libc::sockaddr_in>() };
    let errors = errors_of(flags, context);
    let mut inserted = 0;
    for at in 0..count {
        // SAFETY: the client gives `count` addresses of the domain's format, one behind the other.
        let address = unsafe { address::read(addresses.byte_add(at * each), each) };
        let outcome = match address {
            Some(address) => percale.insert(address).map_err(|error| {
                log::warning!(FI_LOG_AV, "fi_av_insert: {address}: {error}");
                error.errno()
            }),
            None => {
                log::warning!(
                    FI_LOG_AV,
                    "fi_av_insert: address {at} is not of the family that the domain's addresses have"
                );
                Err(libc::EINVAL)
            }
        };
        // SAFETY: the client wants `count` outcomes there.
        inserted += c_int::from(unsafe { tell(outcome, at, fi_addr, errors) });
    }
    inserted
}

unsafe extern "C" fn insert_service(
    av: *mut fid_av,
    node: *const c_char,
    service: *const c_char,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: a vector of ours.
    let Shared { domain, percale } = &**unsafe { Vector::of(av) }.shared();
    if node.is_null() || service.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: the client's strings.
    let (node, service) = unsafe { (CStr::from_ptr(node), CStr::from_ptr(service)) };
    let outcome =
        resolve(node, service, domain.ipv6).and_then(|address| percale.insert(address).map_err(|error| error.errno()));
    if outcome.is_err() {
        log::warning!(FI_LOG_AV, "fi_av_insertsvc: {node:?} {service:?} is no address here");
    }
    // SAFETY: the client wants one outcome there.
    c_int::from(unsafe { tell(outcome, 0, fi_addr, errors_of(flags, context)) })
}

/// The first address of the domain's family that a node and a port mean.
fn resolve(node: &CStr, service: &CStr, ipv6: bool) -> Result<SocketAddr, i32> {
    let node = node.to_str().map_err(|_| libc::EINVAL)?;
    let port: u16 = service.to_str().ok().and_then(|port| port.parse().ok()).ok_or(libc::EINVAL)?;
    let mut all = (node, port).to_socket_addrs().map_err(|_| libc::ENODATA)?;
    all.find(|address| address.is_ipv6() == ipv6).ok_or(libc::ENODATA)
}

unsafe extern "C" fn remove(av: *mut fid_av, fi_addr: *mut fi_addr_t, count: usize, flags: u64) -> c_int {
    // SAFETY: a vector of ours.
    let percale = &unsafe { Vector::of(av) }.shared().percale;
    if flags != 0 || (fi_addr.is_null() && count > 0) {
        return -libc::EINVAL;
    }
    let mut result = 0;
    for at in 0..count {
        // SAFETY: the client gives `count` of them.
        let peer = PeerAddress(unsafe { fi_addr.add(at).read() });
        if let Err(error) = percale.remove(peer) {
            log::warning!(FI_LOG_AV, "fi_av_remove: {error}");
            result = -error.errno();
        }
    }
    result
}

unsafe extern "C" fn lookup(av: *mut fid_av, peer: fi_addr_t, to: *mut c_void, room: *mut usize) -> c_int {
    // SAFETY: a vector of ours.
    let percale = &unsafe { Vector::of(av) }.shared().percale;
    let Some(address) = percale.lookup(PeerAddress(peer)) else { return -libc::EINVAL };
    // The address may be cut; its length tells (fi_av(3)).
    // SAFETY: the client's buffer, as long as it says.
    unsafe { Native::from(address).copy(to, room) };
    0
}

unsafe extern "C" fn text(
    _av: *mut fid_av,
    address: *const c_void,
    to: *mut c_char,
    room: *mut usize,
) -> *const c_char {
    // SAFETY: the client gives an address of the vector's format.
    let text = match unsafe { address::read_sized(address) } {
        Some(address @ SocketAddr::V4(_)) => format!("fi_sockaddr_in://{address}\0"),
        Some(address @ SocketAddr::V6(_)) => format!("fi_sockaddr_in6://{address}\0"),
        None => return std::ptr::null(),
    };
    // SAFETY: the client's buffer, as long as it says.
    unsafe { copy_text(&text, to, room) };
    to
}

/// Copies a text that ends in a zero, cut to the room there is, and says how long it was.
///
/// # Safety
/// `room` is readable and writable, and `to` writable for as many bytes.
unsafe fn copy_text(text: &str, to: *mut c_char, room: *mut usize) {
    // SAFETY: promised by the caller.
    let available = unsafe { room.read() };
    // SAFETY: promised by the caller.
    unsafe { room.write(text.len()) };
    let count = available.min(text.len());
    if count > 0 {
        // SAFETY: within both.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), count) };
        // SAFETY: the last byte copied.
        unsafe { to.add(count - 1).write(0) };
    }
}

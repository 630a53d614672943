//! The connection of an endpoint of type FI_EP_MSG (fi_cm(3)).

use std::ffi::{c_int, c_void};

use super::Endpoint;
use crate::abi::{FI_EOPBADSTATE, FI_ETOOSMALL, FI_LOG_EP_CTRL, fid_ep};
use crate::address::{self, Native};
use crate::log;
use crate::object::{Object, code};
use crate::passive::parameter;

/// Enables the endpoint if it is not: connecting and accepting do (fi_cm(3)).
fn connecting(endpoint: &Endpoint, ep: *mut fid_ep, what: &str) -> Result<(), i32> {
    if !endpoint.single {
        log::warning!(FI_LOG_EP_CTRL, "{what}: only endpoints of type FI_EP_MSG have connections");
        return Err(libc::EOPNOTSUPP);
    }
    endpoint.setup.enable(ep.cast())
}

pub(super) unsafe extern "C" fn connect(
    ep: *mut fid_ep,
    address: *const c_void,
    data: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: an endpoint of ours, and the client's address.
    let (endpoint, address) = unsafe { (Endpoint::of(ep), address::read_sized(address)) };
    code(connecting(endpoint, ep, "fi_connect").and_then(|()| {
        let address = address.or_else(|| endpoint.setup.destination()).ok_or(libc::EINVAL)?;
        let port = endpoint.port().map_err(|_| FI_EOPBADSTATE)?;
        // SAFETY: the client gives so many bytes.
        port.connect(&address.to_string(), unsafe { parameter(data, len) }).map_err(|error| {
            log::warning!(FI_LOG_EP_CTRL, "fi_connect: {error}");
            error.errno()
        })
    }))
}

pub(super) unsafe extern "C" fn accept(ep: *mut fid_ep, data: *const c_void, len: usize) -> c_int {
    // SAFETY: an endpoint of ours.
    let endpoint = unsafe { Endpoint::of(ep) };
    code(connecting(endpoint, ep, "fi_accept").and_then(|()| {
        let Some(request) = endpoint.setup.take_request() else {
            log::warning!(FI_LOG_EP_CTRL, "fi_accept: the endpoint was not opened for a connection request");
            return Err(FI_EOPBADSTATE);
        };
        let port = endpoint.port().map_err(|_| FI_EOPBADSTATE)?;
        if let Some(events) = endpoint.setup.events() {
            events.accepts(port.id(), request.from());
        }
        // SAFETY: the client gives so many bytes.
        port.accept(&request, unsafe { parameter(data, len) }).map_err(|error| {
            log::warning!(FI_LOG_EP_CTRL, "fi_accept: {error}");
            error.errno()
        })
    }))
}

pub(super) unsafe extern "C" fn shutdown(ep: *mut fid_ep, flags: u64) -> c_int {
    if flags != 0 {
        return -libc::EINVAL;
    }
    // SAFETY: an endpoint of ours.
    let endpoint = unsafe { Endpoint::of(ep) };
    let Ok(port) = endpoint.port() else { return -FI_EOPBADSTATE };
    code(port.shutdown().map_err(|error| error.errno()).inspect(|()| {
        if let (Some(events), Some(peer)) = (endpoint.setup.events(), port.peer_address()) {
            events.ended(port.id(), peer);
        }
    }))
}

pub(super) unsafe extern "C" fn getpeer(ep: *mut fid_ep, to: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: an endpoint of ours.
    let peer = unsafe { Endpoint::of(ep) }.port().ok().and_then(super::port::Port::peer_address);
    let Some(peer) = peer else { return -libc::ENOTCONN };
    // SAFETY: the client's buffer, as long as it says.
    if unsafe { Native::from(peer).copy(to, len) } { 0 } else { -FI_ETOOSMALL }
}

//! The connection of an FI_EP_MSG endpoint (fi_cm(3)).

use std::ffi::{c_int, c_void};

use percale::ConnectionError;

use super::Endpoint;
use crate::abi::{FI_EOPBADSTATE, FI_ETOOSMALL, FI_LOG_EP_CTRL, fid_ep};
use crate::address::{self, SocketAddress};
use crate::log;
use crate::object::{Object, code};
use crate::passive::{fits, parameter};
use crate::requests;

/// Checks the arguments of a call before the call enables the endpoint (fi_cm(3)).
fn checked(endpoint: &Endpoint, call: &str, data: &[u8]) -> Result<(), i32> {
    if !endpoint.single {
        log::warning!(FI_LOG_EP_CTRL, "{call}: only endpoints of type FI_EP_MSG have connections");
        return Err(libc::EOPNOTSUPP);
    }
    fits(call, data)
}

pub(super) unsafe extern "C" fn connect(
    ep: *mut fid_ep,
    address: *const c_void,
    data: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: the pointer is an endpoint of this provider, and the client passed a valid address.
    let (endpoint, address) = unsafe { (Endpoint::of(ep), address::read_sized(address)) };
    // SAFETY: the client passed this number of readable bytes.
    let data = unsafe { parameter(data, len) };
    code(checked(endpoint, "fi_connect", data).and_then(|()| {
        let address = address.or_else(|| endpoint.setup.destination()).ok_or(libc::EINVAL)?;
        endpoint.setup.enable()?;
        let port = endpoint.port().map_err(|_| FI_EOPBADSTATE)?;
        port.connect(&address.to_string(), data).map_err(|error| {
            log::warning!(FI_LOG_EP_CTRL, "fi_connect: {error}");
            error.errno()
        })
    }))
}

pub(super) unsafe extern "C" fn accept(ep: *mut fid_ep, data: *const c_void, len: usize) -> c_int {
    // SAFETY: the pointer is an endpoint of this provider.
    let endpoint = unsafe { Endpoint::of(ep) };
    // SAFETY: the client passed this number of readable bytes.
    let data = unsafe { parameter(data, len) };
    code(checked(endpoint, "fi_accept", data).and_then(|()| {
        let handle = endpoint.setup.request();
        let Some((handle, request)) = handle.and_then(|handle| Some((handle, requests::find(handle)?))) else {
            log::warning!(
                FI_LOG_EP_CTRL,
                "fi_accept: the endpoint was not opened for a connection request, or the request was already answered"
            );
            return Err(FI_EOPBADSTATE);
        };
        endpoint.setup.enable()?;
        let port = endpoint.port().map_err(|_| FI_EOPBADSTATE)?;
        let events = endpoint.setup.events();
        if let Some(events) = &events {
            events.accepts(port.id(), request.from());
        }
        let accepted = port.accept(&request, data);
        if let (Err(_), Some(events)) = (&accepted, &events) {
            events.settled(port.id());
        }
        // If the request could not be accepted because of this endpoint, it can still be answered with another
        // endpoint.
        if matches!(accepted, Ok(()) | Err(ConnectionError::Gone)) {
            drop(requests::take(handle));
        }
        accepted.map_err(|error| {
            log::warning!(FI_LOG_EP_CTRL, "fi_accept: {error}");
            error.errno()
        })
    }))
}

pub(super) unsafe extern "C" fn shutdown(ep: *mut fid_ep, flags: u64) -> c_int {
    if flags != 0 {
        return -libc::EINVAL;
    }
    // SAFETY: the pointer is an endpoint of this provider.
    let endpoint = unsafe { Endpoint::of(ep) };
    let Ok(port) = endpoint.port() else { return -FI_EOPBADSTATE };
    code(port.shutdown().map_err(|error| error.errno()).inspect(|()| {
        if let (Some(events), Some(peer)) = (endpoint.setup.events(), port.peer_address()) {
            events.ended(port.id(), peer);
        }
    }))
}

pub(super) unsafe extern "C" fn getpeer(ep: *mut fid_ep, to: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: the pointer is an endpoint of this provider.
    let peer = unsafe { Endpoint::of(ep) }.port().ok().and_then(crate::port::Port::peer_address);
    let Some(peer) = peer else { return -libc::ENOTCONN };
    // SAFETY: the client's buffer has the length that the client passed.
    if unsafe { SocketAddress::from(peer).copy(to, len) } { 0 } else { -FI_ETOOSMALL }
}

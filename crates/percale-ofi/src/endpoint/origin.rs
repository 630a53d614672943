//! The origin of an endpoint, in the `fi_info` that it is opened with: addresses, key, and handle (fi_endpoint(3)).

use std::net::SocketAddr;

use crate::abi::{FI_CLASS_CONNREQ, FI_CLASS_PEP, FI_LOG_EP_CTRL, fi_info, fid_t};
use crate::object::Object;
use crate::passive::Passive;
use crate::requests::{self, Handle};
use crate::{address, authorization, log};

/// The addresses, key and handle of the `fi_info` that an endpoint was opened with.
#[derive(Debug, Default)]
pub(super) struct Origin {
    /// Its own address, if that is fixed.
    pub(super) source: Option<SocketAddr>,
    /// The address of the listener that received its connection request.
    pub(super) listener: Option<SocketAddr>,
    /// The address that it connects to by default.
    pub(super) destination: Option<SocketAddr>,
    /// The request that it was opened for.
    pub(super) request: Option<Handle>,
    /// Its own authorization key, instead of the domain's.
    pub(super) authorization: Option<Vec<u8>>,
}

/// The object that `info->handle` names.
enum Named<'a> {
    Nothing,
    Request(Handle),
    Passive(&'a Passive),
}

impl Origin {
    /// Reads it.
    ///
    /// # Errors
    /// The positive code, if the key cannot be used, the request was answered, or the handle names an object that endpoints cannot be opened from.
    /// Then nothing has changed.
    ///
    /// # Safety
    /// The info's addresses and keys are as long as it says, and its handle is null, of a request, or of an open object.
    pub(super) unsafe fn read(info: &fi_info) -> Result<Self, i32> {
        // SAFETY: promised by the caller.
        let (source, destination) = unsafe {
            (address::read(info.src_addr, info.src_addrlen), address::read(info.dest_addr, info.dest_addrlen))
        };
        // SAFETY: promised by the caller.
        let authorization = unsafe { authorization_of("fi_endpoint", info) }?;
        let origin = Self { source, destination, authorization, ..Self::default() };
        // SAFETY: promised by the caller.
        match unsafe { named(info.handle) }? {
            Named::Nothing => Ok(origin),
            Named::Request(handle) => {
                // An endpoint that takes a connection has an address of its own, but its name is the listener's, as with accepted sockets: clients
                // compare these names.
                let source = origin.source.map(|listener| SocketAddr::new(listener.ip(), 0));
                Ok(Self { listener: origin.source, source, request: Some(handle), ..origin })
            }
            Named::Passive(passive) => {
                let source = passive.convert()?;
                Ok(Self { source: source.or(origin.source), ..origin })
            }
        }
    }
}

/// The authorization key that an info has for its endpoint.
///
/// # Safety
/// It is as long as the info says.
pub(super) unsafe fn authorization_of(call: &str, info: &fi_info) -> Result<Option<Vec<u8>>, i32> {
    // SAFETY: null, or the info's attributes.
    let Some(attr) = (unsafe { info.ep_attr.as_ref() }) else { return Ok(None) };
    // SAFETY: promised by the caller.
    unsafe { authorization::read(call, attr.auth_key, attr.auth_key_size) }
}

/// # Safety
/// The handle is null, of a request, or of an open object.
unsafe fn named<'a>(handle: fid_t) -> Result<Named<'a>, i32> {
    if handle.is_null() {
        return Ok(Named::Nothing);
    }
    let request = Handle::from_client(handle);
    if requests::open_endpoint(request).is_some() {
        return Ok(Named::Request(request));
    }
    // Handles of requests stay readable (`requests`).
    // SAFETY: promised by the caller.
    match unsafe { (*handle).fclass } {
        FI_CLASS_CONNREQ => {
            log::warning!(
                FI_LOG_EP_CTRL,
                "fi_endpoint: the connection request was answered, or its passive endpoint is closed"
            );
            Err(libc::ECONNABORTED)
        }
        // SAFETY: an object of this class has this type.
        FI_CLASS_PEP => Ok(Named::Passive(unsafe { Passive::of(handle) })),
        class => {
            log::warning!(
                FI_LOG_EP_CTRL,
                "fi_endpoint: info->handle is of class {class}; connection requests and passive endpoints are taken"
            );
            Err(libc::EINVAL)
        }
    }
}

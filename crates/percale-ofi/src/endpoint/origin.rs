//! The addresses, the key and the handle in the `fi_info` that an endpoint is opened with (fi_endpoint(3)).

use std::net::SocketAddr;

use crate::abi::{FI_CLASS_CONNREQ, FI_CLASS_PEP, FI_LOG_EP_CTRL, fi_info, fid_t};
use crate::object::Object;
use crate::passive::Passive;
use crate::requests::{self, Handle};
use crate::{address, authorization, log};

/// The addresses, key and handle of the `fi_info` that an endpoint was opened with.
#[derive(Debug, Default)]
pub(super) struct Origin {
    /// The endpoint's local address, if it is fixed.
    pub(super) source: Option<SocketAddr>,
    /// The address of the listener that received the connection request.
    pub(super) listener: Option<SocketAddr>,
    /// The address to which the endpoint connects by default.
    pub(super) destination: Option<SocketAddr>,
    /// The connection request for which the endpoint was opened.
    pub(super) request: Option<Handle>,
    /// The authorization key of the endpoint, if it is not the domain's.
    pub(super) authorization: Option<Vec<u8>>,
}

/// The object that `info->handle` names.
enum NamedHandle<'a> {
    Nothing,
    Request(Handle),
    Passive(&'a Passive),
}

impl Origin {
    /// Reads the origin from an info.
    ///
    /// # Errors
    /// Returns the positive error code if the key is invalid, if the request was answered, or if no endpoint can be
    /// opened from the object that the handle names. Nothing is changed in that case.
    ///
    /// # Safety
    /// The addresses and keys of the info have the stated lengths. Its handle is null, the handle of a request, or an
    /// open object.
    pub(super) unsafe fn read(info: &fi_info) -> Result<Self, i32> {
        // SAFETY: the caller guarantees this.
        let (source, destination) = unsafe {
            (address::read(info.src_addr, info.src_addrlen), address::read(info.dest_addr, info.dest_addrlen))
        };
        // SAFETY: the caller guarantees this.
        let authorization = unsafe { authorization_of("fi_endpoint", info) }?;
        let origin = Self { source, destination, authorization, ..Self::default() };
        // SAFETY: the caller guarantees this.
        match unsafe { named(info.handle) }? {
            NamedHandle::Nothing => Ok(origin),
            NamedHandle::Request(handle) => {
                // An endpoint that accepts a connection has its own address, but its name is the listener's address, as
                // with accepted sockets. Clients compare these names.
                let source = origin.source.map(|listener| SocketAddr::new(listener.ip(), 0));
                Ok(Self { listener: origin.source, source, request: Some(handle), ..origin })
            }
            NamedHandle::Passive(passive) => {
                let source = passive.convert()?;
                Ok(Self { source: source.or(origin.source), ..origin })
            }
        }
    }
}

/// Returns the authorization key that an info has for its endpoint.
///
/// # Safety
/// The key has the length that the info states.
pub(super) unsafe fn authorization_of(call: &str, info: &fi_info) -> Result<Option<Vec<u8>>, i32> {
    // SAFETY: the pointer is null or the info's attributes.
    let Some(attr) = (unsafe { info.ep_attr.as_ref() }) else { return Ok(None) };
    // SAFETY: the caller guarantees this.
    unsafe { authorization::read(call, attr.auth_key, attr.auth_key_size) }
}

/// Returns the object that a handle names.
///
/// # Safety
/// The handle is null, the handle of a request, or an open object.
unsafe fn named<'a>(handle: fid_t) -> Result<NamedHandle<'a>, i32> {
    if handle.is_null() {
        return Ok(NamedHandle::Nothing);
    }
    let request = Handle::from_client(handle);
    if requests::open_endpoint(request).is_some() {
        return Ok(NamedHandle::Request(request));
    }
    // The handles of requests stay readable (see `requests`).
    // SAFETY: the caller guarantees this.
    match unsafe { (*handle).fclass } {
        FI_CLASS_CONNREQ => {
            log::warning!(
                FI_LOG_EP_CTRL,
                "fi_endpoint: the connection request was answered, or its passive endpoint is closed"
            );
            Err(libc::ECONNABORTED)
        }
        // SAFETY: every object of this class has this type.
        FI_CLASS_PEP => Ok(NamedHandle::Passive(unsafe { Passive::of(handle) })),
        class => {
            log::warning!(
                FI_LOG_EP_CTRL,
                "fi_endpoint: info->handle has class {class}; it must be a connection request or a passive endpoint"
            );
            Err(libc::EINVAL)
        }
    }
}

//! Copies of `fi_info`, made by libfabric because only libfabric knows the size of the application's structures.

use std::net::SocketAddr;

use crate::abi::{fi_domain_attr, fi_info, fid_t};
use crate::address::SocketAddress;
use crate::libfabric::libfabric;

/// A copy of an `fi_info` that this provider owns.
#[derive(Debug)]
pub(crate) struct Copied(*mut fi_info);

// SAFETY: the memory belongs to this object and is only read.
unsafe impl Send for Copied {}
// SAFETY: as above.
unsafe impl Sync for Copied {}

impl Drop for Copied {
    fn drop(&mut self) {
        if let Some(free) = libfabric().free_info {
            // SAFETY: libfabric allocated the structure, and no other pointer to it is in use.
            unsafe { free(self.0) };
        }
    }
}

impl Copied {
    /// Creates a copy. Returns `None` if libfabric is not available or cannot allocate memory.
    ///
    /// # Safety
    /// `info` is an `fi_info` of libfabric.
    pub(crate) unsafe fn of(info: *const fi_info) -> Option<Self> {
        // SAFETY: the caller guarantees this.
        let copy = unsafe { libfabric().dup_info?(info) };
        (!copy.is_null()).then_some(Self(copy))
    }

    /// Takes ownership of an `fi_info`.
    ///
    /// # Safety
    /// libfabric allocated the structure, and no other pointer to it is in use.
    pub(crate) const unsafe fn adopt(info: *mut fi_info) -> Self {
        Self(info)
    }

    /// Returns the domain attributes.
    pub(crate) fn domain(&self) -> Option<&fi_domain_attr> {
        // SAFETY: libfabric made the copy, and its attributes are valid or null.
        unsafe { (*self.0).domain_attr.as_ref() }
    }

    /// Creates a copy for a client. It describes an endpoint that accepts the connection requested by `from`.
    pub(crate) fn for_request(&self, (at, from): (SocketAddr, SocketAddr), handle: fid_t) -> Option<*mut fi_info> {
        // SAFETY: libfabric made this object's structure.
        let copy = unsafe { Self::of(self.0) }?;
        // SAFETY: no other pointer to the object is in use.
        let info = unsafe { &mut *copy.0 };
        for (place, len, address) in [
            (&mut info.src_addr, &mut info.src_addrlen, SocketAddress::from(at)),
            (&mut info.dest_addr, &mut info.dest_addrlen, SocketAddress::from(from)),
        ] {
            // SAFETY: libfabric allocates addresses with malloc.
            unsafe { libc::free(std::mem::replace(place, std::ptr::null_mut())) };
            *place = super::native::bytes(address.as_bytes())?;
            *len = address.as_bytes().len();
        }
        info.handle = handle;
        std::mem::forget(copy);
        Some(info)
    }
}

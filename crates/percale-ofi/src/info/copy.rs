//! Copies of answers, made by libfabric itself: it knows how long the structures of its application are.

use std::net::SocketAddr;

use crate::abi::{fi_domain_attr, fi_info, fid_t};
use crate::address::Native;
use crate::libfabric::libfabric;

/// A copy of an answer, owned by us.
#[derive(Debug)]
pub(crate) struct Copied(*mut fi_info);

// SAFETY: the memory is ours alone and is only read.
unsafe impl Send for Copied {}
// SAFETY: as above.
unsafe impl Sync for Copied {}

impl Drop for Copied {
    fn drop(&mut self) {
        if let Some(free) = libfabric().free_info {
            // SAFETY: libfabric made it, and no other pointer to it is in use.
            unsafe { free(self.0) };
        }
    }
}

impl Copied {
    /// Makes a copy; `None` without libfabric or memory.
    ///
    /// # Safety
    /// `info` is an answer of libfabric's.
    pub(crate) unsafe fn of(info: *const fi_info) -> Option<Self> {
        // SAFETY: promised by the caller.
        let copy = unsafe { libfabric().dup_info?(info) };
        (!copy.is_null()).then_some(Self(copy))
    }

    /// Takes ownership of an answer.
    ///
    /// # Safety
    /// libfabric made it, and no other pointer to it is in use.
    pub(crate) const unsafe fn adopt(info: *mut fi_info) -> Self {
        Self(info)
    }

    /// The attributes of the domain.
    pub(crate) fn domain(&self) -> Option<&fi_domain_attr> {
        // SAFETY: libfabric made the copy, with attributes that are there or null.
        unsafe { (*self.0).domain_attr.as_ref() }
    }

    /// Makes a copy for a client, for an endpoint that takes the connection requested by `from`.
    pub(crate) fn for_request(&self, (at, from): (SocketAddr, SocketAddr), handle: fid_t) -> Option<*mut fi_info> {
        // SAFETY: libfabric made ours.
        let copy = unsafe { Self::of(self.0) }?;
        // SAFETY: no other pointer to it is in use.
        let info = unsafe { &mut *copy.0 };
        for (place, len, address) in [
            (&mut info.src_addr, &mut info.src_addrlen, Native::from(at)),
            (&mut info.dest_addr, &mut info.dest_addrlen, Native::from(from)),
        ] {
            // SAFETY: libfabric allocates addresses by malloc.
            unsafe { libc::free(std::mem::replace(place, std::ptr::null_mut())) };
            *place = super::native::bytes(address.as_bytes())?;
            *len = address.as_bytes().len();
        }
        info.handle = handle;
        std::mem::forget(copy);
        Some(info)
    }
}

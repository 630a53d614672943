//! `fi_info` structures in C's memory. libfabric frees everything in them with `free`.

use std::ffi::{c_char, c_void};
use std::ptr::NonNull;

use super::offer::Attributes;
use super::places::InterfaceAddresses;
use crate::abi::{FI_SOCKADDR_IN, FI_SOCKADDR_IN6, fi_fabric_attr, fi_info, fid_t};
use crate::address::SocketAddress as NativeAddress;

/// Owns a list of `fi_info` until it is passed on.
pub(super) struct InfoList(*mut fi_info);

impl Drop for InfoList {
    fn drop(&mut self) {
        // SAFETY: no other pointer to the list is in use.
        unsafe { free(self.0) };
    }
}

impl InfoList {
    /// Creates an empty list.
    pub(super) const fn empty() -> Self {
        Self(std::ptr::null_mut())
    }

    /// Returns the list, which the caller frees with `fi_freeinfo`. Returns null if the list is empty.
    pub(super) fn into_raw(self) -> *mut fi_info {
        let first = self.0;
        std::mem::forget(self);
        first
    }

    /// Adds an `fi_info` at the head of the list. Returns `None` if memory is exhausted.
    pub(super) fn push(
        &mut self,
        attributes: &Attributes,
        place: &InterfaceAddresses,
        api: u32,
        handle: fid_t,
    ) -> Option<()> {
        let one = Self(keep(fi_info::ZERO)?);
        // SAFETY: the structure was just allocated, and no other pointer to it is in use.
        let info = unsafe { &mut *one.0 };
        // Each allocation is linked to `info` at once, so that it is freed if a later allocation fails.
        info.tx_attr = keep(attributes.tx)?;
        info.rx_attr = keep(attributes.rx)?;
        info.ep_attr = keep(attributes.ep)?;
        info.domain_attr = keep(attributes.domain)?;
        let fabric =
            fi_fabric_attr { prov_version: crate::version::crate_version(), api_version: api, ..fi_fabric_attr::ZERO };
        info.fabric_attr = keep(fabric)?;
        let fabric = info.fabric_attr;
        let (domain, endpoint) = (info.domain_attr, info.ep_attr);
        // SAFETY: the memory was allocated above.
        unsafe { (*fabric).name = text(place.fabric)? };
        // SAFETY: as above.
        unsafe { (*domain).name = text(&place.interface)? };
        // SAFETY: as above.
        unsafe { (*domain).auth_key = bytes(&attributes.domain_key)?.cast() };
        // SAFETY: as above.
        unsafe { (*endpoint).auth_key = bytes(&attributes.ep_key)?.cast() };
        info.caps = attributes.caps;
        info.mode = attributes.mode;
        info.addr_format = if place.source.is_ipv4() { FI_SOCKADDR_IN } else { FI_SOCKADDR_IN6 };
        let source = NativeAddress::from(place.source);
        info.src_addrlen = source.as_bytes().len();
        info.src_addr = bytes(source.as_bytes())?;
        if let Some(destination) = place.destination {
            let destination = NativeAddress::from(destination);
            info.dest_addrlen = destination.as_bytes().len();
            info.dest_addr = bytes(destination.as_bytes())?;
        }
        info.handle = handle;
        info.next = std::mem::replace(&mut self.0, one.into_raw());
        Some(())
    }
}

/// Allocates a value in C's memory.
fn keep<T>(value: T) -> Option<*mut T> {
    // SAFETY: any size is valid.
    let place = NonNull::new(unsafe { libc::malloc(size_of::<T>()) })?.cast::<T>().as_ptr();
    // SAFETY: the allocation has this size, and malloc aligns for every type.
    unsafe { place.write(value) };
    Some(place)
}

/// Copies bytes to C's memory. Returns null if there are none.
pub(super) fn bytes(from: &[u8]) -> Option<*mut c_void> {
    if from.is_empty() {
        return Some(std::ptr::null_mut());
    }
    // SAFETY: any size is valid.
    let place = NonNull::new(unsafe { libc::malloc(from.len()) })?.as_ptr();
    // SAFETY: the new allocation has this size.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), place.cast(), from.len()) };
    Some(place)
}

/// Copies a text to C's memory.
fn text(from: &str) -> Option<*mut c_char> {
    let with_end: Vec<u8> = from.bytes().chain([0]).collect();
    bytes(&with_end).map(<*mut c_void>::cast)
}

/// Frees a list as `fi_freeinfo` does.
///
/// # Safety
/// `list` is a list of `fi_info` in C's memory, and is no longer used.
pub(super) unsafe fn free(mut list: *mut fi_info) {
    // SAFETY: the caller guarantees this.
    while let Some(info) = unsafe { list.as_ref() } {
        let next = info.next;
        // SAFETY: each attribute pointer is allocated or null.
        if let Some(ep) = unsafe { info.ep_attr.as_ref() } {
            // SAFETY: as above.
            unsafe { libc::free(ep.auth_key.cast()) };
        }
        // SAFETY: as above.
        if let Some(domain) = unsafe { info.domain_attr.as_ref() } {
            // SAFETY: as above.
            unsafe { libc::free(domain.auth_key.cast()) };
            // SAFETY: as above.
            unsafe { libc::free(domain.name.cast()) };
        }
        // SAFETY: as above.
        if let Some(fabric) = unsafe { info.fabric_attr.as_ref() } {
            // SAFETY: as above.
            unsafe { libc::free(fabric.name.cast()) };
            // SAFETY: as above.
            unsafe { libc::free(fabric.prov_name.cast()) };
        }
        let attributes: [*mut c_void; 7] = [
            info.tx_attr.cast(),
            info.rx_attr.cast(),
            info.ep_attr.cast(),
            info.domain_attr.cast(),
            info.fabric_attr.cast(),
            info.src_addr,
            info.dest_addr,
        ];
        for one in attributes {
            // SAFETY: as above.
            unsafe { libc::free(one) };
        }
        // SAFETY: the structure itself is freed last; its fields were read before.
        unsafe { libc::free(list.cast()) };
        list = next;
    }
}

//! Raw keys: regions export them, and domains map them (fi_mr(3), fi_mr_raw_attr, fi_mr_map_raw, fi_mr_unmap_key).

use std::ffi::{c_int, c_void};
use std::sync::PoisonError;

use percale::RawKey;

use crate::abi::{
    FI_EBADFLAGS, FI_ENOKEY, FI_ETOOSMALL, FI_LOG_MR, FI_MAP_RAW_MR, FI_UNMAP_KEY, fi_mr_map_raw, fi_mr_raw_attr, fid,
};
use crate::domain::{self, Domain};
use crate::log;
use crate::object::Object;

/// Copies a region's key to the client's buffer.
///
/// # Safety
/// `attr` meets the requirements of fi_mr_raw_attr(3).
pub(super) unsafe fn copy(attr: *mut fi_mr_raw_attr, base: u64, key: &RawKey) -> c_int {
    // SAFETY: the caller guarantees this.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return -libc::EINVAL };
    if attr.flags != 0 {
        return -FI_EBADFLAGS;
    }
    if attr.key_size.is_null() {
        return -libc::EINVAL;
    }
    let bytes = key.as_bytes();
    // SAFETY: the caller guarantees this.
    let room = unsafe { attr.key_size.replace(bytes.len()) };
    if room < bytes.len() {
        return -FI_ETOOSMALL;
    }
    if attr.raw_key.is_null() || attr.base_addr.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: the buffer has at least this size.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), attr.raw_key, bytes.len()) };
    // SAFETY: the caller guarantees this.
    unsafe { attr.base_addr.write(base) };
    0
}

/// Implements fi_control(3) for a domain.
pub(crate) unsafe extern "C" fn domain_control(domain: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the pointer is a domain of this provider.
    let shared = unsafe { Domain::of(domain) }.shared();
    match command {
        // SAFETY: the client passed the argument that FI_MAP_RAW_MR requires.
        FI_MAP_RAW_MR => unsafe { map(shared, argument.cast()) },
        // SAFETY: the argument of FI_UNMAP_KEY points to the key.
        FI_UNMAP_KEY => unmap(shared, unsafe { argument.cast::<u64>().read() }),
        _ => -libc::ENOSYS,
    }
}

/// Maps a peer's raw key.
///
/// # Safety
/// `map` meets the requirements of fi_mr_map_raw(3).
unsafe fn map(domain: &domain::DomainShared, map: *mut fi_mr_map_raw) -> c_int {
    // SAFETY: the caller guarantees this.
    let Some(map) = (unsafe { map.as_ref() }) else { return -libc::EINVAL };
    if map.flags != 0 {
        return -FI_EBADFLAGS;
    }
    if map.raw_key.is_null() || map.key.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: the client passed this number of readable bytes.
    let raw = unsafe { std::slice::from_raw_parts(map.raw_key, map.key_size) };
    match domain.percale.map_raw(raw) {
        Ok(mapped) => {
            // SAFETY: the caller guarantees this.
            unsafe { map.key.write(mapped.key()) };
            domain.mapped.lock().unwrap_or_else(PoisonError::into_inner).insert(mapped.key(), mapped);
            0
        }
        Err(error) => {
            log::warning!(FI_LOG_MR, "fi_mr_map_raw: {error}");
            -error.errno()
        }
    }
}

fn unmap(domain: &domain::DomainShared, key: u64) -> c_int {
    match domain.mapped.lock().unwrap_or_else(PoisonError::into_inner).remove(&key) {
        Some(_) => 0,
        None => {
            log::warning!(FI_LOG_MR, "fi_mr_unmap_key: {key:#x} is not mapped");
            -FI_ENOKEY
        }
    }
}

//! The hints of an application, read once from C.
//!
//! Attributes that are not passed are all 0, which means that the application has no requirement. libfabric allocates
//! the hints, so their size is that of the running libfabric, which is at least as new as the application's API
//! version. Fields of a later API version are not read.

use std::ffi::{CStr, c_char};
use std::mem::offset_of;
use std::net::SocketAddr;

use crate::abi::{fi_domain_attr, fi_ep_attr, fi_fabric_attr, fi_info, fi_rx_attr, fi_tx_attr, fi_version, fid_t};
use crate::address;

/// The reason why no `fi_info` matches the hints.
pub(super) type Rejection = String;

/// An optional address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum OptionalAddress {
    /// No address was passed.
    #[default]
    Nothing,
    /// An address was passed.
    Address(SocketAddr),
    /// The bytes are not an IPv4 or IPv6 address.
    Unusable,
}

/// The hints of fi_getinfo(3), read from C. Pointers inside the attributes are no longer used; their targets are in the
/// other fields.
#[derive(Debug)]
pub(super) struct Hints {
    /// The API version of the application.
    pub(super) api: u32,
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) addr_format: u32,
    pub(super) source: OptionalAddress,
    pub(super) destination: OptionalAddress,
    pub(super) handle: fid_t,
    pub(super) tx: fi_tx_attr,
    pub(super) rx: fi_rx_attr,
    pub(super) ep: fi_ep_attr,
    pub(super) domain: fi_domain_attr,
    pub(super) provider_version: u32,
    pub(super) domain_name: Option<String>,
    pub(super) fabric_name: Option<String>,
    pub(super) provider_name: Option<String>,
    /// The domain's authorization key. `None` if the hints have a size without a key, or if the size exceeds percale's
    /// limit.
    pub(super) domain_key: Option<Vec<u8>>,
    /// The endpoint's authorization key.
    pub(super) ep_key: Option<Vec<u8>>,
}

impl Hints {
    /// Creates hints without requirements.
    pub(super) fn none(api: u32) -> Self {
        Self {
            api,
            caps: 0,
            mode: 0,
            addr_format: 0,
            source: OptionalAddress::Nothing,
            destination: OptionalAddress::Nothing,
            handle: std::ptr::null_mut(),
            tx: fi_tx_attr::ZERO,
            rx: fi_rx_attr::ZERO,
            ep: fi_ep_attr::ZERO,
            domain: fi_domain_attr::ZERO,
            provider_version: 0,
            domain_name: None,
            fabric_name: None,
            provider_name: None,
            domain_key: Some(Vec::new()),
            ep_key: Some(Vec::new()),
        }
    }

    /// Reads the hints.
    ///
    /// # Safety
    /// `hints` is null, or was allocated by a libfabric that knows `api`, with everything that it points to.
    pub(super) unsafe fn read(api: u32, hints: *const fi_info) -> Self {
        // SAFETY: the caller guarantees this.
        let Some(hints) = (unsafe { hints.as_ref() }) else { return Self::none(api) };
        // SAFETY: `fi_ep_attr` has at least this length in version `api`.
        let ep = unsafe { head(hints.ep_attr, ep_length(api), fi_ep_attr::ZERO) };
        // SAFETY: `fi_domain_attr` has at least this length in version `api`.
        let domain = unsafe { head(hints.domain_attr, domain_length(api), fi_domain_attr::ZERO) };
        // SAFETY: these structures have the same length in every version.
        let tx = unsafe { hints.tx_attr.as_ref() }.copied().unwrap_or(fi_tx_attr::ZERO);
        // SAFETY: as above.
        let rx = unsafe { hints.rx_attr.as_ref() }.copied().unwrap_or(fi_rx_attr::ZERO);
        // SAFETY: as above.
        let fabric = unsafe { hints.fabric_attr.as_ref() }.copied().unwrap_or(fi_fabric_attr::ZERO);
        Self {
            api,
            caps: hints.caps,
            mode: hints.mode,
            addr_format: hints.addr_format,
            // SAFETY: an address in hints has the stated length.
            source: given(hints.src_addr.is_null(), unsafe { address::read(hints.src_addr, hints.src_addrlen) }),
            // SAFETY: as above.
            destination: given(hints.dest_addr.is_null(), unsafe {
                address::read(hints.dest_addr, hints.dest_addrlen)
            }),
            handle: hints.handle,
            tx,
            rx,
            ep,
            domain,
            provider_version: fabric.prov_version,
            // SAFETY: names in hints end with a zero byte.
            domain_name: unsafe { text(domain.name) },
            // SAFETY: as above.
            fabric_name: unsafe { text(fabric.name) },
            // SAFETY: as above.
            provider_name: unsafe { text(fabric.prov_name) },
            // SAFETY: keys in hints have the stated length.
            domain_key: unsafe { key(domain.auth_key, domain.auth_key_size) },
            // SAFETY: as above.
            ep_key: unsafe { key(ep.auth_key, ep.auth_key_size) },
        }
    }

    /// Returns whether the hints name this provider, alone or among others.
    pub(super) fn names_percale(&self) -> bool {
        let name = self.provider_name.as_deref().unwrap_or_default();
        name.split(';').any(|part| part.eq_ignore_ascii_case("percale"))
    }
}

/// Returns the number of bytes of `fi_ep_attr` in this version.
const fn ep_length(api: u32) -> usize {
    if api >= fi_version(2, 6) { size_of::<fi_ep_attr>() } else { offset_of!(fi_ep_attr, xpu_ctx) }
}

/// Returns the number of bytes of `fi_domain_attr` in this version.
const fn domain_length(api: u32) -> usize {
    if api >= fi_version(2, 6) {
        size_of::<fi_domain_attr>()
    } else if api >= fi_version(2, 5) {
        offset_of!(fi_domain_attr, max_xpu_ctx_cnt)
    } else if api >= fi_version(2, 0) {
        offset_of!(fi_domain_attr, max_cntr_value)
    } else if api >= fi_version(1, 20) {
        offset_of!(fi_domain_attr, max_group_id)
    } else {
        offset_of!(fi_domain_attr, max_ep_auth_key)
    }
}

/// Returns a structure with its first `length` bytes copied from `from` and the remaining bytes from `rest`. If `from`
/// is null, returns `rest`.
///
/// # Safety
/// `from` is null, or readable for `length` bytes that are valid as the first bytes of `T`. `length` is at most the
/// size of `T`.
unsafe fn head<T>(from: *const T, length: usize, mut rest: T) -> T {
    if !from.is_null() {
        // SAFETY: the caller guarantees this.
        unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut rest).cast::<u8>(), length) };
    }
    rest
}

const fn given(is_null: bool, address: Option<SocketAddr>) -> OptionalAddress {
    match address {
        _ if is_null => OptionalAddress::Nothing,
        Some(address) => OptionalAddress::Address(address),
        None => OptionalAddress::Unusable,
    }
}

/// Reads a text.
///
/// # Safety
/// `from` is null or ends with a zero byte.
pub(super) unsafe fn text(from: *const c_char) -> Option<String> {
    if from.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees this.
    Some(unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned())
}

/// Reads a key. Returns `None` if it is invalid.
///
/// # Safety
/// `from` is null or readable for `size` bytes, unless `size` exceeds the maximum key length.
unsafe fn key(from: *const u8, size: usize) -> Option<Vec<u8>> {
    if size == 0 {
        return Some(Vec::new());
    }
    if from.is_null() || size > percale::domain::KEY_LIMIT {
        return None;
    }
    // SAFETY: the caller guarantees this.
    Some(unsafe { std::slice::from_raw_parts(from, size) }.to_vec())
}

//! Registrations that the application makes itself, and reports of their changes.

use std::ffi::CString;
use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;
use std::time::Duration;

use super::error::{Failure, answer};
use super::sized::CallersStructure;
use super::{OpenCache, own, place};
use crate::access::Access;
use crate::cache::{Handle, Waited};
use crate::monitor::Refusal;
use crate::range::Range;

/// `struct pindown_registration`.
#[repr(C)]
#[derive(Clone, Copy, Debug, zerocopy::Immutable, zerocopy::IntoBytes)]
pub struct OwnRegistration {
    pub(super) size: usize,
    pub(super) handle: u64,
    pub(super) local_key: u64,
    pub(super) remote_key: u64,
    pub(super) unwatched: u32,
    pub(super) reserved: u32,
}

/// Returns the `enum pindown_reason` of a refusal; 0 means no reason.
pub(super) fn reason(refusal: Refusal) -> u32 {
    refusal.index() as u32 + 1
}

/// Pins memory until `pindown_deregister`.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pindown_register(
    cache: *const OpenCache,
    address: *const c_void,
    length: usize,
    access: u32,
    registration: *mut OwnRegistration,
) -> c_int {
    // SAFETY: the caller meets the same requirements.
    answer(unsafe { own(cache) }.and_then(|own| {
        let place = place(registration, "registration")?;
        // SAFETY: the caller guarantees that a structure of the given size is there.
        let place = unsafe { CallersStructure::new(place, size_of::<OwnRegistration>(), "registration") }?;
        let access = Access::from_bits(access).ok_or_else(|| Failure::unknown_access(access))?;
        let range = Range::new(address.addr() as u64, length as u64).map_err(crate::cache::LookupError::from)?;
        let made = own.cache.register(range, access)?;
        let answer = OwnRegistration {
            size: place.size(),
            handle: made.handle.to_bits(),
            local_key: made.local_key,
            remote_key: made.remote_key,
            unwatched: made.unwatched.map_or(0, reason),
            reserved: 0,
        };
        // SAFETY: as above; only the caller's thread accesses the structure during the call.
        unsafe { place.write(&answer) };
        Ok(0)
    }))
}

/// Unpins the memory of a registration that `pindown_register` made.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pindown_deregister(cache: *const OpenCache, handle: u64) -> c_int {
    // SAFETY: the caller meets the same requirements.
    answer(unsafe { own(cache) }.and_then(|own| {
        own.cache.deregister(Handle::from_bits(handle))?;
        Ok(0)
    }))
}

/// Returns a registration of memory that has changed, without waiting.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pindown_check(cache: *const OpenCache, handle: *mut u64) -> c_int {
    // SAFETY: the caller meets the same requirements.
    answer(unsafe { own(cache) }.and_then(|own| {
        let place = place(handle, "handle")?;
        let Some(changed) = own.cache.check() else { return Ok(0) };
        // SAFETY: not null, and the caller guarantees that a handle may be written there.
        unsafe { place.write(changed.to_bits()) };
        Ok(1)
    }))
}

/// Waits for a registration of memory that has changed.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pindown_wait(cache: *const OpenCache, timeout_ms: c_int, handle: *mut u64) -> c_int {
    // SAFETY: the caller meets the same requirements.
    answer(unsafe { own(cache) }.and_then(|own| {
        let place = place(handle, "handle")?;
        let timeout = match timeout_ms {
            -1 => None,
            0.. => Some(Duration::from_millis(timeout_ms.unsigned_abs().into())),
            _ => {
                return Err(Failure::invalid(format!("invalid timeout {timeout_ms} ms (use -1 to wait indefinitely)")));
            }
        };
        match own.cache.wait(timeout)? {
            Waited::Changed(changed) => {
                // SAFETY: not null, and the caller guarantees that a handle may be written there.
                unsafe { place.write(changed.to_bits()) };
                Ok(1)
            }
            Waited::TimedOut => Ok(0),
            Waited::Interrupted => Err(Failure::new(libc::ECANCELED, "the wait was interrupted by pindown_interrupt")),
        }
    }))
}

/// Ends one wait.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pindown_interrupt(cache: *const OpenCache) -> c_int {
    // SAFETY: the caller meets the same requirements.
    answer(unsafe { own(cache) }.map(|own| {
        own.cache.interrupt();
        0
    }))
}

/// Returns a reason as text; null for an unknown one.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) extern "C" fn pindown_reason_text(reason: u32) -> *const c_char {
    static TEXTS: OnceLock<Vec<CString>> = OnceLock::new();
    let texts = TEXTS.get_or_init(|| {
        let texts = Refusal::ALL.map(|refusal| refusal.to_string());
        std::iter::once("watched".to_owned()).chain(texts).map(|text| CString::new(text).unwrap_or_default()).collect()
    });
    texts.get(reason as usize).map_or(std::ptr::null(), |text| text.as_ptr())
}

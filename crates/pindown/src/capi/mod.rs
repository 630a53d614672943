//! libpindown.so: the cache for C programs. `include/pindown.h` documents every call and its requirements; this module
//! only converts arguments and results.
//!
//! * `open`: a cache and its monitor · `registrar`: the caller's callbacks · `lane`: uses, the fast path
//! * `handles`: registrations that the application makes itself · `sealed`: memory that cannot change · `stats` ·
//!   `error`
//! * `sized`: structures of callers of other versions · `table`: all functions in one structure
//!
//! The public items are for a library that contains pindown and offers this interface to its C callers as a table:
//! [`open_by`], [`FUNCTIONS`].
//!
//! A panic in one of these functions ends the process; it never unwinds into C. A function that returns an `int`
//! reports an error as a negative errno. The text of its reason is stored for the calling thread until the thread's
//! next error.

#![expect(
    unsafe_code,
    reason = "callers pass pointers, and objects are returned as pointers; each block states its own reason"
)]

mod error;
mod handles;
mod lane;
mod open;
mod registrar;
mod sealed;
mod sized;
mod stats;
mod table;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::Arc;

pub use self::error::{Failure, answer};
pub use self::handles::OwnRegistration;
pub use self::lane::{OpenLane, UseOfLane};
pub use self::open::{Attr, CacheOptions, Opened, open_by};
pub use self::registrar::{Answering, Answers, Callbacks, Opaque};
pub use self::stats::Counts;
pub use self::table::{FUNCTIONS, Functions};
use crate::cache::Cache;
use crate::monitor::imported::Notifier;

/// `struct pindown_cache`.
#[derive(Debug)]
pub struct OpenCache {
    cache: Cache<Callbacks>,
    /// A reference that every open lane also holds.
    lanes: Arc<()>,
    notifier: Option<Notifier>,
    /// A value that is kept as long as the cache.
    _kept: Option<Arc<dyn Any + Send + Sync>>,
    name: CString,
    why: CString,
}

/// Returns the cache that a caller passes.
///
/// # Safety
/// The pointer is null, or a cache that `pindown_open` returned and that has not been closed.
unsafe fn opened<'a>(cache: *const OpenCache) -> Result<&'a OpenCache, Failure> {
    // SAFETY: guaranteed by the caller; an open cache is only ever shared.
    unsafe { cache.as_ref() }.ok_or_else(|| Failure::null("cache"))
}

/// Like [`opened`], but fails if this process is a fork of the one that opened the cache.
///
/// # Safety
/// As for [`opened`].
unsafe fn own<'a>(cache: *const OpenCache) -> Result<&'a OpenCache, Failure> {
    // SAFETY: the caller meets the same requirements.
    let cache = unsafe { opened(cache) }?;
    if cache.cache.forked() { Err(Failure::forked()) } else { Ok(cache) }
}

/// Checks the pointer through which the caller receives a result.
fn place<T>(at: *mut T, name: &str) -> Result<NonNull<T>, Failure> {
    NonNull::new(at).ok_or_else(|| Failure::null(name))
}

/// Returns the library's version: major, minor and patch of 8 bits each, from the top.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) extern "C" fn pindown_version() -> u32 {
    let number = |text: &str| text.parse::<u32>().unwrap_or(0);
    number(env!("CARGO_PKG_VERSION_MAJOR")) << 16
        | number(env!("CARGO_PKG_VERSION_MINOR")) << 8
        | number(env!("CARGO_PKG_VERSION_PATCH"))
}

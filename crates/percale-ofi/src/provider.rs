//! The provider's interface to libfabric's core: `fi_prov_ini`, and the functions that it returns.

use std::cell::UnsafeCell;

use crate::abi::{FI_LOG_CORE, fi_context, fi_provider, fi_version};
use crate::{fabric, info, log, params};

/// The newest API that this provider implements.
pub const API: u32 = fi_version(2, 6);

/// A static that the core writes into.
#[repr(transparent)]
struct Written(UnsafeCell<fi_provider>);

// SAFETY: only the core writes into it, into `context`, under its own lock; we read what it does not write, and give out pointers.
unsafe impl Sync for Written {}

static PROVIDER: Written = Written(UnsafeCell::new(fi_provider {
    version: version(),
    fi_version: API,
    context: fi_context::ZERO,
    name: c"percale".as_ptr(),
    getinfo: Some(info::getinfo),
    fabric: Some(fabric::open),
    cleanup: Some(cleanup),
}));

/// This crate's version.
pub(crate) const fn version() -> u32 {
    fi_version(number(env!("CARGO_PKG_VERSION_MAJOR")), number(env!("CARGO_PKG_VERSION_MINOR")))
}

const fn number(text: &str) -> u32 {
    match u32::from_str_radix(text, 10) {
        Ok(number) => number,
        Err(_) => 0,
    }
}

/// The provider, for calls into libfabric.
pub(crate) fn pointer() -> *mut fi_provider {
    PROVIDER.0.get()
}

/// The entry point: libfabric loads `libpercale-fi.so` and calls this.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut fi_provider {
    params::define();
    log::note!(FI_LOG_CORE, "percale {}", env!("CARGO_PKG_VERSION"));
    pointer()
}

/// Called when the core releases the provider. Open objects stay open until they are closed.
extern "C" fn cleanup() {}

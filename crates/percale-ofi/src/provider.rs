//! The provider's entry point `fi_prov_ini`, and the functions that it returns to libfabric.

use std::cell::UnsafeCell;

use crate::abi::{FI_LOG_CORE, fi_context, fi_provider};
pub use crate::version::API;
use crate::version::crate_version;
use crate::{fabric_ops, info, libfabric, log, params};

/// A static that libfabric writes to.
#[repr(transparent)]
struct Written(UnsafeCell<fi_provider>);

// SAFETY: only libfabric writes to it, to `context`, under its own lock. The provider reads only the other fields and
// returns pointers to them.
unsafe impl Sync for Written {}

static PROVIDER: Written = Written(UnsafeCell::new(fi_provider {
    version: crate_version(),
    fi_version: API,
    context: fi_context::ZERO,
    name: c"percale".as_ptr(),
    getinfo: Some(info::getinfo),
    fabric: Some(fabric_ops::open),
    cleanup: Some(cleanup),
}));

/// The entry point: libfabric loads `libpercale-fi.so` and calls this function.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut fi_provider {
    let provider = PROVIDER.0.get();
    libfabric::set_provider(provider);
    params::define();
    log::note!(FI_LOG_CORE, "percale {}", env!("CARGO_PKG_VERSION"));
    provider
}

/// Called when libfabric releases the provider. Open objects stay open until they are closed.
extern "C" fn cleanup() {}

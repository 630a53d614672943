//! The interface between libfabric's core and an external provider.

use std::ffi::{c_char, c_int, c_void};

use super::{fi_context, fi_fabric_attr, fi_info, fid_fabric};

/// The type of a provider's `fi_getinfo`.
pub type GetInfo =
    unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int;
/// The type of a provider's `fi_fabric`.
pub type OpenFabric = unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int;
/// The type of the function that is called when the core unloads a provider.
pub type Cleanup = unsafe extern "C" fn();

structures! { STRUCTURES;
    /// A provider, as `fi_prov_ini` returns it to the core. The core writes to `context`.
    fi_provider {
        /// The provider's version.
        version: u32,
        /// The newest API version that the provider implements. The core ignores a provider with an older API version
        /// than the application's.
        fi_version: u32,
        /// Memory for the core.
        context: fi_context,
        /// The name.
        name: *const c_char,
        /// Implements `fi_getinfo`.
        getinfo: Option<GetInfo>,
        /// Opens a fabric.
        fabric: Option<OpenFabric>,
        /// Called when the core unloads the provider.
        cleanup: Option<Cleanup>,
    }
}

/// Returns a version number in libfabric's format.
#[must_use]
pub const fn fi_version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

constants! { CONSTANTS: u32;
    FI_PARAM_STRING = 0, "A parameter's type: text.";
    FI_PARAM_INT = 1, "A parameter's type: int.";
    FI_PARAM_BOOL = 2, "A parameter's type: int, 0 or 1.";
    FI_PARAM_SIZE_T = 3, "A parameter's type: size_t.";
    FI_LOG_CORE = 0, "Log subsystem: the core.";
    FI_LOG_FABRIC = 1, "Log subsystem: fabrics.";
    FI_LOG_DOMAIN = 2, "Log subsystem: domains.";
    FI_LOG_EP_CTRL = 3, "Log subsystem: endpoints.";
    FI_LOG_EP_DATA = 4, "Log subsystem: operations.";
    FI_LOG_AV = 5, "Log subsystem: address vectors.";
    FI_LOG_CQ = 6, "Log subsystem: completion queues.";
    FI_LOG_EQ = 7, "Log subsystem: event queues.";
    FI_LOG_MR = 8, "Log subsystem: regions.";
    FI_LOG_CNTR = 9, "Log subsystem: counters.";
    FI_LOG_WARN = 0, "Log level: warnings.";
    FI_LOG_TRACE = 1, "Log level: traces.";
    FI_LOG_INFO = 2, "Log level: informational messages.";
    FI_LOG_DEBUG = 3, "Log level: everything.";
}

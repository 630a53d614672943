//! libfabric's functions that the provider uses, looked up at run time.
//!
//! The provider is not linked with libfabric. An import would bind the oldest version of a symbol, and a symbol that is
//! missing in the running libfabric would prevent it from loading the provider, without an error message. A process may
//! have loaded libfabric in its global scope, under another name, or privately inside a Python wheel. The search
//! follows this order. Without a loaded libfabric (in unit tests), all fields are `None`.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::abi::{fi_info, fi_provider};

/// `fi_log_enabled`.
type LogEnabled = unsafe extern "C" fn(*const fi_provider, u32, u32) -> c_int;
/// `fi_log`.
type Log = unsafe extern "C" fn(*const fi_provider, u32, u32, *const c_char, c_int, *const c_char, ...);
/// `fi_param_define`.
type ParamDefine = unsafe extern "C" fn(*const fi_provider, *const c_char, u32, *const c_char, ...) -> c_int;
/// `fi_param_get`.
type ParamGet = unsafe extern "C" fn(*mut fi_provider, *const c_char, *mut c_void) -> c_int;

/// `fi_dupinfo`.
type DupInfo = unsafe extern "C" fn(*const fi_info) -> *mut fi_info;
/// `fi_freeinfo`.
type FreeInfo = unsafe extern "C" fn(*mut fi_info);

/// The functions that were found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Libfabric {
    /// Returns whether a message would be logged.
    pub(crate) log_enabled: Option<LogEnabled>,
    /// Logs a message.
    pub(crate) log: Option<Log>,
    /// Defines a parameter.
    pub(crate) param_define: Option<ParamDefine>,
    /// Reads a parameter.
    pub(crate) param_get: Option<ParamGet>,
    /// Copies an `fi_info` with everything that it points to.
    pub(crate) dup_info: Option<DupInfo>,
    /// Frees a list of `fi_info`.
    pub(crate) free_info: Option<FreeInfo>,
}

/// The provider structure that libfabric loaded, or null before that.
static PROVIDER: AtomicPtr<fi_provider> = AtomicPtr::new(std::ptr::null_mut());

/// Sets the provider structure that is passed to libfabric's functions. It is a static.
pub(crate) fn set_provider(provider: *mut fi_provider) {
    PROVIDER.store(provider, Ordering::Relaxed);
}

/// Returns the provider structure for calls into libfabric, or `None` before libfabric has loaded it.
pub(crate) fn provider() -> Option<*mut fi_provider> {
    let provider = PROVIDER.load(Ordering::Relaxed);
    (!provider.is_null()).then_some(provider)
}

/// Returns the libfabric that loaded this provider. The lookup runs once.
pub(crate) fn libfabric() -> &'static Libfabric {
    static FOUND: OnceLock<Libfabric> = OnceLock::new();
    FOUND.get_or_init(|| find().unwrap_or_default())
}

fn find() -> Option<Libfabric> {
    if let Some(found) = within(libc::RTLD_DEFAULT) {
        return Some(found);
    }
    let mapped = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let candidates = std::iter::once("libfabric.so.1").chain(mapped.lines().filter_map(mapped_libfabric));
    candidates.filter_map(|name| CString::new(name).ok()).find_map(|name| {
        // SAFETY: the name ends with a zero byte. RTLD_NOLOAD runs no code and only finds loaded objects.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        // The handle keeps libfabric loaded, and libfabric keeps this library loaded.
        if handle.is_null() { None } else { within(handle) }
    })
}

/// Returns the path in a line of /proc/self/maps if it is a shared object with libfabric in its name.
fn mapped_libfabric(line: &str) -> Option<&str> {
    let path = &line[line.find('/')?..];
    let name = path.rsplit('/').next()?;
    (name.contains("libfabric") && name.contains(".so")).then_some(path)
}

/// Looks up the functions in one object or scope. Returns `None` if it has no `fi_log`.
fn within(handle: *mut c_void) -> Option<Libfabric> {
    let symbol = |name: &CStr| {
        // SAFETY: the handle is the default scope or was returned by dlopen, and the name ends with a zero byte.
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    };
    // SAFETY: the function has had this signature in every version since libfabric 1.0.
    let log_enabled = symbol(c"fi_log_enabled").map(|at| unsafe { std::mem::transmute::<*mut c_void, LogEnabled>(at) });
    // SAFETY: as above.
    let log = symbol(c"fi_log").map(|at| unsafe { std::mem::transmute::<*mut c_void, Log>(at) });
    // SAFETY: as above.
    let define = symbol(c"fi_param_define").map(|at| unsafe { std::mem::transmute::<*mut c_void, ParamDefine>(at) });
    // SAFETY: as above.
    let get = symbol(c"fi_param_get").map(|at| unsafe { std::mem::transmute::<*mut c_void, ParamGet>(at) });
    // SAFETY: as above.
    let dup_info = symbol(c"fi_dupinfo").map(|at| unsafe { std::mem::transmute::<*mut c_void, DupInfo>(at) });
    // SAFETY: as above.
    let free_info = symbol(c"fi_freeinfo").map(|at| unsafe { std::mem::transmute::<*mut c_void, FreeInfo>(at) });
    log.map(|log| Libfabric { log_enabled, log: Some(log), param_define: define, param_get: get, dup_info, free_info })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libfabric_is_recognised_among_mappings() {
        let line = "7f00-7f01 r-xp 00000000 08:01 42   /opt/lib python/libfabric-90ab.so.1.29.1";
        assert_eq!(mapped_libfabric(line), Some("/opt/lib python/libfabric-90ab.so.1.29.1"));
        for other in
            ["7f00-7f01 rw-p 00000000 00:00 0", "7f00-7f01 r-xp 0 08:01 42 /usr/lib/libfabric/libpsm-fi.so", ""]
        {
            assert_eq!(mapped_libfabric(other), None, "{other}");
        }
    }

    #[test]
    fn lookup_without_libfabric_finds_nothing() {
        let found = libfabric();
        assert!(found.log.is_none() && found.param_get.is_none(), "unit tests do not load libfabric");
    }
}

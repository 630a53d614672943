//! Loads a libfabric and asks it for the provider percale. Runs in a process of its own, because other providers are
//! loaded too.

#![expect(unsafe_code, reason = "the functions of a C library; each block states its own reason")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{null, null_mut};

use super::super::finding::Library;
use super::FILE;

/// The interface version that the provider is asked for: 1.14, which every supported libfabric has.
const API: u32 = 1 << 16 | 14;

/// Describes the libfabric at this path, or the one that the loader chooses for the name alone. No other thread may
/// use the environment.
pub(in crate::doctor) fn describe(path: &Path) -> Library {
    let named = path == Path::new(FILE);
    let mut library = Library {
        path: path.display().to_string(),
        version: None,
        sees_provider: false,
        is_default: named,
        error: None,
    };
    match Loaded::open(path) {
        Ok(loaded) => {
            library.path = fs::canonicalize(&loaded.path).unwrap_or(loaded.path.into()).display().to_string();
            library.version = Some(format!("{}.{}", loaded.version >> 16, loaded.version & 0xffff));
            library.sees_provider = loaded.sees_provider;
        }
        Err(error) => library.error = Some(error),
    }
    library
}

/// The properties of a loaded libfabric. It stays loaded until the process ends.
struct Loaded {
    path: String,
    version: u32,
    sees_provider: bool,
}

impl Loaded {
    fn open(path: &Path) -> Result<Self, String> {
        // SAFETY: no other thread uses the environment, and nothing holds a pointer into it. With this variable
        // libfabric loads the providers, and offers percale only.
        unsafe { std::env::set_var("FI_PROVIDER", "percale") };
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| "the path contains a zero byte")?;
        // SAFETY: the text ends with a zero byte. The initialization of libfabric affects only its own state.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(last_error());
        }
        type Version = unsafe extern "C" fn() -> u32;
        type GetInfo =
            unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const c_void, *mut *mut c_void) -> c_int;
        let (version, get) = (symbol(library, c"fi_version")?, symbol(library, c"fi_getinfo")?);
        let path = path_of(version).unwrap_or_else(|| path.display().to_string());
        // SAFETY: this is the function's type (fi_version(3)).
        let version: Version = unsafe { std::mem::transmute(version) };
        // SAFETY: this is the function's type (fi_getinfo(3)).
        let get: GetInfo = unsafe { std::mem::transmute(get) };
        let mut info = null_mut();
        // SAFETY: node, service and hints may be null, and `info` has room for the result. The result is not freed,
        // because the process ends.
        let code = unsafe { get(API, null(), null(), 0, null(), &raw mut info) };
        // SAFETY: the function only returns a number.
        Ok(Self { path, version: unsafe { version() }, sees_provider: code == 0 && !info.is_null() })
    }
}

/// Returns a function of the library.
fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the library is open, and the text ends with a zero byte.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() { Err(format!("it has no function {}", name.to_string_lossy())) } else { Ok(found) }
}

/// Returns the file that contains a function.
fn path_of(function: *mut c_void) -> Option<String> {
    let mut found =
        libc::Dl_info { dli_fname: null(), dli_fbase: null_mut(), dli_sname: null(), dli_saddr: null_mut() };
    // SAFETY: the address is that of a function, and `found` has room for the result.
    if unsafe { libc::dladdr(function, &raw mut found) } == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's name of an open library is a text that ends with a zero byte.
    Some(unsafe { CStr::from_ptr(found.dli_fname) }.to_string_lossy().into_owned())
}

/// Returns the loader's description of its last error.
fn last_error() -> String {
    // SAFETY: the call returns a text that stays valid until this thread calls the loader again, or null.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown error".into();
    }
    // SAFETY: the text ends with a zero byte.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

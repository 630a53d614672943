//! Driver calls that an application makes itself, as programs that use a device do: synchronous copies. Also reads the
//! counters of the test double.

#![expect(unsafe_code, reason = "calls the driver; each block states why its arguments are valid")]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use libloading::Library;
use percale::Segment;

/// The environment variable with the path of the driver's library.
pub const LIBRARY: &str = "PERCALE_CUDA_LIBRARY";

type Handle = *mut c_void;

/// Returns the driver's library. percale has already loaded it.
fn library() -> &'static Library {
    static LOADED: OnceLock<Library> = OnceLock::new();
    let load = || {
        let name = std::env::var_os(LIBRARY).unwrap_or_else(|| "libcuda.so.1".into());
        // SAFETY: the library is loaded already, and this returns another handle to it.
        unsafe { Library::new(name) }.expect("the driver's library")
    };
    LOADED.get_or_init(load)
}

macro_rules! call {
    ($name:literal, ($($type:ty),*), $($argument:expr),*) => {{
        // SAFETY: the driver's function of this name has this type.
        let found = unsafe { library().get::<unsafe extern "C" fn($($type),*) -> c_int>($name.as_bytes()) };
        // SAFETY: the arguments are pointers to space for results, handles that the library returned, and memory that
        // the caller keeps valid.
        let code = unsafe { found.expect($name)($($argument),*) };
        assert_eq!(code, 0, $name);
    }};
}

/// Calls `then` while the primary context of a device is current.
fn within(ordinal: u32, then: impl FnOnce()) {
    let (mut device, mut context): (c_int, Handle) = (0, ptr::null_mut());
    call!("cuDeviceGet", (*mut c_int, c_int), &raw mut device, ordinal as c_int);
    call!("cuDevicePrimaryCtxRetain", (*mut Handle, c_int), &raw mut context, device);
    call!("cuCtxPushCurrent_v2", (Handle), context);
    then();
    call!("cuCtxPopCurrent_v2", (*mut Handle), &raw mut context);
}

/// Copies to a device's memory, as cuMemcpyHtoD does. The last bytes may still be in flight when it returns.
pub(crate) fn copy_to_device(ordinal: u32, to: Segment, bytes: &[u8]) {
    assert!(bytes.len() <= to.len(), "the bytes fit");
    if bytes.is_empty() {
        return;
    }
    let (to, from) = (to.as_ptr().addr() as u64, bytes.as_ptr().cast::<c_void>());
    within(ordinal, || call!("cuMemcpyHtoD_v2", (u64, *const c_void, usize), to, from, bytes.len()));
}

/// Copies from a device's memory, as cuMemcpyDtoH does.
pub(crate) fn copy_to_host(ordinal: u32, bytes: &mut [u8], from: Segment) {
    let len = bytes.len().min(from.len());
    if len == 0 {
        return;
    }
    let (to, from) = (bytes.as_mut_ptr().cast::<c_void>(), from.as_ptr().addr() as u64);
    within(ordinal, || call!("cuMemcpyDtoH_v2", (*mut c_void, u64, usize), to, from, len));
}

/// Returns a counter of the test double: the result of its function `name`, which has no arguments.
///
/// # Panics
/// If the driver is not the double.
#[must_use]
pub fn count(name: &str) -> u64 {
    // SAFETY: the double's functions with such names have this type.
    let found = unsafe { library().get::<unsafe extern "C" fn() -> u64>(name.as_bytes()) };
    // SAFETY: the function has no arguments.
    unsafe { found.expect("the double")() }
}

/// Returns the calling thread's capture mode. 0 is the global mode, which is the initial mode of a thread.
#[must_use]
pub fn capture_mode() -> i32 {
    let mut mode = 0;
    call!("cuThreadExchangeStreamCaptureMode", (*mut c_int), &raw mut mode);
    let (found, mut again) = (mode, mode);
    call!("cuThreadExchangeStreamCaptureMode", (*mut c_int), &raw mut again);
    found
}

/// Controls the capture of a graph: 1 begins it on a blocking stream, 2 begins it on another thread's stream in the
/// global mode, and 0 ends it. Returns the number of calls that have invalidated the previous capture.
///
/// # Panics
/// If the driver is not the double.
pub fn capture(how: i32) -> u64 {
    // SAFETY: the double's function of this name has this type.
    let found = unsafe { library().get::<unsafe extern "C" fn(c_int) -> u64>(b"doubleCapture") };
    // SAFETY: the argument is a number.
    unsafe { found.expect("the double")(how) }
}

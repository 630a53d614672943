//! A device program in text form, which the driver compiles. No toolkit is needed.

#![expect(unsafe_code, reason = "calls the driver; each block states why its arguments are valid")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

use libloading::Library;

use crate::device::LIBRARY;

/// Writes 64 bits after a system-wide fence, as device programs do to start an operation that waits on the host.
const STORE: &str = "
.version 6.0
.target sm_70
.address_size 64
.visible .entry store64(.param .u64 address, .param .u64 value)
{
    .reg .u64 %rd<4>;
    ld.param.u64 %rd1, [address];
    ld.param.u64 %rd2, [value];
    cvta.to.global.u64 %rd3, %rd1;
    membar.sys;
    st.volatile.global.u64 [%rd3], %rd2;
    membar.sys;
    ret;
}
\0";

type Handle = *mut c_void;
type Launch = unsafe extern "C" fn(
    Handle,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Handle,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;

/// The program, loaded on device 0 for this thread.
#[derive(Debug)]
pub struct Store {
    library: Library,
    function: Handle,
    stream: Handle,
}

fn good(what: &str, code: c_int) {
    assert_eq!(code, 0, "{what}");
}

impl Store {
    /// Compiles the program.
    ///
    /// # Panics
    /// Panics if the driver reports an error.
    #[must_use]
    pub fn new() -> Self {
        let name = std::env::var_os(LIBRARY).unwrap_or_else(|| "libcuda.so.1".into());
        // SAFETY: this is the library of the driver, which percale has loaded as well.
        let library = unsafe { Library::new(name) }.expect("the driver's library");
        let [mut context, mut module, mut function, mut stream] = [ptr::null_mut(); 4];
        let mut device = 0;
        macro_rules! call {
            ($name:literal, ($($type:ty),*), $($argument:expr),*) => {{
                // SAFETY: the driver's function of this name has this type.
                let found = unsafe { library.get::<unsafe extern "C" fn($($type),*) -> c_int>($name.as_bytes()) };
                let found = found.expect($name);
                // SAFETY: the pointers refer to space for the results, and the handles were returned by the driver.
                good($name, unsafe { found($($argument),*) });
            }};
        }
        call!("cuInit", (c_uint), 0);
        call!("cuDeviceGet", (*mut c_int, c_int), &raw mut device, 0);
        call!("cuDevicePrimaryCtxRetain", (*mut Handle, c_int), &raw mut context, device);
        call!("cuCtxPushCurrent_v2", (Handle), context);
        call!("cuModuleLoadData", (*mut Handle, *const c_char), &raw mut module, STORE.as_ptr().cast());
        call!(
            "cuModuleGetFunction",
            (*mut Handle, Handle, *const c_char),
            &raw mut function,
            module,
            c"store64".as_ptr()
        );
        call!("cuStreamCreate", (*mut Handle, c_uint), &raw mut stream, 1);
        Self { library, function, stream }
    }

    /// Writes a value with one thread of the device. Returns when the program has ended.
    ///
    /// # Panics
    /// Panics if the driver reports an error.
    pub fn write(&self, address: u64, value: u64) {
        let (mut address, mut value) = (address, value);
        let mut parameters: [*mut c_void; 2] = [(&raw mut address).cast(), (&raw mut value).cast()];
        // SAFETY: the driver's function of this name has this type.
        let launch = unsafe { self.library.get::<Launch>(b"cuLaunchKernel") }.expect("cuLaunchKernel");
        let (function, stream, none) = (self.function, self.stream, ptr::null_mut());
        // SAFETY: the parameters of the program are two words. The test passes the address of a device-accessible
        // variable.
        good("cuLaunchKernel", unsafe { launch(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters.as_mut_ptr(), none) });
        // SAFETY: as above.
        let finish = unsafe { self.library.get::<unsafe extern "C" fn(Handle) -> c_int>(b"cuStreamSynchronize") };
        // SAFETY: the stream belongs to this value.
        good("cuStreamSynchronize", unsafe { finish.expect("cuStreamSynchronize")(stream) });
    }
}

impl Default for Store {
    fn default() -> Self {
        Self::new()
    }
}

//! A program for devices, as text that their driver compiles: no toolkit is needed.

#![expect(unsafe_code, reason = "calls the driver; each block says why its arguments are good")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

use libloading::Library;

use crate::device::LIBRARY;

/// Writes 64 bits, after a fence of the whole system, as programs on a device set off what waits on the host.
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

/// The program, on device 0, in this thread.
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
    /// Compiles it.
    ///
    /// # Panics
    /// If the driver refuses.
    #[must_use]
    pub fn new() -> Self {
        let name = std::env::var_os(LIBRARY).unwrap_or_else(|| "libcuda.so.1".into());
        // SAFETY: the driver's library, which percale has loaded, too.
        let library = unsafe { Library::new(name) }.expect("the driver's library");
        let [mut context, mut module, mut function, mut stream] = [ptr::null_mut(); 4];
        let mut device = 0;
        macro_rules! call {
            ($name:literal, ($($type:ty),*), $($argument:expr),*) => {{
                // SAFETY: the driver's function of this name has this type.
                let found = unsafe { library.get::<unsafe extern "C" fn($($type),*) -> c_int>($name.as_bytes()) };
                let found = found.expect($name);
                // SAFETY: room for what it gives, and handles that it gave.
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

    /// Has one thread of the device write a value; returns when the program has ended.
    ///
    /// # Panics
    /// If the driver refuses.
    pub fn write(&self, address: u64, value: u64) {
        let (mut address, mut value) = (address, value);
        let mut parameters: [*mut c_void; 2] = [(&raw mut address).cast(), (&raw mut value).cast()];
        // SAFETY: the driver's function of this name has this type.
        let launch = unsafe { self.library.get::<Launch>(b"cuLaunchKernel") }.expect("cuLaunchKernel");
        let (function, stream, none) = (self.function, self.stream, ptr::null_mut());
        // SAFETY: the program's parameters are two words; what it writes, the test says, is a variable for devices.
        good("cuLaunchKernel", unsafe { launch(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters.as_mut_ptr(), none) });
        // SAFETY: as above.
        let finish = unsafe { self.library.get::<unsafe extern "C" fn(Handle) -> c_int>(b"cuStreamSynchronize") };
        // SAFETY: a stream of ours.
        good("cuStreamSynchronize", unsafe { finish.expect("cuStreamSynchronize")(stream) });
    }
}

impl Default for Store {
    fn default() -> Self {
        Self::new()
    }
}

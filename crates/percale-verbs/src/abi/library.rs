//! The functions of libibverbs, which are found by dlopen.

#![expect(unsafe_code, reason = "dlopen and dlsym; each block states its own reason")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::types::{
    AsyncEvent, CompChannel, Context, Cq, Device, DeviceAttr, Mr, Pd, PortAttr, Qp, QpAttr, QpInitAttr,
};
use crate::wire::queue_pair::Gid;

/// The name of the library, which includes the version of its interface.
const NAME: &str = "libibverbs.so.1";
/// The environment variable that names another library with the same functions, such as a double for tests.
const LIBRARY: &str = "PERCALE_VERBS_LIBRARY";

/// The library that is loaded if the variable is not set.
#[cfg(not(all(test, not(loom))))]
fn usual_name() -> std::ffi::OsString {
    NAME.into()
}

/// The library that this crate's tests load. It is the double if the machine has no device.
#[cfg(all(test, not(loom)))]
fn usual_name() -> std::ffi::OsString {
    let has_device = std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some());
    if has_device { NAME.into() } else { crate::double::beside_this_program().into() }
}

/// Declares the table of functions, and the function that fills it. The name of each field is its symbol.
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident: fn($($arg:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of libibverbs, which stays loaded until the process exits.
        #[derive(Debug)]
        #[allow(non_snake_case, reason = "the fields are named after symbols of the library")]
        pub(crate) struct Library {
            $($(#[$doc])* pub(crate) $name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
        }

        impl Library {
            fn find(library: &libloading::Library) -> Result<Self, libloading::Error> {
                // SAFETY: the symbols are functions of these types: the library's name contains the version of the
                // interface, and the header of that version declares them with these types.
                $(let $name = unsafe {
                    library.get::<unsafe extern "C" fn($($arg),*) $(-> $result)?>(
                        concat!(stringify!($name), "\0").as_bytes(),
                    )
                }?;)*
                Ok(Self { $($name: *$name),* })
            }
        }
    };
}

functions! {
    /// Returns the devices and their number. Returns null and sets errno on error.
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut Device;
    /// Frees the list, and the devices in it that were not opened.
    ibv_free_device_list: fn(*mut *mut Device);
    /// Opens a device. Returns null and sets errno on error.
    ibv_open_device: fn(*mut Device) -> *mut Context;
    /// Closes the device. No object that was created from it may exist.
    ibv_close_device: fn(*mut Context) -> c_int;
    /// Queries the capabilities of a device. Returns an error number.
    ibv_query_device: fn(*mut Context, *mut DeviceAttr) -> c_int;
    /// Queries a port. Returns an error number. Leaves the last fields unchanged.
    ibv_query_port: fn(*mut Context, u8, *mut PortAttr) -> c_int;
    /// Queries an entry of a port's GID table. Returns 0 or an error.
    ibv_query_gid: fn(*mut Context, u8, c_int, *mut Gid) -> c_int;
    /// Allocates a protection domain. Returns null and sets errno on error.
    ibv_alloc_pd: fn(*mut Context) -> *mut Pd;
    /// Deallocates a protection domain. Returns an error number.
    ibv_dealloc_pd: fn(*mut Pd) -> c_int;
    /// Registers memory. Returns null and sets errno on error.
    ibv_reg_mr: fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    /// Deregisters memory. Returns an error number.
    ibv_dereg_mr: fn(*mut Mr) -> c_int;
    /// Creates a completion channel. Returns null and sets errno on error.
    ibv_create_comp_channel: fn(*mut Context) -> *mut CompChannel;
    /// Destroys a completion channel. Returns an error number.
    ibv_destroy_comp_channel: fn(*mut CompChannel) -> c_int;
    /// Creates a completion queue. Returns null and sets errno on error.
    ibv_create_cq: fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    /// Destroys a completion queue once all its events are acknowledged. Returns an error number.
    ibv_destroy_cq: fn(*mut Cq) -> c_int;
    /// Reads an event of a channel. Returns 0, or -1 and sets errno.
    ibv_get_cq_event: fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    /// Acknowledges events of a completion queue.
    ibv_ack_cq_events: fn(*mut Cq, c_uint);
    /// Creates a queue pair. Returns null and sets errno on error.
    ibv_create_qp: fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    /// Modifies a queue pair. Returns an error number.
    ibv_modify_qp: fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    /// Destroys a queue pair. Returns an error number.
    ibv_destroy_qp: fn(*mut Qp) -> c_int;
    /// Reads an asynchronous event of the device. Returns 0, or -1 and sets errno.
    ibv_get_async_event: fn(*mut Context, *mut AsyncEvent) -> c_int;
    /// Acknowledges an asynchronous event.
    ibv_ack_async_event: fn(*mut AsyncEvent);
    /// Returns the description of a completion status.
    ibv_wc_status_str: fn(c_int) -> *const c_char;
}

impl Library {
    /// Returns the library, or the reason why it cannot be loaded. It is loaded at the first call.
    pub(crate) fn get() -> Result<&'static Self, &'static str> {
        static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
        LOADED.get_or_init(Self::load).as_ref().map_err(String::as_str)
    }

    fn load() -> Result<Self, String> {
        let name = std::env::var_os(LIBRARY).unwrap_or_else(usual_name);
        let shown = name.display();
        // SAFETY: loading libibverbs runs its constructors, as in any program that links it. A user that selects
        // another library is responsible for its constructors.
        let library =
            unsafe { libloading::Library::new(&name) }.map_err(|error| format!("cannot load {shown}: {error}"))?;
        let found = Self::find(&library).map_err(|error| format!("{shown} lacks a required function: {error}"))?;
        // The library is never unloaded, because there are pointers into it in many places.
        std::mem::forget(library);
        // ibv_fork_init is not called, because the kernels that percale supports copy pinned pages for a child at fork.
        // That call would exclude all registered memory from children, including the application's own memory. And
        // after deregistration it would give children memory that they are not meant to have.
        Ok(found)
    }
}

//! The functions of libibverbs, found by dlopen.

#![expect(unsafe_code, reason = "dlopen and dlsym; each block states its own reason")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::types::{
    AsyncEvent, CompChannel, Context, Cq, Device, DeviceAttr, Mr, Pd, PortAttr, Qp, QpAttr, QpInitAttr,
};
use crate::wire::queue_pair::Gid;

/// The library's name, with the version of its interface: no other interface has this name.
const NAME: &str = "libibverbs.so.1";
/// The variable that names another library with the same functions, such as a double for tests.
const LIBRARY: &str = "PERCALE_VERBS_LIBRARY";

/// The library that is loaded if the variable names none.
#[cfg(not(all(test, not(loom))))]
fn usual_name() -> std::ffi::OsString {
    NAME.into()
}

/// The same in this crate's tests: the double, where the machine has no device.
#[cfg(all(test, not(loom)))]
fn usual_name() -> std::ffi::OsString {
    let has_device = std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some());
    if has_device { NAME.into() } else { crate::double::beside_this_program().into() }
}

/// Declares the table of functions, and the function that fills it: each field is the symbol of its name.
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident: fn($($arg:ty),*) $(-> $result:ty)?;)*) => {
        /// libibverbs, loaded for as long as the process lives.
        #[derive(Debug)]
        #[allow(non_snake_case, reason = "no symbol has capitals")]
        pub(crate) struct Library {
            $($(#[$doc])* pub(crate) $name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
        }

        impl Library {
            fn find(library: &libloading::Library) -> Result<Self, libloading::Error> {
                // SAFETY: the symbols are functions of these types: the library's name contains the version of the interface, and the header of that
                // version declares them so.
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
    /// The devices that are here, and how many; null and errno if that cannot be determined.
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut Device;
    /// Frees such a list, and the devices in it that were not opened.
    ibv_free_device_list: fn(*mut *mut Device);
    /// Opens a device; null and errno if that fails.
    ibv_open_device: fn(*mut Device) -> *mut Context;
    /// Closes it: nothing made of it may be left.
    ibv_close_device: fn(*mut Context) -> c_int;
    /// What a device can do; the result is an errno.
    ibv_query_device: fn(*mut Context, *mut DeviceAttr) -> c_int;
    /// What a port is; the result is an errno. Leaves the last fields as they are.
    ibv_query_port: fn(*mut Context, u8, *mut PortAttr) -> c_int;
    /// An entry of a port's table of addresses; 0 or an error.
    ibv_query_gid: fn(*mut Context, u8, c_int, *mut Gid) -> c_int;
    /// Makes a protection domain; null and errno if that fails.
    ibv_alloc_pd: fn(*mut Context) -> *mut Pd;
    /// Ends it; the result is an errno.
    ibv_dealloc_pd: fn(*mut Pd) -> c_int;
    /// Registers memory; null and errno if that fails.
    ibv_reg_mr: fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    /// Ends it; the result is an errno.
    ibv_dereg_mr: fn(*mut Mr) -> c_int;
    /// Makes a completion channel; null and errno if that fails.
    ibv_create_comp_channel: fn(*mut Context) -> *mut CompChannel;
    /// Ends it; the result is an errno.
    ibv_destroy_comp_channel: fn(*mut CompChannel) -> c_int;
    /// Makes a completion queue; null and errno if that fails.
    ibv_create_cq: fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    /// Ends it, once all its events are acknowledged; the result is an errno.
    ibv_destroy_cq: fn(*mut Cq) -> c_int;
    /// Reads an event of a channel; 0, or -1 and errno.
    ibv_get_cq_event: fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    /// Acknowledges events of a queue.
    ibv_ack_cq_events: fn(*mut Cq, c_uint);
    /// Makes a queue pair; null and errno if that fails.
    ibv_create_qp: fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    /// Changes it; the result is an errno.
    ibv_modify_qp: fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    /// Ends it; the result is an errno.
    ibv_destroy_qp: fn(*mut Qp) -> c_int;
    /// Reads an asynchronous event of the device; 0, or -1 and errno.
    ibv_get_async_event: fn(*mut Context, *mut AsyncEvent) -> c_int;
    /// Acknowledges that.
    ibv_ack_async_event: fn(*mut AsyncEvent);
    /// The words for a completion's status.
    ibv_wc_status_str: fn(c_int) -> *const c_char;
}

impl Library {
    /// The library, if it is here; else why not. Looked for once.
    pub(crate) fn get() -> Result<&'static Self, &'static str> {
        static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
        LOADED.get_or_init(Self::load).as_ref().map_err(String::as_str)
    }

    fn load() -> Result<Self, String> {
        let name = std::env::var_os(LIBRARY).unwrap_or_else(usual_name);
        let shown = name.display();
        // SAFETY: loading libibverbs runs its constructors, which any program that links it runs as well. A user that names another library vouches
        // for it.
        let library =
            unsafe { libloading::Library::new(&name) }.map_err(|error| format!("{shown} is not here: {error}"))?;
        let found = Self::find(&library).map_err(|error| format!("{shown} lacks what percale needs: {error}"))?;
        // It stays: pointers into it are everywhere.
        std::mem::forget(library);
        // Not ibv_fork_init: the kernels that percale runs on copy pinned pages for a child at fork. That call would keep whatever is
        // registered from children, the application's own memory among it, and give them what is not for them once it is not.
        Ok(found)
    }
}

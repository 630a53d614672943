//! The functions of the driver. These are hand-written declarations of the part of the CUDA driver API that percale
//! calls, according to its reference.
//!
//! The names are those that the library exports: a later version of a function has a number as its suffix. A function
//! that an older driver lacks is `None` if percale can work without it.

#![expect(unsafe_code, reason = "loads functions from a library and calls one; each block states its own reason")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use libloading::Library;

use crate::driver::DeviceError;

/// The return code of functions. 0 is success.
pub(super) type Code = c_int;
/// A device, identified by the driver's handle (not the ordinal).
pub(super) type DeviceHandle = c_int;
/// An address that devices use.
pub(super) type Address = u64;
/// Contexts, streams and events, which are pointers that belong to the driver.
pub(super) type Opaque = *mut c_void;

/// The handle that identifies memory to other processes (`CUipcMemHandle`).
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct IpcMemHandle {
    pub(super) bytes: [u8; 64],
}

/// The codes that percale handles.
pub(super) mod code {
    use super::Code;

    pub(in super::super) const SUCCESS: Code = 0;
    pub(in super::super) const OUT_OF_MEMORY: Code = 2;
    pub(in super::super) const NO_DEVICE: Code = 100;
    pub(in super::super) const NOT_READY: Code = 600;
    pub(in super::super) const NOT_SUPPORTED: Code = 801;
    /// The codes of calls that are refused because a graph is being captured (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED to
    /// _WRONG_THREAD, and the codes between them).
    pub(in super::super) const CAPTURING: std::ops::RangeInclusive<Code> = 900..=908;
    /// The library lacks the function. This is not a code of the driver.
    pub(in super::super) const NO_FUNCTION: Code = -1;
}

/// The attributes that are passed to cuPointerGetAttributes and cuPointerSetAttribute.
pub(super) mod attribute {
    use std::ffi::c_uint;

    pub(in super::super) const MEMORY_TYPE: c_uint = 2;
    pub(in super::super) const SYNC_MEMOPS: c_uint = 6;
    pub(in super::super) const BUFFER_ID: c_uint = 7;
    pub(in super::super) const IS_MANAGED: c_uint = 8;
    pub(in super::super) const DEVICE_ORDINAL: c_uint = 9;
    /// Drivers before 11.3 do not support this attribute.
    pub(in super::super) const MEMPOOL_HANDLE: c_uint = 17;
}

/// The value of `CUmemorytype` for memory of the host.
pub(super) const MEMORY_HOST: u64 = 1;
/// The value of `CUmemorytype` for memory of a device.
pub(super) const MEMORY_DEVICE: u64 = 2;
/// The default stream that synchronous copies use (CU_STREAM_LEGACY).
pub(super) const LEGACY: Opaque = ptr::without_provenance_mut(1);
/// CU_STREAM_CAPTURE_MODE_RELAXED.
pub(super) const CAPTURE_RELAXED: c_int = 2;
/// Streams that do not wait for the default stream (CU_STREAM_NON_BLOCKING).
pub(super) const NON_BLOCKING: c_uint = 1;
/// Events without timing (CU_EVENT_DISABLE_TIMING).
pub(super) const NO_TIMING: c_uint = 2;
/// Memory for all contexts, and mapped for devices (CU_MEMHOSTALLOC_PORTABLE, _DEVICEMAP, and the same flags of
/// CU_MEMHOSTREGISTER_).
pub(super) const PORTABLE_MAPPED: c_uint = 1 | 2;
/// CU_MEM_ATTACH_GLOBAL.
pub(super) const ATTACH_GLOBAL: c_uint = 1;
/// CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.
pub(super) const LAZY_PEER_ACCESS: c_uint = 1;
/// CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD.
pub(super) const DMA_BUF_FD: c_int = 1;
/// CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING.
pub(super) const UNIFIED_ADDRESSING: c_int = 41;

/// Declares the table, and the function that fills it.
macro_rules! functions {
    (
        always { $($name:ident = $symbol:literal ($($type:ty),*);)* }
        perhaps { $($other:ident = $other_symbol:literal ($($other_type:ty),*);)* }
    ) => {
        /// The functions of the CUDA driver API that percale calls.
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($type),*) -> Code,)*
            $(pub(super) $other: Option<unsafe extern "C" fn($($other_type),*) -> Code>,)*
        }

        impl Functions {
            /// Returns the functions of a library, which is never unloaded, or an error that names the missing
            /// function.
            pub(super) fn of(library: &'static Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the driver's function of this name has this type.
                        let found = unsafe { library.get(concat!($symbol, "\0")) };
                        *found.map_err(|_| $symbol)?
                    },)*
                    $($other: {
                        // SAFETY: as above.
                        let found = unsafe { library.get(concat!($other_symbol, "\0")) };
                        found.ok().map(|found| *found)
                    },)*
                })
            }
        }
    };
}

functions! { always {
    init = "cuInit" (c_uint);
    driver_version = "cuDriverGetVersion" (*mut c_int);
    error_string = "cuGetErrorString" (Code, *mut *const c_char);
    device_count = "cuDeviceGetCount" (*mut c_int);
    device = "cuDeviceGet" (*mut DeviceHandle, c_int);
    device_name = "cuDeviceGetName" (*mut c_char, c_int, DeviceHandle);
    device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, DeviceHandle);
    retain_context = "cuDevicePrimaryCtxRetain" (*mut Opaque, DeviceHandle);
    push_context = "cuCtxPushCurrent_v2" (Opaque);
    pop_context = "cuCtxPopCurrent_v2" (*mut Opaque);
    pointer_attributes = "cuPointerGetAttributes" (c_uint, *const c_uint, *const *mut c_void, Address);
    address_range = "cuMemGetAddressRange_v2" (*mut Address, *mut usize, Address);
    allocate = "cuMemAlloc_v2" (*mut Address, usize);
    free = "cuMemFree_v2" (Address);
    allocate_managed = "cuMemAllocManaged" (*mut Address, usize, c_uint);
    allocate_host = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    free_host = "cuMemFreeHost" (*mut c_void);
    register_host = "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    unregister_host = "cuMemHostUnregister" (*mut c_void);
    host_device_address = "cuMemHostGetDevicePointer_v2" (*mut Address, *mut c_void, c_uint);
    copy_to_host = "cuMemcpyDtoHAsync_v2" (*mut c_void, Address, usize, Opaque);
    copy_to_device = "cuMemcpyHtoDAsync_v2" (Address, *const c_void, usize, Opaque);
    copy_on_device = "cuMemcpyDtoDAsync_v2" (Address, Address, usize, Opaque);
    make_stream = "cuStreamCreate" (*mut Opaque, c_uint);
    finish_stream = "cuStreamSynchronize" (Opaque);
    end_stream = "cuStreamDestroy_v2" (Opaque);
    make_event = "cuEventCreate" (*mut Opaque, c_uint);
    record_event = "cuEventRecord" (Opaque, Opaque);
    query_event = "cuEventQuery" (Opaque);
    finish_event = "cuEventSynchronize" (Opaque);
    export = "cuIpcGetMemHandle" (*mut IpcMemHandle, Address);
    open = "cuIpcOpenMemHandle_v2" (*mut Address, IpcMemHandle, c_uint);
    close = "cuIpcCloseMemHandle" (Address);

} perhaps {
    set_pointer_attribute = "cuPointerSetAttribute" (*const c_void, c_uint, Address);
    is_capturing = "cuStreamIsCapturing" (Opaque, *mut c_int);
    exchange_capture_mode = "cuThreadExchangeStreamCaptureMode" (*mut c_int);
    range_handle = "cuMemGetHandleForAddressRange" (*mut c_void, Address, usize, c_int, u64);
    write_value = "cuStreamWriteValue64_v2" (Opaque, Address, u64, c_uint);
    write_value_v1 = "cuStreamWriteValue64" (Opaque, Address, u64, c_uint);
} }

impl Functions {
    /// Returns an error, unless the code is success.
    pub(super) fn check(&self, function: &'static str, code: Code) -> Result<(), DeviceError> {
        if code == code::SUCCESS {
            return Ok(());
        }
        let mut text = ptr::null();
        // SAFETY: the argument is room for a pointer.
        let known = unsafe { (self.error_string)(code, &raw mut text) } == code::SUCCESS && !text.is_null();
        let text = if known {
            // SAFETY: this is the driver's text, which stays valid.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        } else {
            "unknown error".to_owned()
        };
        if code == code::NOT_SUPPORTED || code == code::NO_FUNCTION {
            return Err(DeviceError::Lacks(function));
        }
        Err(DeviceError::Driver { function, code, text, memory: code == code::OUT_OF_MEMORY })
    }
}

impl std::fmt::Debug for Functions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Functions")
    }
}

/// Logs an error that the caller cannot handle.
pub(super) fn log_failure(result: Result<(), DeviceError>) {
    if let Err(error) = result {
        crate::later::later!(warn: %error, "a call of the CUDA driver failed");
    }
}

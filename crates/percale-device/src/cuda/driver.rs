//! Implements percale's device driver interface with the CUDA driver API.

#![expect(unsafe_code, reason = "calls the driver; each block states its own reason")]

use std::error::Error;
use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::OnceLock;

use libloading::Library;

use super::context::PrimaryContext;
use super::functions::{
    ATTACH_GLOBAL, Address, DMA_BUF_FD, Functions, IpcMemHandle, LAZY_PEER_ACCESS, MEMORY_DEVICE, MEMORY_HOST,
    PORTABLE_MAPPED, UNIFIED_ADDRESSING, attribute, code, log_failure,
};
use super::settled::Settled;
use crate::driver::{Copies, Copy, CopyWay, DeviceError, Driver, Exported};
use crate::kind::{Interface, Kind, Place};
use crate::local_memory::volatile::Segment;

/// The environment variable with the file name of a library to use instead.
const LIBRARY: &str = "PERCALE_CUDA_LIBRARY";

/// The driver and its devices.
#[derive(Debug)]
pub(super) struct Cuda {
    functions: Functions,
    devices: Vec<Device>,
    settled: Settled,
}

#[derive(Debug)]
struct Device {
    handle: c_int,
    /// The context of the device. It is retained when it is first used, because that takes memory of the device.
    context: OnceLock<Result<PrimaryContext, DeviceError>>,
}

/// Returns the error for something that this machine lacks.
fn missing(what: impl Into<String>) -> DeviceError {
    DeviceError::Missing { interface: Interface::Cuda, what: what.into() }
}

impl Cuda {
    /// Loads the driver's library, and counts its devices.
    pub(super) fn load() -> Result<Self, DeviceError> {
        let name = std::env::var_os(LIBRARY).unwrap_or_else(|| "libcuda.so.1".into());
        // SAFETY: any program may load the driver's library, and its initializers do not affect percale. A user that
        // names another library is responsible for it.
        let library = unsafe { Library::new(&name) };
        let library = library.map_err(|error| {
            let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            missing(format!("cannot load the driver library {}: {why}", name.to_string_lossy()))
        })?;
        // The library is never unloaded, so its threads and the functions below stay valid.
        let library: &'static Library = Box::leak(Box::new(library));
        let functions = Functions::of(library)
            .map_err(|symbol| missing(format!("{} has no {symbol}: the driver is too old", name.to_string_lossy())))?;
        let mut cuda = Self { functions, devices: Vec::new(), settled: Settled::default() };
        // SAFETY: 0 is the only valid flag.
        let code = unsafe { (cuda.functions.init)(0) };
        if code == code::NO_DEVICE {
            return Err(missing("the driver found no device"));
        }
        cuda.functions.check("cuInit", code).map_err(|error| missing(error.to_string()))?;
        let mut count = 0;
        // SAFETY: the argument is room for a number.
        let code = unsafe { (cuda.functions.device_count)(&raw mut count) };
        cuda.functions.check("cuDeviceGetCount", code)?;
        for ordinal in 0..count {
            let mut handle = 0;
            // SAFETY: the argument is room for a handle.
            let code = unsafe { (cuda.functions.device)(&raw mut handle, ordinal) };
            cuda.functions.check("cuDeviceGet", code)?;
            let mut unified = 0;
            // SAFETY: the arguments are room for a number, and a handle that the driver returned.
            let code = unsafe { (cuda.functions.device_attribute)(&raw mut unified, UNIFIED_ADDRESSING, handle) };
            cuda.functions.check("cuDeviceGetAttribute", code)?;
            if unified == 0 {
                // Without unified addressing, the device's addresses could also be those of host memory (RCACHE-018).
                return Err(missing(format!("device {ordinal} has no unified addressing")));
            }
            cuda.devices.push(Device { handle, context: OnceLock::new() });
        }
        if cuda.devices.is_empty() {
            return Err(missing("the driver found no device"));
        }
        Ok(cuda)
    }

    fn device(&self, ordinal: u32) -> Result<&Device, DeviceError> {
        let none = || DeviceError::NoDevice { interface: Interface::Cuda, ordinal, devices: self.devices() };
        self.devices.get(ordinal as usize).ok_or_else(none)
    }

    fn context(&self, ordinal: u32) -> Result<&PrimaryContext, DeviceError> {
        let device = self.device(ordinal)?;
        device
            .context
            .get_or_init(|| PrimaryContext::new(&self.functions, device.handle))
            .as_ref()
            .map_err(DeviceError::clone)
    }

    /// Calls `then` while the context of this device is current.
    fn within<R>(&self, ordinal: u32, then: impl FnOnce() -> Result<R, DeviceError>) -> Result<R, DeviceError> {
        self.context(ordinal)?.within(&self.functions, then)
    }

    /// Returns the location of an address, after waiting for the application's synchronous copies there.
    fn settled_place(&self, at: usize) -> Result<Place, DeviceError> {
        let place = self.locate(at)?;
        if !place.kind.is_host() && !self.settled.contains(place.buffer) {
            self.within(place.ordinal, || self.settled.settle(&self.functions, at as Address, place.buffer))?;
        }
        Ok(place)
    }
}

/// Converts an address to the form that devices use. With unified addressing it is the same number.
fn address(memory: Segment) -> Address {
    memory.as_ptr().expose_provenance() as Address
}

/// Returns the memory at an address that the driver returned.
fn segment(address: Address, len: usize) -> Segment {
    // SAFETY: the driver returned this memory, and the code that gets it uses it only as its kind allows.
    unsafe { Segment::new(ptr::with_exposed_provenance_mut(address as usize), len) }
}

// SAFETY: each function of the driver accesses only the memory that it is passed, and copies have ended when their
// event is complete.
unsafe impl Driver for Cuda {
    fn interface(&self) -> Interface {
        Interface::Cuda
    }

    fn devices(&self) -> u32 {
        self.devices.len() as u32
    }

    fn locate(&self, address: usize) -> Result<Place, DeviceError> {
        const REQUESTED: [u32; 4] =
            [attribute::MEMORY_TYPE, attribute::BUFFER_ID, attribute::IS_MANAGED, attribute::DEVICE_ORDINAL];
        // Each element is wider than any of the attributes, so that their exact sizes do not matter. The byte order is
        // little-endian.
        let mut values = [0_u64; REQUESTED.len()];
        let room = values.each_mut().map(|word| ptr::from_mut(word).cast::<c_void>());
        // SAFETY: the arguments are `REQUESTED.len()` attributes, and room for as many values.
        let code = unsafe {
            (self.functions.pointer_attributes)(
                REQUESTED.len() as u32,
                REQUESTED.as_ptr(),
                room.as_ptr(),
                address as Address,
            )
        };
        self.functions.check("cuPointerGetAttributes", code)?;
        let [memory, buffer, managed, ordinal] = values.map(u64::from_le);
        let kind = match memory {
            _ if managed & 0xFF != 0 => Kind::Managed,
            MEMORY_DEVICE => Kind::Device,
            MEMORY_HOST => Kind::Pinned,
            _ => return Ok(Place::HOST),
        };
        if kind.is_host() {
            return Ok(Place { kind, ..Place::HOST });
        }
        // Managed memory need not belong to a particular device.
        let ordinal = if (ordinal as u32) < self.devices() { ordinal as u32 } else { 0 };
        Ok(Place { kind, ordinal, buffer })
    }

    fn settle(&self, address: usize) -> Result<(), DeviceError> {
        self.settled_place(address).map(|_| ())
    }

    unsafe fn begin(&self, ordinal: u32, copies: &[Copy]) -> Result<Copies, DeviceError> {
        for &(way, to, from) in copies {
            if way != CopyWay::ToDevice {
                self.settle(from.as_ptr().addr())?;
            }
            if way != CopyWay::ToHost {
                self.settle(to.as_ptr().addr())?;
            }
        }
        let context = self.context(ordinal)?;
        context.within(&self.functions, || {
            let (number, lane) = context.take(&self.functions)?;
            let begun = copies.iter().try_for_each(|&(way, to, from)| {
                let len = to.len().min(from.len());
                let (name, code) = match way {
                    CopyWay::ToHost => ("cuMemcpyDtoHAsync", {
                        // SAFETY: the caller keeps both memories.
                        unsafe { (self.functions.copy_to_host)(to.as_ptr().cast(), address(from), len, lane.stream) }
                    }),
                    CopyWay::ToDevice => ("cuMemcpyHtoDAsync", {
                        // SAFETY: as above.
                        unsafe { (self.functions.copy_to_device)(address(to), from.as_ptr().cast(), len, lane.stream) }
                    }),
                    CopyWay::OnDevice => ("cuMemcpyDtoDAsync", {
                        // SAFETY: as above.
                        unsafe { (self.functions.copy_on_device)(address(to), address(from), len, lane.stream) }
                    }),
                };
                self.functions.check(name, code)
            });
            // SAFETY: the event and the stream belong to the lane.
            let code = unsafe { (self.functions.record_event)(lane.event, lane.stream) };
            let copies = Copies { ordinal, lane: number };
            match begun.and_then(|()| self.functions.check("cuEventRecord", code)) {
                Ok(()) => Ok(copies),
                Err(error) => {
                    // The copies before it are in progress, and the event may not be recorded after them. SAFETY: the
                    // stream belongs to the lane.
                    let code = unsafe { (self.functions.finish_stream)(lane.stream) };
                    log_failure(self.functions.check("cuStreamSynchronize", code));
                    context.give_back(number);
                    Err(error)
                }
            }
        })
    }

    fn is_over(&self, copies: &Copies) -> Result<bool, DeviceError> {
        let context = self.context(copies.ordinal)?;
        let lane = context.lane(copies.lane);
        // SAFETY: the event belongs to the lane. A query needs no context.
        match unsafe { (self.functions.query_event)(lane.event) } {
            code::NOT_READY => Ok(false),
            code => self.functions.check("cuEventQuery", code).map(|()| true),
        }
    }

    fn finish(&self, copies: Copies) -> Result<(), DeviceError> {
        let context = self.context(copies.ordinal)?;
        let lane = context.lane(copies.lane);
        // SAFETY: the event belongs to the lane.
        let code = unsafe { (self.functions.finish_event)(lane.event) };
        context.give_back(copies.lane);
        self.functions.check("cuEventSynchronize", code)
    }

    fn describe(&self, ordinal: u32) -> Result<String, DeviceError> {
        let mut name = [0_u8; 128];
        let handle = self.device(ordinal)?.handle;
        // SAFETY: the argument is room for the bytes, one more than the length.
        let code = unsafe { (self.functions.device_name)(name.as_mut_ptr().cast(), name.len() as c_int - 1, handle) };
        self.functions.check("cuDeviceGetName", code)?;
        let mut version = 0;
        // SAFETY: the argument is room for a number.
        let code = unsafe { (self.functions.driver_version)(&raw mut version) };
        self.functions.check("cuDriverGetVersion", code)?;
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy();
        Ok(format!("{name}, driver for CUDA {}.{}", version / 1000, version % 1000 / 10))
    }

    fn allocate(&self, kind: Kind, ordinal: u32, len: usize) -> Result<Segment, DeviceError> {
        self.within(ordinal, || {
            let mut made = 0;
            match kind {
                Kind::Host => return Err(DeviceError::Lacks("allocation of ordinary host memory")),
                Kind::Pinned => {
                    let mut memory = ptr::null_mut();
                    // SAFETY: the argument is room for an address.
                    let code = unsafe { (self.functions.allocate_host)(&raw mut memory, len, PORTABLE_MAPPED) };
                    self.functions.check("cuMemHostAlloc", code)?;
                    made = memory.expose_provenance() as Address;
                }
                Kind::Managed => {
                    // SAFETY: the argument is room for an address.
                    let code = unsafe { (self.functions.allocate_managed)(&raw mut made, len, ATTACH_GLOBAL) };
                    self.functions.check("cuMemAllocManaged", code)?;
                }
                Kind::Device => {
                    // SAFETY: the argument is room for an address.
                    let code = unsafe { (self.functions.allocate)(&raw mut made, len) };
                    self.functions.check("cuMemAlloc", code)?;
                }
            }
            Ok(segment(made, len))
        })
    }

    unsafe fn free(&self, kind: Kind, ordinal: u32, memory: Segment) {
        let freed = self.within(ordinal, || {
            if kind == Kind::Pinned {
                // SAFETY: guaranteed by the caller.
                let code = unsafe { (self.functions.free_host)(memory.as_ptr().cast()) };
                return self.functions.check("cuMemFreeHost", code);
            }
            // SAFETY: guaranteed by the caller.
            let code = unsafe { (self.functions.free)(address(memory)) };
            self.functions.check("cuMemFree", code)
        });
        log_failure(freed);
    }

    unsafe fn register_host(&self, memory: Segment) -> Result<u64, DeviceError> {
        self.within(0, || {
            let first = memory.as_ptr().cast::<c_void>();
            // SAFETY: the caller keeps the memory.
            let code = unsafe { (self.functions.register_host)(first, memory.len(), PORTABLE_MAPPED) };
            self.functions.check("cuMemHostRegister", code)?;
            let mut mapped = 0;
            // SAFETY: the arguments are room for an address, and memory that was registered above.
            let code = unsafe { (self.functions.host_device_address)(&raw mut mapped, first, 0) };
            let found = self.functions.check("cuMemHostGetDevicePointer", code).map(|()| mapped);
            if found.is_err() {
                // SAFETY: the memory was registered above, and its address was not returned.
                let code = unsafe { (self.functions.unregister_host)(first) };
                log_failure(self.functions.check("cuMemHostUnregister", code));
            }
            found
        })
    }

    fn unregister_host(&self, memory: Segment) -> Result<(), DeviceError> {
        self.within(0, || {
            // SAFETY: the argument is an address, and the driver checks whether it is registered.
            let code = unsafe { (self.functions.unregister_host)(memory.as_ptr().cast()) };
            self.functions.check("cuMemHostUnregister", code)
        })
    }

    fn export(&self, ordinal: u32, at: usize) -> Result<Exported, DeviceError> {
        // The copies of the other process do not wait for the copies of this process.
        let place = self.settled_place(at)?;
        self.within(ordinal, || {
            let (mut first, mut len) = (0, 0);
            // SAFETY: the arguments are room for an address and a length.
            let code = unsafe { (self.functions.address_range)(&raw mut first, &raw mut len, at as Address) };
            self.functions.check("cuMemGetAddressRange", code)?;
            let mut handle = IpcMemHandle { bytes: [0; 64] };
            // SAFETY: the argument is room for a handle.
            let code = unsafe { (self.functions.export)(&raw mut handle, first) };
            self.functions.check("cuIpcGetMemHandle", code)?;
            let offset = at as u64 - first;
            Ok(Exported { handle: handle.bytes, offset, len: len as u64, buffer: place.buffer })
        })
    }

    fn open(&self, ordinal: u32, exported: &Exported) -> Result<Segment, DeviceError> {
        self.within(ordinal, || {
            let mut first = 0;
            let handle = IpcMemHandle { bytes: exported.handle };
            // SAFETY: the argument is room for an address, and the driver detects invalid handles.
            let code = unsafe { (self.functions.open)(&raw mut first, handle, LAZY_PEER_ACCESS) };
            self.functions.check("cuIpcOpenMemHandle", code)?;
            let mut len = 0;
            let mut start = 0;
            // SAFETY: the arguments are room for an address and a length.
            let code = unsafe { (self.functions.address_range)(&raw mut start, &raw mut len, first) };
            let found = self.functions.check("cuMemGetAddressRange", code).map(|()| segment(first, len));
            if found.is_err() {
                // SAFETY: the memory was opened above, and its address was not returned.
                let code = unsafe { (self.functions.close)(first) };
                log_failure(self.functions.check("cuIpcCloseMemHandle", code));
            }
            found
        })
    }

    unsafe fn close(&self, ordinal: u32, memory: Segment) {
        let closed = self.within(ordinal, || {
            // SAFETY: guaranteed by the caller.
            let code = unsafe { (self.functions.close)(address(memory)) };
            self.functions.check("cuIpcCloseMemHandle", code)
        });
        log_failure(closed);
    }

    fn dma_buf(&self, ordinal: u32, memory: Segment) -> Result<OwnedFd, DeviceError> {
        const NAME: &str = "cuMemGetHandleForAddressRange";
        let range_handle = self.functions.range_handle.ok_or(DeviceError::Lacks(NAME))?;
        self.settle(memory.as_ptr().addr())?;
        self.within(ordinal, || {
            let mut fd: RawFd = -1;
            // SAFETY: the argument is room for a descriptor, which is the form of this type of handle.
            let code = unsafe { range_handle((&raw mut fd).cast(), address(memory), memory.len(), DMA_BUF_FD, 0) };
            self.functions.check(NAME, code)?;
            // SAFETY: the driver created the descriptor for this call.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        })
    }

    unsafe fn write_value(&self, ordinal: u32, address: u64, value: u64) -> Result<(), DeviceError> {
        const NAME: &str = "cuStreamWriteValue64";
        let functions = &self.functions;
        let write = functions.write_value.or(functions.write_value_v1).ok_or(DeviceError::Lacks(NAME))?;
        let context = self.context(ordinal)?;
        context.within(&self.functions, || {
            let (number, lane) = context.take(&self.functions)?;
            // SAFETY: the caller guarantees the address, and the stream belongs to the lane.
            let code = unsafe { write(lane.stream, address, value, 0) };
            // SAFETY: the stream belongs to the lane.
            let finished = unsafe { (functions.finish_stream)(lane.stream) };
            context.give_back(number);
            self.functions.check(NAME, code)?;
            self.functions.check("cuStreamSynchronize", finished)
        })
    }
}

//! The interface between percale and the driver of a device.

use std::fmt::Debug;
use std::os::fd::OwnedFd;

use super::kind::{Interface, Kind, Place};
use crate::local_memory::volatile::Segment;

/// The reason why a device, or its memory, cannot be used.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// percale has no driver for such devices.
    #[error("memory of {0} devices is not supported (only CUDA)")]
    Unsupported(Interface),
    /// The machine lacks the driver or hardware that such devices need.
    #[error("{interface} is not available: {what}")]
    Missing {
        /// The interface of the devices.
        interface: Interface,
        /// The missing component.
        what: String,
    },
    /// The device number is too high.
    #[error("{interface} device {ordinal} does not exist ({devices} devices found)")]
    NoDevice {
        /// The interface of the devices.
        interface: Interface,
        /// The requested device number.
        ordinal: u32,
        /// The number of devices.
        devices: u32,
    },
    /// Some or all of the memory belongs to another device or to the host.
    #[error("the memory is not within one allocation of the device")]
    Mixed,
    /// The driver lacks this function.
    #[error("the driver has no {0}")]
    Lacks(&'static str),
    /// The driver returned an error.
    #[error("{function}: {text} ({code})")]
    Driver {
        /// The driver's function.
        function: &'static str,
        /// The driver's error code.
        code: i32,
        /// The driver's text for this error code.
        text: String,
        /// Whether the reason was a lack of memory.
        memory: bool,
    },
}

impl DeviceError {
    /// Returns the libfabric code.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Unsupported(_) | Self::Missing { .. } | Self::Lacks(_) => libc::ENOSYS,
            Self::NoDevice { .. } => libc::ENODEV,
            Self::Mixed => libc::EINVAL,
            Self::Driver { memory: true, .. } => libc::ENOMEM,
            Self::Driver { .. } => libc::EIO,
        }
    }
}

/// The description by which other processes of this machine open an allocation of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Exported {
    /// The driver's handle of the allocation.
    pub handle: [u8; 64],
    /// The offset in bytes of the requested address from the first byte of the allocation.
    pub offset: u64,
    /// The length of the allocation in bytes.
    pub len: u64,
    /// The number of the allocation (see [`Place::buffer`]).
    pub buffer: u64,
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyWay {
    /// From a device to the host.
    ToHost,
    /// From the host to a device.
    ToDevice,
    /// Between two devices, or within one device.
    OnDevice,
}

/// Copies that were begun together, identified by the driver's number. [`Driver::finish`] ends them, exactly once.
#[derive(Debug)]
#[must_use = "copies must be ended with `finish`"]
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "a driver reads the fields"))]
pub struct Copies {
    pub(super) ordinal: u32,
    pub(super) lane: usize,
}

/// A copy, described by its direction, its destination and its source. Both segments have the same length.
pub type Copy = (CopyWay, Segment, Segment);

/// The driver of all devices of an interface.
///
/// The application is responsible for ordering copies with the work on its own streams: memory that is passed to an
/// operation must not be in use by a stream. For synchronous calls (cuMemcpy, cudaMemcpy, cuMemset) on the default
/// stream it is sufficient that they have returned, although their last bytes may still be in progress. The driver
/// waits for them ([`settle`](Self::settle)).
///
/// # Safety
/// Implementations access only the memory of the copies that are passed to them, and do not access it after
/// [`finish`](Self::finish).
#[expect(unsafe_code, reason = "devices write memory; each unsafe method states its requirements")]
pub unsafe trait Driver: Debug + Send + Sync {
    /// Returns the interface of the driver's devices.
    fn interface(&self) -> Interface;

    /// Returns the number of devices.
    fn devices(&self) -> u32;

    /// Returns the location of an address. Memory that is unknown to the driver is reported as memory of the host.
    ///
    /// # Errors
    /// The error that the driver reports.
    fn locate(&self, address: usize) -> Result<Place, DeviceError>;

    /// Waits until the application's synchronous copies that have returned have written the allocation at this address.
    /// If the allocation supports it, later synchronous copies return only when they have written it. Does nothing for
    /// the host's memory.
    ///
    /// [`begin`](Self::begin), [`export`](Self::export) and [`dma_buf`](Self::dma_buf) do this as well. Memory is
    /// settled when it is registered, so that later copies need not wait.
    ///
    /// # Errors
    /// The error that the driver reports.
    fn settle(&self, address: usize) -> Result<(), DeviceError>;

    /// Begins copies, in order, on a separate stream, after the application's synchronous copies that have returned.
    ///
    /// # Errors
    /// The error that the driver reports. In this case no copy is in progress.
    ///
    /// # Safety
    /// The memory of both sides exists until [`finish`](Self::finish) returns, and is not accessed in conflicting ways
    /// until then.
    unsafe fn begin(&self, ordinal: u32, copies: &[Copy]) -> Result<Copies, DeviceError>;

    /// Returns whether copies have ended.
    ///
    /// # Errors
    /// The error that the driver reports. In this case the copies have ended too.
    fn is_over(&self, copies: &Copies) -> Result<bool, DeviceError>;

    /// Waits until copies have ended.
    ///
    /// # Errors
    /// If one of them failed.
    fn finish(&self, copies: Copies) -> Result<(), DeviceError>;

    /// Returns the name that the device reports.
    ///
    /// # Errors
    /// The error that the driver reports.
    fn describe(&self, ordinal: u32) -> Result<String, DeviceError>;

    /// Allocates memory of a device, managed memory, or pinned memory of the host (for all devices).
    ///
    /// # Errors
    /// The error that the driver reports. [`DeviceError::Lacks`] for kinds of memory that drivers do not allocate.
    fn allocate(&self, kind: Kind, ordinal: u32, len: usize) -> Result<Segment, DeviceError>;

    /// Frees memory.
    ///
    /// # Safety
    /// The memory came from [`allocate`](Self::allocate), of this kind and device, and is not in use.
    unsafe fn free(&self, kind: Kind, ordinal: u32, memory: Segment);

    /// Registers memory of the host so that devices can access it. Returns its address for devices.
    ///
    /// # Errors
    /// The error that the driver reports.
    ///
    /// # Safety
    /// The memory stays allocated until [`unregister_host`](Self::unregister_host).
    unsafe fn register_host(&self, memory: Segment) -> Result<u64, DeviceError>;

    /// Ends the registration of [`register_host`](Self::register_host).
    ///
    /// # Errors
    /// The error that the driver reports.
    fn unregister_host(&self, memory: Segment) -> Result<(), DeviceError>;

    /// Returns a description of a device's memory by which other processes can open it.
    ///
    /// # Errors
    /// The error that the driver reports. Some memory cannot be exported.
    fn export(&self, ordinal: u32, address: usize) -> Result<Exported, DeviceError>;

    /// Opens an allocation of another process. The returned segment begins with the first byte of the allocation.
    ///
    /// # Errors
    /// The error that the driver reports, for example if the two devices cannot access each other's memory.
    fn open(&self, ordinal: u32, exported: &Exported) -> Result<Segment, DeviceError>;

    /// Closes memory of another process.
    ///
    /// # Safety
    /// The memory came from [`open`](Self::open), and is not in use.
    unsafe fn close(&self, ordinal: u32, memory: Segment);

    /// Returns a dma-buf of a device's memory, for other devices' drivers. Some memory cannot be settled permanently
    /// (in CUDA, memory of pools and mapped memory). For such memory the caller waits for later synchronous copies
    /// before the other device reads it.
    ///
    /// # Errors
    /// The error that the driver reports. [`DeviceError::Lacks`] if the driver is too old.
    fn dma_buf(&self, ordinal: u32, memory: Segment) -> Result<OwnedFd, DeviceError>;

    /// Writes 64 bits in a stream of the device. Returns when the write is done.
    ///
    /// # Errors
    /// The error that the driver reports.
    ///
    /// # Safety
    /// `address` is the address, for devices, of host memory that was registered
    /// ([`register_host`](Self::register_host)). The 8 bytes there are aligned, stay registered until this function
    /// returns, and are accessed by the host as an atomic.
    unsafe fn write_value(&self, ordinal: u32, address: u64, value: u64) -> Result<(), DeviceError>;
}

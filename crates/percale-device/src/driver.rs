//! What percale asks of a device's driver.

use std::fmt::Debug;
use std::os::fd::OwnedFd;

use super::kind::{Interface, Kind, Place};
use crate::local_memory::volatile::Segment;

/// Why a device, or its memory, cannot be used.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// percale has nothing for such devices (HMEM-005).
    #[error("memory of {0} devices is not supported; CUDA's is")]
    Unsupported(Interface),
    /// The machine lacks what such devices need (HMEM-006).
    #[error("no {interface} here: {what}")]
    Missing {
        /// The interface of the devices.
        interface: Interface,
        /// What is missing.
        what: String,
    },
    /// There are fewer devices.
    #[error("there is no {interface} device {ordinal}: there are {devices}")]
    NoDevice {
        /// The interface of the devices.
        interface: Interface,
        /// The number asked for.
        ordinal: u32,
        /// How many there are.
        devices: u32,
    },
    /// The memory is another device's, or the host's, in whole or in part.
    #[error("the memory is not all of one allocation of the device that was named")]
    Mixed,
    /// The driver cannot do this.
    #[error("the driver has no {0}")]
    Lacks(&'static str),
    /// The driver refused.
    #[error("{function}: {text} ({code})")]
    Driver {
        /// Which of its functions.
        function: &'static str,
        /// Its code.
        code: i32,
        /// The driver's text for that code.
        text: String,
        /// There was no memory for it.
        memory: bool,
    },
}

impl DeviceError {
    /// The libfabric code.
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

/// What names an allocation of a device to other processes of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Exported {
    /// The driver's name of the allocation.
    pub handle: [u8; 64],
    /// The offset in bytes, from the allocation's first byte, of the address that was asked about.
    pub offset: u64,
    /// The allocation's length in bytes.
    pub len: u64,
    /// As in [`Place::buffer`].
    pub buffer: u64,
}

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From a device to the host.
    ToHost,
    /// From the host to a device.
    ToDevice,
    /// From a device to one, or to itself.
    OnDevice,
}

/// Copies that were begun together. The number is the driver's; to be ended by [`Driver::finish`], once.
#[derive(Debug)]
#[must_use = "copies are waited for"]
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "a driver reads the fields"))]
pub struct Copies {
    pub(super) ordinal: u32,
    pub(super) lane: usize,
}

/// One copy: which way, to, from. Both are equally long.
pub type Copy = (Way, Segment, Segment);

/// A driver: of all devices of an interface.
///
/// A copy's order to what the application does on its own streams is the application's to make: memory that is given to an operation is quiet.
/// Synchronous calls (cuMemcpy, cudaMemcpy, cuMemset) on the default stream need nothing more than to have returned, although their last bytes may be
/// under way then: the driver waits for them ([`settle`](Self::settle)).
///
/// # Safety
/// Implementations touch no memory but that of the copies they are given, and none after [`finish`](Self::finish).
#[expect(unsafe_code, reason = "devices write memory; each method that lets them says what it needs")]
pub unsafe trait Driver: Debug + Send + Sync {
    /// The interface that the driver is for.
    fn interface(&self) -> Interface;

    /// How many devices there are.
    fn devices(&self) -> u32;

    /// Where an address is. Memory that the driver does not know is the host's.
    ///
    /// # Errors
    /// The error that the driver reports.
    fn locate(&self, address: usize) -> Result<Place, DeviceError>;

    /// Waits until the application's synchronous copies that have returned have written the allocation at this address, and, where the
    /// allocation allows that, has later ones return when they have. Nothing to do for the host's memory.
    ///
    /// [`begin`](Self::begin), [`export`](Self::export) and [`dma_buf`](Self::dma_buf) do so. Memory that is registered is settled then, so that
    /// later copies need not wait.
    ///
    /// # Errors
    /// The error that the driver reports.
    fn settle(&self, address: usize) -> Result<(), DeviceError>;

    /// Begins copies, in order, on a stream of their own, after the application's synchronous copies that have returned.
    ///
    /// # Errors
    /// The error that the driver reports; no copy is under way then.
    ///
    /// # Safety
    /// The memory of both sides exists until [`finish`](Self::finish) returns, and is not used in conflicting ways until then.
    unsafe fn begin(&self, ordinal: u32, copies: &[Copy]) -> Result<Copies, DeviceError>;

    /// Returns whether copies are over.
    ///
    /// # Errors
    /// The error that the driver reports; the copies are over then, too.
    fn is_over(&self, copies: &Copies) -> Result<bool, DeviceError>;

    /// Waits until copies are over.
    ///
    /// # Errors
    /// If one of them failed.
    fn finish(&self, copies: Copies) -> Result<(), DeviceError>;

    /// What the device calls itself.
    ///
    /// # Errors
    /// The error that the driver reports.
    fn describe(&self, ordinal: u32) -> Result<String, DeviceError>;

    /// Allocates memory: a device's, managed, or pinned memory of the host (then for all devices).
    ///
    /// # Errors
    /// The error that the driver reports. [`DeviceError::Lacks`] of memory that is none of a driver's.
    fn allocate(&self, kind: Kind, ordinal: u32, len: usize) -> Result<Segment, DeviceError>;

    /// Frees memory.
    ///
    /// # Safety
    /// The memory came from [`allocate`](Self::allocate), of this kind and device, and is not in use.
    unsafe fn free(&self, kind: Kind, ordinal: u32, memory: Segment);

    /// Lets devices reach memory of the host; returns where it is for them.
    ///
    /// # Errors
    /// The error that the driver reports.
    ///
    /// # Safety
    /// The memory stays there until [`unregister_host`](Self::unregister_host).
    unsafe fn register_host(&self, memory: Segment) -> Result<u64, DeviceError>;

    /// Ends that.
    ///
    /// # Errors
    /// The error that the driver reports.
    fn unregister_host(&self, memory: Segment) -> Result<(), DeviceError>;

    /// Names a device's memory for other processes.
    ///
    /// # Errors
    /// The error that the driver reports; not all memory can be.
    fn export(&self, ordinal: u32, address: usize) -> Result<Exported, DeviceError>;

    /// Opens memory of another process; the allocation's first byte is where the segment begins.
    ///
    /// # Errors
    /// The error that the driver reports: there may be no way from that device to this one.
    fn open(&self, ordinal: u32, exported: &Exported) -> Result<Segment, DeviceError>;

    /// Closes memory of another process.
    ///
    /// # Safety
    /// The memory came from [`open`](Self::open), and is not in use.
    unsafe fn close(&self, ordinal: u32, memory: Segment);

    /// A dma-buf of a device's memory, for other devices' drivers. Of memory that cannot be settled once and for all (of CUDA: of pools, and mapped),
    /// the caller waits for later synchronous copies before the other device reads it.
    ///
    /// # Errors
    /// The error that the driver reports; [`DeviceError::Lacks`] of older drivers.
    fn dma_buf(&self, ordinal: u32, memory: Segment) -> Result<OwnedFd, DeviceError>;

    /// A stream of the device writes 64 bits; returns when that is done.
    ///
    /// # Errors
    /// The error that the driver reports.
    ///
    /// # Safety
    /// `address` is in memory of the host, as devices address it ([`register_host`](Self::register_host)). The 8 bytes there are aligned, stay
    /// registered until this returns, and are accessed by the host as an atomic.
    unsafe fn write_value(&self, ordinal: u32, address: u64, value: u64) -> Result<(), DeviceError>;
}

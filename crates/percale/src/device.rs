//! Devices that access memory directly: the memory of these devices, and memory that is pinned for them.
//!
//! **Memory kinds.** Operations may use the memory of a device if percale can load its driver. [`Device`] names a
//! device, [`Kind`] is the kind of memory at an address, and [`Driver`] is the interface to a driver. The only driver
//! at present is CUDA's. Requests for other interfaces fail with an error that names the interface. No instruction of
//! this library accesses a device's memory. The driver copies it from and to pinned memory of the host (`pinned`),
//! which is kept for the next transfer.
//!
//! **io_uring** is treated as a device, too. A *fixed buffer* is memory that the kernel has pinned once, so that
//! operations on it neither look up nor pin pages. [`FixedBuffers`] reads and writes files and sockets from any memory
//! this way, through the domain's registration cache.

#[cfg(not(loom))]
#[doc(hidden)] // For the crates of percale.
pub use percale_device::{BufferTable, Slot, Way};
#[doc(inline)]
pub use percale_device::{Copies, Copy, CopyWay, Device, DeviceError, Driver, Exported, Interface, Kind, Place};
#[cfg(not(loom))]
#[doc(inline)]
pub use percale_device::{FixedBuffers, FixedError, FixedLane};

#[cfg(not(loom))]
pub(crate) use percale_device::behind;
pub(crate) use percale_device::{Arriving, LONG, Pieces, Pinned, whole};

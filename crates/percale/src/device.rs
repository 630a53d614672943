//! Devices that reach memory by themselves: their memory, and what they want pinned.
//!
//! **Memory kinds.** Operations may use the memory of a device with a driver that percale loads: [`Device`] names one, [`Kind`] is the kind of memory
//! at an address, and [`Driver`] is all that percale asks of a driver. There is one driver, CUDA's; other interfaces are refused by name. No
//! instruction of this library touches a device's memory: its driver copies, to and from pinned memory of the host (`pinned`) that is kept for the
//! next transfer.
//!
//! **io_uring** is a device, too: a *fixed buffer* is memory that the kernel has pinned once, so that operations on it neither look up nor
//! pin pages. [`FixedBuffers`] reads and writes files and sockets from any memory this way, through the domain's registration cache.

#[cfg(not(loom))]
#[doc(inline)]
pub use percale_device::{BufferTable, FixedBuffers, FixedError, FixedLane, Slot, Way};
#[doc(inline)]
pub use percale_device::{Copies, Copy, CopyWay, Device, DeviceError, Driver, Exported, Interface, Kind, Place};

#[cfg(not(loom))]
pub(crate) use percale_device::behind;
pub(crate) use percale_device::{Arriving, LONG, Pieces, Pinned, whole};

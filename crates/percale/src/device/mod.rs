//! Devices that access memory directly: the memory of these devices, and memory that is pinned for them.
//!
//! **Memory kinds.** Operations may use the memory of a device if percale can load its driver. [`Device`] names a
//! device, [`Kind`] is the kind of memory at an address, and [`Driver`] is the interface to a driver. The only driver
//! at present is CUDA's. Other interfaces are rejected by name. No instruction of this library accesses a device's
//! memory. The driver copies it from and to pinned memory of the host (`pinned`), which is kept for the next transfer.
//!
//! **io_uring** is treated as a device, too. A *fixed buffer* is memory that the kernel has pinned once, so that
//! operations on it neither look up nor pin pages. [`FixedBuffers`] reads and writes files and sockets from any memory
//! this way, through the domain's registration cache.
//!
//! * `kind`: kinds and places of memory; `driver`: the trait; `cuda`: its implementation; `handle`: [`Device`]
//! * `mapped`: memory of the host that devices write; `pinned`: pinned buffers for copies; `copied`: locates the memory
//!   of operations and copies it; `arriving`: copies long payloads step by step
//! * `ring`: an io_uring for any number of threads; [`BufferTable`]: its fixed buffers as a registrar; [`Way`]: the
//!   direction of a transfer
//! * [`FixedBuffers`]: transfers through the table and a cache

mod arriving;
mod copied;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "cuda/absent.rs"]
mod cuda;
mod driver;
#[cfg(not(loom))]
mod fixed;
mod handle;
mod kind;
mod mapped;
mod pinned;
#[cfg(all(not(loom), feature = "io-uring"))]
mod ring;
#[cfg(all(not(loom), feature = "io-uring"))]
mod table;
#[cfg(all(not(loom), not(feature = "io-uring")))]
#[path = "table_absent.rs"]
mod table;
#[cfg(not(loom))]
mod way;

pub(crate) use arriving::{Arriving, LONG};
pub(crate) use copied::{Pieces, aligned, changing};
pub use driver::{Copies, Copy, DeviceError, Driver, Exported, Way as CopyWay};
#[cfg(not(loom))]
pub use fixed::{FixedBuffers, FixedError, FixedLane};
pub use handle::Device;
pub(crate) use handle::whole;
pub use kind::{Interface, Kind, Place};
pub(crate) use mapped::Mapped;
pub(crate) use pinned::{Pinned, pinned};
#[cfg(not(loom))]
pub use table::{BufferTable, Slot};
#[cfg(not(loom))]
pub use way::Way;

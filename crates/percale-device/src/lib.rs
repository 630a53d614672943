//! An internal crate of [percale](https://docs.rs/percale). Its API is not stable: programs use `percale`.
//!
//! Devices that access memory directly, the memory of these devices, and memory that is pinned for them.
//!
//! **Memory kinds.** Operations may use the memory of a device if percale can load its driver. [`Device`] names a
//! device, [`Kind`] is the kind of memory at an address, and [`Driver`] is the interface to a driver. The only driver
//! at present is CUDA's. Requests for other interfaces fail with an error that names the interface. No instruction of
//! this library accesses a device's memory. The driver copies it from and to pinned memory of the host (`pinned`),
//! which is kept for the next transfer.
//!
//! **io_uring** is treated as a device too. A *fixed buffer* is memory that the kernel has pinned once, so that
//! operations on it neither look up nor pin pages. [`FixedBuffers`] reads and writes files and sockets from any memory
//! in this way, through the domain's registration cache.
//!
//! * `kind`: kinds and locations of memory
//! * `driver`: the driver trait
//! * `cuda`: the implementation of the trait for CUDA
//! * `handle`: [`Device`]
//! * `variable`: [`Variable`], which a device writes to begin an operation
//! * `mapped`: memory of the host that devices write
//! * `pinned`: pinned memory of the host for transfers
//! * `copied`: the pieces of operations' memory, and copies of them
//! * `arriving`: copies of long payloads
//! * `ring`: io_uring for any number of threads
//! * [`BufferTable`]: its fixed buffers, as a registrar
//! * [`Way`]: the direction of a transfer
//! * [`FixedBuffers`]: the table behind a cache, and transfers

// Labels on docs.rs the items that need a feature.
#![cfg_attr(docsrs, feature(doc_cfg))]

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
mod variable;
#[cfg(not(loom))]
mod way;

// Modules of the crate below are re-exported under their names.
use percale_memory::{later, local_memory, short_debug, system};

pub use arriving::{Arriving, LONG};
pub use copied::{Pieces, aligned, changing};
pub use driver::{Copies, Copy, CopyWay, DeviceError, Driver, Exported};
#[cfg(not(loom))]
pub use fixed::{FixedBuffers, FixedError, FixedLane, behind};
pub use handle::{Device, whole};
pub use kind::{Interface, Kind, Place};
pub use mapped::Mapped;
pub use pinned::{Pinned, pinned};
#[cfg(not(loom))]
pub use table::{BufferTable, Slot};
pub use variable::{Variable, Variables};
#[cfg(not(loom))]
pub use way::Way;

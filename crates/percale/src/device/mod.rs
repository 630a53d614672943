//! Devices that reach memory by themselves, and want it pinned for that.
//!
//! io_uring is one: a *fixed buffer* is memory that the kernel has pinned once, so that operations on it neither look up nor
//! pin pages. [`FixedBuffers`] reads and writes files and sockets from any memory this way, through the domain's
//! registration cache.
//!
//! * `ring`: io_uring, by any number of threads · [`BufferTable`]: its fixed buffers, as a registrar
//! * [`FixedBuffers`]: the table behind a cache, and transfers

mod fixed;
mod ring;
mod table;

pub use fixed::{FixedBuffers, FixedError, FixedLane};
pub use table::{BufferTable, Way};

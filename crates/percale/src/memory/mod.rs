//! Memory that operations read and write.
//!
//! * [`volatile`] describes ranges of memory to which other threads or processes may be writing, and copies to and from
//!   them.
//! * [`buffer`] is the memory that safe operations own while they are in progress.
//! * [`sealed`] allocates memory that local peers can map. [`typed`] is memory of plain values of a type.
//! * [`region`] is memory that peers may access until it is revoked. [`window`] gives revocable, limited rights to a
//!   part of a region.
//! * [`atomic`] defines atomic operations and their data types.

pub mod region;
pub mod window;

#[doc(hidden)] // For the crates of percale.
pub use crate::region::lease::Lease;

/// Atomic operations on memory that peers and this process's threads may access at the same time (fi_atomic(3)).
pub mod atomic {
    #[doc(inline)]
    pub use crate::local_memory::atomic::{AtomicKind, AtomicOp, Datatype, Misaligned, is_valid};
}

/// The memory that a safe operation owns while it is in progress.
pub mod buffer {
    #[doc(inline)]
    pub use crate::local_memory::buffer::{Buffer, IntoAllocationError};
    #[doc(inline)]
    pub use crate::local_memory::buffer_pool::BufferPool;
}

/// Memory of plain values of a type.
pub mod typed {
    #[doc(inline)]
    pub use crate::local_memory::typed_memory::{FromBufferError, Plain, TypedAllocation, TypedMemory};
}

/// The functions that map and unmap pages shared with other processes.
#[doc(hidden)] // For the crates of percale.
pub mod mapping {
    #[doc(inline)]
    pub use crate::local_memory::mapping::{Mapping, back, published_memfd, sealed_memfd};
}

/// Memory that percale allocates, so that peers on this machine can map it.
pub mod sealed {
    #[doc(inline)]
    pub use crate::local_memory::sealed::{AllocateError, Allocation};
    #[doc(hidden)] // For the crates of percale.
    pub use crate::local_memory::sealed::{Located, allocate, locate};
}

/// Ranges of memory that other threads or processes may read or write at the same time, and received bytes in such
/// memory.
pub mod volatile {
    #[doc(inline)]
    pub use crate::local_memory::volatile::{IOV_LIMIT, Segment, Segments, View};
}

/// Returns whether memory of this process is mapped and readable, and also writable if `writable`. If it returns true,
/// the pages are present. Special mappings, which cannot be checked, count as mapped.
#[must_use]
pub fn is_mapped(memory: volatile::Segment, writable: bool) -> bool {
    crate::local_memory::kernel::check(memory, writable).is_ok()
}

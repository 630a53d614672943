//! Memory: what operations read and write.
//!
//! * [`volatile`] names ranges of memory that other threads or processes may be writing, and copies to and from them.
//! * [`buffer`] is the memory that safe operations own while they are under way.
//! * [`sealed`] allocates memory that local peers can map.
//! * [`region`] is memory that peers may access until it is revoked; [`window`] a revocable, narrower right to a part of it.
//! * [`atomic`] executes atomic operations; a [`Lease`] is memory lent to a transfer.
//! * [`mapping`] is the one place that maps and unmaps pages.

pub mod region;
pub mod window;

pub use crate::local_memory::{atomic, buffer, mapping, sealed, volatile};
pub use crate::region::lease::Lease;

/// Whether memory of this process is mapped and readable, and also writable if `writable`. Its pages are present then. Special mappings,
/// which cannot be checked, count as mapped.
#[must_use]
pub fn is_mapped(memory: volatile::Segment, writable: bool) -> bool {
    crate::local_memory::kernel::check(memory, writable).is_ok()
}

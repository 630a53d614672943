//! Memory: what operations read and write.
//!
//! * [`volatile`] names ranges of memory that other threads or processes may be writing, and copies to and from them.
//! * [`buffer`] is the memory that safe operations own while they are under way.
//! * [`sealed`] allocates memory that local peers can map.
//! * [`region`] is memory that peers may access until it is revoked; [`window`] a revocable, narrower right to a part of it.
//! * [`atomic`] executes atomic operations; `rundown` announces accesses; `lease` is memory lent to a transfer.
//! * `barrier` executes fences for other processes; `kernel` copies to and from memory that may not be mapped.
//! * `words` are 64-bit words shared by threads or processes.
//! * [`mapping`] is the one place that maps and unmaps pages.

pub mod atomic;
pub(crate) mod barrier;
pub mod buffer;
mod free_list;
pub(crate) mod kernel;
pub mod lease;
pub mod mapping;
pub mod region;
pub(crate) mod rundown;
pub mod sealed;
pub mod volatile;
pub mod window;
pub(crate) mod words;

/// Whether memory of this process is mapped and readable, and also writable if `writable`. Its pages are present then. Special mappings,
/// which cannot be checked, count as mapped.
#[must_use]
pub fn is_mapped(memory: volatile::Segment, writable: bool) -> bool {
    kernel::check(memory, writable).is_ok()
}

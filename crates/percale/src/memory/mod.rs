//! Memory: what operations read and write.
//!
//! * [`volatile`] names ranges of memory that somebody else may be writing, and copies to and from them.
//! * [`buffer`] is what safe operations own while they are under way.
//! * [`sealed`] allocates memory that local peers can map.
//! * [`region`] is memory that peers may reach, and taking it back; [`window`] a revocable, narrower right to a part of it.
//! * [`atomic`] is what atomic operations do to it; `rundown` how accesses are announced; `lease` memory lent to a transfer.
//! * `barrier` fences for others; `kernel` copies to and from memory that may not be there.
//! * `words` are 64-bit words shared by threads or processes.
//! * [`mapping`] is the one place that maps and unmaps pages.
//! * `call` names the system calls that fail; `event` is what threads and peers wake each other by.

pub mod atomic;
pub(crate) mod barrier;
pub mod buffer;
pub(crate) mod call;
pub(crate) mod event;
pub(crate) mod forked;
mod free_list;
pub(crate) mod interrupted;
pub(crate) mod kernel;
pub mod lease;
pub mod mapping;
pub mod region;
pub(crate) mod rundown;
pub mod sealed;
pub mod volatile;
pub mod window;
pub(crate) mod words;

/// Whether memory of this process is mapped, and can be read, or written too; its pages are there then. Special mappings, which cannot be
/// asked about, count as mapped.
#[must_use]
pub fn is_mapped(memory: volatile::Segment, writable: bool) -> bool {
    kernel::check(memory, writable).is_ok()
}

//! Memory as this process uses it, without the keys by which peers reach it (those are in percale's module `memory`,
//! which also exports what programs use of this one).
//!
//! * [`volatile`] names ranges of memory that other threads or processes may be writing, and copies to and from them.
//! * [`buffer`] is the memory that safe operations own while they are under way.
//! * [`sealed`] allocates memory that local peers can map; `free_list` finds room in it.
//! * `access` has the rights to memory; [`atomic`] executes atomic operations; `rundown` announces accesses.
//! * `bell` wakes endpoints of other processes; `barrier` executes fences for them; `kernel` copies to and from memory that may not be mapped.
//! * `words` are 64-bit words shared by threads or processes.
//! * [`mapping`] is the one place that maps and unmaps pages.

pub mod access;
pub mod atomic;
pub mod barrier;
pub mod bell;
pub mod buffer;
mod free_list;
pub mod kernel;
pub mod mapping;
pub mod rundown;
pub mod sealed;
pub mod volatile;
pub mod words;

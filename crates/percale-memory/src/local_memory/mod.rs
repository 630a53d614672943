//! Memory as this process uses it, without the keys that peers use to access it. Keys are in percale's module `memory`,
//! which also exports the public types of this module.
//!
//! * [`volatile`] contains references to memory that other threads or processes may be writing, and copies to and from
//!   it.
//! * [`memory_view`] is access of the owner to memory that peers may access at the same time.
//! * [`buffer`] is the memory that safe operations own while they are in progress. [`buffer_pool`] hands out buffers of
//!   one allocation.
//! * [`sealed`] allocates memory that local peers can map. `free_list` finds free ranges in it.
//! * [`typed_memory`] is memory of values of a type, which buffers can own. `plain` are the types of such values.
//! * `access` contains the rights to memory, [`atomic`] executes atomic operations, and `rundown` announces accesses.
//! * `doorbell` wakes up endpoints of other processes. `barrier` executes fences for them. `kernel` copies to and from
//!   memory that may be unmapped.
//! * `words` are 64-bit words that are shared by threads or processes. `short_bytes` are owned bytes, mostly few.
//! * [`mapping`] is the only module that maps and unmaps shared pages.

pub mod access;
pub mod atomic;
pub mod barrier;
pub mod buffer;
pub mod buffer_pool;
pub mod doorbell;
mod free_list;
pub mod kernel;
pub mod mapping;
pub mod memory_view;
mod plain;
pub mod rundown;
pub mod sealed;
pub mod short_bytes;
pub mod typed_memory;
pub mod volatile;
pub mod words;

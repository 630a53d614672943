//! Memory: what operations read and write.
//!
//! * [`volatile`] names ranges of memory that somebody else may be writing, and copies to and from them.
//! * [`atomic`]: operations on memory that others may be changing.
//! * [`buffer`] is what safe operations own while they are under way.
//! * [`sealed`] allocates memory that local peers can map.
//! * [`mapping`] is the one place that maps and unmaps pages.
//! * `rundown` says when a peer's access to our memory has ended.

#[allow(dead_code, unused_imports, reason = "one-sided operations are built on it")]
pub mod atomic;
pub mod buffer;
pub(crate) mod forked;
mod free_list;
pub mod mapping;
#[allow(dead_code, reason = "regions and direct access are built on it")]
pub(crate) mod rundown;
pub mod sealed;
pub mod volatile;

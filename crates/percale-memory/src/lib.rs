//! An internal crate of [percale](https://docs.rs/percale), without any promise of stability: programs use `percale`.
//!
//! It contains what the other crates of percale share, and depends on none of them:
//!
//! * [`local_memory`]: volatile views, mappings, sealed allocations, buffers, atomic operations, and the announcement of accesses
//! * [`system`]: what every module needs of the operating system
//! * [`types`]: plain types that modules of all layers name
//! * [`table`]: values with numbers that may leave the code that owns them
//! * [`errands`], [`mod@later`]: calls of the application's code, and log events, that wait until no lock is held
//! * [`sync`]: the switch between the standard library's atomics and loom's; [`debug`]: `Debug` of public types
//!
//! A type that programs know by percale has only those inherent methods that are part of percale's API. What the other crates of percale do with it
//! is in a trait (`SegmentsExt`, `ViewExt`, ...), which percale does not export.
//!
//! The feature `testing` adds functions for the tests of the crates above.

pub mod debug;
pub mod errands;
pub mod later;
pub mod local_memory;
pub mod sync;
pub mod system;
pub mod table;
pub mod types;

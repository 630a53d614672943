//! An internal crate of [percale](https://docs.rs/percale). Its API is not stable: programs use `percale`.
//!
//! It contains code that the other crates of percale share. It does not depend on any of them.
//!
//! * [`local_memory`]: volatile views, mappings, sealed allocations, buffers, atomic operations, and the announcement
//!   of accesses
//! * [`system`]: functions of the operating system that every module needs
//! * [`types`]: plain types that modules of all layers use
//! * [`table`]: values identified by numbers that may be passed to other code
//! * [`deferred_actions`], [`mod@later`]: calls of application code, and log events, that wait until no lock is held
//! * [`sync`]: the switch between the standard library's atomics and loom's
//! * [`debug`]: `Debug` of public types
//!
//! A type that is part of percale's API has only the inherent methods that belong to that API. The methods for
//! percale's other crates are in traits (`SegmentsExt`, `ViewExt`, ...), which percale does not export.
//!
//! The feature `testing` adds functions for the tests of the crates that depend on this one.

// Labels on docs.rs the items that need a feature.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod debug;
pub mod deferred_actions;
pub mod later;
pub mod local_memory;
pub mod sync;
pub mod system;
pub mod table;
pub mod types;

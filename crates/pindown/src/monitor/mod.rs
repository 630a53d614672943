//! Monitors: what tells a cache that an address no longer lies on the pages that were pinned.
//!
//! * [`bpf`]: programs in the kernel; every kind of memory, a hit costs two loads

pub mod bpf;

//! pindown: a registration cache that never returns a stale registration.
//!
//! Devices that read and write memory directly (RDMA adapters, GPUs, io_uring's fixed buffers) need it pinned first,
//! and pinning costs more than many transfers. A registration cache keeps memory pinned between transfers. A
//! registration becomes *stale* if the process unmaps the address and maps other memory there: the device still
//! accesses the old pages, without an error. pindown processes every such change before it returns a registration
//! again, or does not keep the registration.
//!
//! * [`Cache`]: registrations by range and rights; each user of the cache has a [`Lane`], each operation a [`Use`]
//! * [`Registrar`]: pins and unpins memory; implemented by the application
//! * [`monitor`]: reports memory changes to the cache

// Labels on docs.rs the items that need a feature.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod access;
pub mod cache;
mod calls;
#[cfg(not(loom))]
#[doc(hidden)] // For the C library.
pub mod capi;
mod journal;
#[cfg(not(loom))]
pub mod mapping;
pub mod monitor;
mod range;
mod registrar;
mod sync;

pub use access::Access;
pub use cache::{
    Builder, Cache, Handle, Lane, LookupError, MOST_REGISTRATIONS, OpenError, Registration, Stats, UnknownHandle, Use,
    Waited, WrongLane,
};
pub use range::{Range, RangeError, page_size};
pub use registrar::{Pinned, Registrar};

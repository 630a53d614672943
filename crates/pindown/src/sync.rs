//! Atomics and locks of the standard library, or of loom in models.

// The file of percale-memory: only models need it, so pindown does not depend on that crate.
#[cfg(all(test, loom))]
#[path = "../../percale-memory/src/sync/model.rs"]
mod model;

#[cfg(all(test, loom))]
pub(crate) use self::model::explore;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

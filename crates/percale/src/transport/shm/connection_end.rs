//! How the thread that watches a connection reports its end to the link.
//!
//! The end of a connection says nothing about the peer's process, which may go on and be in the middle of a copy: memory that it may
//! touch waits for [`Release`](super::Release).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::Bell;

/// Set once, by any thread; the link reports it after everything that the peer sent before.
#[derive(Debug)]
pub struct ConnectionEnd {
    ended: AtomicBool,
    reason: OnceLock<String>,
    bell: Arc<Bell>,
    bit: u32,
}

impl ConnectionEnd {
    pub(super) fn new(bell: Arc<Bell>, bit: u32) -> Self {
        Self { ended: AtomicBool::new(false), reason: OnceLock::new(), bell, bit }
    }

    /// Ends the connection, for this reason. Rings and wakes the link's endpoint, as a frame would.
    pub fn set(&self, reason: impl Into<String>) {
        // The first reason stands.
        self.reason.set(reason.into()).ok();
        self.ended.store(true, Ordering::Release);
        self.bell.ring(self.bit);
    }

    /// Whether the connection has ended. A caller that reads true sees everything that the peer wrote before.
    #[must_use]
    #[inline]
    pub fn is_set(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// The reason, once it has.
    #[must_use]
    pub fn reason(&self) -> &str {
        self.reason.get().map_or("", String::as_str)
    }
}

//! Reports the end of a connection from the thread that watches it to the link.
//!
//! The end of a connection does not imply the end of the peer's process, which may continue and be in the middle of a copy:
//! memory that it may touch is kept until its [`Release`](super::Release).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::Bell;

/// The end of a connection. Set once, by any thread; the link reports it after everything that the peer sent before.
#[derive(Debug)]
pub struct ConnectionEnd {
    ended: AtomicBool,
    reason: OnceLock<String>,
    bell: Arc<Bell>,
    bit: u32,
}

impl ConnectionEnd {
    #[inline]
    pub(super) fn new(bell: Arc<Bell>, bit: u32) -> Self {
        Self { ended: AtomicBool::new(false), reason: OnceLock::new(), bell, bit }
    }

    /// Ends the connection for this reason. Rings the link's bit and wakes its endpoint, as a frame would.
    pub fn set(&self, reason: impl Into<String>) {
        // The first reason is kept.
        self.reason.set(reason.into()).ok();
        self.ended.store(true, Ordering::Release);
        self.bell.ring(self.bit);
    }

    /// Returns whether the connection has ended. A caller that reads true sees everything that the peer wrote before.
    #[must_use]
    #[inline]
    pub fn is_set(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Returns the reason for the end; empty before the end.
    #[must_use]
    #[inline]
    pub fn reason(&self) -> &str {
        self.reason.get().map_or("", String::as_str)
    }
}

//! The flag with which the thread that watches a connection reports the end of the connection to the link.
//!
//! The end of a connection does not imply the end of the peer's process, which may continue and be in the middle of a
//! copy. Memory that the peer may touch is kept until its [`Release`](super::Release).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::Doorbell;

/// The end of a connection. Any thread may set it; the first reason is kept. The link reports the end after it has
/// handled everything that the peer sent before.
#[derive(Debug)]
pub struct ConnectionEnd {
    ended: AtomicBool,
    reason: OnceLock<String>,
    doorbell: Arc<Doorbell>,
    bit: u32,
}

impl ConnectionEnd {
    #[inline]
    pub(super) fn new(doorbell: Arc<Doorbell>, bit: u32) -> Self {
        Self { ended: AtomicBool::new(false), reason: OnceLock::new(), doorbell, bit }
    }

    /// Ends the connection for this reason. Rings the link's bit and wakes up its endpoint, as a frame would.
    pub fn set(&self, reason: impl Into<String>) {
        // The first reason is kept.
        self.reason.set(reason.into()).ok();
        self.ended.store(true, Ordering::Release);
        self.doorbell.ring(self.bit);
    }

    /// Returns whether the connection has ended. A caller that reads true sees everything that the peer wrote before
    /// that.
    #[must_use]
    #[inline]
    pub fn is_set(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Returns the reason for the end, or an empty string before the end.
    #[must_use]
    #[inline]
    pub fn reason(&self) -> &str {
        self.reason.get().map_or("", String::as_str)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A reason that checks, when it is recorded, that the end was not reported before.
    struct Early<'a>(&'a ConnectionEnd);

    impl From<Early<'_>> for String {
        fn from(Early(end): Early<'_>) -> Self {
            assert!(!end.is_set(), "the end was reported without its reason");
            "killed".to_owned()
        }
    }

    #[test]
    fn end_is_reported_with_its_first_reason() {
        let end = ConnectionEnd::new(Arc::new(Doorbell::new().unwrap()), 3);
        end.set(Early(&end));
        end.set("closed");
        assert!(end.is_set());
        assert_eq!(end.reason(), "killed");
        assert_eq!(end.doorbell.take_rung(|bit| assert_eq!(bit, 3)), 1);
    }
}

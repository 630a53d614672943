//! The mark of a sender that publishes frames without fences.
//!
//! The sender sets the mark and fences before its first frame without a fence. A receiver that is about to sleep writes
//! its own mark, fences, and then reads this one. If it is set, the receiver fences for both sides (see `doorbell`). If
//! it is not set, the receiver's fence came first, so the sender finds the receiver's mark after each of these frames.

use super::super::sync::{AtomicU32, Ordering, fence};

/// Sets the mark. After that the sender may omit the fence after a frame.
pub(in crate::shm) fn mark_unfenced(word: &AtomicU32) {
    word.store(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
}

/// Clears the mark. A receiver that reads the cleared mark finds all frames that were published before.
pub(in crate::shm) fn clear_unfenced(word: &AtomicU32) {
    fence(Ordering::SeqCst);
    word.store(0, Ordering::Release);
}

/// Returns whether the mark is set. The receiver calls this after it has fenced.
#[inline]
pub(in crate::shm) fn is_unfenced(word: &AtomicU32) -> bool {
    word.load(Ordering::Acquire) != 0
}

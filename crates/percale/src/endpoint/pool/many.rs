//! A buffer of a shared receive context that takes many messages.
//!
//! Each message gets a part of the buffer, whichever endpoint receives it. The buffer is released when it takes no more
//! messages and its last part has ended. If an endpoint fails or closes while a peer may still write to its part, the
//! part ends only when that peer no longer writes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::endpoint::matching::AfterMatch;
use crate::local_memory::volatile::{Segment, Segments};

/// A buffer for many messages.
#[derive(Debug, Default)]
pub(crate) struct Many {
    state: Mutex<ManyState>,
}

#[derive(Debug, Default)]
struct ManyState {
    used: usize,
    in_flight: usize,
    closed: bool,
}

impl Many {
    fn lock(&self) -> MutexGuard<'_, ManyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next part, for a message of `len` bytes, and whether the buffer has room for more messages.
    pub(super) fn part(&self, whole: &Segments, len: u64, minimum: usize) -> (Segments, AfterMatch) {
        let mut state = self.lock();
        // The buffer is one segment, as was checked when it was posted. A message of zero bytes has a position in it
        // too.
        let segment = whole.as_slice().first().copied().unwrap_or(Segment::EMPTY);
        let part = segment.slice(state.used, usize::try_from(len).unwrap_or(usize::MAX));
        state.used += part.len();
        state.in_flight += 1;
        state.closed = whole.len() - state.used < minimum.max(1);
        (Segments::one(part), if state.closed { AfterMatch::Remove } else { AfterMatch::Stay })
    }

    /// Ends the part of a message. No peer writes to the part any more. `report` queues the result. Its argument states
    /// whether the buffer is released. It is called before any other part can end, so the completion that releases the
    /// buffer is the last one in every queue.
    pub(crate) fn end_part(&self, report: impl FnOnce(bool)) {
        let mut state = self.lock();
        state.in_flight -= 1;
        report(state.closed && state.in_flight == 0);
    }

    /// Stops taking messages. Returns whether that releases the buffer because no part of it is in use.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.lock();
        state.closed = true;
        state.in_flight == 0
    }
}

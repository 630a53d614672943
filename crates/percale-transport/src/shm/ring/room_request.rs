//! The request of a sender for room in a ring that was full.
//!
//! The sender may sleep until there is room. No wake-up is lost, because both sides use Dekker's pattern. The sender
//! writes its request, fences, and then checks the credits once more. The receiver publishes credits, fences, and then
//! reads the request. So either the sender finds the credits, or the receiver finds the request and wakes it up.

use super::super::sync::{AtomicU32, Ordering, fence};
use super::{NoRoom, Producer, Publish};
use crate::local_memory::volatile::Segments;
use crate::wire::head::Head;

/// The state of a sender's request for room. The request itself is a word that the receiver reads.
#[derive(Debug, Default)]
pub(in crate::shm) struct RoomRequest {
    /// The position of the ring when it was found full and the request was made. A frame that is sent at the first
    /// attempt does not read or reset it. The next refused frame detects by the changed position that frames were sent
    /// in between.
    position: Option<u64>,
}

impl RoomRequest {
    /// Returns whether room was requested for the frame at this position of the ring.
    #[inline]
    pub(in crate::shm) fn is_for(&self, position: u64) -> bool {
        self.position == Some(position)
    }

    /// Requests room, then tries once more to write a frame that was refused. The request ends if there is room now.
    pub(in crate::shm) fn push(
        &mut self,
        word: &AtomicU32,
        tx: &mut Producer,
        head: &Head,
        payload: &Segments,
    ) -> Result<(), NoRoom> {
        if !self.is_for(tx.position()) {
            word.store(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            self.position = Some(tx.position());
        }
        tx.push(head, payload, Publish::Plain)?;
        word.store(0, Ordering::Relaxed);
        self.position = None;
        Ok(())
    }
}

/// Returns whether the sender that writes this word requests room. The receiver calls this after it has published
/// credits.
pub(in crate::shm) fn is_room_requested(word: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    word.load(Ordering::SeqCst) != 0
}

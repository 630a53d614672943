//! What the two sides of a stream count, so that no message ever comes to a device that has no receive for it.
//!
//! A message with bytes costs one of [`CREDITS`] credits. The receiver owes one for each slot that it has posted anew, and gives back what it owes as
//! immediate data of the next message that it sends. Once it owes [`DUE`] of them it sends a *note*: a message of no bytes, which costs no credit.
//! Notes need receives too: each stands for [`DUE`] credits or more, and no more come back than were spent, so at most two wait unread; [`NOTES`]
//! receives are posted beyond the credits. When a side has spent all its credits, as many are on their way, unread, owed or coming back, so a peer
//! that reads everything owes enough for a note, and both sides make progress.
//!
//! A credit that comes back also proves that the peer has read a message. The acknowledgement of that message need not have arrived: when a peer
//! reads, sends its goodbye and goes, the last acknowledgements may be lost.
//!
//! Nothing here uses a device: the tests simulate one.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

/// Messages with bytes that may lie unread at one side: as much as sockets hold, so that a side that closes need not wait for the side that reads.
pub(super) const CREDITS: usize = 128;
/// Messages with bytes that may be without an acknowledgement of the peer's device.
pub(super) const SENDS: usize = 32;
/// Notes for which there are receives, and sends.
pub(super) const NOTES: usize = 4;
/// Receives that are posted.
pub(super) const RECEIVES: usize = CREDITS + NOTES;
/// Credits that are owed before a note is worth it.
const DUE: usize = CREDITS / 2;

/// One side's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credits {
    /// Messages with bytes that we may send.
    free: usize,
    /// Slots posted anew that were not reported to the peer yet.
    owed: usize,
    /// Messages with bytes that were posted, and that were acknowledged.
    sent: u64,
    acknowledged: u64,
    /// Credits that ever came back: the number of messages that were read.
    returned: u64,
    /// Notes under way.
    notes: usize,
}

impl Credits {
    /// Nothing was sent yet.
    pub(super) const fn new() -> Self {
        Self { free: CREDITS, owed: 0, sent: 0, acknowledged: 0, returned: 0, notes: 0 }
    }

    /// Returns whether a message with bytes can be sent now.
    #[inline]
    pub(super) const fn has_room(&self) -> bool {
        self.free > 0 && self.sent.saturating_sub(self.acknowledged) < SENDS as u64
    }

    /// The number of the next message with bytes.
    #[inline]
    pub(super) const fn next(&self) -> u64 {
        self.sent
    }

    /// What goes with it as immediate data.
    #[inline]
    pub(super) fn owed(&self) -> Option<u32> {
        (self.owed > 0).then_some(self.owed as u32)
    }

    /// It was posted. There was room.
    #[inline]
    pub(super) const fn spend(&mut self) {
        (self.sent, self.free, self.owed) = (self.sent.saturating_add(1), self.free.saturating_sub(1), 0);
    }

    /// Returns the credits that the next note carries, if a note is due.
    #[inline]
    pub(super) fn note(&self) -> Option<u32> {
        (self.owed >= DUE && self.notes < NOTES).then_some(self.owed as u32)
    }

    /// It was posted.
    pub(super) const fn noted(&mut self) {
        (self.owed, self.notes) = (0, self.notes.saturating_add(1));
    }

    /// A message with bytes was acknowledged; they are, in order.
    ///
    /// # Errors
    /// If it was not the next one that was under way.
    pub(super) const fn acknowledge(&mut self, number: u64) -> Result<(), &'static str> {
        if number != self.acknowledged || number >= self.sent {
            return Err("a send that was not under way");
        }
        self.acknowledged = self.acknowledged.saturating_add(1);
        Ok(())
    }

    /// A note was acknowledged.
    ///
    /// # Errors
    /// If none was under way.
    pub(super) const fn acknowledge_note(&mut self) -> Result<(), &'static str> {
        match self.notes.checked_sub(1) {
            Some(left) => self.notes = left,
            None => return Err("a note that was not sent"),
        }
        Ok(())
    }

    /// Handles a message that came, a note or not, while `unread` others are unread.
    ///
    /// # Errors
    /// If no percale sends it.
    pub(super) fn come(&mut self, is_note: bool, immediate: u32, unread: usize) -> Result<(), &'static str> {
        let given = immediate as usize;
        if given > CREDITS.saturating_sub(self.free) {
            return Err("the peer gives back more credits than there are");
        }
        if is_note && given < DUE {
            return Err("the peer sends a note that is not worth one");
        }
        if !is_note && unread >= CREDITS {
            return Err("the peer sends more than its credits allow");
        }
        self.free = self.free.saturating_add(given);
        self.returned = self.returned.saturating_add(given as u64);
        Ok(())
    }

    /// A message with bytes was read, and its slot posted anew.
    #[inline]
    pub(super) const fn read(&mut self) {
        self.owed = self.owed.saturating_add(1);
    }

    /// Returns how many messages with bytes are known to be with the peer: its device has acknowledged them, or the peer has given their credits
    /// back.
    #[inline]
    pub(super) fn delivered(&self) -> u64 {
        self.acknowledged.max(self.returned)
    }

    /// Returns whether everything that was sent with bytes is acknowledged.
    #[inline]
    pub(super) const fn is_calm(&self) -> bool {
        self.sent == self.acknowledged
    }
}

#[cfg(test)]
#[path = "credit_tests.rs"]
mod tests;

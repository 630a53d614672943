//! The credits of the two sides of a stream, which ensure that a message never arrives at a device without a posted
//! receive.
//!
//! A message with data costs one of [`CREDITS`] credits. The receiver owes one credit for each slot that it has posted
//! again, and returns the credits that it owes as immediate data of the next message that it sends. Once it owes
//! [`DUE`] credits it sends a *note*: a message without data, which costs no credit. Notes need receives too. Each note
//! returns at least [`DUE`] credits, and no more credits are returned than were spent, so at most two notes are unread
//! at a time. [`NOTES`] receives are posted in addition to the credits. When a side has spent all its credits, each of
//! them is in flight, unread, owed or being returned. So a peer that reads everything owes enough for a note, and both
//! sides make progress.
//!
//! A returned credit also proves that the peer has read a message, even if the acknowledgement of that message has not
//! arrived. This matters when a peer reads, sends its `Bye` frame and exits, because the last acknowledgements may then
//! be lost.
//!
//! This module does not use a device. Its tests simulate one.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

/// The maximum number of unread messages with data at one side. This is as much as sockets hold, so that a side that
/// closes need not wait for the other side to read.
pub(super) const CREDITS: usize = 128;
/// The maximum number of messages with data that the peer's device has not acknowledged.
pub(super) const SENDS: usize = 32;
/// The number of notes for which receives are posted and sends are reserved.
pub(super) const NOTES: usize = 4;
/// The number of posted receives.
pub(super) const RECEIVES: usize = CREDITS + NOTES;
/// The number of owed credits at which a note is sent.
const DUE: usize = CREDITS / 2;

/// The credits of one side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credits {
    /// The number of messages with data that this side may send.
    free: usize,
    /// The number of slots that were posted again, with credits that were not returned to the peer yet.
    owed: usize,
    /// The number of messages with data that were posted; `acknowledged` is the number that were acknowledged.
    sent: u64,
    acknowledged: u64,
    /// The number of credits that the peer has ever returned, which is the number of messages that it has read.
    returned: u64,
    /// The number of notes that are not acknowledged.
    notes: usize,
}

impl Credits {
    /// Creates the credits of a new stream.
    pub(super) const fn new() -> Self {
        Self { free: CREDITS, owed: 0, sent: 0, acknowledged: 0, returned: 0, notes: 0 }
    }

    /// Returns whether a message with data can be sent now.
    #[inline]
    pub(super) const fn has_room(&self) -> bool {
        self.free > 0 && self.sent.saturating_sub(self.acknowledged) < SENDS as u64
    }

    /// Returns the number of the next message with data.
    #[inline]
    pub(super) const fn next(&self) -> u64 {
        self.sent
    }

    /// Returns the immediate data of the next message with data.
    #[inline]
    pub(super) fn owed(&self) -> Option<u32> {
        (self.owed > 0).then_some(self.owed as u32)
    }

    /// Records that a message with data was posted. There must have been room.
    #[inline]
    pub(super) const fn spend(&mut self) {
        (self.sent, self.free, self.owed) = (self.sent.saturating_add(1), self.free.saturating_sub(1), 0);
    }

    /// Returns the credits that the next note carries, if a note is due.
    #[inline]
    pub(super) fn note(&self) -> Option<u32> {
        (self.owed >= DUE && self.notes < NOTES).then_some(self.owed as u32)
    }

    /// Records that a note was posted.
    pub(super) const fn noted(&mut self) {
        (self.owed, self.notes) = (0, self.notes.saturating_add(1));
    }

    /// Records the acknowledgement of a message with data. Acknowledgements arrive in order.
    ///
    /// # Errors
    /// If it was not the next message to be acknowledged.
    pub(super) const fn acknowledge(&mut self, number: u64) -> Result<(), &'static str> {
        if number != self.acknowledged || number >= self.sent {
            return Err("completion of a send that was not in progress");
        }
        self.acknowledged = self.acknowledged.saturating_add(1);
        Ok(())
    }

    /// Records the acknowledgement of a note.
    ///
    /// # Errors
    /// If there was no note without an acknowledgement.
    pub(super) const fn acknowledge_note(&mut self) -> Result<(), &'static str> {
        match self.notes.checked_sub(1) {
            Some(left) => self.notes = left,
            None => return Err("a note that was not sent"),
        }
        Ok(())
    }

    /// Handles an arrived message, which may be a note, while `unread` other messages are unread.
    ///
    /// # Errors
    /// If a conforming peer would not have sent it.
    pub(super) fn come(&mut self, is_note: bool, immediate: u32, unread: usize) -> Result<(), &'static str> {
        let given = immediate as usize;
        if given > CREDITS.saturating_sub(self.free) {
            return Err("the peer returned too many credits");
        }
        if is_note && given < DUE {
            return Err("the peer sent an unnecessary credit message");
        }
        if !is_note && unread >= CREDITS {
            return Err("the peer sends more than its credits allow");
        }
        self.free = self.free.saturating_add(given);
        self.returned = self.returned.saturating_add(given as u64);
        Ok(())
    }

    /// Records that a message with data was read and its slot was posted again.
    #[inline]
    pub(super) const fn read(&mut self) {
        self.owed = self.owed.saturating_add(1);
    }

    /// Returns how many messages with data are known to have arrived, because the peer's device has acknowledged them
    /// or the peer has returned their credits.
    #[inline]
    pub(super) fn delivered(&self) -> u64 {
        self.acknowledged.max(self.returned)
    }

    /// Returns whether all messages with data were acknowledged.
    #[inline]
    pub(super) const fn is_calm(&self) -> bool {
        self.sent == self.acknowledged
    }
}

#[cfg(test)]
#[path = "credit_tests.rs"]
mod tests;

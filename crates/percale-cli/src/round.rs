//! A round as data: hundreds or thousands of messages of one shape between the two processes.

use serde::{Deserialize, Serialize};

use percale::{RemoteMemory, RemoteMemoryError};

use crate::failure::{Failure, Result};
use crate::pattern::{CheckedPart, Content, MessageDirection};
use crate::row::{MeasuredOperation, MessageMemory, Pattern};
use crate::units::LONGEST;

/// The maximum number of outstanding messages of a stream.
pub(crate) const WINDOW: usize = 64;

/// The maximum total memory of the outstanding messages of a stream, unless one message is larger.
const STREAM_MEMORY: usize = 4 << 20;

/// Accesses shorter than this are timed in batches, because reading the clock takes longer than some of them.
const SINGLE: usize = 4 << 10;

/// The number of accesses in a batch.
const BATCH: u64 = 32;

/// The maximum total memory of the slots for accesses, unless one slot is larger.
pub(crate) const SLOTS_MEMORY: usize = 512 << 10;

/// The properties of the messages, or accesses, of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct MessageShape {
    /// The operation. For limits, tagged and untagged messages are equivalent.
    pub(crate) op: MeasuredOperation,
    /// The length of a message.
    pub(crate) bytes: usize,
    /// The kind of memory of the messages.
    pub(crate) memory: MessageMemory,
}

impl MessageShape {
    /// Returns the number of outstanding messages of a stream.
    pub(crate) const fn window(&self) -> usize {
        let fit = STREAM_MEMORY / self.bytes;
        if fit == 0 {
            1
        } else if fit < WINDOW {
            fit
        } else {
            WINDOW
        }
    }

    /// Returns the distance between messages in memory. Each message starts at a page or, if it is short, at a cache
    /// line.
    pub(crate) const fn stride(&self) -> usize {
        self.bytes.next_multiple_of(if self.bytes < 4096 { 64 } else { 4096 })
    }

    /// Returns the part of the other side's memory that is one slot. Inlined, so that the part stays in registers.
    #[inline(always)]
    pub(crate) fn slot_of(&self, theirs: Option<RemoteMemory>, slot: usize) -> Result<RemoteMemory> {
        let theirs = theirs.ok_or_else(not_announced)?;
        let start = (slot * self.stride()) as u64;
        theirs.slice(start..start + self.bytes as u64).map_err(outside)
    }

    /// Returns the number of slots for accesses in the memory. A round that is checked completely uses all of them in
    /// turn; a timed round uses only the first.
    pub(crate) const fn slots(&self) -> usize {
        match SLOTS_MEMORY / self.stride() {
            0 => 1,
            fit if fit < WINDOW => fit,
            _ => WINDOW,
        }
    }

    /// Returns the number of operations in one sample of a timed round.
    pub(crate) const fn batch(&self) -> u64 {
        match self.op.pattern() {
            Pattern::Access if self.bytes < SINGLE => BATCH,
            _ => 1,
        }
    }

    /// Rejects shapes that no command line can request.
    pub(crate) fn check(&self) -> Result<()> {
        if (1..=LONGEST).contains(&self.bytes) && self.op.refusal(self.bytes).is_none() {
            return Ok(());
        }
        Err(self.refused())
    }

    /// Returns the error for a shape that this version does not measure.
    pub(crate) fn refused(&self) -> Failure {
        Failure::Protocol(format!("{} of {} bytes", self.op.name(), self.bytes))
    }
}

/// One round.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Round {
    /// The number of the round, which makes its data different from that of all other rounds.
    pub(crate) number: u64,
    /// Untimed messages (or batches) at the start.
    pub(crate) warm: u64,
    /// The number of timed messages (or batches).
    pub(crate) count: u64,
    /// The number of accesses that are timed together.
    pub(crate) batch: u64,
    /// How much of each message is written before it is sent.
    pub(crate) write: CheckedPart,
    /// How much of each message is checked after it arrived.
    pub(crate) check: CheckedPart,
    /// The index of the subject's setting.
    pub(crate) setting: usize,
}

/// The maximum number of messages in one round. It bounds the memory for samples.
pub(crate) const MOST: u64 = 1 << 20;

/// The maximum number of untimed messages at the start of a round.
pub(crate) const WARM: u64 = 64;

impl Round {
    /// Rejects rounds that no measurement requests. `settings` is the number of the subject's settings.
    pub(crate) fn check(&self, shape: &MessageShape, settings: usize) -> Result<()> {
        let count = (1..=MOST).contains(&self.count) && self.warm <= WARM;
        if count && (self.batch == 1 || self.batch == shape.batch()) && self.setting < settings {
            return Ok(());
        }
        let Self { count, batch, setting, .. } = self;
        Err(Failure::Protocol(format!("a round of {count} messages in batches of {batch}, setting {setting}")))
    }

    /// Returns the number of messages, or of batches of accesses.
    pub(crate) const fn messages(&self) -> u64 {
        self.warm.saturating_add(self.count)
    }

    /// Returns the number of accesses.
    pub(crate) const fn accesses(&self) -> u64 {
        self.messages().saturating_mul(self.batch)
    }

    /// Returns the slot of access `index` out of `slots` slots.
    pub(crate) const fn slot(&self, index: u64, slots: usize) -> usize {
        match self.check {
            CheckedPart::Whole => (index % slots as u64) as usize,
            CheckedPart::Nothing | CheckedPart::Ends => 0,
        }
    }

    /// Returns the indices of the last access to each slot that was accessed.
    pub(crate) fn last_of_slots(&self, slots: usize) -> std::ops::Range<u64> {
        let used = if self.check == CheckedPart::Whole { slots as u64 } else { 1 };
        self.messages().saturating_sub(used)..self.messages()
    }

    /// Returns the content to write before sending.
    #[inline]
    pub(crate) const fn written(&self, index: u64, way: MessageDirection) -> Content {
        Content::new(self.number, index, way, self.write)
    }

    /// Returns the content to check after receiving.
    #[inline]
    pub(crate) const fn checked(&self, index: u64, way: MessageDirection) -> Content {
        Content::new(self.number, index, way, self.check)
    }

    /// Returns the number of messages that each side has checked completely at the end of the round.
    pub(crate) fn verified(&self) -> u64 {
        if self.check == CheckedPart::Whole { self.messages() } else { 0 }
    }
}

#[cold]
fn not_announced() -> Failure {
    Failure::Protocol("access before the memory was announced".into())
}

#[cold]
fn outside(error: RemoteMemoryError) -> Failure {
    Failure::Protocol(error.to_string())
}

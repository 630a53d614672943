//! A receive buffer for many messages.

use std::time::{Duration, Instant};

use super::operation::InProgress;
use super::{Cause, OperationError};
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode};
use crate::endpoint::engine::Engine;
use crate::endpoint::operations::OperationId;
use crate::endpoint::ownership::Handle;
use crate::endpoint::ownership::reach::EngineAccess as _;
use crate::endpoint::refused::RefusedResult;
use crate::local_memory::buffer::{Buffer, BufferExt as _};
use crate::local_memory::volatile::{Segments, SegmentsExt as _};
use crate::types::PeerAddress;

/// A receive in progress that takes many messages into one buffer.
#[must_use = "dropping it cancels the receive"]
pub struct ReceivingMany<H: Handle> {
    pub(super) operation: InProgress<H>,
    pub(super) base: u64,
}

crate::short_debug!(for [H: Handle] ReceivingMany<H>, "ReceivingMany");

/// A message of a receive that takes many. Its bytes are a copy, because the buffer is still being filled.
pub struct Part {
    /// The bytes of the message.
    pub bytes: Vec<u8>,
    /// The offset of the message in the buffer.
    pub offset: usize,
    /// The tag of the message (0 if it is untagged).
    pub tag: u64,
    /// The remote completion data that the message carries, if any.
    pub data: Option<u64>,
    /// The sender of the message, as in [`Received::source`](super::Received::source).
    pub source: Option<PeerAddress>,
}

crate::short_debug!(Part, "Part", len: |this| this.bytes.len(), offset: |this| this.offset, tag: |this| this.tag);

/// The result of [`ReceivingMany::finish`].
#[must_use = "it contains the messages and errors that were not read"]
pub struct Finished {
    /// The buffer.
    pub buffer: Buffer,
    /// The messages and errors that [`next`](ReceivingMany::next) has not returned, oldest first.
    pub unread: Vec<Result<Part, OperationError>>,
}

crate::short_debug!(Finished, "Finished", unread: |this| this.unread.len());

impl<H: Handle> ReceivingMany<H> {
    /// Returns the next message, or `None` if the buffer is full and all messages were returned.
    ///
    /// # Errors
    /// If a message failed to arrive, or the timeout expires. The buffer may have taken other messages.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Option<Part>, OperationError> {
        if !self.operation.access.access().is_here() {
            return Err(OperationError::refused());
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let (id, base) = (self.operation.id(), self.base);
        let found = self.operation.access.access().wait_until(deadline, |engine| {
            if engine.core.operations.is_done(id) {
                return Some(Ok(None));
            }
            let result = engine.core.operations.take_result(id)?;
            Some(result.map(|entry| part(engine, id, base, &entry)))
        });
        match found {
            Some(Ok(part)) => Ok(part),
            Some(Err(error)) => Err(OperationError::new(error, None)),
            None => Err(OperationError::new(Cause::TimedOut, None)),
        }
    }

    /// Stops receiving. Waits for messages that are partly received, then returns the buffer and the results that were
    /// not read.
    pub fn finish(mut self) -> Finished {
        let (id, base) = (self.operation.id(), self.base);
        self.operation.cancel();
        let mut unread = Vec::new();
        let buffer = self.operation.access.access().wait_until(None, |engine| {
            while let Some(result) = engine.core.operations.take_result(id) {
                match result {
                    Ok(entry) => unread.extend(part(engine, id, base, &entry).map(Ok)),
                    // The receive itself ended as requested here. An error of a message contains the address of its
                    // part of the buffer.
                    Err(error) if error.error == ErrorCode::Canceled && error.entry.buffer == 0 => {}
                    Err(error) => unread.push(Err(OperationError::new(error, None))),
                }
            }
            engine.core.operations.is_done(id).then(|| engine.core.operations.release(id))
        });
        self.operation.used_up();
        Finished { buffer: buffer.flatten().unwrap_or_else(|| Buffer::from(Vec::new())), unread }
    }
}

/// Copies one message out of the buffer.
fn part(engine: &Engine, id: OperationId, base: u64, entry: &Entry) -> Option<Part> {
    // The copy allows for concurrent writes, because peers may be writing other messages into the rest of the buffer.
    let memory = engine.core.operations.buffer(id)?.segment_for_send();
    let offset = usize::try_from(entry.buffer.checked_sub(base)?).ok()?;
    let bytes = Segments::one(memory.slice(offset, entry.len as usize)).to_vec();
    let data = entry.flags.contains(CompletionFlags::REMOTE_DATA).then_some(entry.data);
    let source = (entry.source != PeerAddress::UNSPECIFIED).then_some(entry.source);
    Some(Part { bytes, offset, tag: entry.tag, data, source })
}

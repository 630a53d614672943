//! One buffer for many messages.

use std::time::{Duration, Instant};

use super::under_way::UnderWay;
use super::{Cause, OperationError};
use crate::address::PeerAddress;
use crate::completion::entry::{CompletionFlags, Entry};
use crate::endpoint::engine::Engine;
use crate::endpoint::ownership::Ownership;
use crate::memory::buffer::Buffer;

/// A buffer that takes many messages.
#[derive(Debug)]
#[must_use = "dropping it cancels the receive"]
pub struct ReceivingMany<'e, A: Ownership> {
    pub(super) under_way: UnderWay<'e, A>,
    pub(super) base: u64,
}

/// One message of many: its bytes are copied out, since the buffer is still being filled.
#[derive(Debug)]
pub struct Part {
    /// The message.
    pub bytes: Vec<u8>,
    /// Where it lies in the buffer.
    pub offset: usize,
    /// Its tag (0 if it is untagged).
    pub tag: u64,
    /// The remote completion data that it carries, if any.
    pub data: Option<u64>,
    /// Its sender, if the endpoint's vector knows it.
    pub source: Option<PeerAddress>,
}

impl<A: Ownership> ReceivingMany<'_, A> {
    /// The next message; `None` once the buffer is full and all messages were given.
    ///
    /// # Errors
    /// If a message failed to arrive; the buffer may have taken others.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Option<Part>, OperationError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let (id, base) = (self.under_way.id, self.base);
        let found = self.under_way.endpoint.access.wait_until(deadline, |engine| {
            if engine.core.operations.is_done(id) {
                return Some(Ok(None));
            }
            let result = engine.core.operations.take_result(id)?;
            Some(result.map(|entry| part(engine, id, base, &entry)))
        });
        match found {
            Some(Ok(part)) => Ok(part),
            Some(Err(error)) => Err(OperationError { cause: error.into(), buffer: None }),
            None => Err(OperationError { cause: Cause::TimedOut, buffer: None }),
        }
    }

    /// Stops receiving and gives the buffer back; waits for messages that are on their way into it.
    ///
    /// # Errors
    /// If one of those fails to arrive.
    pub fn finish(mut self) -> Result<Buffer, OperationError> {
        let id = self.under_way.id;
        self.under_way.endpoint.access.with(|engine| engine.core.cancel(id as u64, true));
        let buffer = self.under_way.endpoint.access.wait_until(None, |engine| {
            while engine.core.operations.take_result(id).is_some() {}
            engine.core.operations.is_done(id).then(|| engine.core.operations.release(id))
        });
        self.under_way.ended = true;
        Ok(buffer.flatten().unwrap_or_else(|| Buffer::from(Vec::new())))
    }
}

/// Copies one message of many out of its buffer.
fn part(engine: &Engine, id: usize, base: u64, entry: &Entry) -> Option<Part> {
    let buffer = engine.core.operations.buffer(id)?;
    let offset = (entry.buffer - base) as usize;
    let mut bytes = vec![0; entry.len as usize];
    buffer.copy_to(offset, &mut bytes);
    let data = entry.flags.contains(CompletionFlags::REMOTE_DATA).then_some(entry.data);
    let source = (entry.source != PeerAddress::UNSPECIFIED).then_some(entry.source);
    Some(Part { bytes, offset, tag: entry.tag, data, source })
}

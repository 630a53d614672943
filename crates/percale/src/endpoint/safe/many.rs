//! A receive buffer for many messages.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::operation::InProgress;
use super::{Cause, OperationError};
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode, ErrorEntry};
use crate::endpoint::engine::Engine;
use crate::endpoint::operations::OperationId;
use crate::endpoint::ownership::EndpointHandle;
use crate::endpoint::ownership::reach::EngineAccess as _;
use crate::endpoint::refused::RefusedResult;
use crate::local_memory::buffer::{Buffer, BufferExt as _};
use crate::local_memory::volatile::{Segments, SegmentsExt as _};
use crate::types::PeerAddress;

/// A receive in progress that takes many messages into one buffer.
///
/// Wait for the next message ([`wait`](Self::wait), [`wait_for`](Self::wait_for)), iterate over the messages
/// ([`iter`](Self::iter)), or await them ([`next_message`](Self::next_message), [`poll_next`](Self::poll_next)). With the
/// cargo feature `futures` it is also a `Stream` (`futures_core::Stream`).
///
/// After the buffer is full and the last message was returned, all of these return `None`. They also do so after an
/// error that is not of a single message, for example because the endpoint was closed.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let domain = percale::Info::discover()?.best()?.open()?;
/// # let vector = domain.address_vector().build()?;
/// # let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
/// # let peer = vector.insert(endpoint.address())?;
/// let mut many = endpoint.recv(vec![0; 4096]).many()?;
/// endpoint.send(peer, "one").wait()?;
/// endpoint.send(peer, "two").wait()?;
/// for part in many.iter().take(2) {
///     println!("{} bytes", part?.bytes.len());
/// }
/// let buffer = many.finish().buffer; // stops receiving
/// # assert_eq!(buffer.len(), 4096);
/// # Ok(()) }
/// ```
#[must_use = "dropping it cancels the receive"]
pub struct ReceivingMany<H: EndpointHandle> {
    pub(super) operation: InProgress<H>,
    pub(super) base: u64,
    /// Whether `None` was returned, or an error that is not of a single message.
    pub(super) ended: bool,
}

crate::short_debug!(for [H: EndpointHandle] ReceivingMany<H>, "ReceivingMany");

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
    /// The messages and errors that were not returned before, oldest first.
    pub unread: Vec<Result<Part, OperationError>>,
}

crate::short_debug!(Finished, "Finished", unread: |this| this.unread.len());

impl<H: EndpointHandle> ReceivingMany<H> {
    /// Waits for the next message. Returns `None` if the buffer is full and all messages were returned.
    ///
    /// # Errors
    /// If a message failed to arrive; the buffer may have taken other messages. If the endpoint was closed, or in a
    /// forked child; then the next call returns `None`.
    pub fn wait(&mut self) -> Result<Option<Part>, OperationError> {
        self.wait_until(None)
    }

    /// Like [`wait`](Self::wait), but for at most `timeout`.
    ///
    /// # Errors
    /// As those of [`wait`](Self::wait), and if the timeout expires ([`Cause::TimedOut`]). The receive continues, and can
    /// be waited for again.
    pub fn wait_for(&mut self, timeout: Duration) -> Result<Option<Part>, OperationError> {
        // A deadline that the clock cannot express is none.
        self.wait_until(Instant::now().checked_add(timeout))
    }

    /// Like [`wait_for`](Self::wait_for), but with a deadline. `None`: no limit.
    ///
    /// # Errors
    /// As those of [`wait_for`](Self::wait_for).
    pub fn wait_until(&mut self, deadline: Option<Instant>) -> Result<Option<Part>, OperationError> {
        if let Some(ended) = self.check() {
            return ended.transpose();
        }
        let (id, base) = (self.operation.id(), self.base);
        match self.operation.access.access().wait_until(deadline, |engine| next(engine, id, base)) {
            Some(next) => self.returned(next).transpose(),
            None => Err(OperationError::new(Cause::TimedOut, None)),
        }
    }

    /// Returns an iterator over the messages, which waits for each of them.
    pub fn iter(&mut self) -> Parts<'_, H> {
        Parts { many: self }
    }

    /// Polls for the next message. If there is none yet, arranges for the task to be woken. Returns `None` if the buffer
    /// is full and all messages were returned.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Part, OperationError>>> {
        if let Some(ended) = self.check() {
            return Poll::Ready(ended);
        }
        let (id, base) = (self.operation.id(), self.base);
        self.operation.poll_for(context, |engine| next(engine, id, base)).map(|next| {
            self.operation.end_polls();
            self.returned(next)
        })
    }

    /// Returns a future of the next message ([`poll_next`](Self::poll_next)). If the future is dropped, no message is
    /// lost.
    ///
    /// # Errors
    /// As those of [`wait`](Self::wait).
    pub async fn next_message(&mut self) -> Option<Result<Part, OperationError>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// Returns what a call returns without access to the engine: `None` after the end, an error in a forked child.
    fn check(&mut self) -> Option<Option<Result<Part, OperationError>>> {
        if self.ended {
            return Some(None);
        }
        if !self.operation.access.access().is_here() {
            self.ended = true;
            return Some(Some(Err(OperationError::refused())));
        }
        None
    }

    /// Records whether the last result is being returned.
    fn returned(&mut self, next: Option<OperationPart>) -> Option<Result<Part, OperationError>> {
        self.ended = next.is_none();
        next.map(|result| result.map_err(|error| OperationError::new(error, None)))
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
        self.operation.mark_ended();
        Finished { buffer: buffer.flatten().unwrap_or_else(|| Buffer::from(Vec::new())), unread }
    }
}

/// A message, or the error of one or of the whole receive.
type OperationPart = Result<Part, Box<ErrorEntry>>;

/// Takes the next result, or returns `None` if there is none yet. `Some(None)`: there are no more.
fn next(engine: &mut Engine, id: OperationId, base: u64) -> Option<Option<OperationPart>> {
    if engine.core.operations.is_done(id) {
        return Some(None);
    }
    match engine.core.operations.take_result(id)? {
        Ok(entry) => Some(part(engine, id, base, &entry).map(Ok)),
        Err(error) => Some(Some(Err(error))),
    }
}

/// The messages of a receive that takes many ([`ReceivingMany::iter`]).
#[must_use = "iterators do nothing unless iterated over"]
pub struct Parts<'m, H: EndpointHandle> {
    many: &'m mut ReceivingMany<H>,
}

crate::short_debug!(for [H: EndpointHandle] Parts<'_, H>, "Parts");

impl<H: EndpointHandle> Iterator for Parts<'_, H> {
    type Item = Result<Part, OperationError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.many.wait().transpose()
    }
}

impl<H: EndpointHandle> std::iter::FusedIterator for Parts<'_, H> {}

impl<'m, H: EndpointHandle> IntoIterator for &'m mut ReceivingMany<H> {
    type Item = Result<Part, OperationError>;
    type IntoIter = Parts<'m, H>;

    fn into_iter(self) -> Parts<'m, H> {
        self.iter()
    }
}

// Nothing in it is pinned.
impl<H: EndpointHandle> Unpin for ReceivingMany<H> {}

#[cfg(feature = "futures")]
impl<H: EndpointHandle> futures_core::Stream for ReceivingMany<H> {
    type Item = Result<Part, OperationError>;

    fn poll_next(mut self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        ReceivingMany::poll_next(&mut self, context)
    }
}

#[cfg(feature = "futures")]
impl<H: EndpointHandle> futures_core::FusedStream for ReceivingMany<H> {
    /// Returns whether `None` was returned, or an error after which it is returned.
    fn is_terminated(&self) -> bool {
        self.ended
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

//! Safe operations: they own their buffers, and give them back.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let domain = percale::Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! # let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//! # let peer = vector.insert("127.0.0.1:7471")?;
//! let receive = endpoint.recv(vec![0; 4096]).from(peer).start()?;     // posted now
//! let sent = endpoint.send(peer, vec![1, 2, 3]).wait()?;              // posted, and waited for
//! let got = receive.wait()?;
//! println!("{} bytes", got.len);
//! # Ok(()) }
//! ```
//!
//! A request ([`SendRequest`], [`ReceiveRequest`]) is posted by `start`, `wait` or `.await`. What is under way ([`Sending`],
//! [`Receiving`]) is a future of any runtime; it can also be waited for. Dropping one that is under way cancels it if no message
//! was matched yet; otherwise its buffer is kept until the peer no longer uses it, and the message is lost.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::access::Access;
use super::engine::Engine;
use super::engine::types::Notify;
use super::work::{OpFlags, PostError, ReceiveWork, SendWork};
use super::{Endpoint, reactor};
use crate::address::PeerAddress;
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode, ErrorEntry};
use crate::memory::buffer::Buffer;
use crate::memory::volatile::Segments;

/// Why a safe operation did not succeed. The buffer comes back with it.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct OperationError {
    /// What happened.
    #[source]
    pub cause: Cause,
    /// The operation's buffer, unless the operation is still under way (a wait that timed out).
    pub buffer: Option<Buffer>,
}

/// What happened to a safe operation.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// It could not be posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// It failed.
    #[error(transparent)]
    Completion(#[from] ErrorEntry),
    /// The wait's time passed; the operation was cancelled, or is being finished without its handle.
    #[error("the operation did not complete within the given time")]
    TimedOut,
}

impl OperationError {
    /// The libfabric code.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match &self.cause {
            Cause::Post(error) => error.errno(),
            Cause::Completion(error) => error.errno(),
            Cause::TimedOut => ErrorCode::TimedOut.errno(),
        }
    }
}

/// A completed send.
#[derive(Debug)]
pub struct Sent {
    /// The buffer that was sent.
    pub buffer: Buffer,
}

/// A received message.
#[derive(Debug)]
pub struct Received {
    /// The buffer that it is in.
    pub buffer: Buffer,
    /// Its length in bytes.
    pub len: usize,
    /// Its tag (0 if it is untagged).
    pub tag: u64,
    /// The remote completion data that it carries, if any.
    pub data: Option<u64>,
    /// Its sender, if the endpoint's vector knows it.
    pub source: Option<PeerAddress>,
}

impl Received {
    /// The message, as bytes of its own.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.buffer.copy_to(0, &mut bytes);
        bytes
    }

    fn new(buffer: Buffer, entry: &Entry) -> Self {
        Self {
            buffer,
            len: entry.len as usize,
            tag: entry.tag,
            data: entry.flags.contains(CompletionFlags::REMOTE_DATA).then_some(entry.data),
            source: (entry.source != PeerAddress::UNSPECIFIED).then_some(entry.source),
        }
    }
}

/// A send that is not posted yet.
#[must_use = "nothing is sent before start, wait or await"]
#[derive(Debug)]
pub struct SendRequest<'e, A: Access> {
    endpoint: &'e Endpoint<A>,
    buffer: Buffer,
    peer: PeerAddress,
    tag: Option<u64>,
    data: Option<u64>,
    flags: OpFlags,
}

/// A receive that is not posted yet.
#[must_use = "nothing is received before start, wait or await"]
#[derive(Debug)]
pub struct ReceiveRequest<'e, A: Access> {
    endpoint: &'e Endpoint<A>,
    buffer: Buffer,
    from: PeerAddress,
    tag: Option<(u64, u64)>,
}

impl<A: Access> Endpoint<A> {
    /// A send of a message.
    pub fn send(&self, peer: PeerAddress, buffer: impl Into<Buffer>) -> SendRequest<'_, A> {
        let buffer = buffer.into();
        SendRequest { endpoint: self, buffer, peer, tag: None, data: None, flags: OpFlags::empty() }
    }

    /// A send of a tagged message.
    pub fn tagged_send(&self, peer: PeerAddress, tag: u64, buffer: impl Into<Buffer>) -> SendRequest<'_, A> {
        let mut request = self.send(peer, buffer);
        request.tag = Some(tag);
        request
    }

    /// A receive of an untagged message, from anybody unless [`from`](ReceiveRequest::from) names somebody.
    pub fn recv(&self, buffer: impl Into<Buffer>) -> ReceiveRequest<'_, A> {
        ReceiveRequest { endpoint: self, buffer: buffer.into(), from: PeerAddress::UNSPECIFIED, tag: None }
    }

    /// A receive of a message whose tag is `tag` in every bit that `ignore` does not have.
    pub fn tagged_recv(&self, tag: u64, ignore: u64, buffer: impl Into<Buffer>) -> ReceiveRequest<'_, A> {
        let mut request = self.recv(buffer);
        request.tag = Some((tag, ignore));
        request
    }
}

impl<'e, A: Access> SendRequest<'e, A> {
    /// Lets the receiver's completion carry 8 bytes.
    pub fn data(mut self, data: u64) -> Self {
        self.data = Some(data);
        self
    }

    /// Completes only when the message is in the receiver's buffer.
    pub fn delivered(mut self) -> Self {
        self.flags |= OpFlags::DELIVERY_COMPLETE;
        self
    }

    /// Starts only after all earlier operations to this peer have completed.
    pub fn fenced(mut self) -> Self {
        self.flags |= OpFlags::FENCE;
        self
    }

    /// Posts the send.
    ///
    /// # Errors
    /// If it cannot be posted.
    pub fn start(self) -> Result<Sending<'e, A>, OperationError> {
        let Self { endpoint, buffer, peer, tag, data, flags } = self;
        let id = endpoint.access.with(|engine| {
            let segments = Segments::one(buffer.segment_for_send());
            let id = engine.core.operations.start(buffer);
            let work = SendWork { peer, segments, tag, data, context: id as u64, flags };
            posted(engine, id, |engine| engine.post_send(&work, Notify::Operation))
        })?;
        Ok(Sending { under_way: UnderWay { endpoint, id, polls: 0, ended: false } })
    }

    /// Posts the send and waits for it.
    ///
    /// # Errors
    /// If it cannot be posted, or fails.
    pub fn wait(self) -> Result<Sent, OperationError> {
        self.start()?.wait()
    }
}

impl<'e, A: Access> ReceiveRequest<'e, A> {
    /// Takes messages of this peer only.
    pub fn from(mut self, peer: PeerAddress) -> Self {
        self.from = peer;
        self
    }

    /// Posts the receive.
    ///
    /// # Errors
    /// If it cannot be posted.
    pub fn start(self) -> Result<Receiving<'e, A>, OperationError> {
        let under_way = self.post(OpFlags::empty())?;
        Ok(Receiving { under_way })
    }

    /// Posts the receive and waits for a message.
    ///
    /// # Errors
    /// If it cannot be posted, or fails.
    pub fn wait(self) -> Result<Received, OperationError> {
        self.start()?.wait()
    }

    /// Posts the buffer for many messages: each takes the next part of it, until less is left than the endpoint's minimum.
    ///
    /// # Errors
    /// If it cannot be posted.
    pub fn many(self) -> Result<ReceivingMany<'e, A>, OperationError> {
        let under_way = self.post(OpFlags::MULTI_RECEIVE)?;
        let (base, id) = (under_way.base(), under_way.id);
        under_way.endpoint.access.with(|engine| engine.core.operations.many(id));
        Ok(ReceivingMany { under_way, base })
    }

    fn post(self, flags: OpFlags) -> Result<UnderWay<'e, A>, OperationError> {
        let Self { endpoint, mut buffer, from, tag } = self;
        let Some(segment) = buffer.segment_for_receive() else {
            return Err(OperationError { cause: PostError::ReadOnly.into(), buffer: Some(buffer) });
        };
        let id = endpoint.access.with(|engine| {
            let id = engine.core.operations.start(buffer);
            if flags.contains(OpFlags::MULTI_RECEIVE) {
                engine.core.operations.many(id);
            }
            let work = ReceiveWork { from, segments: Segments::one(segment), tag, context: id as u64, flags };
            posted(engine, id, |engine| engine.post_receive(&work, Notify::Operation))
        })?;
        Ok(UnderWay { endpoint, id, polls: 0, ended: false })
    }
}

/// Posts; if that fails, takes the buffer back.
fn posted(
    engine: &mut Engine,
    id: usize,
    post: impl FnOnce(&mut Engine) -> Result<(), PostError>,
) -> Result<usize, OperationError> {
    match post(engine) {
        Ok(()) => Ok(id),
        Err(cause) => Err(OperationError { cause: cause.into(), buffer: engine.core.operations.withdraw(id) }),
    }
}

/// An operation under way.
#[derive(Debug)]
struct UnderWay<'e, A: Access> {
    endpoint: &'e Endpoint<A>,
    id: usize,
    /// Polls in a row that found nothing.
    polls: u32,
    /// The slot was released.
    ended: bool,
}

/// Polls of a future that spin through the executor before it waits for the descriptor.
const SPINS: u32 = 32;

impl<A: Access> UnderWay<'_, A> {
    /// The result and the buffer, once there is one.
    fn take(id: usize, engine: &mut Engine) -> Option<(Result<Entry, ErrorEntry>, Option<Buffer>)> {
        let result = engine.core.operations.take_result(id)?;
        Some((result, engine.core.operations.release(id)))
    }

    /// The address of the buffer's first byte.
    fn base(&self) -> u64 {
        self.endpoint.access.with(|engine| {
            let buffer = engine.core.operations.buffer(self.id);
            buffer.map_or(0, |buffer| buffer.segment_for_send().as_ptr().addr() as u64)
        })
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(Entry, Buffer), OperationError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let id = self.id;
        match self.endpoint.access.wait_until(deadline, |engine| Self::take(id, engine)) {
            Some(taken) => self.end(taken),
            None => Err(OperationError { cause: Cause::TimedOut, buffer: None }),
        }
    }

    fn end(
        &mut self,
        (result, buffer): (Result<Entry, ErrorEntry>, Option<Buffer>),
    ) -> Result<(Entry, Buffer), OperationError> {
        self.ended = true;
        match (result, buffer) {
            (Ok(entry), Some(buffer)) => Ok((entry, buffer)),
            (Ok(entry), None) => Ok((entry, Buffer::from(Vec::new()))),
            (Err(error), buffer) => Err(OperationError { cause: error.into(), buffer }),
        }
    }

    /// Polls for whatever `take` finds; arranges to be woken otherwise.
    fn poll<R>(&mut self, context: &Context<'_>, mut take: impl FnMut(&mut Engine) -> Option<R>) -> Poll<R> {
        let (id, spin) = (self.id, self.polls < SPINS);
        self.polls += 1;
        let endpoint = self.endpoint;
        let found = endpoint.access.with(|engine| {
            engine.progress();
            if let Some(found) = take(engine) {
                return Ok(found);
            }
            engine.core.operations.set_waker(id, context.waker());
            if spin {
                return Err(false);
            }
            match engine.arm() {
                None => take(engine).ok_or(false),
                Some(armed) => take(engine).ok_or(!armed.is_nap()),
            }
        });
        match found {
            Ok(found) => {
                self.polls = 0;
                return Poll::Ready(found);
            }
            Err(false) => context.waker().wake_by_ref(),
            Err(true) => {
                let watched = reactor::wake_when_readable(endpoint.id(), &endpoint.descriptor, context.waker());
                if let Err(error) = watched {
                    tracing::warn!(%error, "no reactor; the future polls instead");
                    context.waker().wake_by_ref();
                }
            }
        }
        Poll::Pending
    }
}

impl<A: Access> Endpoint<A> {
    fn id(&self) -> u64 {
        self.access.with(|engine| engine.id())
    }
}

impl<A: Access> Drop for UnderWay<'_, A> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let id = self.id;
        self.endpoint.access.with(|engine| {
            engine.core.operations.park(id);
            engine.core.cancel(id as u64, true);
        });
    }
}

/// A send under way: wait for it or await it.
#[derive(Debug)]
#[must_use = "dropping it cancels the send if it can"]
pub struct Sending<'e, A: Access> {
    under_way: UnderWay<'e, A>,
}

impl<A: Access> Sending<'_, A> {
    /// Waits until the send has completed.
    ///
    /// # Errors
    /// If it fails.
    pub fn wait(mut self) -> Result<Sent, OperationError> {
        self.under_way.wait(None).map(|(_, buffer)| Sent { buffer })
    }

    /// As [`wait`](Self::wait), for at most `timeout`; after that the send goes on without its handle.
    ///
    /// # Errors
    /// If it fails, or time passes.
    pub fn wait_for(mut self, timeout: Duration) -> Result<Sent, OperationError> {
        self.under_way.wait(Some(timeout)).map(|(_, buffer)| Sent { buffer })
    }
}

impl<A: Access> Future for Sending<'_, A> {
    type Output = Result<Sent, OperationError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let id = self.under_way.id;
        self.under_way.poll(context, |engine| UnderWay::<A>::take(id, engine)).map(|taken| {
            let (_, buffer) = self.under_way.end(taken)?;
            Ok(Sent { buffer })
        })
    }
}

/// A receive under way: wait for it or await it.
#[derive(Debug)]
#[must_use = "dropping it cancels the receive if it can"]
pub struct Receiving<'e, A: Access> {
    under_way: UnderWay<'e, A>,
}

impl<A: Access> Receiving<'_, A> {
    /// Waits for the message.
    ///
    /// # Errors
    /// If the receive fails: truncation, cancellation, death of the peer that it was directed at.
    pub fn wait(mut self) -> Result<Received, OperationError> {
        self.under_way.wait(None).map(|(entry, buffer)| Received::new(buffer, &entry))
    }

    /// As [`wait`](Self::wait), for at most `timeout`; then the receive is cancelled.
    ///
    /// # Errors
    /// If the receive fails, or time passes.
    pub fn wait_for(mut self, timeout: Duration) -> Result<Received, OperationError> {
        self.under_way.wait(Some(timeout)).map(|(entry, buffer)| Received::new(buffer, &entry))
    }

    /// Whether the message is here, without waiting (but making progress).
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let id = self.under_way.id;
        self.under_way.endpoint.access.with(|engine| {
            engine.progress();
            engine.core.operations.has_result(id)
        })
    }

    /// Cancels the receive; it then completes with [`ErrorCode::Canceled`], unless a message came first. Says whether it did.
    #[must_use]
    pub fn cancel(&self) -> bool {
        let id = self.under_way.id;
        self.under_way.endpoint.access.with(|engine| engine.core.cancel(id as u64, true))
    }
}

impl<A: Access> Future for Receiving<'_, A> {
    type Output = Result<Received, OperationError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let id = self.under_way.id;
        self.under_way.poll(context, |engine| UnderWay::<A>::take(id, engine)).map(|taken| {
            let (entry, buffer) = self.under_way.end(taken)?;
            Ok(Received::new(buffer, &entry))
        })
    }
}

/// A buffer that takes many messages.
#[derive(Debug)]
#[must_use = "dropping it cancels the receive"]
pub struct ReceivingMany<'e, A: Access> {
    under_way: UnderWay<'e, A>,
    base: u64,
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

impl<A: Access> ReceivingMany<'_, A> {
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

impl<'e, A: Access> IntoFuture for SendRequest<'e, A> {
    type Output = Result<Sent, OperationError>;
    type IntoFuture = Started<Sending<'e, A>>;

    fn into_future(self) -> Self::IntoFuture {
        Started { state: Some(self.start()) }
    }
}

impl<'e, A: Access> IntoFuture for ReceiveRequest<'e, A> {
    type Output = Result<Received, OperationError>;
    type IntoFuture = Started<Receiving<'e, A>>;

    fn into_future(self) -> Self::IntoFuture {
        Started { state: Some(self.start()) }
    }
}

/// A request that was posted by awaiting it, or could not be.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Started<F> {
    state: Option<Result<F, OperationError>>,
}

impl<F, R> Future for Started<F>
where
    F: Future<Output = Result<R, OperationError>> + Unpin,
{
    type Output = Result<R, OperationError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.state.as_mut() {
            Some(Ok(future)) => Pin::new(future).poll(context),
            Some(Err(_)) => match self.state.take() {
                Some(Err(error)) => Poll::Ready(Err(error)),
                _ => Poll::Pending,
            },
            None => Poll::Pending,
        }
    }
}
